/* test_seats.c - the seats of a run: places, ranks, losses, torchrun's
 * nodes, restarts. */
#include "testing.h"

#include <malloc.h>

#include <stdio.h>

#include "base/buf.h"
#include "base/rng.h"
#include "job/core/run.h"
#include "job/core/seats_int.h"
#include "rendezvous/core/settings.h"
#include "rendezvous/core/state.h"
#include "rendezvous/core/state_pickle.h"

#define PEERS 40

/* What a peer was told, by kind; news by what they are about. */
enum {
    NEWS_CLOSED = MSG_KIND_COUNT + WIRE_CLOSED,
    NEWS_WAITING = MSG_KIND_COUNT + WIRE_WAITING,
    NEWS_LOST = MSG_KIND_COUNT + WIRE_LOST,
    NEWS_SPARE = MSG_KIND_COUNT + WIRE_SPARE,
    NEWS_EVICTED = MSG_KIND_COUNT + WIRE_EVICTED,
    HEARD_KINDS = MSG_KIND_COUNT + WIRE_NEWS_COUNT,
};

/* A run with its peers, each of which remembers the last message of each kind. */
struct world {
    struct run *run;
    struct run_fx fx;
    struct now now;
    int64_t min, max;
    struct run_msg last[PEERS][HEARD_KINDS];
    int got[PEERS][HEARD_KINDS];
    int64_t joins[PEERS];
    bool dropped[PEERS];
    char settings[256];
};

static void settings_for(struct world *w, char *text, size_t size)
{
    struct rdzv_settings s;
    struct buf b;

    rdzv_settings_init(&s, w->min, w->max);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(rdzv_settings_print(&s, &b), 0);
    (void)snprintf(text, size, "%.*s", (int)buf_len(&b), (const char *)buf_data(&b));
    buf_fini(&b);
}

static void world_init(struct world *w, int64_t min, int64_t max)
{
    *w = (struct world){ .min = min, .max = max, .now = { 1000, 1700000000000000 } };
    w->run = run_new(span_str("run"), NULL);
    assert_non_null(w->run);
    settings_for(w, w->settings, sizeof w->settings);
}

static void world_fini(struct world *w)
{
    run_free(w->run);
    run_fx_fini(&w->fx);
}

static struct run_now us_of(struct now now)
{
    return (struct run_now){ now.mono_ms * 1000, now.wall_us };
}

static int feed(struct world *w, struct run_event ev)
{
    struct muster_error err;
    int rc;

    ev.now = us_of(w->now);
    rc = run_step(w->run, &ev, &w->fx, &err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < w->fx.count; i++) {
        const struct run_effect *e = &w->fx.items[i];

        if (e->kind != RUN_SEND && e->kind != RUN_DROP)
            continue; /* an entry of the record */
        assert_true(e->peer < PEERS);
        if (e->kind == RUN_DROP) {
            w->dropped[e->peer] = true;
            continue;
        }
        const unsigned kind = e->msg.kind == MSG_NEWS ? MSG_KIND_COUNT + e->msg.what
                                                      : (unsigned)e->msg.kind;

        w->last[e->peer][kind] = e->msg;
        w->got[e->peer][kind]++;
    }
    return 0;
}

static int say(struct world *w, uint32_t peer, struct run_msg msg)
{
    return feed(w, (struct run_event){ RUN_MSG, .peer = peer, .msg = &msg });
}

static struct run_msg hello_of(struct world *w, uint32_t node)
{
    return (struct run_msg){
        .kind = MSG_HELLO,
        .flags = MSG_SEATS,
        .run_id = span_str("run"),
        .addr = span_str("host"),
        .pid = 100 + node,
        .nonce = 7000 + node,
        .settings = span_str(w->settings),
        .round = -1,
        .grace_ms = 50,
    };
}

static int join(struct world *w, uint32_t peer)
{
    const bool joined = w->got[peer][MSG_JOINED];

    return say(
        w, peer,
        (struct run_msg){ .kind = MSG_JOIN,
                          .count = ++w->joins[peer],
                          .round = joined ? w->last[peer][MSG_JOINED].round : -1 });
}

static void hello_join(struct world *w, uint32_t peer)
{
    assert_int_equal(say(w, peer, hello_of(w, peer)), 0);
    assert_int_equal(w->got[peer][MSG_WELCOME], 1);
    assert_int_equal(join(w, peer), 0);
}

static void gone(struct world *w, uint32_t peer)
{
    assert_int_equal(feed(w, (struct run_event){ RUN_GONE, .peer = peer }), 0);
}

static uint64_t deadline_ms(const struct world *w)
{
    const uint64_t by = run_deadline(w->run);

    return by == MONO_NEVER ? by : (by + 999) / 1000;
}

static void pass(struct world *w, uint64_t ms)
{
    const uint64_t until = w->now.mono_ms + ms;

    while (deadline_ms(w) <= until) {
        const uint64_t at = MAX_OF(w->now.mono_ms, deadline_ms(w));

        w->now.wall_us += (int64_t)(at - w->now.mono_ms) * 1000;
        w->now.mono_ms = at;
        assert_int_equal(feed(w, (struct run_event){ RUN_TIMER }), 0);
    }
    w->now.wall_us += (int64_t)(until - w->now.mono_ms) * 1000;
    w->now.mono_ms = until;
}

static void alive(struct world *w, uint32_t peers)
{
    for (uint32_t p = 0; p < peers; p++)
        (void)say(w, p, (struct run_msg){ .kind = MSG_BEAT });
}

static void pass_beating(struct world *w, int seconds, uint32_t peers)
{
    for (int i = 0; i < seconds; i++) {
        pass(w, 1000);
        alive(w, peers);
    }
}

static void serve_store(struct world *w, uint32_t peer, int64_t round)
{
    assert_int_equal(say(w, peer,
                         (struct run_msg){ .kind = MSG_STORE,
                                           .round = round,
                                           .where = span_str("node0"),
                                           .port = 4000 + round }),
                     0);
}

/* An agent, with one worker. */
static struct run_msg agent_of(struct world *w, uint32_t node)
{
    struct run_msg m = hello_of(w, node);

    m.flags |= MSG_RECORD;
    m.nproc = 1;
    m.total = 5;
    return m;
}

static void agents_join(struct world *w, uint32_t count)
{
    for (uint32_t p = 0; p < count; p++) {
        assert_int_equal(say(w, p, agent_of(w, p)), 0);
        assert_int_equal(join(w, p), 0);
    }
}

static void begin_work(struct world *w, uint32_t count, int64_t round)
{
    for (uint32_t p = 0; p < count; p++)
        assert_int_equal(say(w, p,
                             (struct run_msg){ .kind = MSG_RANKS,
                                               .round = round,
                                               .rank = p,
                                               .count = 1,
                                               .total = count,
                                               .seat_round = -1 }),
                         0);
}

