/* dynamic.c - the implementation of the dynamic rendezvous. A core decides about rounds
 * (rendezvous/core/cas_node.c on a backend that holds the state, or
 * a seat over a session on a store that hosts runs), handler_life decides what the
 * agent is told (rendezvous/core/handler_life.c, in handler_base.c), and this file
 * connects the two.
 *
 * From top to bottom: events and effects of the core, requests to it, the joined round
 * and where its workers find their store, membership in a coordinator's run, what the
 * agent asks, and the end. */
#include "base/mem.h"
#include "loop/clock.h"
#include "rendezvous/core/state_pickle.h"
#include "rendezvous/dynamic_int.h"
#include "store/connect.h"
#include "store/core/reserved.h"
#include "store/server.h"
#include <inttypes.h>
#include <stdlib.h>

#define RUNS_FIRST_MS 1000u /* how long we wait before we ask for other runs */
#define RUNS_EVERY_MS 3000u
#define RUNS_LAST_MS  100000u

/* A moment after other nodes have come, we can know whether they were started
 * differently. */
static void ask_others_soon(struct dynamic_handler *d)
{
    if (dynamic_is_alone(d))
        return;
    d->runs.at_ms = clock_mono_ms() + RUNS_FIRST_MS;
    d->runs.pause_ms = RUNS_EVERY_MS;
}

/* What the host has told of the round; nothing, if there is no such host. */
static const struct seat_round *dynamic_told(const struct dynamic_handler *d)
{
    static const struct seat_round nothing;

    return d->member ? seat_session_round(d->member) : &nothing;
}

/* ---- What the core or the member has decided ---- */

static void on_joined(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    d->round = (struct rdzv_round){ .round = (uint64_t)e->round,
                                    .rank = e->rank,
                                    .world_size = e->world,
                                    .ranks = dynamic_told(d)->ranks };
    if (!d->member)
        ask_others_soon(d);
    if (life_wants_round(&d->base.life)) /* torch's words */
        log_line(d->log, LOG_INFO, AT_RENDEZVOUS,
                 "The node '%s_%" PRId64 "_%" PRId64 "' has joined round %" PRId64
                 " of the rendezvous '%s' as rank %" PRId64
                 " in a world of size %" PRId64 ".",
                 d->self.addr, d->self.pid, d->self.local_id, e->round,
                 d->params.run_id, e->rank, e->world);
    handler_feed_error(&d->base, LIFE_JOINED, NULL);
}

/* Adds the run id and where it is, which the core does not always know. */
static void dynamic_on_refused(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    const char *where = d->backend->ops->where(d->backend);
    struct muster_error err;

    if (e->code == MUSTER_EINVAL) /* It cannot close the run either. */
        d->refused = e->code;
    (void)err_set(&err, e->code, "%s", e->text);
    if (!strstr(err.text, d->params.run_id) || !strstr(err.text, where))
        err_add(&err, " (run id '%s' at %s)", d->params.run_id, where);
    if (e->code == MUSTER_ETIMEDOUT && d->runs.text[0])
        err_add(&err, "; %s", d->runs.text);
    handler_feed_error(&d->base, LIFE_REFUSED, &err);
}

static void dynamic_on_done(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    const bool closed = e->request == RDZV_EV_CLOSE;

    if (closed && e->code == 0)
        log_line(d->log, LOG_INFO, AT_RENDEZVOUS,
                 "The node '%s_%" PRId64 "_%" PRId64
                 "' has closed the rendezvous '%s'.",
                 d->self.addr, d->self.pid, d->self.local_id, d->params.run_id);
    handler_feed(&d->base,
                 (struct life_event){ .kind = closed ? LIFE_CLOSED : LIFE_LEFT,
                                      .code = e->code,
                                      .text = e->text });
}

