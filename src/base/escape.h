/* escape.h - makes bytes from outside harmless for a terminal, a log or JSON. */
#ifndef BASE_ESCAPE_H
#define BASE_ESCAPE_H

#include "base/base.h"
#include "base/buf.h"

enum escape_flag {
    ESCAPE_LINES = 1, /* newlines may stay */
};

/* Appends text as valid UTF-8 that a terminal only displays: control characters except
 * tabs, broken UTF-8, and characters that change the direction of writing become \x1b,
 * \u202e and so on. Returns 0; or MUSTER_EFULL or MUSTER_ENOMEM, and then as much as
 * fits has been appended. */
int escape_append(struct buf *out, struct span text, unsigned flags);

/* Writes the escaped text to a buffer of the caller, cut between characters if it is
 * too long; returns to. */
char *escape_text(char *to, size_t size, struct span text);

#endif
