/* lease.h - decides how a v3 lease is asked for, kept alive, and asked for again when
 * it has run out.
 *
 * Pure: etcd/lease.c sends what it encodes, one request at a time, and pauses in
 * between as long as it says; the simulator does the same. */
#ifndef ETCD_CORE_LEASE_H
#define ETCD_CORE_LEASE_H

#include "base/rng.h"
#include "etcd/core/kv_operation.h"
#include "rendezvous/core/fence.h"

struct lease_grant {
    uint64_t ttl_ms;
    struct rng rng;
    int64_t id;      /* 0: none granted */
    int64_t asked;   /* the id of the grant under way; 0: one is still to be chosen */
    unsigned failed; /* how many grants in a row have failed */
    /* When whoever holds the lease is cut off: a keep-alive's interval before the lease
     * runs out, counted from the sending of the last request that etcd granted. */
    struct fence fence;
};

void lease_grant_init(struct lease_grant *g, uint64_t ttl_s, uint64_t seed);

/* Encodes the request to send now: a keep-alive if we have a lease, else a grant. */
int lease_grant_encode(struct lease_grant *g, struct etcd_msg *m);
void lease_grant_sent(struct lease_grant *g, uint64_t now_ms); /* that request */
uint64_t lease_grant_timeout_ms(const struct lease_grant *g);  /* of that request */
uint64_t lease_grant_attempt_ms(const struct lease_grant *g);  /* of one try of it */

enum lease_grant_outcome {
    ETCD_GRANT_KEPT,    /* we still have the lease */
    ETCD_GRANT_NEW,     /* we have a new lease: write the keys under it */
    ETCD_GRANT_NONE,    /* we have none, and the error says why */
    ETCD_GRANT_RAN_OUT, /* we have none any more: ask for another */
    ETCD_GRANT_LATE,    /* the keep-alive failed: the lease may still exist */
};

/* Takes an answer. *pause_ms says when to send the next request. */
enum lease_grant_outcome lease_grant_answer(struct lease_grant *g, int status,
                                            const struct etcd_answer *answer,
                                            uint64_t *pause_ms);

#endif
