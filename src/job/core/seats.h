/* seats.h - who has which seat in a run: its rendezvous, owned by the host, which is
 * the machine that serves the store. A part of the run (run.h).
 *
 * Nodes of ours say HELLO, JOIN, LEAVE, CLOSE and are told the outcome: each
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
#ifndef JOB_CORE_SEATS_H
#define JOB_CORE_SEATS_H

#include "base/base.h"
#include "base/buf.h"
#include "base/log.h"
#include "job/core/effects.h"
#include "muster/error.h"

struct seats;
struct seat_node;
struct sessions;
struct run_session;

/* run_id is copied; the table of nodes and log are borrowed, and log may be NULL.
 * NULL: out of memory. */
struct seats *seats_new(struct span run_id, struct sessions *sessions,
                        const struct log *log);
void seats_free(struct seats *c); /* NULL is fine */

/* What the run tells its seats. Where there is no memory, fx->no_memory is set or
 * MUSTER_ENOMEM returned, and the run can only be closed. Each call but the first two
 * must come after seats_prepare(). */
int seats_prepare(struct seats *c);

/* Whether a node with this HELLO may take part; else why not. s: the node of that
 * nonce, or NULL. */
int seats_may_join(struct seats *c, const struct run_msg *m,
                   const struct run_session *s, struct muster_error *err);

/* The node is here, for the first time or again. */
int seats_hello(struct seats *c, struct run_session *s, const struct run_msg *m,
                struct now now, struct run_fx *fx);
/* False: the message is not about seats. */
bool seats_message(struct seats *c, struct seat_node *node, const struct run_msg *m,
                   struct now now, struct run_fx *fx);
/* Its connection is gone; a node without a seat is forgotten. Returns until when, by
 * mono_us, it must not be taken for lost. hung_up: it seems to have closed the
 * connection itself. */
uint64_t seats_gone(struct seats *c, struct seat_node *node, bool hung_up,
                    struct now now, struct run_fx *fx);
void seats_lost(struct seats *c, struct seat_node *node, struct now now,
                struct run_fx *fx);
/* Calls cb whenever a round is complete, before its nodes are told. */
void seats_on_round(struct seats *c, void (*cb)(void *ctx, int64_t round), void *ctx);

/* All nodes of the round have ended their workers after a failure, and a restart has
 * been granted. If nothing else has changed, each is told JOINED for the next round,
 * without asking, with the seat that it has; else they have to ask. */
void seats_restart(struct seats *c, int64_t round, struct run_fx *fx);

void seats_timer(struct seats *c, struct now now, struct run_fx *fx);
/* A torchrun node has replaced the state: base64 of a pickle, or torch's "no state".
 * One that cannot be read returns MUSTER_ESTATE and changes nothing: the host keeps its
 * own state and overwrites the unreadable one. */
int seats_seen(struct seats *c, struct span value, struct now now, struct run_fx *fx,
               struct muster_error *err);
void seats_check(const struct seats *c); /* asserts what holds between steps */

/* When to send TIMER, by mono_ms; MONO_NEVER if nothing is due. */
uint64_t seats_deadline(const struct seats *c);

/* Whether the view should be encoded again before a node reads the key: the state has
 * changed, or, with aged, the heartbeats in it are getting old. Cheap. */
bool seats_stale(const struct seats *c, struct now now, bool aged);

/* The state as torchrun's nodes read it, encoded now; borrowed until the next call.
 * Returns 0 or MUSTER_ENOMEM. */
int seats_view(struct seats *c, struct now now, struct span *text);

/* The view that was last encoded or seen; empty if there was none. */
struct span seats_last_view(const struct seats *c);

/* For messages, tests and the simulator. */
size_t seats_nodes(const struct seats *c); /* nodes of ours that are connected, or may
                                              still come back */
int64_t seats_round(const struct seats *c);
bool seats_closed(const struct seats *c);
bool seats_over(const struct seats *c); /* closed, or without a node */

/* A node whose connection broke before it knew that the run has ended may come back
 * until this time, and would take a host that is gone by then for one that failed. 0:
 * there is no such node. */
uint64_t seats_awaits_until_ms(const struct seats *c);

#endif
