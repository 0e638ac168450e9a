/* exit_cause.h - what a worker's exit code means to a person: which signal, who sends
 * such a one, and where to look next. Pure. */
#ifndef AGENT_CORE_EXIT_CAUSE_H
#define AGENT_CORE_EXIT_CAUSE_H

#include "base/buf.h"

/* As of a process's end: negative for a signal. False, and nothing is printed, if the
 * code is the program's own affair. `signal_name` is as in struct failure;
 * `oom_kills` is how many the kernel has killed for want of memory, negative if that is
 * not known: if it has, that is the cause of a SIGKILL, and for others to tell. */
bool exit_cause_print(struct buf *out, int code, const char *signal_name,
                      int64_t oom_kills);

/* What such a signal means to most; false: nothing is known of it. */
bool exit_cause_means(struct buf *out, int sig);

#endif
