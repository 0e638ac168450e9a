/* repr.h - more of Python's rules for text that users type: what float() accepts, how
 * repr() shows a string, and int()'s error message (int() itself and strip() are in
 * base/py/text.h). */
#ifndef BASE_PY_REPR_H
#define BASE_PY_REPR_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* As float(text): takes inf and nan by name, and exponents, but not hexadecimal. False
 * if the text is not a number. */
bool py_float(const char *text, double *out);

/* Appends repr(text): in single quotes unless double ones avoid escapes. */
int py_repr(struct buf *b, const char *text);

/* Appends repr(v): the shortest text that reads back as the same number and looks like
 * a float. */
int py_repr_float(struct buf *b, double v);

/* Sets err to what int() says of these n bytes, with the remedy on a line of its own.
 * Returns MUSTER_EINVAL, or MUSTER_ENOMEM. */
int py_bad_int(struct muster_error *err, const char *text, size_t n,
               const char *remedy);

#endif
