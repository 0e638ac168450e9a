/* kv_operation.c - making and ending an operation; see kv_operation.h. Its requests and
 * answers are in kv_operation_v2.c and kv_operation_v3.c. */
#include "etcd/core/kv_operation.h"

#include <assert.h>

#include "base/mem.h"
#include "etcd/core/kv_operation_int.h"

static bool copy(struct span *out, struct span s)
{
    const uint8_t *p = s.n ? s.p : (const uint8_t *)"";

    /* The copy of an empty value must not be NULL, which would stand for no value. */
    *out = span_of(mem_memdup(p, s.n + !s.n), s.n);
    return out->p != NULL;
}

int kv_operation_init(struct kv_operation *a, enum etcd_api api,
                      enum kv_operation_kind kind, struct span path)
{
    assert(path.p || path.n == 0);
    *a = (struct kv_operation){ .api = api, .kind = kind };
    return copy(&a->path, path) ? 0 : MUSTER_ENOMEM;
}

int kv_operation_init_put(struct kv_operation *a, enum etcd_api api,
                          const struct etcd_put *put)
{
    if (kv_operation_init(a, api, KV_OPERATION_PUT, put->path) < 0)
        return MUSTER_ENOMEM;
    a->cond = put->cond;
    a->token = put->token;
    a->ttl_s = put->ttl_s;
    a->lease = put->lease;
    a->unique = put->unique;
    if (copy(&a->value, put->value) &&
        (!put->change_key.n || copy(&a->change_key, put->change_key)))
        return 0;
    kv_operation_fini(a);
    return MUSTER_ENOMEM;
}

void kv_operation_fini(struct kv_operation *a)
{
    if (!a)
        return;
    mem_free((uint8_t *)a->path.p);
    mem_free((uint8_t *)a->value.p);
    mem_free((uint8_t *)a->change_key.p);
    mem_free(a->items);
    *a = (struct kv_operation){ .kind = KV_OPERATION_GET };
}

int kv_operation_encode(const struct kv_operation *a, struct etcd_msg *m)
{
    return a->api == ETCD_V2 ? kv_operation_v2_encode(a, m)
                             : kv_operation_v3_encode(a, m);
}

enum etcd3_expect kv_operation_expect(const struct kv_operation *a)
{
    return a->kind == KV_OPERATION_GET || a->kind == KV_OPERATION_LIST
               ? ETCD3_EXPECT_RANGE
               : ETCD3_EXPECT_TXN;
}

bool kv_operation_once(const struct kv_operation *a)
{
    return a->kind == KV_OPERATION_WAIT ||
           (a->kind == KV_OPERATION_PUT && a->cond != ETCD_ALWAYS && !a->unique);
}

bool kv_operation_answer(struct kv_operation *a, int *status,
                         const struct etcd_answer *answer, struct etcd_held *held)
{
    assert(*status <= 0);
    *held = (struct etcd_held){ .present = false };
    return a->api == ETCD_V2
               ? kv_operation_v2_answer(a, status, answer ? answer->v2 : NULL, held)
               : kv_operation_v3_answer(a, status, answer ? answer->v3 : NULL, held);
}
