/* hub.h - the coordinator of a job. It numbers the entries of the job's record and
 * passes them on, gathers answers to questions, compares clocks, and judges failures.
 * There is one for each run id in a store server (job/run_driver.c), or one inside
 * the agent of a job of one node. Pure. What always holds:
 *
 *   - numbers of entries only grow, and every agent gets the same entries;
 *   - a round in which a worker failed ends with exactly one RESTART or VERDICT, within
 *     HUB_JUDGE_US of the first failure;
 *   - restarts are counted once a round, however many workers fail in it, and a lost
 *     node does not count. */
#ifndef JOB_CORE_HUB_H
#define JOB_CORE_HUB_H

#include "base/trace.h"
#include "job/core/job_wire.h"
#include "job/core/record.h"
#include "job/core/sessions.h"

#define HUB_JUDGE_US  2000000u /* from the first failure to the verdict, at most */
#define HUB_PING_US   5000000u /* between two PINGs to a node */
#define HUB_ANSWER_US 1000000u /* a PING unanswered for longer may mean a lost node */
#define HUB_GATHER_US 2000000u /* a round is recorded then, even without some nodes */
#define HUB_ASKS      16u      /* questions under way at once */
#define HUB_NODES     65536u

/* At most so many nodes get a question or a PING in one step. The store serves its
 * other clients until the next step. */
#define HUB_SLICE    256u
#define HUB_SLICE_US 2000u

struct hub;

/* run_id is copied, the table of nodes borrowed. NULL: out of memory. */
struct hub *hub_new(struct span run_id, struct sessions *sessions,
                    const struct trace *trace);
void hub_free(struct hub *h); /* NULL is fine */

enum hub_event_kind {
    HUB_MSG,  /* a peer says msg; its first must be ATTACH */
    HUB_GONE, /* its connection is gone */
    HUB_TIMER,
};

struct hub_event {
    enum hub_event_kind kind;
    struct run_now now;
    uint32_t peer;
    const struct job_msg *msg; /* borrowed for the step */
};

enum hub_effect_kind {
    HUB_SEND,     /* msg to the peer */
    HUB_ENTRY,    /* the entry with this number, to everybody who is attached */
    HUB_CATCH_UP, /* every entry above number, to the peer */
    HUB_DROP,     /* close the peer's connection: msg.bytes says why */
};

struct hub_effect {
    enum hub_effect_kind kind;
    uint32_t peer;
    uint64_t number;
    struct job_msg msg; /* spans borrowed until the next step */
};

struct hub_fx {
    struct hub_effect *items; /* owned */
    size_t count, size;
};

void hub_fx_fini(struct hub_fx *fx); /* NULL and zeroed are fine */

/* Returns 0 with the effects in fx, in place of those of the step before, or
 * MUSTER_ENOMEM with nothing changed and no effects. A TIMER that found no memory is
 * due again a little later. A GONE always succeeds: what follows from it is done by the
 * next TIMER if there is no memory now. */
int hub_step(struct hub *h, const struct hub_event *ev, struct hub_fx *fx);

/* When to send TIMER, by mono_us; MONO_NEVER if nothing is due. */
uint64_t hub_deadline(const struct hub *h);

const struct record *hub_record(const struct hub *h);

/* Each attached peer: for (size_t i = 0; hub_next_peer(h, &i, &peer);) ... */
bool hub_next_peer(const struct hub *h, size_t *i, uint32_t *peer);

size_t hub_peers(const struct hub *h); /* how many are attached */

#endif
