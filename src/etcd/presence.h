/* presence.h - who is there, told by etcd itself: each node has a key under a
 * lease that it keeps alive, and watches those of the others. No clock of any machine
 * is compared with another's. v3. */
#ifndef ETCD_PRESENCE_H
#define ETCD_PRESENCE_H

#include "etcd/kv.h"

struct etcd_presence;

/* A node has ended: its key was taken away, or its lease ran out. */
typedef void (*etcd_gone_cb)(void *ctx, struct span name);

/* dir ends in "/"; name is ours below it. The client must outlive it. */
int etcd_presence_start(const struct etcd_kv *kv, const char *dir, const char *name,
                        uint64_t ttl_s, etcd_gone_cb cb, void *ctx,
                        struct etcd_presence **out, struct muster_error *err);

/* Another name for us from now on. */
int etcd_presence_rename(struct etcd_presence *p, const char *name);

/* Takes our key away, within a second if the cluster answers; then p is gone. */
void etcd_presence_stop(struct etcd_presence *p, void (*cb)(void *ctx), void *ctx);

#endif
