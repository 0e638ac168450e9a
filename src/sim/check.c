/* check.c - the promises: what nodes are told of their rounds, what the shared state
 * may say, and how a job ends. job_record.c has those of the record and the budget.
 *
 *   1  within a round the ranks are 0 .. n - 1, each once, and all members agree;
 *   2  round numbers only grow; a complete round stays complete until nobody is in it;
 *   3  a closed run stays closed, and no round completes in it;
 *   4  min <= size <= max;
 *   5  a node that lives gets its answer before its deadline;
 *   6  when a member dies, the others know it within the keep-alive time;
 *   7  how a job ends: see below.
 *
 * 1, 5 and 6 are not checked for torchrun's nodes. They break 1 by themselves if a
 * member leaves or seems dead before they read the state, and nobody notifies them as 6
 * asks.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "agent/agent.h"
#include "base/mem.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/decisions.h"
#include "rendezvous/core/state_pickle.h"
#include "rendezvous/registry.h"
#include "sim/job.h"
#include "store/core/store.h"

/* ---- what nodes are told of their rounds ---- */

/* Between an agent of ours and its rendezvous. */
struct job_watch {
    struct rdzv_handler_ops ops;
    const struct rdzv_handler_ops *real;
    struct job_node *node;
    rdzv_next_cb cb; /* of the next() under way; NULL: none */
    rdzv_news_cb news_cb;
    void *ctx, *news_ctx;
    uint64_t asked_t;
};

struct job_round {
    struct job_round *next;
    uint32_t epoch; /* of the store */
    uint64_t round;
    int64_t world;
    const struct os_process *owners[]; /* by rank */
};

static void check_joined(struct job_node *n, const struct rdzv_round *is)
{
    const struct job_settings *set = &n->job->set;
    struct job_round *r = n->job->rounds;
    const struct os_process *me = os.current;

    if (is->world_size < set->min_nodes || is->world_size > set->max_nodes ||
        is->rank < 0 || is->rank >= is->world_size) {
        os_fail("%s was given rank %" PRId64 " of %" PRId64 ", in a group of %" PRId64
                " to %" PRId64,
                me->name, is->rank, is->world_size, set->min_nodes, set->max_nodes);
        return;
    }
    if (n->job->etcd_members && (n->job->away_us || n->job->long_outage))
        return; /* etcd forgets the state of nodes that are all away. */
    if (n->ask_epoch != n->job->epoch) { /* Which store has decided this? */
        n->seat_of = NULL;
        return;
    }
    if (n->seat_epoch == n->job->epoch && n->seat_of == me &&
        (int64_t)is->round <= n->seat_round)
        os_fail("%s joined round %" PRIu64 " after round %" PRId64, me->name, is->round,
                n->seat_round);
    n->seat_epoch = n->job->epoch;
    n->seat_of = me;
    n->seat_round = (int64_t)is->round;
    while (r && (r->round != is->round || r->epoch != n->job->epoch))
        r = r->next;
    if (!r) {
        r = os_alloc(sizeof *r + (size_t)is->world_size * sizeof *r->owners);
        *r = (struct job_round){ n->job->rounds, n->job->epoch, is->round,
                                 is->world_size };
        n->job->rounds = r;
    }
    if (r->world != is->world_size)
        os_fail("%s joined a world of %" PRId64 " in round %" PRIu64
                ", others one of %" PRId64,
                me->name, is->world_size, is->round, r->world);
    else if (r->owners[is->rank] && r->owners[is->rank] != me)
        os_fail("%s and %s are both rank %" PRId64 " of round %" PRIu64,
                r->owners[is->rank]->name, me->name, is->rank, is->round);
    else
        r->owners[is->rank] = me;
}

static bool is_static(const struct job *j)
{
    return strcmp(j->set.backend, "static") == 0;
}

/* ---- 5 and 6: in time ---- */

#define ANSWER_US                                                                      \
    (70 * OS_SECOND)             /* from the end of the join to the agent's answer     \
                                  */
#define LOSS_US (20 * OS_SECOND) /* 15 s of silence, grace, and some messages */

static void on_answer_due(void *arg, uint64_t asked)
{
    struct job_node *n = arg;

    if (n->ended || n->asked != asked || !n->asking)
        return;
    if (os.t < n->job->last_fault_t + n->job->set.join_s * OS_SECOND + ANSWER_US)
        os_at(n->job->last_fault_t + n->job->set.join_s * OS_SECOND + ANSWER_US,
              on_answer_due, n, asked);
    else if ((int64_t)n->job->set.nodes <=
             n->job->set.max_nodes) /* A spare waits on. */
        os_fail("%s has asked for a round and gets no answer", n->machine->name);
}

