/* pyspy.h - what `py-spy dump --json` prints, read into a process. Pure. */
#ifndef STACKS_CORE_PYSPY_H
#define STACKS_CORE_PYSPY_H

#include "stacks/core/sample.h"

/* Replaces p's threads, the main one first; texts go into the arena. Frames that the
 * interpreter or a wrapper of torch adds are kept. MUSTER_EPROTO: not such a text,
 * MUSTER_EEMPTY: it found no thread. p is unchanged unless 0 is returned. */
int pyspy_parse(struct arena *a, struct stack_process *p, struct span json,
                struct muster_error *err);

#endif
