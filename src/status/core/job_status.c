/* job_status.c - combines the record and the answers of the nodes; see job_status.h. */
#include "status/core/job_status.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

#define NODES_MAX 200000u /* more than any record lists */

static const char *const job_words[] = {
#define JOB_STATE_WORD(name, word) [JOB_##name] = word,
    JOB_STATES(JOB_STATE_WORD)
#undef JOB_STATE_WORD
};

const char *job_state_word(enum job_state s)
{
    return (unsigned)s < JOB_STATE_COUNT ? job_words[s] : "unknown";
}

/* ---- nodes ---- */

/* The index of the node, or the one that it would get. */
static size_t node_position(const struct job_status *j, uint32_t number)
{
    size_t low = 0, high = j->count;

    if (j->count && j->nodes[j->count - 1].number < number)
        return j->count; /* Nearly always, nodes come in the order of their numbers. */
    while (low < high) {
        const size_t mid = low + (high - low) / 2;

        if (j->nodes[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct job_node *node_find(const struct job_status *j, uint32_t number)
{
    const size_t at = node_position(j, number);

    return at < j->count && j->nodes[at].number == number ? &j->nodes[at] : NULL;
}

/* Finds the node, or adds it. NULL if there is no memory, or too many nodes. */
static struct job_node *node_find_or_add(struct job_status *j, uint32_t number)
{
    const size_t at = node_position(j, number);

    if (at < j->count && j->nodes[at].number == number)
        return &j->nodes[at];
    if (j->count == NODES_MAX)
        return NULL;
    struct job_node *more = mem_grow_to(j->nodes, &j->size, j->count, sizeof *more);
    if (!more)
        return NULL;
    j->nodes = more;
    assert(at <= j->count && j->count < j->size);
    assert(at == 0 || j->nodes[at - 1].number < number);
    memmove(&j->nodes[at + 1], &j->nodes[at], (j->count - at) * sizeof *j->nodes);
    j->count++;
    j->nodes[at] = (struct job_node){ .number = number, .first_rank = -1 };
    return &j->nodes[at];
}

/* ---- the record ---- */

static int on_nodes(struct job_status *j, const struct record_entry *e)
{
    struct span body = e->body;
    struct record_node line;

    while (record_nodes_next(&body, &line)) {
        struct job_node *n = node_find_or_add(j, line.number);

        if (!n)
            return MUSTER_ENOMEM;
        n->host = line.host;
        n->addr = line.addr;
        n->agent_pid = line.pid;
        n->state = NODE_JOINING;
        n->since_us = e->at_us;
    }
    return 0;
}

/* The ranks of a round may come in several entries. */
static int on_round(struct job_status *j, const struct record_entry *e)
{
    struct span body = e->body;
    struct record_ranks line;

    j->ranks = e->total;
    j->nodes_in = e->count;
    while (record_ranks_next(&body, &line)) {
        struct job_node *n = node_find_or_add(j, line.node);

        if (!n)
            return MUSTER_ENOMEM;
        n->first_rank = line.first;
        n->ranks = line.count;
        n->coordinates = e->count > 1 && line.node == e->node;
        if (n->state == NODE_LOST || n->state == NODE_LEFT)
            continue;
        n->state = NODE_RUNNING;
        n->since_us = e->at_us;
    }
    j->state = JOB_RUNNING;
    j->since_us = e->at_us;
    return 0;
}

static void set_members(struct job_status *j, enum node_state state, int64_t at_us)
{
    for (size_t i = 0; i < j->count; i++) {
        struct job_node *n = &j->nodes[i];

        if (n->first_rank < 0 || n->state == NODE_LOST || n->state == NODE_LEFT)
            continue;
        n->state = state;
        n->since_us = at_us;
    }
}

static void on_end(struct job_status *j, const struct record_entry *e)
{
    const bool over = e->kind == RECORD_VERDICT;
    const bool succeeded = e->cause == CAUSE_SUCCEEDED;

    j->since_us = e->at_us;
    if (over) {
        j->have_verdict = true;
        j->verdict = *e;
        j->state = succeeded                   ? JOB_SUCCEEDED
                   : e->cause == CAUSE_STOPPED ? JOB_STOPPED
                                               : JOB_FAILED;
        set_members(j, NODE_ENDED, e->at_us);
        for (size_t i = 0; i < j->count; i++)
            j->nodes[i].succeeded = succeeded;
    } else if (e->kind == RECORD_ENDING) {
        j->state = JOB_STOPPING;
        set_members(j, NODE_STOPPING, e->at_us);
    } else {
        j->state = succeeded ? JOB_STOPPING : JOB_JOINING;
        set_members(j, succeeded ? NODE_FINISHING : NODE_JOINING, e->at_us);
    }
}

static void on_node_gone(struct job_status *j, const struct record_entry *e)
{
    struct job_node *n = node_find(j, e->node);

    if (!n)
        return;
    n->state = e->kind == RECORD_LOST ? NODE_LOST : NODE_LEFT;
    n->since_us = e->at_us;
    n->why = e->text;
}

static int on_entry(struct job_status *j, const struct record_entry *e)
{
    switch (e->kind) {
    case RECORD_NODES:
        return on_nodes(j, e);
    case RECORD_ROUND:
        return e->round == j->round ? on_round(j, e) : 0;
    case RECORD_LEFT:
    case RECORD_LOST:
        on_node_gone(j, e);
        break;
    case RECORD_ENDED:
    case RECORD_ENDING:
        if (e->round == j->round && !j->have_verdict)
            on_end(j, e);
        break;
    case RECORD_VERDICT:
        on_end(j, e);
        break;
    case RECORD_RESTART:
    case RECORD_NONE:
    case RECORD_PHASES:
    case RECORD_FAILED:
    case RECORD_NOTE:
    case RECORD_NOTICE:
    case RECORD_KIND_COUNT:
        break;
    }
    return 0;
}

static int read_record(struct job_status *j)
{
    const struct record *r = j->record;
    struct record_entry newest;
    int rc = 0;

    if (!r)
        return 0;
    j->entry_count = r->count;
    j->restarts = MAX_OF(j->restarts, r->restarts);
    j->rounds = r->rounds;
    j->failures = r->failures;
    j->lost = r->lost;
    if (r->began_us && r->began_us < j->began_us)
        j->began_us = r->began_us;
    /* Only the newest round's ranks count: with thousands of nodes and hundreds of
     * rounds the others would take long to read. */
    if (record_find(r, RECORD_ROUND, -1, &newest))
        j->round = newest.round;
    for (size_t i = 0; rc == 0 && i < r->count; i++) {
        const struct record_entry e = record_at(r, i);

        rc = on_entry(j, &e);
        if (e.reason && (e.kind == RECORD_RESTART || e.kind == RECORD_VERDICT)) {
            j->reason = e.reason;
            j->restarts_left = e.left;
            j->backoff_us = e.wait_us ? e.at_us + e.wait_us : 0;
            j->rule = e.rule;
        }
        if (e.kind == RECORD_ROUND)
            j->backoff_us = 0;
    }
    return rc;
}

/* ---- answers ---- */

/* What a node reported about itself. */
static void take_report(struct job_node *n, const struct node_status *told,
                        int64_t at_us)
{
    n->reported = true;
    n->heard_us = at_us;
    n->version = told->version;
    n->wait = told->wait;
    n->attempt = told->attempt;
    n->agent_memory = told->memory;
    n->store = told->store;
    n->gpus = told->gpus;
    n->gpu_count = told->gpu_count;
    n->workers = told->workers;
    n->worker_count = told->worker_count;
    n->alive = 0;
    n->cpu = n->memory = 0;
    for (size_t i = 0; i < told->worker_count; i++) {
        n->alive += worker_is_alive(told->workers[i].state);
        n->cpu += told->workers[i].cpu;
        n->memory += told->workers[i].memory;
    }
    if (n->state == NODE_LOST || n->state == NODE_LEFT || n->state == NODE_ENDED)
        return;
    if (told->state == NODE_UNKNOWN || at_us < n->since_us)
        return;
    n->state = told->state;
    /* A node that waits for its next round still reports the ranks of its last. */
    if (told->first_rank >= 0 && n->first_rank < 0 && told->state != NODE_SPARE &&
        told->state != NODE_JOINING) {
        n->first_rank = told->first_rank;
        n->ranks = (int64_t)told->worker_count;
    }
}

/* Adds this node if there is no record, or the record does not list it yet. */
static int add_self(struct job_status *j, const struct job_input *in)
{
    struct job_node *n;

    if (!in->own)
        return 0;
    n = in->self ? node_find(j, in->self) : NULL;
    if (!n) {
        n = node_find_or_add(j, in->self);
        if (!n)
            return MUSTER_ENOMEM;
        n->host = span_str(in->host);
        n->addr = span_str(in->addr);
        n->agent_pid = in->agent_pid;
        n->since_us = 0;
        n->state = NODE_UNKNOWN;
    }
    n->self = true;
    take_report(n, in->own, in->now_us);
    return 0;
}

/* If the record has no round yet, the state of the job follows from this node's own. */
static void conclude_state(struct job_status *j, int64_t began_us)
{
    static const enum job_state states[] = {
        [NODE_UNKNOWN] = JOB_JOINING,   [NODE_JOINING] = JOB_JOINING,
        [NODE_STARTING] = JOB_RUNNING,  [NODE_RUNNING] = JOB_RUNNING,
        [NODE_STOPPING] = JOB_STOPPING, [NODE_FINISHING] = JOB_STOPPING,
        [NODE_ENDED] = JOB_STOPPING,    [NODE_SPARE] = JOB_RUNNING,
        [NODE_LOST] = JOB_JOINING,      [NODE_LEFT] = JOB_JOINING,
    };
    const struct node_status *own = j->own;
    int64_t ours = 0;

    if (!own) {
        if (j->count == 0)
            j->state = JOB_SERVING;
        return;
    }
    for (size_t i = 0; i < j->count; i++)
        ours += j->nodes[i].first_rank >= 0;
    if (j->round < 0) {
        assert((size_t)own->state < ARRAY_LEN(states));
        j->round = own->round;
        j->state = states[own->state];
        j->since_us = began_us;
        j->nodes_in = ours;
        for (size_t i = 0; i < j->count; i++)
            j->ranks += j->nodes[i].ranks;
    }
    j->torch_nodes = MAX_OF(j->nodes_in - ours, 0);
}

/* Drops nodes that have left, and all but the newest of many lost ones: others have
 * replaced them, or they have come back under another number. */
static void drop_gone(struct job_status *j)
{
    size_t kept = 0, lost = 0;

    for (size_t i = j->count; i-- > 0;) {
        const struct job_node *n = &j->nodes[i];

        lost += n->state == NODE_LOST;
        if ((n->state == NODE_LEFT && !j->have_verdict && n->first_rank < 0) ||
            (n->state == NODE_LOST && lost > 64))
            j->nodes[i].number = UINT32_MAX;
    }
    for (size_t i = 0; i < j->count; i++)
        if (j->nodes[i].number != UINT32_MAX)
            j->nodes[kept++] = j->nodes[i];
    assert(kept <= j->count);
    j->count = kept;
}

int job_status_build(struct job_status *j, const struct job_input *in)
{
    int rc;

    *j = (struct job_status){
        .version = span_str(in->version ? in->version : muster_version()),
        .now_us = in->now_us,
        .alone = span_str(in->alone ? in->alone : ""),
        .host = span_str(in->host),
        .pid = in->agent_pid,
        .run_id = span_str(in->run_id),
        .backend = span_str(in->backend),
        .endpoint = span_str(in->endpoint),
        .began_us = in->began_us,
        .round = -1,
        .min_nodes = in->nnodes_min,
        .max_nodes = in->nnodes_max,
        .restarts = in->own ? in->own->attempt : 0,
        .max_restarts = in->max_restarts,
        .spares = span_str(in->spares ? in->spares : ""),
        .own = in->own,
        .record = in->record,
    };
    if (in->store)
        j->store = *in->store;
    rc = read_record(j);
    for (size_t i = 0; rc == 0 && i < in->answer_count; i++) {
        struct job_node *n = node_find(j, in->answers[i].node);

        if (n)
            take_report(n, &in->answers[i].status, in->answers[i].at_us);
    }
    if (rc == 0)
        rc = add_self(j, in);
    if (rc != 0) {
        job_status_fini(j);
        return rc;
    }
    drop_gone(j);
    conclude_state(j, in->began_us);
    return 0;
}

void job_status_fini(struct job_status *j)
{
    if (!j)
        return;
    mem_free(j->nodes);
    arena_fini(&j->arena);
    *j = (struct job_status){ 0 };
}

/* ---- what printers ask ---- */

enum worker_state job_worker_state(const struct job_node *n, size_t local_rank)
{
    if (n->state == NODE_LOST)
        return WORKER_LOST;
    if (local_rank < n->worker_count) {
        const enum worker_state s = n->workers[local_rank].state;
        const bool ran = s == WORKER_RUNNING || s == WORKER_STARTING;

        if (n->state == NODE_ENDED && ran) /* The report is from before the end. */
            return n->succeeded ? WORKER_SUCCEEDED : WORKER_ENDED;
        return s;
    }
    return n->state == NODE_RUNNING ? WORKER_RUNNING : WORKER_NONE;
}

size_t job_worker_count(const struct job_node *n)
{
    return n->reported || n->worker_count
               ? n->worker_count
               : (size_t)MIN_OF(n->ranks, (int64_t)JOB_WORKERS_LISTED);
}

size_t job_workers_listed(const struct job_status *j, const struct job_node *n)
{
    return j->ranks <= JOB_WORKERS_LISTED ? job_worker_count(n) : 0;
}

int64_t job_rank(const struct job_node *n, size_t local_rank)
{
    return n->first_rank < 0 ? -1 : n->first_rank + (int64_t)local_rank;
}

bool job_worker_has_code(enum worker_state s)
{
    return s == WORKER_SUCCEEDED || s == WORKER_FAILED || s == WORKER_ENDED;
}

struct record_entry job_entry(const struct job_status *j, size_t i)
{
    return j->record ? record_at(j->record, i) : j->entries[i];
}

bool job_is_store(const struct job_status *j)
{
    return j->state == JOB_SERVING && !j->own;
}

/* Whether a node of that name is known to be a spare. */
static bool is_spare(const struct job_status *j, struct span name)
{
    for (size_t i = 0; i < j->count; i++)
        if (j->nodes[i].state == NODE_SPARE &&
            (span_eq(j->nodes[i].host, name) || span_eq(j->nodes[i].addr, name)))
            return true;
    return false;
}

bool job_spare_next(const struct job_status *j, struct span *rest, struct span *name)
{
    while (rest->n) {
        const uint8_t *end = memchr(rest->p, ',', rest->n);

        *name = span_of(rest->p, end ? (size_t)(end - rest->p) : rest->n);
        *rest = span_skip(*rest, name->n);
        while (rest->n && (*rest->p == ',' || *rest->p == ' '))
            *rest = span_skip(*rest, 1);
        if (!is_spare(j, *name))
            return true;
    }
    return false;
}
