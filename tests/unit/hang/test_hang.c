/* When a job stands still, and when it only looks so: hang/core. */
#include "testing.h"

#include "base/err.h"
#include "hang/core/progress.h"
#include "launch/core/derive.h"

/* --- the option ------------------------------------------------------------------- */

static void times_and_actions(void **state)
{
    static const struct {
        const char *text;
        uint64_t ms; /* 0: refused */
        enum hang_action action;
    } rows[] = {
        { "600", 0, HANG_REPORT }, /* seconds or minutes? */
        { "600:stop", 0, HANG_REPORT },
        { "10m", 600000, HANG_REPORT },
        { "90s:report", 90000, HANG_REPORT },
        { "1h30m:restart", 5400000, HANG_RESTART },
        { "1.5h:stop", 5400000, HANG_STOP },
        { "1500ms", 1500, HANG_REPORT },
        { "30d", 2592000000u, HANG_REPORT },
        { "31d", 0, HANG_REPORT },
        { "", 0, HANG_REPORT },
        { ":stop", 0, HANG_REPORT },
        { "10m:", 0, HANG_REPORT },
        { "10m:pause", 0, HANG_REPORT },
        { "10x", 0, HANG_REPORT },
        { "-5s", 0, HANG_REPORT },
        { "999ms", 0, HANG_REPORT },
        { "0", 0, HANG_REPORT },
        { "1e400", 0, HANG_REPORT },
        { "nan", 0, HANG_REPORT },
        { "10m 5s", 0, HANG_REPORT },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        enum hang_action action = HANG_REPORT;
        struct muster_error err;
        uint64_t ms = 0;
        const int rc = hang_option_parse(rows[i].text, &ms, &action, &err);

        if (rc != (rows[i].ms ? 0 : MUSTER_EINVAL) || ms != rows[i].ms ||
            action != rows[i].action)
            fail_msg("--hang=%s: rc %d, %lu ms", rows[i].text, rc, (unsigned long)ms);
    }
}

/* --- a job, played ---------------------------------------------------------------- */

#define TIME 20000u /* of the hang: a look at stacks each second from 10 s on */
#define LEAD 1500u  /* so much earlier the stacks for a report are read */

/* What a rank does, second by second. */
enum habit {
    GONE,
    WAITS,   /* in a collective, not scheduled */
    SPINS,   /* in a collective, on a CPU */
    SLEEPS,  /* elsewhere, not scheduled */
    LOOPS,   /* elsewhere, on a CPU, at other lines each time */
    POLLS,   /* elsewhere, wakes up each second */
    STEPS,   /* waits in the same collective whenever we look, with work in between */
    NEARLY,  /* waits in a collective for nearly the time of a hang, then steps on */
    STOPPED, /* by SIGSTOP */
};

static void play_rank(struct hang_node *n, size_t i, enum habit habit, uint64_t now)
{
    const uint64_t s = now / (habit == NEARLY ? TIME - 1000 : 1000);
    const bool awake = habit == POLLS || habit == STEPS || habit == NEARLY;
    const bool runs = habit == SPINS || habit == LOOPS;
    const struct hang_seen seen = {
        .pid = habit == GONE ? 0 : 100 + (int64_t)i,
        .waits = awake ? s : 7,
        .cpu_us = runs    ? now * 1000
                  : awake ? s * 50
                          : 5000,
    };

    hang_node_saw(n, i, &seen, now);
}

