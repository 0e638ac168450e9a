/* etcd_store.c - opening and closing the store, and the life of a call; see
 * etcd_store.h. */
#include "etcd/etcd_store.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "etcd/etcd_store_int.h"
#include "loop/clock.h"

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
    const uint64_t now = clock_mono_ms(), by = c->base.deadline_ms;

    if (by == MONO_NEVER)
        return UINT64_MAX;
    return by > now ? by - now : 0;
}

static void maybe_closed(struct etcd_store *s);

static void etcd_store_call_free(struct etcd_store_call *c)
{
    buf_fini(&c->path);
    buf_fini(&c->out);
    call_free(&c->base);
}

static void etcd_store_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_store_call *c = handle->data;
    struct etcd_store *s = etcd_store_of(c);

    etcd_store_call_free(c);
    s->ending--;
    maybe_closed(s);
}

static void etcd_store_call_end(struct etcd_store_call *c)
{
    struct etcd_store *s = etcd_store_of(c);

    etcd_op_cancel(c->req);
    c->req = NULL;
    call_list_remove(&s->calls, &c->base);
    s->ending++;
    uv_close((uv_handle_t *)&c->timer, etcd_store_on_timer_closed);
}

void etcd_store_call_done(struct etcd_store_call *c, const struct c10d_reply *reply)
{
    /* The memory of c, and the reply in it, stays until the loop's next turn. */
    etcd_store_call_end(c);
    call_notify(&c->base, 0, reply, NULL);
}

void etcd_store_call_fail(struct etcd_store_call *c, int status,
                          const struct muster_error *err)
{
    etcd_store_call_end(c);
    call_notify(&c->base, status, NULL, err);
}

/* ---- Calls ---- */

static void on_start(uv_timer_t *timer)
{
    etcd_store_call_start(timer->data);
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
                               struct etcd_store_call **out, struct muster_error *err)
{
    struct call *call;
    const int rc = call_new(sizeof **out, &s->base, req, "", &call, err);

    if (rc < 0)
        return rc;
    struct etcd_store_call *c = (struct etcd_store_call *)call;

    buf_init(&c->path, SIZE_MAX);
    buf_init(&c->out, SIZE_MAX);
    c->key = call->copy.req.key;
    c->list = call->copy.req.list;
    c->has_list = c10d_has_list(req->op);
    c->total = c->has_list ? req->list.count : 1;
    (void)uv_timer_init(s->base.loop, &c->timer);
    c->timer.data = c;
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
    const int rc = etcd_store_call_new(s, req, &c, err);
    if (rc < 0)
        return rc;
    c->block = flags & ASYNC_STORE_BLOCK || req->op == C10D_WAIT;
    call_begin(&c->base, flags, timeout_ms, cb, ctx);
    call_list_add(&s->calls, &c->base);
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

static void cancel_all(struct etcd_store *s)
{
    struct muster_error err = { 0 };

    err_set(&err, MUSTER_ECANCELED, "the store %s was closed", s->name);
    while (s->calls.first)
        etcd_store_call_fail((struct etcd_store_call *)s->calls.first, MUSTER_ECANCELED,
                             &err);
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

/* Requests of one client run side by side, so a clone needs no connection of its own.
 */
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
