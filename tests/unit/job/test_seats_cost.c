/* test_seats_cost.c - what a run costs its host, in messages and bytes: the same
 * for each node, however many there are. It counts instead of measuring time, so that a
 * loaded machine makes no difference. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "job/core/run.h"
#include "rendezvous/core/settings.h"

/* A run of n nodes; peer p is node p. */
struct crowd {
    struct run *run;
    struct run_fx fx;
    struct now now;
    int64_t n;
    size_t messages, bytes; /* sent by the host since the counts were last taken */
    size_t joined;
    struct buf out, settings;
};

static void crowd_init(struct crowd *c, int64_t n)
{
    struct rdzv_settings s;

    *c = (struct crowd){ .n = n, .now = { 1000, 1700000000000000 } };
    c->run = run_new(span_str("run"), NULL);
    assert_non_null(c->run);
    buf_init(&c->out, WIRE_MAX);
    buf_init(&c->settings, WIRE_MAX);
    rdzv_settings_init(&s, 1, n);
    assert_int_equal(rdzv_settings_print(&s, &c->settings), 0);
}

static void crowd_fini(struct crowd *c)
{
    run_free(c->run);
    run_fx_fini(&c->fx);
    buf_fini(&c->out);
    buf_fini(&c->settings);
}

static void feed(struct crowd *c, struct run_event ev)
{
    ev.now = (struct run_now){ c->now.mono_ms * 1000, c->now.wall_us };
    assert_int_equal(run_step(c->run, &ev, &c->fx, NULL), 0);
    for (size_t i = 0; i < c->fx.count; i++) {
        const struct run_effect *e = &c->fx.items[i];

        if (e->kind != RUN_SEND)
            continue;
        if (e->msg.kind == MSG_PING) { /* One of a few bytes answers each heartbeat. */
            assert_int_equal(c->fx.count, 1);
            continue;
        }
        buf_clear(&c->out);
        assert_int_equal(msg_encode(&c->out, &e->msg), 0);
        c->messages++;
        c->bytes += buf_len(&c->out);
        c->joined += e->msg.kind == MSG_JOINED;
    }
}

static void say(struct crowd *c, int64_t peer, struct run_msg m)
{
    feed(c, (struct run_event){ RUN_MSG, .peer = (uint32_t)peer, .msg = &m });
}

static void hello(struct crowd *c, int64_t peer)
{
    say(c, peer,
        (struct run_msg){
            .kind = MSG_HELLO,
            .flags = MSG_SEATS,
            .run_id = span_str("run"),
            .addr = span_str("node-with-a-name.example"),
            .nonce = (uint64_t)peer + 1,
            .pid = 100000 + peer, /* all of one length, so that bytes can be compared */
            .settings = buf_span(&c->settings),
            .round = -1,
            .grace_ms = 50 });
}

static void each(struct crowd *c, int64_t from, int64_t to, enum msg_kind kind,
                 int64_t count)
{
    for (int64_t i = from; i < to; i++)
        say(c, i, (struct run_msg){ .kind = kind, .count = count });
}

static void pass(struct crowd *c, uint64_t ms)
{
    const uint64_t until = c->now.mono_ms + ms;

    for (;;) {
        const uint64_t by = run_deadline(c->run);

        if (by == MONO_NEVER || (by + 999) / 1000 > until)
            break;
        c->now.mono_ms = MAX_OF(c->now.mono_ms, (by + 999) / 1000);
        feed(c, (struct run_event){ RUN_TIMER });
    }
    c->now.mono_ms = until;
}

/* What the last chapter cost in all, as a whole number for each of n nodes. */
struct cost {
    size_t messages, bytes;
};

static struct cost take(struct crowd *c)
{
    const struct cost cost = { c->messages, c->bytes };

    c->messages = c->bytes = 0;
    return cost;
}

enum chapter { HELLO, JOIN, BEATS, AGAIN, LOSSES, AFTER, LEAVE, END, CHAPTERS };

/* Plays the life of a run, and records what each chapter cost in all. */
static void live(int64_t n, struct cost *costs)
{
    const int64_t half = n / 2;
    struct crowd c;

    crowd_init(&c, n);
    for (int64_t i = 0; i < n; i++)
        hello(&c, i);
    costs[HELLO] = take(&c);
    each(&c, 0, n, MSG_JOIN, 1);
    assert_int_equal(c.joined, n);
    costs[JOIN] = take(&c);
    for (int beat = 0; beat < 3; beat++) {
        pass(&c, 5000);
        each(&c, 0, n, MSG_BEAT, 0);
    }
    costs[BEATS] = take(&c);

    /* A worker failed: all nodes join again. */
    each(&c, 0, n, MSG_JOIN, 2);
    assert_int_equal(c.joined, 2 * n);
    costs[AGAIN] = take(&c);

    /* Half of the machines lose power, and the others do not react yet. */
    for (int64_t i = half; i < n; i++)
        feed(&c, (struct run_event){ RUN_GONE, .peer = (uint32_t)i });
    pass(&c, 1000);
    assert_int_equal(seats_nodes(run_seats(c.run)), half);
    costs[LOSSES] = take(&c);
    each(&c, 0, half, MSG_JOIN, 3);
    for (int s = 0; s < 40; s++) { /* The last call. */
        pass(&c, 1000);
        each(&c, 0, half, MSG_BEAT, 0);
    }
    assert_int_equal(c.joined, 2 * n + half);
    costs[AFTER] = take(&c);

    /* The end: the first node closes the run, and each one leaves. */
    each(&c, 0, half, MSG_CLOSE, 0);
    costs[END] = take(&c);
    each(&c, 0, half, MSG_LEAVE, 0);
    costs[LEAVE] = take(&c);
    crowd_fini(&c);
}

