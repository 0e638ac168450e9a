/* etcd_store_int.h - what etcd_store.c and etcd_store_ops.c share. */
#ifndef ETCD_ETCD_STORE_INT_H
#define ETCD_ETCD_STORE_INT_H

#include "etcd/etcd_store.h"
#include "store/call.h"

struct etcd_store {
    struct async_store base;
    struct etcd_kv kv;
    char *dir, *name;     /* owned */
    const int64_t *lease; /* borrowed, may be NULL */
    struct call_list calls;
    uv_timer_t closer; /* Never runs: closing it makes on_closed come from the loop. */
    size_t ending;     /* uv handles that are being closed */
    bool closing;
    async_store_closed_cb on_closed;
    void *closed_ctx;
};

/* One call: it goes over its keys and makes a request to etcd for each. */
struct etcd_store_call {
    struct call base; /* first */
    bool block, has_list;
    int64_t sum;
    struct c10d_list list; /* keys still to come; MULTI_SET: with values */
    struct span key;       /* the current key, as the user gave it */
    struct buf path;       /* owned: of that key in etcd */
    struct buf out;        /* owned: the list of the answer, or the value to write */
    size_t total, found;
    struct etcd_op *req; /* under way */
    uv_timer_t timer;
};

static inline struct etcd_store *etcd_store_of(const struct etcd_store_call *c)
{
    return CONTAINER_OF(c->base.store, struct etcd_store, base);
}

/* Appends the path of a key: dir, and the key as it is written to this kind of etcd. */
int etcd_store_path(const struct etcd_store *s, struct span key, struct buf *out);

/* Appends to out what etcd holds, as the user wrote it. MUSTER_ESTATE: not base64. */
int etcd_store_value(const struct etcd_store *s, struct span held, struct buf *out);

uint64_t etcd_store_call_left(const struct etcd_store_call *c);

/* Both call the caller's callback and end c. */
void etcd_store_call_done(struct etcd_store_call *c, const struct c10d_reply *reply);
void etcd_store_call_fail(struct etcd_store_call *c, int status,
                          const struct muster_error *err);

/* Sends the first request of a call; called from the loop. */
void etcd_store_call_start(struct etcd_store_call *c);

#endif
