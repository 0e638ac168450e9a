/* rdzv_driver.c - the dynamic rendezvous at work: the core (rdzv/rdzv.c) decides, a
 * backend (rdzv_backend.h) holds the state, and this goes between them and the agent.
 *
 * Top to bottom: callbacks, feed() (the only caller of rdzv_step), perform() (the only
 * switch over its effects). What the agent calls is in rdzv_face.c; it may call back
 * from inside a callback: such wishes wait until the step that told it is through. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/clock.h"
#include "io/rdzv_driver_int.h"

#define LINGER_MS      5000u /* how long a host waits for others to read "closed" */
#define LINGER_TICK_MS 20u
#define MAX_RENAMES    3u

static void feed(struct dynamic *d, struct rdzv_event *ev);

/* ---- Callbacks ---- */

static void on_state(void *ctx, const struct rdzv_event *ev)
{
    struct dynamic *d = ctx;
    struct rdzv_event copy = *ev;

    if (d->stopped)
        return;
    /* Whether it can tell of changes shows when it is asked to: it may by now. */
    if (ev->kind != RDZV_EV_FAILED) {
        rdzv_can_watch(d->core, d->backend->ops->watch != NULL);
        (void)uv_timer_stop(&d->away); /* Back before it was worth telling. */
    }
    feed(d, &copy);
}

static void on_changed(void *ctx)
{
    struct dynamic *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_CHANGED };

    if (!d->stopped)
        feed(d, &ev);
}

void dynamic_peer_gone(void *ctx, struct span node)
{
    struct dynamic *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_GONE, .value = node };

    if (!d->stopped && d->core)
        feed(d, &ev);
}

static void on_timer(uv_timer_t *t)
{
    struct dynamic *d = t->data;
    struct rdzv_event ev = { .kind = RDZV_EV_TIMER };

    if (!d->stopped)
        feed(d, &ev);
}

static void on_soon(uv_timer_t *t);

void dynamic_soon(struct dynamic *d)
{
    (void)uv_timer_start(&d->soon, on_soon, 0, 0);
}

/* ---- next(): telling how it went ---- */

static void next_failed(struct dynamic *d, int code, const char *text)
{
    const rdzv_next_cb cb = d->next_cb;
    struct muster_error err;

    if (!cb)
        return;
    d->next_cb = NULL;
    d->joining = false;
    cb(d->next_ctx, err_set(&err, code, "%s", text), NULL, &err);
}

static void on_master(void *ctx, int status, const char *addr, uint16_t port,
                      const struct muster_error *err)
{
    struct dynamic *d = ctx;
    const rdzv_next_cb cb = d->next_cb;

    if (!cb)
        return;
    if (status < 0) {
        next_failed(d, status, err->text);
        return;
    }
    d->round.master_addr = addr;
    d->round.master_port = port;
    d->next_cb = NULL;
    cb(d->next_ctx, 0, &d->round, NULL);
}

static void no_matter(void *ctx)
{
    (void)ctx;
}

static void close_stores(struct dynamic *d)
{
    if (d->prefixed)
        astore_close(d->prefixed, no_matter, NULL);
    if (d->store)
        astore_close(d->store, no_matter, NULL);
    d->prefixed = d->store = NULL;
}

/* The workers' keys of the last round would mislead those of this one. No other agent's
 * workers have started yet: they wait for the ranks that our role_info is needed for,
 * unless ranks are not agreed upon at all. */
static void wipe_if_safe(struct dynamic *d)
{
    const char *identical = getenv("TORCH_ELASTIC_WORKER_IDENTICAL");

    if (!identical || strcmp(identical, "1") != 0)
        rdzv_master_wipe(d->master);
}

static void find_master(struct dynamic *d)
{
    struct rdzv_master_job job = { .round = d->round.round,
                                   .rank = d->round.rank,
                                   .store = d->store };

    if (!d->guest) {
        job.members = rdzv_members(d->core, &job.count);
    } else if (d->members) {
        job.members = d->members;
        job.count = (size_t)d->round.world_size;
    } else {
        d->zero = rdzv_guest_zero(rdzv_guest_core(d->guest));
        job.members = &d->zero;
        job.count = 1;
    }
    rdzv_master_start(d->master, &job, on_master, d);
}

