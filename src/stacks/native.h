/* native.h - the native frames of a thread. Blocks; for the reader's own
 * process (see reader.h). */
#ifndef STACKS_NATIVE_H
#define STACKS_NATIVE_H

#include "stacks/core/sample.h"

/* Adds the native frames of a thread of p's, 0 for the main one, which is made if p has
 * none. The thread is held for as long as it takes to copy its registers and the top of
 * its stack, well below a millisecond; the unwinding works on the copy. One that does
 * not stop in time is let go. MUSTER_ENOTSUP: this build or this machine cannot;
 * MUSTER_EACCES: ptrace is forbidden; MUSTER_EIO. */
int native_read(struct arena *a, struct stack_process *p, size_t thread,
                struct muster_error *err);

#endif
