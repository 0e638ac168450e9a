/* test_dialogue.c - the machines that talk to a store: rank exchange, exit barrier,
 * workers' address, gathering. Three nodes on a small model of a store; each question
 * in turn is lost on its way, or answered in vain; memory fails at each allocation of
 * each step, which must then have changed nothing. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/core/master_addr.h"
#include "rendezvous/core/rank_exchange.h"
#include "rendezvous/core/static_join.h"
#include "store/core/gather.h"
#include "store/core/reserved.h"

#define NODES   3
#define ENTRIES 64

struct entry {
    char key[200], value[200];
};

enum fault { FAULT_NONE, FAULT_REQUEST, FAULT_REPLY, FAULT_RESTART };

struct node {
    union {
        struct store_dialogue dialogue;
        struct rank_exchange exchange;
        struct exit_barrier barrier;
        struct master_addr master;
        struct static_join join;
        struct gather gather;
    } m;
    enum dialogue_fx_kind end;
    bool asked; /* a question that waits for its answer */
    int served;
};

struct world {
    struct node nodes[NODES];
    dialogue_step step;
    size_t size; /* of the machine's struct */
    struct entry entries[ENTRIES];
    size_t count;
    struct now now;
    int questions, fault_at;
    enum fault fault;
    struct rdzv_node members[NODES];
    bool failing; /* try each step with failing memory first */
};

/* ---- the store ---- */

static struct entry *find(struct world *w, struct span key)
{
    for (size_t i = 0; i < w->count; i++) {
        if (span_eq(span_str(w->entries[i].key), key))
            return &w->entries[i];
    }
    return NULL;
}

static void put(struct world *w, struct span key, struct span value)
{
    struct entry *e = find(w, key);

    if (!e) {
        assert_true(w->count < ENTRIES && key.n < 200);
        e = &w->entries[w->count++];
        memcpy(e->key, key.p, key.n);
        e->key[key.n] = '\0';
    }
    assert_true(value.n < 200);
    memcpy(e->value, value.p, value.n);
    e->value[value.n] = '\0';
}

static bool has_all(struct world *w, struct c10d_list list)
{
    struct span key;

    while (c10d_list_next(&list, &key)) {
        const struct reserved r = reserved_parse(key);
        const struct entry *e = find(w, r.kind == RESERVED_IS_CHANGED ? r.key : key);

        if (r.kind == RESERVED_IS_CHANGED
                ? reserved_hash(e ? span_str(e->value) : span_str("")) == r.hash
                : !e)
            return false;
    }
    return true;
}

/* False: it blocks. */
static bool serve(struct world *w, const struct c10d_request *r, struct c10d_reply *out,
                  struct buf *bytes)
{
    struct c10d_list list = r->list;
    struct span key, value;
    struct entry *e = r->key.n ? find(w, r->key) : NULL;
    char number[24];

    *out = (struct c10d_reply){ .op = r->op };
    switch ((int)r->op) {
    case C10D_SET:
        put(w, r->key, r->value);
        return true;
    case C10D_MULTI_SET:
        while (c10d_list_next(&list, &key) && c10d_list_next(&list, &value))
            put(w, key, value);
        return true;
    case C10D_ADD:
        out->number = (e ? atoll(e->value) : 0) + r->number;
        (void)snprintf(number, sizeof number, "%lld", (long long)out->number);
        put(w, r->key, span_str(number));
        return true;
    case C10D_CHECK:
        out->number = has_all(w, list) ? 0 : 1;
        return true;
    case C10D_WAIT:
        return has_all(w, list);
    case C10D_GET:
        if (e)
            out->value = span_str(e->value);
        return e;
    case C10D_MULTI_GET:
        if (!has_all(w, list))
            return false;
        while (c10d_list_next(&list, &key))
            assert_int_equal(c10d_list_add(bytes, span_str(find(w, key)->value)), 0);
        out->list = (struct c10d_list){ buf_span(bytes), r->list.count };
        return true;
    }
    fail_msg("op %d", (int)r->op);
    return false;
}

/* ---- the driver ---- */

