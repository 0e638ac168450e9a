/* wire_keys.h - what stores do to the keys of a request: put something before them,
 * take it off again, show them to people. Pure memory. */
#ifndef STORE_CORE_WIRE_KEYS_H
#define STORE_CORE_WIRE_KEYS_H

#include "store/core/wire.h"

bool c10d_has_list(enum c10d_op op);  /* CHECK, WAIT, MULTI_GET, MULTI_SET */
bool c10d_may_block(enum c10d_op op); /* GET, MULTI_GET, QUEUE_POP: may be told to wait
                                         for their keys first */

/* A request whose keys have got a prefix. Its spans point into `bytes`, and its values
 * into the request it was made from. May be moved. */
struct c10d_prefixed {
    struct c10d_request req;
    struct buf bytes; /* owned */
};

/* 0 or MUSTER_ENOMEM; to be finished in either case. */
int c10d_prefix_keys(struct c10d_prefixed *out, const struct c10d_request *req,
                     struct span prefix, struct muster_error *err);

/* The same, but nothing points into req afterwards: a copy to keep. */
int c10d_request_copy(struct c10d_prefixed *out, const struct c10d_request *req,
                      struct span prefix, struct muster_error *err);
void c10d_prefixed_fini(struct c10d_prefixed *p);

/* Appends to out the keys of the list that begin with prefix, without it, as a list;
 * *count is their number. MUSTER_ENOMEM leaves out as it was. */
int c10d_strip_keys(struct buf *out, struct c10d_list list, struct span prefix,
                    size_t *count);

/* "/a, /b": the keys of a request for a message, unprintable bytes as \xNN, cut with
 * "..." where they do not fit. "" if it has none. */
void c10d_keys_text(const struct c10d_request *req, char *out, size_t size);

#endif
