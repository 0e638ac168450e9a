/* file_timer.h - torch's file timer (TORCHELASTIC_ENABLE_FILE_TIMER=1): a FIFO in which
 * workers announce deadlines, and a signal for those that miss theirs. */
#ifndef AGENT_FILE_TIMER_H
#define AGENT_FILE_TIMER_H

#include <sys/types.h>
#include <uv.h>

#include "agent/core/file_timer.h"

struct watchdog;

struct watchdog_opts {
    uv_loop_t *loop;
    const char *path; /* a file there already goes; copied */
    /* Somebody missed a deadline; e->sig is 0 if nobody is to be killed for it. */
    void (*on_expired)(void *ctx, const struct timer_entry *e);
    void (*on_nonsense)(void *ctx, const struct muster_error *err);
    void *ctx;
};

int watchdog_open(const struct watchdog_opts *opts, struct watchdog **out,
                  struct muster_error *err);
void watchdog_close(struct watchdog *w); /* removes the FIFO; NULL is fine */

#endif
