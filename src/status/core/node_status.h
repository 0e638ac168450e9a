/* node_status.h - what one node tells of itself when it is asked: its state, its
 * workers, its store. Filled in by the agent (agent/status.c), sent to whoever asks
 * over the job channel, and put together with the record in job_status.h. Pure. */
#ifndef STATUS_CORE_NODE_STATUS_H
#define STATUS_CORE_NODE_STATUS_H

#include "base/buf.h"
#include "muster/error.h"

/* X(name, word): the words are a promise to readers of the JSON. The first ones are on
 * the wire; those below SPARE are only ever concluded from the record. */
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
    X(ENDED, "ended") /* because it was told to: others failed, or the round is over   \
                       */

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
    int64_t code;    /* once it has ended, as Python has it */
    uint64_t memory; /* bytes in RAM */
    uint32_t cpu;    /* of one CPU, in thousandths, lately */
    uint64_t cpu_ms; /* in all */
};

struct store_status {
    bool present;
    uint64_t requests, answers, bytes_in, bytes_out, connections, keys;
    uint32_t rate; /* requests a second, lately */
};

/* Keeps the rate of a store up to date, from its count of requests and the time: since
 * the last look; at the first one, since the at_ms that its owner began with. */
struct store_rate {
    uint64_t requests, at_ms;
    uint32_t rate;
};

uint32_t store_rate(struct store_rate *r, uint64_t requests, uint64_t now_ms);

#define NODE_WAIT_MAX    512u
#define NODE_VERSION_MAX 32u
#define NODE_WORKERS_MAX 2048u

struct node_status {
    enum node_state state;
    int64_t round;             /* -1: none yet */
    int64_t group_rank;        /* -1: none */
    int64_t first_rank;        /* of its workers; -1: none */
    int64_t attempt;           /* restarts so far, as the workers are told */
    int64_t pid;               /* the agent's */
    uint64_t memory;           /* the agent's own */
    struct span version, wait; /* wait: what it waits for, for people; may be empty */
    struct store_status store;
    struct worker_status *workers; /* owned if decoded; local rank order */
    size_t worker_count;
};

/* Appends its bytes, at most CHANNEL_ANSWER_MAX of them: a node has at most
 * NODE_WORKERS_MAX workers in it. Errors stay in the buffer. */
void node_status_encode(struct buf *out, const struct node_status *n);

/* Reads what a node sent; texts point into bytes, workers are the caller's
 * (node_status_fini). MUSTER_EPROTO, MUSTER_ENOMEM. Trailing bytes are skipped. */
int node_status_decode(struct span bytes, struct node_status *out,
                       struct muster_error *err);
void node_status_fini(struct node_status *n);

/* Sums over the workers. */
uint64_t node_status_memory(const struct node_status *n);
uint64_t node_status_cpu(const struct node_status *n); /* thousandths */
size_t node_status_alive(const struct node_status *n);

#endif
