/* etcd_ask.c - see etcd_ask.h: making and ending an ask. What goes over the wire is in
 * etcd_ask2.c and etcd_ask3.c. */
#include "etcd/core/kv_operation.h"

#include "base/mem.h"
#include "etcd/core/kv_operation_int.h"

static bool copy(struct span *out, struct span s)
{
    const uint8_t *p = s.n ? s.p : (const uint8_t *)"";

    *out = span_of(mem_memdup(p, s.n + !s.n), s.n); /* never NULL: "" is a value */
    return out->p != NULL;
}

int etcd_ask_init(struct etcd_ask *a, enum etcd_api api, enum etcd_ask_kind kind,
                  struct span path)
{
    *a = (struct etcd_ask){ .api = api, .kind = kind };
    return copy(&a->path, path) ? 0 : MUSTER_ENOMEM;
}

int etcd_ask_init_put(struct etcd_ask *a, enum etcd_api api, const struct etcd_put *put)
{
    if (etcd_ask_init(a, api, ETCD_ASK_PUT, put->path) < 0)
        return MUSTER_ENOMEM;
    a->cond = put->cond;
    a->token = put->token;
    a->ttl_s = put->ttl_s;
    a->lease = put->lease;
    a->unique = put->unique;
    if (copy(&a->value, put->value) && (!put->bell.n || copy(&a->bell, put->bell)))
        return 0;
    etcd_ask_fini(a);
    return MUSTER_ENOMEM;
}

void etcd_ask_fini(struct etcd_ask *a)
{
    if (!a)
        return;
    mem_free((uint8_t *)a->path.p);
    mem_free((uint8_t *)a->value.p);
    mem_free((uint8_t *)a->bell.p);
    mem_free(a->items);
    *a = (struct etcd_ask){ .kind = ETCD_ASK_GET };
}

int etcd_ask_encode(const struct etcd_ask *a, struct etcd_msg *m)
{
    return a->api == ETCD_V2 ? etcd_ask2_encode(a, m) : etcd_ask3_encode(a, m);
}

enum etcd3_expect etcd_ask_expect(const struct etcd_ask *a)
{
    return a->kind == ETCD_ASK_GET || a->kind == ETCD_ASK_LIST ? ETCD3_EXPECT_RANGE
                                                               : ETCD3_EXPECT_TXN;
}

bool etcd_ask_once(const struct etcd_ask *a)
{
    return a->kind == ETCD_ASK_WAIT ||
           (a->kind == ETCD_ASK_PUT && a->cond != ETCD_ALWAYS && !a->unique);
}

bool etcd_ask_answer(struct etcd_ask *a, int *status, const struct etcd_answer *answer,
                     struct etcd_held *held)
{
    *held = (struct etcd_held){ .present = false };
    return a->api == ETCD_V2
               ? etcd_ask2_answer(a, status, answer ? answer->v2 : NULL, held)
               : etcd_ask3_answer(a, status, answer ? answer->v3 : NULL, held);
}
