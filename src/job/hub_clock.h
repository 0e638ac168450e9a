/* hub_clock.h - the time for job/core/hub.h. */
#ifndef JOB_HUB_CLOCK_H
#define JOB_HUB_CLOCK_H

#include <time.h>
#include <uv.h>

#include "job/core/hub.h"

static inline struct hub_now hub_clock(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (struct hub_now){ uv_hrtime() / 1000,
                             ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 };
}

#endif
