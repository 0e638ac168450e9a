/* test_cas_node.c - the step machine of nodes, on a store in memory and a clock that
 * the test sets. The simulator plays many nodes under faults; here is what must be
 * exact. */
#include "testing.h"

#include <stdio.h>

#include "base/err.h"
#include "rendezvous/core/cas_node_int.h"
#include "rendezvous/core/state_pickle.h"

#define NODES 4

/* One store, up to four nodes, one clock. */
struct world {
    struct rdzv *node[NODES];
    bool watch;
    struct buf value; /* empty: the store has none */
    struct now now;
    int64_t skew_us[NODES];
    uint64_t writes;
    bool down; /* the store fails each request */
    bool mute; /* the store answers nothing */
    unsigned
        deaf; /* for this many writes, the store takes them and the answer is lost */
    unsigned stopped; /* nodes that do nothing, by bit */
    unsigned cut;     /* nodes that do not reach the store, by bit */
    /* The last outcome of each kind, by node. */
    struct rdzv_effect joined[NODES], refused[NODES], done[NODES], news[NODES];
    char why[NODES][256];
    unsigned joins[NODES], refusals[NODES], dones[NODES], told[NODES];
    int rc; /* first ENOMEM */
};

static void world_init(struct world *w, int64_t min, int64_t max, size_t nodes)
{
    *w = (struct world){ .now = { 1000000, 1767323045678901 }, .watch = true };
    buf_init(&w->value, SIZE_MAX);
    for (size_t i = 0; i < nodes; i++) {
        char addr[8];
        struct rdzv_config cfg = { .run_id = "r1", .seed = i };

        (void)snprintf(addr, sizeof addr, "n%zu", i);
        cfg.self = (struct rdzv_node){ span_str(addr), 10, 0 };
        rdzv_settings_init(&cfg.settings, min, max);
        w->rc = rdzv_new(&cfg, &w->node[i], NULL);
        if (w->rc < 0)
            return;
        rdzv_can_watch(w->node[i], true);
    }
}

static void world_fini(struct world *w)
{
    for (size_t i = 0; i < NODES; i++)
        rdzv_free(w->node[i]);
    buf_fini(&w->value);
}

static void feed(struct world *w, size_t i, struct rdzv_event ev);

static void do_read(struct world *w, size_t i)
{
    struct rdzv_event ev = { 0 };

    if (w->down) {
        feed(w, i, (struct rdzv_event){ .kind = RDZV_EV_FAILED, .code = MUSTER_ECONN });
        return;
    }
    if (w->cut & 1u << i) {
        feed(w, i,
             (struct rdzv_event){
                 .kind = RDZV_EV_FAILED, .code = MUSTER_ECONN, .again = true });
        return;
    }
    rdzv_c10d_answer(&ev, false, span_of("", 0), span_of("", 0), buf_span(&w->value));
    feed(w, i, ev);
}

static void do_write(struct world *w, size_t i, const struct rdzv_effect *e)
{
    struct rdzv_event ev = { .kind = RDZV_EV_WROTE };
    const bool same =
        e->has_token ? span_eq(e->token, buf_span(&w->value)) : buf_len(&w->value) == 0;
    struct buf held;

    if (same) {
        buf_clear(&w->value);
        if (buf_append_span(&w->value, e->value) < 0) {
            w->rc = MUSTER_ENOMEM;
            return;
        }
        w->writes++;
    }
    buf_init(&held, SIZE_MAX); /* the node may free its own copy in the step */
    if (buf_append_span(&held, buf_span(&w->value)) < 0) {
        w->rc = MUSTER_ENOMEM;
        return;
    }
    if (same && w->deaf) {
        w->deaf--;
        ev = (struct rdzv_event){ .kind = RDZV_EV_FAILED,
                                  .code = MUSTER_ECONN,
                                  .again = true };
    }
    ev.won = same;
    ev.present = true;
    ev.value = ev.token = buf_span(&held);
    feed(w, i, ev);
    buf_fini(&held);
    for (size_t k = 0; same && k < NODES && w->rc == 0; k++) {
        if (k != i && w->node[k] && w->watch && !((w->stopped | w->cut) & 1u << k))
            feed(w, k, (struct rdzv_event){ .kind = RDZV_EV_CHANGED });
    }
}

static void record_effect(struct world *w, size_t i, const struct rdzv_effect *e)
{
    switch (e->kind) {
    case RDZV_FX_JOINED:
        w->joined[i] = *e;
        w->joins[i]++;
        break;
    case RDZV_FX_REFUSED:
        w->refused[i] = *e;
        w->refusals[i]++;
        (void)snprintf(w->why[i], sizeof w->why[i], "%s", e->text);
        break;
    case RDZV_FX_DONE:
        w->done[i] = *e;
        w->dones[i]++;
        break;
    case RDZV_FX_NEWS:
        w->news[i] = *e;
        w->told[i]++;
        break;
    case RDZV_FX_READ_STATE:
    case RDZV_FX_WRITE_STATE:
    case RDZV_FX_WATCH:
        break;
    }
}

