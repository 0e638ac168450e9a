/* test_fence.c - when a node is cut off: counted from the sending of the last sign of
 * life that was answered, in time before the others may begin, and not before asking if
 * it was this process that was away. */
#include "testing.h"

#include "rendezvous/core/fence.h"

enum step { SENT, ANSWERED, LOST, ABSENT, CHECK };

/* A lease of 4 s that is kept alive each second: cut off at 3 s. */
static void a_story_of_a_lease(void **state)
{
    static const struct {
        const char *says;
        enum step step;
        uint64_t at_ms;
        bool passed;     /* CHECK */
        uint64_t due_ms; /* after the step; 0: never */
    } rows[] = {
        { "nothing was ever answered", CHECK, 900000, false, 0 },
        { "the first one goes out", SENT, 1000, false, 0 },
        { "its answer comes late: counted from its sending", ANSWERED, 1900, false,
          4000 },
        { "the next", SENT, 2000, false, 4000 },
        { "and another: the answer may be to the one before", SENT, 2900, false, 4000 },
        { "so that one counts", ANSWERED, 2950, false, 5000 },
        { "an answer to nothing changes nothing", ANSWERED, 2960, false, 5000 },
        { "the next is lost", SENT, 3950, false, 5000 },
        { "which is known", LOST, 4100, false, 5000 },
        { "a moment too early", CHECK, 4999, false, 5000 },
        { "cut off, a second before the lease can run out", CHECK, 5000, true, 0 },
        { "said once", CHECK, 7000, false, 0 },
        { "one more goes out", SENT, 7100, false, 0 },
        { "taken back", ANSWERED, 7200, false, 10100 },
        { "a loop that is slow", CHECK, 11099, true, 0 },
        { "again", SENT, 12000, false, 0 },
        { "taken back again", ANSWERED, 12010, false, 15000 },
        { "stopped for half a minute: the others have judged, so ask", CHECK, 42000,
          false, 43000 },
        { "we ask", SENT, 42001, false, 43000 },
        { "nobody answers", CHECK, 43000, true, 0 },
        { "nor ever will", LOST, 44000, false, 0 },
        { "again", SENT, 50000, false, 0 },
        { "and back", ANSWERED, 50010, false, 53000 },
        { "stopped again", CHECK, 54000, false, 55000 },
        { "we ask", SENT, 54001, false, 55000 },
        { "and nobody minded", ANSWERED, 54005, false, 57001 },
        { "away, and back in time", ABSENT, 56000, false, 57001 },
        { "back after the time, before the limit: half of the rest to ask", ABSENT,
          57401, false, 57701 },
        { "away once more", ABSENT, 57600, false, 57701 },
        { "nobody answers", CHECK, 57701, true, 0 },
    };
    struct fence f;

    (void)state;
    fence_init(&f, 4000, 1000);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        bool passed = false;

        if (rows[i].step == SENT)
            fence_sent(&f, rows[i].at_ms);
        else if (rows[i].step == ANSWERED)
            fence_answered(&f);
        else if (rows[i].step == LOST)
            fence_unanswered(&f);
        else if (rows[i].step == ABSENT)
            fence_absent(&f, rows[i].at_ms);
        else
            passed = fence_passed(&f, rows[i].at_ms);
        if (passed != rows[i].passed)
            fail_msg("%s: %scut off", rows[i].says, passed ? "" : "not ");
        if (fence_due(&f) != (rows[i].due_ms ? rows[i].due_ms : MONO_NEVER))
            fail_msg("%s: due at %llu, not %llu", rows[i].says,
                     (unsigned long long)fence_due(&f),
                     (unsigned long long)rows[i].due_ms);
    }
}

/* However the answers come, nobody who counts from the arrival of a sign of life has
 * counted to the limit when we are cut off; margin_ms is left to kill the workers. */
static void always_before_the_others(void **state)
{
    static const struct {
        uint64_t interval_ms, dead_ms, margin_ms;
    } beats[] = { { 1000, 2000, 500 },
                  { 1000, 3000, 500 },
                  { 3000, 9000, 1500 },
                  { 5000, 15000, 2000 },
                  { 60000, 180000, 2000 } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(beats); i++)
        for (uint64_t travel_ms = 0; travel_ms < beats[i].interval_ms;
             travel_ms += 97) {
            const uint64_t sent_ms = 1000, seen_ms = sent_ms + travel_ms;
            struct fence f;

            fence_init_beats(&f, beats[i].interval_ms, beats[i].dead_ms);
            fence_sent(&f, sent_ms);
            fence_answered(&f);
            assert_true(fence_due(&f) + beats[i].margin_ms <=
                        seen_ms + beats[i].dead_ms);
            /* A heartbeat that comes in time is never too late for it. */
            assert_true(fence_due(&f) > sent_ms + beats[i].interval_ms);
        }
}

static void where_no_beat_may_be_missed(void **state)
{
    struct fence f;

    (void)state;
    fence_init_beats(&f, 5000, 5000);
    fence_sent(&f, 1000);
    fence_answered(&f);
    assert_true(fence_due(&f) == MONO_NEVER && !fence_passed(&f, 1000000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_story_of_a_lease),
        cmocka_unit_test(always_before_the_others),
        cmocka_unit_test(where_no_beat_may_be_missed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
