/* hub.c - see hub.h. In order: all or nothing, effects, nodes, entries, lost nodes,
 * rounds, phases, failures, publishing, attaching and leaving, questions, clocks, time,
 * the step. */
#include "job/core/hub.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "job/core/judge.h"
#include "job/core/phase_times.h"

#define QUICK_PINGS   4u     /* right after ATTACH */
#define DRIFT_PPM     100    /* by which two quartz clocks may drift apart */
#define UNKNOWN_US    500000 /* how unsure a time is if the clock was never measured */
#define CODES_MAX     4096u  /* bytes of a node's exit codes */
#define LOST_TEXT_MAX 2048u  /* bytes of the text that says why a node was lost */
#define RETRY_US      100000 /* after a TIMER for which there was no memory */

/* We believe no node that claims to know an entry with a higher number, so that our own
 * numbers, which continue above it, cannot overflow. */
#define KNOWN_NUMBER_MAX (UINT64_MAX / 2)

/* Likewise for the number that a node says it has; half of what the wire allows, so
 * that the numbers that we give out above it can be sent. */
#define KNOWN_NODE_MAX (JOB_NODE_MAX / 2)

struct hub_node {
    size_t index;    /* in hub.nodes */
    uint32_t number; /* 0: an observer */
    uint32_t peer;
    struct session *session; /* borrowed; NULL: an observer that is gone */
    bool here;               /* attached now */
    bool detached;   /* its connection is gone, and on_detached() is still to be run */
    bool gone;       /* left or lost, and not expected back */
    bool left;       /* it said goodbye */
    bool conn_broke; /* lost because its connection broke, not because it fell silent */
    bool serves_store; /* its process serves the store, so its clock is ours */
    bool announced;    /* in a NODES entry */
    char *host, *addr; /* owned */
    size_t given;      /* bytes of host that the node gave; then what tells it apart */
    int64_t pid, nproc;
    uint64_t last_seq; /* of its PUBLISHes */
    uint64_t lost_us;  /* when it was declared lost */

    bool measured;         /* the next four are known */
    int64_t offset_us;     /* its monotonic clock ahead of ours */
    int64_t wall_ahead_us; /* its wall clock ahead of ours */
    uint64_t rtt_us, measured_us;
    uint64_t slow_us;     /* the slowest recent round trip */
    uint64_t ping_us;     /* when the first unanswered PING was sent; 0: none is open */
    unsigned quick_pings; /* still to be answered right after ATTACH */

    int64_t seat_round_plus1, seat; /* of its SEAT; 0: none yet */
    int64_t round, first, count;    /* of its RANKS; round -1: none yet */
    bool reported;                  /* its workers of `round` have exited */
    bool clean;                     /* all of them exited with 0 by themselves */
    bool moved;                     /* it has stopped them for the next round */
    int64_t moved_us;  /* the earliest that it may have done so, by our wall clock */
    bool own_budget;   /* it counts restarts for itself */
    bool judged;       /* own_budget: a failure of its current attempt was judged */
    int64_t judged_us; /* when that last happened, by our wall clock */
    char *codes;       /* owned; as REPORTED had them */
    uint16_t owes;     /* a bit for each of hub.asks that it has still to answer */

    bool changed;         /* in this step; then *was is the node before the step */
    struct hub_node *was; /* second half of this node's allocation */
    struct hub_node *next_changed; /* borrowed */
};

struct hub_ask {
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

_Static_assert(HUB_ASKS <= 8 * sizeof((struct hub_node){ 0 }.owes),
               "a bit for each question");

struct hub {
    char *run_id; /* owned */
    const struct trace *trace;
    struct sessions *sessions; /* borrowed; who is connected, and who is lost */
    struct session *attaching; /* borrowed; whose ATTACH this step handles, or NULL */
    struct record record;
    struct hub_node **nodes; /* owned, as is each */
    size_t count, size;
    uint32_t next_number;
    size_t here;          /* nodes that are attached, observers included */
    int64_t max_restarts; /* of the node that serves the store, else of the first one */
    bool has_budget;      /* max_restarts is known */
    uint64_t ping_due_us;
    size_t pinged;         /* nodes that this round of PINGs has passed */
    bool ping_any;         /* one of them was attached */
    size_t settled;        /* losses that this step has dealt with */
    size_t agents;         /* nodes that are attached, without observers */
    size_t free_slots;     /* of observers that are gone */
    size_t unannounced;    /* nodes that are in no NODES entry yet, */
    size_t announced;      /* and the index before which there is none of them */
    struct hub_node *host; /* borrowed; the last that said that it serves the store */
    size_t detached_count; /* nodes whose `detached` is set */
    uint64_t known_number; /* the highest number of an entry that any agent knows */

    struct {
        int64_t number;         /* -1: none yet */
        int64_t expected, have; /* nodes; `have` have sent their RANKS */
        size_t clean;           /* those before this index are clean */
        uint64_t due_us;        /* MONO_NEVER: recorded, or none */
        bool over;              /* its ENDED entry is in the record */
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
    struct {
        int64_t round;    /* -1: none yet */
        int64_t reported; /* nodes that have sent all of theirs */
        bool done; /* the entry was made; later times get an entry of their own */
        uint64_t due_us;
        struct phase_times times;
    } phases;
    uint32_t last_peer; /* the sender of LAST */
    uint64_t last_seq;  /* of LAST; 0: nobody waits to be the last one */
    struct hub_ask asks[HUB_ASKS];
    uint64_t next_ask;
    struct buf text; /* of lost_text(); its memory is allocated at the start */
    struct run_now now;
    int64_t wall_ahead_us; /* of mono_us, as of the last step outside a judgement */

