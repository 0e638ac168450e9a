/* etcd_kv.c - see etcd_kv.h: the life of an operation. What goes over the wire is in
 * etcd_kv2.c and etcd_kv3.c. */
#include "io/etcd_kv.h"

#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_kv_int.h"

static void op_free(struct etcd_op *op)
{
    mem_free((uint8_t *)op->path.p);
    mem_free((uint8_t *)op->value.p);
    mem_free((uint8_t *)op->bell.p);
    mem_free(op);
}

static void on_timer_closed(uv_handle_t *handle)
{
    op_free(handle->data);
}

void etcd_op_cancel(struct etcd_op *op)
{
    if (!op || op->ended)
        return;
    op->ended = true;
    etcd_call_cancel(op->call);
    etcd_watch_stop(op->watch);
    if (op->has_timer)
        uv_close((uv_handle_t *)&op->timer, on_timer_closed);
    else
        op_free(op);
}

void etcd_op_finish(struct etcd_op *op, int status, const struct etcd_held *held,
                    const struct muster_error *err)
{
    const etcd_held_cb cb = op->cb;
    void *const ctx = op->ctx;

    op->call = NULL; /* whoever calls us is its callback */
    etcd_op_cancel(op);
    cb(ctx, status, held, err);
}

uint64_t etcd_op_left(const struct etcd_op *op)
{
    const uint64_t now = uv_now(etcd_client_loop(op->kv.client));

    if (op->by_ms == UINT64_MAX)
        return UINT64_MAX;
    return op->by_ms > now ? op->by_ms - now : 0;
}

/* A conditional write whose answer got lost may have been done: repeating it would lose
 * to itself, and only a value that is ours alone tells. */
static bool once(const struct etcd_op *op)
{
    return op->kind == ETCD_OP_WAIT ||
           (op->kind == ETCD_OP_PUT && op->cond != ETCD_ALWAYS && !op->unique);
}

int etcd_op_send(struct etcd_op *op, int rc, struct etcd_msg *msg,
                 enum etcd3_expect expect, uint64_t attempt_ms, etcd_cb cb,
                 struct muster_error *err)
{
    const struct etcd_call_opts opts = { .key = op->path,
                                         .timeout_ms = etcd_op_left(op),
                                         .attempt_ms = attempt_ms,
                                         .once = once(op),
                                         .expect = expect };

    if (rc < 0) {
        etcd_msg_fini(msg);
        return err_set(err, rc, "etcd: %s", muster_code_text(rc));
    }
    return etcd_client_call(op->kv.client, msg, &opts, cb, op, &op->call, err);
}

static struct etcd_op *op_new(const struct etcd_kv *kv, enum etcd_op_kind kind,
                              struct span path, uint64_t timeout_ms, etcd_held_cb cb,
                              void *ctx)
{
    struct etcd_op *op = mem_calloc(1, sizeof *op);

    if (!op)
        return NULL;
    op->kv = *kv;
    op->kind = kind;
    op->by_ms = timeout_ms > UINT64_MAX / 2
                    ? UINT64_MAX
                    : uv_now(etcd_client_loop(kv->client)) + timeout_ms;
    op->cb = cb;
    op->ctx = ctx;
    op->path = span_of(mem_memdup(path.p, path.n), path.n);
    if (!op->path.p) {
        mem_free(op);
        return NULL;
    }
    return op;
}

static int start(struct etcd_op *op, struct etcd_op **out, struct muster_error *err)
{
    int rc;

    if (!op)
        return err_nomem(err);
    rc = op->kv.api == ETCD_V2 ? etcd_kv2_start(op, err) : etcd_kv3_start(op, err);
    if (rc < 0) {
        op->call = NULL;
        etcd_op_cancel(op);
        return rc;
    }
    if (out)
        *out = op;
    return 0;
}

int etcd_kv_get(const struct etcd_kv *kv, struct span path, uint64_t timeout_ms,
                etcd_held_cb cb, void *ctx, struct etcd_op **out,
                struct muster_error *err)
{
    return start(op_new(kv, ETCD_OP_GET, path, timeout_ms, cb, ctx), out, err);
}

int etcd_kv_put(const struct etcd_kv *kv, const struct etcd_put *put,
                uint64_t timeout_ms, etcd_held_cb cb, void *ctx, struct etcd_op **out,
                struct muster_error *err)
{
    struct etcd_op *op = op_new(kv, ETCD_OP_PUT, put->path, timeout_ms, cb, ctx);

    if (!op)
        return err_nomem(err);
    op->value = span_of(mem_memdup(put->value.n ? put->value.p : (const uint8_t *)"",
                                   put->value.n + !put->value.n),
                        put->value.n);
    op->cond = put->cond;
    op->token = put->token;
    op->ttl_s = put->ttl_s;
    op->lease = put->lease;
    op->unique = put->unique;
    if (put->bell.n)
        op->bell = span_of(mem_memdup(put->bell.p, put->bell.n), put->bell.n);
    if (!op->value.p || (put->bell.n && !op->bell.p)) {
        op_free(op);
        return err_nomem(err);
    }
    return start(op, out, err);
}

int etcd_kv_delete(const struct etcd_kv *kv, struct span path, bool directory,
                   uint64_t timeout_ms, etcd_held_cb cb, void *ctx,
                   struct etcd_op **out, struct muster_error *err)
{
    struct etcd_op *op = op_new(kv, ETCD_OP_DELETE, path, timeout_ms, cb, ctx);

    if (op)
        op->directory = directory;
    return start(op, out, err);
}

int etcd_kv_list(const struct etcd_kv *kv, struct span path, uint64_t timeout_ms,
                 etcd_held_cb cb, void *ctx, struct etcd_op **out,
                 struct muster_error *err)
{
    return start(op_new(kv, ETCD_OP_LIST, path, timeout_ms, cb, ctx), out, err);
}

int etcd_kv_wait(const struct etcd_kv *kv, struct span path, uint64_t revision,
                 uint64_t timeout_ms, etcd_held_cb cb, void *ctx, struct etcd_op **out,
                 struct muster_error *err)
{
    struct etcd_op *op = op_new(kv, ETCD_OP_WAIT, path, timeout_ms, cb, ctx);

    if (op)
        op->revision = revision;
    return start(op, out, err);
}
