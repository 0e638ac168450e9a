/* service.h - stacks on demand: of this node's ranks, or of all ranks of the job. The
 * agent has one. Nothing happens, and nothing is kept, until somebody asks. */
#ifndef STACKS_SERVICE_H
#define STACKS_SERVICE_H

#include "job/session.h"
#include "stacks/core/sample.h"
#include "stacks/reader.h"
#include "status/local_socket.h"

struct stacks_service;

struct stacks_service_opts {
    uv_loop_t *loop;
    const char *run_id; /* borrowed, as are the next two */
    const char *node;   /* this node's name; may still change */
    char *const *envp;
    /* Fills in the workers that run here now; returns how many. */
    size_t (*targets)(void *ctx, struct stacks_target *out, size_t most);
    size_t most; /* workers of this node */
    void *ctx;
};

int stacks_service_open(const struct stacks_service_opts *opts,
                        struct stacks_service **out, struct muster_error *err);
void stacks_service_close(struct stacks_service *s); /* NULL is fine */

/* Answers "stacks" on the agent's own socket, */
int stacks_service_local(struct stacks_service *s, struct local_socket *local);
/* and the same question of other nodes. */
int stacks_service_session(struct stacks_service *s, struct session *session);

/* How long a reading may take if nobody says, and at the most. It ends as soon as all
 * is read, which takes a second on a quiet machine; on a crowded one, where a job that
 * hangs is looked at, too short a time costs the frames that tell. */
#define STACKS_WAIT_MS      10000u
#define STACKS_WAIT_MOST_MS 60000u
#define STACKS_TRAVEL_MS    700u /* of another node's answer, beside the reading */

/* What was seen; the caller's to change, but not to keep. */
typedef void (*stacks_cb)(void *ctx, struct stack_sample *sample);

/* Reads the stacks of this node's ranks; where that fails, a note in the sample says
 * so. cb comes once, from the loop, within timeout_ms. */
int stacks_of_node(struct stacks_service *s, enum stacks_depth depth,
                   uint64_t timeout_ms, stacks_cb cb, void *ctx,
                   struct muster_error *err);

/* The same of all nodes, each within timeout_ms. A node that does not answer is told in
 * a note, and so is that other nodes cannot be asked at all. */
int stacks_of_job(struct stacks_service *s, uint64_t timeout_ms, stacks_cb cb,
                  void *ctx, struct muster_error *err);

/* How many readings hold workers for native frames, or have them answer, at the moment:
 * whoever counts how often they are scheduled takes it into account. *count: how often
 * one began or ended so far. */
uint64_t stacks_service_holds(const struct stacks_service *s, uint64_t *count);

#endif
