/* blocking_loop.h - a uv loop, and blocking calls into it: what stands between the
 * asynchronous drivers and a caller that wants an answer.
 *
 * The loop has a thread of its own; or, where nothing needs to happen between calls, it
 * is run by turns by those who wait for an answer, which saves each call two changes of
 * thread.
 *
 * It belongs to the process that made it: in a child of fork() every call is refused
 * with MUSTER_EINVAL, and blocking_loop_free does nothing. */
#ifndef API_BLOCKING_LOOP_H
#define API_BLOCKING_LOOP_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct blocking_loop;

/* One call. Lives on the caller's stack until blocking_loop_call() returns. */
struct blocking_loop_job {
    /* On the loop's thread: starts the work. Sooner or later, there or in a callback,
     * somebody calls blocking_loop_done(). */
    void (*begin)(struct blocking_loop_job *job);
    struct blocking_loop *owner; /* set by blocking_loop_call */
    int status;
    struct muster_error err;
    bool done;                      /* under the lock of its loop */
    struct blocking_loop_job *next; /* in its queue */
};

int blocking_loop_new(struct blocking_loop **out, struct muster_error *err);

/* Without a thread: the loop runs while somebody is inside blocking_loop_call or
 * blocking_loop_free, on one of their threads at a time, and rests otherwise. */
int blocking_loop_new_by_turns(struct blocking_loop **out, struct muster_error *err);

uv_loop_t *blocking_loop_loop(
    struct blocking_loop *b); /* for use on its own thread, from begin() */

/* Any thread but the loop's own. Returns job->status; the error is in job->err. */
int blocking_loop_call(struct blocking_loop *b, struct blocking_loop_job *job);

/* The loop's thread: the caller goes on. err may be NULL. */
void blocking_loop_done(struct blocking_loop_job *job, int status,
                        const struct muster_error *err);

/* Ends the thread when every handle on the loop but our own is closed; waits for it,
 * and before that for those who are still on their way out of blocking_loop_call.
 * Nobody may come in any more. */
void blocking_loop_free(struct blocking_loop *b);

#endif
