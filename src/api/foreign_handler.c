/* handler_face.c - a caller's handler as the agent sees it: what it may ask for, what
 * is done about it when, and the end. */
#include "api/foreign.h"
#include "api/foreign_handler_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/endpoint.h"
#include "store/client.h"
#include <assert.h>

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

/* handler_foreign.c - a caller's blocking handler (muster_handler_ops) as one of ours:
 * how it is made, and what its answers mean. */
#define STORE_MS 60000u

/* ---- The outcome of a round ---- */

static void on_store_gone(void *ctx)
{
    handler_closed(ctx);
}

void handler_drop_store(struct foreign_handler *h)
{
    struct async_store *store = h->store;

    if (!store)
        return;
    h->refs++;
    h->store = NULL;
    async_store_close(store, on_store_gone, h);
}

static void tell_next(struct foreign_handler *h, int status,
                      const struct muster_error *err)
{
    const rdzv_next_cb cb = h->next_cb;

    h->next_cb = NULL;
    h->canceled = false;
    h->member = status == 0;
    if (status < 0)
        handler_drop_store(h);
    if (cb)
        cb(h->next_ctx, status, status == 0 ? &h->round : NULL, err);
}

void handler_tell_canceled(struct foreign_handler *h)
{
    struct muster_error err;

    (void)err_set(&err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  h->params.inner.run_id);
    tell_next(h, MUSTER_ECANCELED, &err);
}

static void on_store_open(void *ctx, int status, const struct muster_error *err)
{
    struct foreign_handler *h = ctx;
    struct muster_error why;

    if (status == MUSTER_ECANCELED || !h->next_cb)
        return; /* Closed by ourselves. */
    if (h->canceled) {
        handler_tell_canceled(h);
    } else if (status < 0) {
        err_copy(&why, err);
        (void)err_wrap(
            &why,
            "the store '%s' that the rendezvous backend '%s' names for round "
            "%llu of the run '%s'",
            h->found.store, h->f->name, (unsigned long long)h->found.round,
            h->params.inner.run_id);
        why.code = MUSTER_ECONN;
        tell_next(h, MUSTER_ECONN, &why);
    } else {
        tell_next(h, 0, NULL);
    }
    handler_go(h);
}

/* The round's store: a connection of our own, seen through the prefix if it has one. */
static int open_store(struct foreign_handler *h, struct muster_error *err)
{
    struct store_client_opts opts = { .timeout_ms = STORE_MS, .trace = h->trace };
    struct endpoint at;
    struct async_store *view;
    int rc = endpoint_parse(h->found.store, RDZV_C10D_PORT, &at, err);

    if (rc < 0)
        return rc;
    opts.host = at.host;
    opts.port = (uint16_t)at.port;
    rc = store_client_open(h->base.loop, &opts, on_store_open, h, &h->store, err);
    if (rc < 0 || !h->found.prefix[0])
        return rc;
    rc = async_store_prefix(h->store, h->found.prefix, true, &view, err);
    if (rc == 0)
        h->store = view;
    return rc;
}

