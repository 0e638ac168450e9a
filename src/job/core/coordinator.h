/* coordinator.h - the rendezvous of one run, owned by the host: the machine that serves
 * the store.
 *
 * Nodes of ours say HELLO, JOIN, LEAVE, CLOSE and ALIVE and are told the outcome: each
 * message costs O(1), a round O(n) in all. Torchrun's nodes see and change the same
 * state through its key: the driver asks for the view when one of them reads, and
 * reports when one of them has replaced it. Pure; the driver is
 * job/run_driver.c, and the simulator runs it too. What always holds:
 *
 *   - the seats are torch's (places, wait list, spares), and a node gets one by the
 * rules of rendezvous/core/decisions.c, applied to all nodes of ours at once;
 *   - JOIN is answered by exactly one JOINED or REFUSED, unless the node goes away
 * first;
 *   - the ranks told for a round are 0 .. world - 1, each once, and never change;
 *   - a node of ours is judged by its connection and by the host's own clock alone. */
#ifndef JOB_CORE_COORDINATOR_H
#define JOB_CORE_COORDINATOR_H

#include "base/base.h"
#include "base/buf.h"
#include "base/trace.h"
#include "muster/error.h"
#include "rendezvous/core/coordinator_wire.h"

struct coordinator;
struct sessions;

/* run_id is copied; the table of nodes and trace are borrowed, and trace may be NULL.
 * NULL: out of memory. */
struct coordinator *coordinator_new(struct span run_id, struct sessions *sessions,
                                    const struct trace *trace);
void coordinator_free(struct coordinator *c); /* NULL is fine */

enum coordinator_event_kind {
    COORDINATOR_MSG,  /* a peer sent msg; its first must be a HELLO for this run */
    COORDINATOR_GONE, /* a peer's connection is gone */
    COORDINATOR_SEEN, /* a torchrun node has replaced the state: value, as stored */
    COORDINATOR_TIMER,
};

struct coordinator_event {
    enum coordinator_event_kind kind;
    struct now now;
    uint32_t peer;
    bool hung_up; /* GONE: the node closed the connection itself, it seems */
    const struct coord_msg *msg; /* borrowed for the step */
    struct span value;           /* base64 of a pickle, or torch's "no state" */
};

enum coordinator_effect_kind {
    COORDINATOR_SEND, /* msg to the peer */
    COORDINATOR_DROP, /* close the peer's connection: msg.text says why */
};

struct coordinator_effect {
    enum coordinator_effect_kind kind;
    uint32_t peer;
    struct coord_msg msg; /* spans borrowed until the next step */
};

struct coordinator_fx {
    struct coordinator_effect *items; /* owned */
    size_t count, size;
    char text[512]; /* the text of LOST, REFUSED and DROP */
};

void coordinator_fx_init(struct coordinator_fx *fx); /* cannot fail */
void coordinator_fx_fini(struct coordinator_fx *fx); /* NULL and zeroed are fine */

/* Returns 0 with the effects in fx (those of the last step are gone), or MUSTER_ENOMEM
 * with nothing changed. A SEEN that cannot be read returns MUSTER_ESTATE and changes
 * nothing: the host keeps its own state and overwrites the unreadable one. */
int coordinator_step(struct coordinator *c, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, struct muster_error *err);

/* When to send TIMER, by mono_ms; MONO_NEVER if nothing is due. */
uint64_t coordinator_deadline(const struct coordinator *c);

/* Whether the view should be encoded again before a node reads the key: the state has
 * changed, or, with aged, the heartbeats in it are getting old. Cheap. */
bool coordinator_stale(const struct coordinator *c, struct now now, bool aged);

/* The state as torchrun's nodes read it, encoded now; borrowed until the next call.
 * Returns 0 or MUSTER_ENOMEM. */
int coordinator_view(struct coordinator *c, struct now now, struct span *text);

/* The view that was last encoded or seen; empty if there was none. */
struct span coordinator_last_view(const struct coordinator *c);

/* For messages, tests and the simulator. */
size_t
coordinator_nodes(const struct coordinator *
                      c); /* nodes of ours that are connected, or may still come back */
int64_t coordinator_round(const struct coordinator *c);
bool coordinator_closed(const struct coordinator *c);
bool coordinator_over(const struct coordinator *c); /* closed, or without a node */

/* A node whose connection broke before it knew that the run has ended may come back
 * until this time, and would take a host that is gone by then for one that failed. 0:
 * there is no such node. */
uint64_t coordinator_awaits_until_ms(const struct coordinator *c);

#endif
