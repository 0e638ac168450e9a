/* repr.h - more of Python's rules for text that users type: what float() takes, how
 * repr() shows a string in a message, what int() says of a bad one (int() itself and
 * strip() are in base/py/text.h). */
#ifndef BASE_PY_REPR_H
#define BASE_PY_REPR_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* float(text): also inf and nan by name, and exponents; no hexadecimal. */
bool py_float(const char *text, double *out);

/* repr(text): in single quotes unless only double ones avoid escapes. */
int py_repr(struct buf *b, const char *text);

/* repr(float): the shortest text that reads back as the same number, and looks like a
 * float. */
int py_repr_float(struct buf *b, double v);

/* MUSTER_EINVAL: what int() says of these n bytes, and on a line of its own the remedy.
 */
int py_bad_int(struct muster_error *err, const char *text, size_t n,
               const char *remedy);

#endif
