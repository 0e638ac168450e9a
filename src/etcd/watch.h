/* watch.h - a v3 watch that survives broken connections, silent and dead members,
 * compaction, and a cluster that was restored to an older revision.
 *
 * on_change is called for each batch of events, in order and without gaps. It is called
 * with NULL if events may have been missed: then read what is watched again. It may
 * stop the watch. */
#ifndef ETCD_WATCH_H
#define ETCD_WATCH_H

#include "etcd/client.h"

struct etcd_watch;

typedef void (*etcd_watch_cb)(void *ctx, const struct etcd3_reply *events);

struct etcd_watch_opts {
    struct span key;        /* copied */
    bool below;             /* every key that begins with it, not the key alone */
    bool only_ends;         /* report only deletions and expiries */
    int64_t start_revision; /* 0: from now on */
    etcd_watch_cb on_change;
    void *ctx;
};

/* The client must outlive the watch. */
int etcd_watch_start(struct etcd_client *c, const struct etcd_watch_opts *opts,
                     struct etcd_watch **out, struct muster_error *err);
void etcd_watch_stop(struct etcd_watch *w); /* NULL is fine */

#endif
