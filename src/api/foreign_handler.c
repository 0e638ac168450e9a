/* foreign_handler.c - makes a caller's blocking handler (muster_handler_ops) one of
 * ours: an implementation for rendezvous/handler_base.h.
 *
 * The caller's functions run on threads of their own, one at a time (only cancel beside
 * next), so that the loop never waits for them. What is asked for while one runs is
 * wanted, and begins when that has returned. A function that does not return in time is
 * abandoned, and the caller's handler with it: it may still be in use, so it is never
 * called or freed again, and whatever is asked of us from then on is refused.
 *
 *     join   next()        JOINED; find() connects to the store that it named
 *     leave  leave()       cancel() first, while next() runs
 *     close  set_closed()  or shutdown(), for the agent's last request
 *     timer  is_closed(), num_nodes_waiting() each second while we are in a round
 *
 * From top to bottom: the outcome of a round, other results, the calls themselves, what
 * is to be done next, what the base and the agent ask for, and the end. */
#include <assert.h>

#include "api/foreign.h"
#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/blocking_call.h"
#include "loop/clock.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/handler_base.h"
#include "store/client.h"

#define POLL_MS   1000u  /* As with torch, what is known is at most a second old. */
#define CANCEL_MS 10000u /* for next to return once it is canceled */
#define CALL_MS   60000u /* for every other function; next has no limit */
#define STORE_MS  60000u

/* In the order in which they begin if several are wanted. */
enum call_kind {
    CALL_CLOSE,
    CALL_LEAVE,
    CALL_SHUTDOWN,
    CALL_NEXT,
    CALL_POLL,
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

struct foreign_handler {
    struct handler_base base;    /* first: the handler as the agent sees it */
    const struct foreign *f;     /* borrowed from the registry */
    const struct log *log;       /* borrowed */
    struct muster_params params; /* owned copy */
    void *self;                  /* the caller's */

    struct blocking_call *running; /* the call under way, or NULL */
    enum call_kind kind;           /* of it */
    bool wanted[CALL_KINDS];       /* what begins when no call is under way */
    bool canceled;                 /* next() was told to return */
    uv_timer_t patience;           /* until a canceled next() is given up */
    bool abandoned; /* a call did not return: self must not be used any more */

