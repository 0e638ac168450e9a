/* prefix_store.c - a view of another store under "<prefix>/"; see async_store.h.
 *
 * It works like torch's PrefixStore, except that LIST_KEYS skips keys without the
 * prefix. Calls are passed on with longer keys, and remembered until they end, so that
 * closing the view ends its calls even if the inner store stays open. */
#include <stdio.h>

#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "store/async_store.h"
#include "store/core/wire_keys.h"

struct view_call {
    struct view_call *prev, *next;
    struct view *view; /* NULL: the view is closed and has called back */
    enum c10d_op op;
    async_store_cb cb;
    void *ctx;
};

struct view {
    struct async_store base; /* first */
    bool own;
    char *prefix; /* owned; ends in "/" */
    char *name;   /* owned */
    struct {
        struct view_call *first, *last;
    } calls;
    uv_idle_t idle;
    int closing; /* handles and stores still to be closed */
};

static int view_strip(struct view *v, const struct c10d_reply *reply,
                      struct c10d_reply *out, struct buf *keys)
{
    size_t count;

    *out = *reply;
    if (c10d_strip_keys(keys, reply->list, span_str(v->prefix), &count) < 0)
        return MUSTER_ENOMEM;
    out->list = (struct c10d_list){ buf_span(keys), count };
    return 0;
}

static void prefix_store_on_done(void *ctx, int status, const struct c10d_reply *reply,
                                 const struct muster_error *err)
{
    struct view_call *call = ctx;
    struct view_call copy = *call;
    struct muster_error nomem;
    struct c10d_reply stripped;
    struct buf keys;

    if (call->view)
        LIST_REMOVE(&call->view->calls, call, prev, next);
    mem_free(call);
    if (!copy.view)
        return;
    buf_init(&keys, SIZE_MAX);
    if (status == 0 && copy.op == C10D_LIST_KEYS) {
        status = view_strip(copy.view, reply, &stripped, &keys);
        reply = &stripped;
        if (status < 0) {
            (void)err_nomem(&nomem);
            err = &nomem;
        }
    }
    copy.cb(copy.ctx, status, status == 0 ? reply : NULL, err);
    buf_fini(&keys);
}

static int view_call(struct async_store *s, const struct c10d_request *req,
                     unsigned flags, uint64_t timeout_ms, async_store_cb cb, void *ctx,
                     struct muster_error *err)
{
    struct view *v = (struct view *)s;
    struct c10d_prefixed full;
    struct view_call *call;
    int rc;

    call = mem_calloc(1, sizeof *call);
    if (!call)
        return err_nomem(err);
    *call = (struct view_call){ .view = v, .op = req->op, .cb = cb, .ctx = ctx };
    rc = c10d_prefix_keys(&full, req, span_str(v->prefix), err);
    if (rc == 0)
        rc = async_store_call(v->base.inner, &full.req, flags, timeout_ms,
                              prefix_store_on_done, call, err);
    c10d_prefixed_fini(&full);
    if (rc < 0) {
        mem_free(call);
        return rc;
    }
    LIST_APPEND(&v->calls, call, prev, next);
    return 0;
}

static void view_finish_close(struct view *v)
{
    struct muster_error err;
    struct view_call *call;

    if (--v->closing)
        return;
    (void)err_set(&err, MUSTER_ECANCELED, "%s: the store was closed", v->name);
    while ((call = v->calls.first)) {
        LIST_REMOVE(&v->calls, call, prev, next);
        call->view = NULL; /* The inner store still has the call. */
        call->cb(call->ctx, err.code, NULL, &err);
    }
    async_store_closed(&v->base);
    mem_free(v->prefix);
    mem_free(v->name);
    mem_free(v);
}

static void view_on_handle_closed(uv_handle_t *handle)
{
    view_finish_close(handle->data);
}

static void view_on_inner_closed(void *ctx)
{
    view_finish_close(ctx);
}

static void view_close(struct async_store *s)
{
    struct view *v = (struct view *)s;

    v->closing = v->own ? 2 : 1;
    uv_close((uv_handle_t *)&v->idle, view_on_handle_closed);
    if (v->own)
        async_store_close(v->base.inner, view_on_inner_closed, v);
}

static int view_clone(struct async_store *s, struct async_store **out,
                      struct muster_error *err)
{
    struct view *v = (struct view *)s;
    struct async_store *inner;
    char *prefix = mem_strndup(v->prefix, strlen(v->prefix) - 1);
    int rc =
        prefix ? v->base.inner->ops->clone(v->base.inner, &inner, err) : err_nomem(err);

    if (rc == 0) {
        rc = async_store_prefix(inner, prefix, true, out, err);
        if (rc < 0)
            async_store_close(inner, NULL, NULL);
    }
    mem_free(prefix);
    return rc;
}

/* Its barrier is torch's, so that our processes and torch's count at the same keys. */
static const struct async_store_ops view_ops = {
    .kind = "prefix",
    .call = view_call,
    .clone = view_clone,
    .close = view_close,
};

int async_store_prefix(struct async_store *inner, const char *prefix, bool own,
                       struct async_store **out, struct muster_error *err)
{
    struct view *v = mem_calloc(1, sizeof *v);
    char *with_slash = mem_printf("%s/", prefix);
    char *name = mem_printf("%s under %s/", inner->name, prefix);

    if (!v || !with_slash || !name) {
        mem_free(v);
        mem_free(with_slash);
        mem_free(name);
        return err_nomem(err);
    }
    v->base = (struct async_store){ &view_ops, inner->loop, name,
                                    .ordered = inner->ordered, .inner = inner };
    v->own = own;
    v->prefix = with_slash;
    v->name = name;
    /* It is never started: its close callback comes from the loop. */
    (void)uv_idle_init(inner->loop, &v->idle);
    v->idle.data = v;
    *out = &v->base;
    return 0;
}
