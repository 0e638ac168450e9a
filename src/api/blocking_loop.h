/* bridge.h - a uv loop, and blocking calls into it: what stands between the
 * asynchronous drivers and a caller that wants an answer.
 *
 * The loop has a thread of its own; or, where nothing needs to happen between calls, it
 * is run by turns by those who wait for an answer, which saves each call two changes of
 * thread.
 *
 * It belongs to the process that made it: in a child of fork() every call is refused
 * with MUSTER_EINVAL, and bridge_free does nothing. */
#ifndef API_BLOCKING_LOOP_H
#define API_BLOCKING_LOOP_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct bridge;

/* One call. Lives on the caller's stack until bridge_call() returns. */
struct bridge_job {
    /* On the loop's thread: starts the work. Sooner or later, there or in a callback,
     * somebody calls bridge_done(). */
    void (*begin)(struct bridge_job *job);
    struct bridge *bridge; /* set by bridge_call */
    int status;
    struct muster_error err;
    bool done;               /* under the bridge's lock */
    struct bridge_job *next; /* in its queue */
};

int bridge_new(struct bridge **out, struct muster_error *err);

/* Without a thread: the loop runs while somebody is inside bridge_call or bridge_free,
 * on one of their threads at a time, and rests otherwise. */
int bridge_new_by_turns(struct bridge **out, struct muster_error *err);

uv_loop_t *bridge_loop(struct bridge *b); /* for use on its own thread, from begin() */

/* Any thread but the loop's own. Returns job->status; the error is in job->err. */
int bridge_call(struct bridge *b, struct bridge_job *job);

/* The loop's thread: the caller goes on. err may be NULL. */
void bridge_done(struct bridge_job *job, int status, const struct muster_error *err);

/* Ends the thread when every handle on the loop but our own is closed; waits for it,
 * and before that for those who are still on their way out of bridge_call. Nobody may
 * come in any more. */
void bridge_free(struct bridge *b);

#endif
