/* clock.c - see clock.h. */
#include "loop/clock.h"

uint64_t clock_mono_ms(void)
{
    return uv_hrtime() / 1000000u;
}

struct now clock_now(void)
{
    uv_timeval64_t wall = { 0, 0 };

    (void)uv_gettimeofday(&wall);
    return (struct now){ clock_mono_ms(), wall.tv_sec * 1000000 + wall.tv_usec };
}

void clock_arm(uv_timer_t *timer, uv_timer_cb cb, uint64_t due_ms)
{
    const uint64_t now = clock_mono_ms();

    if (due_ms == MONO_NEVER) {
        (void)uv_timer_stop(timer);
        return;
    }
    uv_update_time(timer->loop);
    (void)uv_timer_start(timer, cb, due_ms > now ? due_ms - now : 1, 0);
}
