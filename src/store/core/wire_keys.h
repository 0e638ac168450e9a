/* wire_keys.h - what stores do with the keys of a request: add a prefix, take it off
 * again, show them in a message. Pure memory. */
#ifndef STORE_CORE_WIRE_KEYS_H
#define STORE_CORE_WIRE_KEYS_H

#include "store/core/wire.h"

bool c10d_has_list(enum c10d_op op);  /* CHECK, WAIT, MULTI_GET, MULTI_SET */
bool c10d_may_block(enum c10d_op op); /* GET, MULTI_GET, QUEUE_POP: callers may ask to
                                         wait for the keys first */

/* A request with a prefix before its keys. Its keys point into `bytes`, and its values
 * into the request it was made from. May be moved. */
struct c10d_prefixed {
    struct c10d_request req;
    struct buf bytes; /* owned */
};

/* 0 or MUSTER_ENOMEM; call c10d_prefixed_fini() in either case. */
int c10d_prefix_keys(struct c10d_prefixed *out, const struct c10d_request *req,
                     struct span prefix, struct muster_error *err);

/* The same, but the copy is independent: nothing points into req afterwards. */
int c10d_request_copy(struct c10d_prefixed *out, const struct c10d_request *req,
                      struct span prefix, struct muster_error *err);
void c10d_prefixed_fini(struct c10d_prefixed *p);

/* Appends to out the keys of the list that begin with prefix, without it, as a list;
 * *count is their number. MUSTER_ENOMEM leaves out as it was. */
int c10d_strip_keys(struct buf *out, struct c10d_list list, struct span prefix,
                    size_t *count);

/* Writes the keys of a request for a message, as in "/a, /b": unprintable bytes as
 * \xNN, and "..." if they do not fit. "" if there are none. */
void c10d_keys_text(const struct c10d_request *req, char *out, size_t size);

#endif
