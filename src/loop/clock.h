/* clock.h - the real clocks in the form that core takes, and timers set by them. */
#ifndef LOOP_CLOCK_H
#define LOOP_CLOCK_H

#include <uv.h>

#include "base/base.h"

uint64_t clock_mono_ms(void);
struct now clock_now(void);

/* Arms a timer for a deadline by clock_mono_ms; MONO_NEVER stops it. A deadline that
 * has passed fires in a millisecond, not at once: libuv runs timers that are due before
 * it looks at sockets, and one that is always due would keep it from ever doing so. */
void clock_arm(uv_timer_t *timer, uv_timer_cb cb, uint64_t due_ms);

#endif
