/* base64.h - base64 in the standard alphabet with padding, without line breaks. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include "base/buf.h"

#define BASE64_LEN(n)     (((size_t)(n) + 2) / 3 * 4)
#define BASE64_DECODED(n) ((size_t)(n) / 4 * 3) /* at most */

/* Appends the text of s: 0, MUSTER_EFULL or MUSTER_ENOMEM. */
int base64_encode(struct buf *out, struct span s);

/* Writes the bytes that text stands for to out, which has room for
 * BASE64_DECODED(text.n), and returns how many there are; or MUSTER_EPROTO if text is
 * not base64: a character outside the alphabet, missing or misplaced padding, or unused
 * bits that are not zero. */
int64_t base64_decode(uint8_t *out, struct span text);

#endif
