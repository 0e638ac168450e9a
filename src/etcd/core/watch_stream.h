/* watch_stream.h - a v3 watch across broken streams, silent members, compaction and a
 * cluster that was restored to an older revision: where to begin, what a line means.
 *
 * Pure: etcd/watch.c opens the streams; the simulator opens them on a model. */
#ifndef ETCD_CORE_WATCH_STREAM_H
#define ETCD_CORE_WATCH_STREAM_H

#include "etcd/core/v3_wire.h"

#define ETCD_CREATE_MS 3000u  /* a living member answers a watch at once */
#define ETCD_IDLE_MS   20000u /* a quiet stream may be a dead one: open another */

struct etcd_stream {
    struct span key, end; /* owned; no end: the key alone */
    bool only_ends;       /* deletions and expiries alone */
    int64_t next;         /* revision that we have not seen; 0: from now on */
    bool created;
    unsigned tries; /* without a stream */
};

int etcd_stream_init(struct etcd_stream *s, struct span key, struct span end,
                     bool only_ends, int64_t start_revision); /* copies */
void etcd_stream_fini(struct etcd_stream *s);

/* The request of the next stream, which begins with it. */
int etcd_stream_encode(struct etcd_stream *s, struct etcd_msg *m);

enum etcd_stream_next {
    ETCD_STREAM_ON,     /* the stream goes on */
    ETCD_STREAM_REOPEN, /* of no use any more: another one at once */
    ETCD_STREAM_FAILED, /* another one elsewhere, after a pause */
};

/* What a line, or the end of a stream, means. */
struct etcd_stream_news {
    bool events; /* reply has events, none left out before them */
    bool missed; /* some may have been: read what is watched again */
    int64_t
        went_back; /* the revision that we had seen of a cluster that was restored */
    bool token;    /* our token is not taken any more */
    struct muster_error err; /* FAILED: why */
    struct etcd3_reply reply;
};

/* The caller finishes the news' reply. */
enum etcd_stream_next etcd_stream_line(struct etcd_stream *s, struct span line,
                                       struct etcd_stream_news *out);

/* An answer that is not a stream: FAILED, with why. */
enum etcd_stream_next etcd_stream_ended(const struct etcd_http *http,
                                        struct etcd_stream_news *out);

#endif
