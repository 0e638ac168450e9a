/* kv_operation_v3.c - operations on keys by the v3 interface; see kv_operation.h. */
#include "base/mem.h"

#include <assert.h>

#include "etcd/core/kv_operation_int.h"

/* ---- Requests ---- */

static int encode_put(const struct kv_operation *a, struct etcd_msg *m)
{
    const struct etcd3_compare compare = {
        .target = a->cond == ETCD_IF_ABSENT ? ETCD3_CREATE : ETCD3_MOD,
        .key = a->path,
        .revision = a->cond == ETCD_IF_ABSENT ? 0 : (int64_t)a->token,
    };
    const struct etcd3_op yes[] = {
        { .kind = ETCD3_PUT, .key = a->path, .value = a->value, .lease = a->lease },
        { .kind = ETCD3_PUT, .key = a->change_key, .lease = a->lease },
    };
    const struct etcd3_op no = { .kind = ETCD3_RANGE, .key = a->path };
    const struct etcd3_txn txn = { .compare = &compare,
                                   .compare_count = a->cond != ETCD_ALWAYS,
                                   .yes = yes,
                                   .yes_count = a->change_key.n ? 2 : 1,
                                   .no = &no,
                                   .no_count = 1 };

    return etcd3_encode_txn(m, &txn);
}

/* Reads or deletes the key alone, or all keys below it. */
static int encode_range(const struct kv_operation *a, bool below, bool delete,
                        struct etcd_msg *m)
{
    struct etcd3_op op = { .kind = delete ? ETCD3_DELETE : ETCD3_RANGE,
                           .key = a->path };
    const struct etcd3_txn txn = { .yes = &op, .yes_count = 1 };
    struct buf end;
    int rc;

    buf_init(&end, SIZE_MAX);
    rc = below ? etcd3_prefix_end(&end, a->path) : 0;
    op.end = buf_span(&end);
    if (rc == 0)
        rc = delete ? etcd3_encode_txn(m, &txn) : etcd3_encode_range(m, &op);
    buf_fini(&end);
    return rc;
}

int kv_operation_v3_encode(const struct kv_operation *a, struct etcd_msg *m)
{
    switch (a->kind) {
    case KV_OPERATION_GET:
        return encode_range(a, false, false, m);
    case KV_OPERATION_PUT:
        return encode_put(a, m);
    case KV_OPERATION_DELETE:
        return encode_range(a, a->directory, true, m);
    case KV_OPERATION_LIST:
        return encode_range(a, true, false, m);
    case KV_OPERATION_WAIT:
        break; /* A stream does this. */
    }
    return MUSTER_EBUG;
}

/* ---- Answers ---- */

static struct etcd_held held_of(const struct etcd3_reply *r)
{
    const struct etcd3_result *res = r->count ? &r->results[0] : NULL;
    struct etcd_held h = { .revision = (uint64_t)r->revision };

    assert(r->revision >= 0);
    if (res && res->kind == ETCD3_RANGE && res->count) {
        h.present = true;
        h.value = res->kvs[0].value;
        h.token = (uint64_t)res->kvs[0].mod_revision;
    }
    return h;
}

/* If the condition did not hold, the same answer says what is there. */
static int kv_operation_v3_on_put(const struct kv_operation *a,
                                  const struct etcd3_reply *r, struct etcd_held *held)
{
    *held = held_of(r);
    if (r->succeeded) {
        held->present = true;
        held->value = a->value;
        held->token = held->revision;
        return 0;
    }
    /* A put that was repeated may have failed because its first try succeeded. */
    return a->unique && held->present && span_eq(held->value, a->value) ? 0
                                                                        : MUSTER_EEXIST;
}

static int on_list(struct kv_operation *a, const struct etcd3_reply *r,
                   struct etcd_held *held)
{
    const struct etcd3_result *res = r->count ? &r->results[0] : NULL;

    held->revision = (uint64_t)r->revision;
    held->present = res && res->count > 0;
    mem_free(a->items);
    a->items = NULL;
    if (!held->present)
        return 0;
    a->items = mem_calloc(res->count, sizeof *a->items);
    if (!a->items)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < res->count; i++) {
        const struct etcd3_kv *kv = &res->kvs[i];

        if (kv->key.n <= a->path.n || memcmp(kv->key.p, a->path.p, a->path.n) != 0)
            continue;
        a->items[held->count++] =
            (struct etcd_item){ span_of(kv->key.p + a->path.n, kv->key.n - a->path.n),
                                kv->value, (uint64_t)kv->mod_revision };
    }
    assert(held->count <= res->count);
    held->items = a->items;
    return 0;
}

bool kv_operation_v3_answer(struct kv_operation *a, int *status,
                            const struct etcd3_reply *r, struct etcd_held *held)
{
    if (*status < 0)
        return true;
    assert(r);
    switch (a->kind) {
    case KV_OPERATION_GET:
        *held = held_of(r);
        return true;
    case KV_OPERATION_PUT:
        *status = kv_operation_v3_on_put(a, r, held);
        return true;
    case KV_OPERATION_DELETE:
        held->revision = (uint64_t)r->revision;
        held->present = r->count && r->results[0].deleted > 0;
        return true;
    case KV_OPERATION_LIST:
        *status = on_list(a, r, held);
        return true;
    case KV_OPERATION_WAIT:
        break;
    }
    return true;
}
