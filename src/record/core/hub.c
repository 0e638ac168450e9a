/* hub.c - see hub.h. Reads: all or nothing, effects, nodes, entries, lost nodes,
 * rounds, phases, failures, questions, clocks, time, the step. */
#include "record/core/hub.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "record/core/judge.h"
#include "record/core/phase_times.h"

#define QUICK_PINGS 4u     /* right after ATTACH */
#define DRIFT_PPM   100    /* how far two quartz clocks may run apart */
#define UNKNOWN_US  500000 /* how unsure a time is without a measurement */
#define MOST_REPORT 4096u  /* bytes of a node's exit codes */
#define MOST_TEXT   2048u  /* bytes of why a node was lost */
#define RETRY_US    100000 /* after a TIMER for which there was no memory */
#define MOST_NUMBER                                                                    \
    (UINT64_MAX / 2) /* of an entry that a node can know: ours go on from there */

struct hub_node {
    uint32_t number; /* 0: an observer */
    uint32_t peer;
    uint64_t nonce;
    bool here;      /* attached now */
    bool hung_up;   /* its connection is gone, which is still to be acted on */
    bool gone;      /* left or lost, and not expected back */
    bool left;      /* it said goodbye */
    bool broke;     /* lost because its connection broke, not because it fell silent */
    bool inside;    /* in the process that serves the store: its clock is ours */
    bool announced; /* in a NODES entry */
    char *host, *addr; /* owned */
    int64_t pid, nproc;
    uint64_t last_seq; /* of its PUBLISHes */
    uint64_t heard_us;
    uint64_t lost_by_us; /* MONO_NEVER: it is here */
    uint64_t lost_us;    /* when it was given up */

    bool measured;
    int64_t offset_us;     /* its monotonic clock ahead of ours */
    int64_t wall_ahead_us; /* its wall clock ahead of ours */
    uint64_t rtt_us, measured_us;
    uint64_t slow_us; /* the slowest round trip of late */
    uint64_t ping_us; /* when the last PING was sent; 0: answered */
    unsigned quick;

    int64_t seats, seat;         /* SEAT: of round seats - 1; 0: none yet */
    int64_t round, first, count; /* RANKS; round -1: none yet */
    bool reported;               /* its workers of `round` have exited, */
    bool clean;                  /* and all exited with 0 by themselves */
    bool moved;                  /* it has stopped them for the next round, */
    int64_t moved_us;            /* at this time by our wall clock, or before */
    bool own_budget;
    bool judged;       /* with a budget of its own: since it began its attempt, */
    int64_t judged_us; /* and when it last was, by our wall clock */
    char *codes;       /* owned; as REPORTED had them */
    uint16_t owes;     /* a bit for each of hub.asks that it has still to answer */

    bool changed;         /* in this step; then *was has what it was before it */
    struct hub_node *was; /* behind this one, in the same memory */
    struct hub_node *next_changed; /* borrowed */
};

struct hub_ask {
    bool on;
    uint64_t id, seq; /* ours; the asker's */
    uint32_t peer;
    uint64_t due_us;
    size_t pending;    /* nodes that owe an answer */
    size_t nodes;      /* there were so many when it was asked */
    size_t asked;      /* of them, so far */
    uint64_t slice_us; /* when the next are; MONO_NEVER: all have been */
    uint64_t value;    /* of the question */
    uint8_t *text;     /* owned: its name, and behind it its bytes */
    size_t name_size, size;
};

_Static_assert(HUB_ASKS <= 8 * sizeof((struct hub_node){ 0 }.owes), "a bit for each");

struct hub {
    char *run_id; /* owned */
    const struct trace *trace;
    struct record record;
    struct hub_node **nodes; /* owned, as is each */
    size_t count, size;
    uint32_t next_number;
    size_t here;
    int64_t max_restarts; /* of whoever serves the store, else of the first node */
    bool has_budget;
    uint64_t ping_due_us;
    size_t pinged;        /* of the nodes, in this look */
    bool ping_any;        /* of those was there */
    uint64_t lost_due_us; /* no node's lost_by_us is earlier */
    size_t hint;          /* where to look first for the node of a message */
    size_t unannounced;
    size_t hung_up; /* nodes */
    uint64_t floor; /* the highest number that any agent knows */

    struct {
        int64_t number; /* -1: none yet */
        int64_t expected;
        uint64_t due_us; /* MONO_NEVER: recorded, or none */
        bool over;       /* RESTART or VERDICT was told */
    } round;
    struct {
        bool on;
        int64_t round;
        bool final, own_budget, stop;
        uint32_t node;       /* whose worker failed first */
        int64_t used, total; /* own_budget: of the node */
        uint64_t due_us, began_us;
        struct judge_list failures;
    } end;
    struct {
        int64_t round;    /* -1: none yet */
        int64_t reported; /* nodes that have told all of theirs */
        bool done;        /* the entry was made: later times make another one */
        uint64_t due_us;
        struct phase_times times;
    } phases;
    uint32_t last_peer; /* wants to know when it is the last one; last_seq != 0 */
    uint64_t last_seq;
    struct hub_ask asks[HUB_ASKS];
    uint64_t next_ask;
    struct buf text; /* of what this step says; has all its memory from the start */
    struct hub_now now;

    bool starved;             /* in this step an allocation has failed */
    uint64_t retry_us;        /* no TIMER is due before */
    struct hub_node *changed; /* in this step; a list */
    struct hub *was;          /* owned: this struct as it was before the step */
};

static const struct job_msg no_msg = { JOB_NONE };

/* ---- new and free ---- */

struct hub *hub_new(struct span run_id, const struct trace *trace)
{
    struct hub *h = mem_calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    h->was = mem_calloc(1, sizeof *h);
    buf_init(&h->text, MOST_TEXT);
    if (!h->run_id || !h->was || !buf_room(&h->text, MOST_TEXT)) {
        hub_free(h);
        return NULL;
    }
    h->trace = trace;
    record_init(&h->record);
    h->next_number = 1;
    h->next_ask = 1;
    h->round.number = -1;
    h->round.due_us = h->end.due_us = h->ping_due_us = h->lost_due_us = MONO_NEVER;
    h->phases.round = -1;
    h->phases.due_us = MONO_NEVER;
    return h;
}

static void node_free(struct hub_node *n)
{
    mem_free(n->host);
    mem_free(n->addr);
    mem_free(n->codes);
    mem_free(n);
}

void hub_free(struct hub *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->count; i++)
        node_free(h->nodes[i]);
    for (size_t i = 0; i < HUB_ASKS; i++)
        mem_free(h->asks[i].text);
    phase_times_fini(&h->phases.times);
    judge_list_fini(&h->end.failures);
    mem_free(h->nodes);
    mem_free(h->run_id);
    mem_free(h->was);
    record_fini(&h->record);
    buf_fini(&h->text);
    mem_free(h);
}

const struct record *hub_record(const struct hub *h)
{
    return &h->record;
}

bool hub_next_peer(const struct hub *h, size_t *i, uint32_t *peer)
{
    while (*i < h->count) {
        const struct hub_node *n = h->nodes[(*i)++];

        if (n->here) {
            *peer = n->peer;
            return true;
        }
    }
    return false;
}

