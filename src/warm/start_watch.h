/* start_watch.h - how long Python workers take from their start until they open their
 * first socket. Until then they import; then they join their process group. After a
 * restart of workers that are not warm, one line suggests --warm. The agent's own. */
#ifndef WARM_START_WATCH_H
#define WARM_START_WATCH_H

#include <uv.h>

#include "base/log.h"

struct start_watch {
    uv_timer_t timer;
    const struct log *log; /* borrowed */
    pid_t pid;             /* of one of the workers */
    uint64_t began_ms;     /* loop time */
    bool notified;
};

void start_watch_init(struct start_watch *w, uv_loop_t *loop, const struct log *log);

/* This worker was started just now. Looks at it four times a second, for a minute. */
void start_watch_begin(struct start_watch *w, pid_t pid);
void start_watch_stop(struct start_watch *w); /* it has ended; not begun: fine */
void start_watch_close(struct start_watch *w);

#endif
