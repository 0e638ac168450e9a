/* etcd_store.c - see etcd_store.h: opening, closing, and the life of a call. */
#include "etcd/etcd_store.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "etcd/etcd_store_int.h"

static struct etcd_store *store_of(const struct async_store *s)
{
    return CONTAINER_OF(s, struct etcd_store, base);
}

int etcd_store_path(const struct etcd_store *s, struct span key, struct buf *out)
{
    const int rc = buf_append_str(out, s->dir);

    if (rc < 0)
        return rc;
    return s->kv.api == ETCD_V2 ? base64_encode(out, key) : buf_append_span(out, key);
}

int etcd_store_value(const struct etcd_store *s, struct span held, struct buf *out)
{
    uint8_t *room;
    int64_t n;

    if (s->kv.api != ETCD_V2)
        return buf_append_span(out, held);
    room = buf_room(out, BASE64_DECODED(held.n));
    if (!room)
        return MUSTER_ENOMEM;
    n = base64_decode(room, held);
    if (n < 0)
        return MUSTER_ESTATE;
    buf_commit(out, (size_t)n);
    return 0;
}

/* ---- The end of a call ---- */

uint64_t etcd_store_call_left(const struct etcd_store_call *c)
{
    const uint64_t now = uv_now(c->store->base.loop);

    if (c->by_ms == UINT64_MAX)
        return UINT64_MAX;
    return c->by_ms > now ? c->by_ms - now : 0;
}

static void maybe_closed(struct etcd_store *s);

static void etcd_store_call_free(struct etcd_store_call *c)
{
    buf_fini(&c->bytes);
    buf_fini(&c->path);
    buf_fini(&c->out);
    mem_free(c);
}

static void etcd_store_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_store_call *c = handle->data;
    struct etcd_store *s = c->store;

    etcd_store_call_free(c);
    s->ending--;
    maybe_closed(s);
}

static void etcd_store_call_end(struct etcd_store_call *c)
{
    etcd_op_cancel(c->req);
    c->req = NULL;
    *c->prev_next = c->next;
    if (c->next)
        c->next->prev_next = c->prev_next;
    c->store->ending++;
    uv_close((uv_handle_t *)&c->timer, etcd_store_on_timer_closed);
}

void etcd_store_call_done(struct etcd_store_call *c, const struct c10d_reply *reply)
{
    etcd_store_call_end(
        c); /* The memory, and the reply in it, stays until the next turn. */
    c->cb(c->ctx, 0, reply, NULL);
}

void etcd_store_call_fail(struct etcd_store_call *c, int status,
                          const struct muster_error *err)
{
    etcd_store_call_end(c);
    c->cb(c->ctx, status, NULL, err);
}

/* ---- Calls ---- */

static void on_start(uv_timer_t *timer)
{
    etcd_store_call_start(timer->data);
}

static bool has_list(enum c10d_op op)
{
    return op == C10D_CHECK || op == C10D_WAIT || op == C10D_MULTI_GET ||
           op == C10D_MULTI_SET;
}

/* One copy of everything; spans into it are cut afterwards, when it no longer moves. */
static int copy_request(struct etcd_store_call *c, const struct c10d_request *req)
{
    const uint8_t *p;
    int rc = buf_append_span(&c->bytes, req->key);

    if (rc == 0)
        rc = buf_append_span(&c->bytes, req->value);
    if (rc == 0)
        rc = buf_append_span(&c->bytes, req->expected);
    if (rc == 0)
        rc = buf_append_span(&c->bytes, req->list.bytes);
    if (rc == 0)
        rc = buf_u8(&c->bytes, 0);
    if (rc < 0)
        return rc;
    p = buf_data(&c->bytes);
    c->key = span_of(p, req->key.n);
    c->value = span_of(p += req->key.n, req->value.n);
    c->expected = span_of(p += req->value.n, req->expected.n);
    c->list = req->list;
    c->list.bytes = span_of(p + req->expected.n, req->list.bytes.n);
    return 0;
}

static bool supported(enum c10d_op op)
{
    switch ((int)op) {
    case C10D_SET:
    case C10D_COMPARE_SET:
    case C10D_GET:
    case C10D_ADD:
    case C10D_CHECK:
    case C10D_WAIT:
    case C10D_GETNUMKEYS:
    case C10D_DELETE_KEY:
    case C10D_APPEND:
    case C10D_MULTI_GET:
    case C10D_MULTI_SET:
    case C10D_LIST_KEYS:
    case C10D_BARRIER:
        return true;
    }
    return false;
}

