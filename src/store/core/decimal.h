/* decimal.h - the store keeps numbers as decimal text. */
#ifndef STORE_CORE_DECIMAL_H
#define STORE_CORE_DECIMAL_H

#include "base/base.h"

#define DECIMAL_MAX 20 /* "-9223372036854775808" */

/* Reads a counter as torch does: white space, a sign, digits; what follows the digits
 * is ignored. False if there are no digits or the number does not fit. */
bool decimal_parse(struct span text, int64_t *out);

/* Writes v without a terminator; returns how many bytes. */
size_t decimal_format(int64_t v, uint8_t out[DECIMAL_MAX]);

/* Wraps around: the largest number plus one is the smallest. */
static inline int64_t decimal_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

#endif