static void on_core_news(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    struct muster_error err;

    (void)err_set(&err, e->code, "%s", e->text ? e->text : "");
    if (e->news == RDZV_NEWS_BACKEND && d->member)
        err_wrap(&err, "run '%s' at %s", d->params.run_id,
                 d->backend->ops->where(d->backend));
    if (e->news == RDZV_NEWS_WAITING && !d->member)
        ask_others_soon(d);
    handler_feed(&d->base,
                 (struct life_event){ .kind = LIFE_NEWS,
                                      .news = e->news,
                                      .again = e->code == MUSTER_ECONN && !d->member,
                                      .code = err.code,
                                      .text = err.text });
}

static void dynamic_notified(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    switch (e->kind) {
    case RDZV_FX_JOINED:
        on_joined(d, e);
        return;
    case RDZV_FX_REFUSED:
        dynamic_on_refused(d, e);
        return;
    case RDZV_FX_DONE:
        dynamic_on_done(d, e);
        return;
    case RDZV_FX_NEWS:
        on_core_news(d, e);
        return;
    default:
        assert(false); /* The other effects never get here. */
    }
}

/* ---- The core on a backend: feed and perform ---- */

static void dynamic_feed(struct dynamic_handler *d, struct rdzv_event *ev);

static bool is_over(const struct dynamic_handler *d)
{
    return d->base.life.over || handler_ends(&d->base);
}

static void dynamic_on_state(void *ctx, const struct rdzv_event *ev)
{
    struct dynamic_handler *d = ctx;
    struct rdzv_event copy = *ev;

    if (is_over(d))
        return;
    /* Only trying shows whether the backend can report changes, and it may be able to
     * by now. */
    if (ev->kind != RDZV_EV_FAILED) {
        rdzv_can_watch(d->core, d->backend->ops->watch != NULL);
        handler_feed_error(&d->base, LIFE_HEARD, NULL);
    }
    dynamic_feed(d, &copy);
}

static void dynamic_on_changed(void *ctx)
{
    struct dynamic_handler *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_CHANGED };

    if (!is_over(d))
        dynamic_feed(d, &ev);
}

void dynamic_peer_gone(void *ctx, struct span node)
{
    struct dynamic_handler *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_GONE, .value = node };

    if (!is_over(d) && d->core)
        dynamic_feed(d, &ev);
}

void dynamic_cut_off(void *ctx, const char *why)
{
    struct dynamic_handler *d = ctx;

    /* A run of one node has nobody who could go on without it. */
    if (!is_over(d) && d->core && d->settings.max_nodes > 1)
        handler_feed(&d->base, (struct life_event){ .kind = LIFE_NEWS,
                                                    .news = RDZV_NEWS_CUT_OFF,
                                                    .code = MUSTER_ECONN,
                                                    .text = why });
}

static void dynamic_perform(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    const struct rdzv_backend_ops *ops = d->backend->ops;

    switch (e->kind) {
    case RDZV_FX_READ_STATE:
        ops->get(d->backend, UINT64_MAX, dynamic_on_state, d);
        return;
    case RDZV_FX_WRITE_STATE:
        ops->set(d->backend, e->value, e->has_token, e->token, e->quiet, UINT64_MAX,
                 dynamic_on_state, d);
        return;
    case RDZV_FX_WATCH:
        rdzv_can_watch(d->core,
                       ops->watch && ops->watch(d->backend, e->present, e->value,
                                                dynamic_on_changed, d));
        return;
    default:
        dynamic_notified(d, e);
        return;
    }
}

static void dynamic_step(struct dynamic_handler *d, struct rdzv_event *ev)
{
    struct rdzv *const core = d->core;
    struct rdzv_fx fx;

    ev->now = clock_now();
    if (rdzv_step(core, ev, &fx) < 0)
        handler_no_memory(&d->base);
    /* If the core was replaced by one with another name, drop the rest of the old one's
     * effects. */
    for (size_t i = 0; i < fx.count && d->core == core && !handler_ends(&d->base); i++)
        dynamic_perform(d, &fx.at[i]);
}

