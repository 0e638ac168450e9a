/* test_place.c - etcd/serve/place.c: agents that start on one machine in the same
 * moment, and one that was killed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "etcd/serve/place.h"
#include "testing.h"

#define AGENTS 4
#define TIMES  100

static bool is_there(const char *dir)
{
    char path[512];

    snprintf(path, sizeof path, "%s/lock", dir);
    return access(path, F_OK) == 0;
}

/* Each sweeps what the dead have left, and must not take the living for them. */
static void nobody_sweeps_the_living(void **state)
{
    char *envp[] = { NULL };
    pid_t pids[AGENTS];
    int status;

    (void)state;
    for (size_t i = 0; i < AGENTS; i++) {
        pids[i] = fork();
        if (pids[i] != 0)
            continue;
        for (int k = 0; k < TIMES; k++) {
            int lock = -1;
            char *dir = place_make(envp, &lock);

            if (!dir || lock < 0 || !is_there(dir))
                _exit(1);
            place_remove(dir);
            (void)close(lock);
            mem_free(dir);
        }
        _exit(0);
    }
    for (size_t i = 0; i < AGENTS; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
}

static void the_dead_are_swept(void **state)
{
    char *envp[] = { NULL };
    int first = -1, second = -1;
    char *dead = place_make(envp, &first);

    (void)state;
    assert_non_null(dead);
    assert_true(is_there(dead));
    (void)close(first); /* as when its process was killed */
    char *next = place_make(envp, &second);
    assert_non_null(next);
    assert_false(is_there(dead));
    assert_true(is_there(next));
    place_remove(next);
    assert_false(is_there(next));
    (void)close(second);
    mem_free(dead);
    mem_free(next);
}

static void make_file(const char *dir, const char *name)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

/* Whoever may write to the place must not have us remove what is ours elsewhere: what
 * looks like a directory of ours may be a link, or somebody else's. */
static void others_cannot_have_us_remove_things(void **state)
{
    char place[] = "/tmp/test_place_XXXXXX", mine[64], link[64], theirs[64], left[64];

    (void)state;
    assert_non_null(mkdtemp(place));
    snprintf(mine, sizeof mine, "%s/mine", place);
    snprintf(link, sizeof link, "%s/muster_etcd_link", place);
    snprintf(theirs, sizeof theirs, "%s/muster_etcd_theirs", place);
    snprintf(left, sizeof left, "%s/muster_etcd_left", place);
    assert_int_equal(mkdir(mine, 0700) | mkdir(theirs, 0700) | mkdir(left, 0700), 0);
    make_file(mine, "lock");
    make_file(theirs, "lock");
    make_file(left, "lock");
    assert_int_equal(symlink(mine, link), 0);
    assert_int_equal(symlink(mine, strcat(left, "/inner")), 0);
    *strrchr(left, '/') = '\0';
    if (geteuid() == 0)
        assert_int_equal(chown(theirs, 65534, 65534), 0);
    place_sweep(place);
    assert_int_equal(access(link, F_OK), 0);
    assert_true(is_there(mine));
    assert_true(geteuid() != 0 || is_there(theirs));
    assert_int_equal(access(left, F_OK), -1); /* One that is ours is removed. */
    (void)chown(theirs, geteuid(), getegid());
    place_remove(place);
    assert_int_equal(access(place, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_sweeps_the_living),
        cmocka_unit_test(the_dead_are_swept),
        cmocka_unit_test(others_cannot_have_us_remove_things),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
