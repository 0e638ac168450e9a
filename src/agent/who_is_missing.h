/* who_is_missing.h - who of the group has come so far, asked of the round's store while
 * the agent waits there for all of them.
 *
 * A call that waits has its connection to itself, so this has another. It is made when
 * somebody asks: a group that is there at once costs nothing. */
#ifndef AGENT_WHO_IS_MISSING_H
#define AGENT_WHO_IS_MISSING_H

#include "agent/core/missing_ranks.h"
#include "store/async_store.h"

enum missing_at {
    MISSING_AT_START, /* which nodes have told of their workers */
    MISSING_AT_END,   /* how many nodes are done */
};

struct who_is_missing;

/* What is known so far; done is 0 until it is. Borrowed until it is closed. */
struct missing_seen {
    const struct missing_ranks *ranks; /* MISSING_AT_START; NULL: nothing yet */
    int64_t done;                      /* MISSING_AT_END */
};

/* own_rank counts as present. notify(ctx) comes from the loop at the end of each round
 * of questions, also of one that failed. NULL: out of memory, or the store has no
 * second connection for us. */
struct who_is_missing *who_is_missing_open(struct async_store *store,
                                           enum missing_at at, int64_t world,
                                           int64_t own_rank, void (*notify)(void *ctx),
                                           void *ctx);

/* False if the last round of questions is still under way, or this one could not be
 * begun. */
bool who_is_missing_ask(struct who_is_missing *l);

struct missing_seen
who_is_missing_seen(const struct who_is_missing *l); /* NULL is fine: nothing */

/* notify() does not come any more. To be called before the store's handler goes. NULL
 * is fine. */
void who_is_missing_close(struct who_is_missing *l);

#endif