static void feed(struct world *w, size_t i, struct rdzv_event ev)
{
    struct rdzv_fx fx;
    int rc;

    if (w->rc < 0)
        return;
    ev.now = w->now;
    ev.now.wall_us += w->skew_us[i];
    rc = rdzv_step(w->node[i], &ev, &fx);
    if (rc < 0) { /* From now on the node does nothing, and says why. */
        assert_int_equal(rc, MUSTER_ENOMEM);
        assert_int_equal(rdzv_step(w->node[i], &ev, &fx), MUSTER_ENOMEM);
        assert_int_equal(fx.count, 0);
        assert_true(rdzv_deadline(w->node[i]) == MONO_NEVER);
        w->rc = rc;
        return;
    }
    for (size_t k = 0; k < fx.count; k++)
        record_effect(w, i, &fx.at[k]);
    for (size_t k = 0; k < fx.count; k++) {
        if (w->mute)
            continue;
        if (fx.at[k].kind == RDZV_FX_READ_STATE)
            do_read(w, i);
        if (fx.at[k].kind == RDZV_FX_WRITE_STATE)
            do_write(w, i, &fx.at[k]);
    }
}

static void request(struct world *w, size_t i, enum rdzv_event_kind kind)
{
    feed(w, i, (struct rdzv_event){ .kind = kind });
}

/* Lets time pass and sends every timer that is due; nodes of the mask are stopped. */
static void pass(struct world *w, uint64_t ms, unsigned stopped)
{
    const uint64_t end = w->now.mono_ms + ms;

    w->stopped = stopped;
    while (w->rc == 0) {
        uint64_t due = MONO_NEVER;
        size_t who = 0;

        for (size_t i = 0; i < NODES; i++) {
            if (!w->node[i] || stopped & 1u << i || rdzv_deadline(w->node[i]) >= due)
                continue;
            due = rdzv_deadline(w->node[i]);
            who = i;
        }
        if (due > end)
            break;
        if (due > w->now.mono_ms) {
            w->now.wall_us += (int64_t)(due - w->now.mono_ms) * 1000;
            w->now.mono_ms = due;
        }
        request(w, who, RDZV_EV_TIMER);
    }
    w->now.wall_us += (int64_t)(end - w->now.mono_ms) * 1000;
    w->now.mono_ms = end;
}

static void expect_world(const struct world *w, size_t i, int64_t round, int64_t rank,
                         int64_t world)
{
    if (!w->joins[i] || w->joined[i].round != round || w->joined[i].rank != rank ||
        w->joined[i].world != world)
        fail_msg("node %zu: %u joins, round %lld, rank %lld of %lld", i, w->joins[i],
                 (long long)w->joined[i].round, (long long)w->joined[i].rank,
                 (long long)w->joined[i].world);
}

/* Three nodes in round 0 of a group of one to three. */
static void three_join(struct world *w)
{
    world_init(w, 1, 3, 3);
    for (size_t i = 0; i < 3; i++)
        request(w, i, RDZV_EV_JOIN);
    expect_world(w, 2, 0, 2, 3);
}

static void two_nodes_join_at_once(void **state)
{
    struct world w;
    const struct rdzv_node *members;
    size_t count;

    (void)state;
    world_init(&w, 2, 2, 2);
    request(&w, 1, RDZV_EV_JOIN);
    assert_int_equal(w.joins[1], 0);
    request(&w, 0, RDZV_EV_JOIN);
    expect_world(&w, 0, 0, 0, 2);
    expect_world(&w, 1, 0, 1, 2); /* by the report of the change, not by a poll */
    assert_int_equal(w.writes, 2);
    members = rdzv_participants(w.node[1], &count);
    assert_int_equal(count, 2);
    assert_true(span_eq(members[0].addr, span_str("n0")));

    /* Again: each leaves and queues in one write. The last one opens the next round and
     * gives places to the nodes that wait for it. */
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 1100, 0);
    assert_int_equal(w.told[1], 0); /* torch's nodes may not have seen the round yet */
    pass(&w, 100, 0);
    assert_int_equal(w.told[1], 2); /* that a node waits, and that it is a member */
    assert_int_equal(w.news[1].news, RDZV_NEWS_MOVED_ON);
    request(&w, 1, RDZV_EV_JOIN);
    expect_world(&w, 0, 1, 0, 2);
    expect_world(&w, 1, 1, 1, 2);
    assert_int_equal(w.writes, 4);
    world_fini(&w);
}