static void fail_worker(struct world *w, uint32_t peer, int64_t round)
{
    const struct record_entry e = { .kind = RECORD_FAILED,
                                    .cause = CAUSE_EXIT,
                                    .round = round,
                                    .rank = peer,
                                    .code = 1 };
    struct buf b;

    buf_init(&b, WIRE_MAX);
    assert_int_equal(record_entry_encode(&b, &e), 0);
    assert_int_equal(say(w, peer,
                         (struct run_msg){ .kind = MSG_PUBLISH,
                                           .seq = (uint64_t)round + 1,
                                           .bytes = buf_span(&b) }),
                     0);
    buf_fini(&b);
}

static void report(struct world *w, uint32_t peer, int64_t round, int64_t failed)
{
    assert_int_equal(
        say(w, peer,
            (struct run_msg){ .kind = MSG_REPORTED, .round = round, .count = failed }),
        0);
}

/* A worker fails while all nodes live. */
static void a_restart_is_not_a_rendezvous(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    agents_join(&w, 2);
    for (int64_t round = 0; round < 3; round++) {
        serve_store(&w, 0, round); /* In later rounds it has said so already. */
        for (uint32_t p = 0; p < 2; p++) {
            const struct run_msg m = w.last[p][MSG_JOINED];

            assert_int_equal(w.got[p][MSG_JOINED], round + 1);
            assert_int_equal(m.round, round);
            assert_int_equal(m.rank, p);
            assert_int_equal(m.ranks.base_rank, p);
            if (p || round)
                assert_int_equal(m.port, 4000 + round);
        }
        begin_work(&w, 2, round);
        fail_worker(&w, 1, round);
        report(&w, 1, round, 1);
        serve_store(&w, 0, round + 1);
        report(&w, 0, round, 0);
    }
    assert_int_equal(seats_round(run_seats(w.run)), 3);
    world_fini(&w);
}

enum change {
    NO_STORE,   /* rank 0 does not serve ahead */
    NEWCOMER,   /* a node waits */
    AWAY,       /* a member's connection is broken */
    LOST,       /* a member is lost */
    NOT_GONE,   /* the workers of one are not gone when time is up */
    TORCH_AGENT /* a member does not share the record */
};

static void otherwise_all_ask_for_the_next_round(void **state)
{
    (void)state;
    for (enum change what = NO_STORE; what <= TORCH_AGENT; what++) {
        struct world w;

        world_init(&w, 2, 4);
        for (uint32_t p = 0; p < 3; p++) {
            const struct run_msg m =
                what == TORCH_AGENT && p == 2 ? hello_of(&w, p) : agent_of(&w, p);

            assert_int_equal(say(&w, p, m), 0);
            assert_int_equal(join(&w, p), 0);
        }
        pass_beating(&w, 31, 3);
        serve_store(&w, 0, 0);
        assert_int_equal(w.last[2][MSG_JOINED].world, 3);
        begin_work(&w, what == TORCH_AGENT ? 2 : 3, 0);
        if (what == NEWCOMER)
            hello_join(&w, 3);
        fail_worker(&w, 1, 0);
        if (what != NO_STORE)
            serve_store(&w, 0, 1);
        if (what == AWAY || what == LOST)
            gone(&w, 2);
        if (what == LOST)
            pass(&w, 100);
        report(&w, 0, 0, 0);
        report(&w, 1, 0, 1);
        if (what == AWAY || what == NOT_GONE)
            pass(&w, what == AWAY ? 40 : 2100);
        else if (what != TORCH_AGENT && what != LOST)
            report(&w, 2, 0, 0);
        for (uint32_t p = 0; p < 3; p++)
            assert_int_equal(w.got[p][MSG_JOINED], 1);
        world_fini(&w);
    }
}

/* A node does not know yet that the next round has begun for it: its JOIN is under way,
 * or the message was lost with its connection. */
static void a_node_that_has_not_heard_of_a_restart(void **state)
{
    struct run_msg back;
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    agents_join(&w, 2);
    serve_store(&w, 0, 0);
    begin_work(&w, 2, 0);
    fail_worker(&w, 1, 0);
    serve_store(&w, 0, 1);
    report(&w, 0, 0, 0);
    w.joins[0]++;
    report(&w, 1, 0, 1);
    assert_int_equal(
        say(&w, 0, (struct run_msg){ .kind = MSG_JOIN, .count = w.joins[0] }), 0);
    assert_int_equal(w.got[0][MSG_JOINED], 3);
    assert_int_equal(w.last[0][MSG_JOINED].round, 1);
    assert_int_equal(w.got[1][NEWS_WAITING], 0);
    gone(&w, 1);
    back = agent_of(&w, 1);
    back.round = 0;
    back.rank = 1;
    back.world = 2;
    assert_int_equal(say(&w, 5, back), 0);
    assert_int_equal(w.got[5][NEWS_EVICTED], 0);
    assert_int_equal(w.last[5][MSG_JOINED].round, 1);
    assert_int_equal(w.last[5][MSG_JOINED].port, 4001);
    world_fini(&w);
}

/* The host was restarted after the judgement, and a worker that took long to end is
 * told of again. */
static void a_failure_that_another_run_has_judged(void **state)
{
    const struct record_entry judged = {
        .number = 7, .kind = RECORD_RESTART, .count = 1, .total = 5
    };
    struct run_msg back;
    struct record_entry e;
    struct buf b;
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    back = agent_of(&w, 1);
    back.value = 7;
    assert_int_equal(say(&w, 1, back), 0);
    assert_int_equal(w.got[1][MSG_WANT], 1);
    buf_init(&b, WIRE_MAX);
    assert_int_equal(record_entry_encode(&b, &judged), 0);
    assert_int_equal(
        say(&w, 1, (struct run_msg){ .kind = MSG_OFFER, .bytes = buf_span(&b) }), 0);
    buf_fini(&b);
    assert_int_equal(
        say(&w, 1,
            (struct run_msg){
                .kind = MSG_RANKS, .count = 1, .total = 1, .seat_round = -1 }),
        0);
    fail_worker(&w, 1, 0);
    assert_false(
        record_find(recorder_record(run_recorder(w.run)), RECORD_ENDING, 0, &e));
    world_fini(&w);
}

/* A node is gone after the round is complete, and before the others know it. */
static void a_round_that_falls_apart_before_it_begins(void **state)
{
    (void)state;
    for (uint32_t lost = 0; lost < 3; lost++) {
        struct world w;

        world_init(&w, 2, 3);
        agents_join(&w, 3);
        assert_int_equal(w.got[0][MSG_JOINED], 1);
        gone(&w, lost);
        pass(&w, 100);
        serve_store(&w, lost == 0 ? 1 : 0, 0);
        assert_int_equal(w.got[1][MSG_JOINED] + w.got[2][MSG_JOINED], 0);
        if (lost != 0) {
            assert_int_equal(w.got[0][NEWS_LOST], 1);
            assert_int_equal(join(&w, 0), 0);
        }
        pass_beating(&w, 31, 3);
        serve_store(&w, lost == 0 ? 1 : 0, 1);
        for (uint32_t p = 0; p < 3; p++)
            if (p != lost) {
                assert_int_equal(w.last[p][MSG_JOINED].round, 1);
                assert_int_equal(w.last[p][MSG_JOINED].world, 2);
            }
        world_fini(&w);
    }
}

