/* handler_foreign.c - a caller's blocking handler (muster_handler_ops) as one of ours:
 * how it is made, and what its answers mean. */
#include "api/foreign.h"

#include "api/handler_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "io/store_client.h"
#include "rdzv/endpoint.h"

#define STORE_MS 60000u

/* ---- The outcome of a round ---- */

static void on_store_gone(void *ctx)
{
    handler_closed(ctx);
}

void handler_drop_store(struct foreign_handler *h)
{
    struct astore *store = h->store;

    if (!store)
        return;
    h->refs++;
    h->store = NULL;
    astore_close(store, on_store_gone, h);
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
    struct astore *view;
    int rc = endpoint_parse(h->found.store, RDZV_C10D_PORT, &at, err);

    if (rc < 0)
        return rc;
    opts.host = at.host;
    opts.port = (uint16_t)at.port;
    rc = store_client_open(h->base.loop, &opts, on_store_open, h, &h->store, err);
    if (rc < 0 || !h->found.prefix[0])
        return rc;
    rc = astore_prefix(h->store, h->found.prefix, true, &view, err);
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