static void dynamic_feed(struct dynamic_handler *d, struct rdzv_event *ev)
{
    struct rdzv_event request = { 0 };

    assert(!d->in_feed);
    d->in_feed = true;
    dynamic_step(d, ev);
    while (!handler_ends(&d->base) && request_take(&d->requests, &request.kind))
        dynamic_step(d, &request);
    d->in_feed = false;
    handler_arm(&d->base);
}

/* ---- Requests: passed on at once, or after the step that is under way ---- */

static void dynamic_request(struct dynamic_handler *d, enum rdzv_event_kind kind)
{
    struct rdzv_event ev = { .kind = kind };

    if (d->member) {
        seat_session_request(d->member, kind);
        return;
    }
    if (!d->in_feed) {
        dynamic_feed(d, &ev);
        return;
    }
    if (request_put(&d->requests, kind))
        handler_feed(&d->base, (struct life_event){ .kind = LIFE_REFUSED,
                                                    .code = MUSTER_ECANCELED,
                                                    .text = "leaving" });
}

static void dynamic_join(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);
    const bool first = !d->round.store;
    struct muster_error err;

    d->round = (struct rdzv_round){ 0 };
    if (d->backend->ops->store(d->backend, &d->store, &err) < 0) {
        d->store = NULL;
        handler_feed_error(s, LIFE_REFUSED, &err);
        return;
    }
    if (first && !d->member) /* The run compares those of its nodes. */
        dynamic_settings(d);
    d->runs = (struct other_runs){ .at_ms = MONO_NEVER };
    ask_others_soon(d);
    log_line(d->log, LOG_INFO, AT_RENDEZVOUS,
             "The node '%s_%" PRId64 "_%" PRId64
             "' attempts to join the next round of the rendezvous '%s'.",
             d->self.addr, d->self.pid, d->self.local_id, d->params.run_id);
    dynamic_request(d, RDZV_EV_JOIN);
}

static void dynamic_leave(struct handler_base *s)
{
    dynamic_request(dynamic_of(s), RDZV_EV_LEAVE);
}

static void dynamic_close(struct handler_base *s)
{
    dynamic_request(dynamic_of(s), RDZV_EV_CLOSE);
}

static void dynamic_rename_and_join(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);
    const int64_t old = d->self.local_id;
    struct muster_error err;

    if (dynamic_rename(d, &err) < 0) {
        handler_feed_error(s, LIFE_REFUSED, &err);
        return;
    }
    log_line(d->log, LOG_WARN, AT_RENDEZVOUS,
             "another node of the rendezvous '%s' is alive as '%s_%" PRId64 "_%" PRId64
             "'; joining as '%s_%" PRId64 "_%" PRId64
             "' (give each node its own --local-addr)",
             d->params.run_id, d->self.addr, d->self.pid, old, d->self.addr,
             d->self.pid, d->self.local_id);
    dynamic_present(d);
    if (d->member && !dynamic_be_member(d)) {
        (void)err_nomem(&err);
        handler_feed_error(s, LIFE_REFUSED, &err);
        return;
    }
    dynamic_request(d, RDZV_EV_JOIN);
}

static void on_gathered(void *ctx, int status, const struct c10d_reply *reply,
                        const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;

    (void)err; /* An older store cannot answer. */
    if (status == 0)
        progress_other_runs(reply->value, d->params.run_id, d->runs.text,
                            sizeof d->runs.text);
}

/* Large groups do not ask: where many nodes have come, another run id is not the reason
 * for the wait, and thousands would ask at once. */
static void ask_for_runs(struct dynamic_handler *d, uint64_t now)
{
    struct rdzv_progress p;

    d->runs.at_ms = MONO_NEVER;
    if (d->base.life.next.state != LIFE_ASKED || !d->member || !d->store ||
        !seat_session_progress(d->member, &p))
        return;
    d->runs.at_ms = now + RUNS_EVERY_MS;
    if (p.stage == RDZV_AT_ROUND && p.here < p.min_nodes && p.here <= RDZV_NAMES_MAX)
        (void)async_store_get(d->store, span_str(&RESERVED_GATHERED[1]), RUNS_EVERY_MS,
                              on_gathered, d, NULL);
}

