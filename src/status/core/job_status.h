/* job_status.h - the whole job at one moment, made from the record of its life
 * (job/core/record.h) and from what the nodes last reported about themselves
 * (node_status.h).
 *
 *   an agent: its record, and the answers of the nodes --- struct job_input
 *   `muster store`: its counters                             |   |
 *   `muster status` and `top`: the same, as bytes,           |   | job_input_encode
 *     of an agent's socket or of an observer of a store <----+---+
 *                                                            | job_status_build
 *   `muster report`: report_status() --------------------> struct job_status
 *                                                            |
 *                 JSON, metrics, trace, table, text, top <---+
 *
 * Pure. The result borrows from its input. */
#ifndef STATUS_CORE_JOB_STATUS_H
#define STATUS_CORE_JOB_STATUS_H

#include "base/arena.h"
#include "job/core/record.h"
#include "status/core/node_status.h"

#define JOB_WORKERS_LISTED 4096u /* ranks; for larger jobs only counts are printed */
#define JOB_NODES_RANKED   256u  /* nodes; for larger jobs history omits members */

struct job_answer {
    uint32_t node;
    struct node_status status; /* owned */
    int64_t at_us;             /* when it came, by our wall clock */
};

struct job_input {
    const char *version; /* of the muster that answers; NULL: of this one */
    const char *run_id, *backend, *endpoint; /* borrowed, as is all here */
    int64_t max_restarts, nnodes_min, nnodes_max;
    int64_t began_us, now_us; /* wall clock */
    const struct record *record;
    uint32_t self;           /* our node number; 0: not known */
    const char *host, *addr; /* of this node */
    int64_t agent_pid;
    const struct node_status *own;    /* now; NULL: this is not a node but a store */
    const struct job_answer *answers; /* by node number */
    size_t answer_count;
    const char *spares; /* names that the shared state lists: "a, b"; NULL: none */
    const char *alone;  /* why the answer is about this node only; NULL: it is not */
    const struct store_status *store; /* of a store without a job; NULL: none */
};

/* What is told to another process, which builds the status from it. */
struct job_known {
    struct job_input in; /* borrows from the rest, all of which is owned */
    struct record record;
    struct node_status own;
    struct job_answer *answers; /* in the arena, as are the texts */
    struct arena arena;
};

/* Appends the bytes of all that job_status_build needs. Errors stay in the buffer. */
void job_input_encode(struct buf *out, const struct job_input *in);
/* MUSTER_EPROTO, MUSTER_ENOMEM. The bytes are copied. */
int job_input_decode(struct span bytes, struct job_known *out,
                     struct muster_error *err);
void job_known_fini(struct job_known *k); /* zeroed is fine */

/* X(name, word) */
#define JOB_STATES(X)                                                                  \
    X(JOINING, "joining")                                                              \
    X(RUNNING, "running")                                                              \
    X(STOPPING, "stopping") /* the round ends; there will be another, or an end */     \
    X(SUCCEEDED, "succeeded")                                                          \
    X(FAILED, "failed")                                                                \
    X(STOPPED, "stopped") /* on a user's request */                                    \
    X(SERVING, "serving") /* a store without a job */

enum job_state {
#define JOB_STATE_ENUM(name, word) JOB_##name,
    JOB_STATES(JOB_STATE_ENUM)
#undef JOB_STATE_ENUM
        JOB_STATE_COUNT
};

const char *job_state_word(enum job_state s);

struct job_node {
    uint32_t number;
    struct span host, addr;
    int64_t agent_pid;
    int64_t first_rank, ranks; /* in the newest round; -1 and 0: not in it */
    enum node_state state;
    int64_t since_us; /* 0: not known */
    struct span why;  /* of a loss */
    bool self;
    bool coordinates; /* the job's coordinator is on this node */
    bool succeeded;   /* NODE_ENDED: with success */
    /* What the node last reported about itself. */
    bool reported; /* false: nothing; of what follows only workers may be known */
    int64_t heard_us;
    struct span version, wait;
    int64_t attempt, alive;             /* alive: workers that run */
    uint64_t cpu, memory, agent_memory; /* cpu and memory: sums over the workers */
    struct store_status store;
    const struct gpu_status *gpus;       /* borrowed, as is the next */
    const struct worker_status *workers; /* local rank order; NULL: not known */
    size_t gpu_count, worker_count;
};

