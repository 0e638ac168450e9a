/* wire_int.h - what the files of the c10d wire share. */
#ifndef STORE_CORE_WIRE_INT_H
#define STORE_CORE_WIRE_INT_H

#include "store/core/wire.h"

/* What follows the opcode, one letter a field, in the order of the wire.
 * Requests: w u32 word; k key; v value; e expected; n i64 number; L list of keys;
 * P list of key-value pairs. Replies: w u32 word; f one byte; n i64 number; b value;
 * q i64 number, then a value if it is above 0; m values without a count; l i64 count
 * and as many keys. */
struct c10d_shape {
    const char *request;
    const char *reply; /* "" if there is no reply */
};

extern const struct c10d_shape c10d_shapes[C10D_OP_COUNT];

/* c10d_walk() goes over the complete elements of a list in the n bytes p, from *at on;
 * *left elements are to come. It never looks at an element twice. True once none is
 * left; false with bad 0 if more bytes are needed, or with the length that breaks its
 * limit in bad. In a list of pairs keys and values alternate, each with its limit. */
struct c10d_walk {
    const uint8_t *p;
    size_t n;
    uint64_t key_limit, value_limit; /* the same for plain lists */
    uint64_t bad;
    bool bad_is_value;
};

bool c10d_walk(struct c10d_walk *w, size_t *at, uint64_t *left);

#endif
