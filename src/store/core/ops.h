/* ops.h - the handlers of requests, and what they share. There is one for each request.
 *
 * Each first checks, then reserves what it needs, then changes; nothing can fail after
 * the first change. */
#ifndef STORE_CORE_OPS_H
#define STORE_CORE_OPS_H

#include "store/core/store_int.h"

/* What a handler needs to know. */
struct ask {
    uint32_t peer;
    const struct c10d_request *req;
    struct store_fx *fx; /* with room for the few effects that every step may have */
};

typedef int (*handler_fn)(struct store *s, const struct ask *a);

/* ops.c */
int on_set(struct store *s, const struct ask *a);
int on_compare_set(struct store *s, const struct ask *a);
int on_get(struct store *s, const struct ask *a);
int on_add(struct store *s, const struct ask *a);
int on_append(struct store *s, const struct ask *a);
int on_delete(struct store *s, const struct ask *a);
int on_num_keys(struct store *s, const struct ask *a);
int on_list_keys(struct store *s, const struct ask *a);
int on_multi_get(struct store *s, const struct ask *a);
int on_multi_set(struct store *s, const struct ask *a);
int on_check(struct store *s, const struct ask *a);
int on_wait(struct store *s, const struct ask *a);
int on_cancel(struct store *s, const struct ask *a);
int on_barrier(struct store *s, const struct ask *a);
int on_queue_push(struct store *s, const struct ask *a);
int on_queue_pop(struct store *s, const struct ask *a);
int on_queue_len(struct store *s, const struct ask *a);

/* store.c; those with a result return 0, for handlers to return. */
int reply_number(const struct ask *a, int64_t number);
int reply_value(const struct ask *a, struct span value);
int refuse_key(struct store *s, const struct ask *a, struct span key, const char *why);
int refuse_size(struct store *s, const struct ask *a, uint64_t size);
void peer_leave(struct store *s, uint32_t peer, struct store_fx *fx);

/* ops.c: makes the entry if *k is NULL, and reserves memory for a value of n bytes. */
int make_room(struct store *s, struct span name, size_t n, struct key **k,
              uint8_t **block);

#endif
