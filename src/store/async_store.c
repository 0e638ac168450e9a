/* async_store.c - calls on any store, and shorthands for them; see async_store.h. */
#include "store/async_store.h"

#include "base/err.h"

int async_store_call(struct async_store *s, const struct c10d_request *req,
                     unsigned flags, uint64_t timeout_ms, async_store_cb cb, void *ctx,
                     struct muster_error *err)
{
    if (req->op == C10D_VALIDATE || req->op == C10D_PING || req->op == C10D_CANCEL_WAIT)
        return err_set(err, MUSTER_EINVAL,
                       "%s is internal: callers of a store cannot use it",
                       c10d_op_name(req->op));
    if (req->op == C10D_BARRIER && !s->ops->own_barrier)
        return async_store_generic_barrier(s, req->key, req->number, timeout_ms, cb,
                                           ctx, err);
    return s->ops->call(s, req, flags, timeout_ms, cb, ctx, err);
}

int async_store_set(struct async_store *s, struct span key, struct span value,
                    uint64_t timeout_ms, async_store_cb cb, void *ctx,
                    struct muster_error *err)
{
    const struct c10d_request req = { .op = C10D_SET, .key = key, .value = value };

    return async_store_call(s, &req, 0, timeout_ms, cb, ctx, err);
}

int async_store_get(struct async_store *s, struct span key, uint64_t timeout_ms,
                    async_store_cb cb, void *ctx, struct muster_error *err)
{
    const struct c10d_request req = { .op = C10D_GET, .key = key };

    return async_store_call(s, &req, ASYNC_STORE_BLOCK, timeout_ms, cb, ctx, err);
}

int async_store_add(struct async_store *s, struct span key, int64_t delta,
                    uint64_t timeout_ms, async_store_cb cb, void *ctx,
                    struct muster_error *err)
{
    const struct c10d_request req = { .op = C10D_ADD, .key = key, .number = delta };

    return async_store_call(s, &req, 0, timeout_ms, cb, ctx, err);
}

int async_store_compare_set(struct async_store *s, struct span key,
                            struct span expected, struct span desired,
                            uint64_t timeout_ms, async_store_cb cb, void *ctx,
                            struct muster_error *err)
{
    const struct c10d_request req = {
        .op = C10D_COMPARE_SET, .key = key, .expected = expected, .value = desired
    };

    return async_store_call(s, &req, 0, timeout_ms, cb, ctx, err);
}

static int call_for_key(struct async_store *s, enum c10d_op op, struct span key,
                        uint64_t timeout_ms, async_store_cb cb, void *ctx,
                        struct muster_error *err)
{
    struct c10d_request req = { .op = op };
    struct buf list;
    int rc;

    buf_init(&list, SIZE_MAX);
    rc = c10d_list_add(&list, key) < 0 ? err_nomem(err) : 0;
    req.list = (struct c10d_list){ buf_span(&list), 1 };
    if (rc == 0)
        rc = async_store_call(s, &req, 0, timeout_ms, cb, ctx, err);
    buf_fini(&list);
    return rc;
}

int async_store_check(struct async_store *s, struct span key, uint64_t timeout_ms,
                      async_store_cb cb, void *ctx, struct muster_error *err)
{
    return call_for_key(s, C10D_CHECK, key, timeout_ms, cb, ctx, err);
}

int async_store_wait(struct async_store *s, struct span key, uint64_t timeout_ms,
                     async_store_cb cb, void *ctx, struct muster_error *err)
{
    return call_for_key(s, C10D_WAIT, key, timeout_ms, cb, ctx, err);
}