/* A step that runs out of memory says so, and the machine can still be finished. */
static void try_without_memory(struct world *w, struct node *n,
                               const struct dialogue_event *ev)
{
    for (unsigned long nth = 1; nth < 200; nth++) {
        struct dialogue_fx fx = { .kind = DIALOGUE_NOTHING };
        struct node before = *n;
        const struct buf list = n->m.dialogue.list, value = n->m.dialogue.value;
        const unsigned long count = mem_count();
        int rc;

        /* On a copy whose buffers are its own, since a step that succeeds frees them.
         */
        buf_init(&n->m.dialogue.list, SIZE_MAX);
        buf_init(&n->m.dialogue.value, SIZE_MAX);
        assert_int_equal(buf_append_span(&n->m.dialogue.list, buf_span(&list)), 0);
        assert_int_equal(buf_append_span(&n->m.dialogue.value, buf_span(&value)), 0);
        mem_fail_from(nth);
        rc = w->step(&n->m.dialogue, ev, &fx);
        mem_fail_from(0);
        assert_true(rc == MUSTER_ENOMEM || rc == 0);
        dialogue_fini(&n->m.dialogue);
        if (w->step == gather_step)
            text_list_fini(&n->m.gather.texts);
        *n = before;
        if (rc == 0 && mem_count() - count < nth + 2)
            return;
    }
}

static void feed(struct world *w, struct node *n, struct dialogue_event ev)
{
    struct dialogue_fx fx = { .kind = DIALOGUE_NOTHING };

    ev.now = w->now;
    if (w->failing)
        try_without_memory(w, n, &ev);
    assert_int_equal(w->step(&n->m.dialogue, &ev, &fx), 0);
    n->asked = fx.kind == DIALOGUE_ASK;
    if (fx.kind == DIALOGUE_DO) {
        const bool probe = fx.what == MASTER_PROBE;

        n->served += !probe;
        feed(w, n,
             (struct dialogue_event){ .kind = DIALOGUE_ANSWER,
                                      .number = 20000 + (n - w->nodes),
                                      .status = probe ? MUSTER_EREFUSED : 0 });
    } else if (fx.kind != DIALOGUE_ASK && fx.kind != DIALOGUE_NOTHING) {
        n->end = fx.kind;
    }
}

static void break_off(struct world *w, struct node *n)
{
    feed(w, n,
         (struct dialogue_event){ .kind = DIALOGUE_ANSWER,
                                  .status = MUSTER_EHANGUP,
                                  .text = "Connection reset by peer" });
}

/* The question, if it can be answered now. */
static bool answer(struct world *w, struct node *n)
{
    const struct store_dialogue *t = &n->m.dialogue;
    const bool harmed = w->questions == w->fault_at;
    struct c10d_reply reply;
    struct buf bytes;
    bool done = true;

    if (harmed && w->fault == FAULT_REQUEST) {
        w->questions++;
        break_off(w, n);
        return true;
    }
    buf_init(&bytes, SIZE_MAX);
    for (size_t i = 0; i < t->count && done; i++)
        done = serve(w, &t->parts[i], &reply, &bytes);
    if (done && harmed && w->fault == FAULT_REPLY) {
        w->questions++;
        break_off(w, n);
    } else if (done) {
        w->questions++;
        feed(w, n, (struct dialogue_event){ .kind = DIALOGUE_ANSWER, .reply = &reply });
    }
    buf_fini(&bytes);
    return done;
}

/* The server comes back empty: all connections broke. */
static void restart(struct world *w)
{
    w->count = 0;
    w->questions++;
    for (size_t i = 0; i < NODES; i++) {
        if (w->nodes[i].asked)
            break_off(w, &w->nodes[i]);
    }
}

