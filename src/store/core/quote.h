/* quote.h - shows a peer's bytes in a message: printable, short, on one line. */
#ifndef STORE_CORE_QUOTE_H
#define STORE_CORE_QUOTE_H

#include "base/base.h"

#define QUOTE_MAX 168

/* Writes "text" with quotes, unprintable bytes as \xNN, and "..." behind it if it was
 * cut; returns to. */
const char *quote(struct span bytes, char to[QUOTE_MAX]);

#endif