static bool has_end(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

/* What a caller's function says is checked like anything from outside. */
static int check_round(const struct foreign_handler *h, struct muster_error *err)
{
    const struct muster_handler_round *r = &h->found;

    if (!has_end(r->store, sizeof r->store) || !has_end(r->prefix, sizeof r->prefix) ||
        !has_end(r->master_addr, sizeof r->master_addr))
        return err_set(
            err, MUSTER_EINVAL,
            "the rendezvous backend '%s' answers with a text that has no end",
            h->f->name);
    if (r->world_size < 1 || r->rank < 0 || r->rank >= r->world_size)
        return err_set(err, MUSTER_EINVAL,
                       "the rendezvous backend '%s' answers with rank %lld in a world "
                       "of %lld",
                       h->f->name, (long long)r->rank, (long long)r->world_size);
    if (!r->store[0])
        return err_set(
            err, MUSTER_EINVAL,
            "the rendezvous backend '%s' names no store for the group's keys",
            h->f->name);
    return 0;
}

static void on_round(struct foreign_handler *h, const struct call *c)
{
    struct muster_error err;
    int rc;

    h->seated = c->status == 0;
    if (h->canceled || h->destroying) { /* Nobody wants the place any more. */
        h->leave.wanted |= h->seated;
        handler_tell_canceled(h);
        return;
    }
    if (c->status < 0) {
        tell_next(h, c->status, &c->err);
        return;
    }
    h->found = c->round;
    rc = check_round(h, &err);
    if (rc == 0)
        rc = open_store(h, &err);
    if (rc < 0) {
        tell_next(h, rc, &err);
        return;
    }
    h->round = (struct rdzv_round){ .round = h->found.round, /* told by on_store_open */
                                    .rank = h->found.rank,
                                    .world_size = h->found.world_size,
                                    .store = h->store,
                                    .master_addr = h->found.master_addr,
                                    .master_port = h->found.master_port };
}

/* ---- What else comes back ---- */

static void news(const struct foreign_handler *h, enum rdzv_news what,
                 const struct muster_error *err)
{
    if (h->news_cb && h->member)
        h->news_cb(h->news_ctx, what, err);
}

static void on_polled(struct foreign_handler *h, const struct call *c)
{
    const bool more = c->waiting > h->waiting_told;
    struct muster_error err;

    if (c->status < 0) {
        if (!h->backend_told)
            news(h, RDZV_NEWS_BACKEND, &c->err);
        h->backend_told = true;
        return;
    }
    h->backend_told = false;
    h->waiting = h->waiting_told = c->waiting;
    h->closed |= c->closed;
    if (h->closed && !h->closed_told) {
        h->closed_told = true;
        (void)err_set(&err, MUSTER_ECLOSED, "the rendezvous '%s' was closed",
                      h->params.inner.run_id);
        news(h, RDZV_NEWS_CLOSED, &err);
    }
    if (more) {
        (void)err_set(&err, 0,
                      "%lld node(s) wait for the next round of the rendezvous '%s'",
                      (long long)c->waiting, h->params.inner.run_id);
        news(h, RDZV_NEWS_WAITING, &err);
    }
}

void handler_tell_wish(struct wish *w, int status, const struct muster_error *err)
{
    const rdzv_done_cb cb = w->cb;

    w->cb = NULL;
    w->wanted = false;
    if (cb)
        cb(w->ctx, status, err);
}

void handler_told(struct foreign_handler *h, const struct call *c)
{
    const struct muster_error *err = c->status < 0 ? &c->err : NULL;

    switch (c->kind) {
    case CALL_NEXT:
        on_round(h, c);
        return;
    case CALL_POLL:
        on_polled(h, c);
        return;
    case CALL_CLOSE:
        h->closed |= c->status == 0;
        h->closed_told |= c->status == 0; /* No news to who did it. */
        handler_tell_wish(&h->close, c->status, err);
        return;
    case CALL_LEAVE:
        h->member = h->seated = false;
        handler_tell_wish(&h->leave, c->status, err);
        return;
    case CALL_SHUTDOWN:
        h->member = h->seated = false;
        h->closed |= c->status == 0;
        handler_tell_wish(&h->stop, c->status, err);
        return;
    case CALL_FREE:
        h->freed = true;
        return;
    case CALL_KINDS:
        return;
    }
}

void handler_refuse_all(struct foreign_handler *h)
{
    struct muster_error err;
    const int rc =
        err_set(&err, MUSTER_ECONN,
                "the handler of the rendezvous backend '%s' is out of reach: "
                "a function of it did not come back",
                h->f->name);

    if (h->next_wanted) {
        h->next_wanted = false;
        tell_next(h, rc, &err);
    }
    handler_tell_wish(&h->close, rc, &err);
    handler_tell_wish(&h->leave, rc, &err);
    handler_tell_wish(&h->stop, rc, &err);
}

/* ---- Making one ---- */

int foreign_handler_check(const char *name, const struct muster_handler_ops *ops,
                          struct muster_error *err)
{
    const char *missing = !ops->create              ? "create"
                          : !ops->next              ? "next"
                          : !ops->cancel            ? "cancel"
                          : !ops->is_closed         ? "is_closed"
                          : !ops->set_closed        ? "set_closed"
                          : !ops->num_nodes_waiting ? "num_nodes_waiting"
                          : !ops->shutdown          ? "shutdown"
                          : !ops->free              ? "free"
                                                    : NULL;

    if (!missing)
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "the handler of the rendezvous backend '%s' has no function '%s'",
                   name, missing);
}

int foreign_handler_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                           const struct trace *trace, struct rdzv_handler **out,
                           struct muster_error *err)
{
    struct foreign_handler *h = mem_calloc(1, sizeof *h);
    struct muster_error why = { 0 };
    int rc = h ? params_copy(&h->params.inner, params, err) : err_nomem(err);

    if (rc < 0) {
        mem_free(h);
        return rc;
    }
    h->f = ctx;
    h->trace = trace;
    h->base = (struct rdzv_handler){ &foreign_handler_ops, loop };
    rc = h->f->handler->create(h->f->ctx, &h->params, &h->self, &why);
    if (rc < 0) {
        if (!why.text[0])
            (void)err_set(&why, rc, "%s", muster_code_text(rc));
        why.code = rc;
        (void)err_wrap(&why, "making a handler of the rendezvous backend '%s'",
                       h->f->name);
        params_fini(&h->params.inner);
        mem_free(h);
        return err_copy(err, &why);
    }
    (void)uv_timer_init(loop, &h->timer);
    h->timer.data = h;
    *out = &h->base;
    return 0;
}