static void play_stacks(struct hang_node *n, const enum habit *habits, size_t count,
                        uint64_t now)
{
    struct stack_sample sample = { 0 };

    for (size_t i = 0; i < count; i++) {
        const bool torch = habits[i] == WAITS || habits[i] == SPINS ||
                           habits[i] == STEPS || habits[i] == NEARLY;
        struct stack_rank *r = stack_sample_add(&sample, 1);
        struct stack_thread *t = arena_alloc(&sample.arena, 1, sizeof *t);
        struct stack_frame *f = arena_alloc(&sample.arena, 1, sizeof *f);

        *f = (struct stack_frame){ .name = torch ? "all_reduce" : "work",
                                   .file = torch
                                               ? "torch/distributed/distributed_c10d.py"
                                               : "train.py",
                                   .line = habits[i] == LOOPS ? (int64_t)now : 1 };
        *t = (struct stack_thread){ .name = "", .python = f, .python_count = 1 };
        r->local_rank = (int64_t)i;
        r->processes[0].threads = t;
        r->processes[0].thread_count = 1;
        r->processes[0].state = habits[i] == STOPPED ? 'T' : 'S';
    }
    hang_node_stacks(n, &sample);
    stack_sample_fini(&sample);
}

/* Plays for two minutes; returns when a hang was found, or 0. Output comes each
 * writes_s seconds, unless that is 0. */
static uint64_t play(const enum habit *habits, size_t count, uint64_t writes_s)
{
    struct hang_node n;
    struct hang_judge j;
    uint64_t found = 0;

    assert_int_equal(hang_node_init(&n, count, 0), 0);
    hang_judge_init(&j, TIME, 0);
    for (uint64_t now = 0; now < 120000 && !found; now += 500) {
        for (size_t i = 0; i < count; i++)
            play_rank(&n, i, habits[i], now);
        if (writes_s && now % (writes_s * 1000) == 0)
            hang_node_wrote(&n, now, 0);
        if (now < j.due_ms)
            continue;
        const struct hang_question q = hang_judge_ask(&j);
        struct hang_pulse p;

        assert_true(q.time_ms == (j.stage == HANG_SUSPECT ? TIME : TIME - LEAD));
        if (q.begin)
            hang_node_begin(&n);
        if (q.stacks && (!q.enough || hang_node_spins(&n, now, q.time_ms)))
            play_stacks(&n, habits, count, now);
        hang_node_pulse(&n, now, q.time_ms, &p);
        assert_int_equal(p.waiting + p.still + p.busy + p.moving, p.ranks);
        if (hang_judge_hear(&j, now, &p, true) == HANG_FOUND)
            found = now;
    }
    hang_node_fini(&n);
    return found;
}

