/* reader.h - reads the stacks of workers, in a process of its own that lives for a
 * moment: whatever happens to it, the agent's loop goes on.
 *
 *     agent -- reader: /proc, native frames (libdw)
 *                 \- py-spy, once for each Python process
 *
 * Nothing here signals a worker. py-spy reads the memory of a running process and does
 * not stop it; for native frames the main thread is held well below a millisecond.
 * Should the reader be killed meanwhile, the kernel lets the thread go on. */
#ifndef STACKS_READER_H
#define STACKS_READER_H

#include <sys/types.h>
#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct stacks_target {
    int64_t rank, local_rank;
    pid_t pid; /* of the worker */
};

enum stacks_depth {
    STACKS_QUICK, /* Python's frames and /proc of the workers alone: for sampling */
    STACKS_FULL,  /* native frames and the processes that workers started, too */
};

struct stacks_read_opts {
    uv_loop_t *loop;
    const struct stacks_target *targets; /* borrowed during the call */
    size_t count;
    const char *node;  /* this node's name, for the JSON */
    char *const *envp; /* where PATH and MUSTER_PY_SPY are looked up */
    enum stacks_depth depth;
    uint64_t timeout_ms;
    struct span known; /* what an earlier reading gave, or nothing: Python's frames of
                          processes that have not run since are still true */
    /* The node's part of a sample (see core/sample.h), or why there is none. The
     * reading is gone by then. Never called from inside stacks_read. */
    void (*done)(void *ctx, int status, struct span json,
                 const struct muster_error *err);
    void *ctx;
};

struct stacks_reading;

int stacks_read(const struct stacks_read_opts *opts, struct stacks_reading **out,
                struct muster_error *err);

/* The reader's own work (collect.c): looks at all workers, and gives the node's part of
 * a sample to put, a line of JSON, as soon as Python's frames of the workers are known,
 * and again when more is: whoever runs out of time has the last. Only in the reader's
 * process: it blocks, and starts processes. */
int stacks_collect(const struct stacks_read_opts *opts,
                   void (*put)(void *ctx, struct span line), void *ctx);

/* Ends it: done does not come. NULL is fine. */
void stacks_read_cancel(struct stacks_reading *r);

#endif
