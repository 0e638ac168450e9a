/* lease.h - a v3 lease: asked for, kept alive, asked for again when it has run
 * out.
 *
 * Pure: etcd/lease.c sends what it encodes, one request at a time, and waits as long
 * as it says in between; the simulator does the same. */
#ifndef ETCD_CORE_LEASE_H
#define ETCD_CORE_LEASE_H

#include "base/rng.h"
#include "etcd/core/kv_operation.h"

struct lease_grant {
    uint64_t ttl_ms;
    struct rng rng;
    int64_t id;      /* 0: none granted */
    int64_t asked;   /* the id of the grant under way; 0: another is to be chosen */
    unsigned failed; /* grants in a row */
};

void lease_grant_init(struct lease_grant *g, uint64_t ttl_s, uint64_t seed);

/* The request to send now: a beat if we have a lease, else another one is asked for. */
int lease_grant_encode(struct lease_grant *g, struct etcd_msg *m);
uint64_t lease_grant_timeout_ms(const struct lease_grant *g); /* of that request */
uint64_t lease_grant_attempt_ms(const struct lease_grant *g); /* of one try of it */

enum lease_grant_outcome {
    ETCD_GRANT_KEPT,    /* we have the lease as before */
    ETCD_GRANT_NEW,     /* we have one: what hangs on it is to be written */
    ETCD_GRANT_NONE,    /* we have none, and the error says why */
    ETCD_GRANT_RAN_OUT, /* we have none any more: ask for another */
    ETCD_GRANT_LATE,    /* the beat failed: the lease may still be there */
};

/* What came, and in pause_ms when to send the next request. */
enum lease_grant_outcome lease_grant_answer(struct lease_grant *g, int status,
                                            const struct etcd_answer *answer,
                                            uint64_t *pause_ms);

#endif
