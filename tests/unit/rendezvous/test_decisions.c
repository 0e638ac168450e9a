/* test_decisions.c - join, exit, close and keep-alive as tables and as a walk over
 * every possible view, and what actions and deaths do to the state. */
#include "testing.h"

#include "muster/error.h"
#include "rendezvous/core/decisions.h"

static const char *const names[] = {
#define NAME(name, torch) #name,
    RDZV_ACTIONS(NAME)
#undef NAME
};

#define INTERVAL 5000000ll

struct row {
    const char *says;
    enum rdzv_action want;
    enum rdzv_seat seat;
    int64_t placed;
    bool complete, closed, called, due, everybody;
    uint64_t late_ms; /* 0: not late */
};

static struct rdzv_view view_of(const struct row *r)
{
    return (struct rdzv_view){
        .seat = r->seat,
        .in_round = r->seat == SEAT_PLACE,
        .closed = r->closed,
        .complete = r->complete,
        .placed = r->placed,
        .min_nodes = 2,
        .max_nodes = 4,
        .call_over = r->called,
        .everybody = r->everybody,
        .beat_due = r->due,
        .now_ms = 100000 + r->late_ms,
        .due_ms = 100000,
    };
}

/* A round for 2 to 4 nodes in which ...; a row states only what sets it apart. */
static const struct row joins[] = {
    { "a newcomer takes a place", RDZV_TAKE_PLACE, SEAT_NONE, .placed = 1 },
    { "we waited for this round", RDZV_TAKE_PLACE, SEAT_WAIT, .placed = 0 },
    { "too few have come", RDZV_SYNC, SEAT_PLACE, .placed = 1, .called = true },
    { "the last call goes on", RDZV_SYNC, SEAT_PLACE, .placed = 2 },
    { "the last call is over", RDZV_COMPLETE, SEAT_PLACE, .placed = 2, .called = true },
    { "everybody is there", RDZV_COMPLETE, SEAT_PLACE, .placed = 2, .everybody = true },
    { "everybody is too few", RDZV_SYNC, SEAT_PLACE, .placed = 1, .everybody = true },
    { "too many have come", RDZV_SYNC, SEAT_PLACE, .placed = 5, .called = true },
    { "we are silent for long", RDZV_KEEP_ALIVE, SEAT_PLACE, .placed = 1, .due = true },
    { "we are in", RDZV_FINISH, SEAT_PLACE, .placed = 3, .complete = true },
    { "we are in, but late", RDZV_FINISH, SEAT_PLACE, .placed = 3, .complete = true,
      .late_ms = 9000 },
    { "we came after it", RDZV_TAKE_WAIT, SEAT_NONE, .placed = 3, .complete = true },
    { "all seats are taken", RDZV_TAKE_SPARE, SEAT_NONE, .placed = 4,
      .complete = true },
    { "we wait for the next", RDZV_SYNC, SEAT_WAIT, .placed = 3, .complete = true },
    { "we wait silently", RDZV_KEEP_ALIVE, SEAT_WAIT, .placed = 3, .complete = true,
      .due = true },
    { "we are a spare", RDZV_SYNC, SEAT_SPARE, .placed = 4, .complete = true },
    { "we are a silent spare", RDZV_KEEP_ALIVE, SEAT_SPARE, .placed = 4,
      .complete = true, .due = true },
    { "a spare is never late", RDZV_SYNC, SEAT_SPARE, .placed = 4, .complete = true,
      .late_ms = 99999 },
    { "a spare is needed", RDZV_DROP_SPARE, SEAT_SPARE, .placed = 3, .complete = true },
    { "limits differ", RDZV_DROP_SPARE, SEAT_SPARE, .placed = 5, .complete = true },
    { "we are just in time", RDZV_TAKE_PLACE, SEAT_NONE, .placed = 1, .late_ms = 0 },
    { "we come too late", RDZV_FAIL_TIMEOUT, SEAT_NONE, .placed = 1, .late_ms = 1 },
    { "we are a bit late", RDZV_DROP_PLACE, SEAT_PLACE, .placed = 1, .late_ms = 5000 },
    { "we are too late", RDZV_FAIL_TIMEOUT, SEAT_PLACE, .placed = 1, .late_ms = 5001 },
    { "we waited a bit long", RDZV_DROP_WAIT, SEAT_WAIT, .placed = 1, .complete = true,
      .late_ms = 1 },
    { "we waited too long", RDZV_FAIL_TIMEOUT, SEAT_WAIT, .placed = 1, .complete = true,
      .late_ms = 5001 },
    { "the run is over", RDZV_FAIL_CLOSED, SEAT_PLACE, .placed = 3, .complete = true,
      .closed = true },
    { "the run is over for a spare", RDZV_DISMISSED, SEAT_SPARE, .placed = 4,
      .complete = true, .closed = true },
};

