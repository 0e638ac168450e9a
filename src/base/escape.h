/* escape.h - bytes of strangers made harmless for a terminal, a log or JSON. */
#ifndef BASE_ESCAPE_H
#define BASE_ESCAPE_H

#include "base/base.h"
#include "base/buf.h"

enum escape_flag {
    ESCAPE_LINES = 1, /* newlines may stay */
};

/* Appends text as valid UTF-8 that does nothing but stand there: control characters
 * (but tabs), broken UTF-8, and what turns the direction of writing become \x1b,
 * \u202e and so on. 0, MUSTER_EFULL or MUSTER_ENOMEM; what fits is there then. */
int escape_append(struct buf *out, struct span text, unsigned flags);

/* Into a buffer of the caller, cut at a character if need be; returns to. */
char *escape_text(char *to, size_t size, struct span text);

#endif