size_t hub_peers(const struct hub *h)
{
    return h->here;
}

/* ---- all or nothing ---- */

/* A step changes memory as it goes, and what cannot be allocated sets h->starved. Then
 * all that it has changed is taken back. For that the hub and each node that changes
 * are copied first (the copies' memory is there from the start), and what they owned
 * before is freed only once the step has succeeded. */
static void step_begin(struct hub *h)
{
    assert(!h->changed && !h->starved);
    *h->was = *h;
}

/* Before any change to a node. */
static void touch(struct hub *h, struct hub_node *n)
{
    if (n->changed)
        return;
    *n->was = *n;
    n->changed = true;
    n->next_changed = h->changed;
    h->changed = n;
}

static void step_commit(struct hub *h)
{
    for (struct hub_node *n = h->changed; n; n = n->next_changed) {
        n->changed = false;
        if (n->was->codes != n->codes)
            mem_free(n->was->codes);
    }
    h->changed = NULL;
    for (size_t k = 0; k < HUB_ASKS; k++)
        if (h->was->asks[k].text != h->asks[k].text)
            mem_free(h->was->asks[k].text);
    judge_list_release(&h->was->end.failures, &h->end.failures);
    phase_times_release(&h->was->phases.times, &h->phases.times);
    record_prune(&h->record, h->was->record.last);
}

static void step_undo(struct hub *h)
{
    struct hub *const was = h->was;

    for (struct hub_node *n = h->changed, *next; n; n = next) {
        next = n->next_changed;
        if (n->codes != n->was->codes)
            mem_free(n->codes);
        *n = *n->was;
    }
    for (size_t i = was->count; i < h->count; i++)
        node_free(h->nodes[i]);
    for (size_t k = 0; k < HUB_ASKS; k++)
        if (h->asks[k].text != was->asks[k].text)
            mem_free(h->asks[k].text);
    judge_list_release(&h->end.failures, &was->end.failures);
    phase_times_release(&h->phases.times, &was->phases.times);
    record_undo(&h->record, &was->record);
    was->nodes = h->nodes; /* Room that it has gained may stay. */
    was->size = h->size;
    was->record = h->record;
    *h = *was;
}

/* ---- effects ---- */

void hub_fx_fini(struct hub_fx *fx)
{
    if (!fx)
        return;
    mem_free(fx->items);
    *fx = (struct hub_fx){ 0 };
}

static void put(struct hub *h, struct hub_fx *fx, struct hub_effect e)
{
    struct hub_effect *items = fx->items;

    if (fx->count == fx->size)
        items = mem_grow_to(fx->items, &fx->size, fx->count, sizeof *items);
    if (!items) {
        h->starved = true;
        return;
    }
    fx->items = items;
    fx->items[fx->count++] = e;
}

static void send_to(struct hub *h, struct hub_fx *fx, uint32_t peer, struct job_msg msg)
{
    put(h, fx, (struct hub_effect){ .kind = HUB_SEND, .peer = peer, .msg = msg });
}

static void drop(struct hub *h, struct hub_fx *fx, uint32_t peer, const char *why)
{
    put(h, fx,
        (struct hub_effect){
            .kind = HUB_DROP, .peer = peer, .msg = { .bytes = span_str(why) } });
}

/* ---- nodes ---- */

/* Thousands of nodes answer roughly in their order, so the search begins at the node
 * that was found last. */
static struct hub_node *node_of_peer(struct hub *h, uint32_t peer)
{
    for (size_t k = 0, i = h->hint; k < h->count; k++, i++) {
        if (i >= h->count)
            i = 0;
        if (h->nodes[i]->here && h->nodes[i]->peer == peer) {
            h->hint = i;
            return h->nodes[i];
        }
    }
    return NULL;
}

static struct hub_node *node_of_nonce(const struct hub *h, uint64_t nonce)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->nonce == nonce)
            return h->nodes[i];
    return NULL;
}

static bool number_taken(const struct hub *h, uint32_t number)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->number == number)
            return true;
    return false;
}

static bool in_round(const struct hub_node *n, int64_t round)
{
    return n->number != 0 && n->round == round;
}

static int add_node(struct hub *h, const struct job_msg *m, struct hub_node **out)
{
    struct hub_node *n;

    if (h->count == h->size) {
        const size_t size = h->size ? 2 * h->size : 16;
        struct hub_node **nodes = mem_realloc_array(h->nodes, size, sizeof *nodes);

        if (!nodes)
            return MUSTER_ENOMEM;
        h->nodes = nodes;
        h->size = size;
    }
    n = mem_calloc(2, sizeof *n);
    if (!n)
        return MUSTER_ENOMEM;
    n->was = n + 1;
    n->host = mem_strndup((const char *)m->host.p, MIN_OF(m->host.n, 255));
    n->addr = mem_strndup((const char *)m->addr.p, MIN_OF(m->addr.n, 255));
    if (!n->host || !n->addr) {
        node_free(n);
        return MUSTER_ENOMEM;
    }
    assert(h->count < h->size && h->count < HUB_NODES);
    n->nonce = m->nonce;
    n->pid = m->pid;
    n->nproc = m->nproc;
    n->round = -1;
    n->lost_by_us = MONO_NEVER;
    h->nodes[h->count++] = n;
    *out = n;
    return 0;
}

/* ---- entries ---- */

static void announce(struct hub *h, struct hub_fx *fx);

/* Numbers the entry, keeps it and passes it on. */
static void emit(struct hub *h, struct hub_fx *fx, struct record_entry *e)
{
    if (e->kind != RECORD_NODES && h->unannounced)
        announce(h, fx);
    e->number = MAX_OF(h->record.last, h->floor) + 1;
    assert(e->number > h->record.last);
    if (e->at_us == 0)
        e->at_us = h->now.wall_us;
    if (record_stage(&h->record, e) < 0)
        h->starved = true;
    put(h, fx, (struct hub_effect){ .kind = HUB_ENTRY, .number = e->number });
}

/* The body of an entry is as long as it may be at most, so that no line of it is lost
 * for another reason than its length. */
static bool body_begin(struct hub *h, struct buf *b)
{
    buf_init(b, RECORD_BODY_MAX);
    if (!buf_room(b, RECORD_BODY_MAX))
        h->starved = true;
    return !h->starved;
}

/* One entry announces many nodes: if a thousand come at once, a thousand entries for a
 * thousand nodes would be a million messages. */
static void announce(struct hub *h, struct hub_fx *fx)
{
    struct record_entry e = { .kind = RECORD_NODES, .round = h->round.number };
    struct buf b;

    if (!body_begin(h, &b)) {
        buf_fini(&b);
        return;
    }
    for (size_t i = 0; i < h->count && h->unannounced; i++) {
        struct hub_node *n = h->nodes[i];
        const struct record_node line = { .number = n->number,
                                          .host = span_str(n->host),
                                          .addr = span_str(n->addr),
                                          .pid = n->pid,
                                          .nproc = n->nproc,
                                          .offset_us = n->wall_ahead_us,
                                          .unsure_us = (int64_t)n->rtt_us / 2 };

        if (n->announced || n->number == 0)
            continue;
        if (record_nodes_print(&b, &line) < 0) {
            e.body = buf_span(&b);
            emit(h, fx, &e);
            e.at_us = 0;
            buf_clear(&b);
            (void)record_nodes_print(&b, &line);
        }
        touch(h, n);
        n->announced = true;
        h->unannounced--;
        e.count++;
    }
    e.body = buf_span(&b);
    assert(h->unannounced == 0);
    if (buf_len(&b))
        emit(h, fx, &e);
    buf_fini(&b);
}

