/* test_place.c - etcd/serve/place.c: agents that start on one machine in the same
 * moment, and one that was killed. */
#include <stdio.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_sweeps_the_living),
        cmocka_unit_test(the_dead_are_swept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
