/* session.h - a node's session with its run (job/core/run.h), which is in whatever
 * store serves the job: the host's with c10d, node 0's with a static rendezvous, that
 * of rank 0's agent on etcd (on the backend "etcd" a store of its own). One connection
 * carries all: the seats that the rendezvous asks for (rendezvous/seat_session.h), and
 * what this file offers, the record of the job, which all agents share, and questions
 * to all agents.
 *
 * Entries of the record (job/core/record.h) that one agent publishes arrive, numbered,
 * at every agent. A question goes to all agents, and their bounded answers come back
 * together. Where a torchrun serves the store there is no run: the record then covers
 * this node alone, and session_state() says so.
 *
 * It runs on the agent's loop and never calls back from inside a call. In a job of one
 * node the run is in the same process, without a connection. */
#ifndef JOB_SESSION_H
#define JOB_SESSION_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/log.h"
#include "job/core/record.h"

struct session;
struct session_question;

enum session_state {
    SESSION_NONE,       /* not yet attached anywhere */
    SESSION_ALONE,      /* this node is the whole job; the coordinator is in here */
    SESSION_CONNECTING, /* to the coordinator, for the first time or again */
    SESSION_UP,
    SESSION_UNSHARED, /* the store is torchrun's or an older muster's: the record
                               covers this node only, though there are others */
};

struct session_opts {
    uv_loop_t *loop;      /* borrowed */
    const char *run_id;   /* copied, as are the next two */
    const char *host;     /* this machine's name */
    const char *addr;     /* its address; may be "" */
    const char *role;     /* of its workers; copied; NULL: "" */
    int64_t pid, nproc;   /* the agent's pid, and how many workers it has */
    int64_t max_restarts; /* the job's, if this node has the coordinator */
    const char *policy;   /* likewise, as policy_print has it; borrowed; NULL: none */
    bool observer;     /* not an agent: asks and listens, but is not listed as a node */
    uint64_t nonce;    /* names this process to the host of the run; 0: any number */
    struct auth *auth; /* the job's secret, or NULL; referenced */
    const struct log *log; /* borrowed, may be NULL */
    /* A new entry of the record, borrowed for the call. May be NULL. */
    void (*on_entry)(void *ctx, const struct record_entry *e);
    /* session_state() has changed. May be NULL. */
    void (*on_state)(void *ctx, enum session_state state);
    /* The coordinator's agent is gone, or, if there is true, it turns out to be there
     * after all: see core/host_watch.h. It was the rank-th node of that round of the
     * rendezvous; round -1: it has not said which. May be NULL. */
    void (*on_host)(void *ctx, bool there, int64_t round, int64_t rank);
    void *ctx;
};

int session_open(const struct session_opts *opts, struct session **out,
                 struct muster_error *err);

/* Sets the address of this machine, if session_opts had none. Call it before the
 * session attaches, which is when the others learn the address. addr is copied. */
void session_set_addr(struct session *c, const char *addr);

/* Says where the coordinator is: in the store at host and port. Call it again when it
 * moves. If that store cannot coordinate, the state becomes SESSION_UNSHARED.
 * local: this very process serves the store, and its --max-restarts counts for the
 * job. known: the store has said that it can coordinate; else it is asked. */
void session_attach(struct session *c, const char *host, uint16_t port, bool local,
                    bool known);

/* Makes this process the coordinator of its own node: no other node can come, or
 * (others) there are some that cannot be reached this way, since the store is
 * torchrun's. */
void session_attach_alone(struct session *c, bool others);

enum session_state session_state(const struct session *c);
const struct record *session_record(const struct session *c);
uint32_t session_node(const struct session *c); /* our number; 0: not known yet */
bool session_shared(const struct session *c);   /* UP: other nodes hear us */

/* The rounds of the rendezvous come over this session, too. */
bool session_has_seats(const struct session *c);

/* Publishes an entry: it comes back by on_entry with its number, time and node. at_us
 * is by our own wall clock (0: now) and is translated. The entry is kept, and sent
 * again, while the coordinator is away; MUSTER_EFULL if too many are kept, or
 * MUSTER_ENOMEM. The caller need not set number, node and unsure_us. */
