/* foreign_handler.c - makes a caller's blocking handler (muster_handler_ops) one of
 * ours.
 *
 * The caller's functions run on threads of their own, one at a time (only cancel beside
 * next), so that the loop never waits for them. The parts, from the bottom up: the
 * outcome of a round, other results, the calls themselves, what is to be done next,
 * what the agent may ask for, and the end. */
#include <assert.h>

#include "api/foreign.h"
#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/blocking_call.h"
#include "rendezvous/core/endpoint.h"
#include "store/client.h"

#define POLL_MS   1000u  /* As with torch, what is known is at most a second old. */
#define CANCEL_MS 10000u /* for next to return once it is canceled */
#define CALL_MS   60000u /* for every other function; next has no limit */
#define STORE_MS  60000u

enum call_kind {
    CALL_NEXT,
    CALL_POLL,
    CALL_CLOSE,
    CALL_LEAVE,
    CALL_SHUTDOWN,
    CALL_FREE,
    CALL_KINDS
};

/* One call of a function of the caller's. It belongs to the thread while that runs, and
 * for good if the function does not return in time. */
struct handler_call {
    enum call_kind kind;
    const struct muster_handler_ops *ops;
    void *self;
    int status;
    struct muster_error err;
    struct muster_handler_round round; /* NEXT */
    int64_t waiting;                   /* POLL */
    bool closed;
};

struct request {
    rdzv_done_cb cb;
    void *ctx;
    bool wanted; /* not yet begun */
};

struct foreign_handler {
    struct rdzv_handler base;
    const struct foreign *f;     /* borrowed from the registry */
    const struct trace *trace;   /* borrowed */
    struct muster_params params; /* owned copy */
    void *self;                  /* the caller's */
    uv_timer_t
        timer; /* for the next thing to do, or until a canceled next is given up */

    struct blocking_call *running; /* the call under way, or NULL */
    enum call_kind kind;           /* of it */
    bool abandoned; /* a call did not return: self must not be used any more */

    rdzv_next_cb next_cb;
    void *next_ctx;
    bool next_wanted, canceled;
    struct async_store *store; /* owned: the round's */
    struct muster_handler_round found;
    struct rdzv_round round;

    struct request close, leave, stop;
    bool stop_closes, stopped;
    bool seated; /* the handler has a place in a round */
    bool member; /* the agent knows of that place: it is polled for and gets news */

    rdzv_news_cb news_cb;
    void *news_ctx;
    int64_t waiting, waiting_notified;
    bool closed, closed_notified, backend_notified;

    bool destroying, freed;
    size_t refs; /* handles and stores that must close before this is freed */
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

/* Begins the first call that is wanted, unless one is under way. */
static void handler_continue(struct foreign_handler *h);

static struct foreign_handler *handler_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct foreign_handler, base);
}

/* ---- The outcome of a round ---- */

static void handler_unref(struct foreign_handler *h)
{
    void (*cb)(void *ctx) = h->gone_cb;
    void *ctx = h->gone_ctx;

    if (--h->refs || !h->destroying || !uv_is_closing((uv_handle_t *)&h->timer))
        return;
    params_fini(&h->params.inner);
    mem_free(h);
    cb(ctx);
}

static void on_store_closed(void *ctx)
{
    handler_unref(ctx);
}

static void drop_store(struct foreign_handler *h)
{
    struct async_store *store = h->store;

    if (!store)
        return;
    h->refs++;
    h->store = NULL;
    async_store_close(store, on_store_closed, h);
}

static void notify_next(struct foreign_handler *h, int status,
                        const struct muster_error *err)
{
    const rdzv_next_cb cb = h->next_cb;

    h->next_cb = NULL;
    h->canceled = false;
    h->member = status == 0;
    if (status < 0)
        drop_store(h);
    if (cb)
        cb(h->next_ctx, status, status == 0 ? &h->round : NULL, err);
}

static void notify_canceled(struct foreign_handler *h)
{
    struct muster_error err;

    (void)err_set(&err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  h->params.inner.run_id);
    notify_next(h, MUSTER_ECANCELED, &err);
}

