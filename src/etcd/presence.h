/* presence.h - lets etcd v3 itself say which nodes are alive: each node has a key under
 * a lease that it keeps alive, and watches the keys of the others. The clocks of two
 * machines are never compared. */
#ifndef ETCD_PRESENCE_H
#define ETCD_PRESENCE_H

#include "etcd/kv.h"

struct etcd_presence;

struct etcd_presence_opts {
    const char *dir;  /* ends in "/" */
    const char *name; /* of our key below it */
    uint64_t ttl_s;
    /* A node has ended: its key was deleted, or its lease ran out. */
    void (*on_gone)(void *ctx, struct span name);
    /* The others may find our key gone soon, or have done so: see lease.h. */
    void (*on_cut_off)(void *ctx, const char *why);
    void *ctx;
};

/* The client must outlive the presence. */
int etcd_presence_start(const struct etcd_kv *kv, const struct etcd_presence_opts *opts,
                        struct etcd_presence **out, struct muster_error *err);

/* As etcd_lease_fence_due(). */
uint64_t etcd_presence_fence_due(const struct etcd_presence *p);

/* Writes our key under another name from now on. */
int etcd_presence_rename(struct etcd_presence *p, const char *name);

/* Deletes our key, if the cluster answers within a second; then frees p and calls cb.
 */
void etcd_presence_stop(struct etcd_presence *p, void (*cb)(void *ctx), void *ctx);

#endif
