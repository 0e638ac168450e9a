/* watch.h - a v3 watch that goes on: across broken connections, silent and dead
 * members, compaction, and a cluster restored to an older revision.
 *
 * on_change comes for each batch of events, in order, none left out; or with NULL when
 * some may have been: then read what is watched again. It may stop the watch. */
#ifndef ETCD_WATCH_H
#define ETCD_WATCH_H

#include "etcd/client.h"

struct etcd_watch;

typedef void (*etcd_watch_cb)(void *ctx, const struct etcd3_reply *events);

/* From start_revision on, or, if that is 0, from now on. key and end are copied; no
 * end: the key alone. only_ends: deletions and expiries alone. The client must outlive
 * the watch. */
int etcd_watch_start(struct etcd_client *c, struct span key, struct span end,
                     bool only_ends, int64_t start_revision, etcd_watch_cb on_change,
                     void *ctx, struct etcd_watch **out, struct muster_error *err);
void etcd_watch_stop(struct etcd_watch *w); /* NULL is fine */

#endif
