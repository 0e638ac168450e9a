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
    uv_timer_t timer;         /* of a wait */
    bool ended;
    int broken; /* v2's wait: its status once the timer ends; 0: it is sent again */
    struct muster_error why;
    etcd_held_cb cb;
    void *ctx;
};

static void kv_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_op *op = handle->data;

    kv_operation_fini(&op->operation);
    mem_free(op);
}

/* The operation stays until the callback has returned, as held points into it. */
static void op_end(struct etcd_op *op)
{
    op->ended = true;
    etcd_call_cancel(op->call);
    etcd_watch_stop(op->watch);
}

static void op_gone(struct etcd_op *op)
{
    uv_close((uv_handle_t *)&op->timer, kv_on_timer_closed);
}

void etcd_op_cancel(struct etcd_op *op)
{
    if (!op || op->ended)
        return;
    op_end(op);
    op_gone(op);
}

static void op_finish(struct etcd_op *op, int status, const struct etcd_held *held,
                      const struct muster_error *err)
{
    op->call = NULL; /* We are in its callback. */
    op_end(op);
    op->cb(op->ctx, status, held, err);
    op_gone(op);
}

/* ---- Asking ---- */

static int op_send(struct etcd_op *op, struct muster_error *err);

static uint64_t op_left_ms(const struct etcd_op *op)
{
    return ms_left(op->by_ms, uv_now(etcd_client_loop(op->kv.client)));
}

static void op_send_again(struct etcd_op *op, int status, struct muster_error *why)
{
    if (op->operation.kind != KV_OPERATION_WAIT || op_left_ms(op) > 0)
        status = op_send(op, why);
    if (!op->call)
        op_finish(op, status, NULL, why);
}

static void on_broken_over(uv_timer_t *timer)
{
    struct etcd_op *op = timer->data;
    struct muster_error why = op->why;

    if (op->broken)
        op_finish(op, op->broken, NULL, &why);
    else
        op_send_again(op, MUSTER_ETIMEDOUT, &why);
}

/* A balancer without a server behind it, or a proxy that cuts off long polls, breaks
 * each wait at once. Without a pause the caller would read and wait again in a tight
 * loop. True if the timer will continue. */
static bool pause_after_break(struct etcd_op *op, bool over, int status,
                              const struct muster_error *why)
{
    if (op->operation.kind != KV_OPERATION_WAIT || status == 0 ||
        status == MUSTER_ETIMEDOUT)
        return false;
    op->broken = over ? status : 0;
    op->why = *why;
    (void)uv_timer_start(&op->timer, on_broken_over, MIN_OF(BROKEN_MS, op_left_ms(op)),
                         0);
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
        op_finish(op, rc, rc < 0 && rc != MUSTER_EEXIST ? NULL : &held, &why);
    else
        op_send_again(op, status, &why);
}

static int op_send(struct etcd_op *op, struct muster_error *err)
{
    const struct kv_operation *a = &op->operation;
    const struct etcd_call_opts opts = {
        .key = a->path,
        .timeout_ms = op_left_ms(op),
        .attempt_ms = a->kind == KV_OPERATION_WAIT ? POLL_MS : 0,
        .once = kv_operation_once(a),
        .expect = kv_operation_expect(a),
    };
    struct etcd_msg m;

    etcd_msg_init(&m);
    (void)kv_operation_encode(a, &m);
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
    op_finish(op, 0, &held, &none);
}

static void on_late(uv_timer_t *timer)
{
    struct etcd_op *op = timer->data;
    struct muster_error err = { 0 };

    err_set(&err, MUSTER_ETIMEDOUT, "etcd at %s, key %.*s: no change in time",
            etcd_client_where(op->kv.client), (int)op->operation.path.n,
            (const char *)op->operation.path.p);
    op_finish(op, MUSTER_ETIMEDOUT, NULL, &err);
}

static int op_watch(struct etcd_op *op, struct muster_error *err)
{
    const struct span path = op->operation.path;
    const struct etcd_watch_opts opts = {
        .key = path,
        .below = path.n && path.p[path.n - 1] == '/',
        .start_revision = (int64_t)op->operation.revision + 1,
        .on_change = kv_on_change,
        .ctx = op,
    };
    const int rc = etcd_watch_start(op->kv.client, &opts, &op->watch, err);

    if (rc == 0 && op->by_ms != UINT64_MAX)
        (void)uv_timer_start(&op->timer, on_late, op_left_ms(op), 0);
    return rc;
}

/* ---- Making ---- */

int etcd_kv_start(const struct etcd_kv *kv, const struct etcd_kv_request *req,
                  etcd_held_cb cb, void *ctx, struct etcd_op **out,
                  struct muster_error *err)
{
    struct etcd_op *op = mem_calloc(1, sizeof *op);
    int rc = MUSTER_ENOMEM;

    if (op)
        rc = req->kind == KV_OPERATION_PUT
                 ? kv_operation_init_put(&op->operation, kv->api, req->put)
                 : kv_operation_init(&op->operation, kv->api, req->kind, req->path);
    if (rc < 0) {
        mem_free(op);
        return err_nomem(err);
    }
    op->kv = *kv;
    op->operation.directory = req->directory;
    op->operation.revision = req->revision;
    op->by_ms = req->timeout_ms > UINT64_MAX / 2
                    ? UINT64_MAX
                    : uv_now(etcd_client_loop(kv->client)) + req->timeout_ms;
    op->cb = cb;
    op->ctx = ctx;
    (void)uv_timer_init(etcd_client_loop(kv->client), &op->timer); /* cannot fail */
    op->timer.data = op;
    rc = kv->api == ETCD_V3 && req->kind == KV_OPERATION_WAIT ? op_watch(op, err)
                                                              : op_send(op, err);
    if (rc < 0) {
        op->call = NULL;
        etcd_op_cancel(op);
        return rc;
    }
    if (out)
        *out = op;
    return 0;
}
