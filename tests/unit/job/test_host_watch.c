/* test_host_watch.c - what makes a coordinator's machine lost, and what does not. */
#include "testing.h"

#include "job/core/host_watch.h"
#include "muster/error.h"

#define STEPS 6

static const struct {
    const char *says;
    struct {
        int code; /* 1: it was reached; 0: the end */
        uint64_t ms;
    } steps[STEPS];
    int lost; /* the step that says so; -1: none */
} table[] = {
    { "a reset, and back at once", { { MUSTER_EHANGUP, 0 }, { 1, 20 } }, -1 },
    { "killed: nobody listens any more",
      { { MUSTER_EHANGUP, 0 }, { MUSTER_EREFUSED, 20 }, { MUSTER_EREFUSED, 60 } },
      2 },
    { "it is lost once",
      { { MUSTER_EREFUSED, 0 }, { MUSTER_EREFUSED, 60 }, { MUSTER_EREFUSED, 140 } },
      1 },
    { "refused once: its agent may be about to listen",
      { { MUSTER_EHANGUP, 0 }, { MUSTER_EREFUSED, 20 }, { 1, 60 } },
      -1 },
    { "two in one moment are one",
      { { MUSTER_EREFUSED, 0 }, { MUSTER_EREFUSED, 5 }, { 1, 60 } },
      -1 },
    { "silence proves nothing",
      { { MUSTER_EHANGUP, 0 },
        { MUSTER_ETIMEDOUT, 3000 },
        { MUSTER_EUNREACH, 6000 },
        { MUSTER_ERESOLVE, 9000 },
        { MUSTER_ENOTSTORE, 12000 } },
      -1 },
    { "unreachable for a while, then refused twice",
      { { MUSTER_EUNREACH, 0 },
        { MUSTER_EREFUSED, 20 },
        { MUSTER_ETIMEDOUT, 3000 },
        { MUSTER_EREFUSED, 3060 } },
      3 },
    { "back, and what was refused before is forgotten",
      { { MUSTER_EREFUSED, 0 }, { 1, 40 }, { MUSTER_EREFUSED, 90 } },
      -1 },
};

static void decisions(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        struct host_watch w = { 0 };

        for (int k = 0; k < STEPS && table[i].steps[k].code; k++) {
            const int code = table[i].steps[k].code;
            const bool lost = code == 1
                                  ? host_watch_reached(&w) && false
                                  : host_watch_failed(&w, code, table[i].steps[k].ms);

            if (lost != (k == table[i].lost))
                fail_msg("%s: step %d", table[i].says, k);
        }
    }
}

static void it_was_not_lost(void **state)
{
    struct host_watch w = { 0 };

    (void)state;
    assert_false(host_watch_reached(&w));
    assert_false(host_watch_failed(&w, MUSTER_EREFUSED, 0));
    assert_true(host_watch_failed(&w, MUSTER_EREFUSED, 40));
    assert_true(host_watch_reached(&w));
    assert_false(host_watch_reached(&w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions),
        cmocka_unit_test(it_was_not_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