static void on_loss_due(void *arg, uint64_t heard)
{
    struct job_node *n = arg;
    const struct job *j = n->job;

    if (n->ended || n->heard != heard || n->asking || j->done_t != OS_NEVER ||
        j->host_lost || j->long_outage || !job_has_workers(n))
        return;
    if (os.t < j->last_fault_t + LOSS_US)
        os_at(j->last_fault_t + LOSS_US, on_loss_due, n, heard);
    else
        os_fail("%s was not notified of a member that is gone", n->machine->name);
}

void job_check_gone(struct job_node *gone)
{
    const struct job *j = gone->job;

    for (size_t i = 0; i < j->set.nodes; i++) {
        struct job_node *n = &j->nodes[i];

        if (gone->killed && gone->seated && n != gone && n->seated && !n->asking &&
            n->heard == n->seat_heard && n->kind != JOB_TORCH &&
            gone->kind != JOB_TORCH && !is_static(j) &&
            n->seat_epoch == gone->seat_epoch && n->seat_round == gone->seat_round)
            os_at(os.t + LOSS_US, on_loss_due, n, n->heard);
    }
    gone->seated = gone->asking = false;
}

/* ---- between an agent and its rendezvous ---- */

static void watch_on_joined(void *ctx, int status, const struct rdzv_round *round,
                            const struct muster_error *err)
{
    struct job_watch *w = ctx;

    w->node->asking = false;
    if (status == 0) {
        job_tell(w->node->machine->name,
                 "joins round %" PRIu64 " as rank %" PRId64 " of %" PRId64,
                 round->round, round->rank, round->world_size);
        w->node->seated = true;
        w->node->seat_heard = w->node->heard;
        if (!is_static(the_job))
            check_joined(w->node, round);
    } else if (status != MUSTER_ECANCELED) {
        job_tell(w->node->machine->name, "is refused: %s", err->text);
    }
    w->cb(w->ctx, status, round, err);
}

static void watch_next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct job_node *n = job_current();
    struct job_watch *w = n->watch;

    w->cb = cb;
    w->ctx = ctx;
    n->seated = false;
    n->asking = true;
    n->asked++;
    n->ask_epoch = n->job->epoch;
    n->heard++;
    job_tell(n->machine->name, "wants to join");
    os_at(os.t + n->job->set.join_s * OS_SECOND + ANSWER_US, on_answer_due, n,
          n->asked);
    w->real->next(h, watch_on_joined, w);
}

static void watch_on_heard(void *ctx, enum rdzv_news news,
                           const struct muster_error *err)
{
    static const char *const texts[] = {
#define TEXT(name, text) text,
        RDZV_NEWS_KINDS(TEXT)
#undef TEXT
    };
    struct job_watch *w = ctx;

    w->node->heard++;
    job_tell(w->node->machine->name, "hears that %s", texts[news]);
    w->news_cb(w->news_ctx, news, err);
}

static void watch_on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    struct job_watch *w = job_current()->watch;

    w->news_cb = cb;
    w->news_ctx = ctx;
    w->real->on_news(h, cb ? watch_on_heard : NULL, w);
}

OS_INSTEAD_OF(rdzv_handler_create);

int __wrap_rdzv_handler_create(uv_loop_t *loop, const struct rdzv_params *params,
                               const struct log *log, struct rdzv_handler **out,
                               struct muster_error *err)
{
    const int rc = __real_rdzv_handler_create(loop, params, log, out, err);
    struct job_watch *w = os_alloc(sizeof *w);

    if (rc < 0)
        return rc;
    w->real = (*out)->ops;
    w->ops = *w->real;
    w->ops.next = watch_next;
    w->ops.on_news = watch_on_news;
    w->node = job_current();
    w->node->watch = w;
    (*out)->ops = &w->ops;
    return 0;
}

/* ---- 2, 3 and 4: what the shared state may say ---- */

static void names(const struct rdzv_state *st, enum rdzv_list list, char *out,
                  size_t size)
{
    size_t len = 0;

    out[0] = '\0';
    for (const struct participant *m = rdzv_first(st, list); m && len + 40 < size;
         m = m->next[list]) {
        len += (size_t)snprintf(out + len, size - len, "%s%.*s", len ? " " : "",
                                (int)MIN_OF(m->node.addr.n, 20),
                                (const char *)m->node.addr.p);
        if (list == RDZV_PLACES && st->complete)
            len += (size_t)snprintf(out + len, size - len, "=%lld", (long long)m->rank);
    }
}