static int etcd_store_call_new(struct etcd_store *s, const struct c10d_request *req,
                               unsigned flags, uint64_t timeout_ms,
                               struct etcd_store_call **out)
{
    struct etcd_store_call *c = mem_calloc(1, sizeof *c);

    if (!c)
        return MUSTER_ENOMEM;
    buf_init(&c->bytes, SIZE_MAX);
    buf_init(&c->path, SIZE_MAX);
    buf_init(&c->out, SIZE_MAX);
    if (copy_request(c, req) < 0 || uv_timer_init(s->base.loop, &c->timer) < 0) {
        etcd_store_call_free(c);
        return MUSTER_ENOMEM;
    }
    c->store = s;
    c->op = req->op;
    c->block = flags & ASTORE_BLOCK || req->op == C10D_WAIT;
    c->delta = req->number;
    c->has_list = has_list(req->op);
    c->total = c->has_list ? req->list.count : 1;
    c->timer.data = c;
    c->by_ms =
        timeout_ms > UINT64_MAX / 2 ? UINT64_MAX : uv_now(s->base.loop) + timeout_ms;
    *out = c;
    return 0;
}

static int call(struct async_store *base, const struct c10d_request *req,
                unsigned flags, uint64_t timeout_ms, async_store_cb cb, void *ctx,
                struct muster_error *err)
{
    struct etcd_store *s = store_of(base);
    struct etcd_store_call *c;

    if (!supported(req->op))
        return err_set(err, MUSTER_ENOTSUP,
                       "%s is not supported by a store in etcd (%s)",
                       c10d_op_name(req->op), s->name);
    if (req->op == C10D_BARRIER)
        return async_store_generic_barrier(base, req->key, req->number, timeout_ms, cb,
                                           ctx, err);
    if (etcd_store_call_new(s, req, flags, timeout_ms, &c) < 0)
        return err_nomem(err);
    c->cb = cb;
    c->ctx = ctx;
    c->next = s->calls;
    if (c->next)
        c->next->prev_next = &c->next;
    c->prev_next = &s->calls;
    s->calls = c;
    (void)uv_timer_start(&c->timer, on_start, 0, 0);
    return 0;
}

/* ---- Open and close ---- */

static void store_free(struct etcd_store *s)
{
    mem_free(s->dir);
    mem_free(s->name);
    mem_free(s);
}

static void maybe_closed(struct etcd_store *s)
{
    if (!s->closing || s->ending)
        return;
    if (s->on_closed)
        s->on_closed(s->closed_ctx);
    store_free(s);
}

static void on_closer(uv_handle_t *handle)
{
    struct etcd_store *s = handle->data;

    s->ending--;
    maybe_closed(s);
}

/* In the order of their calls, as they were made: the list has the latest first. */
static void cancel_all(struct etcd_store *s)
{
    struct muster_error err = { 0 };

    err_set(&err, MUSTER_ECANCELED, "the store %s was closed", s->name);
    while (s->calls) {
        struct etcd_store_call *c = s->calls;

        while (c->next)
            c = c->next;
        etcd_store_call_fail(c, MUSTER_ECANCELED, &err);
    }
}

static void close_store(struct async_store *base, async_store_closed_cb cb, void *ctx)
{
    struct etcd_store *s = store_of(base);

    s->on_closed = cb;
    s->closed_ctx = ctx;
    s->ending++;
    cancel_all(s);
    s->closing = true;
    uv_close((uv_handle_t *)&s->closer, on_closer);
}

static const char *name(const struct async_store *base)
{
    return store_of(base)->name;
}

/* Requests run side by side in any case: another handle needs no other connection. */
static int clone_store(struct async_store *base, struct async_store **out,
                       struct muster_error *err)
{
    const struct etcd_store *s = store_of(base);

    return store_etcd_open(&s->kv, s->dir, s->lease, out, err);
}

static const struct async_store_ops ops = { "etcd", call, clone_store, close_store,
                                            name };

int store_etcd_open(const struct etcd_kv *kv, const char *dir, const int64_t *lease,
                    struct async_store **out, struct muster_error *err)
{
    struct etcd_store *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->base = (struct async_store){ &ops, etcd_client_loop(kv->client) };
    s->kv = *kv;
    s->lease = lease;
    s->dir = mem_strdup(dir);
    s->name = mem_printf("etcd %s%s", etcd_client_where(kv->client), dir);
    if (!s->dir || !s->name || uv_timer_init(s->base.loop, &s->closer) < 0) {
        store_free(s);
        return err_nomem(err);
    }
    s->closer.data = s;
    *out = &s->base;
    return 0;
}