static void joined(struct dynamic *d, const struct rdzv_effect *e)
{
    char *prefix =
        mem_printf("torch.rendezvous.%s.%" PRId64, d->params.run_id, e->round);
    struct muster_error err;
    int rc = prefix ? 0 : err_nomem(&err);

    d->joining = false;
    if (d->guest)
        trace(d->trace, TRACE_INFO,
              "The node '%s_%" PRId64 "_%" PRId64 "' has joined round %" PRId64
              " of the rendezvous '%s' as rank %" PRId64 " in a world of size %" PRId64
              ".",
              d->addr, d->pid, d->local_id, e->round, d->params.run_id, e->rank,
              e->world);
    if (rc == 0)
        rc = astore_prefix(d->store, prefix, false, &d->prefixed, &err);
    mem_free(prefix);
    if (rc < 0) {
        next_failed(d, rc, err.text);
        return;
    }
    d->round = (struct rdzv_round){ .round = (uint64_t)e->round,
                                    .rank = e->rank,
                                    .world_size = e->world,
                                    .store = d->prefixed };
    wipe_if_safe(d);
    if (d->guest)
        dynamic_hosted_members(d, find_master);
    else
        find_master(d);
}

static void begin_join(struct dynamic *d)
{
    const bool first = !d->store && !d->round.store;
    struct muster_error err;

    rdzv_master_cancel(d->master);
    close_stores(d);
    d->round = (struct rdzv_round){ 0 };
    if (d->backend->ops->store(d->backend, &d->store, &err) < 0) {
        d->store = NULL;
        d->tell.next = true;
        d->tell.next_err = err;
        dynamic_soon(d);
        return;
    }
    if (first)
        dynamic_settings(d);
    d->joining = true;
    /* torch's words, which the core of a node that is no guest says itself. */
    if (d->guest)
        trace(d->trace, TRACE_INFO,
              "The node '%s_%" PRId64 "_%" PRId64
              "' attempts to join the next round of the rendezvous '%s'.",
              d->addr, d->pid, d->local_id, d->params.run_id);
    dynamic_wish(d, RDZV_EV_JOIN);
}

void dynamic_opened(struct dynamic *d)
{
    if (d->stage == STAGE_BROKEN) {
        if (d->next_cb) {
            d->tell.next = true;
            d->tell.next_err = d->broken;
        }
        d->tell.close = d->close.cb != NULL;
        dynamic_soon(d);
        return;
    }
    if (d->close.cb && d->close_waits) {
        d->close_waits = false;
        dynamic_wish(d, RDZV_EV_CLOSE);
    }
    if (d->next_cb)
        begin_join(d);
}

/* ---- Feed and perform ---- */

static void on_away(uv_timer_t *t)
{
    struct dynamic *d = t->data;

    if (d->news_cb && !d->stopped)
        d->news_cb(d->news_ctx, RDZV_NEWS_BACKEND, &d->away_err);
}

static void news(struct dynamic *d, const struct rdzv_effect *e)
{
    struct muster_error err;

    if (d->next_cb && !d->joining && !d->tell.next &&
        (e->news == RDZV_NEWS_LOST || e->news == RDZV_NEWS_EVICTED)) {
        /* The round fell apart before we learnt the workers' address: its rank 0 may
         * never tell it. The next round is what the agent wants. */
        trace(d->trace, TRACE_INFO, "run '%s', round %" PRIu64 ": %s; joining again",
              d->params.run_id, d->round.round, e->text ? e->text : "a member is gone");
        begin_join(d);
        return;
    }
    if (!d->news_cb)
        return;
    (void)err_set(&err, e->code, "%s", e->text ? e->text : "");
    if (e->news == RDZV_NEWS_BACKEND && e->code == MUSTER_ECONN && !d->guest) {
        /* It is tried again and again; a store that comes back in the time that a node
         * may be silent has done nobody harm. */
        d->away_err = err;
        (void)uv_timer_start(&d->away, on_away, rdzv_dead_after_ms(&d->settings), 0);
        return;
    }
    d->news_cb(d->news_ctx, e->news, &err);
}