/* Whether the two differ only in heartbeats. */
static bool only_beats(const struct rdzv_state *a, const struct rdzv_state *b)
{
    if (a->round != b->round || a->complete != b->complete || a->closed != b->closed ||
        a->deadline_us != b->deadline_us || a->nodes.count != b->nodes.count)
        return false;
    for (const struct participant *m = rdzv_first(b, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct participant *o = rdzv_state_find(a, &m->node);

        if (!o || o->in != m->in)
            return false;
    }
    return true;
}

static void tell_state(const struct rdzv_state *is)
{
    char places[400], waits[200], spares[200];

    names(is, RDZV_PLACES, places, sizeof places);
    names(is, RDZV_WAITS, waits, sizeof waits);
    names(is, RDZV_SPARES, spares, sizeof spares);
    job_tell("store", "holds round %" PRId64 " %s [%s]%s%s%s%s%s%s%s%s", is->round,
             is->complete ? "complete" : "open", places, waits[0] ? " wait [" : "",
             waits, waits[0] ? "]" : "", spares[0] ? " spare [" : "", spares,
             spares[0] ? "]" : "", is->deadline_us != WALL_NEVER ? ", last call" : "",
             is->closed ? ", closed" : "");
}

static bool ranks_whole(const struct rdzv_state *st)
{
    const size_t n = rdzv_count(st, RDZV_PLACES);
    uint64_t sum = 0;

    for (const struct participant *m = rdzv_first(st, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        for (const struct participant *o = m->next[RDZV_PLACES]; o && n <= 64;
             o = o->next[RDZV_PLACES]) {
            if (o->rank == m->rank)
                return false;
        }
        if (m->rank < 0 || (uint64_t)m->rank >= n)
            return false;
        sum += (uint64_t)m->rank;
    }
    return sum == n * (n - 1) / 2;
}

/* Two values of the key are one write apart, unless the host wrote: it updates the key
 * only when somebody reads it. */
static void check_change(const struct rdzv_state *was, const struct rdzv_state *is,
                         bool by_host)
{
    const struct job_settings *set = &the_job->set;
    const int64_t n = (int64_t)rdzv_count(is, RDZV_PLACES);
    const bool new_round = is->complete && (!was->complete || was->round != is->round);
    const bool begins = new_round && !by_host;

    if (is->round < was->round)
        os_fail("the round went from %" PRId64 " back to %" PRId64, was->round,
                is->round);
    if (was->closed && !is->closed)
        os_fail("the run was closed and is open again");
    if (was->complete && !is->complete && is->round == was->round)
        os_fail("round %" PRId64 " was complete and is open again", is->round);
    if (begins && was->closed)
        os_fail("round %" PRId64 " completed in a closed run", is->round);
    if (begins && (n < set->min_nodes || n > set->max_nodes))
        os_fail("round %" PRId64 " completed with %" PRId64 " nodes", is->round, n);
    if (begins && !ranks_whole(is))
        os_fail("round %" PRId64 " completed with ranks that are not 0 .. n-1",
                is->round);
    if (new_round || !is->complete || (by_host && the_job->epoch > 1))
        return; /* Members come back to a restarted host one by one. */
    for (const struct participant *m = rdzv_first(is, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct participant *o = rdzv_state_find(was, &m->node);

        if (!rdzv_in(o, RDZV_PLACES) || o->rank != m->rank)
            os_fail("a node entered round %" PRId64
                    ", or changed its rank, after it was complete",
                    is->round);
    }
}

static void on_beat(void *ctx, struct participant *m, int64_t beat_us)
{
    m->beat_us = beat_us;
}

/* The shared state of the store that was last written to, and its text. */
static struct {
    const struct store *store;
    int pid; /* of its process */
    struct rdzv_state state;
    struct buf text;
    bool valid;
} last;

void job_check_begin(void)
{
    if (last.valid)
        rdzv_state_fini(&last.state);
    buf_fini(&last.text);
    buf_init(&last.text, SIZE_MAX);
    last.valid = false;
    last.store = NULL;
}

static void check_state(struct span value, bool by_host)
{
    const bool known =
        last.valid &&
        pickle_only_beats(&last.state, buf_span(&last.text), value, on_beat, NULL);
    struct rdzv_state is;
    struct muster_error err;

    if (span_eq(value, buf_span(&last.text)))
        return;
    buf_clear(&last.text);
    os_must(buf_append_span(&last.text, value));
    if (known)
        return;
    if (value.n == 0 || span_eq(value, span_str(RDZV_C10D_SENTINEL))) {
        if (last.valid)
            os_fail("the state vanished");
        return;
    }
    if (pickle_read_text(buf_span(&last.text), &is, &err) < 0) {
        os_fail("the state cannot be read: %s", err.text);
        return;
    }
    if (!last.valid || !only_beats(&last.state, &is))
        tell_state(&is);
    if (last.valid) {
        check_change(&last.state, &is, by_host);
        rdzv_state_fini(&last.state);
    }
    last.state = is;
    last.valid = true;
}

OS_INSTEAD_OF(store_step);

/* Sees each value that the key of the shared state gets. */
int __wrap_store_step(struct store *s, const struct store_event *ev,
                      struct store_fx *fx)
{
    const int rc = __real_store_step(s, ev, fx);
    const struct c10d_request *req = ev->request;
    struct os_process *current = os.current;
    struct span value = { NULL, 0 };

    if (rc < 0 || ev->kind != STORE_REQUEST ||
        !span_eq(req->key, span_str("/" RDZV_C10D_PREFIX JOB_RUN)))
        return rc;
    if (req->op == C10D_SET)
        value = req->value;
    for (size_t i = 0; i < fx->count && req->op == C10D_COMPARE_SET; i++)
        if (fx->items[i].kind == STORE_REPLY && fx->items[i].peer == ev->peer)
            value = fx->items[i].reply.value;
    if (!value.p)
        return rc;
    os.current = NULL; /* What follows is the simulator's memory. */
    if (last.store != s || last.pid != current->pid)
        job_check_begin();
    last.store = s;
    last.pid = current->pid;
    check_state(value, req->op == C10D_SET);
    os.current = current;
    return rc;
}

/* ---- 7: how a job ends ---- */

#define VAIN_US       (30 * OS_SECOND) /* that a node may wait for nodes that ended */
#define HOST_WAITS_US (4 * OS_SECOND)  /* for others, before it ends with its store */
#define WAITS_LATE_US                                                                  \
    (45 * OS_SECOND)           /* from a loss to the wait for the next round           \
                                */
#define END_US (8 * OS_SECOND) /* from the end of the work to the end of the node */

/* If only connections were reset, the job must run as if nothing had happened. */
static void check_unharmed(const struct job *j)
{
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];

        if (n->error == MUSTER_EGRACEFUL)
            continue; /* a spare that was not needed */
        if (n->exit_code != 0)
            os_fail("%s ends with %d, though only connections were reset: %s",
                    n->machine->name, n->exit_code, n->text);
        if (n->workers_started != (unsigned)j->set.nproc)
            os_fail("%s has started %u workers instead of %" PRId64
                    ", though only connections were reset",
                    n->machine->name, n->workers_started, j->set.nproc);
        if (n->end_t >
            MAX_OF(j->done_t, j->last_fault_t) + END_US * (j->cluster_alone ? 3 : 1))
            os_fail("%s ends %.1f s after the work was done", n->machine->name,
                    (double)(n->end_t - j->done_t) / 1e6);
    }
}

/* Whether the job has to succeed in spite of its faults: enough nodes are left, there
 * were no more failures than allowed, and no node was away for longer than the others
 * wait. */
static bool could_go_on(const struct job *j)
{
    size_t left = 0;

    for (size_t i = 0; i < j->set.nodes; i++)
        left += !j->nodes[i].given_up;
    return !is_static(j) && !j->torchruns && !j->host_lost && !j->long_outage &&
           /* Whoever misses a node waits for it, but may take long to begin with it. */
           j->away_us + WAITS_LATE_US <= j->set.join_s * OS_SECOND && j->signals == 0 &&
           (int64_t)left >= j->set.min_nodes &&
           /* A node that is killed may have served the store of the workers. */
           j->worker_failures + j->kills <= j->set.max_restarts &&
           !j->set.workers_fail_with_peers && !j->starved && !j->strays;
}

static void check_went_on(const struct job *j)
{
    if (j->done_t == OS_NEVER)
        os_fail("the job could have gone on, but has not");
    else if (j->last_fault_t > j->done_t + HOST_WAITS_US)
        return; /* The host did not wait for a node that was cut off for so long. */
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];
        /* A node that was away has to stop its workers and come back in time. */
        const uint64_t here_t =
            n->met && n->met == j->last
                ? n->start_t
                : MAX_OF(MAX_OF(n->start_t, n->idle_t), j->last_fault_t);

        if (n->ended && !n->given_up && n->exit_code != 0 &&
            n->error != MUSTER_ECLOSED && /* the others had finished the work */
            here_t + 5 * OS_SECOND < j->done_t)
            os_fail("%s ends with %d, though its job could go on: %s", n->machine->name,
                    n->exit_code, n->text);
    }
}

