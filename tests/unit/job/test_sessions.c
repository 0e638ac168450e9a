/* test_sessions.c - the nodes of a run: who is here, away and lost, and that both parts
 * of a run hear of a loss at the same moment. */
#include "testing.h"

#include "job/core/run.h"
#include "rendezvous/core/settings.h"

#define MS 1000u

/* One node; what happens to it, and when it is lost after that. */
static void a_node_is_lost_after_its_grace(void **state)
{
    static const struct {
        const char *says;
        const char *happens; /* one letter every 10 ms; see below */
        uint64_t grace_us;   /* as the node named it */
        uint64_t lost_us;    /* after the last letter; 0: not by then */
    } rows[] = {
        { "its connection breaks", "cB", 50 * MS, 50 * MS },
        { "it comes back", "cB.c", 50 * MS, 0 },
        { "it comes back, and its connection breaks again", "cB.c.B", 50 * MS,
          50 * MS },
        { "it named no time", "cB", MONO_NEVER, SESSION_GRACE_US },
        { "it named no time, and is far away", "c+B", MONO_NEVER, SESSION_MOST_US },
        { "it named a time, and is far away", "c+B", 50 * MS, 50 * MS },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint64_t now = 1000 * MS, lost = 0;
        struct sessions t;
        struct run_session *s;

        sessions_init(&t);
        s = sessions_meet(&t, 7, 9);
        assert_non_null(s);
        s->grace_us = rows[i].grace_us;
        for (const char *p = rows[i].happens; *p; p++) {
            now += p == rows[i].happens ? 0 : 10 * MS;
            if (*p == 'c')
                run_session_open(&t, s, 9, now);
            else if (*p == 'B')
                run_session_close(&t, s, now, 0);
            else if (*p == '+')
                s->slow_us = 200 * MS;
            sessions_judge(&t, now);
            assert_null(sessions_lost(&t));
        }
        for (uint64_t us = 1; us <= 2000 * MS && !lost; us += us < MS ? 999 : MS) {
            sessions_judge(&t, now + us);
            if (sessions_lost(&t))
                lost = us;
        }
        if (lost != rows[i].lost_us)
            fail_msg("%s: lost after %llu us, expected %llu", rows[i].says,
                     (unsigned long long)lost, (unsigned long long)rows[i].lost_us);
        sessions_fini(&t);
    }
}

static void a_silent_node_is_lost(void **state)
{
    struct sessions t;
    struct run_session *s;

    (void)state;
    sessions_init(&t);
    s = sessions_meet(&t, 7, 9);
    assert_non_null(s);
    run_session_open(&t, s, 3, 0);
    run_session_heard(&t, s, 10000 * MS);
    sessions_judge(&t, SESSION_SILENT_US);
    assert_null(sessions_lost(&t));
    assert_int_equal(sessions_deadline(&t), 10000 * MS + SESSION_SILENT_US);
    run_session_set_serves(&t, s, true); /* The node that serves the store is not. */
    assert_int_equal(sessions_deadline(&t), MONO_NEVER);
    run_session_set_serves(&t, s, false);
    sessions_judge(&t, 10000 * MS + SESSION_SILENT_US);
    assert_ptr_equal(sessions_lost(&t), s);
    assert_false(s->broke);
    sessions_fini(&t);
}

/* A run with both parts, and agents that ask for both. */
struct play {
    struct run *run;
    struct run_fx fx;
    uint64_t now_ms;
    unsigned told;    /* members that were told that a node is lost */
    unsigned dropped; /* connections that the run has closed */
};

static void feed(struct play *p, struct run_event ev)
{
    ev.now = (struct run_now){ p->now_ms * 1000, (int64_t)p->now_ms * 1000 };
    assert_int_equal(run_step(p->run, &ev, &p->fx, NULL), 0);
    for (size_t i = 0; i < p->fx.count; i++) {
        const struct run_effect *e = &p->fx.items[i];

        p->told +=
            e->kind == RUN_SEND && e->msg.kind == MSG_NEWS && e->msg.what == WIRE_LOST;
        p->dropped += e->kind == RUN_DROP;
    }
}

static void say(struct play *p, uint32_t peer, struct run_msg m)
{
    feed(p, (struct run_event){ .kind = RUN_MSG, .peer = peer, .msg = &m });
}