/* Other nodes may have come with another --nnodes after we asked. In a running round we
 * ask a few more times, since they may take a while to come. */
static void ask_for_settings(struct dynamic_handler *d, uint64_t now)
{
    const bool joining = d->base.life.next.state == LIFE_ASKED;
    struct rdzv_progress p = { .here = d->round.world_size };

    d->runs.at_ms = MONO_NEVER;
    if (d->settings_notified || !d->store || (joining && !rdzv_progress(d->core, &p)) ||
        p.here > RDZV_NAMES_MAX)
        return;
    if (joining || d->runs.pause_ms < RUNS_LAST_MS)
        d->runs.at_ms = now + d->runs.pause_ms;
    if (!joining)
        d->runs.pause_ms *= 3;
    dynamic_settings(d);
}

static uint64_t dynamic_deadline(const struct handler_base *s)
{
    const struct dynamic_handler *d = dynamic_of(s);

    return MIN_OF(d->runs.at_ms, d->core ? rdzv_deadline(d->core) : MONO_NEVER);
}

static void dynamic_timer(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);
    struct rdzv_event ev = { .kind = RDZV_EV_TIMER };
    const uint64_t now = clock_mono_ms();

    if (now >= d->runs.at_ms && d->member)
        ask_for_runs(d, now);
    else if (now >= d->runs.at_ms)
        ask_for_settings(d, now);
    if (d->core && now >= rdzv_deadline(d->core))
        dynamic_feed(d, &ev);
}

/* ---- The round just joined: its store, and where its workers find theirs ---- */

/* Whether the run waits to hear from us where the workers' store is. */
static bool gives_address(const struct dynamic_handler *d)
{
    return d->round.rank == 0 && d->round.world_size > 1 && dynamic_told(d)->ranked;
}

static void on_master(void *ctx, enum rdzv_master_end end, const char *addr,
                      uint16_t port, const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;

    switch (end) {
    case RDZV_MASTER_FAILED:
        handler_feed_error(&d->base, LIFE_ADDRESS, err);
        return;
    case RDZV_MASTER_REJOIN:
        handler_feed_error(&d->base, LIFE_NO_ADDRESS, NULL);
        return;
    case RDZV_MASTER_KNOWN:
        d->round.master_addr = addr;
        d->round.master_port = port;
        if (gives_address(d) && dynamic_told(d)->store_port != port &&
            seat_session_serve(d->member, d->round.round, addr, port) < 0)
            handler_no_memory(&d->base);
        else
            handler_feed_error(&d->base, LIFE_ADDRESS, NULL);
        return;
    }
}

static void ignore_gone(void *ctx)
{
    (void)ctx;
}

static void dynamic_drop(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);

    if (d->master)
        rdzv_master_cancel(d->master);
    if (d->prefixed)
        async_store_close(d->prefixed, ignore_gone, NULL);
    if (d->store)
        async_store_close(d->store, ignore_gone, NULL);
    d->prefixed = d->store = NULL;
}

/* Whether no other agent's workers can have started yet: they wait for the ranks, for
 * which our role_info is needed, unless ranks are not agreed upon at all. */
static bool no_worker_yet(void)
{
    const char *identical = getenv("TORCH_ELASTIC_WORKER_IDENTICAL");

    return !identical || strcmp(identical, "1") != 0;
}

static void find_master(struct dynamic_handler *d)
{
    const struct seat_round *told = dynamic_told(d);
    struct rdzv_master_job job = { .round = d->round.round,
                                   .rank = d->round.rank,
                                   .all_read = told->all_ours,
                                   .alone = d->round.world_size == 1,
                                   .wipe = no_worker_yet(),
                                   .told = told->ranked,
                                   .told_host = told->store_host,
                                   .told_port = told->store_port,
                                   .store = d->store };
    struct muster_error err;

    if (!d->member) {
        job.members = rdzv_participants(d->core, &job.count);
    } else if (d->nodes.members) {
        job.members = d->nodes.members;
        job.count = (size_t)d->round.world_size;
    } else {
        job.members = &told->rank0;
        job.count = 1;
    }
    if (rdzv_master_start(d->master, &job, on_master, d, &err) < 0)
        handler_feed_error(&d->base, LIFE_ADDRESS, &err);
}

