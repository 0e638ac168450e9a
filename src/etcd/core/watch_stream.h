/* watch_stream.h - decides for a v3 watch where each of its streams begins and what a
 * line means, across broken streams, silent members, compaction and a cluster that was
 * restored to an older revision.
 *
 * Pure: etcd/watch.c opens the streams; the simulator opens them on a model. */
#ifndef ETCD_CORE_WATCH_STREAM_H
#define ETCD_CORE_WATCH_STREAM_H

#include "etcd/core/v3_wire.h"

#define ETCD_CREATE_MS 3000u  /* A member that works answers a watch at once. */
#define ETCD_IDLE_MS   20000u /* A quiet stream may be dead: then open another. */

struct etcd_stream {
    struct span key, end; /* owned; no end: the key alone */
    bool only_ends;       /* only deletions and expiries */
    int64_t next;         /* the first revision that we have not seen; 0: from now on */
    bool created;
    unsigned tries;  /* in a row that led to no stream */
    unsigned behind; /* in a row at a member that does not know what we have seen */
};

int etcd_stream_init(struct etcd_stream *s, struct span key, struct span end,
                     bool only_ends, int64_t start_revision); /* copies */
void etcd_stream_fini(struct etcd_stream *s);

/* Encodes the request of the next stream. */
int etcd_stream_encode(struct etcd_stream *s, struct etcd_msg *m);

enum etcd_stream_next {
    ETCD_STREAM_ON,     /* the stream goes on */
    ETCD_STREAM_REOPEN, /* the stream is over: open another at once */
    ETCD_STREAM_FAILED, /* open another at the next endpoint, after a pause */
};

/* What a line, or the end of a stream, means. */
struct etcd_stream_news {
    bool events;       /* reply has events, without a gap before them */
    bool missed;       /* events may have been missed: read what is watched again */
    int64_t went_back; /* the newest revision that we had seen, if the cluster was
                          restored to an older one; else 0 */
    bool behind;       /* FAILED: the member is behind, which is not worth a warning */
    bool token;        /* our token is not accepted any more */
    struct muster_error err; /* FAILED: why */
    struct etcd3_reply reply;
};

/* The caller calls etcd3_reply_fini(&out->reply). */
enum etcd_stream_next etcd_stream_line(struct etcd_stream *s, struct span line,
                                       struct etcd_stream_news *out);

/* Takes the end of a stream, or an answer that is not one. FAILED, with the reason. */
enum etcd_stream_next etcd_stream_ended(const struct etcd_http *http,
                                        struct etcd_stream_news *out);

#endif
