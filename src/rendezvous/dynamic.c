/* dynamic.c - the dynamic rendezvous at work: a core decides
 * (rendezvous/core/cas_node.c on a backend that holds the state, or
 * rendezvous/core/member.c on a coordinator), and this goes between it and the agent.
 *
 * Top to bottom: callbacks, dynamic_feed() (the only caller of rdzv_step),
 * dynamic_perform() (the only switch over its effects); what the agent is told beside a
 * round; what it calls. Rounds come to it by dynamic_round.c. It may call back from
 * inside a callback: such requests wait until the step that notified it is through. */
#include "loop/clock.h"
#include "rendezvous/dynamic_int.h"
#include "store/core/reserved.h"
#include <inttypes.h>

#define MAX_RENAMES 3u

static void dynamic_feed(struct dynamic_handler *d, struct rdzv_event *ev);

/* ---- Callbacks ---- */

static void dynamic_on_state(void *ctx, const struct rdzv_event *ev)
{
    struct dynamic_handler *d = ctx;
    struct rdzv_event copy = *ev;

    if (d->stopped)
        return;
    /* Whether it can tell of changes shows when it is asked to: it may by now. */
    if (ev->kind != RDZV_EV_FAILED) {
        rdzv_can_watch(d->core, d->backend->ops->watch != NULL);
        d->away_by_ms = MONO_NEVER; /* Back before it was worth telling. */
    }
    dynamic_feed(d, &copy);
}

static void dynamic_on_changed(void *ctx)
{
    struct dynamic_handler *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_CHANGED };

    if (!d->stopped)
        dynamic_feed(d, &ev);
}

void dynamic_peer_gone(void *ctx, struct span node)
{
    struct dynamic_handler *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_GONE, .value = node };

    if (!d->stopped && d->core)
        dynamic_feed(d, &ev);
}

/* ---- Feed and perform ---- */

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
    case RDZV_FX_JOINED:
        dynamic_joined(d, e);
        return;
    case RDZV_FX_REFUSED:
        d->collided =
            e->code == MUSTER_EEXIST && d->renamed < MAX_RENAMES && !d->canceling;
        if (!d->collided)
            dynamic_refused(d, e);
        return;
    case RDZV_FX_DONE:
        dynamic_done(d, e);
        return;
    case RDZV_FX_NEWS:
        dynamic_news(d, e);
        return;
    }
}

/* Out of memory in the middle of a step leaves the core waiting for its answer: give it
 * a failed one, and if even that does not go, end the request. */
static void step_failed(struct dynamic_handler *d, const struct rdzv_event *ev,
                        struct rdzv_fx *fx)
{
    struct rdzv_event failed = { .kind = RDZV_EV_FAILED,
                                 .now = ev->now,
                                 .code = MUSTER_ENOMEM,
                                 .text = "out of memory",
                                 .again = true };

    if ((ev->kind == RDZV_EV_STATE || ev->kind == RDZV_EV_WROTE) &&
        rdzv_step(d->core, &failed, fx) == 0)
        return;
    fx->count = 0;
    if (ev->kind == RDZV_EV_JOIN)
        dynamic_next_failed(d, MUSTER_ENOMEM, "out of memory");
}

static void dynamic_step(struct dynamic_handler *d, struct rdzv_event *ev)
{
    struct rdzv_fx fx;

    ev->now = clock_now();
    if (rdzv_step(d->core, ev, &fx) < 0)
        step_failed(d, ev, &fx);
    for (size_t i = 0; i < fx.count; i++)
        dynamic_perform(d, &fx.at[i]);
}

/* Somebody else's heartbeats come under our name: two containers with one host name and
 * one process id, or our own former self. */
static void rename_self(struct dynamic_handler *d)
{
    struct muster_error err;
    const int64_t old = d->local_id;

    d->collided = false;
    if (d->canceling) {
        dynamic_canceled(d);
        return;
    }
    d->renamed++;
    dynamic_rename(d);
    if (dynamic_core(d, &err) < 0) {
        dynamic_next_failed(d, err.code, err.text);
        return;
    }
    trace(d->trace, TRACE_WARN,
          "another node of the rendezvous '%s' is alive as '%s_%" PRId64 "_%" PRId64
          "'; joining as '%s_%" PRId64 "_%" PRId64 "' (--local-addr tells nodes apart)",
          d->params.run_id, d->addr, d->pid, old, d->addr, d->pid, d->local_id);
    dynamic_present(d);
    d->requests |= 1u << RDZV_EV_JOIN;
}