static void forget_members(struct dynamic_handler *d)
{
    mem_free(d->nodes.members);
    rdzv_state_fini(d->nodes.seen);
    mem_free(d->nodes.seen);
    d->nodes.members = NULL;
    d->nodes.seen = NULL;
}

static int by_rank(const void *a, const void *b)
{
    const struct participant *const *x = a, *const *y = b;

    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

/* Keeps the participants of the state just read, in rank order, unless it is another
 * round's. */
static void keep_members(struct dynamic_handler *d, struct span text)
{
    const size_t count = (size_t)d->round.world_size;
    const struct participant **sorted = mem_calloc(count, sizeof *sorted);
    size_t n = 0;

    d->nodes.seen = mem_calloc(1, sizeof *d->nodes.seen);
    d->nodes.members = mem_calloc(count, sizeof *d->nodes.members);
    if (sorted && d->nodes.seen && d->nodes.members &&
        pickle_read_text(text, d->nodes.seen, NULL) == 0 &&
        (uint64_t)d->nodes.seen->round == d->round.round &&
        rdzv_count(d->nodes.seen, RDZV_PLACES) == count) {
        for (const struct participant *m = rdzv_first(d->nodes.seen, RDZV_PLACES); m;
             m = m->next[RDZV_PLACES])
            sorted[n++] = m;
        qsort(sorted, n, sizeof *sorted, by_rank);
        for (size_t i = 0; i < n; i++)
            d->nodes.members[i] = sorted[i]->node;
    }
    mem_free(sorted);
    if (n == 0)
        forget_members(d);
}

static void on_members(void *ctx, const struct rdzv_event *ev);

static void ask_members(struct dynamic_handler *d)
{
    d->nodes.asked = true;
    d->nodes.asked_round = d->round.round;
    d->backend->ops->get(d->backend, d->read_ms, on_members, d);
}

static void on_members(void *ctx, const struct rdzv_event *ev)
{
    struct dynamic_handler *d = ctx;

    d->nodes.asked = false;
    if (is_over(d) || d->base.life.next.state != LIFE_FINDING || !d->nodes.awaited)
        return; /* The round has ended meanwhile. */
    if (d->nodes.asked_round != d->round.round) {
        ask_members(d); /* So has it, and this is the next one. */
        return;
    }
    d->nodes.awaited = false;
    forget_members(d);
    if (ev->kind == RDZV_EV_STATE && ev->present)
        keep_members(d, ev->value);
    find_master(d);
}

static void dynamic_find(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);
    char *prefix =
        mem_printf("torch.rendezvous.%s.%" PRIu64, d->params.run_id, d->round.round);
    struct muster_error err;
    int rc = prefix ? 0 : err_nomem(&err);

    if (rc == 0)
        rc = async_store_prefix(d->store, prefix, false, &d->prefixed, &err);
    mem_free(prefix);
    if (rc < 0) {
        handler_feed_error(s, LIFE_ADDRESS, &err);
        return;
    }
    d->round.store = d->prefixed;
    forget_members(d);
    /* torchrun's nodes remember the workers' address of an earlier round, and it counts
     * as long as the node that serves it is in the round. Only then do we need to know
     * all nodes. The answer for an earlier round may still be on its way: a backend
     * takes one call at a time. */
    d->nodes.awaited = dynamic_told(d)->torch_nodes > 0;
    if (!d->nodes.awaited)
        find_master(d);
    else if (!d->nodes.asked)
        ask_members(d);
}

static const struct rdzv_round *dynamic_round(const struct handler_base *s)
{
    return &dynamic_of(s)->round;
}