static void joins_are_decided(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(joins); i++) {
        const struct rdzv_view v = view_of(&joins[i]);
        const enum rdzv_action got = rdzv_join_next(&v);

        if (got != joins[i].want)
            fail_msg("a round in which %s: want %s, got %s", joins[i].says,
                     names[joins[i].want], names[got]);
    }
}

/* What must hold for every view. */
static void check_join(const struct rdzv_view *v)
{
    const enum rdzv_action a = rdzv_join_next(v);
    const bool late = v->now_ms > v->due_ms;

    assert_true(a < RDZV_ACTION_COUNT);
    assert_true(v->closed == (a == RDZV_FAIL_CLOSED || a == RDZV_DISMISSED));
    if (a == RDZV_FINISH)
        assert_true(v->complete && v->seat == SEAT_PLACE);
    if (a == RDZV_COMPLETE)
        assert_true(!v->complete && v->seat == SEAT_PLACE &&
                    (v->call_over || v->everybody) && v->placed >= v->min_nodes &&
                    v->placed <= v->max_nodes);
    if (a == RDZV_TAKE_PLACE)
        assert_true(!v->complete && v->seat != SEAT_PLACE && !late);
    if (a == RDZV_TAKE_WAIT || a == RDZV_TAKE_SPARE)
        assert_true(v->complete && v->seat == SEAT_NONE && !late);
    if (a == RDZV_KEEP_ALIVE)
        assert_true(v->beat_due && v->seat != SEAT_NONE);
    if (a == RDZV_SYNC)
        assert_true(v->seat != SEAT_NONE && !v->beat_due);
    if (a == RDZV_FAIL_TIMEOUT)
        assert_true(late && v->seat != SEAT_SPARE);
    if (a == RDZV_DROP_PLACE)
        assert_true(late && v->seat == SEAT_PLACE && !v->complete);
    assert_true(a != RDZV_CLOSE);
}

static void check_others(const struct rdzv_view *v)
{
    const bool late = v->now_ms > v->due_ms;

    assert_int_equal(rdzv_exit_next(v), !v->in_round ? RDZV_FINISH
                                        : late       ? RDZV_FAIL_TIMEOUT
                                                     : RDZV_DROP_PLACE);
    assert_int_equal(rdzv_close_next(v), v->closed ? RDZV_FINISH
                                         : late    ? RDZV_FAIL_TIMEOUT
                                                   : RDZV_CLOSE);
    assert_int_equal(rdzv_keep_alive_next(v), !v->beat_due ? RDZV_FINISH
                                              : late       ? RDZV_FAIL_TIMEOUT
                                                           : RDZV_KEEP_ALIVE);
}

static void every_view_is_sound(void **state)
{
    static const uint64_t late[] = { 0, 1, RDZV_ROLLBACK_MS, RDZV_ROLLBACK_MS + 1 };
    size_t views = 0;

    (void)state;
    for (unsigned bits = 0; bits < 64; bits++) {
        for (unsigned seat = SEAT_NONE; seat <= SEAT_SPARE; seat++) {
            for (int64_t placed = 0; placed <= 6; placed++) {
                for (size_t l = 0; l < ARRAY_LEN(late); l++) {
                    const struct rdzv_view v = {
                        .seat = (enum rdzv_seat)seat,
                        .in_round = seat == SEAT_PLACE || (bits & 16),
                        .closed = bits & 1,
                        .complete = bits & 2,
                        .call_over = bits & 4,
                        .everybody = bits & 32,
                        .beat_due = bits & 8 && seat != SEAT_NONE,
                        .placed = placed,
                        .min_nodes = 2,
                        .max_nodes = 4,
                        .now_ms = 100000 + late[l],
                        .due_ms = 100000,
                    };

                    check_join(&v);
                    check_others(&v);
                    views++;
                }
            }
        }
    }
    assert_int_equal(views, 64 * 4 * 7 * 4);
}

