/* roll_call.h - who of the group has come so far, asked of the round's store while the
 * agent waits there for all of them.
 *
 * A call that waits has its connection to itself, so this has another. It is made when
 * somebody asks: a group that is there at once costs nothing. */
#ifndef AGENT_ROLL_CALL_H
#define AGENT_ROLL_CALL_H

#include "agent/core/roll_call.h"
#include "store/async_store.h"

enum roll_kind {
    ROLL_OF_RANKS, /* which nodes have told of their workers */
    ROLL_OF_DONE,  /* how many nodes are done */
};

struct roll_caller;

/* What is known so far; done is 0 until it is. Borrowed until it is closed. */
struct roll_seen {
    const struct roll_call *roll; /* ROLL_OF_RANKS; NULL: nothing yet */
    int64_t done;                 /* ROLL_OF_DONE */
};

/* own_rank counts as present. notify(ctx) comes from the loop at the end of each round
 * of questions, also of one that failed. NULL: out of memory, or the store has no
 * second connection for us. */
struct roll_caller *roll_caller_open(struct async_store *store, enum roll_kind at,
                                     int64_t world, int64_t own_rank,
                                     void (*notify)(void *ctx), void *ctx);

/* False if the last round of questions is still under way, or this one could not be
 * begun. */
bool roll_caller_ask(struct roll_caller *l);

struct roll_seen
roll_caller_seen(const struct roll_caller *l); /* NULL is fine: nothing */

/* notify() does not come any more. To be called before the store's handler goes. NULL
 * is fine. */
void roll_caller_close(struct roll_caller *l);

#endif
