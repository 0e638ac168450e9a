/* recorder.c - see recorder.h. In order: nodes, entries, lost nodes, rounds, phases,
 * failures, publishing, coming and going, questions, clocks, time, the step. */
#include "job/core/recorder.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "job/core/cause.h"
#include "job/core/judge.h"
#include "job/core/phase_times.h"

#define QUICK_PINGS   4u     /* right after HELLO */
#define DRIFT_PPM     100    /* by which two quartz clocks may drift apart */
#define UNKNOWN_US    500000 /* how unsure a time is if the clock was never measured */
#define CODES_MAX     4096u  /* bytes of a node's exit codes */
#define LOST_TEXT_MAX 2048u  /* bytes of the text that says why a node was lost */

/* We believe no node that claims to know an entry with a higher number, so that our own
 * numbers, which continue above it, cannot overflow. */
#define KNOWN_NUMBER_MAX (UINT64_MAX / 2)

/* Likewise for the number that a node says it has; half of what the wire allows, so
 * that the numbers that we give out above it can be sent. */
#define KNOWN_NODE_MAX (WIRE_NODE_MAX / 2)

struct record_peer {
    size_t index;                /* in recorder.nodes */
    uint32_t number;             /* 0: an observer */
    struct run_session *session; /* borrowed; NULL: an observer that is gone */
    bool here;                   /* connected, and it has not said BYE */
    bool gone;                   /* left or lost, and not expected back */
    bool left;                   /* it said goodbye */
    bool conn_broke; /* lost because its connection broke, not because it fell silent */
    bool serves_store;          /* its process serves the store, so its clock is ours */
    bool announced;             /* in a NODES entry */
    char *given, *apart, *addr; /* owned; apart: a name that no other node has */
    const char *host;           /* one of the two */
    int64_t pid, nproc;
    uint64_t last_seq; /* of its PUBLISHes */
    uint64_t lost_us;  /* when it was declared lost */

    bool measured;         /* the next four are known */
    int64_t offset_us;     /* its monotonic clock ahead of ours */
    int64_t wall_ahead_us; /* its wall clock ahead of ours */
    uint64_t rtt_us, measured_us;
    uint64_t slow_us;     /* the slowest recent round trip */
    uint64_t ping_us;     /* when the first unanswered PING was sent; 0: none is open */
    unsigned quick_pings; /* still to be answered right after HELLO */

    int64_t seat_round_plus1, seat; /* of its SEAT; 0: none yet */
    int64_t round, first, count;    /* of its RANKS; round -1: none yet */
    bool reported;                  /* its workers of `round` have exited */
    bool clean;                     /* all of them exited with 0 by themselves */
    bool moved;                     /* it has stopped them for the next round */
    int64_t moved_us;  /* the earliest that it may have done so, by our wall clock */
    bool own_budget;   /* it counts restarts for itself */
    bool progress;     /* they made some, as REPORTED said */
    char *policy;      /* owned; as HELLO had it; NULL: none */
    bool compared;     /* with the run's */
    bool judged;       /* own_budget: a failure of its current attempt was judged */
    int64_t judged_us; /* when that last happened, by our wall clock */
    char *codes;       /* owned; as REPORTED had them */
    uint16_t owes;     /* a bit for each of recorder.asks that it has still to answer */
};

struct record_ask {
    bool active;
    uint64_t id, seq; /* ours; the asker's */
    uint32_t peer;    /* the asker */
    uint64_t due_us;
    size_t pending;    /* nodes that owe an answer */
    size_t nodes;      /* how many there were when the question came */
    size_t asked;      /* how many of them have been considered so far */
    uint64_t slice_us; /* when to go on with the others; MONO_NEVER: none is left */
    uint64_t value;    /* of the question */
    uint8_t *text;     /* owned: the question's name, then its bytes */
    size_t name_size, size;
};

_Static_assert(RECORDER_ASKS <= 8 * sizeof((struct record_peer){ 0 }.owes),
               "a bit for each question");

/* --restart-policy and its like. */
struct run_policy {
    struct policy set;
    struct policy_history past;
    struct buf text; /* of a decision: what entries point to */
};

/* Of the node that serves the store, else of the first one. */
struct run_budget {
    int64_t max_restarts;
    bool known;                        /* the next two as well */
    const struct record_peer *decider; /* borrowed: that node */
    struct run_policy *policy;         /* owned; NULL: max_restarts alone counts */
    bool policies;                     /* some node was given one */
};

struct record_phases {
    int64_t round;    /* -1: none yet */
    int64_t reported; /* nodes that have sent all of theirs */
    bool done;        /* the entry was made; later times get an entry of their own */
    uint64_t due_us;
    struct phase_times times;
};

enum round_end { ROUND_OPEN, ROUND_ENDED, ROUND_SUCCEEDED };

struct recorder {
    char *run_id; /* owned */
    const struct log *log;
    struct sessions *sessions; /* borrowed; who is connected, and who is lost */
    struct record record;
    struct record_peer **nodes; /* owned, as is each */
    size_t count, size;
    uint32_t next_number;
    struct run_budget budget; /* of restarts */
    size_t agents;            /* nodes that are here, without observers */
    size_t free_slots;        /* of observers that are gone */
    size_t unannounced;       /* nodes that are in no NODES entry yet, */
    size_t announced;         /* and the index before which there is none of them */
    struct record_peer
        *host;             /* borrowed; the last that said that it serves the store */
    uint64_t known_number; /* the highest number of an entry that any agent knows */

    struct {
        int64_t number;         /* -1: none yet */
        int64_t expected, have; /* nodes; `have` have sent their RANKS */
        size_t clean;           /* those before this index are clean */
        uint64_t due_us;        /* MONO_NEVER: recorded, or none */
        enum round_end over;    /* its ENDED entry is in the record */
    } round;
    struct { /* a round in which a worker has failed, until it is judged */
        bool active;
        int64_t round;
        bool final; /* no restart is left, or stop */
        bool own_budget;
        bool stop;           /* the failure forbids a restart */
        size_t reported;     /* we no longer wait for those before this index */
        uint32_t node;       /* whose worker failed first */
        int64_t used, total; /* own_budget: restarts of that node */
        uint64_t due_us, began_us;
        struct judge_list failures;
    } end;
    struct record_phases phases;
    uint32_t last_peer; /* the sender of SYNC with MSG_LAST */
    uint64_t last_seq;  /* of that; 0: nobody waits to be the last one */
    struct record_ask asks[RECORDER_ASKS];
    uint64_t next_ask;
    struct buf text; /* of lost_text(); its memory is allocated at the start */
    struct run_now now;
    int64_t wall_ahead_us; /* of mono_us, as of the last step outside a judgement */
    uint64_t known_before; /* record.last before the step */
    int64_t restarts;      /* see recorder_restarts() */
    int64_t seated;        /* the last round of the rendezvous, if the run knows it */
};

/* ---- new and free ---- */

struct recorder *recorder_new(struct span run_id, struct sessions *sessions,
                              const struct log *log)
{
    struct recorder *h = mem_calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    buf_init(&h->text, LOST_TEXT_MAX);
    if (!h->run_id || !buf_room(&h->text, LOST_TEXT_MAX)) {
        recorder_free(h);
        return NULL;
    }
    h->log = log;
    h->sessions = sessions;
    record_init(&h->record);
    h->next_number = 1;
    h->next_ask = 1;
    h->round.number = -1;
    h->round.due_us = h->end.due_us = MONO_NEVER;
    h->phases.round = -1;
    h->phases.due_us = MONO_NEVER;
    return h;
}