static void a_node_costs_the_same_in_any_crowd(void **state)
{
    static const char *const names[CHAPTERS] = {
        [HELLO] = "hello",   [JOIN] = "join",   [BEATS] = "heartbeats",
        [AGAIN] = "restart", [LOSSES] = "loss", [AFTER] = "the round after it",
        [LEAVE] = "leave",   [END] = "the end",
    };
    static const size_t messages[CHAPTERS] = {
        [HELLO] = 1,               /* WELCOME */
        [JOIN] = 2,                /* GATHERED, JOINED */
        [BEATS] = 0,  [AGAIN] = 3, /* WAITING as well */
        [LOSSES] = 4, /* LOST, four times at most instead of one for each pair */
        [AFTER] = 4,  /* GATHERED now and then */
        [LEAVE] = 1,  [END] = 2,
    };
    struct cost small[CHAPTERS], large[CHAPTERS];

    (void)state;
    live(200, small);
    live(4000, large);
    for (int i = 0; i < CHAPTERS; i++) {
        if (large[i].messages > messages[i] * 4000)
            fail_msg("%s of 4000 nodes: %zu messages", names[i], large[i].messages);
        /* Allow a few more bytes for longer numbers. */
        if (large[i].messages > 20 * small[i].messages + 20 ||
            large[i].bytes > 20 * small[i].bytes * 11 / 10 + 1000)
            fail_msg("%s: 200 nodes take %zu messages and %zu bytes, 4000 take %zu and "
                     "%zu",
                     names[i], small[i].messages, small[i].bytes, large[i].messages,
                     large[i].bytes);
    }
}

/* Nodes come one by one over minutes: waiting nodes are told only now and then. */
static void a_slow_gathering_is_told_seldom(void **state)
{
    const int64_t n = 300;
    struct crowd c;

    (void)state;
    crowd_init(&c, n + 1);
    for (int64_t i = 0; i < n; i++) {
        hello(&c, i);
        each(&c, i, i + 1, MSG_JOIN, 1);
    }
    (void)take(&c);
    for (int64_t s = 0; s < 24; s++) { /* The last call ends after 30 s. */
        pass(&c, 1000);
        each(&c, 0, n, MSG_BEAT, 0);
        each(&c, s, s + 1, MSG_LEAVE, 0);
        each(&c, s, s + 1, MSG_JOIN, 2 + s);
        feed(&c, (struct run_event){ RUN_GONE, .peer = (uint32_t)s });
    }
    assert_in_range(take(&c).messages, 1, 5 * n + 24 * 3);
    crowd_fini(&c);
}

/* A node that was away while another was lost is told when it comes back. */
static void a_loss_is_told_to_a_node_that_was_away(void **state)
{
    struct crowd c;

    (void)state;
    crowd_init(&c, 3);
    for (int64_t i = 0; i < 3; i++)
        hello(&c, i);
    each(&c, 0, 3, MSG_JOIN, 1);
    assert_int_equal(c.joined, 3);
    feed(&c, (struct run_event){ RUN_GONE, .peer = 2 });
    pass(&c, 40);
    feed(&c, (struct run_event){ RUN_GONE, .peer = 1 });
    pass(&c, 20); /* 2 is lost, 1 is not. */
    assert_int_equal(seats_nodes(run_seats(c.run)), 2);
    say(&c, 7,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_SEATS,
                          .run_id = span_str("run"),
                          .addr = span_str("node-with-a-name.example"),
                          .pid = 100001,
                          .nonce = 2,
                          .settings = buf_span(&c.settings),
                          .round = 0,
                          .rank = 1,
                          .world = 3,
                          .grace_ms = 50 });
    assert_int_equal(c.fx.count, 2);
    assert_int_equal(c.fx.items[0].msg.kind, MSG_WELCOME);
    assert_int_equal(c.fx.items[1].msg.what, WIRE_LOST);
    assert_int_equal(c.fx.items[1].peer, 7);
    crowd_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_costs_the_same_in_any_crowd),
        cmocka_unit_test(a_slow_gathering_is_told_seldom),
        cmocka_unit_test(a_loss_is_told_to_a_node_that_was_away),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
