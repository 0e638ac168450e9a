/* field.h - encodes and decodes the members of a struct by a table.
 *
 * A row has a member's name, offset and type; both directions walk the same rows, so
 * that there is nothing to keep in step by hand. Numbers are
 * little-endian, texts have a u32 length and, decoded, point into the bytes that they
 * came from. */
#ifndef BASE_FIELD_H
#define BASE_FIELD_H

#include <stddef.h>

#include "base/buf.h"

struct muster_error;

enum field_type { FIELD_32, FIELD_64, FIELD_SPAN };

struct field {
    const char *name;
    enum field_type type;
    size_t at;
    size_t most;       /* bytes that a text may have */
    int64_t low, high; /* a number must be in this range; both 0: any will do */
};

#define FIELD_NUMBER(in, member)                                                       \
    {                                                                                  \
#member, sizeof(((struct in *)0)->member) == 8 ? FIELD_64 : FIELD_32,          \
            offsetof(struct in, member), 0, 0, 0                                       \
    }
/* A number that the reader will add to others: what is out of range is refused, so that
 * no sum can overflow. */
#define FIELD_RANGED(in, member, low, high)                                            \
    {                                                                                  \
#member, sizeof(((struct in *)0)->member) == 8 ? FIELD_64 : FIELD_32,          \
            offsetof(struct in, member), 0, low, high                                  \
    }
#define FIELD_TEXT(in, member, most)                                                   \
    {                                                                                  \
#member, FIELD_SPAN, offsetof(struct in, member), most, 0, 0                   \
    }

/* 0, MUSTER_ENOMEM or MUSTER_EFULL (past the buffer's cap, or a text that is too long).
 */
int field_put(struct buf *out, const struct field *f, const void *from);

/* Takes the field from the front of rest, or returns MUSTER_EPROTO. The error calls the
 * whole message `what`, as in "HELLO". */
int field_get(struct span *rest, const struct field *f, void *to, const char *what,
              struct muster_error *err);

/* All fields of a table, in its order; stops at the first that fails. */
int fields_put(struct buf *out, const struct field *fields, size_t count,
               const void *from);
int fields_get(struct span *rest, const struct field *fields, size_t count, void *to,
               const char *what, struct muster_error *err);

#endif