static void policy_free(struct recorder *h)
{
    if (!h->budget.policy)
        return;
    policy_fini(&h->budget.policy->set);
    policy_history_fini(&h->budget.policy->past);
    buf_fini(&h->budget.policy->text);
    mem_free(h->budget.policy);
    h->budget.policy = NULL;
}

static void node_fini(struct record_peer *n)
{
    if (n->session)
        n->session->said = NULL;
    mem_free(n->given);
    mem_free(n->apart);
    mem_free(n->addr);
    mem_free(n->codes);
    mem_free(n->policy);
}

void recorder_free(struct recorder *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->count; i++) {
        node_fini(h->nodes[i]);
        mem_free(h->nodes[i]);
    }
    for (size_t i = 0; i < RECORDER_ASKS; i++)
        mem_free(h->asks[i].text);
    phase_times_fini(&h->phases.times);
    judge_list_fini(&h->end.failures);
    policy_free(h);
    mem_free(h->nodes);
    mem_free(h->run_id);
    record_fini(&h->record);
    buf_fini(&h->text);
    mem_free(h);
}

int64_t recorder_restarts(const struct recorder *h)
{
    return h->restarts;
}

bool recorder_succeeded(const struct recorder *h)
{
    return h->round.over == ROUND_SUCCEEDED;
}

const struct record *recorder_record(const struct recorder *h)
{
    return &h->record;
}

bool recorder_next_peer(const struct recorder *h, size_t *i, uint32_t *peer)
{
    while (*i < h->count) {
        const struct record_peer *n = h->nodes[(*i)++];

        if (n->here) {
            *peer = n->session->peer;
            return true;
        }
    }
    return false;
}

/* ---- nodes ---- */

/* Whether it was an observer that has gone. Nothing remembers those, so the next node
 * takes its place: people may look at a job as often as they like. */
static bool is_free(const struct record_peer *n)
{
    return !n->session;
}

static bool number_taken(const struct recorder *h, uint32_t number)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->number == number)
            return true;
    return false;
}

static bool in_round(const struct record_peer *n, int64_t round)
{
    return n->number != 0 && n->round == round;
}

static struct record_peer *new_slot(struct recorder *h)
{
    struct record_peer **nodes =
        mem_grow_to(h->nodes, &h->size, h->count, sizeof *nodes);
    struct record_peer *n = nodes ? mem_calloc(1, sizeof *n) : NULL;

    if (nodes)
        h->nodes = nodes;
    if (!n)
        return NULL;
    assert(h->count < h->size && h->count < RECORDER_NODES);
    n->index = h->count;
    h->nodes[h->count++] = n;
    return n;
}

static struct record_peer *free_slot(struct recorder *h)
{
    for (size_t i = 0; i < h->count && h->free_slots; i++)
        if (is_free(h->nodes[i])) {
            h->free_slots--;
            node_fini(h->nodes[i]);
            return h->nodes[i];
        }
    return h->count < RECORDER_NODES ? new_slot(h) : NULL;
}

static int add_node(struct recorder *h, struct run_session *s, const struct run_msg *m)
{
    struct record_peer *n = free_slot(h);

    if (!n)
        return h->count < RECORDER_NODES ? MUSTER_ENOMEM : MUSTER_EFULL;
    *n = (struct record_peer){
        .given = mem_strndup((const char *)m->host.p, MIN_OF(m->host.n, 255)),
        .addr = mem_strndup((const char *)m->where.p, MIN_OF(m->where.n, 255)),
        .index = n->index,
        .session = s,
        .pid = m->pid,
        .nproc = m->nproc,
        .round = -1,
    };
    n->host = n->given;
    s->said = n;
    s->slow_us = SESSION_MOST_US / 8; /* until it is measured */
    return n->given && n->addr ? 0 : MUSTER_ENOMEM;
}

/* ---- entries ---- */

static void announce(struct recorder *h, struct run_fx *fx);

/* Numbers the entry, keeps it and passes it on. */
static void emit(struct recorder *h, struct run_fx *fx, struct record_entry *e)
{
    if (e->kind != RECORD_NODES && h->unannounced)
        announce(h, fx);
    e->number = MAX_OF(h->record.last, h->known_number) + 1;
    assert(e->number > h->record.last);
    if (e->at_us == 0)
        e->at_us = h->now.wall_us;
    if (record_stage(&h->record, e) < 0)
        fx->no_memory = true;
    run_effect(fx, (struct run_effect){ .kind = RUN_ENTRY, .number = e->number });
}

/* Allocates all the memory that the body of an entry can take. After that a line is
 * left out only if it does not fit, never for want of memory. */
static bool body_begin(struct run_fx *fx, struct buf *b)
{
    buf_init(b, RECORD_BODY_MAX);
    if (!buf_room(b, RECORD_BODY_MAX))
        fx->no_memory = true;
    return !fx->no_memory;
}

static int by_host(const void *a, const void *b)
{
    const struct record_peer *x = *(struct record_peer *const *)a;
    const struct record_peer *y = *(struct record_peer *const *)b;
    const int c = strcmp(x->given, y->given);

    return c ? c : strcmp(x->addr, y->addr);
}

static bool is_alike(const struct record_peer *x, const struct record_peer *y,
                     bool addr)
{
    return strcmp(x->given, y->given) == 0 && (!addr || strcmp(x->addr, y->addr) == 0);
}

/* Whether a node has come whose name another one may have. Where nodes come one after
 * the other, this is cheaper than sorting all of them each time. */
static bool has_namesakes(const struct recorder *h)
{
    if (h->unannounced > 2)
        return true;
    for (size_t i = 0; i < h->count; i++)
        for (size_t k = 0; !h->nodes[i]->announced && k < h->count; k++)
            if (k != i && is_alike(h->nodes[i], h->nodes[k], false))
                return true;
    return false;
}

/* Machines may all have one name, "vm" or "localhost". They get their address behind
 * it, or their rank in the group where the address is the same, too, so that every
 * message says which one it means. Such a name stays. */
static void tell_apart(struct recorder *h, struct run_fx *fx)
{
    struct record_peer **list;
    size_t count = 0;

    if (!has_namesakes(h))
        return;
    list = mem_calloc(h->count, sizeof(struct record_peer *));
    if (!list)
        fx->no_memory = true;
    for (size_t i = 0; list && i < h->count; i++)
        if (h->nodes[i]->number && h->nodes[i]->here)
            list[count++] = h->nodes[i];
    if (count > 1)
        qsort(list, count, sizeof *list, by_host);
    for (size_t i = 0; i < count; i++) {
        struct record_peer *n = list[i];
        const struct record_peer *before = i ? list[i - 1] : NULL;
        const struct record_peer *after = i + 1 < count ? list[i + 1] : NULL;
        const bool same = (before && is_alike(n, before, true)) ||
                          (after && is_alike(n, after, true)) || !*n->addr;

        if (n->apart || !((before && is_alike(n, before, false)) ||
                          (after && is_alike(n, after, false))))
            continue;
        n->apart = same && n->seat_round_plus1 > 0
                       ? mem_printf("%s[node%" PRId64 "]", n->given, n->seat)
                   : same ? mem_printf("%s[%" PRIu32 "]", n->given, n->number)
                          : mem_printf("%s[%s]", n->given, n->addr);
        if (!n->apart) {
            fx->no_memory = true;
            break;
        }
        n->host = n->apart;
    }
    mem_free(list);
}

/* One entry announces many nodes: if a thousand come at once, a thousand entries for a
 * thousand nodes would be a million messages. */