static void who_hangs_and_who_does_not(void **state)
{
    static const struct {
        const char *says;
        enum habit habits[4];
        size_t count;
        uint64_t writes_s;
        bool hangs;
    } rows[] = {
        { "one sleeps, the others wait", { WAITS, SLEEPS, WAITS }, 3, 0, true },
        { "one is stopped", { WAITS, STOPPED }, 2, 0, true },
        { "one is in an endless loop", { WAITS, LOOPS, WAITS }, 3, 0, true },
        { "one polls for ever", { WAITS, POLLS }, 2, 0, true },
        { "the waits spin", { SPINS, SLEEPS, SPINS }, 3, 0, true },
        { "the waits spin, one loops", { SPINS, LOOPS }, 2, 0, true },
        { "all wait", { WAITS, WAITS }, 2, 0, true },
        { "all sleep", { SLEEPS, SLEEPS }, 2, 0, true },
        { "one has left", { WAITS, GONE, SLEEPS }, 3, 0, true },
        { "none runs", { GONE, GONE }, 2, 0, false },
        { "one writes at times", { WAITS, SLEEPS }, 2, 15, false },
        { "all step on", { STEPS, STEPS }, 2, 0, false },
        { "steps take nearly as long", { NEARLY, NEARLY }, 2, 0, false },
        { "one sleeps, the others step on in time", { NEARLY, SLEEPS }, 2, 0, false },
        { "one waits for ranks that step on", { WAITS, STEPS, STEPS }, 3, 0, false },
        { "steps are silent, one computes", { STEPS, LOOPS }, 2, 0, false },
        { "a lone rank computes", { LOOPS }, 1, 0, false },
        { "a lone rank polls", { POLLS }, 1, 0, false },
        { "one sleeps on purpose, the other computes", { SLEEPS, LOOPS }, 2, 0, false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const uint64_t at = play(rows[i].habits, rows[i].count, rows[i].writes_s);

        if ((at != 0) != rows[i].hangs || (at && (at < TIME || at > TIME + 1000)))
            fail_msg("a job in which %s: found at %lu ms", rows[i].says,
                     (unsigned long)at);
    }
}

/* One rank has waited for ages for another that was at work, and now is stuck; and on a
 * slow machine looking takes longer than the time itself. */
static void it_looks_again_however_long_somebody_has_waited(void **state)
{
    const struct hang_pulse works = { .quiet_ms = 9 * TIME,
                                      .calm_ms = 9 * TIME,
                                      .ranks = 2,
                                      .looks = 3,
                                      .waiting = 1,
                                      .moving = 1 };
    const struct hang_pulse stuck = { .quiet_ms = 9 * TIME,
                                      .calm_ms = 9 * TIME,
                                      .ranks = 2,
                                      .looks = 3,
                                      .waiting = 1,
                                      .still = 1 };
    struct hang_judge j;
    uint64_t now = 0;

    (void)state;
    hang_judge_init(&j, TIME, 0);
    for (; now < 6 * TIME; now = MAX_OF(j.due_ms, now + 1)) {
        (void)hang_judge_ask(&j);
        assert_int_equal(hang_judge_hear(&j, now, &works, true), HANG_NOTHING);
    }
    bool found = false;
    const uint64_t by = now + TIME;
    for (; !found && now < by; now = j.due_ms) {
        (void)hang_judge_ask(&j);
        found = hang_judge_hear(&j, now, &stuck, true) == HANG_FOUND;
    }
    assert_true(found);

    struct hang_pulse slow = stuck;
    hang_judge_init(&j, TIME, 0);
    slow.looks = 0;
    for (now = TIME; slow.looks < 3; now += 2 * TIME, slow.looks++) {
        (void)hang_judge_ask(&j);
        assert_int_equal(hang_judge_hear(&j, now, &slow, true), HANG_NOTHING);
        assert_int_equal(j.stage, HANG_LOOK);
    }
    assert_int_equal(hang_judge_hear(&j, now, &slow, true), HANG_SUSPECTED);
    assert_int_equal(hang_judge_hear(&j, now, &slow, true), HANG_FOUND);
}

/* The stacks are read before TIME is up; whoever moves after that is not reported. */
static void a_suspicion_has_to_last_until_the_time_is_up(void **state)
{
    static const struct {
        const char *says;
        struct hang_pulse then;
        enum hang_finding finding;
        enum hang_stage stage;
    } rows[] = {
        { "all stand still",
          { .quiet_ms = TIME, .calm_ms = TIME, .ranks = 2, .looks = 3, .still = 2 },
          HANG_FOUND,
          HANG_REPORTED },
        { "the answers come too early",
          { .quiet_ms = TIME - 1,
            .calm_ms = TIME,
            .ranks = 2,
            .looks = 3,
            .moving = 2 },
          HANG_NOTHING,
          HANG_SUSPECT },
        { "a rank has moved",
          { .quiet_ms = TIME,
            .calm_ms = TIME,
            .ranks = 2,
            .looks = 3,
            .still = 1,
            .moving = 1 },
          HANG_NOTHING,
          HANG_LOOK },
        { "something was written",
          { .quiet_ms = 5, .calm_ms = TIME, .ranks = 2, .looks = 3, .still = 2 },
          HANG_NOTHING,
          HANG_WATCH },
    };
    const struct hang_pulse still = { .quiet_ms = TIME - LEAD,
                                      .calm_ms = TIME - LEAD,
                                      .ranks = 2,
                                      .looks = 3,
                                      .still = 2 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const uint64_t now = TIME - LEAD;
        struct hang_judge j;

        hang_judge_init(&j, TIME, 0);
        assert_int_equal(hang_judge_hear(&j, now, &still, true), HANG_SUSPECTED);
        assert_int_equal(j.due_ms, TIME);
        const struct hang_question q = hang_judge_ask(&j);
        assert_true(q.time_ms == TIME && q.stacks && q.enough && !q.begin);
        if (hang_judge_hear(&j, TIME, &rows[i].then, true) != rows[i].finding ||
            j.stage != rows[i].stage)
            fail_msg("%s: stage %d", rows[i].says, (int)j.stage);
        if (j.stage == HANG_SUSPECT)
            assert_int_equal(j.due_ms, TIME + 1);
        if (j.stage == HANG_LOOK)
            assert_true(hang_judge_ask(&j).begin);
    }
}

static void a_node_that_is_missing_proves_nothing(void **state)
{
    const struct hang_pulse still = {
        .quiet_ms = 2 * TIME, .calm_ms = TIME, .ranks = 2, .looks = 9, .still = 2
    };
    struct hang_judge j;

    (void)state;
    hang_judge_init(&j, TIME, 0);
    assert_int_equal(hang_judge_hear(&j, TIME, &still, false), HANG_NOTHING);
    assert_int_equal(hang_judge_hear(&j, TIME, &still, true), HANG_SUSPECTED);
    hang_judge_not_reported(&j, TIME);
    assert_true(j.due_ms < 2 * TIME);
    assert_int_equal(hang_judge_hear(&j, j.due_ms, &still, true), HANG_SUSPECTED);
    assert_int_equal(hang_judge_hear(&j, j.due_ms, &still, true), HANG_FOUND);
    assert_int_equal(hang_judge_hear(&j, 2 * TIME, &still, true), HANG_NOTHING);
    const struct hang_pulse moves = { .quiet_ms = 1, .ranks = 2, .moving = 2 };
    assert_int_equal(hang_judge_hear(&j, 3 * TIME, &moves, true), HANG_OVER);
    assert_int_equal(hang_judge_hear(&j, 3 * TIME, &moves, true), HANG_NOTHING);
}

static void nodes_add_up(void **state)
{
    const struct hang_pulse a = { 100, 50, 2, 3, 1, 1, 0, 0 };
    const struct hang_pulse b = { 70, 60, 1, 2, 0, 0, 1, 0 };
    const struct hang_pulse none = { 0 };
    struct hang_pulse all = { 0 };

    (void)state;
    hang_pulse_add(&all, &a);
    hang_pulse_add(&all, &none);
    hang_pulse_add(&all, &b);
    assert_int_equal(all.quiet_ms, 70);
    assert_int_equal(all.calm_ms, 60);
    assert_int_equal(all.ranks, 3);
    assert_int_equal(all.looks, 2);
    assert_int_equal(all.waiting, 1);
    assert_int_equal(all.still, 1);
    assert_int_equal(all.busy, 1);
}

static void a_rank_that_was_held_has_not_moved(void **state)
{
    struct hang_node n;
    struct hang_pulse p;

    (void)state;
    assert_int_equal(hang_node_init(&n, 1, 0), 0);
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 5, 100 }, 1000);
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 5, 5000 }, 1, 2000);
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 8, 5000 }, 1, 3000);
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 10, 5000 }, 2, 3500);
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 10, 5000 }, 9000);
    hang_node_pulse(&n, 9000, 8000, &p);
    assert_int_equal(p.calm_ms, 8000);
    assert_int_equal(p.still, 1);
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 11, 5000 }, 10000);
    hang_node_pulse(&n, 10000, 8000, &p);
    assert_int_equal(p.calm_ms, 0);
    assert_int_equal(p.moving, 1);
    /* What is more than our doing counts, and what was counted does not count twice. */
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 14, 5000 }, 1, 10500);
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 17, 5000 }, 2, 11000);
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 19, 5000 }, 3, 11500);
    hang_node_pulse(&n, 12000, 8000, &p);
    assert_int_equal(p.calm_ms, 1000);
    assert_int_equal(p.moving, 1);
    hang_node_fini(&n);
}

