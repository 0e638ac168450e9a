/* rdzv_legacy_face.c - what the agent calls of the backend "etcd", and what it is told.
 * See rdzv_etcd_legacy.c. */
#include <assert.h>

#include "base/err.h"
#include "base/trace.h"
#include "io/rdzv_legacy_int.h"

static struct old *old_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct old, base);
}

/* ---- Telling the agent ---- */

static void tell_next(struct old *o)
{
    const rdzv_next_cb cb = o->next_cb;
    struct muster_error err = o->refused;
    const bool joined = o->joined;

    o->refused.code = 0;
    o->joined = false;
    if (!cb || (!joined && !err.code))
        return;
    o->next_cb = NULL;
    cb(o->next_ctx, err.code, err.code ? NULL : &o->round, err.code ? &err : NULL);
}

static void tell_wish(struct wish *w, const struct muster_error *err)
{
    const rdzv_done_cb cb = w->cb;

    w->cb = NULL;
    if (cb)
        cb(w->ctx, err->code, err->code ? err : NULL);
}

static void on_soon(uv_timer_t *timer)
{
    struct old *o = timer->data;
    const struct muster_error none = { 0 };

    if (o->destroying)
        return;
    if (o->rejoin && o->next_cb && !o->joined && !o->refused.code) {
        legacy_drop_store(o);
        legacy_wish(o, LEGACY_EV_JOIN);
    }
    o->rejoin = false;
    tell_next(o);
    for (size_t i = 0; i < o->news_count && !o->destroying; i++)
        if (o->news_cb)
            o->news_cb(o->news_ctx, o->news[i].kind, &o->news[i].err);
    o->news_count = 0;
    if (o->close_done && !o->destroying) {
        o->close_done = o->closing = false;
        if (o->stop.cb) {
            o->stopped = true;
            legacy_keep_stop(&o->rank);
            legacy_keep_stop(&o->run);
        }
        tell_wish(&o->close, &o->close_err);
        tell_wish(&o->stop, &o->close_err);
    }
    if (o->leave_done && !o->destroying) {
        o->leave_done = false;
        tell_wish(&o->leave, &none);
        if (o->stopped) /* Else it closes, which is not done yet. */
            tell_wish(&o->stop, &none);
    }
}

void legacy_soon(struct old *o)
{
    (void)uv_timer_start(&o->soon, on_soon, 0, 0);
}

/* ---- What the agent calls ---- */

static const char *backend(const struct rdzv_handler *h)
{
    (void)h;
    return "etcd";
}

static const char *run_id(const struct rdzv_handler *h)
{
    return old_of(h)->run_id;
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    (void)h;
    return false;
}

static void next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct old *o = old_of(h);

    assert(!o->next_cb && !o->stopped);
    o->next_cb = cb;
    o->next_ctx = ctx;
    o->refused.code = 0;
    o->joined = false;
    o->news_count = 0;
    legacy_drop_store(o);
    trace(o->trace, TRACE_INFO, "Attempting to join next rendezvous of run '%s'",
          o->run_id);
    legacy_wish(o, LEGACY_EV_JOIN);
}

static void cancel(struct rdzv_handler *h)
{
    struct old *o = old_of(h);

    if (!o->next_cb)
        return;
    legacy_drop_store(o);
    legacy_wish(o, LEGACY_EV_LEAVE);
    err_set(&o->refused, MUSTER_ECANCELED, "joining the run '%s' was canceled",
            o->run_id);
    legacy_soon(o);
}

static void on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    old_of(h)->news_cb = cb;
    old_of(h)->news_ctx = ctx;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    return legacy_waiting(old_of(h)->core);
}

static bool is_closed(const struct rdzv_handler *h)
{
    return legacy_closed(old_of(h)->core);
}

static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct old *o = old_of(h);

    if (!o->next_cb)
        return false;
    if (!o->store && legacy_progress(o->core, out)) {
        const char *trouble = etcd_client_trouble(o->client);

        if (out->stage == RDZV_AT_STORE && trouble)
            progress_why(out, trouble);
        return true;
    }
    if (!o->store)
        return false;
    *out = (struct rdzv_progress){ .stage = RDZV_AT_ADDRESS,
                                   .by_ms = o->addr_by_ms,
                                   .start_by_ms = MONO_NEVER };
    return !o->joined;
}

static void begin_close(struct old *o)
{
    if (!o->closing)
        legacy_wish(o, LEGACY_EV_CLOSE);
    o->closing = true;
}

static void set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct old *o = old_of(h);

    assert(!o->close.cb && !o->stopped);
    o->close = (struct wish){ cb, ctx };
    begin_close(o);
}

static void leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct old *o = old_of(h);

    assert(!o->leave.cb && !o->stopped);
    o->leave = (struct wish){ cb, ctx };
    if (o->next_cb)
        cancel(h); /* Which leaves, too. */
    else
        legacy_wish(o, LEGACY_EV_LEAVE);
    o->leave_done = true;
    legacy_soon(o);
}

static void shutdown_handler(struct rdzv_handler *h, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    struct old *o = old_of(h);

    assert(!o->stop.cb && !o->stopped);
    if (o->next_cb)
        cancel(h);
    o->stop = (struct wish){ cb, ctx };
    if (close) {
        begin_close(o);
        return;
    }
    o->stopped = true;
    legacy_wish(o, LEGACY_EV_LEAVE);
    legacy_keep_stop(&o->run);
    o->leave_done = true;
    legacy_soon(o);
}

static void wipe_worker_store(struct rdzv_handler *h)
{
    (void)h; /* Worker 0 hosts it, anew each time. */
}

/* ---- The end ---- */

static void part_gone(void *ctx)
{
    struct old *o = ctx;
    void (*cb)(void *) = o->gone_cb;
    void *const cb_ctx = o->gone_ctx;

    if (--o->refs)
        return;
    legacy_old_free(o);
    if (cb)
        cb(cb_ctx);
}

static void on_timer_gone(uv_handle_t *handle)
{
    part_gone(handle->data);
}

static void on_keep_gone(uv_handle_t *handle)
{
    part_gone(((struct keep *)handle->data)->owner);
}

static void on_store_gone(void *ctx)
{
    struct old *o = ctx;

    etcd_client_close(o->client, part_gone, o);
}

static void destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct old *o = old_of(h);

    o->destroying = o->stopped = true;
    o->gone_cb = cb;
    o->gone_ctx = ctx;
    o->next_cb = NULL;
    o->news_cb = NULL;
    o->close.cb = o->leave.cb = o->stop.cb = NULL;
    offload_cancel(o->naming);
    o->naming = NULL;
    etcd_call_cancel(o->req);
    o->req = NULL;
    legacy_keep_stop(&o->run);
    legacy_keep_stop(&o->rank);
    o->refs = 6;
    uv_close((uv_handle_t *)&o->timer, on_timer_gone);
    uv_close((uv_handle_t *)&o->soon, on_timer_gone);
    uv_close((uv_handle_t *)&o->hiccup, on_timer_gone);
    uv_close((uv_handle_t *)&o->run.timer, on_keep_gone);
    uv_close((uv_handle_t *)&o->rank.timer, on_keep_gone);
    if (o->store)
        astore_close(o->store, on_store_gone, o);
    else
        on_store_gone(o);
    o->store = NULL;
}

const struct rdzv_handler_ops legacy_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .destroy = destroy,
};