static void announce(struct recorder *h, struct run_fx *fx)
{
    struct record_entry e = { .kind = RECORD_NODES, .round = h->round.number };
    struct buf b;

    tell_apart(h, fx);
    if (!body_begin(fx, &b)) {
        buf_fini(&b);
        return;
    }
    for (; h->announced < h->count && h->unannounced; h->announced++) {
        struct record_peer *n = h->nodes[h->announced];
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

/* Writes "node3 was lost (its connection broke); ranks 8 to 15 were there" to h->text.
 * why NULL: the node left, or all we know is that it has been silent. */
static struct span lost_text(struct recorder *h, const struct record_peer *n,
                             const char *why)
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
                         (double)(until - n->session->heard_us) / 1e6);
    (void)buf_append_str(&h->text, ")");
    if (n->round >= 0 && n->count > 1)
        (void)buf_printf(&h->text, "; ranks %" PRId64 " to %" PRId64 " were there",
                         n->first, n->first + n->count - 1);
    else if (n->round >= 0 && n->count == 1)
        (void)buf_printf(&h->text, "; rank %" PRId64 " was there", n->first);
    return buf_span(&h->text);
}

static void blame_node(struct recorder *h, struct record_entry *e,
                       const struct record_peer *n)
{
    e->cause = CAUSE_NODE_LOST;
    e->node = n->number;
    e->rank = e->local_rank = e->pid = -1;
    e->host = span_str(n->host);
    e->place = e->path = e->body = (struct span){ 0 };
    e->at_us = h->now.wall_us - (int64_t)(h->now.mono_us - n->session->heard_us);
    e->text =
        lost_text(h, n, n->conn_broke && !n->left ? "its connection broke" : NULL);
}

/* ---- rounds ---- */

/* The attached node whose process serves the store, or NULL. */
static const struct record_peer *serving(const struct recorder *h)
{
    return h->host && h->host->here && h->host->serves_store ? h->host : NULL;
}

static int by_first_rank(const void *a, const void *b)
{
    const struct record_peer *const *x = a, *const *y = b;

    return ((*x)->first > (*y)->first) - ((*x)->first < (*y)->first);
}

/* The nodes of a round in rank order; the caller frees the list. */
static struct record_peer **round_nodes(struct recorder *h, struct run_fx *fx,
                                        int64_t round, size_t *count)
{
    struct record_peer **sorted = mem_calloc(h->count + 1, sizeof *sorted);
    size_t n = 0;

    if (!sorted)
        fx->no_memory = true;
    for (size_t i = 0; sorted && i < h->count; i++)
        if (in_round(h->nodes[i], round))
            sorted[n++] = h->nodes[i];
    if (n)
        qsort(sorted, n, sizeof *sorted, by_first_rank);
    *count = n;
    return sorted;
}

/* A coordinator that took over from a lost one knows the last round only from the
 * record. Nodes of that round that have not attached by the next one are lost. */
static void record_vanished(struct recorder *h, struct run_fx *fx)
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
    /* A copy, since emit() adds to the record that last.body points into. */
    if (buf_append_span(&copy, last.body) < 0)
        fx->no_memory = true;
    for (body = buf_span(&copy); record_ranks_next(&body, &r);) {
        if (number_taken(h, r.node) || !record_host_of(&h->record, r.node, &n) ||
            record_node_ended(&h->record, r.node))
            continue;
        struct run_session away = { .heard_us = h->now.mono_us };
        char *host = mem_strndup((const char *)n.host.p, n.host.n);
        struct record_peer node = { .number = r.node,
                                    .host = host,
                                    .round = last.round,
                                    .first = r.first,
                                    .count = r.count,
                                    .session = &away };
        if (!host) {
            fx->no_memory = true;
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
        mem_free(host);
    }
    buf_fini(&copy);
}

/* "no policy", or the text without its newlines. */
static void put_policy(struct buf *out, const char *text)
{
    if (!*text)
        (void)buf_append_str(out, "no restart policy");
    for (size_t i = 0; text[i]; i++)
        (void)buf_u8(out, text[i] == '\n' ? ' ' : (uint8_t)text[i]);
}

/* One node decides for all: those that were given something else are told, once. */
static void tell_policies(struct recorder *h, struct run_fx *fx)
{
    struct buf ours, b;

    if (!h->budget.policies)
        return;
    buf_init(&ours, POLICY_TEXT_MAX);
    buf_init(&b, RECORD_TEXT_MAX);
    if (h->budget.policy && policy_print(&ours, &h->budget.policy->set) < 0)
        fx->no_memory = true;
    (void)buf_u8(&ours, 0);
    for (size_t i = 0; i < h->count && !buf_error(&ours); i++) {
        struct record_peer *n = h->nodes[i];
        struct record_entry e = { .kind = RECORD_NOTE,
                                  .cause = CAUSE_POLICY,
                                  .round = h->round.number,
                                  .node = n->number,
                                  .rank = -1,
                                  .local_rank = -1,
                                  .host = span_str(n->host) };

        const char *theirs = n->policy ? n->policy : "";

        if (!in_round(n, h->round.number) || n->compared || n->own_budget)
            continue;
        n->compared = true;
        if (strcmp(theirs, (const char *)buf_data(&ours)) == 0)
            continue;
        buf_clear(&b);
        (void)buf_printf(&b, "%s was started with ", n->host);
        put_policy(&b, theirs);
        (void)buf_append_str(&b, ", but the node that hosts the job decides, with ");
        put_policy(&b, (const char *)buf_data(&ours));
        e.text = buf_span(&b);
        emit(h, fx, &e);
    }
    buf_fini(&ours);
    buf_fini(&b);
}

static void record_round(struct recorder *h, struct run_fx *fx)
{
    struct record_entry e = { .kind = RECORD_ROUND, .round = h->round.number };
    struct record_peer **nodes;
    struct buf b;
    size_t count;

    h->round.due_us = MONO_NEVER;
    record_vanished(h, fx);
    nodes = round_nodes(h, fx, h->round.number, &count);
    body_begin(fx, &b);
    for (size_t i = 0; i < count; i++) {
        const struct record_ranks r = { nodes[i]->number, nodes[i]->first,
                                        nodes[i]->count };

        e.total += r.count;
        (void)record_ranks_print(&b, &r); /* total counts it even if it does not fit. */
    }
    if (serving(h))
        e.node = serving(h)->number;
    e.count = (int64_t)count;
    e.body = buf_span(&b);
    e.code = h->record.restarts;
    emit(h, fx, &e);
    buf_fini(&b);
    mem_free(nodes);
    tell_policies(h, fx);
}

static void judge(struct recorder *h, struct run_fx *fx);

/* So that a node that loses the host of the run can say which node went with it. */
static void notify_host(struct run_fx *fx, const struct record_peer *host,
                        uint32_t peer)
{
    assert(host->serves_store && host->seat_round_plus1 > 0);
    run_send(fx, peer,
             (struct run_msg){ .kind = MSG_NEWS,
                               .what = WIRE_HOST,
                               .round = host->seat_round_plus1 - 1,
                               .rank = host->seat });
}

static void on_seat(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                    const struct run_msg *m)
{
    const bool known = n->seat_round_plus1 == m->seat_round + 1 && n->seat == m->seat;

    if (m->seat_round < 0 || known)
        return;
    n->seat_round_plus1 = m->seat_round + 1;
    n->seat = m->seat;
    for (size_t i = 0; n->serves_store && i < h->count; i++)
        if (h->nodes[i]->here && h->nodes[i] != n)
            notify_host(fx, n, h->nodes[i]->session->peer);
}

