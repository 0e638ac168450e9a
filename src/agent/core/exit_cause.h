/* exit_cause.h - what a worker's exit code means to a person: which signal, who sends
 * such a one, and where to look next. Pure. */
#ifndef AGENT_CORE_EXIT_CAUSE_H
#define AGENT_CORE_EXIT_CAUSE_H

#include "base/buf.h"

/* `code` is negative for a signal. False, and nothing is printed, if the code is the
 * program's own. `signal_name` is as in struct failure; `oom_kills` is how many
 * processes the kernel has killed for lack of memory, negative if that is not known. If
 * there are any, they explain a SIGKILL, and the caller reports them. */
bool exit_cause_print(struct buf *out, int code, const char *signal_name,
                      int64_t oom_kills);

/* What such a signal usually means; false: nothing is known of it. */
bool exit_cause_means(struct buf *out, int sig);

#endif
