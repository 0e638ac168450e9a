/* logs_int.h - what logs.c and logs_follow.c share. */
#ifndef IO_LOGS_INT_H
#define IO_LOGS_INT_H

#include "io/logs.h"
#include "io/sweep.h"

struct logs {
    uv_loop_t *loop;
    const struct launch_config *config; /* borrowed */
    const struct notes *notes;          /* borrowed */
    char *const *envp;                  /* borrowed */
    bool none;                          /* /dev/null */
    bool own_base;                      /* nobody named it */
    char *base, *run, *attempt;         /* owned; run: made at the first attempt */
    int filtered[2];                    /* shared by all local ranks; -1 */
    struct tails *tails;                /* NULL until something is teed */
    struct sweep *sweep;                /* NULL until many workers end well */
    size_t sweeping;                    /* sweeps not yet closed */
    bool closed, tidy;                  /* as soon as they are */
    uv_timer_t later;                   /* for a drain with nothing to drain */
    void (*drained)(void *ctx);
    void *drained_ctx;
};

/* From now on the console shows what the worker writes to path: which is 0 for its
 * stdout, 1 for its stderr. */
int logs_follow(struct logs *l, const char *path, int which, int64_t local_rank,
                int64_t rank, struct muster_error *err);

#endif