/* ---- lost nodes ---- */

/* "node3 was lost (its connection broke); ranks 8 to 15 were there", into h->text. why
 * NULL: it left, or nobody knows more than that it has been silent. */
static struct span lost_text(struct hub *h, const struct hub_node *n, const char *why)
{
    const uint64_t until = n->lost_us ? n->lost_us : h->now.mono_us;
    const struct span said = record_farewell(&h->record, n->number);

    buf_clear(&h->text);
    (void)buf_printf(&h->text, "%s %s (", n->host,
                     n->left ? "left the job" : "was lost");
    if (why)
        (void)buf_append_str(&h->text, why);
    else if (n->left)
        (void)buf_append_span(&h->text, said.n ? said : span_str("it said goodbye"));
    else
        (void)buf_printf(&h->text, "no sign of life for %.1f s",
                         (double)(until - n->heard_us) / 1e6);
    (void)buf_append_str(&h->text, ")");
    if (n->round >= 0 && n->count > 1)
        (void)buf_printf(&h->text, "; ranks %" PRId64 " to %" PRId64 " were there",
                         n->first, n->first + n->count - 1);
    else if (n->round >= 0 && n->count == 1)
        (void)buf_printf(&h->text, "; rank %" PRId64 " was there", n->first);
    return buf_span(&h->text);
}

static void blame_node(struct hub *h, struct record_entry *e, const struct hub_node *n)
{
    e->cause = CAUSE_NODE_LOST;
    e->node = n->number;
    e->rank = e->local_rank = e->pid = -1;
    e->host = span_str(n->host);
    e->place = e->path = e->body = (struct span){ 0 };
    e->at_us = h->now.wall_us - (int64_t)(h->now.mono_us - n->heard_us);
    e->text = lost_text(h, n, n->broke && !n->left ? "its connection broke" : NULL);
}

/* ---- rounds ---- */

static int by_first_rank(const void *a, const void *b)
{
    const struct hub_node *const *x = a, *const *y = b;

    return ((*x)->first > (*y)->first) - ((*x)->first < (*y)->first);
}

/* The nodes of a round in rank order; owned by the caller. */
static struct hub_node **round_nodes(struct hub *h, int64_t round, size_t *count)
{
    struct hub_node **sorted = mem_calloc(h->count + 1, sizeof *sorted);
    size_t n = 0;

    if (!sorted)
        h->starved = true;
    for (size_t i = 0; sorted && i < h->count; i++)
        if (in_round(h->nodes[i], round))
            sorted[n++] = h->nodes[i];
    if (n)
        qsort(sorted, n, sizeof *sorted, by_first_rank);
    *count = n;
    return sorted;
}

/* When the job's coordinator itself is lost, its successor has only the record: a node
 * of the last round that has never attached here is gone. */
static void notify_vanished(struct hub *h, struct hub_fx *fx)
{
    struct record_entry last, e;
    struct record_ranks r;
    struct record_node n;
    struct span body;
    struct buf copy;

    if (!record_find(&h->record, RECORD_ROUND, -1, &last) ||
        last.round >= h->round.number)
        return;
    buf_init(&copy, SIZE_MAX);
    if (buf_append_span(&copy, last.body) < 0) /* The record may let the entry go. */
        h->starved = true;
    for (body = buf_span(&copy); record_ranks_next(&body, &r);) {
        if (number_taken(h, r.node) || !record_host_of(&h->record, r.node, &n) ||
            record_node_ended(&h->record, r.node))
            continue;
        struct hub_node node = { .number = r.node,
                                 .host = mem_strndup((const char *)n.host.p, n.host.n),
                                 .round = last.round,
                                 .first = r.first,
                                 .count = r.count,
                                 .heard_us = h->now.mono_us };
        if (!node.host) {
            h->starved = true;
            break;
        }
        e = (struct record_entry){ .kind = RECORD_LOST, .count = r.count };
        blame_node(h, &e, &node);
        e.text = lost_text(h, &node,
                           r.node == last.node ? "it hosted the rendezvous"
                                               : "it did not come back");
        e.round = last.round;
        e.rank = r.first;
        emit(h, fx, &e);
        mem_free(node.host);
    }
    buf_fini(&copy);
}

static void record_round(struct hub *h, struct hub_fx *fx)
{
    struct record_entry e = { .kind = RECORD_ROUND, .round = h->round.number };
    struct hub_node **nodes;
    struct buf b;
    size_t count;

    h->round.due_us = MONO_NEVER;
    notify_vanished(h, fx);
    nodes = round_nodes(h, h->round.number, &count);
    body_begin(h, &b);
    for (size_t i = 0; i < count; i++) {
        const struct record_ranks r = { nodes[i]->number, nodes[i]->first,
                                        nodes[i]->count };

        e.total += r.count;
        (void)record_ranks_print(&b, &r); /* total counts the ranks that do not fit. */
    }
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->inside && h->nodes[i]->here)
            e.node = h->nodes[i]->number;
    e.count = (int64_t)count;
    e.body = buf_span(&b);
    e.code = h->record.restarts;
    emit(h, fx, &e);
    buf_fini(&b);
    mem_free(nodes);
}

static void on_ranks(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                     const struct job_msg *m)
{
    size_t have = 0;

    if (m->count < 0 || m->rank < 0 || m->round < 0)
        return;
    touch(h, n);
    n->round = m->round;
    n->first = m->rank;
    n->count = m->count;
    n->reported = n->clean = n->moved = n->judged = false;
    n->own_budget = m->flags & JOB_OWN_BUDGET;
    n->codes = NULL;
    if (n->own_budget) /* There is one round, in which each node restarts by itself. */
        h->round.over = false;
    if (m->round > h->round.number) {
        h->round.number = m->round;
        h->round.expected = m->total;
        h->round.over = false;
        h->round.due_us = h->now.mono_us + HUB_GATHER_US;
    }
    assert(h->round.number >= m->round);
    for (size_t i = 0; i < h->count; i++)
        have += in_round(h->nodes[i], h->round.number);
    if (h->round.due_us != MONO_NEVER && (int64_t)have >= h->round.expected)
        record_round(h, fx);
}

/* ---- phases ---- */

static void emit_phases(struct hub *h, struct hub_fx *fx)
{
    struct record_entry e = { .kind = RECORD_PHASES,
                              .round = h->phases.round,
                              .rank = -1,
                              .count = h->phases.reported };
    struct buf b;

    h->phases.done = true;
    h->phases.due_us = MONO_NEVER;
    body_begin(h, &b);
    if (phase_times_print(&h->phases.times, &b) < 0)
        h->starved = true;
    e.body = buf_span(&b);
    if (buf_len(&b))
        emit(h, fx, &e);
    buf_fini(&b);
}

