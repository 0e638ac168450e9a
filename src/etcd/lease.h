/* lease.h - a v3 lease kept alive for as long as this process lives: what is
 * written under it goes away soon after we do.
 *
 * If the lease runs out all the same (the cluster was away, this machine slept), a new
 * one is asked for, and on_granted comes again: write what hangs on it again. */
#ifndef ETCD_LEASE_H
#define ETCD_LEASE_H

#include "etcd/client.h"

struct etcd_lease;

typedef void (*etcd_lease_cb)(void *ctx, int64_t id);
typedef void (*etcd_lease_failed_cb)(void *ctx, const struct muster_error *err);
typedef void (*etcd_lease_gone_cb)(void *ctx);

/* on_failed comes for each grant that failed; we try again by ourselves. The client
 * must outlive the lease. */
int etcd_lease_start(struct etcd_client *c, uint64_t ttl_s, uint64_t seed,
                     etcd_lease_cb on_granted, etcd_lease_failed_cb on_failed,
                     void *ctx, struct etcd_lease **out, struct muster_error *err);
int64_t etcd_lease_id(const struct etcd_lease *l); /* 0: none at present */

/* A write under it was refused: ask now whether it is still there, not at the next
 * beat. */
void etcd_lease_check(struct etcd_lease *l);

/* Gives the lease back, so that its keys go at once; waits for the server at most
 * timeout_ms, then calls cb, which may be NULL; l is gone by then. NULL is fine if cb
 * is NULL. */
void etcd_lease_stop(struct etcd_lease *l, uint64_t timeout_ms, etcd_lease_gone_cb cb,
                     void *ctx);

/* Without giving it back, at once: the client is about to be closed. */
void etcd_lease_drop(struct etcd_lease *l);

#endif