/* The store has taken a write, and the connection breaks before its answer. A node that
 * took its own seat for another node's would wait until all others have given up. */
static void an_answer_is_lost(void **state)
{
    struct world w;

    (void)state;
    for (unsigned many = 1; many < 4; many++) {
        world_init(&w, 2, 2, 2);
        w.deaf = many;
        request(&w, 0, RDZV_EV_JOIN);
        request(&w, 1, RDZV_EV_JOIN);
        pass(&w, 3000, 0);
        expect_world(&w, 0, 0, 0, 2);
        expect_world(&w, 1, 0, 1, 2);
        w.deaf = many; /* The writes that leave the round and queue for the next one. */
        request(&w, 0, RDZV_EV_JOIN);
        request(&w, 1, RDZV_EV_JOIN);
        pass(&w, 6000, 0);
        expect_world(&w, 0, 1, 0, 2);
        expect_world(&w, 1, 1, 1, 2);
        world_fini(&w);
    }
}

/* Another node writes in between: the state has our entry, but is not the one that we
 * wrote. */
static void an_answer_is_lost_and_another_node_is_quicker(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2, 2);
    w.deaf = 1;
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 1, 1); /* Node 0 has not read again yet. */
    request(&w, 1, RDZV_EV_JOIN);
    expect_world(&w, 1, 0, 1, 2);
    pass(&w, 1000, 0);
    expect_world(&w, 0, 0, 0, 2);
    pass(&w, 30000, 0);
    assert_int_equal(w.told[1], 0); /* Node 0 goes on beating. */
    world_fini(&w);
}

/* After the end of the run, a node that waits for the others is told if one will not
 * come. */
static void a_node_missing_after_the_end_is_news(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 3, 3, 3);
    for (size_t i = 0; i < 3; i++)
        request(&w, i, RDZV_EV_JOIN);
    expect_world(&w, 0, 0, 0, 3);
    request(&w, 2, RDZV_EV_CLOSE);
    pass(&w, 1000, 0);
    assert_int_equal(w.news[0].news, RDZV_NEWS_CLOSED);
    pass(&w, 30000, 4); /* Node 2 is gone. */
    assert_int_equal(w.news[0].news, RDZV_NEWS_DESERTED);
    assert_int_equal(w.told[0], 2);
    assert_int_equal(w.told[1], 2);
    world_fini(&w);
}

static void beats_keep_the_round(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2, 2);
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_JOIN);
    w.skew_us[0] = 20000000; /* A clock that jumps changes nothing. */
    pass(&w, 60000, 0);
    w.skew_us[1] = -3600000000ll;
    pass(&w, 60000, 0);
    assert_int_equal(w.told[0] + w.told[1], 0);
    assert_true(w.writes >= 2 + 2 * 24 && w.writes < 2 + 2 * 30);
    pass(&w, 16000, 1u << 1);
    assert_int_equal(w.told[0], 1);
    assert_int_equal(w.news[0].news, RDZV_NEWS_LOST);
    world_fini(&w);
}

/* Node 2 loses the store, and the others do not. It is cut off before any of them
 * drops it, whenever in its interval that happens, with time to kill its workers. */
static void a_node_is_cut_off_before_the_others_drop_it(void **state)
{
    (void)state;
    for (uint64_t into_ms = 0; into_ms < 5000; into_ms += 313) {
        uint64_t cut_off_ms = 0, lost_ms = 0, since_ms;
        struct world w;

        three_join(&w);
        pass(&w, 20000 + into_ms, 0);
        assert_int_equal(w.told[0] + w.told[1] + w.told[2], 0);
        w.cut = 1u << 2;
        since_ms = w.now.mono_ms;
        while (!lost_ms) {
            pass(&w, 10, 0);
            assert_true(w.now.mono_ms < since_ms + 20000);
            if (!cut_off_ms && w.told[2] && w.news[2].news == RDZV_NEWS_CUT_OFF)
                cut_off_ms = w.now.mono_ms;
            if (w.told[0] || w.told[1])
                lost_ms = w.now.mono_ms;
        }
        assert_true(cut_off_ms && cut_off_ms + 1990 <= lost_ms);
        assert_true(cut_off_ms > since_ms + 5000); /* A missed beat is no reason. */
        w.cut = 0;
        request(&w, 2, RDZV_EV_JOIN);
        request(&w, 0, RDZV_EV_JOIN);
        request(&w, 1, RDZV_EV_JOIN);
        pass(&w, 40000, 0);
        assert_int_equal(w.joined[2].world, 3);
        world_fini(&w);
    }
}