/* Kept until all nodes of the round have told theirs; then it is one entry. */
static void on_phase(struct hub *h, struct hub_fx *fx, const struct hub_node *n,
                     const struct job_msg *m)
{
    if (m->round != n->round || m->round < h->phases.round || !is_phase_name(m->name))
        return;
    if (m->round > h->phases.round) {
        emit_phases(h, fx);
        h->phases.round = m->round;
        h->phases.reported = 0;
        h->phases.done = false;
        h->phases.times = (struct phase_times){ 0 };
        h->phases.due_us = h->now.mono_us + HUB_GATHER_US;
    }
    if (phase_times_add(&h->phases.times, m->name, m->value, n->number) < 0)
        h->starved = true;
    h->phases.reported += m->rank == 0;
    if ((h->phases.done || h->phases.reported >= h->round.expected) && m->rank == 0)
        emit_phases(h, fx);
}

/* A node that loses the coordinator can then say which node went with it. */
static void notify_host(struct hub *h, struct hub_fx *fx, const struct hub_node *host,
                        uint32_t peer)
{
    assert(host->inside && host->seats > 0);
    send_to(h, fx, peer,
            (struct job_msg){
                .kind = JOB_HOST, .round = host->seats - 1, .rank = host->seat });
}

static void on_seat(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                    const struct job_msg *m)
{
    if (m->round < 0 || m->round == INT64_MAX)
        return;
    touch(h, n);
    n->seats = m->round + 1;
    n->seat = m->rank;
    for (size_t i = 0; n->inside && i < h->count; i++)
        if (h->nodes[i]->here && h->nodes[i] != n)
            notify_host(h, fx, n, h->nodes[i]->peer);
}

/* ---- failures ---- */

static void end_round(struct hub *h, struct hub_fx *fx, int64_t round,
                      enum record_cause cause)
{
    struct record_entry e = { .kind = RECORD_ENDED, .round = round, .cause = cause };
    struct hub_node **nodes;
    struct buf b;
    size_t count;

    body_begin(h, &b);
    nodes = round_nodes(h, round, &count);
    struct record_codes run = { 0 }, more;
    for (size_t i = 0; i < count; i++) {
        struct span codes = span_str(nodes[i]->codes ? nodes[i]->codes : "");

        e.total += nodes[i]->count;
        while (record_codes_next(&codes, &more))
            record_codes_add(&b, &run, more);
    }
    record_codes_end(&b, &run);
    e.count = h->end.failures.failed;
    e.code = (int64_t)count;
    e.body = buf_span(&b);
    emit(h, fx, &e);
    buf_fini(&b);
    mem_free(nodes);
    h->round.over = true;
}

/* Of the nodes of the round, one that is gone, or has not answered since we asked. */
static const struct hub_node *lost_node(const struct hub *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct hub_node *n = h->nodes[i];

        if (!in_round(n, h->end.round) || n->reported || n->moved)
            continue;
        if (!n->here || n->gone || (n->ping_us && n->ping_us <= h->end.began_us))
            return n;
    }
    return NULL;
}

/* Nodes hear at different times that others came or went. The workers of one that has
 * heard are stopped, and workers elsewhere fail because of it. Whatever they say about
 * it, a round that is over has nothing to fail. */
static bool is_late(const struct hub *h, const struct record_entry *f)
{
    const bool echo = judge_is_echo(f);

    for (size_t i = 0; i < h->count; i++) {
        const struct hub_node *n = h->nodes[i];

        if (in_round(n, f->round) && n->moved &&
            (echo || f->at_us + f->unsure_us >= n->moved_us))
            return true;
    }
    return false;
}

/* Called when all nodes have reported, or their time is up. */
static void judge(struct hub *h, struct hub_fx *fx)
{
    struct record_entry e = { .kind = RECORD_VERDICT, .cause = CAUSE_EXIT };
    const struct hub_node *lost = lost_node(h);
    const struct judge_list *const l = &h->end.failures;
    const bool echo = l->count == 0 || judge_is_echo(&l->worst[0]);
    bool counts = true;

    assert(h->end.on);
    for (size_t i = 0; i < l->count; i++) {
        struct record_entry f = l->worst[i];

        f.count = i && judge_simultaneous(&l->worst[0], &f);
        f.total = 0;
        emit(h, fx, &f);
    }
    if (l->count)
        e = l->worst[0];
    if (echo && lost) {
        blame_node(h, &e, lost);
        counts = h->end.own_budget; /* A lost node is not a failure of the job's. */
    } else if (l->count && is_late(h, &l->worst[0])) {
        e.cause = CAUSE_MEMBERSHIP;
        counts = false;
    }
    end_round(h, fx, h->end.round, e.cause);
    e.round = h->end.round;
    e.number = 0;
    const int64_t total = h->end.own_budget ? h->end.total : h->max_restarts;
    const int64_t used = h->end.own_budget ? h->end.used : h->record.restarts;
    e.kind = (counts && used >= total) || h->end.stop ? RECORD_VERDICT : RECORD_RESTART;
    e.total = total;
    e.count = e.kind == RECORD_RESTART ? used + counts : used;
    emit(h, fx, &e);
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->number == h->end.node) {
            touch(h, h->nodes[i]);
            h->nodes[i]->judged = true;
            h->nodes[i]->judged_us = h->now.wall_us;
        }
    h->end.on = false;
    h->end.due_us = MONO_NEVER;
    h->end.failures = (struct judge_list){ 0 }; /* The commit frees what was in it. */
}

static void judge_if_all_reported(struct hub *h, struct hub_fx *fx)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct hub_node *n = h->nodes[i];

        /* With a budget of its own, a node that has restarts left goes on alone. */
        if (h->end.own_budget && !h->end.final && n->number != h->end.node)
            continue;
        if (in_round(n, h->end.round) && !n->reported && !n->moved && !n->gone)
            return;
    }
    judge(h, fx);
}

static void ping(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    assert(n->here);
    touch(h, n);
    if (n->ping_us == 0)
        n->ping_us = h->now.mono_us;
    send_to(h, fx, n->peer,
            (struct job_msg){ .kind = JOB_PING,
                              .seq = h->now.mono_us,
                              .mono_us = (int64_t)h->now.mono_us });
}

static void begin_end(struct hub *h, struct hub_fx *fx, const struct record_entry *f,
                      bool own_budget)
{
    struct record_entry e = { .kind = RECORD_ENDING, .round = f->round };
    const bool echo = judge_is_echo(f);

    assert(!h->end.on && h->end.failures.count == 0);
    h->end.on = true;
    h->end.round = f->round;
    h->end.own_budget = own_budget;
    h->end.node = f->node;
    h->end.used = f->count;
    h->end.total = f->total;
    h->end.began_us = h->now.mono_us;
    h->end.due_us = h->now.mono_us + HUB_JUDGE_US;
    e.total = own_budget ? f->total : h->max_restarts;
    e.count = own_budget ? f->count : h->record.restarts;
    /* --hang=TIME:stop was given; or the program cannot be executed, and could not be
     * the next time either. */
    h->end.stop = (f->cause == CAUSE_HANG && f->code != 0) || f->cause == CAUSE_START;
    h->end.final = e.count >= e.total || h->end.stop;
    /* A failure that only says that a peer is gone may come from a lost node, or from
     * one that has moved on, and neither is counted as a restart. Whether it does is
     * known at the end of the round. */
    e.code = !h->end.final ? 0 : (echo || is_late(h, f)) && !own_budget ? 2 : 1;
    e.cause = f->cause;
    e.node = f->node;
    e.host = f->host;
    e.rank = f->rank;
    e.text = f->text;
    if (!own_budget || h->end.final)
        emit(h, fx, &e);
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->here && !h->nodes[i]->inside &&
            in_round(h->nodes[i], f->round))
            ping(h, fx, h->nodes[i]);
}

