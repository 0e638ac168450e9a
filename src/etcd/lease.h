/* lease.h - a v3 lease that is kept alive as long as this process lives: etcd deletes
 * the keys written under it soon after the process has ended.
 *
 * If the lease runs out all the same (the cluster was unreachable, this machine was
 * suspended), we ask for a new one, and on_granted is called again: the keys must then
 * be written again. */
#ifndef ETCD_LEASE_H
#define ETCD_LEASE_H

#include "etcd/client.h"

struct etcd_lease;

typedef void (*etcd_lease_cb)(void *ctx, int64_t id);
typedef void (*etcd_lease_failed_cb)(void *ctx, const struct muster_error *err);
typedef void (*etcd_lease_gone_cb)(void *ctx);
typedef void (*etcd_lease_cut_off_cb)(void *ctx, const char *why);

struct etcd_lease_opts {
    uint64_t ttl_s, seed;
    etcd_lease_cb on_granted;
    /* Called for each grant that failed; the lease tries again by itself. Or NULL. */
    etcd_lease_failed_cb on_failed;
    /* Called when the lease is about to run out, as far as we can know, and at the
     * latest when it has run out: what the others see in the keys under it holds for
     * that long alone. Once for each lease. Or NULL. */
    etcd_lease_cut_off_cb on_cut_off;
    void *ctx;
};

/* The client must outlive the lease. */
int etcd_lease_start(struct etcd_client *c, const struct etcd_lease_opts *opts,
                     struct etcd_lease **out, struct muster_error *err);
int64_t etcd_lease_id(const struct etcd_lease *l); /* 0: none at present */

/* When on_cut_off will come if no keep-alive succeeds from now on, by clock_mono_ms; or
 * MONO_NEVER. */
uint64_t etcd_lease_fence_due(const struct etcd_lease *l);

/* Called when a write under the lease was refused: checks at once whether the lease
 * still exists, instead of at the next keep-alive. */
void etcd_lease_check(struct etcd_lease *l);

/* Revokes the lease, so that its keys are deleted at once; waits for the server at most
 * timeout_ms, then calls cb, which may be NULL, and frees l. l may be NULL if cb is
 * NULL. */
void etcd_lease_stop(struct etcd_lease *l, uint64_t timeout_ms, etcd_lease_gone_cb cb,
                     void *ctx);

/* Ends without revoking the lease, as when the client is about to be closed. */
void etcd_lease_drop(struct etcd_lease *l);

#endif
