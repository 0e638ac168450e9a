/* roll_call.h - who of the group has come so far, asked of the round's store while the
 * agent waits there for all of them.
 *
 * A call that waits has its connection to itself, so this has another. It is made when
 * somebody asks: a group that is there at once costs nothing. */
#ifndef AGENT_ROLL_CALL_H
#define AGENT_ROLL_CALL_H

#include "agent/core/roll_call.h"
#include "store/async_store.h"

enum look_at {
    LOOK_AT_RANKS, /* which nodes have told of their workers */
    LOOK_AT_COUNT, /* how many nodes are done */
};

struct look;

/* What is known so far; done is 0 until it is. Borrowed until the look is closed. */
struct look_seen {
    const struct roll_call *roll; /* LOOK_AT_RANKS; NULL: nothing yet */
    int64_t done;                 /* LOOK_AT_COUNT */
};

/* own_rank has come in any case. told(ctx) comes from the loop at the end of each
 * asking, also of one that failed. NULL: it cannot be. */
struct look *look_open(struct async_store *store, enum look_at at, int64_t world,
                       int64_t own_rank, void (*told)(void *ctx), void *ctx);

/* False if the last asking is still under way, or this one could not be begun. */
bool look_ask(struct look *l);

struct look_seen look_seen(const struct look *l); /* NULL is fine: nothing */

/* told() does not come any more. Before the store's handler goes. NULL is fine. */
void look_close(struct look *l);

#endif
