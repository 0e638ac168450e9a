/* err.h - filling in a struct muster_error. Every function accepts err == NULL. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

#include "muster/error.h"

/* Sets code and text and returns code, so that a caller can `return err_set(...)`. */
int err_set(struct muster_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int err_vset(struct muster_error *err, int code, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Puts "<where>: " before the text; returns err->code, or MUSTER_EBUG if err is NULL:
 * callers that may pass NULL return their own code. */
int err_wrap(struct muster_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends to the text, mostly a remedy. */
void err_add(struct muster_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

int err_nomem(struct muster_error *err);

/* Copies from into to; returns from's code. */
int err_copy(struct muster_error *to, const struct muster_error *from);

#endif
