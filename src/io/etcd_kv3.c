/* etcd_kv3.c - operations on keys by the v3 interface; see etcd_kv.h. */
#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_kv_int.h"

static struct etcd_held held_of(const struct etcd3_reply *r)
{
    const struct etcd3_result *res = r->count ? &r->results[0] : NULL;
    struct etcd_held h = { .revision = (uint64_t)r->revision };

    if (res && res->kind == ETCD3_RANGE && res->count) {
        h.present = true;
        h.value = res->kvs[0].value;
        h.token = (uint64_t)res->kvs[0].mod_revision;
    }
    return h;
}

static void on_get(void *ctx, int status, const struct etcd_answer *a,
                   const struct muster_error *err)
{
    struct etcd_held held = { .present = false };

    if (status == 0)
        held = held_of(a->v3);
    etcd_op_finish(ctx, status, status < 0 ? NULL : &held, err);
}

static int get(struct etcd_op *op, struct muster_error *err)
{
    const struct etcd3_op range = { .kind = ETCD3_RANGE, .key = op->path };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd3_encode_range(&m, &range), &m, ETCD3_EXPECT_RANGE, 0,
                        on_get, err);
}

/* ---- Put ---- */

/* The server tells in the same answer what is there if we lost. */
static void on_put(void *ctx, int status, const struct etcd_answer *a,
                   const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct etcd_held held;

    if (status < 0) {
        etcd_op_finish(op, status, NULL, err);
        return;
    }
    held = held_of(a->v3);
    if (a->v3->succeeded) {
        held.present = true;
        held.value = op->value;
        held.token = held.revision;
    } else if (!op->unique || !held.present || !span_eq(held.value, op->value)) {
        status = MUSTER_EEXIST;
    } /* else a put that was repeated has lost to itself */
    etcd_op_finish(op, status, &held, err);
}

static int put(struct etcd_op *op, struct muster_error *err)
{
    const struct etcd3_compare compare = {
        .target = op->cond == ETCD_IF_ABSENT ? ETCD3_CREATE : ETCD3_MOD,
        .key = op->path,
        .revision = op->cond == ETCD_IF_ABSENT ? 0 : (int64_t)op->token,
    };
    const struct etcd3_op yes[] = {
        { .kind = ETCD3_PUT, .key = op->path, .value = op->value, .lease = op->lease },
        { .kind = ETCD3_PUT, .key = op->bell, .lease = op->lease },
    };
    const struct etcd3_op no = { .kind = ETCD3_RANGE, .key = op->path };
    const struct etcd3_txn txn = { .compare = &compare,
                                   .compare_count = op->cond != ETCD_ALWAYS,
                                   .yes = yes,
                                   .yes_count = op->bell.n ? 2 : 1,
                                   .no = &no,
                                   .no_count = 1 };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd3_encode_txn(&m, &txn), &m, ETCD3_EXPECT_TXN, 0, on_put,
                        err);
}

/* ---- Delete and list ---- */

static void on_delete(void *ctx, int status, const struct etcd_answer *a,
                      const struct muster_error *err)
{
    struct etcd_held held = { .present = false };

    if (status == 0) {
        held.revision = (uint64_t)a->v3->revision;
        held.present = a->v3->count && a->v3->results[0].deleted > 0;
    }
    etcd_op_finish(ctx, status, status < 0 ? NULL : &held, err);
}

static int delete (struct etcd_op *op, struct muster_error *err)
{
    struct etcd3_op del = { .kind = ETCD3_DELETE, .key = op->path };
    const struct etcd3_txn txn = { .yes = &del, .yes_count = 1 };
    struct etcd_msg m;
    struct buf end;
    int rc = 0;

    etcd_msg_init(&m);
    buf_init(&end, SIZE_MAX);
    if (op->directory)
        rc = etcd3_prefix_end(&end, op->path);
    del.end = buf_span(&end);
    if (rc == 0)
        rc = etcd3_encode_txn(&m, &txn);
    rc = etcd_op_send(op, rc, &m, ETCD3_EXPECT_TXN, 0, on_delete, err);
    buf_fini(&end);
    return rc;
}

