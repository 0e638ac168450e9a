/* need.h - checks arguments that a caller of the library must give: a NULL that the
 * header does not allow leads to an error that names the argument, not to a crash. */
#ifndef API_NEED_H
#define API_NEED_H

#include "base/base.h"
#include "base/err.h"

/* 0, or MUSTER_EINVAL. */
static inline int need(const void *given, const char *name, struct muster_error *err)
{
    return given ? 0 : err_set(err, MUSTER_EINVAL, "%s is NULL", name);
}

/* The same for bytes: NULL is fine if size is 0. */
static inline int need_bytes(const void *bytes, size_t size, const char *name,
                             struct muster_error *err)
{
    return size == 0 ? 0 : need(bytes, name, err);
}

#endif
