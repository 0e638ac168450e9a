/* remove_dirs.h - removes many empty directories without making the loop wait: on some
 * file systems each removal waits for the disk, and on a busy machine for its turn
 * after that. Used by worker_logs.c for jobs of many workers. */
#ifndef LOGS_REMOVE_DIRS_H
#define LOGS_REMOVE_DIRS_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct sweep;

/* For directories below dir, which is the one that has this name now. */
int sweep_open(uv_loop_t *loop, const char *dir, struct sweep **out,
               struct muster_error *err);

/* <dir>/<number> goes, soon, if it is empty. */
void sweep_remove(struct sweep *s, int64_t number);

/* Then cb, once all that were to go are gone; never from within. */
void sweep_close(struct sweep *s, void (*cb)(void *ctx), void *ctx);

#endif
