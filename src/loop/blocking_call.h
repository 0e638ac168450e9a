/* offload.h - a blocking call on a thread of its own, with a deadline: for resolvers,
 * which nobody can interrupt. What comes too late is dropped, and neither the loop nor
 * the process waits for it. */
#ifndef LOOP_BLOCKING_CALL_H
#define LOOP_BLOCKING_CALL_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct offload;

typedef void (*offload_work)(void *data);

/* data as the work left it, or NULL if the time was up. The job is gone by then. */
typedef void (*offload_done)(void *ctx, void *data);

/* Takes data over: it is freed with mem_free after done has returned, or whenever the
 * thread comes back. Not from inside the call. On failure nothing has been taken. */
int offload_run(uv_loop_t *loop, offload_work work, void *data, uint64_t timeout_ms,
                offload_done done, void *ctx, struct offload **out,
                struct muster_error *err);

/* Forgets the job: done does not come. NULL is fine. */
void offload_cancel(struct offload *o);

#endif