/* A node that is done, and knows that no other node works any more, must end. It must
 * not wait for nodes that have failed or are gone. */
static void check_no_vain_wait(const struct job *j)
{
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];
        uint64_t free_t = MAX_OF(n->idle_t, j->last_fault_t);

        if (is_static(j) && j->kills + j->signals + j->cuts + j->stops)
            return; /* They cannot know, and wait for 300 s, as torchrun does. */
        if (!n->ended || n->kind == JOB_TORCH || n->exit_code != 0 || n->error ||
            (j->starved && is_static(j)))
            continue;
        for (size_t k = 0; k < j->set.nodes; k++)
            if (k != i)
                free_t = MAX_OF(free_t, MAX_OF(j->nodes[k].end_t, j->nodes[k].idle_t));
        if (n->end_t > free_t + VAIN_US && n->end_t != OS_NEVER)
            os_fail("%s waits %.1f s for the others, though all of them have ended",
                    n->machine->name, (double)(n->end_t - free_t) / 1e6);
    }
}

/* Exit codes must be those of the manual, and every failure must have a reason. */
static void check_reasons(const struct job *j)
{
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];
        const bool explained = n->why == WHY_PEER || n->why == WHY_FAILURE ||
                               n->why == WHY_STUCK || n->why == WHY_SIGNAL;

        if (!n->ended || n->kind == JOB_TORCH ||
            n->exit_code < 0) /* Killed: it could not say why. */
            continue;
        if (n->exit_code == 0 && n->why != WHY_SUCCESS && n->error != MUSTER_EGRACEFUL)
            os_fail("%s ends with 0, but has not succeeded (why %d)", n->machine->name,
                    n->why);
        if (n->exit_code > 1 && !(n->signalled && n->exit_code == 128 + SIGTERM))
            os_fail("%s ends with %d, which the manual does not know", n->machine->name,
                    n->exit_code);
        if (n->exit_code != 0 && !explained && (n->error == 0 || !n->text[0]))
            os_fail("%s ends with %d and does not say why (%d)", n->machine->name,
                    n->exit_code, n->why);
        /* A SET that was lost for want of memory looks like a store that keeps nothing.
         */
        if ((n->error == MUSTER_EPROTO || n->error == MUSTER_ESTATE) && !j->starved)
            os_fail("%s ends because it cannot read what another node has written: %s",
                    n->machine->name, n->text);
        if (n->why == WHY_SIGNAL && !n->signalled)
            os_fail("%s was ended by a signal that nobody sent", n->machine->name);
    }
}