static void on_failed(struct hub *h, struct hub_fx *fx, const struct hub_node *n,
                      const struct record_entry *f)
{
    const bool own_budget = n->own_budget;

    if (h->end.on && h->end.round != f->round)
        judge(h, fx);
    /* A node tells of a worker as soon as it has failed, and again, with its last
     * words, when the others have ended: it may have been judged between the two. If
     * its connection broke since then, it has told its ranks again, as for an attempt.
     */
    if (!h->end.on && own_budget &&
        (n->judged || f->at_us + f->unsure_us <= n->judged_us))
        return;
    if (!h->end.on && !own_budget &&
        (f->round < h->round.number || (h->round.over && f->round == h->round.number)))
        return; /* The verdict on that round stands, or the job went on without it. */
    if (!h->end.on)
        begin_end(h, fx, f, own_budget);
    if (judge_list_keep(&h->end.failures, f) < 0)
        h->starved = true;
}

static void succeed_if_all_have(struct hub *h, struct hub_fx *fx, int64_t round)
{
    struct record_entry e = { .kind = RECORD_VERDICT,
                              .cause = CAUSE_SUCCEEDED,
                              .round = round,
                              .rank = -1,
                              .local_rank = -1,
                              .pid = -1 };
    int64_t reported = 0;

    for (size_t i = 0; i < h->count; i++) {
        const struct hub_node *n = h->nodes[i];

        if (!in_round(n, round))
            continue;
        if (!n->clean)
            return;
        reported++;
    }
    if (h->round.over || reported < h->round.expected)
        return;
    end_round(h, fx, round, CAUSE_SUCCEEDED);
    e.count = h->record.restarts;
    e.total = h->max_restarts;
    emit(h, fx, &e);
}

static void on_reported(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                        const struct job_msg *m)
{
    if (m->round != n->round)
        return;
    touch(h, n);
    n->reported = true;
    n->clean = m->count == 0 && m->total == 0;
    n->codes = mem_strndup((const char *)m->bytes.p, MIN_OF(m->bytes.n, MOST_REPORT));
    if (!n->codes)
        h->starved = true;
    if (h->end.on && h->end.round == n->round)
        judge_if_all_reported(h, fx);
    else if (n->clean && n->round == h->round.number)
        succeed_if_all_have(h, fx, n->round);
}

/* ---- publishing ---- */

/* When it happened, by our clock. The sender's wall clock may be hours off, or be set
 * while we run; the time between two of its readings is what we believe. */
static void translate(const struct hub *h, const struct hub_node *n,
                      const struct job_msg *m, struct record_entry *e)
{
    int64_t age = e->at_us == 0 ? 0 : m->wall_us - e->at_us;
    int64_t at = (int64_t)h->now.mono_us;
    int64_t unsure = UNKNOWN_US;

    age = MAX_OF(age, 0);
    if (n->inside) {
        unsure = 0;
    } else if (n->measured) {
        const int64_t since = (int64_t)(h->now.mono_us - n->measured_us);

        at = MIN_OF(m->mono_us - n->offset_us, at);
        unsure = (int64_t)n->rtt_us / 2 + since / 1000000 * DRIFT_PPM + 1;
    }
    e->at_us = h->now.wall_us - ((int64_t)h->now.mono_us - at) - age;
    e->unsure_us = unsure;
}

static void on_moved(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                     const struct job_msg *m)
{
    struct record_entry e = { 0 };

    if (m->round != n->round || n->moved)
        return;
    translate(h, n, m, &e);
    touch(h, n);
    n->moved = true;
    n->moved_us = e.at_us - e.unsure_us;
    if (h->end.on && h->end.round == n->round)
        judge_if_all_reported(h, fx);
}

static void lose(struct hub *h, struct hub_fx *fx, struct hub_node *n, bool broke);

/* A node waited for another round in vain. If a node was lost since the last round,
 * that is the reason; if several were, the first of them. If others have gone on
 * meanwhile in a round without this node, it was not the job that failed. */
static void on_gave_up(struct hub *h, struct hub_fx *fx, const struct record_entry *f)
{
    struct record_entry e = *f, there;
    struct hub_node *lost = NULL;
    int64_t more = 0;

    if (f->round != h->round.number || h->end.on ||
        record_find(&h->record, RECORD_VERDICT, -1, &there))
        return;
    for (size_t i = 0; i < h->count; i++) {
        struct hub_node *n = h->nodes[i];
        const bool mute =
            n->ping_us && h->now.mono_us - n->ping_us > HUB_ANSWER_US && !n->inside;

        if (!in_round(n, f->round) || !(n->gone || mute))
            continue;
        more += lost != NULL;
        if (!lost || n->heard_us < lost->heard_us)
            lost = n;
    }
    if (lost) {
        if (!lost->gone)
            lose(h, fx, lost, false);
        blame_node(h, &e, lost);
        if (more)
            (void)buf_printf(&h->text, ", and %" PRId64 " more node%s after it", more,
                             more > 1 ? "s" : "");
        e.text = buf_span(&h->text);
        e.body = f->text;
    }
    end_round(h, fx, f->round, e.cause);
    e.count = h->record.restarts;
    e.total = h->max_restarts;
    emit(h, fx, &e);
}

static void leave(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    touch(h, n);
    n->left = true;
    n->gone = true;
    if (h->end.on && in_round(n, h->end.round))
        judge_if_all_reported(h, fx);
}

static void on_publish(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                       const struct job_msg *m)
{
    struct muster_error err;
    struct record_entry e;

    assert(n->here && n->number != 0);
    send_to(h, fx, n->peer, (struct job_msg){ .kind = JOB_ENTRY, .seq = m->seq });
    if (m->seq <= n->last_seq)
        return; /* It was sent twice because the connection broke in between. */
    touch(h, n);
    n->last_seq = m->seq;
    if (record_entry_decode(m->bytes, &e, &err) < 0) {
        drop(h, fx, n->peer, "an entry of the record that cannot be read");
        return;
    }
    e.node = n->number;
    if (e.host.n == 0)
        e.host = span_str(n->host);
    translate(h, n, m, &e);
    if (e.kind == RECORD_FAILED) {
        on_failed(h, fx, n, &e);
        return;
    }
    if (e.kind == RECORD_VERDICT) {
        on_gave_up(h, fx, &e);
        return;
    }
    emit(h, fx, &e);
    if (e.kind == RECORD_LEFT)
        leave(h, fx, n);
}

