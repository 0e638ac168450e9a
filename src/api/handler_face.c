/* handler_face.c - a caller's handler as the agent sees it: what it may ask for, what
 * is done about it when, and the end. */
#include <assert.h>

#include "api/handler_int.h"
#include "base/err.h"
#include "base/mem.h"

#define POLL_MS   1000u  /* as torch: what is known is at most a second old */
#define CANCEL_MS 10000u /* for next to come back once it is canceled */

static struct foreign_handler *handler_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct foreign_handler, base);
}

/* ---- What is to be done next ---- */

static void on_timer_gone(uv_handle_t *t)
{
    handler_closed(t->data);
}

static void end(struct foreign_handler *h)
{
    if (!h->freed) {
        handler_start(h, CALL_FREE);
        if (h->running)
            return;
        h->freed = true;
    }
    if (uv_is_closing((uv_handle_t *)&h->timer))
        return;
    h->refs++;
    uv_close((uv_handle_t *)&h->timer, on_timer_gone);
}

static void on_timer(uv_timer_t *t);

static void soon(struct foreign_handler *h)
{
    if (!h->running && !h->destroying)
        (void)uv_timer_start(&h->timer, on_timer, 0, 0);
}

/* Without a place there is none to hand back. */
static void leave_now(struct foreign_handler *h)
{
    if (h->seated && h->f->handler->leave)
        handler_start(h, CALL_LEAVE);
    else
        handler_told(h, &(struct call){ .kind = CALL_LEAVE });
}

/* False: there is nothing to do. */
static bool begin(struct foreign_handler *h)
{
    if (h->lost)
        return false;
    if (h->canceled && h->next_cb) { /* Not yet begun, or on the way to the store. */
        h->next_wanted = false;
        h->leave.wanted |= h->seated;
        handler_tell_canceled(h);
    } else if (h->close.wanted) {
        h->close.wanted = false;
        handler_start(h, CALL_CLOSE);
    } else if (h->leave.wanted) {
        h->leave.wanted = false;
        leave_now(h);
    } else if (h->stop.wanted && !h->stop_closes) {
        if (h->seated)
            leave_now(h);
        else
            handler_tell_wish(&h->stop, 0, NULL);
    } else if (h->stop.wanted) {
        h->stop.wanted = false;
        handler_start(h, CALL_SHUTDOWN);
    } else if (h->next_wanted) {
        h->next_wanted = false;
        handler_start(h, CALL_NEXT);
    } else {
        return false;
    }
    return true;
}

void handler_go(struct foreign_handler *h)
{
    if (h->lost) {
        h->freed = true; /* Never to be touched again. */
        handler_refuse_all(h);
    }
    while (!h->running && begin(h))
        ;
    if (h->running)
        return;
    if (h->destroying)
        end(h);
    else if (h->member && !h->stopped && !h->next_cb)
        (void)uv_timer_start(&h->timer, on_timer, POLL_MS, 0);
}

/* Something is wanted; or it is time to look; or a canceled next is out for too long.
 */
static void on_timer(uv_timer_t *t)
{
    struct foreign_handler *h = t->data;

    if (h->running) {
        if (h->kind == CALL_NEXT && (h->canceled || h->destroying))
            handler_give_up(h);
        return;
    }
    if (!begin(h) && h->member && !h->stopped && !h->next_cb)
        handler_start(h, CALL_POLL);
    if (!h->running)
        handler_go(h);
}

/* ---- What the agent calls ---- */

static const char *backend(const struct rdzv_handler *r)
{
    const struct foreign_handler *h = handler_of(r);
    const struct muster_handler_ops *ops = h->f->handler;

    return ops->backend ? ops->backend(h->self) : h->f->name;
}

static const char *run_id(const struct rdzv_handler *r)
{
    const struct foreign_handler *h = handler_of(r);
    const struct muster_handler_ops *ops = h->f->handler;

    return ops->run_id ? ops->run_id(h->self) : h->params.inner.run_id;
}

static bool use_agent_store(const struct rdzv_handler *r)
{
    const struct foreign_handler *h = handler_of(r);
    const struct muster_handler_ops *ops = h->f->handler;

    return ops->use_agent_store && ops->use_agent_store(h->self) != 0;
}

static void next(struct rdzv_handler *r, rdzv_next_cb cb, void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    assert(!h->next_cb && !h->stopped);
    handler_drop_store(h);
    h->next_cb = cb;
    h->next_ctx = ctx;
    h->next_wanted = true;
    h->canceled = h->member = false;
    h->waiting = h->waiting_told = 0;
    soon(h);
}

static void cancel(struct rdzv_handler *r)
{
    struct foreign_handler *h = handler_of(r);

    if (!h->next_cb || h->canceled)
        return;
    h->canceled = true;
    if (h->running && h->kind == CALL_NEXT) {
        h->f->handler->cancel(h->self);
        (void)uv_timer_start(&h->timer, on_timer, CANCEL_MS, 0);
    } else {
        soon(h);
    }
}

static void on_news(struct rdzv_handler *r, rdzv_news_cb cb, void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    h->news_cb = cb;
    h->news_ctx = ctx;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *r)
{
    return handler_of(r)->waiting;
}

static bool is_closed(const struct rdzv_handler *r)
{
    return handler_of(r)->closed;
}

static void set_closed(struct rdzv_handler *r, rdzv_done_cb cb, void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    assert(!h->close.cb && !h->stopped);
    h->close = (struct wish){ cb, ctx, true };
    soon(h);
}

static void leave(struct rdzv_handler *r, rdzv_done_cb cb, void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    assert(!h->leave.cb && !h->stopped);
    h->leave = (struct wish){ cb, ctx, true };
    cancel(r);
    soon(h);
}

static void shutdown_handler(struct rdzv_handler *r, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    assert(!h->stop.cb && !h->stopped);
    h->stop = (struct wish){ cb, ctx, true };
    h->stop_closes = close;
    h->stopped = true;
    cancel(r);
    soon(h);
}

/* ---- The end ---- */

void handler_closed(struct foreign_handler *h)
{
    void (*cb)(void *ctx) = h->gone_cb;
    void *ctx = h->gone_ctx;

    if (--h->refs || !h->destroying || !uv_is_closing((uv_handle_t *)&h->timer))
        return;
    params_fini(&h->params.inner);
    mem_free(h);
    cb(ctx);
}

static void destroy(struct rdzv_handler *r, void (*cb)(void *ctx), void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    h->destroying = true;
    h->member = h->next_wanted = false;
    h->next_cb = NULL;
    h->news_cb = NULL;
    h->close = h->leave = h->stop = (struct wish){ 0 };
    h->gone_cb = cb;
    h->gone_ctx = ctx;
    handler_drop_store(h);
    if (h->running && h->kind == CALL_NEXT && !h->canceled)
        h->f->handler->cancel(h->self);
    if (h->running)
        (void)uv_timer_start(&h->timer, on_timer, CANCEL_MS, 0);
    else
        handler_go(h);
}

const struct rdzv_handler_ops foreign_handler_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .destroy = destroy,
};
