/* utf8.h - decoding UTF-8, and checking that a text is well-formed. Pure. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/base.h"

/* The character at the front of s and how many bytes it takes; 0, with *out untouched,
 * if s is empty or begins with something else: a surrogate, a form that is longer than
 * it needs to be, or a character that is cut off. */
size_t utf8_decode(struct span s, uint32_t *out);

/* True if all of s is such characters. Then its byte order is also Python's order, and
 * JSON can hold it. */
bool utf8_valid(struct span s);

#endif
