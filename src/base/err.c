/* err.c - errors with text; see err.h. Pure memory, safe from any thread. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

int err_vset(struct muster_error *err, int code, const char *fmt, va_list ap)
{
    if (err) {
        err->code = code;
        (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
    }
    return code;
}

int err_set(struct muster_error *err, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)err_vset(err, code, fmt, ap);
    va_end(ap);
    return code;
}

int err_wrap(struct muster_error *err, const char *fmt, ...)
{
    struct muster_error old;
    va_list ap;

    if (!err)
        return MUSTER_EBUG;
    old = *err;
    va_start(ap, fmt);
    (void)err_vset(err, old.code, fmt, ap);
    va_end(ap);
    err_add(err, ": %s", old.text);
    return old.code;
}

void err_add(struct muster_error *err, const char *fmt, ...)
{
    va_list ap;
    size_t len;

    if (!err)
        return;
    len = strnlen(err->text, sizeof err->text - 1);
    va_start(ap, fmt);
    (void)vsnprintf(err->text + len, sizeof err->text - len, fmt, ap);
    va_end(ap);
}

int err_nomem(struct muster_error *err)
{
    return err_set(err, MUSTER_ENOMEM, "out of memory");
}

int err_copy(struct muster_error *to, const struct muster_error *from)
{
    if (to)
        *to = *from;
    return from->code;
}

const char *muster_code_name(int code)
{
    switch (code) {
    case 0:
        return "OK";
#define NAME(name, value, text)                                                        \
    case value:                                                                        \
        return #name;
        MUSTER_ERRORS(NAME)
#undef NAME
    }
    return "MUSTER_E?";
}

const char *muster_code_text(int code)
{
    switch (code) {
    case 0:
        return "success";
#define TEXT(name, value, text)                                                        \
    case value:                                                                        \
        return text;
        MUSTER_ERRORS(TEXT)
#undef TEXT
    }
    return "unknown error";
}

const char *muster_version(void)
{
    return MUSTER_VERSION;
}