    bool no_memory;           /* an allocation has failed in this step */
    uint64_t retry_us;        /* no TIMER is due before this */
    struct hub_node *changed; /* the nodes that changed in this step, a list */
    struct hub *was;          /* owned: this struct as it was before the step */
};

static const struct job_msg no_msg = { JOB_NONE };

/* ---- new and free ---- */

struct hub *hub_new(struct span run_id, struct sessions *sessions,
                    const struct trace *trace)
{
    struct hub *h = mem_calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    h->was = mem_calloc(1, sizeof *h);
    buf_init(&h->text, LOST_TEXT_MAX);
    if (!h->run_id || !h->was || !buf_room(&h->text, LOST_TEXT_MAX)) {
        hub_free(h);
        return NULL;
    }
    h->trace = trace;
    h->sessions = sessions;
    record_init(&h->record);
    h->next_number = 1;
    h->next_ask = 1;
    h->round.number = -1;
    h->round.due_us = h->end.due_us = h->ping_due_us = MONO_NEVER;
    h->phases.round = -1;
    h->phases.due_us = MONO_NEVER;
    return h;
}

/* Its line is closed, or will be by whoever owns the connections. */
static void forget_session(struct hub *h, struct hub_node *n)
{
    struct session *s = n->session;

    n->session = NULL;
    if (!s || s->part[LINE_RECORD] != n)
        return;
    session_close(h->sessions, s, LINE_RECORD, 0, 0);
    session_settle(h->sessions, s, LINE_RECORD);
    s->part[LINE_RECORD] = NULL;
    session_release(h->sessions, s);
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
    for (size_t i = 0; i < h->count; i++) {
        forget_session(h, h->nodes[i]);
        node_free(h->nodes[i]);
    }
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

/* A step changes the hub and its nodes as it goes. If an allocation fails, it sets
 * h->no_memory and goes on, and at its end all its changes are undone. For that, the
 * hub and each node are copied before they change (the copies' memory is allocated with
 * them), and what they owned before is freed only once the step has succeeded. */
static void step_begin(struct hub *h)
{
    assert(!h->changed && !h->no_memory);
    *h->was = *h;
}

/* Must be called before a node is changed. */
static void save_node(struct hub *h, struct hub_node *n)
{
    if (n->changed)
        return;
    *n->was = *n;
    n->changed = true;
    n->next_changed = h->changed;
    h->changed = n;
}

/* Whether it was an observer that has gone. Nothing remembers those, so the next node
 * takes its place: people may look at a job as often as they like. */
static bool is_free(const struct hub_node *n)
{
    return n->number == 0 && n->gone && !n->here && !n->detached;
}

/* Frees what n owns and other does not. */
static void release_node(const struct hub_node *n, const struct hub_node *other)
{
    if (n->codes != other->codes)
        mem_free(n->codes);
    if (n->host != other->host)
        mem_free(n->host);
    if (n->addr != other->addr)
        mem_free(n->addr);
}

static void step_commit(struct hub *h)
{
    for (; h->settled; h->settled--) {
        struct session *s = sessions_owed(h->sessions, LINE_RECORD);

        session_close(h->sessions, s, LINE_RECORD, h->now.mono_us, 0);
        session_settle(h->sessions, s, LINE_RECORD);
    }
    for (struct hub_node *n = h->changed; n; n = n->next_changed) {
        n->changed = false;
        release_node(n->was, n);
        if (n->session)
            n->session->slow_us = n->measured ? n->slow_us : SESSION_MOST_US / 8;
        if (is_free(n) && n->session) {
            forget_session(h, n);
            h->free_slots++;
        }
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
        release_node(n, n->was);
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
    was->nodes = h->nodes; /* It may have moved; the room that it gained may stay. */
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

static void add_effect(struct hub *h, struct hub_fx *fx, struct hub_effect e)
{
    struct hub_effect *items =
        mem_grow_to(fx->items, &fx->size, fx->count, sizeof *items);

    if (!items) {
        h->no_memory = true;
        return;
    }
    fx->items = items;
    fx->items[fx->count++] = e;
}

static void send_to(struct hub *h, struct hub_fx *fx, uint32_t peer, struct job_msg msg)
{
    add_effect(h, fx,
               (struct hub_effect){ .kind = HUB_SEND, .peer = peer, .msg = msg });
}

static void drop(struct hub *h, struct hub_fx *fx, uint32_t peer, const char *why)
{
    add_effect(h, fx,
               (struct hub_effect){
                   .kind = HUB_DROP, .peer = peer, .msg = { .bytes = span_str(why) } });
}

/* ---- nodes ---- */

static struct hub_node *node_of_peer(const struct hub *h, uint32_t peer)
{
    const struct session *s = sessions_of(h->sessions, LINE_RECORD, peer);

    return s ? s->part[LINE_RECORD] : NULL;
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

static struct hub_node *new_slot(struct hub *h)
{
    struct hub_node **nodes = mem_grow_to(h->nodes, &h->size, h->count, sizeof *nodes);
    struct hub_node *n = nodes ? mem_calloc(2, sizeof *n) : NULL;

    if (nodes)
        h->nodes = nodes;
    if (!n)
        return NULL;
    assert(h->count < h->size && h->count < HUB_NODES);
    n->was = n + 1;
    n->index = h->count;
    h->nodes[h->count++] = n;
    return n;
}

static struct hub_node *free_slot(struct hub *h)
{
    for (size_t i = 0; i < h->count && h->free_slots; i++)
        if (is_free(h->nodes[i])) {
            save_node(h, h->nodes[i]);
            h->free_slots--;
            return h->nodes[i];
        }
    return h->count < HUB_NODES ? new_slot(h) : NULL;
}

static int add_node(struct hub *h, const struct job_msg *m, struct hub_node **out)
{
    struct hub_node *n = free_slot(h);

    if (!n)
        return h->count < HUB_NODES ? MUSTER_ENOMEM : MUSTER_EFULL;
    *n = (struct hub_node){
        .host = mem_strndup((const char *)m->host.p, MIN_OF(m->host.n, 255)),
        .addr = mem_strndup((const char *)m->addr.p, MIN_OF(m->addr.n, 255)),
        .index = n->index,
        .session = h->attaching,
        .pid = m->pid,
        .nproc = m->nproc,
        .round = -1,
        .changed = n->changed,
        .was = n->was,
        .next_changed = n->next_changed,
    };
    if (!n->host || !n->addr)
        return MUSTER_ENOMEM; /* step_undo() frees it. */
    n->given = strlen(n->host);
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
    e->number = MAX_OF(h->record.last, h->known_number) + 1;
    assert(e->number > h->record.last);
    if (e->at_us == 0)
        e->at_us = h->now.wall_us;
    if (record_stage(&h->record, e) < 0)
        h->no_memory = true;
    add_effect(h, fx, (struct hub_effect){ .kind = HUB_ENTRY, .number = e->number });
}

/* Allocates all the memory that the body of an entry can take. After that a line is
 * left out only if it does not fit, never for want of memory. */
static bool body_begin(struct hub *h, struct buf *b)
{
    buf_init(b, RECORD_BODY_MAX);
    if (!buf_room(b, RECORD_BODY_MAX))
        h->no_memory = true;
    return !h->no_memory;
}

static int by_host(const void *a, const void *b)
{
    const struct hub_node *x = *(struct hub_node *const *)a;
    const struct hub_node *y = *(struct hub_node *const *)b;
    const int c = strncmp(x->host, y->host, MAX_OF(x->given, y->given));

    if (x->given != y->given)
        return c ? c : x->given < y->given ? -1 : 1;
    return c ? c : strcmp(x->addr, y->addr);
}

static bool is_alike(const struct hub_node *x, const struct hub_node *y, bool addr)
{
    return x->given == y->given && strncmp(x->host, y->host, x->given) == 0 &&
           (!addr || strcmp(x->addr, y->addr) == 0);
}

/* Whether a node has come whose name another one may have. Where nodes come one after
 * the other, this is cheaper than sorting all of them each time. */
static bool has_namesakes(const struct hub *h)
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
static void tell_apart(struct hub *h)
{
    struct hub_node **list;
    size_t count = 0;

    if (!has_namesakes(h))
        return;
    list = mem_calloc(h->count, sizeof(struct hub_node *));
    if (!list)
        h->no_memory = true;
    for (size_t i = 0; list && i < h->count; i++)
        if (h->nodes[i]->number && h->nodes[i]->here)
            list[count++] = h->nodes[i];
    if (count > 1)
        qsort(list, count, sizeof *list, by_host);
    for (size_t i = 0; i < count; i++) {
        struct hub_node *n = list[i];
        const struct hub_node *before = i ? list[i - 1] : NULL;
        const struct hub_node *after = i + 1 < count ? list[i + 1] : NULL;
        const bool same = (before && is_alike(n, before, true)) ||
                          (after && is_alike(n, after, true)) || !*n->addr;

        if (n->host[n->given] || !((before && is_alike(n, before, false)) ||
                                   (after && is_alike(n, after, false))))
            continue;
        char *name =
            same && n->seat_round_plus1 > 0
                ? mem_printf("%.*s[node%" PRId64 "]", (int)n->given, n->host, n->seat)
            : same ? mem_printf("%.*s[%" PRIu32 "]", (int)n->given, n->host, n->number)
                   : mem_printf("%.*s[%s]", (int)n->given, n->host, n->addr);
        if (!name) {
            h->no_memory = true;
            break;
        }
        save_node(h, n);
        if (n->host != n->was->host) /* It has come in this very step. */
            mem_free(n->host);
        n->host = name;
    }
    mem_free(list);
}

/* One entry announces many nodes: if a thousand come at once, a thousand entries for a
 * thousand nodes would be a million messages. */
static void announce(struct hub *h, struct hub_fx *fx)
{
    struct record_entry e = { .kind = RECORD_NODES, .round = h->round.number };
    struct buf b;

    tell_apart(h);
    if (!body_begin(h, &b)) {
        buf_fini(&b);
        return;
    }
    for (; h->announced < h->count && h->unannounced; h->announced++) {
        struct hub_node *n = h->nodes[h->announced];
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
        save_node(h, n);
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
                         (double)(until - n->session->heard_us) / 1e6);
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
    e->at_us = h->now.wall_us - (int64_t)(h->now.mono_us - n->session->heard_us);
    e->text =
        lost_text(h, n, n->conn_broke && !n->left ? "its connection broke" : NULL);
}

/* ---- rounds ---- */

/* The attached node whose process serves the store, or NULL. */
static const struct hub_node *serving(const struct hub *h)
{
    return h->host && h->host->here && h->host->serves_store ? h->host : NULL;
}

static int by_first_rank(const void *a, const void *b)
{
    const struct hub_node *const *x = a, *const *y = b;

    return ((*x)->first > (*y)->first) - ((*x)->first < (*y)->first);
}

/* The nodes of a round in rank order; the caller frees the list. */
static struct hub_node **round_nodes(struct hub *h, int64_t round, size_t *count)
{
    struct hub_node **sorted = mem_calloc(h->count + 1, sizeof *sorted);
    size_t n = 0;

    if (!sorted)
        h->no_memory = true;
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
static void record_vanished(struct hub *h, struct hub_fx *fx)
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
        h->no_memory = true;
    for (body = buf_span(&copy); record_ranks_next(&body, &r);) {
        if (number_taken(h, r.node) || !record_host_of(&h->record, r.node, &n) ||
            record_node_ended(&h->record, r.node))
            continue;
        struct session away = { .heard_us = h->now.mono_us };
        struct hub_node node = { .number = r.node,
                                 .host = mem_strndup((const char *)n.host.p, n.host.n),
                                 .round = last.round,
                                 .first = r.first,
                                 .count = r.count,
                                 .session = &away };
        if (!node.host) {
            h->no_memory = true;
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
    record_vanished(h, fx);
    nodes = round_nodes(h, h->round.number, &count);
    body_begin(h, &b);
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
}

static void judge(struct hub *h, struct hub_fx *fx);

static void on_ranks(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                     const struct job_msg *m)
{
    if (m->count < 0 || m->rank < 0 || m->round < 0)
        return;
    /* Judge while we still know that this node left that round because nodes came or
     * went. */
    if (h->end.active && n->moved && n->round == h->end.round && m->round != n->round)
        judge(h, fx);
    save_node(h, n);
    h->round.have -= in_round(n, h->round.number);
    h->round.clean = MIN_OF(h->round.clean, n->index);
    h->end.reported = MIN_OF(h->end.reported, n->index);
    n->round = m->round;
    n->first = m->rank;
    n->count = m->count;
    n->reported = n->clean = n->moved = n->judged = false;
    n->own_budget = m->flags & JOB_OWN_BUDGET;
    n->codes = NULL;
    if (n->own_budget) /* Each node restarts by itself within the one round. */
        h->round.over = false;
    if (m->round > h->round.number) {
        h->round.number = m->round;
        h->round.have = 0;
        h->round.clean = 0;
        h->round.expected = m->total;
        h->round.over = false;
        h->round.due_us = h->now.mono_us + HUB_GATHER_US;
    }
    assert(h->round.number >= m->round);
    h->round.have += in_round(n, h->round.number);
    if (h->round.due_us != MONO_NEVER && h->round.have >= h->round.expected)
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
        h->no_memory = true;
    e.body = buf_span(&b);
    if (buf_len(&b))
        emit(h, fx, &e);
    buf_fini(&b);
}

/* Keeps the times until all nodes of the round have sent theirs, for one entry. */
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
        h->no_memory = true;
    h->phases.reported += m->rank == 0;
    if ((h->phases.done || h->phases.reported >= h->round.expected) && m->rank == 0)
        emit_phases(h, fx);
}

/* So that a node that loses the coordinator can say which node went with it. */
static void notify_host(struct hub *h, struct hub_fx *fx, const struct hub_node *host,
                        uint32_t peer)
{
    assert(host->serves_store && host->seat_round_plus1 > 0);
    send_to(h, fx, peer,
            (struct job_msg){ .kind = JOB_HOST,
                              .round = host->seat_round_plus1 - 1,
                              .rank = host->seat });
}

static void on_seat(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                    const struct job_msg *m)
{
    if (m->round < 0 || m->round == INT64_MAX)
        return;
    save_node(h, n);
    n->seat_round_plus1 = m->round + 1;
    n->seat = m->rank;
    for (size_t i = 0; n->serves_store && i < h->count; i++)
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

/* A node of the round that is gone, or has not answered since the first failure. */
static const struct hub_node *lost_node(const struct hub *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct hub_node *n = h->nodes[i];

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
static bool follows_a_move(const struct hub *h, const struct record_entry *f)
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

/* Called when all nodes have reported, their time is up, or one of them is in the next
 * round. */
static void judge(struct hub *h, struct hub_fx *fx)
{
    struct record_entry e = { .kind = RECORD_VERDICT, .cause = CAUSE_EXIT };
    const struct hub_node *lost = lost_node(h);
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
    const int64_t total = h->end.own_budget ? h->end.total : h->max_restarts;
    const int64_t used = h->end.own_budget ? h->end.used : h->record.restarts;
    e.kind = (counts && used >= total) || h->end.stop ? RECORD_VERDICT : RECORD_RESTART;
    e.total = total;
    e.count =
        e.kind == RECORD_RESTART ? MIN_OF(used + counts, RECORD_NUMBER_MAX) : used;
    emit(h, fx, &e);
    for (size_t i = 0; i < h->count; i++)
        if (h->nodes[i]->number == h->end.node) {
            save_node(h, h->nodes[i]);
            h->nodes[i]->judged = true;
            h->nodes[i]->judged_us = h->now.wall_us;
        }
    h->end.active = false;
    h->end.due_us = MONO_NEVER;
    h->end.failures = (struct judge_list){ 0 }; /* The commit frees what was in it. */
}

/* Each node is looked at once in a round, unless it comes back: h->end.reported. */
static void judge_if_all_reported(struct hub *h, struct hub_fx *fx)
{
    for (; h->end.reported < h->count; h->end.reported++) {
        const struct hub_node *n = h->nodes[h->end.reported];

        /* With a budget of its own, a node that has restarts left does not wait for the
         * others. */
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
    save_node(h, n);
    if (n->ping_us == 0)
        n->ping_us = h->now.mono_us;
    send_to(h, fx, n->peer,
            (struct job_msg){ .kind = JOB_PING,
                              .seq = h->now.mono_us,
                              .mono_us = (int64_t)h->now.mono_us });
}

static void begin_ending(struct hub *h, struct hub_fx *fx, const struct record_entry *f,
                         bool own_budget)
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
    h->end.due_us = h->now.mono_us + HUB_JUDGE_US;
    e.total = own_budget ? f->total : h->max_restarts;
    e.count = own_budget ? f->count : h->record.restarts;
    /* Either --hang=TIME:stop was given, or the program cannot be executed, which a
     * restart would not change. */
    h->end.stop = (f->cause == CAUSE_HANG && f->code != 0) || f->cause == CAUSE_START;
    h->end.final = e.count >= e.total || h->end.stop;
    /* A failure that only says that a peer is gone may be due to a lost node, or to one
     * that has moved on, and neither is counted as a restart. Code 2 says that this is
     * known only at the end of the round. */
    e.code = !h->end.final ? 0 : (echo || follows_a_move(h, f)) && !own_budget ? 2 : 1;
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

static void on_failed(struct hub *h, struct hub_fx *fx, const struct hub_node *n,
                      const struct record_entry *f)
{
    const bool own_budget = n->own_budget;

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
        (f->round < h->round.number || (h->round.over && f->round == h->round.number)))
        return; /* That round was judged, or the job went on without this node. */
    if (!h->end.active)
        begin_ending(h, fx, f, own_budget);
    if (judge_list_keep(&h->end.failures, f) < 0)
        h->no_memory = true;
}

static void succeed_if_all_have(struct hub *h, struct hub_fx *fx, int64_t round)
{
    struct record_entry e = { .kind = RECORD_VERDICT,
                              .cause = CAUSE_SUCCEEDED,
                              .round = round,
                              .rank = -1,
                              .local_rank = -1,
                              .pid = -1 };

    assert(round == h->round.number);
    for (; h->round.clean < h->count; h->round.clean++) {
        const struct hub_node *n = h->nodes[h->round.clean];

        if (in_round(n, round) && !n->clean)
            return;
    }
    if (h->round.over || h->round.have < h->round.expected)
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
    save_node(h, n);
    n->reported = true;
    n->clean = m->count == 0 && m->total == 0;
    if (!n->clean)
        h->round.clean = MIN_OF(h->round.clean, n->index);
    n->codes = mem_strndup((const char *)m->bytes.p, MIN_OF(m->bytes.n, CODES_MAX));
    if (!n->codes)
        h->no_memory = true;
    if (h->end.active && h->end.round == n->round)
        judge_if_all_reported(h, fx);
    else if (n->clean && n->round == h->round.number)
        succeed_if_all_have(h, fx, n->round);
}

/* ---- publishing ---- */

/* Translates at_us to our clock. The sender's wall clock may be hours off, or be set
 * while the job runs, so we trust only the time between two of its readings. */
static void translate(const struct hub *h, const struct hub_node *n,
                      const struct job_msg *m, struct record_entry *e)
{
    int64_t age = e->at_us == 0 ? 0 : m->wall_us - e->at_us;
    int64_t at = (int64_t)h->now.mono_us;
    int64_t unsure = UNKNOWN_US;

    age = MIN_OF(MAX_OF(age, 0), JOB_CLOCK_MAX);
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

static void on_moved(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                     const struct job_msg *m)
{
    struct record_entry e = { 0 };

    if (m->round != n->round || n->moved)
        return;
    translate(h, n, m, &e);
    save_node(h, n);
    n->moved = true;
    n->moved_us = e.at_us - e.unsure_us;
    if (h->end.active && h->end.round == n->round)
        judge_if_all_reported(h, fx);
}

static void declare_lost(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                         bool broke);

/* A node has waited for another round in vain. If nodes were lost since the last round,
 * the first of them is the reason. If others have gone on meanwhile in a round without
 * this node, the job has not failed. */
static void on_gave_up(struct hub *h, struct hub_fx *fx, const struct record_entry *f)
{
    struct record_entry e = *f, there;
    struct hub_node *lost = NULL;
    int64_t more = 0;

    if (f->round != h->round.number || h->end.active ||
        record_find(&h->record, RECORD_VERDICT, -1, &there))
        return;
    for (size_t i = 0; i < h->count; i++) {
        struct hub_node *n = h->nodes[i];
        const bool unresponsive = n->ping_us &&
                                  h->now.mono_us - n->ping_us > HUB_ANSWER_US &&
                                  !n->serves_store;

        if (!in_round(n, f->round) || !(n->gone || unresponsive))
            continue;
        more += lost != NULL;
        if (!lost || n->session->heard_us < lost->session->heard_us)
            lost = n;
    }
    if (lost) {
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
    e.total = h->max_restarts;
    emit(h, fx, &e);
}

static void leave(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    save_node(h, n);
    n->left = true;
    n->gone = true;
    if (h->end.active && in_round(n, h->end.round))
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
        return; /* It was sent again because the connection broke. */
    save_node(h, n);
    n->last_seq = m->seq;
    if (record_entry_decode(m->bytes, &e, &err) < 0) {
        drop(h, fx, n->peer, "the node published an entry that cannot be read");
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

    if (record_entry_decode(m->bytes, &e, NULL) < 0 || e.number > h->known_number)
        return;
    add_effect(h, fx, (struct hub_effect){ .kind = HUB_ENTRY, .number = e.number });
    /* This must come last, since step_undo() cannot undo an insertion. */
    if (!h->no_memory && record_insert(&h->record, &e) < 0)
        h->no_memory = true;
}

/* ---- attaching and leaving ---- */

static void attached(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                     const struct job_msg *m)
{
    assert(n->here);
    save_node(h, n);
    h->known_number = MAX_OF(h->known_number, MIN_OF(m->value, KNOWN_NUMBER_MAX));
    send_to(h, fx, n->peer,
            (struct job_msg){
                .kind = JOB_ATTACHED, .node = n->number, .value = h->record.last });
    /* If it knows entries that we lack, from another coordinator before us, we ask it
     * for them; our own numbers continue above its last one. Otherwise we send it what
     * it lacks. */
    if (m->value > h->record.last)
        send_to(h, fx, n->peer,
                (struct job_msg){ .kind = JOB_WANT, .value = h->record.last });
    else
        add_effect(h, fx,
                   (struct hub_effect){
                       .kind = HUB_CATCH_UP, .peer = n->peer, .number = m->value });
    if (n->serves_store) {
        n->measured = true;
        n->measured_us = h->now.mono_us;
        return;
    }
    if (serving(h) && serving(h)->seat_round_plus1)
        notify_host(h, fx, serving(h), n->peer);
    n->quick_pings = QUICK_PINGS;
    ping(h, fx, n);
    if (h->ping_due_us == MONO_NEVER)
        h->ping_due_us = h->now.mono_us + HUB_PING_US;
}

static void ask_cancel(struct hub *h, uint32_t peer);
static void on_detached(struct hub *h, struct hub_fx *fx, struct hub_node *n);

static void on_attach(struct hub *h, struct hub_fx *fx, uint32_t peer,
                      const struct job_msg *m)
{
    struct hub_node *n = h->attaching->part[LINE_RECORD];
    const bool observer = m->flags & JOB_OBSERVER;

    const int rc = n ? 0 : add_node(h, m, &n);
    if (rc == MUSTER_EFULL) {
        drop(h, fx, peer, "the job has too many nodes");
        return;
    }
    if (rc < 0) {
        h->no_memory = true;
        return;
    }
    save_node(h, n);
    if (n->detached)
        on_detached(h, fx, n);
    if (n->session->owed[LINE_RECORD] && !n->gone && n->number)
        declare_lost(h, fx, n, n->session->broke);
    if (n->here && n->peer != peer) {
        drop(h, fx, n->peer, "the node has come back over another connection");
        ask_cancel(h, n->peer);
        h->here--;
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
        h->agents += n->here;
    }
    if (!n->here) {
        h->here++;
        h->agents += n->number != 0;
    }
    h->end.reported = MIN_OF(h->end.reported, n->index);
    n->here = true;
    n->gone = n->left = n->conn_broke = false;
    n->lost_us = 0;
    n->peer = peer;
    n->ping_us = 0;
    n->serves_store = m->flags & JOB_SERVES;
    if (n->serves_store)
        h->host = n;
    if (!observer && (!h->has_budget || m->flags & JOB_SERVES)) {
        h->max_restarts = m->total;
        h->has_budget = true;
    }
    attached(h, fx, n, m);
}

static void ask_node_gone(struct hub *h, struct hub_fx *fx, struct hub_node *n);

static void declare_lost(struct hub *h, struct hub_fx *fx, struct hub_node *n,
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
    save_node(h, n);
    n->gone = true;
    n->conn_broke = broke;
    n->lost_us = h->now.mono_us;
    blame_node(h, &e, n);
    e.rank = n->round >= 0 ? n->first : -1;
    e.pid = n->pid;
    emit(h, fx, &e);
    if (h->end.active && in_round(n, h->end.round))
        judge_if_all_reported(h, fx);
}

static void notify_last(struct hub *h, struct hub_fx *fx)
{
    if (h->last_seq == 0 || h->agents > 1) /* One of them has sent LAST. */
        return;
    send_to(h, fx, h->last_peer,
            (struct job_msg){ .kind = JOB_SYNCED, .seq = h->last_seq });
    h->last_seq = 0;
}

/* Forgets the node's connection, whose number may soon belong to another one. This
 * needs no memory, so it cannot fail. */
static void detach(struct hub *h, struct hub_node *n)
{
    assert(n->here && h->here > 0);
    save_node(h, n);
    n->here = false;
    h->here--;
    h->agents -= n->number != 0;
    n->detached = true;
    h->detached_count++;
    ask_cancel(h, n->peer);
    if (h->last_seq && h->last_peer == n->peer)
        h->last_seq = 0;
}

/* What follows from detach(), and may need memory. Observers are forgotten. */
static void on_detached(struct hub *h, struct hub_fx *fx, struct hub_node *n)
{
    assert(n->detached && h->detached_count > 0);
    save_node(h, n);
    n->detached = false;
    h->detached_count--;
    ask_node_gone(h, fx, n);
    if (n->number == 0) {
        n->gone = true; /* The commit forgets it. */
        return;
    }
    notify_last(h, fx);
    if (n->gone)
        leave(h, fx, n);
}

static void on_all_detached(struct hub *h, struct hub_fx *fx)
{
    for (size_t i = 0; i < h->count && h->detached_count; i++)
        if (h->nodes[i]->detached)
            on_detached(h, fx, h->nodes[i]);
}

/* ---- questions ---- */

static unsigned ask_bit(const struct hub *h, const struct hub_ask *a)
{
    return 1u << (a - h->asks);
}

static void ask_forget(struct hub *h, struct hub_ask *a)
{
    assert(a->active && a->pending == 0);
    if (a->text != h->was->asks[a - h->asks].text)
        mem_free(a->text);
    *a = (struct hub_ask){ 0 };
}

static void ask_end(struct hub *h, struct hub_fx *fx, struct hub_ask *a)
{
    send_to(h, fx, a->peer, (struct job_msg){ .kind = JOB_ANSWERS_END, .seq = a->seq });
    ask_forget(h, a);
}

/* The node no longer owes this answer. */
static void ask_settle(struct hub *h, struct hub_ask *a, struct hub_node *n)
{
    assert(a->active && a->pending > 0 && n->owes & ask_bit(h, a));
    save_node(h, n);
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

/* The asker is gone, so nobody wants the answers any more. */
static void ask_cancel(struct hub *h, uint32_t peer)
{
    for (size_t k = 0; k < HUB_ASKS; k++) {
        struct hub_ask *a = &h->asks[k];

        if (!a->active || a->peer != peer)
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

        if (!a->active || a->due_us > h->now.mono_us)
            continue;
        for (size_t i = 0; i < a->nodes; i++)
            if (h->nodes[i]->owes & ask_bit(h, a))
                ask_missing(h, fx, a, h->nodes[i]);
        ask_end(h, fx, a);
    }
}

/* Asks the next nodes. If ten thousand were asked at once, the store's other clients
 * would have to wait. */
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
        if (!h->asks[k].active)
            a = &h->asks[k];
    if (!a) { /* Too many questions at once: this one gets no answers. */
        send_to(h, fx, n->peer,
                (struct job_msg){ .kind = JOB_ANSWERS_END, .seq = m->seq });
        return;
    }
    uint8_t *text = mem_calloc(1 + m->name.n + m->bytes.n, 1);
    if (!text) {
        h->no_memory = true;
        return;
    }
    if (m->name.n)
        memcpy(text, m->name.p, m->name.n);
    if (m->bytes.n)
        memcpy(text + m->name.n, m->bytes.p, m->bytes.n);
    *a = (struct hub_ask){ .active = true,
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
        save_node(h, h->nodes[i]);
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

/* The node read its clocks between our PING and now; our best guess is halfway between
 * the two. The shorter the round trip, the smaller the error, so a much slower answer
 * does not replace an earlier one, unless that is old. */
static void on_pong(struct hub *h, struct hub_fx *fx, struct hub_node *n,
                    const struct job_msg *m)
{
    const uint64_t rtt = h->now.mono_us - MIN_OF(m->seq, h->now.mono_us);
    const bool stale = n->measured && h->now.mono_us - n->measured_us > 60000000u;

    save_node(h, n);
    n->ping_us = 0;
    n->slow_us = MAX_OF(rtt, n->slow_us - n->slow_us / 8);
    if (!n->measured || stale || rtt <= n->rtt_us + n->rtt_us / 2) {
        n->offset_us = m->mono_us - (int64_t)(h->now.mono_us - rtt / 2);
        n->wall_ahead_us = m->wall_us - (h->now.wall_us - (int64_t)rtt / 2);
        n->rtt_us = rtt;
        n->measured = true;
        n->measured_us = h->now.mono_us;
    }
    if (n->quick_pings && --n->quick_pings)
        ping(h, fx, n);
    if (h->unannounced && n->number && !n->announced && n->quick_pings == 0)
        announce(h, fx);
}

/* ---- time ---- */

static void on_ping_time(struct hub *h, struct hub_fx *fx)
{
    const size_t begin = h->pinged, end = MIN_OF(begin + HUB_SLICE, h->count);

    for (size_t i = begin; i < end; i++) {
        struct hub_node *n = h->nodes[i];

        if (!n->here || n->serves_store)
            continue;
        h->ping_any = true;
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

/* The others are due in the next step, at once. The table of nodes is brought up to
 * date when the step succeeds. */
static void on_losses(struct hub *h, struct hub_fx *fx)
{
    struct session *s = sessions_owed(h->sessions, LINE_RECORD);

    for (; s && h->settled < HUB_SLICE; s = s->owed_next[LINE_RECORD], h->settled++) {
        struct hub_node *n = s->part[LINE_RECORD];

        if (n->here) {
            drop(h, fx, n->peer, "the node has been silent for too long");
            detach(h, n);
            on_detached(h, fx, n);
        }
        if (n->number && !n->gone)
            declare_lost(h, fx, n, s->broke);
    }
}

static void on_time(struct hub *h, struct hub_fx *fx)
{
    on_all_detached(h, fx);
    if (h->round.due_us <= h->now.mono_us)
        record_round(h, fx);
    if (h->phases.due_us <= h->now.mono_us)
        emit_phases(h, fx);
    if (h->end.active && h->end.due_us <= h->now.mono_us)
        judge(h, fx);
    on_losses(h, fx);
    ask_expire(h, fx);
    if (h->ping_due_us <= h->now.mono_us)
        on_ping_time(h, fx);
    /* This must come last: the messages borrow the text of the ask. */
    for (size_t k = 0; k < HUB_ASKS; k++)
        if (h->asks[k].active && h->asks[k].slice_us <= h->now.mono_us)
            ask_slice(h, fx, &h->asks[k]);
}

uint64_t hub_deadline(const struct hub *h)
{
    uint64_t by = MIN_OF(MIN_OF(h->round.due_us, h->ping_due_us), h->phases.due_us);

    if (h->end.active)
        by = MIN_OF(by, h->end.due_us);
    for (size_t k = 0; k < HUB_ASKS; k++)
        if (h->asks[k].active)
            by = MIN_OF(by, MIN_OF(h->asks[k].due_us, h->asks[k].slice_us));
    by =
        h->detached_count ? 0 : MIN_OF(by, sessions_deadline(h->sessions, LINE_RECORD));
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
        drop(h, fx, peer, "a job message came before ATTACH");
        return;
    }
    if (n->number == 0 && m->kind != JOB_ASK && m->kind != JOB_PONG &&
        m->kind != JOB_SYNC && m->kind != JOB_BYE)
        return; /* An observer only asks and listens. */
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
    case JOB_SEAT:
        on_seat(h, fx, n, m);
        return;
    case JOB_PHASE:
        on_phase(h, fx, n, m);
        return;
    case JOB_NONE:
    case JOB_ATTACH: /* See hub_step(), as for the next one. */
    case JOB_BYE:
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
        return; /* Not for a coordinator, or of a later version. */
    }
}

/* What holds between two steps, whatever the peers send. */
static void check_invariants(const struct hub *h)
{
    assert(h->here <= h->count && h->count <= h->size && h->count <= HUB_NODES);
    assert(h->unannounced <= h->count && h->agents <= h->here);
    assert(h->end.failures.count <= RECORD_FAILED_MAX);
    assert((int64_t)h->end.failures.count <= h->end.failures.failed);
    assert(h->end.active ||
           (h->end.failures.count == 0 && h->end.due_us == MONO_NEVER));
    assert(!h->end.active || h->end.due_us != MONO_NEVER);
    assert(h->next_number > 0 && h->next_ask > 0);
    for (size_t k = 0; k < HUB_ASKS; k++) {
        const struct hub_ask *a = &h->asks[k];

        assert(a->active == (a->text != NULL));
        assert(!a->active || (a->pending > 0 && a->pending <= a->nodes));
    }
}

static int step_end(struct hub *h, struct hub_fx *fx)
{
    const bool no_memory = h->no_memory;

    if (no_memory) {
        step_undo(h);
        fx->count = 0;
        trace(h->trace, TRACE_WARN,
              "run '%s': out of memory for the record of the job; trying again",
              h->run_id);
    } else {
        step_commit(h);
    }
    check_invariants(h);
    return no_memory ? MUSTER_ENOMEM : 0;
}

/* A GONE cannot be repeated, since the peer's number may belong to another connection
 * by then. So the node is detached in any case, in a step of its own. What follows from
 * it is done right after that, or, if there is no memory, by the next TIMER. */
static struct hub_node *on_gone(struct hub *h, uint32_t peer, bool bye)
{
    struct hub_node *n = node_of_peer(h, peer);

    step_begin(h);
    if (n) {
        detach(h, n);
        n->gone |= bye;
        session_close(h->sessions, n->session, LINE_RECORD, h->now.mono_us, 0);
    }
    assert(!h->no_memory);
    step_commit(h);
    return n;
}

/* The table of nodes is not part of what a step undoes: it changes once the step has
 * succeeded. */
static int attach_step(struct hub *h, const struct hub_event *ev, struct hub_fx *fx)
{
    struct session *s = sessions_meet(h->sessions, ev->msg->nonce, ev->peer);
    const struct session *other = sessions_of(h->sessions, LINE_RECORD, ev->peer);
    int rc;

    if (!s)
        h->no_memory = true;
    else if ((other && other != s) || sessions_of(h->sessions, LINE_SEATS, ev->peer))
        drop(h, fx, ev->peer, "another node has attached over this connection");
    else
        h->attaching = s;
    if (h->attaching)
        on_attach(h, fx, ev->peer, ev->msg);
    h->attaching = NULL;
    rc = step_end(h, fx);
    if (!s)
        return rc;
    for (size_t i = h->count; rc == 0 && !s->part[LINE_RECORD] && i-- > 0;)
        if (h->nodes[i]->session == s)
            s->part[LINE_RECORD] = h->nodes[i];

    struct hub_node *n = s->part[LINE_RECORD];

    if (rc == 0 && n && n->here && n->peer == ev->peer) {
        session_settle(h->sessions, s, LINE_RECORD);
        session_set_serves(h->sessions, s, n->serves_store);
        if (other != s)
            session_open(h->sessions, s, LINE_RECORD, ev->peer, h->now.mono_us);
    }
    session_release(h->sessions, s);
    return rc;
}

int hub_step(struct hub *h, const struct hub_event *ev, struct hub_fx *fx)
{
    const enum job_kind kind =
        ev->kind == HUB_MSG && ev->msg ? ev->msg->kind : JOB_NONE;
    const struct session *from = sessions_of(h->sessions, LINE_RECORD, ev->peer);
    struct hub_node *gone = NULL;
    int rc;

    fx->count = 0;
    h->now = ev->now;
    /* While failures are compared, the clock that they are told by must not be set. */
    if (!h->end.active)
        h->wall_ahead_us = ev->now.wall_us - (int64_t)ev->now.mono_us;
    h->now.wall_us = (int64_t)ev->now.mono_us + h->wall_ahead_us;
    if (ev->kind == HUB_MSG && from)
        session_heard(h->sessions, (struct session *)from, h->now.mono_us);
    if (ev->kind == HUB_GONE || kind == JOB_BYE)
        gone = on_gone(h, ev->peer, kind == JOB_BYE);
    if (ev->kind == HUB_TIMER)
        sessions_judge(h->sessions, h->now.mono_us);
    step_begin(h);
    if (kind == JOB_ATTACH)
        return attach_step(h, ev, fx);
    switch (ev->kind) {
    case HUB_MSG:
    case HUB_GONE:
        if (gone)
            on_detached(h, fx, gone);
        else if (kind != JOB_BYE && ev->kind == HUB_MSG)
            on_msg(h, fx, ev->peer, ev->msg ? ev->msg : &no_msg);
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