/* Out of memory is final for the object that met it. Either that is a connection, or
 * whatever else comes back, and then nobody has noticed; or the agent ends its node in
 * good order, and nobody is left waiting for it. */
static void check_starved(const struct job *j)
{
    const struct job_node *starved = NULL;

    for (size_t i = 0; i < j->set.nodes; i++)
        if (j->nodes[i].starved)
            starved = &j->nodes[i];
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];
        const uint64_t due_t =
            MAX_OF(MAX_OF(n->start_t, n->idle_t), starved ? starved->end_t : 0) +
            (2 * j->set.join_s + 60) * OS_SECOND;

        if (n->exit_code != 0 && (!starved || starved->exit_code == 0))
            os_fail("%s ends with %d, though nobody has run out of memory for good: %s",
                    n->machine->name, n->exit_code, n->text);
        if (n->end_t > due_t && !is_static(j) && !j->torchruns)
            os_fail("%s ends %.1f s after %s, which had no memory", n->machine->name,
                    (double)(n->end_t - starved->end_t) / 1e6, starved->machine->name);
    }
}

void job_check_end(const struct job *j, enum job_theme theme)
{
    for (size_t i = 0; i < j->set.nodes; i++) {
        const struct job_node *n = &j->nodes[i];

        if (n->ended && n->exit_code == 0 && n->error != MUSTER_EGRACEFUL &&
            j->done_us < j->set.work_us)
            os_fail("%s ends with 0, but the work is not done", n->machine->name);
    }
    if (theme == THEME_CALM || theme == THEME_RESET ||
        (theme == THEME_CLUSTER && !job_etcd_flaps() && !j->long_outage &&
         strcmp(j->set.backend, "etcd") != 0)) /* Its keys expire after 10 s. */
        check_unharmed(j);
    check_no_vain_wait(j);
    if (theme == THEME_MEMORY)
        check_starved(j);
    check_reasons(j);
    job_check_budget(j);
    if ((theme == THEME_STORM || theme == THEME_PAUSE) && could_go_on(j))
        check_went_on(j);
}