static void on_list(void *ctx, int status, const struct etcd_answer *a,
                    const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct muster_error why = { 0 };
    struct etcd_held held = { .present = false };
    struct etcd_item *items = NULL;
    const struct etcd3_result *res;

    if (status < 0 || a->v3->count == 0) {
        etcd_op_finish(op, status, status < 0 ? NULL : &held, err);
        return;
    }
    res = &a->v3->results[0];
    held.revision = (uint64_t)a->v3->revision;
    held.present = res->count > 0;
    if (res->count && !(items = mem_calloc(res->count, sizeof *items))) {
        etcd_op_finish(op, err_nomem(&why), NULL, &why);
        return;
    }
    for (size_t i = 0; i < res->count; i++) {
        const struct etcd3_kv *kv = &res->kvs[i];

        if (kv->key.n <= op->path.n || memcmp(kv->key.p, op->path.p, op->path.n) != 0)
            continue;
        items[held.count++] =
            (struct etcd_item){ span_of(kv->key.p + op->path.n, kv->key.n - op->path.n),
                                kv->value, (uint64_t)kv->mod_revision };
    }
    held.items = items;
    etcd_op_finish(op, 0, &held, err);
    mem_free(items);
}

static int list(struct etcd_op *op, struct muster_error *err)
{
    struct etcd3_op range = { .kind = ETCD3_RANGE, .key = op->path };
    struct etcd_msg m;
    struct buf end;
    int rc;

    etcd_msg_init(&m);
    buf_init(&end, SIZE_MAX);
    rc = etcd3_prefix_end(&end, op->path);
    range.end = buf_span(&end);
    if (rc == 0)
        rc = etcd3_encode_range(&m, &range);
    rc = etcd_op_send(op, rc, &m, ETCD3_EXPECT_RANGE, 0, on_list, err);
    buf_fini(&end);
    return rc;
}

/* ---- Wait ---- */

static void on_change(void *ctx, const struct etcd3_reply *events)
{
    struct etcd_op *op = ctx;
    struct etcd_held held = { .present = false };
    const struct muster_error none = { 0 };

    if (events)
        held.revision = (uint64_t)events->revision;
    etcd_op_finish(op, 0, &held, &none);
}

static void on_late(uv_timer_t *timer)
{
    struct etcd_op *op = timer->data;
    struct muster_error err = { 0 };

    err_set(&err, MUSTER_ETIMEDOUT, "etcd at %s, key %.*s: no change in time",
            etcd_client_where(op->kv.client), (int)op->path.n,
            (const char *)op->path.p);
    etcd_op_finish(op, MUSTER_ETIMEDOUT, NULL, &err);
}

static int wait(struct etcd_op *op, struct muster_error *err)
{
    const bool below = op->path.n && op->path.p[op->path.n - 1] == '/';
    struct buf end;
    int rc = 0;

    if (uv_timer_init(etcd_client_loop(op->kv.client), &op->timer) < 0)
        return err_nomem(err);
    op->timer.data = op;
    op->has_timer = true;
    buf_init(&end, SIZE_MAX);
    if (below)
        rc = etcd3_prefix_end(&end, op->path);
    if (rc == 0)
        rc =
            etcd_watch_start(op->kv.client, op->path, buf_span(&end), false,
                             (int64_t)op->revision + 1, on_change, op, &op->watch, err);
    else
        err_nomem(err);
    buf_fini(&end);
    if (rc == 0 && op->by_ms != UINT64_MAX)
        (void)uv_timer_start(&op->timer, on_late, etcd_op_left(op), 0);
    return rc;
}

int etcd_kv3_start(struct etcd_op *op, struct muster_error *err)
{
    switch (op->kind) {
    case ETCD_OP_GET:
        return get(op, err);
    case ETCD_OP_PUT:
        return put(op, err);
    case ETCD_OP_DELETE:
        return delete (op, err);
    case ETCD_OP_LIST:
        return list(op, err);
    case ETCD_OP_WAIT:
        return wait(op, err);
    }
    return MUSTER_EBUG;
}
