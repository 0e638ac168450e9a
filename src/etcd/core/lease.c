/* lease.c - see lease.h. A keep-alive is due four times in a lease's life, and each
 * can be tried at several endpoints before the next is due. So a cluster that is away
 * for half of that life, to elect a leader for instance, costs no node its workers. */
#include "etcd/core/lease.h"

#include <assert.h>

#define GRANT_MS      2000u  /* for the first grant; then the failure is reported */
#define GRANT_MOST_MS 10000u /* Each grant may take longer: etcd may be slow. */
#define PAUSE_MS      500u   /* after a grant that failed */
#define LATE_MS       200u   /* after a keep-alive that failed */

static uint64_t interval_ms(const struct lease_grant *g)
{
    return g->ttl_ms / 4;
}

void lease_grant_init(struct lease_grant *g, uint64_t ttl_s, uint64_t seed)
{
    assert(ttl_s > 0);
    *g = (struct lease_grant){ .ttl_ms = ttl_s * 1000 };
    rng_init(&g->rng, seed);
    fence_init(&g->fence, g->ttl_ms, interval_ms(g));
}

int lease_grant_encode(struct lease_grant *g, struct etcd_msg *m)
{
    if (g->id)
        return etcd3_encode_keepalive(m, g->id);
    /* We choose the id, and keep it until it is granted, so that a repeated request
     * does not make a second lease. */
    if (!g->asked)
        g->asked = (int64_t)(rng_u64(&g->rng) >> 1 | 1);
    return etcd3_encode_grant(m, g->asked, (int64_t)(g->ttl_ms / 1000));
}

void lease_grant_sent(struct lease_grant *g, uint64_t now_ms)
{
    fence_sent(&g->fence, now_ms);
}

uint64_t lease_grant_timeout_ms(const struct lease_grant *g)
{
    if (g->id)
        return g->ttl_ms / 2;
    return MIN_OF(g->ttl_ms, MIN_OF(GRANT_MS << MIN_OF(g->failed, 4u), GRANT_MOST_MS));
}

uint64_t lease_grant_attempt_ms(const struct lease_grant *g)
{
    const uint64_t ms = MIN_OF(MAX_OF(g->ttl_ms / 6, 500u), 3000u);

    return g->id ? ms : MAX_OF(ms, lease_grant_timeout_ms(g) / 2);
}

static enum lease_grant_outcome on_grant(struct lease_grant *g, int status,
                                         uint64_t *pause_ms)
{
    /* "Already exists" means that an earlier try did reach a server. That may have been
     * long ago, so a keep-alive is due at once. */
    if (status == 0 || status == MUSTER_EEXIST) {
        assert(g->asked != 0);
        g->id = g->asked;
        g->asked = 0;
        g->failed = 0;
        fence_answered(&g->fence); /* counts from the first try */
        *pause_ms = status == 0 ? interval_ms(g) : 0;
        return ETCD_GRANT_NEW;
    }
    g->failed++;
    *pause_ms = PAUSE_MS;
    return ETCD_GRANT_NONE;
}

enum lease_grant_outcome lease_grant_answer(struct lease_grant *g, int status,
                                            const struct etcd_answer *answer,
                                            uint64_t *pause_ms)
{
    if (!g->id)
        return on_grant(g, status, pause_ms);
    if (status < 0) {
        fence_unanswered(&g->fence);
        *pause_ms = LATE_MS;
        return ETCD_GRANT_LATE;
    }
    assert(answer && answer->v3);
    if (answer->v3->lease_ttl <= 0) {
        g->id = 0;
        fence_init(&g->fence, g->ttl_ms, interval_ms(g));
        *pause_ms = 0;
        return ETCD_GRANT_RAN_OUT;
    }
    fence_answered(&g->fence);
    *pause_ms = interval_ms(g);
    return ETCD_GRANT_KEPT;
}