static void dynamic_feed(struct dynamic_handler *d, struct rdzv_event *ev)
{
    static const enum rdzv_event_kind order[] = { RDZV_EV_LEAVE, RDZV_EV_CLOSE,
                                                  RDZV_EV_JOIN };

    assert(!d->in_feed);
    d->in_feed = true;
    dynamic_step(d, ev);
    if (d->collided && !d->destroying)
        rename_self(d);
    for (size_t i = 0; i < ARRAY_LEN(order) && !d->destroying; i++) {
        struct rdzv_event w = { .kind = order[i] };

        if (d->unjoined) {
            d->unjoined = false;
            dynamic_canceled(d);
        }
        if (!(d->requests & 1u << order[i]))
            continue;
        d->requests &= ~(1u << order[i]);
        dynamic_step(d, &w);
        i = SIZE_MAX; /* That may have brought others. */
    }
    d->in_feed = false;
    dynamic_arm(d);
}

void dynamic_request(struct dynamic_handler *d, enum rdzv_event_kind kind)
{
    struct rdzv_event ev = { .kind = kind };

    if (d->member) {
        member_driver_request(d->member, kind);
    } else if (d->in_feed) {
        if (kind == RDZV_EV_LEAVE && d->requests & 1u << RDZV_EV_JOIN) {
            d->requests &= ~(1u << RDZV_EV_JOIN); /* As member_driver_request() does. */
            d->unjoined = true;
        }
        d->requests |= 1u << kind;
    } else {
        dynamic_feed(d, &ev);
    }
}

void dynamic_on_effect(void *ctx, const struct rdzv_effect *told)
{
    struct dynamic_handler *d = ctx;

    if (d->stopped)
        return;
    dynamic_perform(d, told);
    if (!d->collided || d->destroying)
        return;
    rename_self(d);
    d->requests = 0;
    if (d->member && dynamic_be_member(d))
        member_driver_request(d->member, RDZV_EV_JOIN);
}

/* ---- What the agent is told beside a round: news, that a request is done, the end
 * ---- */

#define LINGER_MS      5000u /* how long a host waits for others to read "closed" */
#define LINGER_TICK_MS 20u

/* ---- News ---- */

void dynamic_news(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    struct muster_error err;

    if (d->next_cb && !d->joining && !d->tell.next &&
        (e->news == RDZV_NEWS_LOST || e->news == RDZV_NEWS_EVICTED ||
         e->news == RDZV_NEWS_MOVED_ON)) {
        /* The round fell apart before we learnt the workers' address: its rank 0 may
         * never tell it. The next round is what the agent wants. */
        trace(d->trace, TRACE_INFO, "run '%s', round %" PRIu64 ": %s; joining again",
              d->params.run_id, d->round.round, e->text ? e->text : "a member is gone");
        dynamic_begin_join(d);
        return;
    }
    if (d->next_cb && !d->joining && !d->tell.next && e->news == RDZV_NEWS_CLOSED) {
        rdzv_master_cancel(d->master);
        dynamic_next_failed(
            d, MUSTER_ECLOSED,
            "another node has closed the run before its workers started: "
            "it failed, or was ended; the other nodes' logs tell why");
        return;
    }
    if (!d->news_cb)
        return;
    (void)err_set(&err, e->code, "%s", e->text ? e->text : "");
    if (e->news == RDZV_NEWS_BACKEND && e->code == MUSTER_ECONN && !d->member) {
        /* It is tried again and again; a store that comes back in the time that a node
         * may be silent has done nobody harm. */
        d->away_err = err;
        d->away_by_ms = clock_mono_ms() + rdzv_dead_after_ms(&d->settings);
        dynamic_arm(d);
        return;
    }
    if (e->news == RDZV_NEWS_BACKEND && d->member)
        err_wrap(&err, "run '%s' at %s", d->params.run_id,
                 d->backend->ops->where(d->backend));
    d->news_cb(d->news_ctx, e->news, &err);
}

