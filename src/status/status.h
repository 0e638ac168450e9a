/* status.h - the answer to "how is the job?", kept by each agent: the record of the job
 * and what the nodes last told of themselves. The agent's socket and the page ask it.
 *
 * Nothing happens until somebody asks. Then the other nodes are asked, over the job
 * channel, at most once in a while: once a second in a small job, and so seldom in a
 * large one that the coordinator does not feel it. */
#ifndef STATUS_STATUS_H
#define STATUS_STATUS_H

#include <uv.h>

#include "record/channel.h"
#include "status/core/job_status.h"
#include "status/local_socket.h"

struct status;

/* An answer that may take a while. text is borrowed for the call; why is NULL, or says
 * why there is none. */
typedef void (*status_lines_cb)(void *ctx, struct span text, const char *why);

struct status_opts {
    uv_loop_t *loop; /* borrowed */
    /* Fills in what this agent knows now: all of *in but record, self, answers and
     * alone. Texts are borrowed until the next call. */
    void (*describe)(void *ctx, struct job_input *in);
    /* The last lines of a worker of this node, for people; empty: there are none. May
     * be NULL. */
    void (*last_lines)(void *ctx, size_t local_rank, struct buf *out);
    /* Reads the stacks of all ranks and calls back once, from the loop, with a JSON
     * object; nonzero: it cannot, and cb does not come. May be NULL. */
    int (*stacks)(void *ctx, status_lines_cb cb, void *cb_ctx);
    void *ctx;
};

int status_open(const struct status_opts *opts, struct status **out,
                struct muster_error *err);
void status_close(struct status *s); /* NULL is fine */

/* From now on the answers are about the whole job: its record is the channel's, and the
 * other nodes are asked over it, as this one is. Until status_close. */
int status_set_channel(struct status *s, struct channel *channel);

/* Answers "status" and "lines" on the agent's socket. */
int status_serve_local(struct status *s, struct local_socket *local);

/* Calls cb when what is known of the other nodes is recent: at once, from within, if it
 * is, else from the loop, within about a second. MUSTER_EFULL: too many wait. */
int status_when_recent(struct status *s, void (*cb)(void *ctx), void *ctx);
void status_forget(struct status *s, void *ctx); /* cb of this ctx does not come */

/* The job as it is known now. Borrows from the status until the loop's next turn. The
 * caller calls job_status_fini. */
int status_now(struct status *s, struct job_status *j);

/* Grows with each entry of the record, and when the other nodes have told anew. */
uint64_t status_stamp(const struct status *s);

/* The last lines that a rank wrote, wherever it is. cb comes once, from within or from
 * the loop. */
int status_lines(struct status *s, int64_t rank, status_lines_cb cb, void *ctx);

/* The stacks of all ranks, see status_opts. */
int status_stacks(struct status *s, status_lines_cb cb, void *ctx);

/* Calls cb from the loop whenever something changed that a viewer should see; one
 * listener. NULL: nobody listens. */
void status_on_change(struct status *s, void (*cb)(void *ctx), void *ctx);
void status_changed(struct status *s); /* the agent says so */

#endif