static void a_full_round_completes_at_once(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 3, 3);
    hello_join(&w, 2);
    hello_join(&w, 0);
    assert_int_equal(w.got[0][MSG_JOINED], 0);
    hello_join(&w, 1);
    for (uint32_t p = 0; p < 3; p++) {
        assert_int_equal(w.got[p][MSG_JOINED], 1);
        assert_int_equal(w.last[p][MSG_JOINED].rank, p); /* Ranks go by pid. */
        assert_int_equal(w.last[p][MSG_JOINED].world, 3);
        assert_int_equal(w.last[p][MSG_JOINED].round, 0);
    }
    world_fini(&w);
}

/* Two agents say how many workers they have, and of which role; then a third one. */
static void ranks_of_the_workers(void **state)
{
    static const struct {
        int64_t nproc;
        const char *role;
        struct rank_range ranks; /* base, all, base in the role, all of the role */
    } rows[] = {
        { 2, "trainer", { 0, 6, 0, 5 } },
        { 1, "reader", { 2, 6, 0, 1 } },
        { 3, "trainer", { 3, 6, 2, 5 } },
    };

    (void)state;
    for (int silent = 0; silent <= 1; silent++) {
        struct world w;

        world_init(&w, 3, 3);
        for (uint32_t p = 0; p < 3; p++) {
            struct run_msg m = hello_of(&w, p);

            m.flags |= MSG_RECORD;
            m.nproc = silent && p == 1 ? 0 : rows[p].nproc;
            m.name = span_str(rows[p].role);
            assert_int_equal(say(&w, p, m), 0);
            assert_int_equal(join(&w, p), 0);
        }
        if (!silent) { /* They wait until rank 0 serves the workers' store. */
            assert_int_equal(w.got[0][MSG_JOINED], 1);
            assert_int_equal(w.last[0][MSG_JOINED].where.n, 0);
            assert_int_equal(w.got[1][MSG_JOINED] + w.got[2][MSG_JOINED], 0);
            serve_store(&w, 1, 0);
            assert_int_equal(w.got[1][MSG_JOINED] + w.got[2][MSG_JOINED], 0);
            serve_store(&w, 0, 0);
        }
        for (uint32_t p = 0; p < 3; p++) {
            const struct rank_range got = w.last[p][MSG_JOINED].ranks;

            assert_int_equal(w.got[p][MSG_JOINED], 1);
            assert_int_equal(w.last[p][MSG_JOINED].port, silent || p == 0 ? 0 : 4000);
            assert_int_equal(got.base_rank, silent ? 0 : rows[p].ranks.base_rank);
            assert_int_equal(got.world_size, silent ? 0 : rows[p].ranks.world_size);
            assert_int_equal(got.base_role_rank,
                             silent ? 0 : rows[p].ranks.base_role_rank);
            assert_int_equal(got.role_world_size,
                             silent ? 0 : rows[p].ranks.role_world_size);
        }
        world_fini(&w);
    }
}

/* A node may ask for another round before it hears that the work is done. */
static void no_round_after_success(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    for (uint32_t p = 0; p < 2; p++) {
        struct run_msg m = hello_of(&w, p);

        m.flags |= MSG_RECORD;
        m.nproc = 1;
        assert_int_equal(say(&w, p, m), 0);
        assert_int_equal(join(&w, p), 0);
    }
    for (uint32_t p = 0; p < 2; p++)
        assert_int_equal(say(&w, p,
                             (struct run_msg){ .kind = MSG_RANKS,
                                               .rank = p,
                                               .count = 1,
                                               .total = 2,
                                               .seat_round = -1 }),
                         0);
    for (uint32_t p = 0; p < 2; p++)
        assert_int_equal(say(&w, p, (struct run_msg){ .kind = MSG_REPORTED }), 0);
    assert_int_equal(join(&w, 1), 0);
    assert_int_equal(w.got[1][MSG_REFUSED], 1);
    assert_int_equal(w.last[1][MSG_REFUSED].code, MUSTER_ECLOSED);
    assert_int_equal(w.got[0][NEWS_WAITING], 0);
    world_fini(&w);
}

static void the_last_call_ends_an_elastic_round(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, 4);
    hello_join(&w, 0);
    hello_join(&w, 1);
    pass(&w, 14000);
    alive(&w, 2);
    pass(&w, 14000);
    alive(&w, 2);
    assert_int_equal(w.got[0][MSG_JOINED], 0);
    pass(&w, 2000);
    assert_int_equal(w.last[0][MSG_JOINED].world, 2);
    assert_int_equal(w.last[1][MSG_JOINED].rank, 1);

    hello_join(&w, 2); /* It is late and waits, and the members are told. */
    assert_int_equal(w.got[2][MSG_JOINED], 0);
    assert_int_equal(w.got[0][NEWS_WAITING], 1);
    assert_int_equal(w.got[1][NEWS_WAITING], 1);
    (void)join(&w, 0);
    assert_int_equal(w.got[2][MSG_JOINED], 0);
    (void)join(&w, 1); /* All known nodes are there: no last call. */
    for (uint32_t p = 0; p < 3; p++) {
        assert_int_equal(w.last[p][MSG_JOINED].round, 1);
        assert_int_equal(w.last[p][MSG_JOINED].world, 3);
    }
    world_fini(&w);
}

/* Rounds after the first wait for nodes that are known and alive, and for no others. */
static void later_rounds_do_not_wait_for_strangers(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, 4);
    for (uint32_t p = 0; p < 3; p++)
        hello_join(&w, p);
    pass(&w, 10000);
    alive(&w, 3);
    pass(&w, 10000);
    alive(&w, 3);
    pass(&w, 10001);
    assert_int_equal(w.last[2][MSG_JOINED].world, 3);

    /* A worker failed: all come back. */
    for (uint32_t p = 0; p < 3; p++) {
        assert_int_equal(w.got[0][MSG_JOINED], 1);
        (void)join(&w, p);
    }
    assert_int_equal(w.last[0][MSG_JOINED].round, 1);
    assert_int_equal(w.last[0][MSG_JOINED].world, 3);

    /* A node is lost while the others come back: the round begins as soon as that is
     * certain. */
    (void)join(&w, 0);
    (void)join(&w, 1);
    gone(&w, 2);
    assert_int_equal(w.got[0][MSG_JOINED], 2);
    pass(&w, 51);
    assert_int_equal(w.last[0][MSG_JOINED].round, 2);
    assert_int_equal(w.last[1][MSG_JOINED].world, 2);

    /* Nobody waits for a node that leaves. */
    (void)join(&w, 0);
    (void)say(&w, 1, (struct run_msg){ .kind = MSG_LEAVE });
    gone(&w, 1);
    pass(&w, 60);
    assert_int_equal(w.last[0][MSG_JOINED].round, 3);
    assert_int_equal(w.last[0][MSG_JOINED].world, 1);

    /* No node is left of those rounds, so newcomers wait for each other. */
    gone(&w, 0);
    pass(&w, 60);
    hello_join(&w, 4);
    pass(&w, 10000);
    (void)say(&w, 4, (struct run_msg){ .kind = MSG_BEAT });
    assert_int_equal(w.got[4][MSG_JOINED], 0);
    hello_join(&w, 5);
    assert_int_equal(w.got[5][MSG_JOINED], 0);
    pass(&w, 14000);
    (void)say(&w, 4, (struct run_msg){ .kind = MSG_BEAT });
    (void)say(&w, 5, (struct run_msg){ .kind = MSG_BEAT });
    pass(&w, 7000);
    assert_int_equal(w.last[5][MSG_JOINED].world, 2);
    world_fini(&w);
}