static void on_offer(struct hub *h, struct hub_fx *fx, const struct job_msg *m)
{
    struct record_entry e;

    if (record_entry_decode(m->bytes, &e, NULL) < 0 || e.number > h->floor)
        return;
    put(h, fx, (struct hub_effect){ .kind = HUB_ENTRY, .number = e.number });
    /* Last: an entry between others is not taken back. */
    if (!h->starved && record_insert(&h->record, &e) < 0)
        h->starved = true;
}

/* ---- attaching and leaving ---- */

static void attached(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                     const struct job_msg *m)
{
    assert(n->here);
    touch(h, n);
    h->floor = MAX_OF(h->floor, MIN_OF(m->value, MOST_NUMBER));
    send_to(h, fx, n->peer,
            (struct job_msg){
                .kind = JOB_ATTACHED, .node = n->number, .value = h->record.last });
    /* It knows entries that we lack, since it was with another coordinator before. Our
     * numbers continue above its last one, and it offers what we lack. */
    if (m->value > h->record.last)
        send_to(h, fx, n->peer,
                (struct job_msg){ .kind = JOB_WANT, .value = h->record.last });
    else
        put(h, fx,
            (struct hub_effect){
                .kind = HUB_CATCH_UP, .peer = n->peer, .number = m->value });
    if (n->inside) {
        n->measured = true;
        n->measured_us = h->now.mono_us;
        return;
    }
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->inside && h->nodes[i]->here && h->nodes[i]->seats)
            notify_host(h, fx, h->nodes[i], n->peer);
    n->quick = QUICK_PINGS;
    ping(h, fx, n);
    if (h->ping_due_us == MONO_NEVER)
        h->ping_due_us = h->now.mono_us + HUB_PING_US;
}

static void ask_cancel(struct hub *h, uint32_t peer);
static void on_hung_up(struct hub *h, struct hub_fx *fx, struct hub_node *n);

static void on_attach(struct hub *h, struct hub_fx *fx, uint32_t peer,
                      const struct job_msg *m)
{
    struct hub_node *n = node_of_nonce(h, m->nonce);
    const bool observer = m->flags & JOB_OBSERVER;

    if (!n && h->count >= HUB_NODES) {
        drop(h, fx, peer, "the job has too many nodes");
        return;
    }
    if (!n && add_node(h, m, &n) < 0) {
        h->starved = true;
        return;
    }
    touch(h, n);
    if (n->hung_up)
        on_hung_up(h, fx, n);
    if (n->here && n->peer != peer) {
        drop(h, fx, n->peer, "the node has come back over another connection");
        ask_cancel(h, n->peer);
        h->here--;
    }
    if (!n->number && !observer) {
        const bool keeps = m->node && !number_taken(h, m->node);

        n->number = keeps ? m->node : h->next_number;
        h->next_number = MAX_OF(h->next_number, n->number + 1);
        h->unannounced++;
    }
    if (!(n->here && n->peer == peer))
        h->here++;
    n->here = true;
    n->gone = n->left = n->broke = false;
    n->lost_us = 0;
    n->peer = peer;
    n->lost_by_us = MONO_NEVER;
    n->ping_us = 0;
    n->heard_us = h->now.mono_us;
    n->inside = m->flags & JOB_SERVES;
    if (!observer && (!h->has_budget || m->flags & JOB_SERVES)) {
        h->max_restarts = m->total;
        h->has_budget = true;
    }
    attached(h, fx, n, m);
}

static void ask_node_gone(struct hub *h, struct hub_fx *fx, struct hub_node *n);

static void lose(struct hub *h, struct hub_fx *fx, struct hub_node *n, bool broke)
{
    struct record_entry e = { .kind = RECORD_LOST,
                              .round = n->round,
                              .count = n->count,
                              .code = n->seat,
                              .total = n->seats };

    assert(n->number != 0);
    touch(h, n);
    n->lost_by_us = MONO_NEVER;
    n->gone = true;
    n->broke = broke;
    n->lost_us = h->now.mono_us;
    blame_node(h, &e, n);
    e.rank = n->round >= 0 ? n->first : -1;
    e.pid = n->pid;
    emit(h, fx, &e);
    if (h->end.on && in_round(n, h->end.round))
        judge_if_all_reported(h, fx);
}

static void notify_last(struct hub *h, struct hub_fx *fx)
{
    if (h->last_seq == 0)
        return;
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->here && h->nodes[i]->number &&
            h->nodes[i]->peer != h->last_peer)
            return;
    send_to(h, fx, h->last_peer,
            (struct job_msg){ .kind = JOB_SYNCED, .seq = h->last_seq });
    h->last_seq = 0;
}

/* A living node is back after a pause of 20 ms and four round trips. It gets twice
 * that, reckoned with the slowest round trip of late, and a quarter of a second on top.
 */
static uint64_t grace_us(const struct hub_node *n)
{
    return n->measured ? MIN_OF(HUB_QUICK_US + 8 * n->slow_us, HUB_GRACE_US)
                       : HUB_GRACE_US;
}

/* Its connection is no longer its own, and may soon be another's. This much needs no
 * memory. */
static void hang_up(struct hub *h, struct hub_node *n)
{
    assert(n->here && h->here > 0);
    touch(h, n);
    n->here = false;
    h->here--;
    n->hung_up = true;
    h->hung_up++;
    ask_cancel(h, n->peer);
    if (h->last_seq && h->last_peer == n->peer)
        h->last_seq = 0;
}

/* What follows from that. Observers are forgotten. */
static void on_hung_up(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    assert(n->hung_up && h->hung_up > 0);
    touch(h, n);
    n->hung_up = false;
    h->hung_up--;
    ask_node_gone(h, fx, n);
    if (n->number == 0) {
        n->nonce = 0;
        n->gone = true;
        return;
    }
    notify_last(h, fx);
    if (n->gone)
        leave(h, fx, n);
    else
        n->lost_by_us = h->now.mono_us + grace_us(n);
    h->lost_due_us = MIN_OF(h->lost_due_us, n->lost_by_us);
}

static void on_hung_up_all(struct hub *h, struct hub_fx *fx)
{
    for (size_t i = 0; i < h->count && h->hung_up; i++)
        if (h->nodes[i]->hung_up)
            on_hung_up(h, fx, h->nodes[i]);
}

static void on_bye(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    hang_up(h, n);
    n->gone = true;
    on_hung_up(h, fx, n);
}

/* ---- questions ---- */

static unsigned ask_bit(const struct hub *h, const struct hub_ask *a)
{
    return 1u << (a - h->asks);
}

static void ask_forget(struct hub *h, struct hub_ask *a)
{
    assert(a->on && a->pending == 0);
    if (a->text != h->was->asks[a - h->asks].text)
        mem_free(a->text);
    *a = (struct hub_ask){ 0 };
}

static void ask_end(struct hub *h, struct hub_fx *fx, struct hub_ask *a)
{
    send_to(h, fx, a->peer, (struct job_msg){ .kind = JOB_ANSWERS_END, .seq = a->seq });
    ask_forget(h, a);
}

