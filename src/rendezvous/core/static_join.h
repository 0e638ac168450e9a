/* static_join.h - how the nodes of a static rendezvous wait for each other. Like
 * torch's TCPStore with a world size, each node adds 1 to the key "init/" (without the
 * slash that other keys get), and rank 0 waits until all have done so. Pure;
 * rendezvous/static.c drives it.
 *
 * An ADD whose answer was lost may have been counted or not, and the server may be a
 * new one by the time we try again. So each node writes a token of its own along with
 * it: a node that finds its token has been counted. */
#ifndef RENDEZVOUS_CORE_STATIC_JOIN_H
#define RENDEZVOUS_CORE_STATIC_JOIN_H

#include "store/core/dialogue.h"

#define STATIC_JOIN_KEY "init/"

enum static_join_stage {
    STATIC_JOIN_LOOK, /* is our token there? */
    STATIC_JOIN_ADD,  /* count ourselves */
    STATIC_JOIN_READ, /* how many are there by now? */
    STATIC_JOIN_WAIT, /* rank 0: wait until there are more */
};

struct static_join {
    struct store_dialogue dialogue; /* first */
    /* Set by the caller: */
    int64_t rank, world;
    uint64_t timeout_ms;
    char token[64]; /* a key of our own */
    bool tried;     /* an earlier attempt may have written the token */
    /* The machine's own: */
    enum static_join_stage stage;
    int64_t here; /* how many have counted in, as last seen; 0: not even we have */
};

/* Ends with DONE or FAILED. A dialogue_step. */
int static_join_step(struct store_dialogue *t, const struct dialogue_event *ev,
                     struct dialogue_fx *fx);

#endif
