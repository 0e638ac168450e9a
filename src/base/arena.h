/* arena.h - memory for many small items that are freed together, mostly parsed texts.
 * A zeroed arena is an empty one. Nothing moves until arena_fini() frees all of it. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/base.h"

struct arena_block;

struct arena {
    struct arena_block *blocks; /* owned */
};

/* Zeroed memory for count items of this size, or NULL. */
void *arena_alloc(struct arena *a, size_t count, size_t size);

/* Both return a terminated text, or NULL. */
char *arena_text(struct arena *a, struct span text);
char *arena_printf(struct arena *a, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void arena_fini(struct arena *a); /* a zeroed one is fine */

#endif