static void last_call_always(void **state)
{
    struct rdzv_settings set;
    struct world w;
    struct buf text;

    (void)state;
    world_init(&w, 1, 4);
    assert_int_equal(rdzv_settings_parse(span_str(w.settings), &set, NULL), 0);
    assert_false(set.last_call_always);
    set.last_call_always = true;
    buf_init(&text, 500);
    assert_int_equal(rdzv_settings_print(&set, &text), 0);
    assert_true(buf_len(&text) < sizeof w.settings);
    memcpy(w.settings, buf_data(&text), buf_len(&text));
    w.settings[buf_len(&text)] = '\0';
    buf_fini(&text);
    assert_int_equal(rdzv_settings_parse(span_str(w.settings), &set, NULL), 0);
    assert_true(set.last_call_always);

    hello_join(&w, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            pass(&w, 14000);
            alive(&w, 1);
        }
        assert_int_equal(w.got[0][MSG_JOINED], round);
        pass(&w, 3000);
        assert_int_equal(w.got[0][MSG_JOINED], round + 1);
        (void)join(&w, 0);
    }
    world_fini(&w);
}

static void a_broken_connection_is_a_loss_after_its_grace(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    hello_join(&w, 1);
    hello_join(&w, 2); /* A spare. */
    gone(&w, 1);
    pass(&w, 49);
    assert_int_equal(w.got[0][NEWS_LOST], 0);
    pass(&w, 2);
    assert_int_equal(w.got[0][NEWS_LOST], 1);
    assert_int_equal(w.got[0][NEWS_WAITING], 1); /* The spare waits now. */
    (void)join(&w, 0);
    assert_int_equal(w.last[0][MSG_JOINED].round, 1);
    assert_int_equal(w.last[2][MSG_JOINED].round, 1);
    assert_int_equal(w.last[2][MSG_JOINED].rank, 1);
    world_fini(&w);
}

/* Without this news, a node that has finished its work would wait for the others, and
 * they for it. */
static void members_hear_that_one_of_them_waits(void **state)
{
    struct world w;
    struct run_msg back;

    (void)state;
    world_init(&w, 3, 4);
    for (uint32_t p = 0; p < 3; p++)
        hello_join(&w, p);
    pass(&w, 10000);
    alive(&w, 3);
    pass(&w, 10000);
    alive(&w, 3);
    pass(&w, 10000);
    assert_int_equal(w.last[2][MSG_JOINED].world, 3);
    hello_join(&w, 3);
    assert_int_equal(w.last[2][NEWS_WAITING].count, 1);
    (void)join(&w, 0);
    assert_int_equal(w.got[0][NEWS_WAITING], 1);
    for (uint32_t p = 1; p < 3; p++) {
        assert_int_equal(w.got[p][NEWS_WAITING], 2);
        assert_true(w.last[p][NEWS_WAITING].count == WIRE_MEMBER_WAITS);
    }
    (void)join(&w, 1); /* Another waiting member is not news. */
    assert_int_equal(w.got[2][NEWS_WAITING], 2);
    gone(&w, 2);
    back = hello_of(&w, 2);
    back.world = 3;
    back.rank = 2;
    back.round = 0;
    assert_int_equal(say(&w, 5, back), 0);
    assert_true(w.last[5][NEWS_WAITING].count == WIRE_MEMBER_WAITS);
    w.joins[5] = w.joins[2];
    (void)join(&w, 5);
    assert_int_equal(w.last[5][MSG_JOINED].round, 1);
    assert_int_equal(w.last[5][MSG_JOINED].world, 4);
    world_fini(&w);
}

/* A node was away when the run ended. Its workers' work does not count if the others
 * ended the run in a later round; it counts if the node only missed the end of its own
 * round. */
static void a_run_that_ended_while_a_node_was_away(void **state)
{
    (void)state;
    for (int later = 0; later < 2; later++) {
        struct world w;
        struct run_msg back;

        world_init(&w, 1, 2);
        hello_join(&w, 0);
        hello_join(&w, 1);
        assert_int_equal(w.last[1][MSG_JOINED].world, 2);
        if (later) {
            gone(&w, 1);
            pass(&w, 100);
            assert_int_equal(w.got[0][NEWS_LOST], 1);
            (void)join(&w, 0);
            assert_int_equal(w.last[0][MSG_JOINED].round, 1);
        }
        (void)say(&w, 0, (struct run_msg){ .kind = MSG_CLOSE });
        if (!later)
            gone(&w, 1);
        pass(&w, 100);
        gone(&w, 0);
        pass(&w, 100);
        back = hello_of(&w, 1);
        back.round = 0;
        back.rank = 1;
        back.world = 2;
        assert_int_equal(say(&w, 5, back), 0);
        assert_int_equal(w.got[5][NEWS_EVICTED], later);
        assert_int_equal(w.got[5][NEWS_CLOSED], 1);
        world_fini(&w);
    }
}

/* Then all read the workers' address anew in each round. */
static void a_world_of_ours_alone(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    hello_join(&w, 1);
    for (uint32_t p = 0; p < 2; p++)
        assert_int_equal(w.last[p][MSG_JOINED].count, WIRE_ALL_OURS);
    world_fini(&w);
}

static void a_short_break_is_not_a_loss(void **state)
{
    struct world w;
    struct run_msg back;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    hello_join(&w, 1);
    gone(&w, 1);
    pass(&w, 30);
    back = hello_of(&w, 1);
    back.round = 0;
    assert_int_equal(say(&w, 5, back), 0);
    pass(&w, 200);
    assert_int_equal(w.got[0][NEWS_LOST], 0);
    assert_int_equal(w.got[5][MSG_WELCOME], 1);
    assert_int_equal(w.got[5][NEWS_EVICTED], 0);

    /* The answer to a JOIN that was lost with the connection is sent again. */
    (void)join(&w, 0);
    gone(&w, 0);
    w.joins[5] = w.joins[1];
    (void)join(&w, 5);
    assert_int_equal(w.last[5][MSG_JOINED].round, 1);
    assert_int_equal(w.got[0][MSG_JOINED], 1); /* It is away. */
    back = hello_of(&w, 0);
    assert_int_equal(say(&w, 6, back), 0);
    assert_int_equal(
        say(&w, 6, (struct run_msg){ .kind = MSG_JOIN, .count = w.joins[0] }), 0);
    assert_int_equal(w.last[6][MSG_JOINED].round, 1);
    assert_int_equal(w.last[6][MSG_JOINED].rank, 0);
    world_fini(&w);
}