/* What a job looks like at one moment. */
struct job_status {
    struct span version; /* of the muster that answers */
    int64_t now_us;
    struct span alone; /* why it covers this node only; empty: it does not */
    struct span host;  /* that answers */
    int64_t pid;
    struct span run_id, backend, endpoint;
    enum job_state state;
    int64_t since_us, began_us; /* since: of that state */
    int64_t round;              /* -1: none yet */
    int64_t ranks, nodes_in;    /* of the newest round */
    int64_t torch_nodes;        /* of them, those without an agent of ours */
    int64_t min_nodes, max_nodes, restarts, max_restarts, rounds, failures, lost;
    uint32_t reason; /* of the last restart, or why it was refused; 0: no policy */
    int64_t restarts_left;  /* as of then; -1: no limit */
    int64_t backoff_us;     /* when the next attempt begins; 0: none waits */
    struct span rule;       /* that fitted, or the budget */
    struct span spares;     /* names that the shared state lists: "a, b" */
    struct job_node *nodes; /* owned; by number, without some that are gone */
    size_t count, size;
    const struct node_status *own; /* borrowed; NULL: not of an agent */
    struct store_status store;     /* that has answered, if it is no agent's */
    bool have_verdict;
    struct record_entry verdict;  /* the newest */
    const struct record *record;  /* borrowed; NULL: none, or see entries */
    struct record_entry *entries; /* in the arena; what happened, if not in a record */
    size_t entry_count;
    struct arena arena; /* for what a report tells */
};

/* 0 or MUSTER_ENOMEM. */
int job_status_build(struct job_status *j, const struct job_input *in);
void job_status_fini(struct job_status *j); /* zeroed is fine */

/* The state of a rank, from what its node reported and what is known of the node. */
enum worker_state job_worker_state(const struct job_node *n, size_t local_rank);
/* How many workers of the node can be listed; it knows nothing of some of them. */
size_t job_worker_count(const struct job_node *n);
/* The same; none in a large job. */
size_t job_workers_listed(const struct job_status *j, const struct job_node *n);
int64_t job_rank(const struct job_node *n, size_t local_rank); /* -1: none */
/* Whether a worker in this state has an exit code. */
bool job_worker_has_code(enum worker_state s);

/* The i-th of what happened, of j->entry_count, oldest first. */
struct record_entry job_entry(const struct job_status *j, size_t i);

/* Whether the answer is about a store that no job uses. */
bool job_is_store(const struct job_status *j);

/* Takes the next name off *rest, which is j->spares at first: of a spare that is not
 * among the nodes. False: none is left. */
bool job_spare_next(const struct job_status *j, struct span *rest, struct span *name);

/* Appends all of it as one line of JSON: docs/status.schema.json. node: print only this
 * one, with its workers even in a large job; 0: all nodes. history: with what happened
 * so far. Errors stay in the buffer. */
void job_status_json(struct buf *out, const struct job_status *j, uint32_t node,
                     bool history);

/* Appends the metrics. Their names are listed in docs/guides/observability.md and do
 * not change. open: in the OpenMetrics format; else in Prometheus' older text one. */
void job_status_metrics(struct buf *out, const struct job_status *j, bool open);

/* Appends the history of the job in Chrome's trace format. */
void job_status_trace(struct buf *out, const struct job_status *j);

/* Appends an HTML table for browsers without scripts. */
void job_status_table(struct buf *out, const struct job_status *j);

#endif
