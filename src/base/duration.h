/* duration.h - lengths of time as people give them to options and read them. */
#ifndef BASE_DURATION_H
#define BASE_DURATION_H

#include "base/buf.h"
#include "muster/error.h"

#define DURATION_MOST_MS (30ull * 86400 * 1000)

/* Reads numbers with ms, s, m, h or d behind each: "90s", "1h30m", "1.5h", at most 30
 * days. A number alone stands for that many `bare_ms`; if that is 0 it is refused,
 * since nobody can tell seconds from minutes, unless it is 0. MUSTER_EINVAL: err says
 * what is wrong with "OPTION=TEXT", and *ms is as it was. */
int duration_parse(const char *option, struct span text, uint64_t bare_ms, uint64_t *ms,
                   struct muster_error *err);

/* "10 min 2 s", "45 s", "1 h 30 min". */
int duration_print(struct buf *out, uint64_t ms);

#endif