static void play(struct world *w)
{
    for (size_t i = 0; i < NODES; i++)
        feed(w, &w->nodes[i], (struct dialogue_event){ .kind = DIALOGUE_BEGIN });
    for (int turn = 0; turn < 20000; turn++) {
        size_t over = 0;
        bool moved = false;

        for (size_t i = 0; i < NODES; i++) {
            struct node *n = &w->nodes[i];

            over += n->end != DIALOGUE_NOTHING;
            if (n->end != DIALOGUE_NOTHING)
                continue;
            if (w->fault == FAULT_RESTART && w->questions == w->fault_at) {
                restart(w);
                moved = true;
            } else if (n->asked) {
                moved |= answer(w, n);
            } else if (w->now.mono_ms >= dialogue_deadline(&n->m.dialogue)) {
                feed(w, n, (struct dialogue_event){ .kind = DIALOGUE_TIMER });
                moved = true;
            }
        }
        if (over == NODES)
            return;
        w->now.mono_ms += 5;
        for (size_t i = 0; i < NODES && !moved && turn % 600 == 599; i++) {
            if (w->nodes[i].asked && w->nodes[i].end == DIALOGUE_NOTHING)
                feed(w, &w->nodes[i],
                     (struct dialogue_event){ .kind = DIALOGUE_ANSWER,
                                              .status = MUSTER_ETIMEDOUT,
                                              .text = "timed out" });
        }
    }
    fail_msg("they wait for ever");
}

static void world_init(struct world *w, dialogue_step step, size_t size)
{
    static const char *const names[NODES] = { "10.0.0.1", "10.0.0.2", "10.0.0.3" };

    memset(w, 0, sizeof *w);
    w->step = step;
    w->size = size;
    w->fault_at = -1;
    w->now.mono_ms = 1000;
    for (size_t i = 0; i < NODES; i++) {
        w->members[i] = (struct rdzv_node){ span_str(names[i]), (int64_t)i, 0 };
        dialogue_init(&w->nodes[i].m.dialogue);
    }
}

static void world_fini(struct world *w)
{
    for (size_t i = 0; i < NODES; i++)
        dialogue_fini(&w->nodes[i].m.dialogue);
}

/* ---- the machines ---- */

static void exchange_init(struct world *w)
{
    world_init(w, rank_exchange_step, sizeof(struct rank_exchange));
    for (int64_t i = 0; i < NODES; i++) {
        struct rank_exchange *x = &w->nodes[i].m.exchange;

        x->role = "default";
        x->rank = i;
        x->world = NODES;
        x->nproc = i + 1;
        x->timeout_ms = 60000;
        x->can_rejoin = true;
    }
}

static void exchange_check(struct world *w)
{
    int rejoin = 0;

    for (size_t i = 0; i < NODES; i++) {
        const struct rank_range *r = &w->nodes[i].m.exchange.range;

        rejoin += w->nodes[i].end == DIALOGUE_REJOIN;
        if (w->nodes[i].end == DIALOGUE_REJOIN)
            continue;
        assert_int_equal(w->nodes[i].end, DIALOGUE_DONE);
        assert_int_equal(r->base_rank, i * (i + 1) / 2);
        assert_int_equal(r->world_size, 6);
    }
    /* Only a server that forgot what some had read already makes the rest look for them
     * in another round. */
    assert_true(rejoin == 0 || w->fault == FAULT_RESTART);
    assert_true(w->now.mono_ms < 30000);
}

static void barrier_init(struct world *w)
{
    world_init(w, exit_barrier_step, sizeof(struct exit_barrier));
    for (int64_t i = 0; i < NODES; i++) {
        w->nodes[i].m.barrier.rank = i;
        w->nodes[i].m.barrier.world = NODES;
    }
}

static void barrier_check(struct world *w)
{
    const struct entry *e = find(w, span_str(RANKS_MEMBERS_KEY));

    for (size_t i = 0; i < NODES; i++)
        assert_int_equal(w->nodes[i].end, DIALOGUE_DONE);
    assert_non_null(e);
    assert_true(atoll(e->value) <= NODES); /* Nobody is counted twice. */
}

static void master_init(struct world *w)
{
    world_init(w, master_addr_step, sizeof(struct master_addr));
    for (int64_t i = 0; i < NODES; i++) {
        struct master_addr *m = &w->nodes[i].m.master;

        m->run_id = "run";
        (void)snprintf(m->addr, sizeof m->addr, "10.0.0.%d", (int)i + 1);
        m->share = true;
        m->timeout_ms = 60000;
        m->rank = i;
        m->members = w->members;
        m->count = NODES;
    }
}