    struct async_store *store; /* owned: the round's */
    struct muster_handler_round found;
    struct rdzv_round round;
    bool seated;         /* the handler has a place in a round */
    uint64_t poll_at_ms; /* MONO_NEVER: we are in no round */
    int64_t waiting;
    bool closed, closed_notified, backend_notified;
};

/* Begins the first call that is wanted, unless one is under way. */
static void foreign_continue(struct foreign_handler *h);

static struct foreign_handler *foreign_of(const struct handler_base *s)
{
    return CONTAINER_OF(s, struct foreign_handler, base);
}

static const char *foreign_run(const struct foreign_handler *h)
{
    return h->base.life.run_id;
}

/* ---- The outcome of a round ---- */

static void foreign_store_gone(void *ctx)
{
    (void)ctx;
}

static void foreign_drop(struct handler_base *s)
{
    struct foreign_handler *h = foreign_of(s);

    if (h->store)
        async_store_close(h->store, foreign_store_gone, NULL);
    h->store = NULL;
}

static void foreign_on_store_open(void *ctx, int status, const struct muster_error *err)
{
    struct foreign_handler *h = ctx;
    struct muster_error why;

    if (status == MUSTER_ECANCELED)
        return; /* We closed it ourselves, and h may be gone by now. */
    if (status == 0) {
        h->poll_at_ms = clock_mono_ms() + POLL_MS;
        handler_feed_error(&h->base, LIFE_ADDRESS, NULL);
        return;
    }
    err_copy(&why, err);
    (void)err_wrap(&why,
                   "the store '%s' that the rendezvous backend '%s' names for round "
                   "%llu of the run '%s'",
                   h->found.store, h->f->name, (unsigned long long)h->found.round,
                   foreign_run(h));
    why.code = MUSTER_ECONN;
    handler_feed_error(&h->base, LIFE_ADDRESS, &why);
}

/* The round's store: a connection of our own, seen through the prefix if it has one. */
static int foreign_open_store(struct foreign_handler *h, struct muster_error *err)
{
    struct store_client_opts opts = { .timeout_ms = STORE_MS, .log = h->log };
    struct endpoint at;
    struct async_store *view;
    int rc = endpoint_parse(h->found.store, RDZV_C10D_PORT, &at, err);

    if (rc < 0)
        return rc;
    opts.host = at.host;
    opts.port = (uint16_t)at.port;
    rc = store_client_open(h->base.handler.loop, &opts, foreign_on_store_open, h,
                           &h->store, err);
    if (rc < 0 || !h->found.prefix[0])
        return rc;
    rc = async_store_prefix(h->store, h->found.prefix, true, &view, err);
    if (rc == 0)
        h->store = view;
    return rc;
}

static void foreign_find(struct handler_base *s)
{
    struct foreign_handler *h = foreign_of(s);
    struct muster_error err;

    if (foreign_open_store(h, &err) < 0) {
        handler_feed_error(s, LIFE_ADDRESS, &err);
        return;
    }
    h->round = (struct rdzv_round){ .round = h->found.round,
                                    .rank = h->found.rank,
                                    .world_size = h->found.world_size,
                                    .store = h->store,
                                    .master_addr = h->found.master_addr,
                                    .master_port = h->found.master_port };
}

static bool has_end(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

/* The result of a caller's function is checked like anything from outside. */
static int foreign_check_round(const struct foreign_handler *h,
                               struct muster_error *err)
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

static void foreign_on_round(struct foreign_handler *h, const struct handler_call *c)
{
    struct muster_error err = c->err;

    h->seated = c->status == 0;
    h->found = c->round;
    if (c->status == 0 && foreign_check_round(h, &err) == 0)
        handler_feed_error(&h->base, LIFE_JOINED, NULL);
    else
        handler_feed_error(&h->base, LIFE_REFUSED, &err);
}

/* ---- Other results ---- */

static void foreign_news(struct foreign_handler *h, enum rdzv_news what,
                         const struct muster_error *err)
{
    handler_feed(&h->base, (struct life_event){ .kind = LIFE_NEWS,
                                                .news = what,
                                                .code = err->code,
                                                .text = err->text });
}

static void foreign_on_polled(struct foreign_handler *h, const struct handler_call *c)
{
    const bool more = c->waiting > h->waiting;
    struct muster_error err;

    if (h->base.life.next.state != LIFE_IDLE || !h->seated)
        return; /* This round is over, and what is known of it is of no use. */
    h->poll_at_ms = clock_mono_ms() + POLL_MS;
    if (c->status < 0) {
        if (!h->backend_notified)
            foreign_news(h, RDZV_NEWS_BACKEND, &c->err);
        h->backend_notified = true;
        return;
    }
    h->backend_notified = false;
    h->waiting = c->waiting;
    h->closed |= c->closed;
    if (h->closed && !h->closed_notified) {
        h->closed_notified = true;
        (void)err_set(&err, MUSTER_ECLOSED, "the rendezvous '%s' was closed",
                      foreign_run(h));
        foreign_news(h, RDZV_NEWS_CLOSED, &err);
    }
    if (more && !handler_ends(&h->base)) {
        (void)err_set(&err, 0,
                      "%lld node(s) wait for the next round of the rendezvous '%s'",
                      (long long)c->waiting, foreign_run(h));
        foreign_news(h, RDZV_NEWS_WAITING, &err);
    }
}

static void foreign_unseat(struct foreign_handler *h)
{
    h->seated = false;
    h->poll_at_ms = MONO_NEVER;
}

static void foreign_on_result(struct foreign_handler *h, const struct handler_call *c)
{
    const struct muster_error *err = c->status < 0 ? &c->err : NULL;

    switch (c->kind) {
    case CALL_NEXT:
        foreign_on_round(h, c);
        return;
    case CALL_POLL:
        foreign_on_polled(h, c);
        return;
    case CALL_CLOSE:
        h->closed |= c->status == 0;
        h->closed_notified |= c->status == 0; /* The caller closed it and knows. */
        if (handler_shuts_down(&h->base))     /* That was asked for meanwhile. */
            h->wanted[CALL_SHUTDOWN] = true;
        else
            handler_feed_error(&h->base, LIFE_CLOSED, err);
        return;
    case CALL_LEAVE:
        foreign_unseat(h);
        handler_feed_error(&h->base, LIFE_LEFT, err);
        return;
    case CALL_SHUTDOWN:
        foreign_unseat(h);
        h->closed |= c->status == 0;
        handler_feed_error(&h->base, LIFE_CLOSED, err);
        return;
    case CALL_FREE:
    case CALL_KINDS:
        return;
    }
}

/* ---- The calls ---- */

static const char *const foreign_calls[CALL_KINDS] = {
    [CALL_NEXT] = "next",         [CALL_POLL] = "is_closed or num_nodes_waiting",
    [CALL_CLOSE] = "set_closed",  [CALL_LEAVE] = "leave",
    [CALL_SHUTDOWN] = "shutdown", [CALL_FREE] = "free",
};

static void foreign_poll(struct handler_call *c)
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

static void foreign_run_on_thread(void *data)
{
    struct handler_call *c = data;

    switch (c->kind) {
    case CALL_NEXT:
        c->status = c->ops->next(c->self, &c->round, &c->err);
        break;
    case CALL_POLL:
        foreign_poll(c);
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
static void foreign_complete_error(const struct foreign_handler *h,
                                   struct handler_call *c)
{
    if (c->status == 0)
        return;
    c->err.text[sizeof c->err.text - 1] = '\0';
    if (!c->err.text[0])
        (void)err_set(&c->err, c->status, "%s", muster_code_text(c->status));
    c->err.code = c->status;
    (void)err_wrap(&c->err, "the rendezvous backend '%s', run '%s'", h->f->name,
                   foreign_run(h));
}

/* The function still runs and uses the caller's handler, so that must not be called or
 * freed any more. */
static void foreign_abandon(struct foreign_handler *h)
{
    struct handler_call c = { .kind = h->kind };

    h->abandoned = true;
    c.status =
        err_set(&c.err, h->kind == CALL_NEXT ? MUSTER_ECANCELED : MUSTER_ETIMEDOUT,
                "the function '%s' of the rendezvous backend '%s' does not return: "
                "its handler of the run '%s' is not used any more",
                foreign_calls[h->kind], h->f->name, foreign_run(h));
    log_line(h->log, LOG_WARN, AT_RENDEZVOUS, "%s", c.err.text);
    foreign_on_result(h, &c);
    foreign_unseat(h);
}

static void foreign_on_call_done(void *ctx, void *data)
{
    struct foreign_handler *h = ctx;
    struct handler_call *c = data;

    h->running = NULL;
    (void)uv_timer_stop(&h->patience);
    if (c) {
        foreign_complete_error(h, c);
        foreign_on_result(h, c);
    } else {
        foreign_abandon(h);
    }
    foreign_continue(h);
}

static void foreign_on_patience(uv_timer_t *t)
{
    struct foreign_handler *h = t->data;

    blocking_call_cancel(h->running);
    foreign_on_call_done(h, NULL);
}

static void foreign_start_call(struct foreign_handler *h, enum call_kind kind)
{
    struct handler_call *c = mem_calloc(1, sizeof *c), failed = { .kind = kind };

    h->kind = kind;
    h->canceled = false;
    if (!c) {
        failed.status = err_nomem(&failed.err);
    } else {
        c->kind = kind;
        c->ops = h->f->handler;
        c->self = h->self;
        failed.status =
            blocking_call_run(h->base.handler.loop, foreign_run_on_thread, c,
                              kind == CALL_NEXT ? MONO_NEVER : CALL_MS,
                              foreign_on_call_done, h, &h->running, &failed.err);
        if (failed.status == 0)
            return;
        mem_free(c);
    }
    foreign_on_result(h, &failed); /* Without a thread the function cannot run. */
}

/* ---- What is to be done next ---- */

static void foreign_refuse(struct foreign_handler *h, enum call_kind kind)
{
    struct handler_call c = { .kind = kind };

    c.status =
        err_set(&c.err, MUSTER_ECONN,
                "the handler of the rendezvous backend '%s' is out of reach: one of "
                "its functions did not return",
                h->f->name);
    foreign_on_result(h, &c);
}

static void foreign_begin(struct foreign_handler *h, enum call_kind kind)
{
    h->wanted[kind] = false;
    if (h->abandoned)
        foreign_refuse(h, kind);
    else if (kind == CALL_LEAVE && !(h->seated && h->f->handler->leave))
        /* A handler without a place has none to give back, and counts as gone. */
        foreign_on_result(h, &(struct handler_call){ .kind = CALL_LEAVE });
    else
        foreign_start_call(h, kind);
}

static void foreign_continue(struct foreign_handler *h)
{
    enum call_kind kind = 0;

    while (!h->running && kind < CALL_KINDS) {
        const bool wanted = h->wanted[kind];

        if (wanted)
            foreign_begin(h, kind);
        kind = wanted ? 0 : kind + 1;
    }
    handler_arm(&h->base);
    if (h->running || !handler_ends(&h->base) ||
        uv_is_closing((uv_handle_t *)&h->patience))
        return;
    handle_set_close(&h->base.closing, &h->patience);
    handle_set_left(&h->base.closing);
}

static void foreign_want(struct foreign_handler *h, enum call_kind kind)
{
    h->wanted[kind] = true;
    foreign_continue(h);
}

/* ---- What the base asks for ---- */

static void foreign_open(struct handler_base *s)
{
    handler_feed_error(s, LIFE_OPENED, NULL);
}

static void foreign_join(struct handler_base *s)
{
    struct foreign_handler *h = foreign_of(s);

    h->poll_at_ms = MONO_NEVER;
    h->waiting = 0;
    foreign_want(h, CALL_NEXT);
}

static void foreign_cancel_next(struct foreign_handler *h)
{
    if (!h->running || h->kind != CALL_NEXT || h->canceled)
        return;
    h->canceled = true;
    h->f->handler->cancel(h->self);
    (void)uv_timer_start(&h->patience, foreign_on_patience, CANCEL_MS, 0);
}

/* A next() under way is refused when it has returned, one that has not begun at once.
 */
static void foreign_leave(struct handler_base *s)
{
    struct foreign_handler *h = foreign_of(s);
    const struct muster_error err = { .code = MUSTER_ECANCELED, .text = "leaving" };

    foreign_cancel_next(h);
    if (h->wanted[CALL_NEXT]) {
        h->wanted[CALL_NEXT] = false;
        handler_feed_error(s, LIFE_REFUSED, &err);
    }
    foreign_want(h, CALL_LEAVE);
}

static void foreign_close(struct handler_base *s)
{
    foreign_want(foreign_of(s), CALL_CLOSE);
}

static void foreign_shutdown(struct handler_base *s)
{
    foreign_want(foreign_of(s), CALL_SHUTDOWN);
}

static uint64_t foreign_deadline(const struct handler_base *s)
{
    const struct foreign_handler *h = foreign_of(s);

    return h->running || s->life.next.state != LIFE_IDLE ? MONO_NEVER : h->poll_at_ms;
}

static void foreign_timer(struct handler_base *s)
{
    foreign_want(foreign_of(s), CALL_POLL);
}

static const struct rdzv_round *foreign_round(const struct handler_base *s)
{
    return &foreign_of(s)->round;
}

/* ---- The end: the caller's free() is its last call ---- */

static void foreign_destroy(struct handler_base *s)
{
    struct foreign_handler *h = foreign_of(s);

    for (size_t i = 0; i < CALL_KINDS; i++)
        h->wanted[i] = false;
    h->wanted[CALL_FREE] = true;
    handle_set_add(&s->closing); /* until foreign_continue() has nothing left to do */
    if (h->store) {
        handle_set_add(&s->closing);
        async_store_close(h->store, handle_set_left, &s->closing);
        h->store = NULL;
    }
    foreign_cancel_next(h);
    foreign_continue(h);
}

static void foreign_free(struct foreign_handler *h)
{
    params_fini(&h->params.inner);
    mem_free(h);
}

static void foreign_release(struct handler_base *s)
{
    const struct handler_gone gone = s->gone;

    foreign_free(foreign_of(s));
    gone.cb(gone.ctx);
}

static const struct handler_impl foreign_impl = {
    .open = foreign_open,
    .join = foreign_join,
    .leave = foreign_leave,
    .close = foreign_close,
    .shutdown = foreign_shutdown,
    .find = foreign_find,
    .drop = foreign_drop,
    .deadline = foreign_deadline,
    .timer = foreign_timer,
    .round = foreign_round,
    .destroy = foreign_destroy,
    .release = foreign_release,
};

/* ---- What the agent asks ---- */

static struct foreign_handler *foreign_of_handler(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct foreign_handler, base.handler);
}

static const char *foreign_backend(const struct rdzv_handler *r)
{
    const struct foreign_handler *h = foreign_of_handler(r);
    const struct muster_handler_ops *ops = h->f->handler;

    return ops->backend ? ops->backend(h->self) : h->f->name;
}

static bool foreign_use_agent_store(const struct rdzv_handler *r)
{
    const struct foreign_handler *h = foreign_of_handler(r);
    const struct muster_handler_ops *ops = h->f->handler;

    return ops->use_agent_store && ops->use_agent_store(h->self) != 0;
}

static int64_t foreign_num_nodes_waiting(const struct rdzv_handler *r)
{
    return foreign_of_handler(r)->waiting;
}

static bool foreign_is_closed(const struct rdzv_handler *r)
{
    return foreign_of_handler(r)->closed;
}

static const struct rdzv_handler_ops foreign_handler_ops = {
    HANDLER_BASE_OPS,
    .backend = foreign_backend,
    .use_agent_store = foreign_use_agent_store,
    .num_nodes_waiting = foreign_num_nodes_waiting,
    .is_closed = foreign_is_closed,
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
                           const struct log *log, struct rdzv_handler **out,
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
    h->log = log;
    rc = h->f->handler->create(h->f->ctx, &h->params, &h->self, &why);
    if (rc < 0) {
        if (!why.text[0])
            (void)err_set(&why, rc, "%s", muster_code_text(rc));
        why.code = rc;
        (void)err_wrap(&why, "making a handler of the rendezvous backend '%s'",
                       h->f->name);
        foreign_free(h);
        return err_copy(err, &why);
    }
    h->poll_at_ms = MONO_NEVER;
    (void)uv_timer_init(loop, &h->patience);
    h->patience.data = h;
    handler_base_init(&h->base, loop, &foreign_handler_ops, &foreign_impl);
    life_init(&h->base.life,
              h->f->handler->run_id ? h->f->handler->run_id(h->self)
                                    : h->params.inner.run_id,
              log, 0, false);
    *out = &h->base.handler;
    return 0;
}
