/* pyform.h - two more of Python's rules for text that users type: what float() takes,
 * and how repr() shows a string in a message (int() and strip() are in rdzv/pytext.h).
 */
#ifndef GROUP_PYFORM_H
#define GROUP_PYFORM_H

#include "base/base.h"
#include "base/buf.h"

/* float(text): also inf and nan by name, and exponents; no hexadecimal. */
bool py_float(const char *text, double *out);

/* repr(text): in single quotes unless only double ones avoid escapes. */
int py_repr(struct buf *b, const char *text);

#endif