/* ---- As a member: the store is ours, so its coordinator owns the state, and this node
 * only says what it wants ---- */

static void on_member(void *ctx, const struct rdzv_effect *notice)
{
    struct dynamic_handler *d = ctx;

    if (!is_over(d))
        dynamic_notified(d, notice);
}

bool dynamic_be_member(struct dynamic_handler *d)
{
    const struct rdzv_backend_ops *ops = d->backend->ops;
    char addr[1025];
    struct seat_opts opts = {
        .loop = d->base.handler.loop,
        .run_id = d->params.run_id,
        .self = { span_str(d->self.addr), d->self.pid, d->self.local_id },
        .settings = d->settings,
        .nonce = d->base.handler.nonce,
        .grace_ms = (uint64_t)MAX_OF(d->grace_ms, 0),
        .away_ms = d->read_ms,
        .rank_order_key = d->rank_order_key,
        .auth = d->params.auth,
        .log = d->log,
        .cb = on_member,
        .ctx = d,
    };
    struct muster_error err;
    struct rdzv_host at;

    if (!d->hosted || !ops->host || !ops->host(d->backend, &at))
        return false;
    opts.host = at.host;
    opts.port = at.port;
    opts.conn = ops->take_conn(d->backend);
    opts.serves = ops->serves && ops->serves(d->backend) != NULL;
    if (opts.serves) /* The others see where they come from; we are here. */
        opts.where = !d->self.resolves && ops->own_addr &&
                             ops->own_addr(d->backend, addr, sizeof addr)
                         ? addr
                         : d->self.where;
    if (seat_session_open(d->member ? d->member : d->session, &opts, &d->member, &err) <
        0) {
        log_line(d->log, LOG_WARN, AT_RENDEZVOUS,
                 "run '%s': joining without its host: %s", d->params.run_id, err.text);
        if (opts.conn)
            store_conn_close(opts.conn);
        return false;
    }
    return true;
}

/* ---- After the run was closed, on the host of its store ---- */

static void dynamic_retire(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);

    if (d->member)
        seat_session_close(d->member, NULL, NULL);
    d->member = NULL;
}

static size_t dynamic_others(const struct handler_base *s)
{
    const struct dynamic_handler *d = dynamic_of(s);
    const struct rdzv_backend_ops *ops = d->backend->ops;

    return ops->other_connections ? ops->other_connections(d->backend) : 0;
}

static void dynamic_stopped(struct handler_base *s, const struct muster_error *err)
{
    const struct dynamic_handler *d = dynamic_of(s);

    if (err->code < 0 && s->life.stage != LIFE_BROKEN && err->code != d->refused)
        log_line(d->log, LOG_WARN, AT_RENDEZVOUS,
                 "The node '%s_%" PRId64 "_%" PRId64
                 "' has failed to shutdown the rendezvous '%s': %s",
                 d->self.addr, d->self.pid, d->self.local_id, d->params.run_id,
                 err->text);
}

/* ---- What the agent asks ---- */

static struct dynamic_handler *of_handler(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct dynamic_handler, base.handler);
}

static const char *backend(const struct rdzv_handler *h)
{
    return of_handler(h)->backend->ops->name;
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    return of_handler(h)->share;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = of_handler(h);

    if (d->member)
        return seat_session_waiting(d->member);
    return d->core ? rdzv_waiting(d->core) : 0;
}

static bool is_closed(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = of_handler(h);

    if (d->member)
        return seat_session_closed(d->member);
    return d->base.life.ended || (d->core && rdzv_closed(d->core));
}

