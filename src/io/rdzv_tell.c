/* rdzv_tell.c - what the dynamic handler tells the agent beside a round: news, that a
 * wish is done, and the end. See rdzv_driver.c. */
#include <inttypes.h>

#include "io/rdzv_driver_int.h"

#define LINGER_MS      5000u /* how long a host waits for others to read "closed" */
#define LINGER_TICK_MS 20u

/* ---- News ---- */

static void on_away(uv_timer_t *t)
{
    struct dynamic *d = t->data;

    if (d->news_cb && !d->stopped)
        d->news_cb(d->news_ctx, RDZV_NEWS_BACKEND, &d->away_err);
}

void dynamic_news(struct dynamic *d, const struct rdzv_effect *e)
{
    struct muster_error err;

    if (d->next_cb && !d->joining && !d->tell.next &&
        (e->news == RDZV_NEWS_LOST || e->news == RDZV_NEWS_EVICTED)) {
        /* The round fell apart before we learnt the workers' address: its rank 0 may
         * never tell it. The next round is what the agent wants. */
        trace(d->trace, TRACE_INFO, "run '%s', round %" PRIu64 ": %s; joining again",
              d->params.run_id, d->round.round, e->text ? e->text : "a member is gone");
        dynamic_begin_join(d);
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

/* ---- Wishes, and the end ---- */

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
    /* Whoever else still waits is not to wait for ever. */
    if (d->stop_closes)
        tell(&d->close, code, text);
    else
        tell(&d->close, MUSTER_ECANCELED, "shut down before the run was closed");
    tell(&d->leave, code, text);
    d->stopped = true;
    (void)uv_timer_stop(&d->timer);
    (void)uv_timer_stop(&d->linger);
    (void)uv_timer_stop(&d->away);
    if (code < 0 && d->stage != STAGE_BROKEN)
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

void dynamic_done(struct dynamic *d, const struct rdzv_effect *e)
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
        dynamic_close_stores(d); /* It is no guest's. */
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

/* ---- From the loop: what was found out inside a call of the agent ---- */

static void on_soon(uv_timer_t *t)
{
    struct dynamic *d = t->data;

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

void dynamic_soon(struct dynamic *d)
{
    (void)uv_timer_start(&d->soon, on_soon, 0, 0);
}