/* ---- Requests, and the end ---- */

static void tell(struct pending *w, int code, const char *text)
{
    const rdzv_done_cb cb = w->cb;
    struct muster_error err;

    w->cb = NULL;
    if (cb)
        cb(w->ctx, code, code < 0 && err_set(&err, code, "%s", text) ? &err : NULL);
}

static void stop_now(struct dynamic_handler *d, int code, const char *text)
{
    /* Whoever else still waits is not to wait for ever. */
    if (d->stop_closes)
        tell(&d->close, code, text);
    else
        tell(&d->close, MUSTER_ECANCELED, "shut down before the run was closed");
    tell(&d->leave, code, text);
    d->stopped = true;
    d->away_by_ms = d->linger_at_ms = MONO_NEVER;
    dynamic_arm(d);
    if (code < 0 && d->stage != STAGE_BROKEN && code != d->refused)
        trace(d->trace, TRACE_WARN,
              "The node '%s_%" PRId64 "_%" PRId64
              "' has failed to shutdown the rendezvous '%s': %s",
              d->addr, d->pid, d->local_id, d->params.run_id, text);
    tell(&d->stop, code, text);
}

/* The store dies with its host; those who have not read "closed" by then would take the
 * end of the run for a failure. */
static void linger(struct dynamic_handler *d, uint64_t now)
{
    const struct rdzv_backend_ops *ops = d->backend->ops;
    const uint64_t waited = now + LINGER_MS - d->linger_by_ms;

    /* The first ticks are short: mostly the only member was ourselves, just closed. */
    if (ops->members && ops->members(d->backend) > 0 && now < d->linger_by_ms)
        d->linger_at_ms = now + MIN_OF(1 + waited, LINGER_TICK_MS);
    else
        stop_now(d, 0, NULL);
}

void dynamic_done(struct dynamic_handler *d, const struct rdzv_effect *e)
{
    if (d->member && e->request == RDZV_EV_CLOSE && e->code == 0)
        trace(d->trace, TRACE_INFO,
              "The node '%s_%" PRId64 "_%" PRId64 "' has closed the rendezvous '%s'.",
              d->addr, d->pid, d->local_id, d->params.run_id);
    tell(e->request == RDZV_EV_CLOSE ? &d->close : &d->leave, e->code, e->text);
    if (!d->stop.cb || d->stop_closes != (e->request == RDZV_EV_CLOSE))
        return;
    if (e->request == RDZV_EV_CLOSE && e->code == 0 && d->backend->ops->members &&
        !dynamic_is_alone(d)) {
        dynamic_close_stores(d); /* It is not a member's. */
        if (d->member)
            member_driver_close(d->member, NULL, NULL);
        d->member = NULL;
        d->ended = true;
        d->linger_at_ms = clock_mono_ms();
        d->linger_by_ms = d->linger_at_ms + LINGER_MS;
        dynamic_arm(d);
    } else {
        stop_now(d, e->code, e->text);
    }
}

/* ---- From the loop: what was found out inside a call of the agent ---- */

static void tell_deferred(struct dynamic_handler *d)
{
    if (d->tell.next) {
        d->tell.next = false;
        dynamic_next_failed(d, d->tell.next_err.code, d->tell.next_err.text);
    }
    if (d->tell.close) {
        d->tell.close = false;
        tell(&d->close, d->broken.code, d->broken.text);
    }
    if (d->tell.leave) {
        d->tell.leave = false;
        tell(&d->leave, 0, NULL);
    }
    if (d->tell.stop) {
        d->tell.stop = false;
        if (d->stop_closes && d->stage == STAGE_BROKEN)
            stop_now(d, d->broken.code, d->broken.text);
        else
            stop_now(d, 0, NULL);
    }
}

/* ---- Time: one timer for the earliest of all that is due ---- */

static uint64_t core_due_ms(const struct dynamic_handler *d)
{
    return d->core ? rdzv_deadline(d->core) : MONO_NEVER;
}