int session_publish(struct session *c, const struct record_entry *e);

/* Says that we are the rank-th node of this round of the rendezvous. A coordinator that
 * loses us repeats it in its LOST entry. */
void session_seat(struct session *c, int64_t round, int64_t rank);

/* These two are gathered by the coordinator from every node of a round, not passed on:
 * our workers' ranks when they start, and, when they are gone, how many failed by
 * themselves, how many we ended, whether they made progress, and all exit codes as
 * "first_rank count exit_code" lines. A round in which a worker failed ends with one
 * RESTART or VERDICT in the record once all nodes have reported, or 2 s after the first
 * failure. own_budget: restarts are counted on this node alone, because the rendezvous
 * is static or some nodes are torchrun's. */
void session_ranks(struct session *c, int64_t round, int64_t first, int64_t count,
                   int64_t nodes, bool own_budget);
void session_reported(struct session *c, int64_t round, int64_t failed, int64_t stopped,
                      bool progress, struct span codes);

/* Says that nodes came or went, and that this node is about to stop its workers for the
 * next round: workers of other nodes that fail because of it do not cost a restart.
 * Only the first call of a round counts. */
void session_moved(struct session *c, int64_t round);

/* How long phases of the start of a round took here; the coordinator gathers them from
 * all nodes into one entry. */
struct session_phase {
    const char *name; /* small letters and underscores */
    uint64_t us;
};

void session_phases(struct session *c, int64_t round,
                    const struct session_phase *phases, size_t count);

/* What is known of a coordinator in another process that no longer answers. */
struct session_silence {
    int64_t heard_us; /* when it was last heard, by our wall clock; 0: never */
    double silent_s;  /* since then */
    bool broke;       /* the connection to it broke */
};

struct session_silence session_silence(const struct session *c);

/* Adds an entry to the record of this node alone, at the end of a job whose coordinator
 * cannot do so any more. */
void session_conclude(struct session *c, const struct record_entry *e);

/* Calls cb once everything that others had published before is here, or after
 * timeout_ms, since the coordinator may be away. One at a time, session_wait_last
 * included. */
void session_sync(struct session *c, uint64_t timeout_ms, void (*cb)(void *ctx),
                  void *ctx);

/* Likewise, but calls cb once no other agent is attached. For the agent whose process
 * serves the store, before it takes the store away. */
void session_wait_last(struct session *c, uint64_t timeout_ms, void (*cb)(void *ctx),
                       void *ctx);
bool session_is_local(const struct session *c); /* the coordinator is in this process */

/* ---- questions ---- */

#define SESSION_KIND_MAX   31u    /* bytes of a question's kind: "stacks" */
#define SESSION_ASK_MAX    8192u  /* bytes of a question */
#define SESSION_ANSWER_MAX 65536u /* bytes of an answer; longer ones are cut */

struct session_answer {
    uint32_t node;
    struct span host;
    bool
        missing; /* no answer in time, the node is lost, or it does not know the kind */
    struct span bytes;
};

/* Gets one answer for each node, in order of node number, borrowed for the call.
 * complete: none is missing. */
typedef void (*session_answers_cb)(void *ctx, const struct session_answer *answers,
                                   size_t count, bool complete);

/* Asks every agent, this one too. cb comes once, after timeout_ms at the latest. */
int session_ask(struct session *c, const char *kind, struct span payload,
                uint64_t timeout_ms, session_answers_cb cb, void *ctx,
                struct muster_error *err);

/* Lets fn answer the questions of a kind. It calls session_answer exactly once for
 * each, at once or later, but before session_close. kind is borrowed. */
typedef void (*session_answerer)(void *ctx, struct session_question *q,
                                 struct span payload);
int session_on_question(struct session *c, const char *kind, session_answerer fn,
                        void *ctx);
void session_answer(struct session_question *q, struct span bytes);

/* ---- the end ---- */

/* Says goodbye to the coordinator, whose process may wait for us to leave before it
 * ends. The record stays. */
void session_detach(struct session *c);

/* Says goodbye if that is possible at once. cb (may be NULL) comes when libuv has
 * closed everything. */
void session_close(struct session *c, void (*cb)(void *ctx), void *ctx);

#endif
