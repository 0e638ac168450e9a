/* missing_ranks.h - a roll call among the nodes of a group: who has given a sign, who
 * is missing by rank. Pure; agent/missing_ranks.c asks the store. */
#ifndef AGENT_CORE_MISSING_RANKS_H
#define AGENT_CORE_MISSING_RANKS_H

#include "base/buf.h"
#include "muster/error.h"

struct missing_ranks {
    uint8_t *here; /* owned: one for each rank; 1: has come */
    int64_t world, count;
};

int missing_ranks_init(struct missing_ranks *r, int64_t world,
                       struct muster_error *err);
void missing_ranks_fini(struct missing_ranks *r); /* NULL and zeroed are fine */

/* Has come, and stays so. A rank outside of the group is ignored. */
void missing_ranks_mark(struct missing_ranks *r, int64_t rank);

/* The first missing rank from `from` on, or -1. */
int64_t missing_ranks_next(const struct missing_ranks *r, int64_t from);

/* "node rank 2", "node ranks 1, 4-7", "node ranks 1, ... and 12 more"; nothing if none
 * is missing. 0 or MUSTER_ENOMEM. */
int missing_ranks_print(struct buf *b, const struct missing_ranks *r);

#endif
