/* astore.h - one set of operations for every kind of store, asynchronous, on a uv loop.
 *
 * Kinds: c10d over TCP (store_client.c), prefix, file, hash, etcd. Callers give keys as
 * users know them; what a kind puts before them on its wire is its own affair.
 * A callback comes exactly once for each call that returned 0, never from inside the
 * call itself, always on the loop's thread. Every call has a deadline. */
#ifndef STORE_ASYNC_STORE_H
#define STORE_ASYNC_STORE_H

#include <uv.h>

#include "store/core/wire.h"

struct astore;

/* status 0 and a reply whose spans live until the callback returns; or a negative code
 * and err, which names the operation, the key and the address. For operations without
 * an answer on the wire, status 0 means "written to the connection". */
typedef void (*astore_cb)(void *ctx, int status, const struct c10d_reply *reply,
                          const struct muster_error *err);
typedef void (*astore_closed_cb)(void *ctx);

enum astore_flags {
    ASTORE_BLOCK = 1, /* GET, MULTI_GET, QUEUE_POP: wait for the keys first, as torch's
                         get, multi_get and queue_pop do */
    ASTORE_RAW = 2,   /* the keys are as on the wire: a TCP store puts no "/" before */
};

struct astore_ops {
    const char *kind; /* "tcp", "prefix", "file", "hash", "etcd" */
    int (*call)(struct astore *s, const struct c10d_request *req, unsigned flags,
                uint64_t timeout_ms, astore_cb cb, void *ctx, struct muster_error *err);
    /* Another handle on the same data with a connection of its own. */
    int (*clone)(struct astore *s, struct astore **out, struct muster_error *err);
    /* Calls still pending end with MUSTER_ECANCELED before cb; then s is gone. */
    void (*close)(struct astore *s, astore_closed_cb cb, void *ctx);
    /* "tcp://127.0.0.1:29400", for messages. */
    const char *(*name)(const struct astore *s);
};

struct astore {
    const struct astore_ops *ops;
    uv_loop_t *loop;
};

/* Copies the request: its spans need not outlive the call. timeout_ms UINT64_MAX is
 * allowed for waits that the caller cancels itself by closing. */
static inline int astore_call(struct astore *s, const struct c10d_request *req,
                              unsigned flags, uint64_t timeout_ms, astore_cb cb,
                              void *ctx, struct muster_error *err)
{
    return s->ops->call(s, req, flags, timeout_ms, cb, ctx, err);
}

static inline void astore_close(struct astore *s, astore_closed_cb cb, void *ctx)
{
    s->ops->close(s, cb, ctx);
}

/* Short hands, in astore.c. */
int astore_set(struct astore *s, struct span key, struct span value,
               uint64_t timeout_ms, astore_cb cb, void *ctx, struct muster_error *err);
int astore_get(struct astore *s, struct span key, uint64_t timeout_ms, astore_cb cb,
               void *ctx, struct muster_error *err); /* blocking get */
int astore_add(struct astore *s, struct span key, int64_t delta, uint64_t timeout_ms,
               astore_cb cb, void *ctx, struct muster_error *err);
int astore_compare_set(struct astore *s, struct span key, struct span expected,
                       struct span desired, uint64_t timeout_ms, astore_cb cb,
                       void *ctx, struct muster_error *err);
int astore_check(struct astore *s, const struct span *keys, size_t count,
                 uint64_t timeout_ms, astore_cb cb, void *ctx,
                 struct muster_error *err);
int astore_wait(struct astore *s, const struct span *keys, size_t count,
                uint64_t timeout_ms, astore_cb cb, void *ctx, struct muster_error *err);
int astore_multi_get(struct astore *s, const struct span *keys, size_t count,
                     uint64_t timeout_ms, astore_cb cb, void *ctx,
                     struct muster_error *err);
int astore_multi_set(struct astore *s, const struct span *keys,
                     const struct span *values, size_t count, uint64_t timeout_ms,
                     astore_cb cb, void *ctx, struct muster_error *err);
int astore_delete(struct astore *s, struct span key, uint64_t timeout_ms, astore_cb cb,
                  void *ctx, struct muster_error *err);
int astore_barrier(struct astore *s, struct span key, int64_t world_size,
                   uint64_t timeout_ms, astore_cb cb, void *ctx,
                   struct muster_error *err);

/* A barrier out of ADD, SET and WAIT, the way torch does it on stores that have none of
 * their own: for kinds of store. */
int astore_generic_barrier(struct astore *s, struct span key, int64_t world_size,
                           uint64_t timeout_ms, astore_cb cb, void *ctx,
                           struct muster_error *err);

/* A view of inner under "<prefix>/". If own is true, closing it closes inner too. */
int astore_prefix(struct astore *inner, const char *prefix, bool own,
                  struct astore **out, struct muster_error *err);

#endif