static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct dynamic_handler *d = of_handler(h);
    const struct handler_life *life = &d->base.life;
    const struct rdzv_backend_ops *ops = d->backend->ops;
    uint64_t by_ms;

    if (life->stage == LIFE_OPENING) {
        *out = (struct rdzv_progress){ .stage = RDZV_AT_STORE,
                                       .by_ms = d->open_by_ms,
                                       .start_by_ms = MONO_NEVER,
                                       .dialled = !ops->last_error };
        if (ops->last_error && ops->last_error(d->backend))
            progress_why(out, ops->last_error(d->backend));
        return true;
    }
    if (life->next.state == LIFE_FINDING && rdzv_master_waits(d->master, &by_ms)) {
        *out = (struct rdzv_progress){ .stage = RDZV_AT_ADDRESS,
                                       .by_ms = by_ms,
                                       .start_by_ms = MONO_NEVER };
        return true;
    }
    if (life->next.state != LIFE_ASKED && life->next.state != LIFE_CANCELING)
        return false;
    if (!d->member)
        return rdzv_progress(d->core, out);
    if (!seat_session_progress(d->member, out))
        return false;
    if (out->stage == RDZV_AT_ROUND && out->here < out->min_nodes && d->runs.text[0])
        progress_why(out, d->runs.text);
    return true;
}

static bool store_at(const struct rdzv_handler *h, struct rdzv_store_at *out)
{
    const struct dynamic_handler *d = of_handler(h);
    const struct rdzv_backend_ops *ops = d->backend->ops;
    struct rdzv_host at;

    *out = (struct rdzv_store_at){ .alone = dynamic_is_alone(d) };
    if (out->alone)
        return true;
    if (ops->host && ops->host(d->backend, &at)) {
        out->host = at.host;
        out->port = at.port;
        out->local = ops->serves && ops->serves(d->backend) != NULL;
        out->records = true;
        return true;
    }
    /* On etcd, an agent serves the workers' store, usually that of rank 0. */
    if (ops->host || !d->share || !d->round.master_addr)
        return false;
    out->host = d->round.master_addr;
    out->port = d->round.master_port;
    out->local = rdzv_master_serves(d->master);
    return true;
}

/* A coordinator notices the loss itself; on etcd-v3 only the nodes that lost the
 * connection know of it. Where torchrun's nodes may take part, their clocks decide when
 * a node counts as dead. */
static bool node_gone(struct rdzv_handler *h, uint64_t round, int64_t rank)
{
    struct dynamic_handler *d = of_handler(h);
    const enum life_state next = d->base.life.next.state;
    const struct rdzv_node *nodes;
    char text[128];
    size_t count;

    const bool joining = next == LIFE_ASKED || next == LIFE_CANCELING;

    /* While we join the next round, d->round is not set. */
    if (!d->settings.ours_only || !d->core || d->member || is_over(d) ||
        (rank < 0 && !joining) || round != rdzv_last_round(d->core))
        return false;
    nodes = rdzv_participants(d->core, &count);
    for (size_t i = 0; i < count; i++)
        if ((rank < 0 || i == (size_t)rank) && rdzv_still_placed(d->core, i))
            dynamic_peer_gone(d,
                              span_str(rdzv_node_text(&nodes[i], text, sizeof text)));
    return !joining && rank < (int64_t)count && rank != d->round.rank;
}

static uint64_t fenced_at_ms(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = of_handler(h);
    const struct rdzv_backend_ops *ops = d->backend->ops;

    if (d->settings.max_nodes == 1)
        return MONO_NEVER;
    if (d->member)
        return seat_session_fence_due(d->member);
    return MIN_OF(d->core ? rdzv_fence_due(d->core) : MONO_NEVER,
                  ops->fence_due ? ops->fence_due(d->backend) : MONO_NEVER);
}

static bool store_stats(const struct rdzv_handler *h, struct store_server_stats *out)
{
    const struct dynamic_handler *d = of_handler(h);
    const struct rdzv_backend_ops *ops = d->backend ? d->backend->ops : NULL;
    const struct store_server *own =
        ops && ops->serves ? ops->serves(d->backend) : NULL;

    *out = (struct store_server_stats){ 0 };
    store_server_stats_add(out, own);
    return rdzv_master_stats(d->master, out) || own;
}