static void on_ranks(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                     const struct run_msg *m)
{
    on_seat(h, fx, n, m);
    if (m->count < 0 || m->rank < 0 || m->round < 0 || m->count > WIRE_RANKS_MAX)
        return;
    /* Judge while we still know that this node left that round because nodes came or
     * went. */
    if (h->end.active && n->moved && n->round == h->end.round && m->round != n->round)
        judge(h, fx);
    h->round.have -= in_round(n, h->round.number);
    h->round.clean = MIN_OF(h->round.clean, n->index);
    h->end.reported = MIN_OF(h->end.reported, n->index);
    n->round = m->round;
    n->first = m->rank;
    n->count = m->count;
    n->reported = n->clean = n->moved = n->judged = n->progress = false;
    n->own_budget = m->flags & MSG_OWN_BUDGET;
    mem_free(n->codes);
    n->codes = NULL;
    if (n->own_budget) /* Each node restarts by itself within the one round. */
        h->round.over = ROUND_OPEN;
    if (m->round > h->round.number) {
        h->round.number = m->round;
        h->round.have = 0;
        h->round.clean = 0;
        h->round.expected = m->total;
        h->round.over = ROUND_OPEN;
        h->round.due_us = h->now.mono_us + RECORDER_GATHER_US;
    }
    assert(h->round.number >= m->round);
    h->round.have += in_round(n, h->round.number);
    if (h->round.due_us != MONO_NEVER && h->round.have >= h->round.expected)
        record_round(h, fx);
}

/* ---- phases ---- */

static void emit_phases(struct recorder *h, struct run_fx *fx)
{
    struct record_entry e = { .kind = RECORD_PHASES,
                              .round = h->phases.round,
                              .rank = -1,
                              .count = h->phases.reported };
    struct buf b;

    h->phases.done = true;
    h->phases.due_us = MONO_NEVER;
    body_begin(fx, &b);
    if (phase_times_print(&h->phases.times, &b) < 0)
        fx->no_memory = true;
    e.body = buf_span(&b);
    if (buf_len(&b))
        emit(h, fx, &e);
    buf_fini(&b);
}

/* Keeps the times until all nodes of the round have sent theirs, for one entry. */
static void on_phase(struct recorder *h, struct run_fx *fx, const struct record_peer *n,
                     const struct run_msg *m)
{
    if (m->round != n->round || m->round < h->phases.round || !is_phase_name(m->name))
        return;
    if (m->round > h->phases.round) {
        emit_phases(h, fx);
        h->phases.round = m->round;
        h->phases.reported = 0;
        h->phases.done = false;
        phase_times_fini(&h->phases.times);
        h->phases.due_us = h->now.mono_us + RECORDER_GATHER_US;
    }
    if (phase_times_add(&h->phases.times, m->name, m->value, n->number) < 0)
        fx->no_memory = true;
    h->phases.reported += m->rank == 0;
    if ((h->phases.done || h->phases.reported >= h->round.expected) && m->rank == 0)
        emit_phases(h, fx);
}

/* ---- failures ---- */

static void end_round(struct recorder *h, struct run_fx *fx, int64_t round,
                      enum record_cause cause)
{
    struct record_entry e = { .kind = RECORD_ENDED, .round = round, .cause = cause };
    struct record_peer **nodes;
    struct buf b;
    size_t count;

    body_begin(fx, &b);
    nodes = round_nodes(h, fx, round, &count);
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
    h->round.over = ROUND_ENDED;
}

/* A node of the round that is gone, or has not answered since the first failure. */
static const struct record_peer *lost_node(const struct recorder *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct record_peer *n = h->nodes[i];

        if (!in_round(n, h->end.round) || n->reported || n->moved)
            continue;
        if (n->gone || n->session->state != SESSION_HERE ||
            (n->ping_us && n->ping_us <= h->end.began_us))
            return n;
    }
    return NULL;
}

/* Nodes learn at different times that others came or went. A node that has learned it
 * stops its workers, and workers elsewhere fail because of that. Such a failure, an
 * echo or one that came after the stop, does not count. */
static bool follows_a_move(const struct recorder *h, const struct record_entry *f)
{
    const bool echo = judge_is_echo(f);

    for (size_t i = 0; i < h->count; i++) {
        const struct record_peer *n = h->nodes[i];

        if (in_round(n, f->round) && n->moved &&
            (echo || f->at_us + f->unsure_us >= n->moved_us))
            return true;
    }
    return false;
}

static bool made_progress(const struct recorder *h, int64_t round)
{
    for (size_t i = 0; i < h->count; i++)
        if (in_round(h->nodes[i], round) && h->nodes[i]->progress)
            return true;
    return false;
}

static bool is_refusal(uint32_t reason)
{
    return reason > POLICY_BY_FREE && reason < POLICY_REASONS;
}

/* What the policy says to this end of a round: makes it a RESTART or a VERDICT. With
 * only_ask a restart is not counted yet. */
static void decide(struct recorder *h, struct run_fx *fx, struct record_entry *e,
                   bool only_ask)
{
    struct policy_failure f = cause_of_entry(e);
    struct policy_decision d;

    f.progress = made_progress(h, e->round);
    f.used = h->record.restarts;
    f.allowed = h->budget.max_restarts;
    f.now_us = h->now.mono_us;
    f.only_asked = only_ask;
    if (policy_decide(&h->budget.policy->set, &h->budget.policy->past, &f, &d) < 0) {
        fx->no_memory = true;
        return;
    }
    e->kind = d.action == POLICY_STOP ? RECORD_VERDICT : RECORD_RESTART;
    e->total = f.allowed;
    e->count = MIN_OF(f.used + (d.action == POLICY_RESTART), RECORD_NUMBER_MAX);
    cause_decided(e, &h->budget.policy->set, &d, &h->budget.policy->text);
}

/* Whether every node of the round that ends is here, and has no workers any more. */
static bool all_are_here(const struct recorder *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct record_peer *n = h->nodes[i];

        if (in_round(n, h->end.round) && (!n->reported || n->moved || !n->here))
            return false;
    }
    return h->end.round == h->round.number && h->round.have >= h->round.expected;
}

/* Called when all nodes have reported, their time is up, or one of them is in the next
 * round. */
static void judge(struct recorder *h, struct run_fx *fx)
{
    struct record_entry e = { .kind = RECORD_VERDICT, .cause = CAUSE_EXIT };
    const struct record_peer *lost = lost_node(h);
    const struct judge_list *const l = &h->end.failures;
    const bool echo = l->count == 0 || judge_is_echo(&l->worst[0]);
    bool counts = true;

    assert(h->end.active);
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
        counts = h->end.own_budget; /* A lost node costs the job no restart. */
    } else if (l->count && follows_a_move(h, &l->worst[0])) {
        e.cause = CAUSE_MEMBERSHIP;
        counts = false;
    }
    end_round(h, fx, h->end.round, e.cause);
    e.round = h->end.round;
    e.number = 0;
    const int64_t total = h->end.own_budget ? h->end.total : h->budget.max_restarts;
    const int64_t used = h->end.own_budget ? h->end.used : h->record.restarts;
    if (h->end.own_budget && e.reason) /* That node has decided for itself. */
        counts = e.reason != POLICY_BY_FREE;
    e.kind = (counts && used >= total) || h->end.stop || is_refusal(e.reason)
                 ? RECORD_VERDICT
                 : RECORD_RESTART;
    e.total = total;
    e.count =
        e.kind == RECORD_RESTART ? MIN_OF(used + counts, RECORD_NUMBER_MAX) : used;
    if (h->budget.policy && !h->end.own_budget && !h->end.stop &&
        e.cause != CAUSE_MEMBERSHIP)
        decide(h, fx, &e, false);
    emit(h, fx, &e);
    if (e.kind == RECORD_RESTART && !h->end.own_budget && all_are_here(h))
        h->restarts = h->end.round;
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->number == h->end.node) {
            h->nodes[i]->judged = true;
            h->nodes[i]->judged_us = h->now.wall_us;
        }
    h->end.active = false;
    h->end.due_us = MONO_NEVER;
    judge_list_fini(&h->end.failures);
}

