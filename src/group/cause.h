/* cause.h - what a worker's exit code means to a person: which signal, who sends such a
 * one, and where to look next. Pure. */
#ifndef GROUP_CAUSE_H
#define GROUP_CAUSE_H

#include "base/buf.h"

/* As of a process's end: negative for a signal. False, and nothing is printed, if the
 * code is the program's own affair. `signal_name` is as in struct failure;
 * `had_memory`: the kernel is known not to have killed for want of it. */
bool cause_print(struct buf *out, int code, const char *signal_name, bool had_memory);

#endif