static void silence_is_a_loss(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    hello_join(&w, 1);
    for (int i = 0; i < 2; i++) {
        pass(&w, 7000);
        (void)say(&w, 0, (struct run_msg){ .kind = MSG_BEAT });
    }
    assert_int_equal(w.got[0][NEWS_LOST], 0);
    pass(&w, 2000);
    assert_int_equal(w.got[0][NEWS_LOST], 1);
    assert_true(w.dropped[1]);
    world_fini(&w);
}

static void duplicates_and_other_settings_are_refused(void **state)
{
    struct world w;
    struct run_msg twin;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    twin = hello_of(&w, 0);
    twin.nonce++;
    assert_int_equal(say(&w, 1, twin), 0);
    assert_int_equal(w.last[1][MSG_REFUSED].code, MUSTER_EEXIST);
    w.max = 3;
    settings_for(&w, w.settings, sizeof w.settings);
    assert_int_equal(say(&w, 2, hello_of(&w, 2)), 0);
    assert_int_equal(w.last[2][MSG_REFUSED].code, MUSTER_EINVAL);
    assert_non_null(
        strstr(w.fx.text, "--nnodes is 2:3 here, 2 there")); /* as the node sees it */
    assert_int_equal(say(&w, 2, (struct run_msg){ .kind = MSG_JOIN }), 0);
    assert_int_equal(w.fx.count, 0);
    /* It followed the HELLO that was refused. */ /* JOIN before HELLO. */
    world_fini(&w);
}

/* The job was started with a wrong number of nodes, ended, and started with the right
 * one. */
static void settings_are_dropped_with_the_last_node(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 3, 3);
    hello_join(&w, 0);
    assert_int_equal(say(&w, 0, (struct run_msg){ .kind = MSG_LEAVE }), 0);
    gone(&w, 0);
    pass(&w, 1000);
    w.min = w.max = 1;
    settings_for(&w, w.settings, sizeof w.settings);
    hello_join(&w, 1);
    assert_int_equal(w.got[1][MSG_JOINED], 1);
    world_fini(&w);
}

static void closed_stays_closed(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, 1);
    hello_join(&w, 0);
    hello_join(&w, 1); /* A spare. */
    (void)say(&w, 0, (struct run_msg){ .kind = MSG_CLOSE });
    assert_int_equal(w.got[0][NEWS_CLOSED], 1);
    assert_int_equal(w.last[1][MSG_REFUSED].code, MUSTER_EGRACEFUL);
    hello_join(&w, 2);
    assert_int_equal(w.last[2][MSG_REFUSED].code, MUSTER_ECLOSED);
    world_fini(&w);
}

static void a_restarted_host_goes_on(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    for (uint32_t p = 0; p < 2; p++) {
        struct run_msg back = hello_of(&w, p);

        back.round = 4;
        back.rank = p;
        back.world = 2;
        assert_int_equal(say(&w, p, back), 0);
        assert_int_equal(w.got[p][NEWS_EVICTED], 0);
    }
    pass(&w, 10000);
    alive(&w, 2);
    pass(&w, 10000);
    assert_int_equal(w.got[0][NEWS_LOST], 0);
    (void)join(&w, 0);
    (void)join(&w, 1);
    assert_int_equal(w.last[1][MSG_JOINED].round, 5);
    world_fini(&w);
}

static void a_node_that_does_not_come_back_is_lost(void **state)
{
    struct world w;
    struct run_msg back;

    (void)state;
    world_init(&w, 2, 2);
    back = hello_of(&w, 0);
    back.round = 4;
    back.world = 2;
    assert_int_equal(say(&w, 0, back), 0);
    pass(&w, 10000);
    alive(&w, 1);
    assert_int_equal(w.got[0][NEWS_LOST], 0);
    pass(&w, 6000);
    assert_int_equal(w.got[0][NEWS_LOST], 1);
    world_fini(&w);
}

static void users_order_counts_among_our_nodes(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 3, 3);
    for (uint32_t p = 0; p < 3; p++) {
        struct run_msg m = hello_of(&w, p);

        m.order = WIRE_BY_KEY;
        m.rank_order_key = 10 - p;
        assert_int_equal(say(&w, p, m), 0);
        (void)join(&w, p);
    }
    for (uint32_t p = 0; p < 3; p++)
        assert_int_equal(w.last[p][MSG_JOINED].rank, 2 - p);
    world_fini(&w);
}

/* torchrun's nodes only know the order of the names. One of them may complete the
 * round, so in the state that they read, the users' order is part of our names. */
