/* kv_operation_v2.c - operations on keys by the v2 interface; see kv_operation.h. */
#include "base/mem.h"

#include <assert.h>

#include "etcd/core/kv_operation_int.h"

static bool is_dir(struct span path)
{
    return path.n && path.p[path.n - 1] == '/';
}

int kv_operation_v2_encode(const struct kv_operation *a, struct etcd_msg *m)
{
    struct etcd2_request req = { .key = a->path };

    switch (a->kind) {
    case KV_OPERATION_GET:
    case KV_OPERATION_LIST:
        req.quorum = true;
        break;
    case KV_OPERATION_PUT:
        if (a->checking) {
            req.quorum = true;
            break;
        }
        req.verb = ETCD2_PUT;
        req.value = a->value;
        req.ttl_s = a->ttl_s;
        req.prev_exist = a->cond == ETCD_IF_ABSENT ? ETCD2_MUST_NOT_EXIST : ETCD2_ANY;
        req.prev_index = a->cond == ETCD_IF_TOKEN ? a->token : 0;
        break;
    case KV_OPERATION_DELETE:
        req.verb = ETCD2_DELETE;
        req.dir = req.recursive = a->directory;
        break;
    case KV_OPERATION_WAIT:
        req.wait = true;
        req.wait_index = a->revision + 1;
        req.recursive = is_dir(a->path);
        break;
    }
    return etcd2_encode(m, &req);
}

static struct etcd_held held_of(const struct etcd2_reply *r)
{
    assert(r);
    /* A write's answer may carry an older X-Etcd-Index than the write itself. */
    return (struct etcd_held){ .present = true,
                               .value = r->node.value,
                               .token = r->node.modified_index,
                               .revision = MAX_OF(r->index, r->node.modified_index) };
}

/* The answer to a get, or to the read after a put whose condition failed. */
static void on_read(struct kv_operation *a, int *status, const struct etcd2_reply *r,
                    struct etcd_held *held)
{
    if (*status == 0)
        *held = held_of(r);
    else if (*status == MUSTER_ENOENT && r)
        held->revision = r->index;
    else
        return;
    *status = 0;
    /* A put that was repeated may have failed because its first try succeeded. */
    if (a->checking && !(a->unique && held->present && span_eq(held->value, a->value)))
        *status = MUSTER_EEXIST;
}

static bool kv_operation_v2_on_put(struct kv_operation *a, int *status,
                                   const struct etcd2_reply *r, struct etcd_held *held)
{
    if (a->checking) {
        on_read(a, status, r, held);
        return true;
    }
    if (*status == 0) {
        *held = held_of(r);
        return true;
    }
    if (*status == MUSTER_ENOENT && r && a->cond == ETCD_IF_TOKEN) {
        /* The key was deleted or has expired meanwhile: the condition does not hold. */
        held->revision = r->index;
        *status = MUSTER_EEXIST;
        return true;
    }
    a->checking = *status == MUSTER_EEXIST;
    return !a->checking;
}

/* The server sends whole keys; those that are not below our path are skipped. */
static int take_items(struct kv_operation *a, const struct etcd2_reply *r,
                      struct etcd_held *held)
{
    mem_free(a->items);
    a->items = mem_calloc(r->count, sizeof *a->items);
    if (!a->items)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const struct etcd2_node *node = &r->nodes[i];

        if (node->dir || node->key.n <= a->path.n ||
            memcmp(node->key.p, a->path.p, a->path.n) != 0)
            continue;
        a->items[held->count++] =
            (struct etcd_item){ span_of(node->key.p + a->path.n,
                                        node->key.n - a->path.n),
                                node->value, node->modified_index };
    }
    assert(held->count <= r->count);
    held->items = a->items;
    return 0;
}

/* The answer to a delete or a list. A missing key is not a failure. */
static void on_dir(struct kv_operation *a, int *status, const struct etcd2_reply *r,
                   struct etcd_held *held)
{
    if (*status < 0 && (*status != MUSTER_ENOENT || !r))
        return;
    assert(r);
    held->present = *status == 0;
    held->revision = r->index;
    *status = 0;
    if (a->kind == KV_OPERATION_LIST && held->present && r->count)
        *status = take_items(a, r, held);
}

/* A long poll that ends without an event is repeated. If the history that we ask for is
 * gone (MUSTER_ESTATE), the wait ends, so that the caller reads again. */
static bool kv_operation_v2_on_waited(int *status, const struct etcd2_reply *r,
                                      struct etcd_held *held)
{
    if (r)
        held->revision = MAX_OF(r->index, r->node.modified_index);
    if (*status == MUSTER_ESTATE)
        *status = 0;
    return *status != MUSTER_ETIMEDOUT && *status != MUSTER_EHANGUP;
}

bool kv_operation_v2_answer(struct kv_operation *a, int *status,
                            const struct etcd2_reply *r, struct etcd_held *held)
{
    switch (a->kind) {
    case KV_OPERATION_GET:
        on_read(a, status, r, held);
        return true;
    case KV_OPERATION_PUT:
        return kv_operation_v2_on_put(a, status, r, held);
    case KV_OPERATION_DELETE:
    case KV_OPERATION_LIST:
        on_dir(a, status, r, held);
        return true;
    case KV_OPERATION_WAIT:
        return kv_operation_v2_on_waited(status, r, held);
    }
    return true;
}
