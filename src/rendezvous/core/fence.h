/* fence.h - how long a node may go on as a member of its round without an answer.
 *
 * The others may begin a new world without a node once they have had no sign of life
 * from it for limit_ms: its lease ran out, or its heartbeats stayed away. No worker of
 * the old world may run beside the new one, so the node counts too. It counts from the
 * sending of the last sign of life that was answered, which no other node can have seen
 * earlier, and it is cut off margin_ms before the limit: in what is left its workers
 * are killed.
 *
 * If the time comes, and we notice only after the limit itself has passed, then we have
 * been away ourselves: stopped, or suspended. The others have judged by then, so there
 * is nothing to be gained by judging before asking: we are cut off only if nobody
 * answers for another margin_ms.
 *
 * Pure. Times are mono_ms. A node has one fence for each thing that the others judge it
 * by: etcd/core/lease.c, core/cas_node.c, job/core/session_core.c. */
#ifndef RENDEZVOUS_CORE_FENCE_H
#define RENDEZVOUS_CORE_FENCE_H

#include "base/base.h"

struct fence {
    uint64_t limit_ms, margin_ms;
    uint64_t sent_ms; /* the oldest sign of life without an answer; MONO_NEVER: none */
    uint64_t
        due_ms; /* MONO_NEVER: no sign of life was answered yet, or we are cut off */
    bool asked; /* we have been away, and ask before we judge */
    bool off;   /* due_ms is never set */
};

void fence_init(struct fence *f, uint64_t limit_ms, uint64_t margin_ms);

/* Of heartbeats: the margin is half an interval, and at most 2 s. Where not a single
 * heartbeat may be missed, each one would come too late for a fence: there is none. */
void fence_init_beats(struct fence *f, uint64_t interval_ms, uint64_t dead_after_ms);

/* A sign of life goes out. If an earlier one has no answer yet, the next answer may be
 * the one to that. */
void fence_sent(struct fence *f, uint64_t now_ms);
void fence_answered(struct fence *f);   /* the oldest one that had no answer */
void fence_unanswered(struct fence *f); /* nor will it come: forgets what was sent */

/* This process has been away until now. If the time came meanwhile and the limit has
 * not passed, half of what is left of it is for an answer, and the rest for the
 * workers. */
void fence_absent(struct fence *f, uint64_t now_ms);

/* True once when the time is over, until the next answer. */
bool fence_passed(struct fence *f, uint64_t now_ms);

static inline uint64_t fence_due(const struct fence *f)
{
    return f->due_ms;
}

#endif
