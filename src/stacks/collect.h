/* collect.h - the reader's own work: looks at all workers and prints what it saw. Only
 * in the reader's process: it blocks, and starts processes. */
#ifndef STACKS_COLLECT_H
#define STACKS_COLLECT_H

#include "stacks/core/sample.h"
#include "stacks/reader.h"

/* Fills out with the node's part of a sample, as far as it is known when the time is
 * up. */
int stacks_collect(const struct stacks_read_opts *opts, struct buf *out);

#endif