static void master_check(struct world *w)
{
    for (size_t i = 0; i < NODES; i++) {
        const struct node *n = &w->nodes[i];

        assert_int_equal(n->served, i == 0 ? 1 : 0);
        if (n->end == DIALOGUE_REJOIN && i > 0 && w->fault == FAULT_RESTART)
            continue;
        assert_int_equal(n->end, DIALOGUE_DONE);
        assert_string_equal(n->m.master.known.host, "10.0.0.1");
        assert_int_equal(n->m.master.known.port, 20000);
    }
    assert_true(w->now.mono_ms < 30000);
}

static void count_init(struct world *w)
{
    world_init(w, static_join_step, sizeof(struct static_join));
    for (int64_t i = 0; i < NODES; i++) {
        struct static_join *c = &w->nodes[i].m.join;

        c->rank = i;
        c->world = NODES;
        c->timeout_ms = 600000;
        (void)snprintf(c->token, sizeof c->token, STATIC_JOIN_KEY "%d/token", (int)i);
    }
}

static void count_check(struct world *w)
{
    for (size_t i = 0; i < NODES; i++)
        assert_int_equal(w->nodes[i].end, DIALOGUE_DONE);
    assert_string_equal(find(w, span_str(STATIC_JOIN_KEY))->value, "3");
}

static void gather_init(struct world *w)
{
    static const char *const texts[NODES] = { "a 1", "", "c\n3" };

    world_init(w, gather_step, sizeof(struct gather));
    for (int64_t i = 0; i < NODES; i++) {
        struct gather *g = &w->nodes[i].m.gather;

        (void)snprintf(g->prefix, sizeof g->prefix, "p/");
        g->rank = i;
        g->world = NODES;
        g->text = span_str(texts[i]);
        g->timeout_ms = 60000;
        g->can_rejoin = true;
        g->what = "this";
    }
}

static void gather_check(struct world *w)
{
    for (size_t i = 0; i < NODES; i++) {
        struct gather *g = &w->nodes[i].m.gather;

        if (w->nodes[i].end == DIALOGUE_REJOIN && w->fault == FAULT_RESTART)
            continue;
        assert_int_equal(w->nodes[i].end, DIALOGUE_DONE);
        assert_int_equal(g->texts.count, NODES);
        assert_string_equal(g->texts.items[0], "a 1");
        assert_string_equal(g->texts.items[1], "");
        assert_string_equal(g->texts.items[2], "c\n3");
        text_list_fini(&g->texts);
    }
    assert_true(w->now.mono_ms < 30000);
}

static const struct machine {
    const char *name;
    void (*init)(struct world *w);
    void (*check)(struct world *w);
    bool forgets; /* a server that comes back empty does no lasting harm */
} machines[] = {
    { "rank exchange", exchange_init, exchange_check, true },
    { "exit barrier", barrier_init, barrier_check, false },
    { "workers' address", master_init, master_check, true },
    { "static_join", count_init, count_check, false },
    { "gathering", gather_init, gather_check, true },
};

static void all_is_well(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(machines); i++) {
        struct world *w = mem_calloc(1, sizeof *w);

        machines[i].init(w);
        play(w);
        machines[i].check(w);
        world_fini(w);
        mem_free(w);
    }
}

static void a_break_at_any_question(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(machines); i++) {
        for (enum fault f = FAULT_REQUEST; f <= FAULT_RESTART; f++) {
            int at = 0, questions = 1;

            for (; at < questions && (f != FAULT_RESTART || machines[i].forgets);
                 at++) {
                struct world *w = mem_calloc(1, sizeof *w);

                machines[i].init(w);
                w->fault = f;
                w->fault_at = at;
                play(w);
                machines[i].check(w);
                questions = w->questions;
                world_fini(w);
                mem_free(w);
            }
        }
    }
}

static void memory_fails_and_nothing_has_changed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(machines); i++) {
        for (int at = -1; at < 6; at++) {
            struct world *w = mem_calloc(1, sizeof *w);

            machines[i].init(w);
            w->failing = true;
            w->fault = FAULT_REQUEST;
            w->fault_at = at;
            play(w);
            machines[i].check(w);
            world_fini(w);
            mem_free(w);
        }
    }
}