/* The node owes this answer no more. */
static void ask_settle(struct hub *h, struct hub_ask *a, struct hub_node *n)
{
    assert(a->on && a->pending > 0 && n->owes & ask_bit(h, a));
    touch(h, n);
    n->owes &= (uint16_t)~ask_bit(h, a);
    a->pending--;
}

static void ask_missing(struct hub *h, struct hub_fx *fx, struct hub_ask *a,
                        struct hub_node *n)
{
    ask_settle(h, a, n);
    send_to(h, fx, a->peer,
            (struct job_msg){ .kind = JOB_ANSWERED,
                              .seq = a->seq,
                              .node = n->number,
                              .value = 1,
                              .host = span_str(n->host) });
}

static void ask_node_gone(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    for (size_t k = 0; k < HUB_ASKS; k++) {
        struct hub_ask *a = &h->asks[k];

        if (!(n->owes & ask_bit(h, a)))
            continue;
        ask_missing(h, fx, a, n);
        if (a->pending == 0)
            ask_end(h, fx, a);
    }
}

/* The asker has gone: nobody wants to know. */
static void ask_cancel(struct hub *h, uint32_t peer)
{
    for (size_t k = 0; k < HUB_ASKS; k++) {
        struct hub_ask *a = &h->asks[k];

        if (!a->on || a->peer != peer)
            continue;
        for (size_t i = 0; i < a->nodes; i++)
            if (h->nodes[i]->owes & ask_bit(h, a))
                ask_settle(h, a, h->nodes[i]);
        ask_forget(h, a);
    }
}

static void ask_expire(struct hub *h, struct hub_fx *fx)
{
    for (size_t k = 0; k < HUB_ASKS; k++) {
        struct hub_ask *a = &h->asks[k];

        if (!a->on || a->due_us > h->now.mono_us)
            continue;
        for (size_t i = 0; i < a->nodes; i++)
            if (h->nodes[i]->owes & ask_bit(h, a))
                ask_missing(h, fx, a, h->nodes[i]);
        ask_end(h, fx, a);
    }
}

/* The next of those who are to be asked: all of ten thousand at once would keep the
 * store's other clients waiting. */
static void ask_slice(struct hub *h, struct hub_fx *fx, struct hub_ask *a)
{
    const size_t end = MIN_OF(a->asked + HUB_SLICE, a->nodes);
    assert(a->asked <= a->nodes && a->nodes <= h->count);
    for (; a->asked < end; a->asked++)
        if (h->nodes[a->asked]->owes & ask_bit(h, a))
            send_to(
                h, fx, h->nodes[a->asked]->peer,
                (struct job_msg){ .kind = JOB_QUESTION,
                                  .seq = a->id,
                                  .value = a->value,
                                  .name = span_of(a->text, a->name_size),
                                  .bytes = span_of(a->text + a->name_size, a->size) });
    a->slice_us = a->asked < a->nodes ? h->now.mono_us + HUB_SLICE_US : MONO_NEVER;
}

static void on_ask(struct hub *h, struct hub_fx *fx, const struct hub_node *n,
                   const struct job_msg *m)
{
    struct hub_ask *a = NULL;

    for (size_t k = 0; k < HUB_ASKS && !a; k++)
        if (!h->asks[k].on)
            a = &h->asks[k];
    if (!a) { /* Too many questions at once: this one gets no answers. */
        send_to(h, fx, n->peer,
                (struct job_msg){ .kind = JOB_ANSWERS_END, .seq = m->seq });
        return;
    }
    uint8_t *text = mem_calloc(1 + m->name.n + m->bytes.n, 1);
    if (!text) {
        h->starved = true;
        return;
    }
    if (m->name.n)
        memcpy(text, m->name.p, m->name.n);
    if (m->bytes.n)
        memcpy(text + m->name.n, m->bytes.p, m->bytes.n);
    *a = (struct hub_ask){ .on = true,
                           .id = h->next_ask++,
                           .seq = m->seq,
                           .peer = n->peer,
                           .due_us = h->now.mono_us + MIN_OF(m->value, 600000u) * 1000 +
                                     h->count / HUB_SLICE * HUB_SLICE_US,
                           .nodes = h->count,
                           .value = m->value,
                           .text = text,
                           .name_size = m->name.n,
                           .size = m->bytes.n };
    for (size_t i = 0; i < h->count; i++) {
        if (!h->nodes[i]->here || !h->nodes[i]->number)
            continue;
        touch(h, h->nodes[i]);
        h->nodes[i]->owes |= (uint16_t)ask_bit(h, a);
        a->pending++;
    }
    if (a->pending == 0)
        ask_end(h, fx, a);
    else
        ask_slice(h, fx, a);
}

static void hub_on_answer(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                          const struct job_msg *m)
{
    for (size_t k = 0; k < HUB_ASKS; k++) {
        struct hub_ask *a = &h->asks[k];

        if (a->id != m->seq || !(n->owes & ask_bit(h, a)))
            continue;
        ask_settle(h, a, n);
        send_to(h, fx, a->peer,
                (struct job_msg){ .kind = JOB_ANSWERED,
                                  .seq = a->seq,
                                  .node = n->number,
                                  .value = m->value,
                                  .host = span_str(n->host),
                                  .bytes = m->bytes });
        if (a->pending == 0)
            ask_end(h, fx, a);
    }
}

/* ---- clocks ---- */

/* The node's clocks were read somewhere between our PING and now; in the middle, as far
 * as anybody can tell. The quickest answer of late is the best one. */
static void on_pong(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                    const struct job_msg *m)
{
    const uint64_t rtt = h->now.mono_us - MIN_OF(m->seq, h->now.mono_us);
    const bool stale = n->measured && h->now.mono_us - n->measured_us > 60000000u;

    touch(h, n);
    n->ping_us = 0;
    n->slow_us = MAX_OF(rtt, n->slow_us - n->slow_us / 8);
    if (!n->measured || stale || rtt <= n->rtt_us + n->rtt_us / 2) {
        n->offset_us = m->mono_us - (int64_t)(h->now.mono_us - rtt / 2);
        n->wall_ahead_us = m->wall_us - (h->now.wall_us - (int64_t)rtt / 2);
        n->rtt_us = rtt;
        n->measured = true;
        n->measured_us = h->now.mono_us;
    }
    if (n->quick && --n->quick)
        ping(h, fx, n);
    if (h->unannounced && n->number && !n->announced && n->quick == 0)
        announce(h, fx);
}

/* ---- time ---- */

static void on_ping_time(struct hub *h, struct hub_fx *fx)
{
    const size_t begin = h->pinged, end = MIN_OF(begin + HUB_SLICE, h->count);

    for (size_t i = begin; i < end; i++) {
        struct hub_node *n = h->nodes[i];

        if (!n->here || n->inside)
            continue;
        h->ping_any = true;
        if (h->now.mono_us - n->heard_us > HUB_SILENT_US) {
            drop(h, fx, n->peer, "the node has been silent for too long");
            hang_up(h, n);
            on_hung_up(h, fx, n);
            if (n->number)
                lose(h, fx, n, false);
            continue;
        }
        ping(h, fx, n);
    }
    h->pinged = end;
    if (end < h->count) {
        h->ping_due_us = h->now.mono_us + HUB_SLICE_US;
        return;
    }
    h->ping_due_us = h->ping_any ? h->now.mono_us + HUB_PING_US : MONO_NEVER;
    h->pinged = 0;
    h->ping_any = false;
}

