/* async_store.h - one set of operations for every kind of store, asynchronous, on a uv
 * loop.
 *
 * Kinds: c10d over TCP (client.c), prefix, file, hash, etcd. Callers give keys as
 * users know them; what a kind puts before them on its wire is its own affair.
 * A callback comes exactly once for each call that returned 0, never from inside the
 * call itself, always on the loop's thread. Every call has a deadline. */
#ifndef STORE_ASYNC_STORE_H
#define STORE_ASYNC_STORE_H

#include <uv.h>

#include "store/core/wire.h"

struct async_store;

/* status 0 and a reply whose spans live until the callback returns; or a negative code
 * and err, which names the operation, the key and the address. For operations without
 * an answer on the wire, status 0 means "written to the connection". */
typedef void (*async_store_cb)(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *err);
typedef void (*async_store_closed_cb)(void *ctx);

enum async_store_flags {
    ASYNC_STORE_BLOCK = 1, /* GET, MULTI_GET, QUEUE_POP: wait for the keys first, as
                         torch's get, multi_get and queue_pop do */
    ASYNC_STORE_RAW =
        2, /* the keys are as on the wire: a TCP store puts no "/" before */
};

struct async_store_ops {
    const char *kind; /* "tcp", "prefix", "file", "hash", "etcd" */
    int (*call)(struct async_store *s, const struct c10d_request *req, unsigned flags,
                uint64_t timeout_ms, async_store_cb cb, void *ctx,
                struct muster_error *err);
    /* Another handle on the same data with a connection of its own. */
    int (*clone)(struct async_store *s, struct async_store **out,
                 struct muster_error *err);
    /* Calls still pending end with MUSTER_ECANCELED before cb; then s is gone. */
    void (*close)(struct async_store *s, async_store_closed_cb cb, void *ctx);
    /* "tcp://127.0.0.1:29400", for messages. */
    const char *(*name)(const struct async_store *s);
};

struct async_store {
    const struct async_store_ops *ops;
    uv_loop_t *loop;
    bool ordered; /* calls take effect in the order in which they are made */
};

/* Copies the request: its spans need not outlive the call. timeout_ms UINT64_MAX is
 * allowed for waits that the caller cancels itself by closing. */
static inline int async_store_call(struct async_store *s,
                                   const struct c10d_request *req, unsigned flags,
                                   uint64_t timeout_ms, async_store_cb cb, void *ctx,
                                   struct muster_error *err)
{
    return s->ops->call(s, req, flags, timeout_ms, cb, ctx, err);
}

static inline void async_store_close(struct async_store *s, async_store_closed_cb cb,
                                     void *ctx)
{
    s->ops->close(s, cb, ctx);
}

/* Short hands, in async_store.c. */
int async_store_set(struct async_store *s, struct span key, struct span value,
                    uint64_t timeout_ms, async_store_cb cb, void *ctx,
                    struct muster_error *err);
int async_store_get(struct async_store *s, struct span key, uint64_t timeout_ms,
                    async_store_cb cb, void *ctx,
                    struct muster_error *err); /* blocking get */
int async_store_add(struct async_store *s, struct span key, int64_t delta,
                    uint64_t timeout_ms, async_store_cb cb, void *ctx,
                    struct muster_error *err);
int async_store_compare_set(struct async_store *s, struct span key,
                            struct span expected, struct span desired,
                            uint64_t timeout_ms, async_store_cb cb, void *ctx,
                            struct muster_error *err);
int async_store_check(struct async_store *s, const struct span *keys, size_t count,
                      uint64_t timeout_ms, async_store_cb cb, void *ctx,
                      struct muster_error *err);
int async_store_wait(struct async_store *s, const struct span *keys, size_t count,
                     uint64_t timeout_ms, async_store_cb cb, void *ctx,
                     struct muster_error *err);
int async_store_multi_get(struct async_store *s, const struct span *keys, size_t count,
                          uint64_t timeout_ms, async_store_cb cb, void *ctx,
                          struct muster_error *err);
int async_store_multi_set(struct async_store *s, const struct span *keys,
                          const struct span *values, size_t count, uint64_t timeout_ms,
                          async_store_cb cb, void *ctx, struct muster_error *err);

/* A barrier out of ADD, SET and WAIT, the way torch does it on stores that have none of
 * their own: for kinds of store. */
int async_store_generic_barrier(struct async_store *s, struct span key,
                                int64_t world_size, uint64_t timeout_ms,
                                async_store_cb cb, void *ctx, struct muster_error *err);

/* A view of inner under "<prefix>/". If own is true, closing it closes inner too. */
int async_store_prefix(struct async_store *inner, const char *prefix, bool own,
                       struct async_store **out, struct muster_error *err);

#endif
