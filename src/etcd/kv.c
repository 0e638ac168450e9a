/* kv.c - the life of an operation; see kv.h. etcd/core/kv_operation.c decides what is
 * sent and what the answer means. */
#include "etcd/kv.h"

#include "base/err.h"
#include "base/mem.h"
#include "etcd/watch.h"

#define BROKEN_MS 500u   /* A pause after a broken wait: the next may break, too. */
#define POLL_MS   20000u /* One long poll: a member that hangs is noticed after this. */

struct etcd_op {
    struct etcd_kv kv;
    struct kv_operation operation;
    uint64_t by_ms;
    struct etcd_call *call;
    struct etcd_watch *watch; /* v3's wait */
    uv_timer_t timer;         /* of a wait; has_timer: it must be closed */
    bool has_timer, ended;
    int broken; /* v2's wait: its status once the timer ends; 0: it is sent again */
    struct muster_error why;
    etcd_held_cb cb;
    void *ctx;
};

static void op_free(struct etcd_op *op)
{
    kv_operation_fini(&op->operation);
    mem_free(op);
}

static void kv_on_timer_closed(uv_handle_t *handle)
{
    op_free(handle->data);
}

/* The operation stays until the callback has returned, as held points into it. */
static void end(struct etcd_op *op)
{
    op->ended = true;
    etcd_call_cancel(op->call);
    etcd_watch_stop(op->watch);
}

static void op_gone(struct etcd_op *op)
{
    if (op->has_timer)
        uv_close((uv_handle_t *)&op->timer, kv_on_timer_closed);
    else
        op_free(op);
}

void etcd_op_cancel(struct etcd_op *op)
{
    if (!op || op->ended)
        return;
    end(op);
    op_gone(op);
}

static void finish(struct etcd_op *op, int status, const struct etcd_held *held,
                   const struct muster_error *err)
{
    op->call = NULL; /* We are in its callback. */
    end(op);
    op->cb(op->ctx, status, held, err);
    op_gone(op);
}

static uint64_t left_ms(const struct etcd_op *op)
{
    const uint64_t now = uv_now(etcd_client_loop(op->kv.client));

    if (op->by_ms == UINT64_MAX)
        return UINT64_MAX;
    return op->by_ms > now ? op->by_ms - now : 0;
}

/* ---- Asking ---- */

static int send_request(struct etcd_op *op, struct muster_error *err);

static int need_timer(struct etcd_op *op, struct muster_error *err)
{
    if (op->has_timer)
        return 0;
    if (uv_timer_init(etcd_client_loop(op->kv.client), &op->timer) < 0)
        return err_nomem(err);
    op->timer.data = op;
    op->has_timer = true;
    return 0;
}

static void ask_again(struct etcd_op *op, int status, struct muster_error *why)
{
    if (op->operation.kind != KV_OPERATION_WAIT || left_ms(op) > 0)
        status = send_request(op, why);
    if (!op->call)
        finish(op, status, NULL, why);
}

static void on_broken_over(uv_timer_t *timer)
{
    struct etcd_op *op = timer->data;
    struct muster_error why = op->why;

    if (op->broken)
        finish(op, op->broken, NULL, &why);
    else
        ask_again(op, MUSTER_ETIMEDOUT, &why);
}

/* A balancer without a server behind it, or a proxy that cuts off long polls, breaks
 * each wait at once. Without a pause the caller would read and wait again in a tight
 * loop. True if the timer will continue. */
static bool pause_after_break(struct etcd_op *op, bool over, int status,
                              const struct muster_error *why)
{
    if (op->operation.kind != KV_OPERATION_WAIT || status == 0 ||
        status == MUSTER_ETIMEDOUT || need_timer(op, NULL) < 0)
        return false;
    op->broken = over ? status : 0;
    op->why = *why;
    (void)uv_timer_start(&op->timer, on_broken_over, MIN_OF(BROKEN_MS, left_ms(op)), 0);
    return true;
}

static void kv_on_answer(void *ctx, int status, const struct etcd_answer *answer,
                         const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct muster_error why = *err;
    struct etcd_held held;
    int rc = status;
    const bool over = kv_operation_answer(&op->operation, &rc, answer, &held);

    op->call = NULL;
    if (over && rc == MUSTER_ENOMEM)
        err_nomem(&why);
    if (pause_after_break(op, over, rc, &why))
        return;
    if (over)
        finish(op, rc, rc < 0 && rc != MUSTER_EEXIST ? NULL : &held, &why);
    else
        ask_again(op, status, &why);
}

static int send_request(struct etcd_op *op, struct muster_error *err)
{
    const struct kv_operation *a = &op->operation;
    const struct etcd_call_opts opts = {
        .key = a->path,
        .timeout_ms = left_ms(op),
        .attempt_ms = a->kind == KV_OPERATION_WAIT ? POLL_MS : 0,
        .once = kv_operation_once(a),
        .expect = kv_operation_expect(a),
    };
    struct etcd_msg m;
    int rc;

    etcd_msg_init(&m);
    rc = kv_operation_encode(a, &m);
    if (rc < 0) {
        etcd_msg_fini(&m);
        return err_set(err, rc, "etcd: %s", muster_code_text(rc));
    }
    return etcd_client_call(op->kv.client, &m, &opts, kv_on_answer, op, &op->call, err);
}