/* Each node is looked at once in a round, unless it comes back: h->end.reported. */
static void judge_if_all_reported(struct recorder *h, struct run_fx *fx)
{
    for (; h->end.reported < h->count; h->end.reported++) {
        const struct record_peer *n = h->nodes[h->end.reported];

        /* With a budget of its own, a node that has restarts left does not wait for the
         * others. */
        if (h->end.own_budget && !h->end.final && n->number != h->end.node)
            continue;
        if (in_round(n, h->end.round) && !n->reported && !n->moved && !n->gone)
            return;
    }
    judge(h, fx);
}

void recorder_ping(struct recorder *h, struct record_peer *n, int64_t beat_us,
                   struct run_fx *fx)
{
    if (n->ping_us == 0)
        n->ping_us = h->now.mono_us;
    run_send(fx, n->session->peer,
             (struct run_msg){
                 .kind = MSG_PING, .seq = h->now.mono_us, .mono_us = beat_us });
}

static void ping(struct recorder *h, struct run_fx *fx, struct record_peer *n)
{
    assert(n->here);
    recorder_ping(h, n, 0, fx);
}

static void begin_ending(struct recorder *h, struct run_fx *fx,
                         const struct record_entry *f, bool own_budget)
{
    struct record_entry e = { .kind = RECORD_ENDING, .round = f->round };
    const bool echo = judge_is_echo(f);

    assert(!h->end.active && h->end.failures.count == 0);
    h->end.active = true;
    h->end.reported = 0;
    h->end.round = f->round;
    h->end.own_budget = own_budget;
    h->end.node = f->node;
    h->end.used = f->count;
    h->end.total = f->total;
    h->end.began_us = h->now.mono_us;
    h->end.due_us = h->now.mono_us + RECORDER_JUDGE_US;
    e.total = own_budget ? f->total : h->budget.max_restarts;
    e.count = own_budget ? f->count : h->record.restarts;
    /* Either --hang=TIME:stop was given, or the program cannot be executed, which a
     * restart would not change. */
    h->end.stop = (f->cause == CAUSE_HANG && f->code != 0) || f->cause == CAUSE_START;
    h->end.final = own_budget && f->reason ? is_refusal(f->reason)
                                           : e.count >= e.total || h->end.stop;
    /* A failure that only says that a peer is gone may be due to a lost node, or to one
     * that has moved on, and neither is counted as a restart. Code 2 says that this is
     * known only at the end of the round. */
    e.code = h->budget.policy && !own_budget && !h->end.stop ? 2
             : !h->end.final                                 ? 0
             : (echo || follows_a_move(h, f)) && !own_budget ? 2
                                                             : 1;
    e.cause = f->cause;
    e.node = f->node;
    e.host = f->host;
    e.rank = f->rank;
    e.text = f->text;
    if (!own_budget || h->end.final)
        emit(h, fx, &e);
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->here && !h->nodes[i]->serves_store &&
            in_round(h->nodes[i], f->round))
            ping(h, fx, h->nodes[i]);
}

static void on_failed(struct recorder *h, struct run_fx *fx,
                      const struct record_peer *n, const struct record_entry *f)
{
    const bool own_budget = n->own_budget;
    struct record_entry e;

    if (h->end.active && h->end.round != f->round)
        judge(h, fx);
    /* A node reports a worker as soon as it has failed, and again, with its last words,
     * when its other workers have ended. The failure may have been judged in between;
     * then the second report must not count as another failure. `judged` alone does not
     * show this: it is cleared if the connection broke since then, because the node has
     * sent its RANKS again, as for a new attempt. */
    if (!h->end.active && own_budget &&
        (n->judged || f->at_us + f->unsure_us <= n->judged_us))
        return;
    if (!h->end.active && !own_budget &&
        (f->round < MAX_OF(h->round.number, h->seated) ||
         (h->round.over && f->round == h->round.number) ||
         record_find(&h->record, RECORD_RESTART, f->round, &e))) /* by a run before */
        return; /* That round was judged, or the job went on without this node. */
    if (!h->end.active)
        begin_ending(h, fx, f, own_budget);
    if (judge_list_keep(&h->end.failures, f) < 0)
        fx->no_memory = true;
}

void recorder_seated(struct recorder *h, int64_t round, struct run_fx *fx)
{
    h->seated = round;
    if (h->end.active && h->end.round < round)
        judge(h, fx);
}

static void succeed_if_all_have(struct recorder *h, struct run_fx *fx, int64_t round)
{
    struct record_entry e = { .kind = RECORD_VERDICT,
                              .cause = CAUSE_SUCCEEDED,
                              .round = round,
                              .rank = -1,
                              .local_rank = -1,
                              .pid = -1 };

    assert(round == h->round.number);
    for (; h->round.clean < h->count; h->round.clean++) {
        const struct record_peer *n = h->nodes[h->round.clean];

        if (in_round(n, round) && (!n->clean || n->moved))
            return; /* One that has moved is on its way to another round. */
    }
    if (h->round.over || h->round.have < h->round.expected)
        return;
    end_round(h, fx, round, CAUSE_SUCCEEDED);
    e.count = h->record.restarts;
    e.total = h->budget.max_restarts;
    emit(h, fx, &e);
    h->round.over = ROUND_SUCCEEDED;
}

static void on_reported(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                        const struct run_msg *m)
{
    if (m->round != n->round)
        return;
    n->reported = true;
    n->clean = m->count == 0 && m->total == 0;
    n->progress = m->flags & MSG_PROGRESS;
    if (!n->clean)
        h->round.clean = MIN_OF(h->round.clean, n->index);
    mem_free(n->codes);
    n->codes = mem_strndup((const char *)m->bytes.p, MIN_OF(m->bytes.n, CODES_MAX));
    if (!n->codes)
        fx->no_memory = true;
    if (h->end.active && h->end.round == n->round)
        judge_if_all_reported(h, fx);
    else if (n->clean && n->round == h->round.number)
        succeed_if_all_have(h, fx, n->round);
}

/* ---- publishing ---- */

/* Translates at_us to our clock. The sender's wall clock may be hours off, or be set
 * while the job runs, so we trust only the time between two of its readings. */
static void translate(const struct recorder *h, const struct record_peer *n,
                      const struct run_msg *m, struct record_entry *e)
{
    int64_t age = e->at_us == 0 ? 0 : m->wall_us - e->at_us;
    int64_t at = (int64_t)h->now.mono_us;
    int64_t unsure = UNKNOWN_US;

    age = MIN_OF(MAX_OF(age, 0), WIRE_CLOCK_MAX);
    if (n->serves_store) {
        unsure = 0;
        if (m->mono_us > 0) /* Our clock, too, and we may have been stopped since. */
            at = MIN_OF(m->mono_us, at);
    } else if (n->measured) {
        const int64_t since = (int64_t)(h->now.mono_us - n->measured_us);

        at = MIN_OF(m->mono_us - n->offset_us, at);
        unsure = (int64_t)n->rtt_us / 2 + since / 1000000 * DRIFT_PPM + 1;
    }
    e->at_us = h->now.wall_us - ((int64_t)h->now.mono_us - at) - age;
    e->unsure_us = unsure;
}

static void on_moved(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                     const struct run_msg *m)
{
    struct record_entry e = { 0 };

    if (m->round != n->round || n->moved)
        return;
    translate(h, n, m, &e);
    n->moved = true;
    n->moved_us = e.at_us - e.unsure_us;
    h->round.clean = MIN_OF(h->round.clean, n->index);
    if (h->end.active && h->end.round == n->round)
        judge_if_all_reported(h, fx);
}

static void declare_lost(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                         bool broke);