static void tell(struct wish *w, int code, const char *text)
{
    const rdzv_done_cb cb = w->cb;
    struct muster_error err;

    w->cb = NULL;
    if (cb)
        cb(w->ctx, code, code < 0 && err_set(&err, code, "%s", text) ? &err : NULL);
}

static void stop_now(struct dynamic *d, int code, const char *text)
{
    d->stopped = true;
    (void)uv_timer_stop(&d->timer);
    (void)uv_timer_stop(&d->linger);
    (void)uv_timer_stop(&d->away);
    if (code < 0)
        trace(d->trace, TRACE_WARN,
              "The node '%s_%" PRId64 "_%" PRId64
              "' has failed to shutdown the rendezvous '%s': %s",
              d->addr, d->pid, d->local_id, d->params.run_id, text);
    tell(&d->stop, code, text);
}

/* The store dies with its host; those who have not read "closed" by then would take the
 * end of the run for a failure. */
static void on_linger(uv_timer_t *t)
{
    struct dynamic *d = t->data;
    const struct rdzv_backend_ops *ops = d->backend->ops;
    const uint64_t now = uv_now(d->base.loop);
    const uint64_t waited = now + LINGER_MS - d->linger_by_ms;

    /* The first ticks are short: mostly the only guest was ourselves, just closed. */
    if (ops->guests && ops->guests(d->backend) > 0 && now < d->linger_by_ms)
        (void)uv_timer_start(&d->linger, on_linger, MIN_OF(1 + waited, LINGER_TICK_MS),
                             0);
    else
        stop_now(d, 0, NULL);
}

static void done(struct dynamic *d, const struct rdzv_effect *e)
{
    if (d->guest && e->wish == RDZV_EV_CLOSE && e->code == 0)
        trace(d->trace, TRACE_INFO,
              "The node '%s_%" PRId64 "_%" PRId64 "' has closed the rendezvous '%s'.",
              d->addr, d->pid, d->local_id, d->params.run_id);
    tell(e->wish == RDZV_EV_CLOSE ? &d->close : &d->leave, e->code, e->text);
    if (!d->stop.cb || d->stop_closes != (e->wish == RDZV_EV_CLOSE))
        return;
    if (e->wish == RDZV_EV_CLOSE && e->code == 0 && d->backend->ops->guests &&
        !dynamic_is_alone(d)) {
        close_stores(d); /* It is no guest's. */
        if (d->guest)
            rdzv_guest_close(d->guest, NULL, NULL);
        d->guest = NULL;
        d->ended = true;
        d->linger_by_ms = uv_now(d->base.loop) + LINGER_MS;
        (void)uv_timer_start(&d->linger, on_linger, 0, 0);
    } else {
        stop_now(d, e->code, e->text);
    }
}

/* The core knows neither the run's place nor always its name. */
static void refused(struct dynamic *d, const struct rdzv_effect *e)
{
    struct muster_error err;

    (void)err_set(&err, e->code, "%s", e->text);
    if (!strstr(err.text, d->params.run_id) ||
        !strstr(err.text, d->backend->ops->where(d->backend)))
        err_add(&err, " (run id '%s' at %s)", d->params.run_id,
                d->backend->ops->where(d->backend));
    next_failed(d, e->code, err.text);
}

