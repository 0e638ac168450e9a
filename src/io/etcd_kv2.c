/* etcd_kv2.c - operations on keys by the v2 interface; see etcd_kv.h. */
#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_kv_int.h"

#define POLL_MS 20000u /* one long poll: a member that hangs is noticed after this */

static void on_read(void *ctx, int status, const struct etcd_answer *a,
                    const struct muster_error *err);

static bool is_dir(struct span path)
{
    return path.n && path.p[path.n - 1] == '/';
}

static int read_key(struct etcd_op *op, struct muster_error *err)
{
    const struct etcd2_request req = { .key = op->path, .quorum = true };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd2_encode(&m, &req), &m, 0, 0, on_read, err);
}

static struct etcd_held held_of(const struct etcd2_reply *r)
{
    /* A write's answer may carry an older X-Etcd-Index than the write itself. */
    return (struct etcd_held){ .present = true,
                               .value = r->node.value,
                               .token = r->node.modified_index,
                               .revision = MAX_OF(r->index, r->node.modified_index) };
}

/* ---- Get, and what a lost put finds ---- */

static void on_read(void *ctx, int status, const struct etcd_answer *a,
                    const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct etcd_held held = { .present = false };

    if (status == 0)
        held = held_of(a->v2);
    else if (status == MUSTER_ENOENT)
        held.revision = a->v2->index;
    else {
        etcd_op_finish(op, status, NULL, err);
        return;
    }
    if (!op->checking)
        status = 0;
    else /* A put that was repeated may have lost to itself. */
        status = op->unique && held.present && span_eq(held.value, op->value)
                     ? 0
                     : MUSTER_EEXIST;
    etcd_op_finish(op, status, &held, err);
}

/* ---- Put ---- */

static void on_put(void *ctx, int status, const struct etcd_answer *a,
                   const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct muster_error why = { 0 };
    struct etcd_held held = { .present = false };

    op->call = NULL;
    if (status == 0) {
        held = held_of(a->v2);
        etcd_op_finish(op, 0, &held, err);
        return;
    }
    if (status == MUSTER_ENOENT && op->cond == ETCD_IF_TOKEN) {
        /* Expired or deleted meanwhile: lost, and nothing is there. */
        held.revision = a->v2->index;
        etcd_op_finish(op, MUSTER_EEXIST, &held, err);
        return;
    }
    if (status != MUSTER_EEXIST) {
        etcd_op_finish(op, status, NULL, err);
        return;
    }
    op->checking = true;
    status = read_key(op, &why);
    if (status < 0)
        etcd_op_finish(op, status, NULL, &why);
}

static int put(struct etcd_op *op, struct muster_error *err)
{
    const struct etcd2_request req = {
        .verb = ETCD2_PUT,
        .key = op->path,
        .value = op->value,
        .ttl_s = op->ttl_s,
        .prev_exist = op->cond == ETCD_IF_ABSENT ? ETCD2_MUST_NOT_EXIST : ETCD2_ANY,
        .prev_index = op->cond == ETCD_IF_TOKEN ? op->token : 0,
    };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd2_encode(&m, &req), &m, 0, 0, on_put, err);
}

/* ---- Delete and list ---- */

static void on_delete(void *ctx, int status, const struct etcd_answer *a,
                      const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct etcd_held held = { .present = status == 0 };

    if (status < 0 && status != MUSTER_ENOENT) {
        etcd_op_finish(op, status, NULL, err);
        return;
    }
    held.revision = a->v2->index;
    etcd_op_finish(op, 0, &held, err);
}

static int delete (struct etcd_op *op, struct muster_error *err)
{
    const struct etcd2_request req = { .verb = ETCD2_DELETE,
                                       .key = op->path,
                                       .dir = op->directory,
                                       .recursive = op->directory };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd2_encode(&m, &req), &m, 0, 0, on_delete, err);
}

/* The server answers whole keys; one that is not below our path is not ours. */
static size_t take_items(const struct etcd_op *op, const struct etcd2_reply *r,
                         struct etcd_item *items)
{
    size_t n = 0;

    for (size_t i = 0; i < r->count; i++) {
        const struct etcd2_node *node = &r->nodes[i];

        if (node->dir || node->key.n <= op->path.n ||
            memcmp(node->key.p, op->path.p, op->path.n) != 0)
            continue;
        items[n++] = (struct etcd_item){ span_of(node->key.p + op->path.n,
                                                 node->key.n - op->path.n),
                                         node->value, node->modified_index };
    }
    return n;
}

static void on_list(void *ctx, int status, const struct etcd_answer *a,
                    const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct muster_error why = { 0 };
    struct etcd_held held = { .present = status == 0 };
    struct etcd_item *items = NULL;

    if (status < 0 && status != MUSTER_ENOENT) {
        etcd_op_finish(op, status, NULL, err);
        return;
    }
    held.revision = a->v2->index;
    if (status == 0 && a->v2->count) {
        items = mem_calloc(a->v2->count, sizeof *items);
        if (!items) {
            etcd_op_finish(op, err_nomem(&why), NULL, &why);
            return;
        }
        held.items = items;
        held.count = take_items(op, a->v2, items);
    }
    etcd_op_finish(op, 0, &held, err);
    mem_free(items);
}

static int list(struct etcd_op *op, struct muster_error *err)
{
    const struct etcd2_request req = { .key = op->path, .quorum = true };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd2_encode(&m, &req), &m, 0, 0, on_list, err);
}

/* ---- Wait ---- */

static int wait(struct etcd_op *op, struct muster_error *err);

/* A long poll that ends without an event is repeated; history that is gone, or a server
 * that has lost its index, is a reason to read again. */
static void on_wait(void *ctx, int status, const struct etcd_answer *a,
                    const struct muster_error *err)
{
    struct etcd_op *op = ctx;
    struct etcd_held held = { .present = false };
    struct muster_error why = { 0 };

    op->call = NULL;
    if (a && a->v2)
        held.revision = MAX_OF(a->v2->index, a->v2->node.modified_index);
    if (status == 0 || status == MUSTER_ESTATE) {
        etcd_op_finish(op, 0, &held, err);
        return;
    }
    if (etcd_op_left(op) == 0 ||
        (status != MUSTER_ETIMEDOUT && status != MUSTER_EHANGUP)) {
        etcd_op_finish(op, status, NULL, err);
        return;
    }
    status = wait(op, &why);
    if (status < 0)
        etcd_op_finish(op, status, NULL, &why);
}

static int wait(struct etcd_op *op, struct muster_error *err)
{
    const struct etcd2_request req = { .key = op->path,
                                       .wait = true,
                                       .wait_index = op->revision + 1,
                                       .recursive = is_dir(op->path) };
    struct etcd_msg m;

    etcd_msg_init(&m);
    return etcd_op_send(op, etcd2_encode(&m, &req), &m, 0, POLL_MS, on_wait, err);
}

int etcd_kv2_start(struct etcd_op *op, struct muster_error *err)
{
    switch (op->kind) {
    case ETCD_OP_GET:
        return read_key(op, err);
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
