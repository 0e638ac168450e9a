/* hang.h - finds out that the job stands still, and who is the likely cause: --hang.
 *
 * On every node a timer looks at the workers' clocks in /proc and at their output,
 * twice a second; that is all while a job goes on. The node of rank 0 asks the others,
 * at most twice in the given time, and has stacks sampled once a rank has not moved for
 * half of it. */
#ifndef HANG_HANG_H
#define HANG_HANG_H

#include "hang/core/progress.h"
#include "stacks/service.h"

struct hang;

struct hang_report {
    const struct stack_sample *sample;
    const struct stack_findings *findings;
    uint64_t silent_ms; /* how long nothing has moved */
};

struct hang_opts {
    uv_loop_t *loop;
    uint64_t time_ms;
    const char *progress_file; /* NULL: none; borrowed, as is all below */
    struct stacks_service *stacks;
    size_t (*targets)(void *ctx, struct stacks_target *out, size_t most);
    size_t most;                         /* workers of this node */
    bool (*decides)(void *ctx);          /* whether this node is the one that asks */
    uint64_t (*store_writes)(void *ctx); /* of workers so far; NULL: not known */
    /* The job stands still. Borrowed for the call. Only where decides() is true. */
    void (*on_hang)(void *ctx, const struct hang_report *r);
    void (*on_over)(void *ctx); /* the job goes on after a hang was reported */
    void *ctx;
};

int hang_open(const struct hang_opts *opts, struct hang **out,
              struct muster_error *err);
void hang_close(struct hang *h); /* NULL is fine */

/* Other nodes can be asked from now on, and ask. The session must be closed in the same
 * turn of the loop as this, and after it. */
int hang_session(struct hang *h, struct session *session);

/* The workers of an attempt run; they are being ended. */
void hang_begin(struct hang *h);
void hang_end(struct hang *h);

#endif