/* SIGSTOP for half a minute: the others have dropped it by then, and the store tells it
 * so. The store was there all the time, so nobody says that it was not. */
static void a_node_that_was_stopped_learns_that_it_was_dropped(void **state)
{
    struct world w;

    (void)state;
    three_join(&w);
    pass(&w, 7000, 0);
    pass(&w, 30000, 1u << 2);
    assert_int_equal(w.news[0].news, RDZV_NEWS_LOST);
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_JOIN);
    pass(&w, 1000, 1u << 2);
    pass(&w, 1000, 0);
    assert_int_equal(w.told[2], 1);
    assert_int_equal(w.news[2].news, RDZV_NEWS_EVICTED);
    world_fini(&w);
}

/* A node had not beaten for 11 of the 15 s when the store became unreachable for 20 s.
 * If it is alive, it may take a while until it finds the store again; if it is dead,
 * that is noticed soon after. */
static void a_node_silent_before_an_outage_gets_time(void **state)
{
    for (unsigned dead = 0; dead < 2; dead++) {
        struct world w;

        (void)state;
        world_init(&w, 2, 2, 2);
        request(&w, 0, RDZV_EV_JOIN);
        request(&w, 1, RDZV_EV_JOIN);
        pass(&w, 11000, 1u << 1);
        w.down = true;
        pass(&w, 20000, 1u << 1);
        assert_true(w.told[0] == 2 && w.news[0].news == RDZV_NEWS_CUT_OFF);
        w.down = false;
        pass(&w, 7000, 1u << 1);
        assert_int_equal(w.told[0], 2);
        pass(&w, 2000, dead << 1);
        assert_int_equal(w.told[0], 2 + dead);
        pass(&w, 60000, dead << 1);
        assert_int_equal(w.told[0], 2 + dead);
        if (dead)
            assert_int_equal(w.news[0].news, RDZV_NEWS_LOST);
        world_fini(&w);
    }
}

/* The backend knows it before the heartbeats stop; a node that goes on beating is
 * back. */
static void the_backend_reports_a_gone_node(void **state)
{
    struct world w;

    (void)state;
    three_join(&w);
    feed(&w, 1,
         (struct rdzv_event){ .kind = RDZV_EV_GONE, .value = span_str("n7_10_0") });
    feed(&w, 1,
         (struct rdzv_event){ .kind = RDZV_EV_GONE, .value = span_str("n1_10_0") });
    assert_int_equal(w.told[1], 0); /* a node that does not exist, and ourselves */
    feed(&w, 1,
         (struct rdzv_event){ .kind = RDZV_EV_GONE, .value = span_str("n0_10_0") });
    assert_int_equal(w.told[1], 1);
    assert_int_equal(w.news[1].news, RDZV_NEWS_LOST);
    request(&w, 1, RDZV_EV_JOIN);
    feed(&w, 2,
         (struct rdzv_event){ .kind = RDZV_EV_GONE, .value = span_str("n0_10_0") });
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 40000, 1u << 0);
    assert_int_equal(w.joined[1].world, 2);
    assert_int_equal(w.joined[2].world, 2);
    world_fini(&w);
}

/* While we join the next round, a node that stays in the last one is still known by its
 * rank there, whichever round that is. */
static void a_node_that_stays_behind_is_known_by_rank(void **state)
{
    struct world w;

    (void)state;
    three_join(&w);
    for (int n = 0; n < 2; n++) {
        for (size_t i = 0; i < 3; i++)
            request(&w, i, RDZV_EV_JOIN);
        pass(&w, 40000, 0);
    }
    assert_true(rdzv_last_round(w.node[1]) == (uint64_t)w.joined[1].round);
    const uint64_t round = rdzv_last_round(w.node[1]);

    assert_true(round >= 2);
    request(&w, 1, RDZV_EV_JOIN);
    pass(&w, 100, 0);
    assert_true(rdzv_last_round(w.node[1]) == round);
    assert_true(rdzv_still_placed(w.node[1], 0) && rdzv_still_placed(w.node[1], 2));
    assert_false(rdzv_still_placed(w.node[1], 1)); /* ourselves */
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 100, 0);
    assert_false(rdzv_still_placed(w.node[1], 2));
    world_fini(&w);
}

/* The node's last heartbeat, from before its end, is read only after its end is
 * known. */
static void an_old_beat_does_not_bring_a_node_back(void **state)
{
    struct world w;

    (void)state;
    three_join(&w);
    pass(&w, 6000, 1u << 1 | 1u << 2); /* Node 0 beats, and no node reads it. */
    feed(&w, 1,
         (struct rdzv_event){ .kind = RDZV_EV_GONE, .value = span_str("n0_10_0") });
    assert_int_equal(w.told[1], 1);
    assert_int_equal(w.news[1].news, RDZV_NEWS_LOST);
    world_fini(&w);
}