static void perform(struct dynamic *d, const struct rdzv_effect *e)
{
    const struct rdzv_backend_ops *ops = d->backend->ops;

    switch (e->kind) {
    case RDZV_FX_READ_STATE:
        ops->get(d->backend, UINT64_MAX, on_state, d);
        return;
    case RDZV_FX_WRITE_STATE:
        ops->set(d->backend, e->value, e->has_token, e->token, e->quiet, UINT64_MAX,
                 on_state, d);
        return;
    case RDZV_FX_WATCH:
        rdzv_can_watch(d->core, ops->watch && ops->watch(d->backend, e->present,
                                                         e->value, on_changed, d));
        return;
    case RDZV_FX_JOINED:
        joined(d, e);
        return;
    case RDZV_FX_REFUSED:
        d->collided = e->code == MUSTER_EEXIST && d->renamed < MAX_RENAMES;
        if (!d->collided)
            refused(d, e);
        return;
    case RDZV_FX_DONE:
        done(d, e);
        return;
    case RDZV_FX_NEWS:
        news(d, e);
        return;
    }
}

static void arm(struct dynamic *d)
{
    clock_arm(&d->timer, on_timer,
              d->core && !d->stopped ? rdzv_deadline(d->core) : MONO_NEVER);
}

/* Out of memory in the middle of a step leaves the core waiting for its answer: give it
 * a failed one, and if even that does not go, end the wish. */
static void step_failed(struct dynamic *d, const struct rdzv_event *ev,
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
        next_failed(d, MUSTER_ENOMEM, "out of memory");
}

static void step(struct dynamic *d, struct rdzv_event *ev)
{
    struct rdzv_fx fx;

    ev->now = clock_now();
    if (rdzv_step(d->core, ev, &fx) < 0)
        step_failed(d, ev, &fx);
    for (size_t i = 0; i < fx.count; i++)
        perform(d, &fx.at[i]);
}

/* Somebody else's heartbeats come under our name: two containers with one host name and
 * one process id, or our own former self. */
static void rename_self(struct dynamic *d)
{
    struct muster_error err;
    const int64_t old = d->local_id;

    d->collided = false;
    d->renamed++;
    dynamic_rename(d);
    if (dynamic_core(d, &err) < 0) {
        next_failed(d, err.code, err.text);
        return;
    }
    trace(d->trace, TRACE_WARN,
          "another node of the rendezvous '%s' is alive as '%s_%" PRId64 "_%" PRId64
          "'; joining as '%s_%" PRId64 "_%" PRId64 "' (--local-addr tells nodes apart)",
          d->params.run_id, d->addr, d->pid, old, d->addr, d->pid, d->local_id);
    dynamic_present(d);
    d->wishes |= 1u << RDZV_EV_JOIN;
}

static void feed(struct dynamic *d, struct rdzv_event *ev)
{
    static const enum rdzv_event_kind order[] = { RDZV_EV_LEAVE, RDZV_EV_CLOSE,
                                                  RDZV_EV_JOIN };

    assert(!d->in_feed);
    d->in_feed = true;
    step(d, ev);
    if (d->collided && !d->destroying)
        rename_self(d);
    for (size_t i = 0; i < ARRAY_LEN(order) && !d->destroying; i++) {
        struct rdzv_event w = { .kind = order[i] };

        if (!(d->wishes & 1u << order[i]))
            continue;
        d->wishes &= ~(1u << order[i]);
        step(d, &w);
        i = SIZE_MAX; /* That may have brought others. */
    }
    d->in_feed = false;
    arm(d);
}

void dynamic_wish(struct dynamic *d, enum rdzv_event_kind kind)
{
    struct rdzv_event ev = { .kind = kind };

    if (d->guest)
        rdzv_guest_wish(d->guest, kind);
    else if (d->in_feed)
        d->wishes |= 1u << kind;
    else
        feed(d, &ev);
}

void dynamic_told(void *ctx, const struct rdzv_effect *told)
{
    struct dynamic *d = ctx;

    if (d->stopped)
        return;
    perform(d, told);
    if (!d->collided || d->destroying)
        return;
    rename_self(d);
    d->wishes = 0;
    if (d->guest && dynamic_be_guest(d))
        rdzv_guest_wish(d->guest, RDZV_EV_JOIN);
}

static void on_soon(uv_timer_t *t)
{
    struct dynamic *d = t->data;

    if (d->tell.next) {
        d->tell.next = false;
        next_failed(d, d->tell.next_err.code, d->tell.next_err.text);
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
        stop_now(d, 0, NULL);
    }
}