static void users_order_is_in_the_names_that_torch_sorts_by(void **state)
{
    struct rdzv_state s;
    struct world w;
    struct span view;
    char name[64];

    (void)state;
    world_init(&w, 3, 3);
    for (uint32_t p = 0; p < 2; p++) {
        struct run_msg m = hello_of(&w, p);

        m.order = WIRE_BY_KEY;
        m.rank_order_key = 10 - p;
        if (p == 1) /* Earlier members put the number into the name. */
            m.addr = span_str("00000009.old");
        assert_int_equal(say(&w, p, m), 0);
        (void)join(&w, p);
    }
    assert_int_equal(seats_view(run_seats(w.run), w.now, &view), 0);
    assert_int_equal(pickle_read_text(view, &s, NULL), 0);
    for (const struct participant *m = rdzv_first(&s, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct span bare = rdzv_unordered_addr(m->node.addr);

        (void)snprintf(name, sizeof name, "%.*s", (int)m->node.addr.n,
                       (const char *)m->node.addr.p);
        assert_int_equal(strncmp(name,
                                 bare.n == 3 && memcmp(bare.p, "old", 3) == 0
                                     ? "00000009.old"
                                     : "00000010.",
                                 9),
                         0);
    }
    rdzv_state_fini(&s);
    world_fini(&w);
}

/* What a torchrun node does: read the view, change it, write it back. */
static void torch_joins(struct world *w, int64_t pid, bool complete)
{
    const struct rdzv_node me = { span_str("torch"), pid, 0 };
    struct rdzv_state s;
    struct span view;
    struct buf text;
    int64_t rank = 0;

    assert_int_equal(seats_view(run_seats(w->run), w->now, &view), 0);
    if (view.n == 12)
        rdzv_state_init(&s);
    else
        assert_int_equal(pickle_read_text(view, &s, NULL), 0);
    rdzv_state_put(&s, &me, RDZV_PLACES)->rank = 0;
    rdzv_state_put(&s, &me, RDZV_BEATS)->beat_us = w->now.wall_us;
    if (complete) {
        s.complete = true;
        for (struct participant *m = rdzv_first(&s, RDZV_PLACES); m;
             m = m->next[RDZV_PLACES])
            m->rank = rank++;
    }
    buf_init(&text, SIZE_MAX);
    assert_int_equal(pickle_write_text(&s, &text), 0);
    assert_int_equal(feed(w, (struct run_event){ RUN_SEEN, .value = buf_span(&text) }),
                     0);
    buf_fini(&text);
    rdzv_state_fini(&s);
}

static void torchrun_nodes_share_the_state(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    torch_joins(&w, 9, true);
    assert_int_equal(w.last[0][MSG_JOINED].world, 2);
    assert_int_equal(w.last[0][MSG_JOINED].rank, 0);
    /* It falls silent, and our node is told. */
    for (int i = 0; i < 3; i++) {
        pass(&w, 6000);
        alive(&w, 1);
    }
    assert_int_equal(w.got[0][NEWS_LOST], 1);
    world_fini(&w);
}

static void our_node_completes_a_round_with_torchrun(void **state)
{
    struct world w;
    struct rdzv_state s;
    struct span view;

    (void)state;
    world_init(&w, 2, 2);
    assert_int_equal(say(&w, 0, hello_of(&w, 0)), 0);
    torch_joins(&w, 9, false);
    (void)join(&w, 0);
    assert_int_equal(w.last[0][MSG_JOINED].world, 2);
    assert_true(seats_stale(run_seats(w.run), w.now, true));
    assert_int_equal(seats_view(run_seats(w.run), w.now, &view), 0);
    assert_int_equal(pickle_read_text(view, &s, NULL), 0);
    assert_true(s.complete);
    assert_int_equal(rdzv_count(&s, RDZV_PLACES), 2);
    rdzv_state_fini(&s);
    assert_false(seats_stale(run_seats(w.run), w.now, true));
    world_fini(&w);
}

static void read_view(struct world *w, struct rdzv_state *s)
{
    struct span view;

    assert_int_equal(seats_view(run_seats(w->run), w->now, &view), 0);
    assert_int_equal(pickle_read_text(view, s, NULL), 0);
}

static int64_t beat_of(struct world *w, uint32_t node)
{
    const struct rdzv_node n = { span_str("host"), 100 + node, 0 };
    struct rdzv_state s;
    int64_t beat_us;

    read_view(w, &s);
    beat_us = rdzv_state_find(&s, &n)->beat_us;
    rdzv_state_fini(&s);
    return beat_us;
}

/* Otherwise torchrun's nodes would find all of our nodes dead at once. */
static void a_host_whose_clock_is_set_back(void **state)
{
    struct world w;
    int64_t before_us;

    (void)state;
    world_init(&w, 2, 3);
    hello_join(&w, 0);
    torch_joins(&w, 9, false);
    before_us = beat_of(&w, 0);
    w.now.wall_us -= 20000000;
    w.now.mono_ms += 1000;
    assert_int_equal(beat_of(&w, 0), before_us + 1000000);
    world_fini(&w);
}

/* A torchrun node that finds ours dead takes the last call back, since too few are
 * left. The host knows that its own node is alive, so there are enough again. */
static void a_last_call_that_torchrun_took_back(void **state)
{
    const struct rdzv_node ours = { span_str("host"), 100, 0 };
    struct rdzv_state s;
    struct buf text;
    struct world w;

    (void)state;
    world_init(&w, 2, 3);
    hello_join(&w, 0);
    torch_joins(&w, 9, false);
    read_view(&w, &s);
    rdzv_state_forget(&s, rdzv_state_find(&s, &ours));
    s.deadline_us = WALL_NEVER;
    buf_init(&text, SIZE_MAX);
    assert_int_equal(pickle_write_text(&s, &text), 0);
    assert_int_equal(feed(&w, (struct run_event){ RUN_SEEN, .value = buf_span(&text) }),
                     0);
    buf_fini(&text);
    rdzv_state_fini(&s);
    for (int i = 0; i < 4; i++) {
        pass(&w, 8000);
        alive(&w, 1);
        torch_joins(&w, 9, false); /* its heartbeat */
    }
    assert_int_equal(w.last[0][MSG_JOINED].world, 2);
    world_fini(&w);
}

/* The answer to a JOIN was lost, and so was the news after it that a node waits. */
static void an_answer_repeated_while_a_node_waits(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, 4);
    hello_join(&w, 0);
    pass(&w, 14000);
    alive(&w, 1);
    pass(&w, 14000);
    alive(&w, 1);
    pass(&w, 2000);
    assert_int_equal(w.got[0][MSG_JOINED], 1);
    hello_join(&w, 1);
    assert_int_equal(w.got[0][NEWS_WAITING], 1);
    gone(&w, 0);
    w.got[0][MSG_WELCOME] = 0;
    assert_int_equal(say(&w, 0, hello_of(&w, 0)), 0); /* It knows of no round yet. */
    w.got[0][MSG_JOINED] = w.got[0][NEWS_WAITING] = 0;
    assert_int_equal(
        say(&w, 0, (struct run_msg){ .kind = MSG_JOIN, .count = w.joins[0] }), 0);
    assert_int_equal(w.fx.count, 2);
    assert_int_equal(w.fx.items[0].msg.kind, MSG_JOINED);
    assert_int_equal(w.fx.items[1].msg.what, WIRE_WAITING);
    assert_int_equal(w.fx.items[1].msg.count, 1);
    world_fini(&w);
}

/* A JOINED was lost with the connection, and meanwhile another member has left. Sent
 * again, it would give a world of one to a node whose peer was told two. */
static void an_answer_repeated_too_late(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    hello_join(&w, 1);
    assert_int_equal(w.last[1][MSG_JOINED].world, 2);
    (void)say(&w, 1, (struct run_msg){ .kind = MSG_JOIN, .count = w.joins[1] });
    assert_int_equal(w.got[1][MSG_JOINED], 2); /* all are there, so it is sent again */
    assert_int_equal(w.last[1][MSG_JOINED].round, 0);
    (void)join(&w, 0);
    (void)say(&w, 1, (struct run_msg){ .kind = MSG_JOIN, .count = w.joins[1] });
    for (uint32_t p = 0; p < 2; p++) {
        assert_int_equal(w.last[p][MSG_JOINED].round, 1);
        assert_int_equal(w.last[p][MSG_JOINED].world, 2);
    }
    world_fini(&w);
}

static void garbage_from_torchrun_changes_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    hello_join(&w, 0);
    assert_int_equal(
        feed(&w, (struct run_event){ RUN_SEEN, .value = span_str("YWJj") }),
        MUSTER_ESTATE);
    hello_join(&w, 1);
    assert_int_equal(w.got[0][MSG_JOINED], 1);
    world_fini(&w);
}

/* Random requests, losses and returns. What must always hold is checked at each
 * step. */