static void a_lost_member_makes_room(void **state)
{
    struct world w;

    (void)state;
    three_join(&w);
    pass(&w, 20000, 1u << 0);
    assert_true(w.told[1] == 1 && w.told[2] == 1);
    request(&w, 1, RDZV_EV_JOIN);
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 31000, 1u << 0);
    expect_world(&w, 1, 1, 0, 2);
    expect_world(&w, 2, 1, 1, 2);
    /* The node that was stopped finds that it was dropped, and comes back. */
    pass(&w, 1, 0);
    assert_int_equal(w.news[0].news, RDZV_NEWS_EVICTED);
    request(&w, 0, RDZV_EV_JOIN);
    assert_int_equal(w.news[1].news, RDZV_NEWS_WAITING);
    request(&w, 1, RDZV_EV_JOIN);
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 1000, 0);
    expect_world(&w, 0, 2, 0, 3);
    expect_world(&w, 2, 2, 2, 3);
    world_fini(&w);
}

static void a_spare_waits_and_is_dismissed(void **state)
{
    char spares[RDZV_NAMES_SIZE];
    struct world w;

    (void)state;
    world_init(&w, 1, 2, 4);
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_JOIN);
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 700000, 0); /* longer than any join may take */
    assert_int_equal(w.refusals[2], 0);
    rdzv_spares(w.node[0], spares);
    assert_string_equal(spares, "n2");
    rdzv_spares(w.node[2], spares);
    assert_string_equal(spares, ""); /* It knows of itself. */
    request(&w, 1, RDZV_EV_LEAVE);
    assert_true(w.dones[1] == 1 && w.done[1].code == 0);
    pass(&w, 100, 0);
    assert_int_equal(w.news[0].news, RDZV_NEWS_WAITING); /* the spare waits now */
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 100, 0);
    expect_world(&w, 2, 1, 1, 2);
    request(&w, 3, RDZV_EV_JOIN);
    request(&w, 0, RDZV_EV_CLOSE);
    pass(&w, 100, 0);
    assert_true(w.dones[0] == 1 && w.done[0].code == 0 &&
                w.done[0].request == RDZV_EV_CLOSE);
    assert_int_equal(w.refused[3].code, MUSTER_EGRACEFUL);
    assert_int_equal(w.news[2].news, RDZV_NEWS_CLOSED);
    assert_true(rdzv_closed(w.node[2]));
    request(&w, 1, RDZV_EV_JOIN);
    assert_int_equal(w.refused[1].code, MUSTER_ECLOSED);
    world_fini(&w);
}

/* Two nodes wait for one place: the one left over must not keep the others
 * restarting. */
static void a_node_that_waited_in_vain_becomes_a_spare(void **state)
{
    struct rdzv_state s;
    struct world w;
    unsigned told;

    (void)state;
    world_init(&w, 1, 2, 3);
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 31000, 0);
    expect_world(&w, 0, 0, 0, 1);
    request(&w, 1, RDZV_EV_JOIN);
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 100, 0);
    assert_int_equal(w.news[0].news, RDZV_NEWS_WAITING);
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 1000, 0);
    expect_world(&w, 0, 1, 0, 2);
    assert_int_equal(w.joins[1] + w.joins[2], 1);
    told = w.told[0] + w.told[1] + w.told[2];
    pass(&w, 60000, 0);
    assert_int_equal(w.told[0] + w.told[1] + w.told[2], told);
    assert_int_equal(pickle_read_text(buf_span(&w.value), &s, NULL), 0);
    assert_int_equal(rdzv_count(&s, RDZV_WAITS), 0);
    assert_int_equal(rdzv_count(&s, RDZV_SPARES), 1);
    assert_true(s.complete && s.round == 1);
    rdzv_state_fini(&s);
    world_fini(&w);
}

static void late_joins_hand_their_seat_back(void **state)
{
    struct rdzv_state s;
    struct world w;

    (void)state;
    world_init(&w, 2, 2, 1);
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 600000, 0);
    assert_int_equal(w.refusals[0], 0);
    pass(&w, 2, 0);
    assert_int_equal(w.refused[0].code, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(w.why[0], "within 600 s"));
    assert_int_equal(pickle_read_text(buf_span(&w.value), &s, NULL), 0);
    assert_int_equal(s.nodes.count, 0);
    rdzv_state_fini(&s);
    world_fini(&w);
}

static void a_silent_store_does_not_delay_answers(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2, 2);
    w.mute = true;
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_CLOSE);
    pass(&w, 30001, 0);
    assert_int_equal(w.done[1].code, MUSTER_ETIMEDOUT);
    pass(&w, 575001, 0);
    assert_int_equal(w.refused[0].code, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(w.why[0], "did not answer"));
    world_fini(&w);
}