static bool own_addr(const struct rdzv_handler *h, char *out, size_t size)
{
    const struct rdzv_backend *b = of_handler(h)->backend;

    return b->ops->own_addr && b->ops->own_addr(b, out, size);
}

static void spares(const struct rdzv_handler *h, char *to)
{
    const struct dynamic_handler *d = of_handler(h);

    *to = '\0';
    if (d->core && !d->member)
        rdzv_spares(d->core, to);
}

static void use_session(struct rdzv_handler *h, struct session *session)
{
    of_handler(h)->session = session;
}

static int64_t torch_nodes(const struct rdzv_handler *h)
{
    return dynamic_told(of_handler(h))->torch_nodes;
}

static void wipe_worker_store(struct rdzv_handler *h)
{
    (void)h; /* Done when the round is joined, since workers on other nodes may be
                writing by now. */
}

static void round_ends(struct rdzv_handler *h)
{
    const struct dynamic_handler *d = of_handler(h);
    const uint16_t port =
        gives_address(d) && !is_over(d) ? rdzv_master_prepare(d->master) : 0;

    if (port) /* Without memory for the message all join, as if somebody were lost. */
        (void)seat_session_serve(d->member, d->round.round + 1, d->round.master_addr,
                                 port);
}

static uint64_t worker_writes(const struct rdzv_handler *h)
{
    return rdzv_master_writes(of_handler(h)->master);
}

static uint64_t first_write_ms(struct rdzv_handler *h)
{
    return rdzv_master_first_write_ms(of_handler(h)->master);
}

const struct rdzv_handler_ops dynamic_ops = {
    HANDLER_BASE_OPS,
    .backend = backend,
    .use_agent_store = use_agent_store,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .store_at = store_at,
    .store_stats = store_stats,
    .node_gone = node_gone,
    .fence_due = fenced_at_ms,
    .use_session = use_session,
    .torch_nodes = torch_nodes,
    .spares = spares,
    .own_addr = own_addr,
    .round_ends = round_ends,
    .wipe_worker_store = wipe_worker_store,
    .worker_writes = worker_writes,
    .first_write_ms = first_write_ms,
};

/* ---- The end: stores and server first, then the backend, then the rest ---- */

static void dynamic_destroy(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);

    blocking_call_cancel(d->naming);
    d->naming = NULL;
    if (d->prefixed) {
        handle_set_add(&s->closing);
        async_store_close(d->prefixed, handle_set_left, &s->closing);
    }
    if (d->store) {
        handle_set_add(&s->closing);
        async_store_close(d->store, handle_set_left, &s->closing);
    }
    d->prefixed = d->store = NULL;
    if (d->member) {
        handle_set_add(&s->closing);
        seat_session_close(d->member, handle_set_left, &s->closing);
        d->member = NULL;
    }
    handle_set_add(&s->closing);
    rdzv_master_close(d->master, handle_set_left, &s->closing);
}

static void dynamic_free(struct dynamic_handler *d);

static void on_backend_gone(void *ctx)
{
    struct dynamic_handler *d = ctx;
    const struct handler_gone gone = d->base.gone;

    dynamic_free(d);
    gone.cb(gone.ctx);
}

static void dynamic_release(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);

    d->backend->ops->close(d->backend, on_backend_gone, d);
}

static void dynamic_free(struct dynamic_handler *d)
{
    rdzv_free(d->core);
    forget_members(d);
    params_fini(&d->params);
    mem_free(d);
}

const struct handler_impl dynamic_impl = {
    .open = dynamic_open,
    .join = dynamic_join,
    .leave = dynamic_leave,
    .close = dynamic_close,
    .find = dynamic_find,
    .drop = dynamic_drop,
    .rename = dynamic_rename_and_join,
    .retire = dynamic_retire,
    .others = dynamic_others,
    .deadline = dynamic_deadline,
    .timer = dynamic_timer,
    .stopped = dynamic_stopped,
    .round = dynamic_round,
    .destroy = dynamic_destroy,
    .release = dynamic_release,
};
