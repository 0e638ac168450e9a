/* roll_call.h - a roll call among the nodes of a group: who has given a sign, who is
 * missing by rank. Pure; agent/roll_call.c asks the store. */
#ifndef AGENT_CORE_ROLL_CALL_H
#define AGENT_CORE_ROLL_CALL_H

#include "base/buf.h"
#include "muster/error.h"

struct roll_call {
    uint8_t *here; /* owned: one for each rank; 1: has come */
    int64_t world, count;
};

int roll_call_init(struct roll_call *r, int64_t world, struct muster_error *err);
void roll_call_fini(struct roll_call *r); /* NULL and zeroed are fine */

/* Has come, and stays so. A rank outside of the group is ignored. */
void roll_call_mark(struct roll_call *r, int64_t rank);

/* The first missing rank from `from` on, or -1. */
int64_t roll_call_missing(const struct roll_call *r, int64_t from);

/* "node rank 2", "node ranks 1, 4-7", "node ranks 1, ... and 12 more"; nothing if none
 * is missing. 0 or MUSTER_ENOMEM. */
int roll_call_print(struct buf *b, const struct roll_call *r);

#endif