static void a_broken_store_is_reported(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, 1, 2);
    request(&w, 0, RDZV_EV_JOIN);
    expect_world(&w, 0, 0, 0, 1);
    w.down = true;
    request(&w, 1, RDZV_EV_JOIN);
    assert_int_equal(w.refused[1].code, MUSTER_ECONN);
    pass(&w, 60000, 0);
    assert_true(w.told[0] == 1 && w.news[0].news == RDZV_NEWS_BACKEND);
    w.down = false;
    pass(&w, 60000, 0);
    assert_int_equal(w.told[0],
                     1); /* it went on beating, so it is still in the round */
    assert_int_equal(buf_append_str(&w.value, "nonsense"), 0);
    request(&w, 1, RDZV_EV_JOIN);
    assert_int_equal(w.refused[1].code, MUSTER_ESTATE);
    world_fini(&w);
}

static void two_of_one_name_are_told_apart(void **state)
{
    struct world w;
    struct rdzv_config cfg = { .run_id = "r1", .seed = 9 };

    (void)state;
    world_init(&w, 1, 4, 2);
    rdzv_free(w.node[1]);
    cfg.self = (struct rdzv_node){ span_str("n0"), 10, 0 };
    rdzv_settings_init(&cfg.settings, 1, 4);
    assert_int_equal(rdzv_new(&cfg, &w.node[1], NULL), 0);
    rdzv_can_watch(w.node[1], true);
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_JOIN);
    pass(&w, 29000, 0);
    assert_int_equal(w.refused[1].code, MUSTER_EEXIST);
    assert_int_equal(w.refusals[0], 0);
    pass(&w, 3000, 0);
    expect_world(&w, 0, 0, 0, 1);

    /* The entry that a killed predecessor left behind does not stop us once it is
     * old. */
    rdzv_free(w.node[0]);
    w.node[0] = NULL;
    request(&w, 1, RDZV_EV_JOIN);
    pass(&w, 50000, 0);
    assert_int_equal(w.refusals[1], 1);
    expect_world(&w, 1, 1, 0, 1);
    world_fini(&w);
}

/* A torch node removed one node from a completed round before we could read it. */
static void a_torn_round_is_not_joined(void **state)
{
    struct rdzv_settings settings;
    struct rdzv_state s;
    struct world w;

    (void)state;
    world_init(&w, 1, 3, 3);
    w.watch = false;
    request(&w, 2, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_JOIN);
    rdzv_settings_init(&settings, 1, 3);
    assert_int_equal(pickle_read_text(buf_span(&w.value), &s, NULL), 0);
    for (int i = 0; i < 2; i++) { /* a and b join, which completes; a vanishes */
        const struct rdzv_node n = { span_str("a"), 1, 0 };

        assert_int_equal(rdzv_apply(&s, i ? RDZV_DROP_PLACE : RDZV_TAKE_PLACE, &n,
                                    &settings, w.now.wall_us),
                         0);
    }
    assert_true(s.complete && rdzv_count(&s, RDZV_PLACES) == 2);
    buf_clear(&w.value);
    assert_int_equal(pickle_write_text(&s, &w.value), 0);
    rdzv_state_fini(&s);
    request(&w, 1, RDZV_EV_CHANGED);
    assert_int_equal(w.joins[1], 0);
    request(&w, 2, RDZV_EV_CHANGED);
    pass(&w, 40000, 0);
    expect_world(&w, 1, 1, 0, 2);
    expect_world(&w, 2, 1, 1, 2);
    world_fini(&w);
}

static void more_nodes_than_we_allow(void **state)
{
    struct world w;
    struct rdzv_config cfg = { .run_id = "r1" };

    (void)state;
    world_init(&w, 1, 3, 3);
    rdzv_free(w.node[2]);
    cfg.self = (struct rdzv_node){ span_str("n2"), 10, 0 };
    rdzv_settings_init(&cfg.settings, 1, 2);
    assert_int_equal(rdzv_new(&cfg, &w.node[2], NULL), 0);
    for (size_t i = 0; i < 3; i++)
        request(&w, i, RDZV_EV_JOIN);
    pass(&w, 31000, 0);
    assert_int_equal(w.refused[2].code, MUSTER_EINVAL);
    assert_non_null(strstr(w.why[2], "--nnodes"));
    world_fini(&w);
}

