/* collect.h - the reader's own work: looks at all workers and prints what it saw. Only
 * in the reader's process: it blocks, and starts processes. */
#ifndef STACKS_COLLECT_H
#define STACKS_COLLECT_H

#include "stacks/core/sample.h"
#include "stacks/reader.h"

/* Gives the node's part of a sample to put, a line of JSON, as soon as Python's frames
 * of the workers are known, and again when more is: whoever runs out of time has the
 * last. */
int stacks_collect(const struct stacks_read_opts *opts,
                   void (*put)(void *ctx, struct span line), void *ctx);

#endif
