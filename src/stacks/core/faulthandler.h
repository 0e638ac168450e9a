/* faulthandler.h - what Python's faulthandler prints of one thread, read into a
 * stack_process. Pure.
 *
 *     Stack (most recent call first):
 *       File "/home/ada/data.py", line 31 in load_batch
 *       File "/home/ada/train.py", line 117 in <module>
 */
#ifndef STACKS_CORE_FAULTHANDLER_H
#define STACKS_CORE_FAULTHANDLER_H

#include "stacks/core/sample.h"

/* Such a text has no end of its own. A process that was asked twice begins again when
 * the first is whole: whether that has happened. */
bool faulthandler_whole(struct span text);

/* The frames of the first of them become those of p's main thread, the only one that p
 * has then. MUSTER_EEMPTY: there is no frame in it. */
int faulthandler_parse(struct arena *a, struct stack_process *p, struct span text,
                       struct muster_error *err);

/* Whether the file of a thread in /proc (task/TID/status) says that a handler takes
 * this signal at once. */
bool faulthandler_listens(struct span status, int sig);

#endif