static void on_store_open(void *ctx, int status, const struct muster_error *err)
{
    struct foreign_handler *h = ctx;
    struct muster_error why;

    if (status == MUSTER_ECANCELED || !h->next_cb)
        return; /* We closed it ourselves. */
    if (h->canceled) {
        notify_canceled(h);
    } else if (status < 0) {
        err_copy(&why, err);
        (void)err_wrap(
            &why,
            "the store '%s' that the rendezvous backend '%s' names for round "
            "%llu of the run '%s'",
            h->found.store, h->f->name, (unsigned long long)h->found.round,
            h->params.inner.run_id);
        why.code = MUSTER_ECONN;
        notify_next(h, MUSTER_ECONN, &why);
    } else {
        notify_next(h, 0, NULL);
    }
    handler_continue(h);
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

/* The result of a caller's function is checked like anything from outside. */
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

static void on_round(struct foreign_handler *h, const struct handler_call *c)
{
    struct muster_error err;
    int rc;

    h->seated = c->status == 0;
    if (h->canceled || h->destroying) { /* The place is given back. */
        h->leave.wanted |= h->seated;
        notify_canceled(h);
        return;
    }
    if (c->status < 0) {
        notify_next(h, c->status, &c->err);
        return;
    }
    h->found = c->round;
    rc = check_round(h, &err);
    if (rc == 0)
        rc = open_store(h, &err);
    if (rc < 0) {
        notify_next(h, rc, &err);
        return;
    }
    h->round =
        (struct rdzv_round){ .round = h->found.round, /* passed on by on_store_open() */
                             .rank = h->found.rank,
                             .world_size = h->found.world_size,
                             .store = h->store,
                             .master_addr = h->found.master_addr,
                             .master_port = h->found.master_port };
}

/* ---- Other results ---- */

static void news(const struct foreign_handler *h, enum rdzv_news what,
                 const struct muster_error *err)
{
    if (h->news_cb && h->member)
        h->news_cb(h->news_ctx, what, err);
}

static void on_polled(struct foreign_handler *h, const struct handler_call *c)
{
    const bool more = c->waiting > h->waiting_notified;
    struct muster_error err;

    if (c->status < 0) {
        if (!h->backend_notified)
            news(h, RDZV_NEWS_BACKEND, &c->err);
        h->backend_notified = true;
        return;
    }
    h->backend_notified = false;
    h->waiting = h->waiting_notified = c->waiting;
    h->closed |= c->closed;
    if (h->closed && !h->closed_notified) {
        h->closed_notified = true;
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

static void finish_request(struct request *w, int status,
                           const struct muster_error *err)
{
    const rdzv_done_cb cb = w->cb;

    w->cb = NULL;
    w->wanted = false;
    if (cb)
        cb(w->ctx, status, err);
}

static void on_result(struct foreign_handler *h, const struct handler_call *c)
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
        h->closed_notified |= c->status == 0; /* The caller closed it and knows. */
        finish_request(&h->close, c->status, err);
        return;
    case CALL_LEAVE:
        h->member = h->seated = false;
        finish_request(&h->leave, c->status, err);
        return;
    case CALL_SHUTDOWN:
        h->member = h->seated = false;
        h->closed |= c->status == 0;
        finish_request(&h->stop, c->status, err);
        return;
    case CALL_FREE:
        h->freed = true;
        return;
    case CALL_KINDS:
        return;
    }
}

static void refuse_all(struct foreign_handler *h)
{
    struct muster_error err;
    const int rc =
        err_set(&err, MUSTER_ECONN,
                "the handler of the rendezvous backend '%s' is out of reach: one of "
                "its functions did not return",
                h->f->name);

    if (h->next_wanted) {
        h->next_wanted = false;
        notify_next(h, rc, &err);
    }
    finish_request(&h->close, rc, &err);
    finish_request(&h->leave, rc, &err);
    finish_request(&h->stop, rc, &err);
}

/* ---- The calls ---- */

static const char *const names[CALL_KINDS] = {
    [CALL_NEXT] = "next",         [CALL_POLL] = "is_closed or num_nodes_waiting",
    [CALL_CLOSE] = "set_closed",  [CALL_LEAVE] = "leave",
    [CALL_SHUTDOWN] = "shutdown", [CALL_FREE] = "free",
};

static void poll_state(struct handler_call *c)
{
    const int closed = c->ops->is_closed(c->self, &c->err);

    c->status = closed < 0 ? closed : 0;
    c->closed = closed > 0;
    if (c->status < 0)
        return;
    c->waiting = c->ops->num_nodes_waiting(c->self, &c->err);
    if (c->waiting < 0)
        c->status = c->waiting >= INT32_MIN ? (int)c->waiting : MUSTER_EBUG;
}

static void run_on_thread(void *data)
{
    struct handler_call *c = data;

    switch (c->kind) {
    case CALL_NEXT:
        c->status = c->ops->next(c->self, &c->round, &c->err);
        break;
    case CALL_POLL:
        poll_state(c);
        break;
    case CALL_CLOSE:
        c->status = c->ops->set_closed(c->self, &c->err);
        break;
    case CALL_LEAVE:
        c->status = c->ops->leave(c->self, &c->err);
        break;
    case CALL_SHUTDOWN:
        c->status = c->ops->shutdown(c->self, &c->err);
        break;
    case CALL_FREE:
        c->ops->free(c->self);
        break;
    case CALL_KINDS:
        break;
    }
    if (c->status > 0)
        c->status = 0;
}

/* A caller's function may leave out the text or the code of its error. */
static void complete_error(const struct foreign_handler *h, struct handler_call *c)
{
    if (c->status == 0)
        return;
    c->err.text[sizeof c->err.text - 1] = '\0';
    if (!c->err.text[0])
        (void)err_set(&c->err, c->status, "%s", muster_code_text(c->status));
    c->err.code = c->status;
    (void)err_wrap(&c->err, "the rendezvous backend '%s', run '%s'", h->f->name,
                   h->params.inner.run_id);
}

/* The function still runs and uses the caller's handler, so that must not be called or
 * freed any more. */
static void abandon(struct foreign_handler *h)
{
    struct handler_call c = { .kind = h->kind };

    h->abandoned = true;
    c.status =
        err_set(&c.err, h->kind == CALL_NEXT ? MUSTER_ECANCELED : MUSTER_ETIMEDOUT,
                "the function '%s' of the rendezvous backend '%s' does not return: "
                "its handler of the run '%s' is not used any more",
                names[h->kind], h->f->name, h->params.inner.run_id);
    trace(h->trace, TRACE_WARN, "%s", c.err.text);
    on_result(h, &c);
    h->member = h->seated = false;
}

static void on_call_done(void *ctx, void *data)
{
    struct foreign_handler *h = ctx;
    struct handler_call *c = data;

    h->running = NULL;
    if (c) {
        complete_error(h, c);
        on_result(h, c);
    } else {
        abandon(h);
    }
    handler_continue(h);
}

static void give_up(struct foreign_handler *h)
{
    blocking_call_cancel(h->running);
    h->running = NULL;
    abandon(h);
    handler_continue(h);
}

static void start_call(struct foreign_handler *h, enum call_kind kind)
{
    struct handler_call *c = mem_calloc(1, sizeof *c), failed = { .kind = kind };

    h->kind = kind;
    if (!c) {
        failed.status = err_nomem(&failed.err);
    } else {
        c->kind = kind;
        c->ops = h->f->handler;
        c->self = h->self;
        failed.status = blocking_call_run(h->base.loop, run_on_thread, c,
                                          kind == CALL_NEXT ? UINT64_MAX : CALL_MS,
                                          on_call_done, h, &h->running, &failed.err);
        if (failed.status == 0)
            return;
        mem_free(c);
    }
    on_result(h, &failed); /* Without a thread the caller's function cannot run. */
}

/* ---- What is to be done next ---- */

static void handler_on_timer_closed(uv_handle_t *t)
{
    handler_unref(t->data);
}

static void end(struct foreign_handler *h)
{
    if (!h->freed) {
        start_call(h, CALL_FREE);
        if (h->running)
            return;
        h->freed = true;
    }
    if (uv_is_closing((uv_handle_t *)&h->timer))
        return;
    h->refs++;
    uv_close((uv_handle_t *)&h->timer, handler_on_timer_closed);
}

static void handler_on_timer(uv_timer_t *t);

static void defer(struct foreign_handler *h)
{
    if (!h->running && !h->destroying)
        (void)uv_timer_start(&h->timer, handler_on_timer, 0, 0);
}

/* A handler without a place has none to give back, and counts as gone. */
static void leave_now(struct foreign_handler *h)
{
    if (h->seated && h->f->handler->leave)
        start_call(h, CALL_LEAVE);
    else
        on_result(h, &(struct handler_call){ .kind = CALL_LEAVE });
}

/* Begins one thing that is wanted; false if there is nothing to do. */
static bool begin(struct foreign_handler *h)
{
    if (h->abandoned)
        return false;
    if (h->canceled && h->next_cb) { /* Not yet begun, or on the way to the store. */
        h->next_wanted = false;
        h->leave.wanted |= h->seated;
        notify_canceled(h);
    } else if (h->close.wanted) {
        h->close.wanted = false;
        start_call(h, CALL_CLOSE);
    } else if (h->leave.wanted) {
        h->leave.wanted = false;
        leave_now(h);
    } else if (h->stop.wanted && !h->stop_closes) {
        if (h->seated)
            leave_now(h);
        else
            finish_request(&h->stop, 0, NULL);
    } else if (h->stop.wanted) {
        h->stop.wanted = false;
        start_call(h, CALL_SHUTDOWN);
    } else if (h->next_wanted) {
        h->next_wanted = false;
        start_call(h, CALL_NEXT);
    } else {
        return false;
    }
    return true;
}

static void handler_continue(struct foreign_handler *h)
{
    if (h->abandoned) {
        h->freed = true; /* The caller's free() must not be called any more. */
        refuse_all(h);
    }
    while (!h->running && begin(h))
        ;
    if (h->running)
        return;
    if (h->destroying)
        end(h);
    else if (h->member && !h->stopped && !h->next_cb)
        (void)uv_timer_start(&h->timer, handler_on_timer, POLL_MS, 0);
}

/* There is something to do, or it is time to poll, or a canceled next takes too long.
 */
static void handler_on_timer(uv_timer_t *t)
{
    struct foreign_handler *h = t->data;

    if (h->running) {
        if (h->kind == CALL_NEXT && (h->canceled || h->destroying))
            give_up(h);
        return;
    }
    if (!begin(h) && h->member && !h->stopped && !h->next_cb)
        start_call(h, CALL_POLL);
    if (!h->running)
        handler_continue(h);
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
    drop_store(h);
    h->next_cb = cb;
    h->next_ctx = ctx;
    h->next_wanted = true;
    h->canceled = h->member = false;
    h->waiting = h->waiting_notified = 0;
    defer(h);
}

static void cancel(struct rdzv_handler *r)
{
    struct foreign_handler *h = handler_of(r);

    if (!h->next_cb || h->canceled)
        return;
    h->canceled = true;
    if (h->running && h->kind == CALL_NEXT) {
        h->f->handler->cancel(h->self);
        (void)uv_timer_start(&h->timer, handler_on_timer, CANCEL_MS, 0);
    } else {
        defer(h);
    }
}

static void foreign_handler_on_news(struct rdzv_handler *r, rdzv_news_cb cb, void *ctx)
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
    h->close = (struct request){ cb, ctx, true };
    defer(h);
}