/* What a step of node 2 comes to, told where the workers' store of the round is. */
static enum dialogue_fx_kind told(struct master_addr *m, uint64_t round,
                                  const char *host)
{
    struct dialogue_event ev = { .kind = DIALOGUE_BEGIN };
    struct dialogue_fx fx = { 0 };
    struct c10d_reply reply = { 0 };
    struct buf bytes;

    buf_init(&bytes, SIZE_MAX);
    master_addr_reset(m);
    m->round = round;
    assert_int_equal(master_addr_step(&m->dialogue, &ev, &fx), 0);
    if (fx.kind == DIALOGUE_ASK && host) {
        assert_int_equal(c10d_list_add(&bytes, span_str(host)), 0);
        assert_int_equal(c10d_list_add(&bytes, span_str("20000")), 0);
        reply.list = (struct c10d_list){ buf_span(&bytes), 2 };
        ev = (struct dialogue_event){ .kind = DIALOGUE_ANSWER, .reply = &reply };
        m->dialogue.asking = true;
        assert_int_equal(master_addr_step(&m->dialogue, &ev, &fx), 0);
        assert_int_equal(fx.kind, DIALOGUE_DONE);
    }
    buf_fini(&bytes);
    return fx.kind;
}

/* Rank 0 may use the store of another member, as long as that is there; it need not be
 * the same in the next round. Its own store it keeps. */
static void a_server_that_rank_0_has_taken_over(void **state)
{
    const struct rdzv_node members[] = { { span_str("a"), 1, 0 },
                                         { span_str("b"), 2, 0 },
                                         { span_str("c"), 3, 0 } };
    struct master_addr m = { .run_id = "run",
                             .share = true,
                             .timeout_ms = 60000,
                             .rank = 2,
                             .members = members,
                             .count = 3 };

    (void)state;
    dialogue_init(&m.dialogue);
    assert_int_equal(told(&m, 1, "b"), DIALOGUE_DONE);
    assert_int_equal(told(&m, 2, NULL), DIALOGUE_ASK);
    m.dialogue.asking = false;
    assert_int_equal(told(&m, 2, "a"), DIALOGUE_DONE);
    assert_int_equal(told(&m, 3, NULL), DIALOGUE_DONE);
    dialogue_fini(&m.dialogue);
}

/* A worker of a node that was lost must not find the workers of the next round. But
 * what a node of torchrun may remember stays where it is. */
static void a_group_of_our_own_has_a_server_for_each_round(void **state)
{
    const struct rdzv_node members[] = { { span_str("a"), 1, 0 },
                                         { span_str("b"), 2, 0 } };
    struct dialogue_event ev = { .kind = DIALOGUE_BEGIN };
    struct dialogue_fx fx = { 0 };
    struct master_addr m = { .run_id = "run",
                             .share = true,
                             .timeout_ms = 60000,
                             .rank = 1,
                             .all_read = true,
                             .members = members,
                             .count = 2 };

    (void)state;
    dialogue_init(&m.dialogue);
    assert_int_equal(told(&m, 1, "a"), DIALOGUE_DONE);
    assert_int_equal(told(&m, 2, NULL), DIALOGUE_ASK); /* It may be another one. */
    m.dialogue.asking = false;
    m.rank = 0;
    m.round = 3;
    master_addr_reset(&m);
    assert_true(master_addr_moves(&m));
    assert_int_equal(master_addr_step(&m.dialogue, &ev, &fx), 0);
    assert_true(fx.kind == DIALOGUE_DO &&
                fx.what == MASTER_SERVE); /* not what it knows */
    m.dialogue.asking = false;

    m.rank = 1;
    m.all_read = false; /* torchrun's have come */
    assert_int_equal(told(&m, 4, NULL), DIALOGUE_DONE);
    m.all_read = true; /* and gone: they may come back */
    master_addr_reset(&m);
    assert_false(master_addr_moves(&m));
    dialogue_fini(&m.dialogue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_well),
        cmocka_unit_test(a_server_that_rank_0_has_taken_over),
        cmocka_unit_test(a_group_of_our_own_has_a_server_for_each_round),
        cmocka_unit_test(a_break_at_any_question),
        cmocka_unit_test(memory_fails_and_nothing_has_changed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