static void random_events(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct world w;
        struct rng r;
        bool here[PEERS] = { false };
        int64_t round = 0;

        rng_init(&r, seed);
        world_init(&w, 1 + (int64_t)rng_below(&r, 3), 3 + (int64_t)rng_below(&r, 5));
        for (int step = 0; step < 200; step++) {
            const uint32_t p = (uint32_t)rng_below(&r, 12);
            bool ranks[PEERS] = { false };

            switch (rng_below(&r, 8)) {
            case 0:
            case 1:
            case 2:
                if (!here[p])
                    (void)say(&w, p, hello_of(&w, p));
                here[p] = true;
                (void)join(&w, p);
                break;
            case 3:
                gone(&w, p);
                here[p] = false;
                break;
            case 4:
                if (here[p])
                    (void)say(&w, p, (struct run_msg){ .kind = MSG_LEAVE });
                break;
            case 5:
                alive(&w, 12);
                break;
            default:
                pass(&w, rng_below(&r, 4000));
            }
            for (uint32_t q = 0; q < PEERS; q++) {
                here[q] = here[q] && !w.dropped[q];
                w.dropped[q] = false;
            }
            if (!run_seats(w.run))
                continue;
            assert_true(seats_round(run_seats(w.run)) >= round);
            round = seats_round(run_seats(w.run));
            for (size_t i = 0; i < w.fx.count; i++) {
                const struct run_msg *m = &w.fx.items[i].msg;

                if (w.fx.items[i].kind != RUN_SEND || m->kind != MSG_JOINED)
                    continue;
                assert_int_equal(m->round, round);
                assert_in_range(m->world, w.min, w.max);
                assert_in_range(m->rank, 0, m->world - 1);
                assert_false(ranks[m->rank]);
                ranks[m->rank] = true;
            }
        }
        world_fini(&w);
    }
}

static void a_step_without_memory_is_the_last(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct world w = { .min = 2, .max = 2, .now = { 1, 1 } };
        int rc = 0;

        w.run = run_new(span_str("run"), NULL);
        if (!w.run)
            continue;
        mem_fail_from(0);
        settings_for(&w, w.settings, sizeof w.settings);
        mem_fail_from(f.nth);
        for (uint32_t p = 0; rc == 0 && p < 2; p++) {
            rc = say(&w, p, hello_of(&w, p));
            if (rc == 0)
                rc = join(&w, p);
            assert_true(rc == 0 || rc == MUSTER_ENOMEM);
        }
        world_fini(&w);
    }
}

static void messages_round_trip(void **state)
{
    struct run_msg m = { .kind = MSG_HELLO,
                         .run_id = span_str("r"),
                         .addr = span_str("a"),
                         .pid = -3,
                         .nonce = UINT64_MAX,
                         .settings = span_str("min=1"),
                         .order = WIRE_BY_KEY,
                         .rank_order_key = 5,
                         .round = -1,
                         .world = 1 };
    struct run_msg got;
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(msg_encode(&b, &m), 0);
    for (size_t n = 0; n < buf_len(&b); n++)
        assert_int_equal(msg_decode(span_of(buf_data(&b), n), &got, NULL),
                         MUSTER_EPROTO);
    assert_int_equal(msg_decode(buf_span(&b), &got, NULL), 0);
    assert_true(span_eq(got.run_id, m.run_id) && span_eq(got.settings, m.settings));
    assert_int_equal(got.pid, -3);
    assert_true(got.nonce == UINT64_MAX && got.rank_order_key == 5 && got.round == -1);
    assert_int_equal(buf_u8(&b, 0), 0); /* A later version has one more field. */
    assert_int_equal(msg_decode(buf_span(&b), &got, NULL), 0);
    assert_int_equal(got.world, 1);
    b.mem[b.head + 1] = MSG_KIND_COUNT; /* And one more kind. */
    assert_int_equal(msg_decode(buf_span(&b), &got, NULL), 0);
    assert_int_equal(got.kind, MSG_NONE);
    b.mem[b.head] = WIRE_VERSION - 1;
    assert_int_equal(msg_decode(buf_span(&b), &got, NULL), MUSTER_EPROTO);
    buf_fini(&b);
}

/* Each number at the end of its range, and one beyond it. */
static void numbers_have_a_range(void **state)
{
    const struct {
        struct run_msg m;
        bool good;
    } rows[] = {
        { { MSG_JOINED, .round = WIRE_ROUND_MAX }, true },
        { { MSG_JOINED, .round = WIRE_ROUND_MAX + INT64_C(1) }, false },
        { { MSG_HELLO, .round = -1 }, true },
        { { MSG_HELLO, .round = INT64_MIN }, false },
        { { MSG_JOINED, .rank = INT64_MAX }, false },
        { { MSG_HELLO, .world = INT64_MAX }, false },
        { { MSG_NEWS, .what = WIRE_WAITING, .count = WIRE_MEMBER_WAITS }, true },
        { { MSG_JOINED, .count = WIRE_ALL_OURS }, true },
        { { MSG_JOIN, .count = INT64_MIN }, false },
    };
    struct run_msg got;
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        buf_init(&b, SIZE_MAX);
        assert_int_equal(msg_encode(&b, &rows[i].m), 0);
        if ((msg_decode(buf_span(&b), &got, NULL) == 0) != rows[i].good)
            fail_msg("row %zu: want %s", i, rows[i].good ? "taken" : "refused");
        buf_fini(&b);
    }
}

/* ---- messages of a peer are checked as they come in ---- */

static struct run_msg hello_in(struct world *w, uint32_t peer, int64_t round,
                               int64_t rank, int64_t world)
{
    return (struct run_msg){ .kind = MSG_HELLO,
                             .flags = MSG_SEATS,
                             .run_id = span_str("run"),
                             .addr = span_str("10.0.0.1"),
                             .pid = peer + 1,
                             .nonce = peer + 1,
                             .settings = span_str(w->settings),
                             .grace_ms = 60000,
                             .round = round,
                             .rank = rank,
                             .world = world };
}

static void an_impossible_round_is_refused(void **state)
{
    static const int64_t rounds[] = { INT64_MAX, INT64_MIN, -2,
                                      (int64_t)RDZV_MAX_ROUND + 1 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rounds); i++) {
        struct world w;

        world_init(&w, 1, 2);
        assert_int_equal(say(&w, 0, hello_in(&w, 0, rounds[i], 0, 1)), 0);
        assert_true(w.dropped[0]);
        assert_int_equal(seats_round(run_seats(w.run)), 0);
        assert_int_equal(seats_nodes(run_seats(w.run)), 0);
        world_fini(&w);
    }
}

/* After a restart of the host two nodes claim that they were rank 0. */
static void a_rank_is_resumed_once(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, 2);
    assert_int_equal(say(&w, 0, hello_in(&w, 0, 3, 0, 2)), 0);
    assert_int_equal(say(&w, 1, hello_in(&w, 1, 3, 0, 2)), 0);
    assert_int_equal(w.got[0][NEWS_EVICTED], 0);
    assert_int_equal(w.got[1][NEWS_EVICTED], 1);
    assert_int_equal(say(&w, 2, hello_in(&w, 2, 3, 1, 2)), 0);
    assert_int_equal(w.got[2][NEWS_EVICTED], 0);
    world_fini(&w);
}

/* The grace is what they ask for, but a node without a seat has nothing to come back
 * for. */
