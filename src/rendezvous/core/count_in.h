/* count_in.h - how the nodes of a static rendezvous wait for each other. Like torch's
 * TCPStore with a world size, each node adds 1 to the key "init/" (without the slash
 * that other keys get), and rank 0 waits until all have done so. Pure;
 * rendezvous/static.c drives it.
 *
 * An ADD whose answer was lost may have been counted or not, and the server may be a
 * new one by the time we try again. So each node writes a token of its own along with
 * it: a node that finds its token has been counted. */
#ifndef RENDEZVOUS_CORE_COUNT_IN_H
#define RENDEZVOUS_CORE_COUNT_IN_H

#include "store/core/talk.h"

#define COUNT_IN_KEY "init/"

enum count_in_stage {
    COUNT_IN_LOOK, /* is our token there? */
    COUNT_IN_ADD,  /* count ourselves */
    COUNT_IN_READ, /* how many are there by now? */
    COUNT_IN_WAIT, /* rank 0: wait until there are more */
};

struct count_in {
    struct talk talk; /* first */
    /* Set by the caller: */
    int64_t rank, world;
    uint64_t timeout_ms;
    char token[64]; /* a key of our own */
    bool tried;     /* an earlier attempt may have written the token */
    /* The machine's own: */
    enum count_in_stage stage;
    int64_t here; /* how many have counted in, as last seen; 0: not even we have */
};

/* Ends with DONE or FAILED. A talk_step. */
int count_in_step(struct talk *t, const struct talk_event *ev, struct talk_fx *fx);

#endif