/* To a pipe, say, which does not tell. That it ran is not what counts. */
/* Readings follow each other, one between two looks each. Each has a rank that sleeps
 * go to sleep twice. */
static void readings_in_a_row_do_not_move_a_rank(void **state)
{
    static const struct {
        const char *says;
        uint64_t each; /* times that it goes to sleep from one look to the next */
        size_t readings;
        bool moves;
    } rows[] = {
        { "four readings of a rank that sleeps", 2, 4, false },
        { "four readings of a rank that moves on", 3, 4, true },
        { "a rank that is looked at all the time", 2, 40, true },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct hang_holds holds = { 0 };
        struct hang_seen seen = { 9, 3, 5000, 0 };
        struct hang_node n;
        struct hang_pulse p;
        uint64_t now = 1000;

        assert_int_equal(hang_node_init(&n, 1, 0), 0);
        hang_node_saw(&n, 0, &seen, now);
        for (size_t k = 1; k <= rows[i].readings; k++) {
            seen.waits += rows[i].each;
            now += 500;
            assert_true(hang_holds_saw(&holds, 2 * k, 0, now));
            hang_node_held(&n, 0, &seen, holds.times, now);
        }
        now += 500;
        assert_false(hang_holds_saw(&holds, 2 * rows[i].readings, 0, now));
        hang_node_saw(&n, 0, &seen, now);
        hang_node_pulse(&n, now, TIME, &p);
        if ((p.calm_ms < now - 1000) != rows[i].moves)
            fail_msg("%s: calm for %lu ms", rows[i].says, (unsigned long)p.calm_ms);
        hang_node_fini(&n);
    }
}

