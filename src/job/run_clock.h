/* run_clock.h - the time for job/core/run.h. */
#ifndef JOB_RUN_CLOCK_H
#define JOB_RUN_CLOCK_H

#include <time.h>
#include <uv.h>

#include "job/core/sessions.h"

static inline struct run_now run_clock(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (struct run_now){ uv_hrtime() / 1000,
                             ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 };
}

#endif
