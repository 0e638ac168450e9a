/* status.h - the status of the job, as each agent knows it: the record of the job and
 * what the nodes last reported about themselves. The agent's socket and the page serve
 * it.
 *
 * Nothing happens until the status is asked for. Then the other nodes are asked over
 * the session: at most once a second in a small job, and less often in a large one, so
 * that the coordinator has little work with it. */
#ifndef STATUS_STATUS_H
#define STATUS_STATUS_H

#include <uv.h>

#include "job/session.h"
#include "status/core/job_status.h"
#include "status/local_socket.h"
#include "store/server.h"

struct status;

/* Gets an answer that may take a while. text is borrowed for the call; why is NULL, or
 * says why there is no answer. */
typedef void (*status_lines_cb)(void *ctx, struct span text, const char *why);

struct status_opts {
    uv_loop_t *loop; /* borrowed */
    /* Fills in what this agent knows now: all of *in but record, self, answers and
     * alone. Texts are borrowed until the next call. */
    void (*describe)(void *ctx, struct job_input *in);
    /* Appends the last lines that a worker of this node wrote; nothing if there are
     * none. May be NULL. */
    void (*last_lines)(void *ctx, size_t local_rank, struct buf *out);
    /* Reads the stacks of all ranks and calls cb once, from the loop, with a JSON
     * object. If it returns nonzero it cannot, and cb is not called. May be NULL. */
    int (*stacks)(void *ctx, status_lines_cb cb, void *cb_ctx);
    void *ctx;
};

int status_open(const struct status_opts *opts, struct status **out,
                struct muster_error *err);
void status_close(struct status *s); /* NULL is fine */

/* What the nodes last answered to the question "status". */
struct gathered {
    struct job_answer *answers; /* owned, and so are their workers */
    size_t count;
    struct buf bytes; /* their texts */
    uint64_t at_ms;   /* by clock_mono_ms; 0: never */
};

/* Copies and decodes the answers; one that cannot be decoded counts as missing. */
int gathered_init(struct gathered *g, const struct session_answer *answers,
                  size_t count);
void gathered_fini(struct gathered *g); /* zeroed is fine */

/* What a store of ours has counted, and how many requests a second it gets. */
struct store_status status_of_store(const struct store_server_stats *s,
                                    struct store_rate *rate);

/* From now until status_close the answers are about the whole job: its record is the
 * session's, the other nodes are asked over the session, and this node answers their
 * questions. */
int status_set_session(struct status *s, struct session *session);

/* Answers "status" and "lines" on the agent's socket. */
int status_serve_local(struct status *s, struct local_socket *local);

/* Calls cb when what is known of the other nodes is recent: before it returns if that
 * is so already, else from the loop, within about a second. MUSTER_EFULL if too many
 * callbacks wait. */
int status_when_recent(struct status *s, void (*cb)(void *ctx), void *ctx);
void status_forget(struct status *s, void *ctx); /* drops the callbacks of this ctx */

/* The job as it is known now. Borrows from the status until the loop's next turn. The
 * caller calls job_status_fini. */
int status_now(struct status *s, struct job_status *j);

/* A number that changes with each entry of the record and each answer of the nodes. */
uint64_t status_stamp(const struct status *s);

/* Fetches the last lines that a rank wrote, on whichever node it is. cb is called once,
 * before this returns or from the loop. */
int status_lines(struct status *s, int64_t rank, status_lines_cb cb, void *ctx);

/* Fetches the stacks of all ranks, see status_opts. */
int status_stacks(struct status *s, status_lines_cb cb, void *ctx);

/* Calls cb from the loop whenever something has changed that a viewer should see. There
 * is one such callback; NULL removes it. */
void status_on_change(struct status *s, void (*cb)(void *ctx), void *ctx);
/* The agent calls this when such a change has happened. */
void status_changed(struct status *s);

#endif