static struct rdzv_node node(const char *addr)
{
    return (struct rdzv_node){ span_str(addr), 1, 0 };
}

static void act(struct rdzv_state *s, enum rdzv_action a, const char *addr, int64_t us)
{
    struct rdzv_settings settings;
    const struct rdzv_node n = node(addr);

    rdzv_settings_init(&settings, 2, 3);
    assert_int_equal(rdzv_apply(s, a, &n, &settings, us), 0);
}

static int64_t rank_of(const struct rdzv_state *s, const char *addr)
{
    const struct rdzv_node n = node(addr);
    const struct participant *m = rdzv_state_find(s, &n);

    return rdzv_in(m, RDZV_PLACES) ? m->rank : -1;
}

static void a_round_fills_up_and_ends(void **state)
{
    struct rdzv_state s;

    (void)state;
    rdzv_state_init(&s);
    act(&s, RDZV_TAKE_PLACE, "c", 1);
    assert_int_equal(s.deadline_us, WALL_NEVER);
    act(&s, RDZV_TAKE_PLACE, "a", 2);
    assert_int_equal(s.deadline_us, 2 + 30000000);
    act(&s, RDZV_DROP_PLACE, "a", 3);
    assert_int_equal(s.deadline_us, WALL_NEVER);
    act(&s, RDZV_TAKE_PLACE, "b", 4);
    act(&s, RDZV_TAKE_PLACE, "a", 5);
    assert_true(s.complete);
    assert_int_equal(s.deadline_us, WALL_NEVER);
    assert_int_equal(rank_of(&s, "a"), 0);
    assert_int_equal(rank_of(&s, "b"), 1);
    assert_int_equal(rank_of(&s, "c"), 2);
    act(&s, RDZV_TAKE_SPARE, "d", 6);
    act(&s, RDZV_DROP_SPARE, "d", 7);
    act(&s, RDZV_TAKE_WAIT, "d", 7);
    act(&s, RDZV_DROP_PLACE, "a", 8);
    act(&s, RDZV_DROP_PLACE, "b", 8);
    assert_true(s.complete && s.round == 0);
    act(&s, RDZV_DROP_PLACE, "c", 9);
    assert_true(!s.complete && s.round == 1);
    act(&s, RDZV_TAKE_PLACE, "d", 10);
    assert_int_equal(rdzv_count(&s, RDZV_WAITS), 0);
    assert_int_equal(rdzv_count(&s, RDZV_BEATS), 1);
    act(&s, RDZV_CLOSE, "d", 11);
    assert_true(s.closed);
    rdzv_state_fini(&s);
}

/* torch's bound: a node that was silent for 15 s is alive, after a microsecond more it
 * is dead. */
static void the_dead_are_removed(void **state)
{
    const int64_t t = 1767323045678901;
    struct rdzv_settings settings;
    struct rdzv_state s;

    (void)state;
    rdzv_settings_init(&settings, 2, 3);
    rdzv_state_init(&s);
    act(&s, RDZV_TAKE_PLACE, "a", t);
    act(&s, RDZV_TAKE_PLACE, "b", t + 1);
    act(&s, RDZV_TAKE_WAIT, "w", t);
    act(&s, RDZV_TAKE_SPARE, "s", t);
    assert_int_equal(rdzv_sanitize(&s, &settings, t + 3 * INTERVAL), 0);
    assert_int_equal(rdzv_sanitize(&s, &settings, t + 3 * INTERVAL + 1), 3);
    assert_int_equal(rank_of(&s, "a"), -1);
    assert_int_equal(rank_of(&s, "b"), 0);
    assert_int_equal(s.deadline_us, WALL_NEVER);
    assert_int_equal(s.nodes.count, 1);
    s.complete = true;
    assert_int_equal(rdzv_sanitize(&s, &settings, t + 4 * INTERVAL), 1);
    assert_true(!s.complete && s.round == 1);
    assert_int_equal(s.nodes.count, 0);
    rdzv_state_fini(&s);
}