/* A node has waited for another round in vain. If nodes were lost since the last round,
 * the first of them is the reason. If others have gone on meanwhile in a round without
 * this node, the job has not failed. */
static void on_gave_up(struct recorder *h, struct run_fx *fx,
                       const struct record_entry *f)
{
    struct record_entry e = *f, there;
    struct record_peer *lost = NULL;
    int64_t more = 0;

    if (f->round != h->round.number || h->end.active ||
        record_find(&h->record, RECORD_VERDICT, -1, &there))
        return;
    for (size_t i = 0; i < h->count; i++) {
        struct record_peer *n = h->nodes[i];
        const bool unresponsive =
            !n->serves_store &&
            h->now.mono_us - n->session->heard_us > RECORDER_UNHEARD_US;

        if (!in_round(n, f->round) || !(n->gone || unresponsive))
            continue;
        more += lost != NULL;
        if (!lost || n->session->heard_us < lost->session->heard_us)
            lost = n;
    }
    if (lost && f->cause != CAUSE_NOTICE) {
        if (!lost->gone)
            declare_lost(h, fx, lost, false);
        blame_node(h, &e, lost);
        if (more)
            (void)buf_printf(&h->text, ", and %" PRId64 " more node%s after it", more,
                             more > 1 ? "s" : "");
        e.text = buf_span(&h->text);
        e.body = f->text;
    }
    end_round(h, fx, f->round, e.cause);
    e.count = h->record.restarts;
    e.total = h->budget.max_restarts;
    emit(h, fx, &e);
}

static void leave(struct recorder *h, struct run_fx *fx, struct record_peer *n)
{
    n->left = true;
    n->gone = true;
    if (h->end.active && in_round(n, h->end.round))
        judge_if_all_reported(h, fx);
}

/* A node has gone after its notice, and the others go on: with notice:restart this
 * counts, once for a round. Whether it may was asked when the notice came. */
static void count_notice(struct recorder *h, struct run_fx *fx,
                         const struct record_peer *n, const struct record_entry *left)
{
    struct record_entry e = *left, there;

    if (n->own_budget || !in_round(n, h->round.number) ||
        record_find(&h->record, RECORD_RESTART, n->round, &there) ||
        record_find(&h->record, RECORD_VERDICT, -1, &there))
        return;
    e.round = n->round;
    decide(h, fx, &e, false);
    if (e.reason == POLICY_BY_COUNT)
        emit(h, fx, &e);
}

