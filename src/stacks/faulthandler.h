/* faulthandler.h - Python frames where ptrace is forbidden: a warm worker that finds it
 * so has faulthandler print, on a signal, into a file in memory (see
 * print_stacks_when_asked in src/warm/server.py). Blocks; for the reader's own process
 * (see reader.h). */
#ifndef STACKS_FAULTHANDLER_H
#define STACKS_FAULTHANDLER_H

#include "stacks/core/sample.h"

/* Asks the main thread of p where it is, and waits until by_ms for its answer.
 * MUSTER_ENOTSUP: it has no such handler, and got no signal; MUSTER_ETIMEDOUT: it did
 * not answer; MUSTER_ENOMEM, MUSTER_EEMPTY. */
int faulthandler_read(struct arena *a, struct stack_process *p, uint64_t by_ms,
                      struct muster_error *err);

#endif
