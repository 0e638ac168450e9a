/* test_directories.c - what is in the way of a new attempt's log directory. */
#include "testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "logs/directories.h"
#include "loop/remove_tree.h"

enum what { NOTHING, EMPTY, FULL, LINK, THEIRS };

static void make(enum what what, const char *path, const char *mine)
{
    char inner[256];

    if (what == NOTHING)
        return;
    if (what == LINK) {
        assert_int_equal(symlink(mine, path), 0);
        return;
    }
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(inner, sizeof inner, "%s/stderr.log", path);
    FILE *f = fopen(inner, "w");
    assert_non_null(f);
    if (what == FULL)
        fputs("words", f);
    fclose(f);
    if (what == THEIRS)
        assert_int_equal(chown(path, 65534, 65534), 0);
}

static void renews(void **state)
{
    static const struct {
        const char *says;
        enum what what;
        bool moves;
    } rows[] = {
        { "nothing is there", NOTHING, false },
        { "no worker wrote anything", EMPTY, false },
        { "a worker wrote something", FULL, true },
        { "a link to what is ours elsewhere", LINK, true },
        { "another user's, which is not ours to remove", THEIRS, true },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char run[] = "/tmp/test_directories_XXXXXX", path[64], mine[64], *moved = NULL;
        struct muster_error err;
        struct stat st;

        if (rows[i].what == THEIRS && geteuid() != 0)
            continue;
        assert_non_null(mkdtemp(run));
        snprintf(path, sizeof path, "%s/attempt_0", run);
        snprintf(mine, sizeof mine, "%s/mine", run);
        assert_int_equal(mkdir(mine, 0700), 0);
        make(rows[i].what, path, mine);
        if (log_dirs_renew(run, "attempt_0", &moved, &err) != 0)
            fail_msg("%s: %s", rows[i].says, err.text);
        if ((moved != NULL) != rows[i].moves)
            fail_msg("%s: moved to %s", rows[i].says, moved ? moved : "(nowhere)");
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISDIR(st.st_mode) && st.st_uid == geteuid());
        assert_int_equal(access(mine, F_OK), 0);
        if (rows[i].what == THEIRS)
            assert_int_equal(chown(moved, geteuid(), getegid()), 0);
        mem_free(moved);
        assert_true(remove_tree(-1, run)); /* `run` is absolute */
    }
}

/* An attempt goes with its earlier rounds; others whose names begin alike stay. */
static void forgets(void **state)
{
    static const struct {
        const char *name;
        bool stays;
    } dirs[] = { { "attempt_1", false },
                 { "attempt_10", true },
                 { "earlier", true },
                 { "earlier/attempt_1.0", false },
                 { "earlier/attempt_1.1", false },
                 { "earlier/attempt_10.0", true } };
    char run[] = "/tmp/test_directories_XXXXXX", path[96];
    struct stat st;

    (void)state;
    assert_non_null(mkdtemp(run));
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof path, "%s/%s", run, dirs[i].name);
        make(FULL, path, NULL);
    }
    log_dirs_forget(run, "attempt_1");
    log_dirs_forget(run, "attempt_2"); /* There is none. */
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        snprintf(path, sizeof path, "%s/%s", run, dirs[i].name);
        assert_int_equal(stat(path, &st) == 0, dirs[i].stays);
    }
    assert_true(remove_tree(AT_FDCWD, run));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(renews),
                                        cmocka_unit_test(forgets) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
