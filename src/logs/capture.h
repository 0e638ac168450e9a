/* capture.h - a worker's stderr on its way to the console: shown at once, and the end
 * of it remembered for the day the worker fails.
 *
 * What the worker sees stays as it was. Where our stderr is a terminal the worker gets
 * a terminal; where it is a pipe or a socket, a pipe; a file or /dev/null is inherited
 * as it is, and nothing is in between. Where stdout and stderr are one and the same
 * (a terminal, `2>&1 | tee`) they are one for the worker, so that its lines stay in
 * the order in which it wrote them.
 * A worker that writes nothing costs a descriptor. */
#ifndef LOGS_CAPTURE_H
#define LOGS_CAPTURE_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct captures;

int captures_open(uv_loop_t *loop, size_t workers, struct captures **out,
                  struct muster_error *err);

/* Before the workers of an attempt: forgets those of the one before. */
void captures_reset(struct captures *c);

/* *out and *err are what the worker's streams would be, -1 for the console; those that
 * are captured become descriptors that the caller closes. Where that fails they stay
 * as they are: the words are lost, nothing else. */
void captures_worker(struct captures *c, size_t worker, int *out, int *err);

/* What the worker wrote last, at most LAST_WORDS_BYTES; borrowed until it writes more.
 * *traceback_us: wall clock at which the last traceback began to come, or 0. */
struct span captures_tail(const struct captures *c, size_t worker,
                          int64_t *traceback_us);

/* The workers are gone: shows what is still on its way, then cb, never from within. */
void captures_drain(struct captures *c, void (*cb)(void *ctx), void *ctx);

void captures_close(struct captures *c); /* NULL is fine; the loop must run once more */

#endif