static void hello(struct play *p, uint32_t peer, uint32_t node, struct span settings)
{
    say(p, peer,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_SEATS | MSG_RECORD,
                          .run_id = span_str("job"),
                          .host = span_str("n"),
                          .addr = span_str("n"),
                          .pid = node,
                          .nonce = 100 + node,
                          .nproc = 1,
                          .settings = settings,
                          .round = -1,
                          .grace_ms = 50 });
}

static void begin(struct play *p, uint32_t nodes, struct buf *settings)
{
    struct rdzv_settings s;

    *p = (struct play){ .now_ms = 1000 };
    p->run = run_new(span_str("job"), NULL);
    assert_non_null(p->run);
    rdzv_settings_init(&s, nodes, nodes);
    buf_init(settings, WIRE_MAX);
    assert_int_equal(rdzv_settings_print(&s, settings), 0);
    for (uint32_t n = 0; n < nodes; n++) {
        hello(p, 10 + n, n, buf_span(settings));
        say(p, 10 + n, (struct run_msg){ .kind = MSG_JOIN, .count = 1, .round = -1 });
    }
    say(p, 10,
        (struct run_msg){ .kind = MSG_STORE, .where = span_str("n"), .port = 4000 });
    for (uint32_t n = 0; n < nodes; n++)
        say(p, 10 + n,
            (struct run_msg){
                .kind = MSG_RANKS, .rank = n, .count = 1, .total = nodes });
}

static void end(struct play *p, struct buf *settings)
{
    buf_fini(settings);
    run_free(p->run);
    run_fx_fini(&p->fx);
}

/* Time passes, and the run is called when it asked for it. */
static void pass(struct play *p, uint64_t ms)
{
    for (const uint64_t until = p->now_ms + ms; p->now_ms < until;) {
        p->now_ms++;
        while (run_deadline(p->run) <= p->now_ms * 1000)
            feed(p, (struct run_event){ RUN_TIMER });
    }
}

static bool recorded_lost(const struct play *p)
{
    struct record_entry e;

    return record_find(recorder_record(run_recorder(p->run)), RECORD_LOST, -1, &e);
}

static void both_parts_wait_for_a_node_that_is_away(void **state)
{
    struct buf settings;
    struct play p;

    (void)state;
    begin(&p, 3, &settings);
    feed(&p, (struct run_event){ RUN_GONE, .peer = 12 });
    pass(&p, 40);
    hello(&p, 30, 2, buf_span(&settings));
    pass(&p, 4000);
    assert_false(recorded_lost(&p));
    assert_int_equal(p.told, 0);
    assert_int_equal(seats_nodes(run_seats(p.run)), 3);
    end(&p, &settings);
}

/* The agent is killed: one grace later all are told. */
static void both_parts_hear_of_a_loss_at_once(void **state)
{
    struct buf settings;
    struct play p;

    (void)state;
    begin(&p, 3, &settings);
    feed(&p, (struct run_event){ RUN_GONE, .peer = 12 });
    pass(&p, 49);
    assert_false(recorded_lost(&p));
    assert_int_equal(p.told, 0);
    pass(&p, 1);
    assert_true(recorded_lost(&p));
    assert_int_equal(p.told, 2);
    assert_int_equal(seats_nodes(run_seats(p.run)), 2);
    end(&p, &settings);
}

/* A node whose machine has vanished from the network keeps its connection. */
static void both_parts_hear_of_a_silent_node(void **state)
{
    struct buf settings;
    struct play p;

    (void)state;
    begin(&p, 3, &settings);
    for (int i = 0; i < 20 && !recorded_lost(&p); i++) {
        pass(&p, 1000);
        for (uint32_t n = 0; n < 2; n++)
            say(&p, 10 + n, (struct run_msg){ .kind = MSG_BEAT, .mono_us = 1 });
        assert_int_equal(p.told, recorded_lost(&p) ? 2 : 0);
    }
    assert_true(recorded_lost(&p));
    assert_int_equal(p.now_ms, 16000);
    assert_int_equal(p.dropped, 1);
    end(&p, &settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_lost_after_its_grace),
        cmocka_unit_test(a_silent_node_is_lost),
        cmocka_unit_test(both_parts_wait_for_a_node_that_is_away),
        cmocka_unit_test(both_parts_hear_of_a_loss_at_once),
        cmocka_unit_test(both_parts_hear_of_a_silent_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