static void on_gathered(void *ctx, int status, const struct c10d_reply *reply,
                        const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;

    (void)err; /* An older store does not know the question. */
    if (status == 0)
        progress_other_runs(reply->value, d->params.run_id, d->other_runs,
                            sizeof d->other_runs);
}

/* Somebody may have given another --rdzv-id. Large groups do not ask: where most have
 * come, that is not it, and thousands would ask at once. */
static void ask_for_runs(struct dynamic_handler *d, uint64_t now)
{
    struct rdzv_progress p;

    d->runs_at_ms = MONO_NEVER;
    if (!d->joining || !d->member || !d->store ||
        !member_progress(member_driver_core(d->member), &p))
        return;
    d->runs_at_ms = now + RUNS_EVERY_MS;
    if (p.stage == RDZV_AT_ROUND && p.here < p.min_nodes && p.here <= RDZV_NAMES_MAX)
        (void)async_store_get(d->store, span_str(&RESERVED_GATHERED[1]), RUNS_EVERY_MS,
                              on_gathered, d, NULL);
}

static void dynamic_on_timer(uv_timer_t *t)
{
    struct dynamic_handler *d = t->data;
    struct rdzv_event ev = { .kind = RDZV_EV_TIMER };
    const uint64_t now = clock_mono_ms();

    tell_deferred(d);
    if (!d->stopped && now >= d->away_by_ms) {
        d->away_by_ms = MONO_NEVER;
        if (d->news_cb)
            d->news_cb(d->news_ctx, RDZV_NEWS_BACKEND, &d->away_err);
    }
    if (!d->stopped && now >= d->linger_at_ms)
        linger(d, now);
    if (!d->stopped && now >= core_due_ms(d))
        dynamic_feed(d, &ev);
    if (!d->stopped && now >= d->runs_at_ms)
        ask_for_runs(d, now);
    dynamic_arm(d);
}

void dynamic_arm(struct dynamic_handler *d)
{
    const bool tells = d->tell.next || d->tell.close || d->tell.leave || d->tell.stop;
    uint64_t due = tells ? 0 : MONO_NEVER;

    if (d->destroying)
        return;
    if (!d->stopped)
        due =
            MIN_OF(MIN_OF(due, core_due_ms(d)), MIN_OF(d->away_by_ms, d->linger_at_ms));
    if (!d->stopped)
        due = MIN_OF(due, d->runs_at_ms);
    clock_arm(&d->timer, dynamic_on_timer, due);
}

/* ---- The handler as the agent sees it ---- */

static struct dynamic_handler *dynamic_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct dynamic_handler, base);
}

/* ---- What the agent calls ---- */

static const char *backend(const struct rdzv_handler *h)
{
    return dynamic_of(h)->backend->ops->name;
}

static const char *run_id(const struct rdzv_handler *h)
{
    return dynamic_of(h)->params.run_id;
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    return dynamic_of(h)->share;
}

static void next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct dynamic_handler *d = dynamic_of(h);

    assert(!d->next_cb && !d->stopped);
    d->next_cb = cb;
    d->next_ctx = ctx;
    d->canceling = false;
    if (d->stage == STAGE_NEW)
        dynamic_open(d);
    else if (d->stage == STAGE_READY || d->stage == STAGE_BROKEN)
        dynamic_opened(d);
}

static void cancel(struct rdzv_handler *h)
{
    struct dynamic_handler *d = dynamic_of(h);

    if (!d->next_cb || d->canceling)
        return;
    d->canceling = true;
    if (d->joining) {
        dynamic_request(d, RDZV_EV_LEAVE);
        return;
    }
    if (d->master)
        rdzv_master_cancel(d->master);
    if (d->stage == STAGE_READY)
        dynamic_request(d, RDZV_EV_LEAVE);
    d->tell.next = true;
    (void)err_set(&d->tell.next_err, MUSTER_ECANCELED,
                  "joining the run '%s' was canceled", d->params.run_id);
    dynamic_arm(d);
}