static void the_last_call_is_timed_by_one_clock(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 4, 3);
    w.skew_us[0] = 60000000; /* fast by a minute: torch would complete at once */
    w.skew_us[1] = -60000000;
    request(&w, 1, RDZV_EV_JOIN);
    request(&w, 0, RDZV_EV_JOIN);
    pass(&w, 29000, 0);
    assert_int_equal(w.joins[0], 0);
    request(&w, 2, RDZV_EV_JOIN);
    pass(&w, 1100, 0);
    expect_world(&w, 0, 0, 0, 3);
    expect_world(&w, 1, 0, 1, 3);
    expect_world(&w, 2, 0, 2, 3);
    world_fini(&w);
}

/* On a backend that only our nodes use, only the first round has a last call: the nodes
 * that were in it and are alive are known. With last_call=always, and where torch's
 * nodes may be, every round has one. */
static void later_rounds_wait_only_for_known_nodes(void **state)
{
    const struct {
        bool ours_only, always;
        unsigned joins; /* of each, without a last call */
    } rows[] = { { true, false, 2 }, { true, true, 1 }, { false, false, 1 } };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;

        world_init(&w, 1, 4, 3);
        for (size_t k = 0; k < 3; k++) {
            w.node[k]->settings.ours_only = rows[i].ours_only;
            w.node[k]->settings.last_call_always = rows[i].always;
            request(&w, k, RDZV_EV_JOIN);
        }
        pass(&w, 29000, 0);
        assert_int_equal(w.joins[0], 0);
        pass(&w, 1100, 0);
        expect_world(&w, 0, 0, 0, 3);
        pass(&w, 2000, 0);
        for (size_t k = 0; k < 3; k++) {
            assert_int_equal(w.joins[0], 1);
            request(&w, k, RDZV_EV_JOIN);
        }
        pass(&w, 5000, 0);
        assert_int_equal(w.joins[0], rows[i].joins);
        assert_int_equal(w.joins[2], rows[i].joins);
        if (rows[i].joins == 2)
            expect_world(&w, 2, 1, 2, 3);
        world_fini(&w);
    }
}

/* torch sees our heartbeats as young even if its clock is ahead of ours. */
static void heartbeats_follow_the_clock_ahead(void **state)
{
    struct rdzv_settings settings;
    struct rdzv_state s;
    struct world w;

    (void)state;
    world_init(&w, 2, 2, 2);
    w.skew_us[0] = 40000000;
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 1, RDZV_EV_JOIN);
    pass(&w, 33000, 0);
    rdzv_settings_init(&settings, 2, 2);
    assert_int_equal(pickle_read_text(buf_span(&w.value), &s, NULL), 0);
    assert_int_equal(rdzv_sanitize(&s, &settings, w.now.wall_us + w.skew_us[0]), 0);
    rdzv_state_fini(&s);
    world_fini(&w);
}

static void leaving_ends_a_join(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2, 1);
    request(&w, 0,
            RDZV_EV_LEAVE); /* It never had a seat, so the store need not be asked. */
    assert_true(w.dones[0] == 1 && w.done[0].code == 0);
    request(&w, 0, RDZV_EV_JOIN);
    request(&w, 0, RDZV_EV_LEAVE);
    assert_int_equal(w.refused[0].code, MUSTER_ECANCELED);
    assert_true(w.dones[0] == 2 && w.done[0].code == 0);
    pass(&w, 100000, 0);
    assert_int_equal(w.writes, 2);
    assert_int_equal(rdzv_deadline(w.node[0]), MONO_NEVER);
    world_fini(&w);
}

static void failing_memory_is_reported(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct world w;

        world_init(&w, 2, 2, 2);
        if (w.rc == 0) {
            request(&w, 0, RDZV_EV_JOIN);
            request(&w, 1, RDZV_EV_JOIN);
            pass(&w, 6000, 0);
            if (w.rc == 0)
                expect_world(&w, 1, 0, 1, 2);
        }
        world_fini(&w);
    }
}

static void wrong_configurations_are_refused(void **state)
{
    struct rdzv_config cfg = { .run_id = "" };
    struct muster_error err;
    struct rdzv *r;

    (void)state;
    rdzv_settings_init(&cfg.settings, 1, 2);
    assert_int_equal(rdzv_new(&cfg, &r, &err), MUSTER_EINVAL);
    cfg.run_id = "x";
    cfg.settings.max_nodes = 0;
    assert_int_equal(rdzv_new(&cfg, &r, &err), MUSTER_EINVAL);
    rdzv_free(NULL);
}