/* ---- v3 waits with a stream ---- */

static void kv_on_change(void *ctx, const struct etcd3_reply *events)
{
    struct etcd_op *op = ctx;
    struct etcd_held held = { .present = false };
    const struct muster_error none = { 0 };

    if (events)
        held.revision = (uint64_t)events->revision;
    finish(op, 0, &held, &none);
}

static void on_late(uv_timer_t *timer)
{
    struct etcd_op *op = timer->data;
    struct muster_error err = { 0 };

    err_set(&err, MUSTER_ETIMEDOUT, "etcd at %s, key %.*s: no change in time",
            etcd_client_where(op->kv.client), (int)op->operation.path.n,
            (const char *)op->operation.path.p);
    finish(op, MUSTER_ETIMEDOUT, NULL, &err);
}

static int watch(struct etcd_op *op, struct muster_error *err)
{
    const struct span path = op->operation.path;
    const bool below = path.n && path.p[path.n - 1] == '/';
    struct buf end;
    int rc = need_timer(op, err);

    if (rc < 0)
        return rc;
    buf_init(&end, SIZE_MAX);
    if (below)
        rc = etcd3_prefix_end(&end, path);
    if (rc == 0)
        rc = etcd_watch_start(op->kv.client, path, buf_span(&end), false,
                              (int64_t)op->operation.revision + 1, kv_on_change, op,
                              &op->watch, err);
    else
        err_nomem(err);
    buf_fini(&end);
    if (rc == 0 && op->by_ms != UINT64_MAX)
        (void)uv_timer_start(&op->timer, on_late, left_ms(op), 0);
    return rc;
}

/* ---- Making ---- */

/* Takes over the operation. */
static int start(const struct etcd_kv *kv, struct kv_operation *operation,
                 uint64_t timeout_ms, etcd_held_cb cb, void *ctx, struct etcd_op **out,
                 struct muster_error *err)
{
    struct etcd_op *op = mem_calloc(1, sizeof *op);
    int rc;

    if (!op) {
        kv_operation_fini(operation);
        return err_nomem(err);
    }
    op->kv = *kv;
    op->operation = *operation;
    op->by_ms = timeout_ms > UINT64_MAX / 2
                    ? UINT64_MAX
                    : uv_now(etcd_client_loop(kv->client)) + timeout_ms;
    op->cb = cb;
    op->ctx = ctx;
    rc = kv->api == ETCD_V3 && operation->kind == KV_OPERATION_WAIT
             ? watch(op, err)
             : send_request(op, err);
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
    struct kv_operation operation;

    if (kv_operation_init(&operation, kv->api, KV_OPERATION_GET, path) < 0)
        return err_nomem(err);
    return start(kv, &operation, timeout_ms, cb, ctx, out, err);
}

int etcd_kv_put(const struct etcd_kv *kv, const struct etcd_put *put,
                uint64_t timeout_ms, etcd_held_cb cb, void *ctx, struct etcd_op **out,
                struct muster_error *err)
{
    struct kv_operation operation;

    if (kv_operation_init_put(&operation, kv->api, put) < 0)
        return err_nomem(err);
    return start(kv, &operation, timeout_ms, cb, ctx, out, err);
}

int etcd_kv_delete(const struct etcd_kv *kv, struct span path, bool directory,
                   uint64_t timeout_ms, etcd_held_cb cb, void *ctx,
                   struct etcd_op **out, struct muster_error *err)
{
    struct kv_operation operation;

    if (kv_operation_init(&operation, kv->api, KV_OPERATION_DELETE, path) < 0)
        return err_nomem(err);
    operation.directory = directory;
    return start(kv, &operation, timeout_ms, cb, ctx, out, err);
}

int etcd_kv_list(const struct etcd_kv *kv, struct span path, uint64_t timeout_ms,
                 etcd_held_cb cb, void *ctx, struct etcd_op **out,
                 struct muster_error *err)
{
    struct kv_operation operation;

    if (kv_operation_init(&operation, kv->api, KV_OPERATION_LIST, path) < 0)
        return err_nomem(err);
    return start(kv, &operation, timeout_ms, cb, ctx, out, err);
}

int etcd_kv_wait(const struct etcd_kv *kv, struct span path, uint64_t revision,
                 uint64_t timeout_ms, etcd_held_cb cb, void *ctx, struct etcd_op **out,
                 struct muster_error *err)
{
    struct kv_operation operation;

    if (kv_operation_init(&operation, kv->api, KV_OPERATION_WAIT, path) < 0)
        return err_nomem(err);
    operation.revision = revision;
    return start(kv, &operation, timeout_ms, cb, ctx, out, err);
}