static void on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    struct dynamic_handler *d = dynamic_of(h);

    d->news_cb = cb;
    d->news_ctx = ctx;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = dynamic_of(h);

    if (d->member)
        return member_waiting(member_driver_core(d->member));
    return d->core ? rdzv_waiting(d->core) : 0;
}

static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct dynamic_handler *d = dynamic_of(h);
    const struct rdzv_backend_ops *ops = d->backend->ops;
    uint64_t by_ms;

    if (d->stage == STAGE_NAME || d->stage == STAGE_OPEN) {
        *out = (struct rdzv_progress){
            .stage = RDZV_AT_STORE,
            .by_ms = d->stage == STAGE_OPEN ? d->open_by_ms : MONO_NEVER,
            .start_by_ms = MONO_NEVER,
            .dialled = !ops->last_error,
        };
        if (ops->last_error && ops->last_error(d->backend))
            progress_why(out, ops->last_error(d->backend));
        return true;
    }
    if (d->next_cb && rdzv_master_waits(d->master, &by_ms)) {
        *out = (struct rdzv_progress){ .stage = RDZV_AT_ADDRESS,
                                       .by_ms = by_ms,
                                       .start_by_ms = MONO_NEVER };
        return true;
    }
    if (!d->joining)
        return false;
    if (!d->member)
        return rdzv_progress(d->core, out);
    if (!member_progress(member_driver_core(d->member), out))
        return false;
    if (out->stage == RDZV_AT_ROUND && out->here < out->min_nodes && d->other_runs[0])
        progress_why(out, d->other_runs);
    return true;
}

static bool store_at(const struct rdzv_handler *h, const char **host, uint16_t *port,
                     bool *local, bool *alone)
{
    const struct dynamic_handler *d = dynamic_of(h);
    const struct rdzv_backend_ops *ops = d->backend->ops;
    bool echoes;

    *alone = dynamic_is_alone(d);
    if (*alone)
        return true;
    if (ops->host && ops->host(d->backend, host, port, &echoes)) {
        *local = ops->serves && ops->serves(d->backend) != NULL;
        return true;
    }
    /* On etcd, an agent serves the workers' store, mostly rank 0's. */
    if (ops->host || !d->share || !d->round.master_addr)
        return false;
    *host = d->round.master_addr;
    *port = d->round.master_port;
    *local = rdzv_master_serves(d->master);
    return true;
}

/* Our coordinator knows of the loss itself; on etcd-v3 nobody does but those who lost
 * it. Where torchrun's nodes may be among us, who dies when is for their clocks to say.
 */
static bool node_gone(struct rdzv_handler *h, uint64_t round, int64_t rank)
{
    struct dynamic_handler *d = dynamic_of(h);
    const struct rdzv_node *nodes;
    char text[128];
    size_t count;

    if (!d->settings.ours_only || !d->core || d->member || d->stopped || d->joining ||
        round != d->round.round)
        return false;
    nodes = participants(d->core, &count);
    if (rank < 0 || (size_t)rank >= count || rank == d->round.rank)
        return false;
    dynamic_peer_gone(d, span_str(rdzv_node_text(&nodes[rank], text, sizeof text)));
    return true;
}

static const struct store_server *served_store(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = dynamic_of(h);
    const struct rdzv_backend_ops *ops = d->backend ? d->backend->ops : NULL;

    return ops && ops->serves ? ops->serves(d->backend) : NULL;
}

static int64_t torch_nodes(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = dynamic_of(h);

    return d->member ? member_torch_nodes(member_driver_core(d->member)) : 0;
}

static bool is_closed(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = dynamic_of(h);

    if (d->member)
        return member_closed(member_driver_core(d->member));
    return d->ended || (d->core && rdzv_closed(d->core));
}

static void close_when_open(struct dynamic_handler *d)
{
    d->close_waits = true;
    if (d->stage == STAGE_NEW)
        dynamic_open(d);
}

static void set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct dynamic_handler *d = dynamic_of(h);

    assert(!d->close.cb && !d->stopped);
    d->close = (struct pending){ cb, ctx };
    if (d->stage == STAGE_READY) {
        if (!d->stop.cb || !d->stop_closes)
            dynamic_request(d, RDZV_EV_CLOSE);
    } else if (d->stage == STAGE_BROKEN) {
        d->tell.close = true;
        dynamic_arm(d);
    } else {
        close_when_open(d);
    }
}