static void a_rank_that_writes_makes_progress(void **state)
{
    struct hang_node n;
    struct hang_pulse p;

    (void)state;
    assert_int_equal(hang_node_init(&n, 1, 0), 0);
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 5, 100, 70 }, 1000);
    hang_node_pulse(&n, 1000, 8000, &p);
    assert_int_equal(p.quiet_ms, 1000); /* what it had written before nobody knows */
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 5, 200, 71 }, 2000);
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 5, 200, 71 }, 3000);
    hang_node_pulse(&n, 3000, 8000, &p);
    assert_int_equal(p.quiet_ms, 1000);
    hang_node_held(&n, 0, &(struct hang_seen){ 9, 6, 300, 90 }, 1, 3500);
    hang_node_saw(&n, 0, &(struct hang_seen){ 9, 6, 300, 90 }, 4000);
    hang_node_pulse(&n, 4000, 8000, &p);
    assert_int_equal(p.quiet_ms, 2000); /* our question made it write */
    hang_node_fini(&n);
}

static void nonsense_is_no_pulse(void **state)
{
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "3",
        "{\"quiet_ms\": 1, \"calm_ms\": 1, \"ranks\": 2, \"looks\": 0, \"waiting\": 0, "
        "\"still\": 0, \"busy\": 0, \"moving\": 1}",
        "{\"quiet_ms\": -1, \"calm_ms\": 1, \"ranks\": 1, \"looks\": 0, \"waiting\": "
        "0, \"still\": 0, \"busy\": 0, \"moving\": 1}",
    };
    struct hang_question q;
    struct hang_pulse p;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(hang_pulse_parse(&p, span_str(texts[i])), MUSTER_EPROTO);
        assert_int_equal(hang_question_parse(&q, span_str(texts[i])), MUSTER_EPROTO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_and_actions),
        cmocka_unit_test(who_hangs_and_who_does_not),
        cmocka_unit_test(it_looks_again_however_long_somebody_has_waited),
        cmocka_unit_test(a_suspicion_has_to_last_until_the_time_is_up),
        cmocka_unit_test(a_node_that_is_missing_proves_nothing),
        cmocka_unit_test(nodes_add_up),
        cmocka_unit_test(a_rank_that_was_held_has_not_moved),
        cmocka_unit_test(readings_in_a_row_do_not_move_a_rank),
        cmocka_unit_test(a_rank_that_writes_makes_progress),
        cmocka_unit_test(nonsense_is_no_pulse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