static void leave(struct rdzv_handler *r, rdzv_done_cb cb, void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    assert(!h->leave.cb && !h->stopped);
    h->leave = (struct request){ cb, ctx, true };
    cancel(r);
    defer(h);
}

static void shutdown_handler(struct rdzv_handler *r, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    assert(!h->stop.cb && !h->stopped);
    h->stop = (struct request){ cb, ctx, true };
    h->stop_closes = close;
    h->stopped = true;
    cancel(r);
    defer(h);
}

/* ---- The end ---- */

static void destroy(struct rdzv_handler *r, void (*cb)(void *ctx), void *ctx)
{
    struct foreign_handler *h = handler_of(r);

    h->destroying = true;
    h->member = h->next_wanted = false;
    h->next_cb = NULL;
    h->news_cb = NULL;
    h->close = h->leave = h->stop = (struct request){ 0 };
    h->gone_cb = cb;
    h->gone_ctx = ctx;
    drop_store(h);
    if (h->running && h->kind == CALL_NEXT && !h->canceled)
        h->f->handler->cancel(h->self);
    if (h->running)
        (void)uv_timer_start(&h->timer, handler_on_timer, CANCEL_MS, 0);
    else
        handler_continue(h);
}

static const struct rdzv_handler_ops foreign_handler_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = foreign_handler_on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .destroy = destroy,
};

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
