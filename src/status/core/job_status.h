/* job_status.h - the whole job at one moment, made from the record of its life
 * (job/core/record.h) and from what the nodes last reported about themselves
 * (node_status.h). Status, top, the page and the metrics are all printed from it.
 *
 * Pure. The result borrows from its input. */
#ifndef STATUS_CORE_JOB_STATUS_H
#define STATUS_CORE_JOB_STATUS_H

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
    const char *run_id, *backend, *endpoint; /* borrowed, as is all below */
    int64_t max_restarts, nnodes_min, nnodes_max;
    int64_t began_us, now_us; /* wall clock */
    const struct record *record;
    uint32_t self;           /* our node number; 0: not known */
    const char *host, *addr; /* of this node */
    int64_t agent_pid, nproc;
    const struct node_status *own;    /* now; NULL: this is not a node but a store */
    const struct job_answer *answers; /* by node number */
    size_t answer_count;
    const char *spares; /* names that the shared state lists: "a, b"; NULL: none */
    const char *alone;  /* why the answer is about this node only; NULL: it is not */
    const struct store_status *store; /* of a store without a job; NULL: none */
};

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
    int64_t agent_pid, nproc;
    int64_t first_rank, ranks; /* in the newest round; -1 and 0: not in it */
    enum node_state state;
    int64_t since_us;                /* 0: not known */
    struct span why;                 /* of a loss */
    const struct node_status *facts; /* NULL: the node has not reported */
    int64_t heard_us;
    bool self;
    bool coordinates; /* the job's coordinator is on this node */
    bool succeeded;   /* NODE_ENDED: with success */
};

struct job_status {
    const struct job_input *in;
    struct job_node *nodes; /* owned; by number, without some that are gone */
    size_t count, size;
    enum job_state state;
    int64_t since_us;        /* of that state */
    int64_t round;           /* -1: none yet */
    int64_t ranks, nodes_in; /* of the newest round */
    int64_t torch_nodes;     /* of them, those without an agent of ours */
    bool have_verdict;
    struct record_entry verdict; /* the newest */
};

/* 0 or MUSTER_ENOMEM. */
int job_status_build(struct job_status *j, const struct job_input *in);
void job_status_fini(struct job_status *j);

/* The state of a rank, from what its node reported and what is known of the node. */
enum worker_state job_worker_state(const struct job_node *n, size_t local_rank);

/* Appends all of it as one line of JSON: docs/status.schema.json. node: print only this
 * one, with its workers even in a large job; 0: all nodes. history: with what happened
 * so far. Errors stay in the buffer. */
void job_status_json(struct buf *out, const struct job_status *j, uint32_t node,
                     bool history);

/* Appends the metrics. Their names are listed in docs/guides/observability.md and do
 * not change. open: in the OpenMetrics format; else in Prometheus' older text format.
 */
void job_status_metrics(struct buf *out, const struct job_status *j, bool open);

/* Appends the history of the job in Chrome's trace format. */
void job_status_trace(struct buf *out, const struct job_status *j);

/* Appends an HTML table for browsers without scripts. */
void job_status_table(struct buf *out, const struct job_status *j);

#endif
