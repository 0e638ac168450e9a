/* gather.h - the nodes of a round tell each other one text each, through the round's
 * store: each writes its own under prefix + rank and reads all. Pure;
 * store/dialogue_driver.c runs it. */
#ifndef STORE_CORE_GATHER_H
#define STORE_CORE_GATHER_H

#include "base/text_list.h"
#include "store/core/dialogue.h"

/* As in a rank exchange: whoever lost its connection for so long may find another
 * store, which has never heard of the others. */
#define GATHER_PATIENCE_MS 5000u

struct gather {
    struct store_dialogue dialogue; /* first */
    /* Set by the caller: */
    char prefix[DIALOGUE_KEY - 24];
    int64_t rank, world;
    struct span text;    /* borrowed; no NUL in it */
    uint64_t timeout_ms; /* MONO_NEVER: none */
    bool can_rejoin;     /* REJOIN rather than wait for a store that is gone */
    const char *what;    /* for messages: "agreeing on addresses" */
    /* The outcome, in the order of ranks: */
    struct text_list texts; /* owned */
};

/* Ends with DONE, FAILED or REJOIN. A dialogue_step. */
int gather_step(struct store_dialogue *t, const struct dialogue_event *ev,
                struct dialogue_fx *fx);

void gather_fini(struct gather *g); /* zeroed is fine */

#endif