static void views_follow_the_state(void **state)
{
    const int64_t t = 1767323045678901;
    const struct rdzv_node a = node("a"), x = node("x");
    struct rdzv_settings settings;
    struct rdzv_state s;
    struct rdzv_view v;

    (void)state;
    rdzv_settings_init(&settings, 1, 3);
    rdzv_state_init(&s);
    assert_int_equal(rdzv_apply(&s, RDZV_TAKE_PLACE, &a, &settings, t), 0);
    v = rdzv_view_of(&s, &a, &settings, (struct now){ 7, t + INTERVAL - 1 }, 9);
    assert_true(v.seat == SEAT_PLACE && v.in_round && !v.beat_due && !v.call_over);
    assert_true(v.placed == 1 && v.now_ms == 7 && v.due_ms == 9);
    v = rdzv_view_of(&s, &a, &settings, (struct now){ 7, t + INTERVAL }, 9);
    assert_true(v.beat_due);
    v = rdzv_view_of(&s, &a, &settings, (struct now){ 7, t + 6 * INTERVAL + 1 }, 9);
    assert_true(v.call_over);
    v = rdzv_view_of(&s, &x, &settings, (struct now){ 7, t + 9 * INTERVAL }, 9);
    assert_true(v.seat == SEAT_NONE && !v.beat_due);
    rdzv_state_fini(&s);
}

static void failing_memory_is_reported(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct rdzv_settings settings;
        struct rdzv_state s;
        int rc = 0;

        rdzv_settings_init(&settings, 2, 3);
        rdzv_state_init(&s);
        for (unsigned i = 0; i < 3 && rc == 0; i++) {
            const char addr[] = { (char)('a' + i), 0 };
            const struct rdzv_node n = node(addr);

            rc = rdzv_apply(&s, RDZV_TAKE_PLACE, &n, &settings, 1);
        }
        assert_true(rc == MUSTER_ENOMEM || (rc == 0 && s.complete));
        rdzv_state_fini(&s);
    }
}

static void settings_are_compared(void **state)
{
    struct rdzv_settings a, b;
    struct muster_error err;
    struct buf text;

    (void)state;
    rdzv_settings_init(&a, 1, 4);
    b = a;
    buf_init(&text, SIZE_MAX);
    assert_int_equal(rdzv_settings_print(&a, &text), 0);
    assert_int_equal(rdzv_settings_compare(&b, buf_span(&text), &err), 0);
    b.min_nodes = 2;
    b.last_call_ms = 1000;
    assert_int_equal(rdzv_settings_compare(&b, buf_span(&text), &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "--nnodes is 2:4 here, 1:4 there"));
    assert_non_null(
        strstr(err.text, "last_call_timeout in ms is 1000 here, 30000 there"));
    assert_null(strstr(err.text, "max is"));
    assert_int_equal(rdzv_settings_compare(&a, span_str("color=1 min"), &err), 0);
    assert_int_equal(rdzv_settings_check(&a, &err), 0);
    a.min_nodes = 0;
    assert_int_equal(rdzv_settings_check(&a, &err), MUSTER_EINVAL);
    a.min_nodes = 5;
    assert_int_equal(rdzv_settings_check(&a, &err), MUSTER_EINVAL);
    a.keep_alive_interval_s = INT64_MAX;
    a.keep_alive_max_attempt = 3;
    assert_true(rdzv_dead_after_ms(&a) > 0);
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_are_decided),
        cmocka_unit_test(every_view_is_sound),
        cmocka_unit_test(a_round_fills_up_and_ends),
        cmocka_unit_test(the_dead_are_removed),
        cmocka_unit_test(views_follow_the_state),
        cmocka_unit_test(failing_memory_is_reported),
        cmocka_unit_test(settings_are_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
