/* blocking_call.h - a blocking call on a thread of its own, with a deadline, for calls
 * that cannot be interrupted, such as the resolver's. A result that comes too late is
 * dropped, and neither the loop nor the process waits for it. */
#ifndef LOOP_BLOCKING_CALL_H
#define LOOP_BLOCKING_CALL_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct blocking_call;

typedef void (*blocking_call_work)(void *data);

/* data is as the work left it, or NULL if the time was up. The call is gone by then. */
typedef void (*blocking_call_done)(void *ctx, void *data);

/* Runs work(data) on a thread. done comes from the loop, never from inside this call.
 * With timeout_ms MONO_NEVER there is no deadline, and a caller that has one cancels.
 * Takes data over: it is freed with mem_free after done has returned, or when the
 * thread comes back. On failure data is still the caller's. */
int blocking_call_run(uv_loop_t *loop, blocking_call_work work, void *data,
                      uint64_t timeout_ms, blocking_call_done done, void *ctx,
                      struct blocking_call **out, struct muster_error *err);

/* Forgets the call: done does not come. NULL is fine. */
void blocking_call_cancel(struct blocking_call *o);

#endif
