/* run.h - one run of a job, as its host knows it: there is one for each run id in a
 * store server (job/run_driver.c), and one inside the agent of a job of one node
 * (job/session.c). Pure.
 *
 *   node --session--> run --- sessions   who is connected, away, lost
 *                          |- seats      who has which place and rank
 *                          |- recorder   entries, judge, questions, clocks
 *                          '- view       torch's state, for torchrun's nodes
 *
 * All parts stand over one table of nodes (sessions.h), on one clock, and one step
 * serves them: what happens to a node, above all its loss, happens to all parts in the
 * same step. A part is made when the first node asks for it. On static and etcd, where
 * nodes find their places by other means, there are no seats.
 *
 * Who sends what. The first message of a connection is HELLO: which run and which node
 * it is, and which parts it wants (MSG_SEATS, MSG_RECORD). It is answered by WELCOME or
 * REFUSED.
 *   seats     JOIN, LEAVE, CLOSE, STORE; answered by JOINED, REFUSED, LEFT, and told
 *             GATHERED and NEWS
 *   recorder  PUBLISH, RANKS, REPORTED, MOVED, PHASE, ASK, ANSWER, SYNC, BYE; told each
 *             ENTRY of the record
 *   either    BEAT, a sign of life every few seconds, answered by PING, which is
 *             answered by a BEAT with the node's clocks
 *
 * The life of a run. Nodes come (HELLO) and ask for a place (JOIN). When enough have
 * come they are seated, and not yet started: rank 0 is told, opens the workers' store,
 * and says where it is (STORE); then the others are told, with that address. Where
 * torchrun's nodes or torch's agents are among them, all are told at once, and agree on
 * ranks and address through the store. A worker that fails is published and judged once
 * for the round (judge.h), and one RESTART or VERDICT follows. If all members live and
 * nobody else wants to come, the next round begins with the RESTART, without a question
 * (seats_restart); else each asks for it. A node that asks for the next round ends the
 * current one for all. CLOSE ends the run.
 *
 * What a loss does: sessions.h decides it. The record names the node first, in a LOST
 * entry; then its place is given away and the members of the round are told, so that
 * they know whom to blame when they leave the round.
 *
 * A run that finds no memory can only be closed. Its nodes come back to a new one and
 * say again what it must know, as they do after a restart of the host. */
#ifndef JOB_CORE_RUN_H
#define JOB_CORE_RUN_H

#include "job/core/effects.h"
#include "job/core/recorder.h"
#include "job/core/seats.h"

struct run;

/* run_id is copied; log is borrowed and may be NULL. NULL: out of memory. */
struct run *run_new(struct span run_id, const struct log *log);
void run_free(struct run *r); /* NULL is fine */

enum run_event_kind {
    RUN_MSG,  /* a peer says msg; its first must be HELLO */
    RUN_GONE, /* a peer's connection is gone */
    RUN_SEEN, /* a torchrun node has replaced the state: value, as stored */
    RUN_TIMER,
};

struct run_event {
    enum run_event_kind kind;
    struct run_now now;
    uint32_t peer;
    bool hung_up; /* GONE: the node closed the connection itself, it seems */
    const struct run_msg *msg; /* borrowed for the step, as is the next */
    struct span value;
};

/* Returns 0 with the effects in fx, those of the last step are gone; or MUSTER_ENOMEM,
 * after which the run can only be freed; or MUSTER_ESTATE for a SEEN that cannot be
 * read, which changes nothing. */
int run_step(struct run *r, const struct run_event *ev, struct run_fx *fx,
             struct muster_error *err);

/* When to send TIMER, by mono_us; MONO_NEVER if nothing is due. */
uint64_t run_deadline(const struct run *r);

/* The parts, for what can be asked of them; NULL if nobody has needed them yet. */
struct seats *run_seats(const struct run *r);
const struct recorder *run_recorder(const struct run *r);

/* Each connected peer: for (uint32_t i = 0; run_next_peer(r, &i, &peer);) ... */
bool run_next_peer(const struct run *r, uint32_t *i, uint32_t *peer);

#endif
