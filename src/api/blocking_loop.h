/* blocking_loop.h - a uv loop, and blocking calls into it: it connects the asynchronous
 * drivers with a caller that waits for the result.
 *
 * The loop has a thread of its own. Where nothing needs to happen between calls, the
 * callers that wait for a result run it by turns instead, which saves each call two
 * changes of thread.
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
    /* Starts the work, on the loop's thread. The work must end with a call of
     * blocking_loop_done(), from here or from a callback. */
    void (*begin)(struct blocking_loop_job *job);
    struct blocking_loop *owner; /* set by blocking_loop_call */
    int status;
    struct muster_error err;
    bool done;                      /* under the lock of its loop */
    struct blocking_loop_job *next; /* in its queue */
};

/* by_turns: without a thread. The loop runs only while a thread is inside
 * blocking_loop_call or blocking_loop_free, and on one such thread at a time. */
int blocking_loop_new(bool by_turns, struct blocking_loop **out,
                      struct muster_error *err);

/* The loop itself. Only begin() and callbacks on the loop's thread may use it. */
uv_loop_t *blocking_loop_loop(struct blocking_loop *b);

/* Called from any thread but the loop's own. Returns job->status, with the error in
 * err, which may be NULL. */
int blocking_loop_call(struct blocking_loop *b, struct blocking_loop_job *job,
                       struct muster_error *err);

/* Called on the loop's thread: lets the caller of the job continue. err may be NULL. It
 * has the form of our callbacks, with the job as their context. */
void blocking_loop_done(void *job, int status, const struct muster_error *err);

/* The same for work that ends with a callback and cannot fail; job is its context. */
void blocking_loop_done_well(void *job);

/* Waits for callers that are still leaving blocking_loop_call, then for the thread,
 * which ends once every handle on the loop but our own is closed. No new call may
 * come. */
void blocking_loop_free(struct blocking_loop *b);

#endif