static void leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct dynamic_handler *d = dynamic_of(h);

    assert(!d->leave.cb && !d->stopped);
    d->leave = (struct pending){ cb, ctx };
    if (d->next_cb && !d->canceling)
        cancel(h); /* Which leaves, too, once there is what can be left. */
    else if (d->stage == STAGE_READY)
        dynamic_request(d, RDZV_EV_LEAVE);
    if (d->stage == STAGE_READY)
        return;
    d->tell.leave = true;
    dynamic_arm(d);
}

static void shutdown_handler(struct rdzv_handler *h, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    struct dynamic_handler *d = dynamic_of(h);

    assert(!d->stop.cb && !d->stopped);
    if (d->next_cb)
        cancel(h);
    d->stop = (struct pending){ cb, ctx };
    d->stop_closes = close;
    /* What is closed need not be closed again: whoever did that may have taken the
     * store along. A host goes the usual way, since others may still want to read it.
     */
    const bool closed_elsewhere =
        close && is_closed(h) &&
        !(d->backend->ops->members && d->backend->ops->members(d->backend) > 0);

    if (d->stage == STAGE_BROKEN || closed_elsewhere ||
        (d->stage != STAGE_READY && !close)) {
        d->tell.stop = true;
        dynamic_arm(d);
    } else if (d->stage != STAGE_READY) {
        close_when_open(d);
    } else if (!close) {
        dynamic_request(d, RDZV_EV_LEAVE);
    } else if (!d->close.cb) {
        dynamic_request(d, RDZV_EV_CLOSE);
    }
}

static void wipe_worker_store(struct rdzv_handler *h)
{
    (void)
        h; /* Done when the round is joined: by now workers elsewhere may be writing. */
}

static uint64_t worker_writes(const struct rdzv_handler *h)
{
    const struct dynamic_handler *d = CONTAINER_OF(h, struct dynamic_handler, base);

    return rdzv_master_writes(d->master);
}

static uint64_t first_write_ms(struct rdzv_handler *h)
{
    return rdzv_master_first_write_ms(
        CONTAINER_OF(h, struct dynamic_handler, base)->master);
}

/* ---- The end: stores and server first, then the backend, then the rest ---- */

static void on_backend_gone(void *ctx)
{
    struct dynamic_handler *d = ctx;
    void (*cb)(void *) = d->gone_cb;
    void *cb_ctx = d->gone_ctx;

    dynamic_free(d);
    cb(cb_ctx);
}

static void part_gone(void *ctx)
{
    struct dynamic_handler *d = ctx;

    if (--d->refs == 0)
        d->backend->ops->close(d->backend, on_backend_gone, d);
}

static void on_handle_gone(uv_handle_t *h)
{
    part_gone(h->data);
}

static void destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct dynamic_handler *d = dynamic_of(h);

    assert(!d->destroying);
    d->destroying = d->stopped = true;
    d->gone_cb = cb;
    d->gone_ctx = ctx;
    d->next_cb = NULL;
    d->news_cb = NULL;
    d->close.cb = d->leave.cb = d->stop.cb = NULL;
    blocking_call_cancel(d->naming);
    d->naming = NULL;
    d->refs = 2; /* the timer and the workers' address */
    if (d->prefixed) {
        d->refs++;
        async_store_close(d->prefixed, part_gone, d);
    }
    if (d->store) {
        d->refs++;
        async_store_close(d->store, part_gone, d);
    }
    d->prefixed = d->store = NULL;
    if (d->member) {
        d->refs++;
        member_driver_close(d->member, part_gone, d);
        d->member = NULL;
    }
    uv_close((uv_handle_t *)&d->timer, on_handle_gone);
    rdzv_master_close(d->master, part_gone, d);
}

const struct rdzv_handler_ops dynamic_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .store_at = store_at,
    .served_store = served_store,
    .node_gone = node_gone,
    .torch_nodes = torch_nodes,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .worker_writes = worker_writes,
    .first_write_ms = first_write_ms,
    .destroy = destroy,
};