static void c10d_answers_are_understood(void **state)
{
    const struct span none = span_of("", 0), old = span_str("old"),
                      new = span_str("new");
    struct rdzv_event ev = { 0 };

    (void)state;
    rdzv_c10d_answer(&ev, false, none, none, span_str(RDZV_C10D_SENTINEL));
    assert_true(ev.kind == RDZV_EV_STATE && !ev.present);
    rdzv_c10d_answer(&ev, false, none, none, old);
    assert_true(ev.present && span_eq(ev.token, old));
    rdzv_c10d_answer(&ev, true, old, new, new);
    assert_true(ev.kind == RDZV_EV_WROTE && ev.won);
    rdzv_c10d_answer(&ev, true, old, new, span_str("other"));
    assert_true(!ev.won && ev.present);
    rdzv_c10d_answer(&ev, true, old, new, old); /* the key is gone */
    assert_true(!ev.won && !ev.present);
}

/* Steps a node and returns its only effect. */
static struct rdzv_effect one_effect(struct rdzv *r, struct rdzv_event ev)
{
    struct rdzv_fx fx = { 0 };

    ev.now = (struct now){ 5000, 1767323045678901 };
    assert_int_equal(rdzv_step(r, &ev, &fx), 0);
    assert_int_equal(fx.count, 1);
    return fx.at[0];
}

/* torch's cas_backoff_max_seconds: after losing a write to another node, a random pause
 * of up to this long. */
static void a_lost_write_waits_as_long_as_the_user_says(void **state)
{
    uint64_t longest = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct rdzv *node[2];
        struct rdzv_effect first = { 0 };

        for (size_t i = 0; i < 2; i++) {
            struct rdzv_config cfg = { .run_id = "r1", .seed = seed };

            cfg.self = (struct rdzv_node){ span_str(i ? "b" : "a"), 10, 0 };
            rdzv_settings_init(&cfg.settings, 2, 2);
            cfg.settings.cas_backoff_ms = 2000;
            assert_int_equal(rdzv_new(&cfg, &node[i], NULL), 0);
            (void)one_effect(node[i], (struct rdzv_event){ .kind = RDZV_EV_JOIN });
            const struct rdzv_effect write =
                one_effect(node[i], (struct rdzv_event){ .kind = RDZV_EV_STATE });
            assert_int_equal(write.kind, RDZV_FX_WRITE_STATE);
            if (i == 0)
                first = write;
        }
        struct rdzv_event lost = { .kind = RDZV_EV_WROTE,
                                   .present = true,
                                   .value = first.value,
                                   .token = first.value,
                                   .now = { 5000, 1767323045678901 } };
        struct rdzv_fx fx = { 0 };

        assert_int_equal(rdzv_step(node[1], &lost, &fx), 0);
        if (fx.count == 0) {
            const uint64_t pause = rdzv_deadline(node[1]) - 5000;

            assert_in_range(pause, 1, 2000);
            longest = MAX_OF(longest, pause);
        }
        rdzv_free(node[0]);
        rdzv_free(node[1]);
    }
    assert_in_range(longest, 1000, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_nodes_join_at_once),
        cmocka_unit_test(an_answer_is_lost),
        cmocka_unit_test(an_answer_is_lost_and_another_node_is_quicker),
        cmocka_unit_test(a_node_missing_after_the_end_is_news),
        cmocka_unit_test(beats_keep_the_round),
        cmocka_unit_test(the_backend_reports_a_gone_node),
        cmocka_unit_test(an_old_beat_does_not_bring_a_node_back),
        cmocka_unit_test(a_node_that_stays_behind_is_known_by_rank),
        cmocka_unit_test(a_node_is_cut_off_before_the_others_drop_it),
        cmocka_unit_test(a_node_that_was_stopped_learns_that_it_was_dropped),
        cmocka_unit_test(a_node_silent_before_an_outage_gets_time),
        cmocka_unit_test(a_lost_member_makes_room),
        cmocka_unit_test(a_spare_waits_and_is_dismissed),
        cmocka_unit_test(a_node_that_waited_in_vain_becomes_a_spare),
        cmocka_unit_test(late_joins_hand_their_seat_back),
        cmocka_unit_test(a_silent_store_does_not_delay_answers),
        cmocka_unit_test(a_broken_store_is_reported),
        cmocka_unit_test(two_of_one_name_are_told_apart),
        cmocka_unit_test(a_torn_round_is_not_joined),
        cmocka_unit_test(more_nodes_than_we_allow),
        cmocka_unit_test(the_last_call_is_timed_by_one_clock),
        cmocka_unit_test(later_rounds_wait_only_for_known_nodes),
        cmocka_unit_test(heartbeats_follow_the_clock_ahead),
        cmocka_unit_test(leaving_ends_a_join),
        cmocka_unit_test(failing_memory_is_reported),
        cmocka_unit_test(wrong_configurations_are_refused),
        cmocka_unit_test(c10d_answers_are_understood),
        cmocka_unit_test(a_lost_write_waits_as_long_as_the_user_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
