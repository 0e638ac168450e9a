/* rdzv_face.c - the dynamic handler as the agent sees it: what it may ask for, and the
 * end. What follows from it is rdzv_driver.c's. */
#include "io/rdzv_driver_int.h"

static struct dynamic *dynamic_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct dynamic, base);
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
    struct dynamic *d = dynamic_of(h);

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
    struct dynamic *d = dynamic_of(h);

    if (!d->next_cb || d->canceling)
        return;
    d->canceling = true;
    if (d->joining) {
        dynamic_wish(d, RDZV_EV_LEAVE);
        return;
    }
    if (d->master)
        rdzv_master_cancel(d->master);
    if (d->stage == STAGE_READY)
        dynamic_wish(d, RDZV_EV_LEAVE);
    d->tell.next = true;
    (void)err_set(&d->tell.next_err, MUSTER_ECANCELED,
                  "joining the run '%s' was canceled", d->params.run_id);
    dynamic_soon(d);
}

static void on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    struct dynamic *d = dynamic_of(h);

    d->news_cb = cb;
    d->news_ctx = ctx;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    const struct dynamic *d = dynamic_of(h);

    if (d->guest)
        return rdzv_guest_waiting(rdzv_guest_core(d->guest));
    return d->core ? rdzv_waiting(d->core) : 0;
}

static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct dynamic *d = dynamic_of(h);
    const struct rdzv_backend_ops *ops = d->backend->ops;
    uint64_t by_ms;

    if (d->stage == STAGE_NAME || d->stage == STAGE_OPEN) {
        *out = (struct rdzv_progress){
            .stage = RDZV_AT_STORE,
            .by_ms = d->stage == STAGE_OPEN ? d->open_by_ms : MONO_NEVER,
            .start_by_ms = MONO_NEVER,
            .dialled = !ops->trouble,
        };
        if (ops->trouble && ops->trouble(d->backend))
            progress_why(out, ops->trouble(d->backend));
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
    return d->guest ? rdzv_guest_progress(rdzv_guest_core(d->guest), out)
                    : rdzv_progress(d->core, out);
}

static bool is_closed(const struct rdzv_handler *h)
{
    const struct dynamic *d = dynamic_of(h);

    if (d->guest)
        return rdzv_guest_closed(rdzv_guest_core(d->guest));
    return d->ended || (d->core && rdzv_closed(d->core));
}

static void close_when_open(struct dynamic *d)
{
    d->close_waits = true;
    if (d->stage == STAGE_NEW)
        dynamic_open(d);
}

static void set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct dynamic *d = dynamic_of(h);

    assert(!d->close.cb && !d->stopped);
    d->close = (struct wish){ cb, ctx };
    if (d->stage == STAGE_READY) {
        if (!d->stop.cb || !d->stop_closes)
            dynamic_wish(d, RDZV_EV_CLOSE);
    } else if (d->stage == STAGE_BROKEN) {
        d->tell.close = true;
        dynamic_soon(d);
    } else {
        close_when_open(d);
    }
}

static void leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct dynamic *d = dynamic_of(h);

    assert(!d->leave.cb && !d->stopped);
    d->leave = (struct wish){ cb, ctx };
    if (d->next_cb && !d->canceling)
        cancel(h); /* Which leaves, too, once there is what can be left. */
    else if (d->stage == STAGE_READY)
        dynamic_wish(d, RDZV_EV_LEAVE);
    if (d->stage == STAGE_READY)
        return;
    d->tell.leave = true;
    dynamic_soon(d);
}

static void shutdown_handler(struct rdzv_handler *h, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    struct dynamic *d = dynamic_of(h);

    assert(!d->stop.cb && !d->stopped);
    if (d->next_cb)
        cancel(h);
    d->stop = (struct wish){ cb, ctx };
    d->stop_closes = close;
    if (d->stage == STAGE_BROKEN || (d->stage != STAGE_READY && !close)) {
        d->tell.stop = true;
        dynamic_soon(d);
    } else if (d->stage != STAGE_READY) {
        close_when_open(d);
    } else if (!close) {
        dynamic_wish(d, RDZV_EV_LEAVE);
    } else if (!d->close.cb) {
        dynamic_wish(d, RDZV_EV_CLOSE);
    }
}

static void wipe_worker_store(struct rdzv_handler *h)
{
    (void)
        h; /* Done when the round is joined: by now workers elsewhere may be writing. */
}

/* ---- The end: stores and server first, then the backend, then the rest ---- */

static void on_backend_gone(void *ctx)
{
    struct dynamic *d = ctx;
    void (*cb)(void *) = d->gone_cb;
    void *cb_ctx = d->gone_ctx;

    dynamic_free(d);
    cb(cb_ctx);
}

static void part_gone(void *ctx)
{
    struct dynamic *d = ctx;

    if (--d->refs == 0)
        d->backend->ops->close(d->backend, on_backend_gone, d);
}

static void on_handle_gone(uv_handle_t *h)
{
    part_gone(h->data);
}

static void destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct dynamic *d = dynamic_of(h);

    assert(!d->destroying);
    d->destroying = d->stopped = true;
    d->gone_cb = cb;
    d->gone_ctx = ctx;
    d->next_cb = NULL;
    d->news_cb = NULL;
    d->close.cb = d->leave.cb = d->stop.cb = NULL;
    offload_cancel(d->naming);
    d->naming = NULL;
    d->refs = 5;
    if (d->prefixed) {
        d->refs++;
        astore_close(d->prefixed, part_gone, d);
    }
    if (d->store) {
        d->refs++;
        astore_close(d->store, part_gone, d);
    }
    d->prefixed = d->store = NULL;
    if (d->guest) {
        d->refs++;
        rdzv_guest_close(d->guest, part_gone, d);
        d->guest = NULL;
    }
    uv_close((uv_handle_t *)&d->timer, on_handle_gone);
    uv_close((uv_handle_t *)&d->soon, on_handle_gone);
    uv_close((uv_handle_t *)&d->linger, on_handle_gone);
    uv_close((uv_handle_t *)&d->away, on_handle_gone);
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
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .destroy = destroy,
};
