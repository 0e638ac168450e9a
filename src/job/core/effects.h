/* effects.h - what a step of a run wants to be done (run.h). All parts of the run
 * append to the one list of the step. Pure. */
#ifndef JOB_CORE_EFFECTS_H
#define JOB_CORE_EFFECTS_H

#include "job/core/wire.h"

enum run_effect_kind {
    RUN_SEND,     /* msg to the peer */
    RUN_ENTRY,    /* the entry of the record with this number, to all that share it */
    RUN_CATCH_UP, /* every entry above number, to the peer */
    RUN_DROP,     /* close the peer's connection: msg.text says why */
};

struct run_effect {
    enum run_effect_kind kind;
    uint32_t peer;
    uint64_t number;
    struct run_msg msg; /* spans borrowed until the next step */
};

struct run_fx {
    struct run_effect *items; /* owned */
    size_t count, size;
    bool no_memory; /* something could not be done: the run can only be closed */
    char text[512]; /* a text of this step */
};

void run_fx_fini(struct run_fx *fx); /* zeroed is fine, and the beginning */

void run_effect(struct run_fx *fx, struct run_effect e);
/* The same, but before what the step has wanted so far. */
void run_effect_first(struct run_fx *fx, struct run_effect e);
void run_send(struct run_fx *fx, uint32_t peer, struct run_msg msg);
void run_drop(struct run_fx *fx, uint32_t peer, const char *why); /* why is borrowed */

#endif
