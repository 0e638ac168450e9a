/* deadline.h - one timer for the next deadline of a core, by clock_mono_ms. */
#ifndef LOOP_DEADLINE_H
#define LOOP_DEADLINE_H

#include <uv.h>

#include "base/base.h"

struct deadline {
    uv_timer_t timer; /* close it as any handle, (uv_handle_t *)&deadline->timer */
    void (*fn)(void *ctx);
    void *ctx; /* borrowed */
};

void deadline_init(struct deadline *d, uv_loop_t *loop, void (*fn)(void *ctx),
                   void *ctx);

/* Replaces the deadline that was set before; MONO_NEVER: nothing is due. A deadline
 * that has passed fires in a millisecond, not at once: see clock_arm. */
void deadline_set(struct deadline *d, uint64_t due_ms);

#endif