static void a_node_that_vanishes_after_hello_costs_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, 2);
    for (uint32_t i = 0; i < 3000; i++) {
        struct run_msg m = hello_in(&w, 0, -1, 0, 0);

        m.pid = i + 1;
        assert_int_equal(say(&w, 0, m), 0);
        assert_int_equal(feed(&w, (struct run_event){ .kind = RUN_GONE, .peer = 0 }),
                         0);
        assert_int_equal(seats_nodes(run_seats(w.run)), 0);
    }
    world_fini(&w);
}

static size_t bytes_held(void)
{
    const struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

/* More nodes than the driver would let in . Afterwards only the table
 * of connections and some room are left. */
static void a_crowd_that_vanishes_after_hello(void **state)
{
    enum { CROWD = 30000 };
    struct world w;
    size_t before, during, after;

    (void)state;
    world_init(&w, 1, 2);
    before = bytes_held();
    for (uint32_t i = 0; i < CROWD; i++) {
        struct run_msg m = hello_of(&w, i);
        const struct run_event ev = { RUN_MSG, .now = us_of(w.now), .peer = i,
                                      .msg = &m };

        assert_int_equal(run_step(w.run, &ev, &w.fx, NULL), 0);
    }
    assert_int_equal(seats_nodes(run_seats(w.run)), CROWD);
    during = bytes_held() - before;
    for (uint32_t i = 0; i < CROWD; i++) {
        const struct run_event ev = { RUN_GONE, .now = us_of(w.now), .peer = i };

        assert_int_equal(run_step(w.run, &ev, &w.fx, NULL), 0);
    }
    assert_int_equal(seats_nodes(run_seats(w.run)), 0);
    after = bytes_held() - before;
    print_message("%d nodes: %zu KiB while they are there, %zu KiB after\n", CROWD,
                  during >> 10, after >> 10);
    assert_true(during < (64u << 20) && after < (4u << 20));
    world_fini(&w);
}

/* Without a secret anybody may join and vanish, and ask to be waited for. */
static void a_crowd_that_joins_and_vanishes(void **state)
{
    enum { CROWD = 20000 };
    size_t before, most = 0;
    struct world w;

    (void)state;
    world_init(&w, 1, 2);
    before = bytes_held();
    for (uint32_t i = 0; i < CROWD; i++) {
        struct run_msg hello = hello_of(&w, i), join = { .kind = MSG_JOIN, .count = 1 };
        struct run_event ev = { RUN_MSG, .now = us_of(w.now), .peer = i % 7 };

        hello.grace_ms = 60000;
        ev.msg = &hello;
        assert_int_equal(run_step(w.run, &ev, &w.fx, NULL), 0);
        ev.msg = &join;
        assert_int_equal(run_step(w.run, &ev, &w.fx, NULL), 0);
        ev = (struct run_event){ RUN_GONE, .now = us_of(w.now), .peer = i % 7 };
        assert_int_equal(run_step(w.run, &ev, &w.fx, NULL), 0);
        most = MAX_OF(most, seats_nodes(run_seats(w.run)));
        w.now.mono_ms += i % 3 == 0;
    }
    print_message("%d nodes: %zu at once, %zu KiB\n", CROWD, most,
                  (bytes_held() - before) >> 10);
    assert_true(most <= 1100 && bytes_held() - before < (8u << 20));
    world_fini(&w);
}

/* The store ends with its host, but not while a node may be dialling again that has not
 * heard of the end. */
static void the_host_waits_for_nodes_cut_off_at_the_end(void **state)
{
    struct run_event ev = { RUN_GONE, .hung_up = true };
    struct world w;

    (void)state;
    world_init(&w, 4, 4);
    for (uint32_t p = 0; p < 4; p++)
        hello_join(&w, p);
    assert_int_equal(seats_awaits_until_ms(run_seats(w.run)), 0);
    (void)say(&w, 0, (struct run_msg){ .kind = MSG_CLOSE });
    gone(&w, 0); /* It knows of the end. */
    (void)say(&w, 1, (struct run_msg){ .kind = MSG_LEAVE });
    gone(&w, 1);
    ev.peer = 2; /* It was told, and closed the connection itself. */
    assert_int_equal(feed(&w, ev), 0);
    assert_int_equal(seats_awaits_until_ms(run_seats(w.run)), 0);
    gone(&w, 3); /* It may not have heard of the end. */
    assert_int_equal(seats_awaits_until_ms(run_seats(w.run)), w.now.mono_ms + 1000);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_impossible_round_is_refused),
        cmocka_unit_test(a_rank_is_resumed_once),
        cmocka_unit_test(a_node_that_vanishes_after_hello_costs_nothing),
        cmocka_unit_test(a_crowd_that_vanishes_after_hello),
        cmocka_unit_test(a_crowd_that_joins_and_vanishes),
        cmocka_unit_test(a_full_round_completes_at_once),
        cmocka_unit_test(ranks_of_the_workers),
        cmocka_unit_test(a_restart_is_not_a_rendezvous),
        cmocka_unit_test(otherwise_all_ask_for_the_next_round),
        cmocka_unit_test(a_node_that_has_not_heard_of_a_restart),
        cmocka_unit_test(a_failure_that_another_run_has_judged),
        cmocka_unit_test(a_round_that_falls_apart_before_it_begins),
        cmocka_unit_test(no_round_after_success),
        cmocka_unit_test(the_last_call_ends_an_elastic_round),
        cmocka_unit_test(later_rounds_do_not_wait_for_strangers),
        cmocka_unit_test(last_call_always),
        cmocka_unit_test(a_broken_connection_is_a_loss_after_its_grace),
        cmocka_unit_test(members_hear_that_one_of_them_waits),
        cmocka_unit_test(a_run_that_ended_while_a_node_was_away),
        cmocka_unit_test(a_world_of_ours_alone),
        cmocka_unit_test(a_short_break_is_not_a_loss),
        cmocka_unit_test(silence_is_a_loss),
        cmocka_unit_test(duplicates_and_other_settings_are_refused),
        cmocka_unit_test(settings_are_dropped_with_the_last_node),
        cmocka_unit_test(closed_stays_closed),
        cmocka_unit_test(the_host_waits_for_nodes_cut_off_at_the_end),
        cmocka_unit_test(a_restarted_host_goes_on),
        cmocka_unit_test(a_node_that_does_not_come_back_is_lost),
        cmocka_unit_test(users_order_counts_among_our_nodes),
        cmocka_unit_test(users_order_is_in_the_names_that_torch_sorts_by),
        cmocka_unit_test(torchrun_nodes_share_the_state),
        cmocka_unit_test(our_node_completes_a_round_with_torchrun),
        cmocka_unit_test(a_host_whose_clock_is_set_back),
        cmocka_unit_test(a_last_call_that_torchrun_took_back),
        cmocka_unit_test(an_answer_repeated_while_a_node_waits),
        cmocka_unit_test(an_answer_repeated_too_late),
        cmocka_unit_test(garbage_from_torchrun_changes_nothing),
        cmocka_unit_test(random_events),
        cmocka_unit_test(a_step_without_memory_is_the_last),
        cmocka_unit_test(messages_round_trip),
        cmocka_unit_test(numbers_have_a_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