static void on_loss_time(struct hub *h, struct hub_fx *fx)
{
    size_t left = HUB_SLICE; /* The others are due at once in the next step. */

    for (size_t i = 0; i < h->count && left; i++)
        if (h->nodes[i]->lost_by_us <= h->now.mono_us) {
            lose(h, fx, h->nodes[i], true);
            left--;
        }
    h->lost_due_us = MONO_NEVER;
    for (size_t i = 0; i < h->count; i++)
        h->lost_due_us = MIN_OF(h->lost_due_us, h->nodes[i]->lost_by_us);
}

static void on_time(struct hub *h, struct hub_fx *fx)
{
    on_hung_up_all(h, fx);
    if (h->round.due_us <= h->now.mono_us)
        record_round(h, fx);
    if (h->phases.due_us <= h->now.mono_us)
        emit_phases(h, fx);
    if (h->end.on && h->end.due_us <= h->now.mono_us)
        judge(h, fx);
    if (h->lost_due_us <= h->now.mono_us)
        on_loss_time(h, fx);
    ask_expire(h, fx);
    if (h->ping_due_us <= h->now.mono_us)
        on_ping_time(h, fx);
    for (size_t k = 0; k < HUB_ASKS; k++) /* last: what is sent is the ask's */
        if (h->asks[k].on && h->asks[k].slice_us <= h->now.mono_us)
            ask_slice(h, fx, &h->asks[k]);
}

uint64_t hub_deadline(const struct hub *h)
{
    uint64_t by = MIN_OF(MIN_OF(h->round.due_us, h->ping_due_us), h->phases.due_us);

    if (h->end.on)
        by = MIN_OF(by, h->end.due_us);
    for (size_t k = 0; k < HUB_ASKS; k++)
        if (h->asks[k].on)
            by = MIN_OF(by, MIN_OF(h->asks[k].due_us, h->asks[k].slice_us));
    by = h->hung_up ? 0 : MIN_OF(by, h->lost_due_us);
    return MAX_OF(by, h->retry_us);
}

/* ---- the step ---- */

static void on_msg(struct hub *h, struct hub_fx *fx, uint32_t peer,
                   const struct job_msg *m)
{
    struct hub_node *n = node_of_peer(h, peer);

    if (m->kind == JOB_ATTACH) {
        on_attach(h, fx, peer, m);
        return;
    }
    if (!n) {
        drop(h, fx, peer, "a job message before ATTACH");
        return;
    }
    touch(h, n);
    n->heard_us = h->now.mono_us;
    if (n->number == 0 && m->kind != JOB_ASK && m->kind != JOB_PONG &&
        m->kind != JOB_SYNC && m->kind != JOB_BYE)
        return; /* An observer has nothing to tell. */
    switch (m->kind) {
    case JOB_PUBLISH:
        on_publish(h, fx, n, m);
        return;
    case JOB_OFFER:
        on_offer(h, fx, m);
        return;
    case JOB_RANKS:
        on_ranks(h, fx, n, m);
        return;
    case JOB_REPORTED:
        on_reported(h, fx, n, m);
        return;
    case JOB_MOVED:
        on_moved(h, fx, n, m);
        return;
    case JOB_ASK:
        on_ask(h, fx, n, m);
        return;
    case JOB_ANSWER:
        hub_on_answer(h, fx, n, m);
        return;
    case JOB_PONG:
        on_pong(h, fx, n, m);
        return;
    case JOB_SYNC:
        send_to(h, fx, peer, (struct job_msg){ .kind = JOB_SYNCED, .seq = m->seq });
        return;
    case JOB_LAST:
        h->last_peer = peer;
        h->last_seq = m->seq;
        notify_last(h, fx);
        return;
    case JOB_BYE:
        on_bye(h, fx, n);
        return;
    case JOB_SEAT:
        on_seat(h, fx, n, m);
        return;
    case JOB_PHASE:
        on_phase(h, fx, n, m);
        return;
    case JOB_NONE:
    case JOB_ATTACH:
    case JOB_HOST:
    case JOB_ATTACHED:
    case JOB_ENTRY:
    case JOB_WANT:
    case JOB_QUESTION:
    case JOB_ANSWERED:
    case JOB_ANSWERS_END:
    case JOB_PING:
    case JOB_SYNCED:
    case JOB_REFUSED:
    case JOB_KIND_COUNT:
        return; /* Not said to a coordinator, or not known to this version. */
    }
}

/* What holds between two steps, whatever was said. */
static void check(const struct hub *h)
{
    assert(h->here <= h->count && h->count <= h->size && h->count <= HUB_NODES);
    assert(h->unannounced <= h->count);
    assert(h->end.failures.count <= RECORD_FAILED_MAX);
    assert((int64_t)h->end.failures.count <= h->end.failures.failed);
    assert(h->end.on || (h->end.failures.count == 0 && h->end.due_us == MONO_NEVER));
    assert(!h->end.on || h->end.due_us != MONO_NEVER);
    assert(h->next_number > 0 && h->next_ask > 0);
    for (size_t k = 0; k < HUB_ASKS; k++) {
        const struct hub_ask *a = &h->asks[k];

        assert(a->on == (a->text != NULL));
        assert(!a->on || (a->pending > 0 && a->pending <= a->nodes));
    }
}

static int step_end(struct hub *h, struct hub_fx *fx)
{
    const bool starved = h->starved;

    if (starved) {
        step_undo(h);
        fx->count = 0;
        trace(h->trace, TRACE_WARN,
              "run '%s': no memory for the record of the job; trying again", h->run_id);
    } else {
        step_commit(h);
    }
    check(h);
    return starved ? MUSTER_ENOMEM : 0;
}

/* That a connection is gone cannot be said again, since its number may belong to
 * another one then. So the node is hung up on in any case, and what follows from it is
 * done now, or else when there is memory. */
static void on_gone(struct hub *h, uint32_t peer)
{
    struct hub_node *n = node_of_peer(h, peer);

    step_begin(h);
    if (n)
        hang_up(h, n);
    assert(!h->starved);
    step_commit(h);
}

int hub_step(struct hub *h, const struct hub_event *ev, struct hub_fx *fx)
{
    int rc;

    fx->count = 0;
    h->now = ev->now;
    if (ev->kind == HUB_GONE)
        on_gone(h, ev->peer);
    step_begin(h);
    switch (ev->kind) {
    case HUB_MSG:
        on_msg(h, fx, ev->peer, ev->msg ? ev->msg : &no_msg);
        break;
    case HUB_GONE:
        on_hung_up_all(h, fx);
        break;
    case HUB_TIMER:
        on_time(h, fx);
        break;
    }
    rc = step_end(h, fx);
    if (ev->kind == HUB_MSG)
        return rc;
    h->retry_us = rc < 0 ? h->now.mono_us + RETRY_US : 0;
    return ev->kind == HUB_GONE ? 0 : rc;
}
