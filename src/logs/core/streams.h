/* streams.h - which streams of which local ranks go to files and to the console.
 * Pure. */
#ifndef LOGS_CORE_STREAMS_H
#define LOGS_CORE_STREAMS_H

#include "base/base.h"

/* Which streams: bits. */
enum { STREAM_NONE = 0, STREAM_OUT = 1, STREAM_ERR = 2, STREAM_BOTH = 3 };

/* A value of -r or -t: one for all local ranks, or one each for ranks 0 to 9. */
struct stream_map {
    bool each;
    uint8_t all;
    uint8_t by_rank[10];
};

/* --local-ranks-filter: which local ranks the console shows. */
struct rank_filter {
    bool on;        /* off: all of them */
    int64_t *ranks; /* owned */
    size_t count;
};

/* The streams of one local rank: redirects, or tee (which implies a redirect). */
static inline uint8_t stream_map_get(const struct stream_map *m, int64_t local_rank)
{
    if (!m->each)
        return m->all;
    return local_rank >= 0 && local_rank < (int64_t)ARRAY_LEN(m->by_rank)
               ? m->by_rank[local_rank]
               : STREAM_NONE;
}

static inline bool rank_filter_shows(const struct rank_filter *f, int64_t local_rank)
{
    for (size_t i = 0; f->on && i < f->count; i++)
        if (f->ranks[i] == local_rank)
            return true;
    return !f->on;
}

#endif