static void on_publish(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                       const struct run_msg *m)
{
    struct muster_error err;
    struct record_entry e;

    assert(n->here && n->number != 0);
    run_send(fx, n->session->peer,
             (struct run_msg){ .kind = MSG_ENTRY, .seq = m->seq });
    if (m->seq <= n->last_seq)
        return; /* It was sent again because the connection broke. */
    n->last_seq = m->seq;
    if (record_entry_decode(m->bytes, &e, &err) < 0) {
        run_drop(fx, n->session->peer,
                 "the node published an entry that cannot be read");
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
    if (e.kind == RECORD_NOTICE && e.count == 0 && h->budget.policy) {
        struct record_entry said = e;

        decide(h, fx, &said, true);
        e.count = said.kind == RECORD_VERDICT; /* Then all of the job is to go. */
    }
    if (e.kind == RECORD_LEFT && e.cause == CAUSE_NOTICE && h->budget.policy)
        count_notice(h, fx, n, &e);
    emit(h, fx, &e);
    if (e.kind == RECORD_LEFT)
        leave(h, fx, n);
}

static void on_offer(struct recorder *h, struct run_fx *fx, const struct run_msg *m)
{
    struct record_entry e;

    if (record_entry_decode(m->bytes, &e, NULL) < 0 || e.number > h->known_number)
        return;
    run_effect(fx, (struct run_effect){ .kind = RUN_ENTRY, .number = e.number });
    if (record_insert(&h->record, &e) < 0)
        fx->no_memory = true;
    if (h->budget.policy && e.kind == RECORD_RESTART && e.reason == POLICY_BY_COUNT) {
        const int64_t ago =
            MIN_OF(MAX_OF(h->now.wall_us - e.at_us, 0), (int64_t)h->now.mono_us);

        if (policy_note_restart(&h->budget.policy->set, &h->budget.policy->past,
                                h->now.mono_us - (uint64_t)ago) < 0)
            fx->no_memory = true;
    }
}

/* ---- coming and going ---- */

static void welcome(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                    const struct run_msg *m)
{
    const uint32_t peer = n->session->peer;

    h->known_number = MAX_OF(h->known_number, MIN_OF(m->value, KNOWN_NUMBER_MAX));
    /* If it knows entries that we lack, from another run before us, we ask it for them;
     * our own numbers continue above its last one. Otherwise we send it what it lacks,
     * before the entries of this step, which go to all: its own loss may be one. */
    if (m->value > h->record.last)
        run_send(fx, peer,
                 (struct run_msg){ .kind = MSG_WANT, .value = h->record.last });
    else
        run_effect_first(fx, (struct run_effect){ .kind = RUN_CATCH_UP,
                                                  .peer = peer,
                                                  .number = m->value });
    run_effect_first(fx, (struct run_effect){ .kind = RUN_SEND,
                                              .peer = peer,
                                              .msg = { .kind = MSG_WELCOME,
                                                       .node = n->number,
                                                       .value = h->record.last } });
    if (n->serves_store) {
        n->measured = true;
        n->measured_us = h->now.mono_us;
        return;
    }
    if (serving(h) && serving(h)->seat_round_plus1)
        notify_host(fx, serving(h), peer);
    n->quick_pings = QUICK_PINGS;
    ping(h, fx, n);
}

static void ask_cancel(struct recorder *h, uint32_t peer);

/* From now on this policy holds; NULL text: none. */
static int take_policy(struct recorder *h, struct span text)
{
    struct run_policy *p = text.n ? mem_calloc(1, sizeof *p) : NULL;

    if (text.n && !p)
        return MUSTER_ENOMEM;
    if (p) {
        const int rc = policy_scan(&p->set, text, NULL);

        buf_init(&p->text, RECORD_TEXT_MAX);
        if (rc < 0 || !buf_room(&p->text, RECORD_TEXT_MAX)) {
            policy_fini(&p->set);
            buf_fini(&p->text);
            mem_free(p);
            return rc == MUSTER_EINVAL ? 0
                                       : MUSTER_ENOMEM; /* Nobody of ours sends it. */
        }
    }
    policy_free(h);
    h->budget.policy = p;
    return 0;
}

int recorder_hello(struct recorder *h, struct run_session *s, const struct run_msg *m,
                   struct run_fx *fx)
{
    const bool observer = m->flags & MSG_OBSERVER;
    const int rc = s->said ? 0 : add_node(h, s, m);
    struct record_peer *n = s->said;

    if (rc < 0)
        return rc;
    if (n->here) { /* It has come back over another connection. */
        h->agents -= n->number != 0;
        n->here = false;
    }
    if (!n->number && !observer) {
        const bool keeps =
            m->node && m->node <= KNOWN_NODE_MAX && !number_taken(h, m->node);

        n->number = keeps ? m->node : h->next_number;
        h->next_number = MAX_OF(h->next_number, n->number + 1);
        h->unannounced++;
        h->announced = MIN_OF(h->announced, n->index);
    }
    h->agents += n->number != 0;
    h->end.reported = MIN_OF(h->end.reported, n->index);
    n->here = true;
    n->gone = n->left = n->conn_broke = false;
    n->lost_us = 0;
    n->ping_us = 0;
    n->serves_store = m->flags & MSG_SERVES;
    if (n->serves_store)
        h->host = n;
    if (!observer && !n->policy && m->policy.n) {
        n->policy = mem_strndup((const char *)m->policy.p,
                                MIN_OF(m->policy.n, POLICY_TEXT_MAX));
        if (!n->policy)
            return MUSTER_ENOMEM;
        h->budget.policies = true;
    }
    if (!observer &&
        (!h->budget.known || (m->flags & MSG_SERVES && h->budget.decider != n))) {
        const int took = take_policy(h, m->policy);

        if (took < 0)
            return took;
        h->budget.max_restarts = m->total;
        h->budget.known = true;
        h->budget.decider = n;
    }
    welcome(h, fx, n, m);
    return 0;
}

static void ask_node_gone(struct recorder *h, struct run_fx *fx, struct record_peer *n);

/* The rendezvous sees to it that the others go on without a lost node. A policy may
 * want the job to end, or to count it. */
static void judge_loss(struct recorder *h, struct run_fx *fx,
                       const struct record_entry *lost)
{
    struct record_entry e = *lost;

    e.number = 0;
    e.rank = -1;
    decide(h, fx, &e, false);
    if (e.reason == POLICY_BY_FREE || fx->no_memory)
        return;
    end_round(h, fx, e.round, e.cause);
    emit(h, fx, &e);
}

static void declare_lost(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                         bool broke)
{
    struct record_entry e = { .kind = RECORD_LOST,
                              .round = n->round,
                              .count = n->count,
                              .code = n->seat,
                              /* Silence is for the rendezvous to judge: the node may
                               * be cut off, and its workers alive. */
                              .total = broke ? n->seat_round_plus1 : 0 };

    assert(n->number != 0);
    n->gone = true;
    n->conn_broke = broke;
    n->lost_us = h->now.mono_us;
    blame_node(h, &e, n);
    e.rank = n->round >= 0 ? n->first : -1;
    e.pid = n->pid;
    emit(h, fx, &e);
    if (h->budget.policy && !h->end.active && h->round.over == ROUND_OPEN &&
        !n->own_budget && in_round(n, h->round.number))
        judge_loss(h, fx, &e);
    if (h->end.active && in_round(n, h->end.round))
        judge_if_all_reported(h, fx);
}

static void notify_last(struct recorder *h, struct run_fx *fx)
{
    if (h->last_seq == 0 || h->agents > 1) /* One of them waits to be the last. */
        return;
    run_send(fx, h->last_peer,
             (struct run_msg){ .kind = MSG_SYNCED, .seq = h->last_seq });
    h->last_seq = 0;
}

/* Observers are forgotten. */
void recorder_gone(struct recorder *h, struct record_peer *n, uint32_t peer,
                   struct run_fx *fx)
{
    ask_cancel(h, peer);
    if (h->last_seq && h->last_peer == peer)
        h->last_seq = 0;
    if (!n->here)
        return;
    n->here = false;
    h->agents -= n->number != 0;
    ask_node_gone(h, fx, n);
    if (n->number == 0) {
        n->session->said = NULL;
        n->session = NULL;
        h->free_slots++;
        return;
    }
    notify_last(h, fx);
}

static void on_bye(struct recorder *h, struct run_fx *fx, struct record_peer *n)
{
    const bool observer = n->number == 0;

    recorder_gone(h, n, n->session->peer, fx);
    if (!observer)
        leave(h, fx, n);
}

void recorder_lost(struct recorder *h, struct record_peer *n, struct run_fx *fx)
{
    const bool observer = n->number == 0, broke = n->session->broke;

    recorder_gone(h, n, n->session->peer, fx);
    if (!observer && !n->gone)
        declare_lost(h, fx, n, broke);
}

/* ---- questions ---- */

static unsigned ask_bit(const struct recorder *h, const struct record_ask *a)
{
    return 1u << (a - h->asks);
}

static void ask_forget(struct record_ask *a)
{
    assert(a->active && a->pending == 0);
    mem_free(a->text);
    *a = (struct record_ask){ 0 };
}

static void ask_end(struct run_fx *fx, struct record_ask *a)
{
    run_send(
        fx, a->peer,
        (struct run_msg){ .kind = MSG_ANSWERED, .flags = MSG_LAST, .seq = a->seq });
    ask_forget(a);
}

/* The node no longer owes this answer. */
static void ask_settle(struct recorder *h, struct record_ask *a, struct record_peer *n)
{
    assert(a->active && a->pending > 0 && n->owes & ask_bit(h, a));
    n->owes &= (uint16_t)~ask_bit(h, a);
    a->pending--;
}

static void ask_missing(struct recorder *h, struct run_fx *fx, struct record_ask *a,
                        struct record_peer *n)
{
    ask_settle(h, a, n);
    run_send(fx, a->peer,
             (struct run_msg){ .kind = MSG_ANSWERED,
                               .seq = a->seq,
                               .node = n->number,
                               .flags = MSG_MISSING,
                               .host = span_str(n->host) });
}

static void ask_node_gone(struct recorder *h, struct run_fx *fx, struct record_peer *n)
{
    for (size_t k = 0; k < RECORDER_ASKS; k++) {
        struct record_ask *a = &h->asks[k];

        if (!(n->owes & ask_bit(h, a)))
            continue;
        ask_missing(h, fx, a, n);
        if (a->pending == 0)
            ask_end(fx, a);
    }
}

/* The asker is gone, so nobody wants the answers any more. */
static void ask_cancel(struct recorder *h, uint32_t peer)
{
    for (size_t k = 0; k < RECORDER_ASKS; k++) {
        struct record_ask *a = &h->asks[k];

        if (!a->active || a->peer != peer)
            continue;
        for (size_t i = 0; i < a->nodes; i++)
            if (h->nodes[i]->owes & ask_bit(h, a))
                ask_settle(h, a, h->nodes[i]);
        ask_forget(a);
    }
}

static void ask_expire(struct recorder *h, struct run_fx *fx)
{
    for (size_t k = 0; k < RECORDER_ASKS; k++) {
        struct record_ask *a = &h->asks[k];

        if (!a->active || a->due_us > h->now.mono_us)
            continue;
        for (size_t i = 0; i < a->nodes; i++)
            if (h->nodes[i]->owes & ask_bit(h, a))
                ask_missing(h, fx, a, h->nodes[i]);
        ask_end(fx, a);
    }
}

/* Asks the next nodes. If ten thousand were asked at once, the store's other clients
 * would have to wait. */
static void ask_slice(struct recorder *h, struct run_fx *fx, struct record_ask *a)
{
    const size_t end = MIN_OF(a->asked + RECORDER_SLICE, a->nodes);
    assert(a->asked <= a->nodes && a->nodes <= h->count);
    for (; a->asked < end; a->asked++)
        if (h->nodes[a->asked]->owes & ask_bit(h, a))
            run_send(
                fx, h->nodes[a->asked]->session->peer,
                (struct run_msg){ .kind = MSG_QUESTION,
                                  .seq = a->id,
                                  .value = a->value,
                                  .name = span_of(a->text, a->name_size),
                                  .bytes = span_of(a->text + a->name_size, a->size) });
    a->slice_us = a->asked < a->nodes ? h->now.mono_us + RECORDER_SLICE_US : MONO_NEVER;
}

static void on_ask(struct recorder *h, struct run_fx *fx, const struct record_peer *n,
                   const struct run_msg *m)
{
    struct record_ask *a = NULL;

    for (size_t k = 0; k < RECORDER_ASKS && !a; k++)
        if (!h->asks[k].active)
            a = &h->asks[k];
    if (!a) { /* Too many questions at once: this one gets no answers. */
        run_send(
            fx, n->session->peer,
            (struct run_msg){ .kind = MSG_ANSWERED, .flags = MSG_LAST, .seq = m->seq });
        return;
    }
    uint8_t *text = mem_calloc(1 + m->name.n + m->bytes.n, 1);
    if (!text) {
        fx->no_memory = true;
        return;
    }
    if (m->name.n)
        memcpy(text, m->name.p, m->name.n);
    if (m->bytes.n)
        memcpy(text + m->name.n, m->bytes.p, m->bytes.n);
    *a = (struct record_ask){ .active = true,
                              .id = h->next_ask++,
                              .seq = m->seq,
                              .peer = n->session->peer,
                              .due_us = h->now.mono_us +
                                        MIN_OF(m->value, 600000u) * 1000 +
                                        h->count / RECORDER_SLICE * RECORDER_SLICE_US,
                              .nodes = h->count,
                              .value = m->value,
                              .text = text,
                              .name_size = m->name.n,
                              .size = m->bytes.n };
    for (size_t i = 0; i < h->count; i++) {
        if (!h->nodes[i]->here || !h->nodes[i]->number)
            continue;
        h->nodes[i]->owes |= (uint16_t)ask_bit(h, a);
        a->pending++;
    }
    if (a->pending == 0)
        ask_end(fx, a);
    else
        ask_slice(h, fx, a);
}

static void on_answer(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                      const struct run_msg *m)
{
    for (size_t k = 0; k < RECORDER_ASKS; k++) {
        struct record_ask *a = &h->asks[k];

        if (a->id != m->seq || !(n->owes & ask_bit(h, a)))
            continue;
        ask_settle(h, a, n);
        run_send(fx, a->peer,
                 (struct run_msg){ .kind = MSG_ANSWERED,
                                   .seq = a->seq,
                                   .node = n->number,
                                   .flags = m->flags & MSG_MISSING,
                                   .host = span_str(n->host),
                                   .bytes = m->bytes });
        if (a->pending == 0)
            ask_end(fx, a);
    }
}

/* ---- clocks ---- */

/* The node read its clocks between our PING and now; our best guess is halfway between
 * the two. The shorter the round trip, the smaller the error, so a much slower answer
 * does not replace an earlier one, unless that is old. */
static void on_beat(struct recorder *h, struct run_fx *fx, struct record_peer *n,
                    const struct run_msg *m)
{
    const uint64_t rtt = h->now.mono_us - MIN_OF(m->seq, h->now.mono_us);

    if (n->serves_store)
        return; /* Its clock is ours. */
    const bool stale = n->measured && h->now.mono_us - n->measured_us > 60000000u;

    n->ping_us = 0;
    n->slow_us = MAX_OF(rtt, n->slow_us - n->slow_us / 8);
    n->session->slow_us = n->slow_us;
    if (!n->measured || stale || rtt <= n->rtt_us + n->rtt_us / 2) {
        n->offset_us = m->mono_us - (int64_t)(h->now.mono_us - rtt / 2);
        n->wall_ahead_us = m->wall_us - (h->now.wall_us - (int64_t)rtt / 2);
        n->rtt_us = rtt;
        n->measured = true;
        n->measured_us = h->now.mono_us;
    }
    if (n->quick_pings && --n->quick_pings)
        ping(h, fx, n);
    /* In the first round its nodes are announced once it is known who is in it. */
    if (h->unannounced && n->number && !n->announced && n->quick_pings == 0 &&
        h->round.number >= 0)
        announce(h, fx);
}

/* ---- time ---- */

void recorder_timer(struct recorder *h, struct run_fx *fx)
{
    if (h->round.due_us <= h->now.mono_us)
        record_round(h, fx);
    if (h->phases.due_us <= h->now.mono_us)
        emit_phases(h, fx);
    if (h->end.active && h->end.due_us <= h->now.mono_us)
        judge(h, fx);
    ask_expire(h, fx);
    /* This must come last: the messages borrow the text of the ask. */
    for (size_t k = 0; k < RECORDER_ASKS; k++)
        if (h->asks[k].active && h->asks[k].slice_us <= h->now.mono_us)
            ask_slice(h, fx, &h->asks[k]);
}

uint64_t recorder_deadline(const struct recorder *h)
{
    uint64_t by = MIN_OF(h->round.due_us, h->phases.due_us);

    if (h->end.active)
        by = MIN_OF(by, h->end.due_us);
    for (size_t k = 0; k < RECORDER_ASKS; k++)
        if (h->asks[k].active)
            by = MIN_OF(by, MIN_OF(h->asks[k].due_us, h->asks[k].slice_us));
    return by;
}

/* ---- the step ---- */

static void on_sync(struct recorder *h, struct run_fx *fx, const struct record_peer *n,
                    const struct run_msg *m)
{
    if (!(m->flags & MSG_LAST)) {
        run_send(fx, n->session->peer,
                 (struct run_msg){ .kind = MSG_SYNCED, .seq = m->seq });
        return;
    }
    h->last_peer = n->session->peer;
    h->last_seq = m->seq;
    notify_last(h, fx);
}

bool recorder_message(struct recorder *h, struct record_peer *n,
                      const struct run_msg *m, struct run_fx *fx)
{
    if (n->number == 0 && m->kind != MSG_ASK && m->kind != MSG_BEAT &&
        m->kind != MSG_SYNC && m->kind != MSG_BYE)
        return true; /* An observer only asks and listens. */
    if (!n->here)
        return true; /* It has said BYE. */
    switch (m->kind) {
    case MSG_BEAT:
        on_beat(h, fx, n, m);
        return true;
    case MSG_PUBLISH:
        on_publish(h, fx, n, m);
        return true;
    case MSG_OFFER:
        on_offer(h, fx, m);
        return true;
    case MSG_RANKS:
        on_ranks(h, fx, n, m);
        return true;
    case MSG_REPORTED:
        on_reported(h, fx, n, m);
        return true;
    case MSG_MOVED:
        on_moved(h, fx, n, m);
        return true;
    case MSG_ASK:
        on_ask(h, fx, n, m);
        return true;
    case MSG_ANSWER:
        on_answer(h, fx, n, m);
        return true;
    case MSG_SYNC:
        on_sync(h, fx, n, m);
        return true;
    case MSG_PHASE:
        on_phase(h, fx, n, m);
        return true;
    case MSG_BYE:
        on_bye(h, fx, n);
        return true;
    default:
        return false;
    }
}

/* What holds between two steps, whatever the peers send. */
static void check_invariants(const struct recorder *h)
{
    assert(h->count <= h->size && h->count <= RECORDER_NODES);
    assert(h->unannounced <= h->count && h->agents <= h->count);
    assert(h->end.failures.count <= RECORD_FAILED_MAX);
    assert((int64_t)h->end.failures.count <= h->end.failures.failed);
    assert(h->end.active ||
           (h->end.failures.count == 0 && h->end.due_us == MONO_NEVER));
    assert(!h->end.active || h->end.due_us != MONO_NEVER);
    assert(h->next_number > 0 && h->next_ask > 0);
    for (size_t k = 0; k < RECORDER_ASKS; k++) {
        const struct record_ask *a = &h->asks[k];

        assert(a->active == (a->text != NULL));
        assert(!a->active || (a->pending > 0 && a->pending <= a->nodes));
    }
}

void recorder_begin_step(struct recorder *h, struct run_now now)
{
    h->now = now;
    /* While failures are compared, the clock that they are told by must not be set. */
    if (!h->end.active)
        h->wall_ahead_us = now.wall_us - (int64_t)now.mono_us;
    h->now.wall_us = (int64_t)now.mono_us + h->wall_ahead_us;
    h->known_before = h->record.last;
    h->restarts = -1;
}

void recorder_end_step(struct recorder *h)
{
    record_prune(&h->record, h->known_before);
    check_invariants(h);
}
