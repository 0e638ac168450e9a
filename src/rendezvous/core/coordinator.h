/* host.h - the rendezvous of one run, owned by whoever hosts the store.
 *
 * Nodes of ours say HELLO, JOIN, LEAVE, CLOSE, ALIVE and are told the outcome: each
 * message costs O(1), a round O(n) in all. Torchrun's nodes see and change the same
 * state through its key: the driver asks for the view when one of them reads, and says
 * when one of them has replaced it. Pure; the driver is rendezvous/coordinator_driver.c, and the
 * simulator plays it too. What always holds:
 *
 *   - the seats are torch's: places, wait list, spares, and the rules by which a node
 *     gets one are those of rendezvous/core/decisions.c, applied to all nodes of ours at once;
 *   - JOIN is answered by exactly one JOINED or REFUSED, unless the node goes first;
 *   - ranks told for a round are 0 .. world - 1, each once, and never change;
 *   - a node of ours is judged by its connection and by the host's own clock alone. */
#ifndef RENDEZVOUS_CORE_COORDINATOR_H
#define RENDEZVOUS_CORE_COORDINATOR_H

#include "base/base.h"
#include "base/buf.h"
#include "base/trace.h"
#include "muster/error.h"
#include "rendezvous/core/coordinator_wire.h"

struct rdzv_host;

/* run_id is copied; trace is borrowed and may be NULL. NULL: out of memory. */
struct rdzv_host *rdzv_host_new(struct span run_id, const struct trace *trace);
void rdzv_host_free(struct rdzv_host *h); /* NULL is fine */

enum rdzv_host_event_kind {
    RDZV_HOST_MSG,  /* a peer says msg; its first must be a HELLO for this run */
    RDZV_HOST_GONE, /* a peer's connection is gone */
    RDZV_HOST_SEEN, /* somebody else has replaced the state: value, as stored */
    RDZV_HOST_TIMER,
};

struct rdzv_host_event {
    enum rdzv_host_event_kind kind;
    struct now now;
    uint32_t peer;
    const struct hosted_msg *msg; /* borrowed for the step */
    struct span value;            /* base64 of a pickle, or torch's "no state" */
};

enum rdzv_host_effect_kind {
    RDZV_HOST_SEND, /* msg to the peer */
    RDZV_HOST_DROP, /* close the peer's connection: msg.text says why */
};

struct rdzv_host_effect {
    enum rdzv_host_effect_kind kind;
    uint32_t peer;
    struct hosted_msg msg; /* spans borrowed until the next step */
};

struct rdzv_host_fx {
    struct rdzv_host_effect *items; /* owned */
    size_t count, size;
    char text[512]; /* what LOST, REFUSED and DROP say */
};

void rdzv_host_fx_init(struct rdzv_host_fx *fx); /* cannot fail */
void rdzv_host_fx_fini(struct rdzv_host_fx *fx); /* NULL and zeroed are fine */

/* Returns 0 with the effects in fx (those of the step before are gone), or
 * MUSTER_ENOMEM with nothing changed. A SEEN that cannot be read returns MUSTER_ESTATE
 * and changes nothing: the host's own state stands and overwrites it. */
int rdzv_host_step(struct rdzv_host *h, const struct rdzv_host_event *ev,
                   struct rdzv_host_fx *fx, struct muster_error *err);

/* When to send TIMER, by mono_ms; MONO_NEVER if nothing is due. */
uint64_t rdzv_host_deadline(const struct rdzv_host *h);

/* Whether the view should be encoded anew before somebody looks at the key: the state
 * has changed, or, with aged, the heartbeats in it are getting old. Cheap. */
bool rdzv_host_stale(const struct rdzv_host *h, struct now now, bool aged);

/* The state as torchrun's nodes read it, encoded now; borrowed until the next call. 0,
 * or MUSTER_ENOMEM. */
int rdzv_host_view(struct rdzv_host *h, struct now now, struct span *text);

/* The view last encoded or seen: empty if there was none. */
struct span rdzv_host_last_view(const struct rdzv_host *h);

/* For messages, tests and the simulator. */
size_t rdzv_host_nodes(const struct rdzv_host *h); /* of ours, connected or in grace */
int64_t rdzv_host_round(const struct rdzv_host *h);
bool rdzv_host_closed(const struct rdzv_host *h);
bool rdzv_host_over(const struct rdzv_host *h); /* closed, or nobody is in it */

#endif
