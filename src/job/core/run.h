/* run.h - one run of a job, as its host knows it: there is one for each run id in a
 * store server (job/run_driver.c), and one inside the agent of a job of one node
 * (job/channel.c). Pure.
 *
 *   agent --line for seats---.
 *                             >--> run --- sessions   who is connected, away, lost
 *   agent --line for record--'          |- seats      who has which place and rank
 *                                       |- record     entries, judge, questions, clocks
 *                                       '- view       torch's state, for torchrun's
 * nodes
 *
 * All parts stand over one table of nodes (sessions.h), on one clock, and one step
 * serves them: what happens to a node, above all its loss, happens to all parts in the
 * same step. A part is made when the first node asks for it. On static and etcd, where
 * nodes find their places by other means, there are no seats.
 *
 * Who sends what. The first message on a connection says which run and which node it
 * is, and which part it is for; later ones belong to that node. seats   HELLO, then
 * JOIN, LEAVE, CLOSE, ALIVE; answered by WELCOME, JOINED, REFUSED, LEFT, CLOSED, and
 * told GATHERED, SPARE, WAITING, LOST, EVICTED record  ATTACH, then PUBLISH, RANKS,
 * REPORTED, MOVED, PHASE, ASK, ANSWER, ...; answered by ATTACHED, and told each ENTRY
 * of the record Both are to travel over one connection one day, and HELLO and ATTACH to
 * be one message; nothing in here depends on their being two, except for the two lines
 * of a session.
 *
 * The life of a run. Nodes come (HELLO) and ask for a place (JOIN). When enough have
 * come, all are told their ranks: they are seated, and not yet started, until each has
 * told the record its workers' ranks (RANKS). A worker that fails is published and
 * judged once for the round (judge.h), and one RESTART or VERDICT follows. A node that
 * asks for the next round ends the current one for all. CLOSE ends the run.
 *
 * What a loss does: sessions.h decides it. The record names the node first, in a LOST
 * entry; then its place is given away and the members of the round are told LOST, so
 * that they know whom to blame when they leave the round.
 *
 * Out of memory, a message changes nothing and returns MUSTER_ENOMEM; the driver drops
 * the peer, which comes back and says again what had no answer. Whatever time or a lost
 * connection leads to is tried again a little later. */
#ifndef JOB_CORE_RUN_H
#define JOB_CORE_RUN_H

#include "job/core/coordinator.h"
#include "job/core/hub.h"

struct run;

/* run_id is copied; trace is borrowed and may be NULL. NULL: out of memory. */
struct run *run_new(struct span run_id, const struct trace *trace);
void run_free(struct run *r); /* NULL is fine */

enum run_event_kind {
    RUN_SEATS,  /* a peer says `seats`; its first must be HELLO */
    RUN_RECORD, /* a peer says `record`; its first must be ATTACH */
    RUN_GONE,   /* a peer's connection is gone */
    RUN_SEEN,   /* a torchrun node has replaced the state: value, as stored */
    RUN_TIMER,
};

struct run_event {
    enum run_event_kind kind;
    struct run_now now;
    uint32_t peer;
    bool hung_up; /* GONE: the node closed the connection itself, it seems */
    const struct coord_msg *seats; /* borrowed for the step, as are the others */
    const struct job_msg *record;
    struct span value;
};

/* What the parts want to be done: first what `record` says, then what `seats` says. */
struct run_fx {
    struct hub_fx record;
    struct coordinator_fx seats;
};

void run_fx_fini(struct run_fx *fx); /* zeroed is fine, and the beginning */

/* Returns 0 with the effects in fx, or MUSTER_ENOMEM; or MUSTER_ESTATE for a SEEN that
 * cannot be read, which changes nothing. */
int run_step(struct run *r, const struct run_event *ev, struct run_fx *fx,
             struct muster_error *err);

/* When to send TIMER, by mono_us; MONO_NEVER if nothing is due. */
uint64_t run_deadline(const struct run *r);

/* The parts, for what can be asked of them; NULL if nobody has needed them yet. */
struct coordinator *run_seats(const struct run *r);
const struct hub *run_record(const struct run *r);

#endif
