/* node_status.h - what one node reports about itself when it is asked: its state, its
 * workers, its store. The agent fills it in (agent/status.c) and sends it over the
 * session as an answer; job_status.h combines it with the record. Pure. */
#ifndef STATUS_CORE_NODE_STATUS_H
#define STATUS_CORE_NODE_STATUS_H

#include "base/buf.h"
#include "muster/error.h"

/* X(name, word): programs read the words in the JSON, so they must not change. Nodes
 * send the states up to SPARE; those after it are only concluded from the record. */
#define NODE_STATES(X)                                                                 \
    X(UNKNOWN, "unknown")                                                              \
    X(JOINING, "joining")                                                              \
    X(STARTING, "starting")                                                            \
    X(RUNNING, "running")                                                              \
    X(STOPPING, "stopping")                                                            \
    X(FINISHING, "finishing") /* done; waits for the others at the exit barrier */     \
    X(ENDED, "ended")                                                                  \
    X(SPARE, "spare")                                                                  \
    X(LOST, "lost")                                                                    \
    X(LEFT, "left")

enum node_state {
#define NODE_STATE_ENUM(name, word) NODE_##name,
    NODE_STATES(NODE_STATE_ENUM)
#undef NODE_STATE_ENUM
        NODE_STATE_COUNT
};

const char *node_state_word(enum node_state s);

#define WORKER_STATES(X)                                                               \
    X(NONE, "none")                                                                    \
    X(STARTING, "starting")                                                            \
    X(RUNNING, "running")                                                              \
    X(SUCCEEDED, "succeeded")                                                          \
    X(FAILED, "failed")                                                                \
    X(STOPPED, "stopped") /* by a SIGSTOP or a debugger */                             \
    X(LOST, "lost")       /* with its node */                                          \
    X(ENDED, "ended")     /* by the agent: others failed, or the round is over */

enum worker_state {
#define WORKER_STATE_ENUM(name, word) WORKER_##name,
    WORKER_STATES(WORKER_STATE_ENUM)
#undef WORKER_STATE_ENUM
        WORKER_STATE_COUNT
};

const char *worker_state_word(enum worker_state s);

struct worker_status {
    enum worker_state state;
    int64_t pid;     /* 0: none yet */
    int32_t code;    /* once it has ended, in Python's form: negative for a signal */
    uint64_t memory; /* bytes in RAM */
    uint32_t cpu;    /* of one CPU, in thousandths, lately */
    uint64_t cpu_ms; /* in all */
};

struct store_status {
    bool present;
    uint64_t requests, answers, bytes_in, bytes_out, connections, keys;
    uint32_t rate; /* requests a second, lately */
};

/* Computes the rate of a store from its count of requests, since the last call; for the
 * first call, since the at_ms that the owner has set. */
struct store_rate {
    uint64_t requests, at_ms;
    uint32_t rate;
};

uint32_t store_rate(struct store_rate *r, uint64_t requests, uint64_t now_ms);

/* What a GPU of the node does now. */
struct gpu_status {
    struct span name;
    uint32_t busy, celsius;        /* percent; 0 if it is not known */
    uint64_t memory, memory_total; /* bytes */
};

#define NODE_GPUS_MAX    64u
#define NODE_GPU_NAME    64u
#define NODE_WAIT_MAX    512u
#define NODE_VERSION_MAX 32u
#define NODE_WORKERS_MAX 2048u

struct node_status {
    enum node_state state;
    int64_t round;             /* -1: none yet */
    int64_t group_rank;        /* -1: none */
    int64_t first_rank;        /* of its workers; -1: none */
    int64_t attempt;           /* restarts so far, as in TORCHELASTIC_RESTART_COUNT */
    int64_t pid;               /* the agent's */
    uint64_t memory;           /* the agent's own */
    struct span version, wait; /* wait: what it waits for, for people; may be empty */
    struct store_status store;
    struct worker_status *workers; /* owned if decoded; local rank order */
    size_t worker_count;
    struct gpu_status *gpus; /* owned if decoded; in the driver's order */
    size_t gpu_count;
};

/* Appends the encoded status with at most NODE_WORKERS_MAX workers, so that it has at
 * most SESSION_ANSWER_MAX bytes. Errors stay in the buffer. */
void node_status_encode(struct buf *out, const struct node_status *n);

/* Decodes what a node sent. Texts point into bytes; the caller frees the workers with
 * node_status_fini. MUSTER_EPROTO, MUSTER_ENOMEM. Trailing bytes are ignored. */
int node_status_decode(struct span bytes, struct node_status *out,
                       struct muster_error *err);
void node_status_fini(struct node_status *n);

bool worker_is_alive(enum worker_state s);

#endif
