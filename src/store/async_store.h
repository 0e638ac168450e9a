/* async_store.h - one set of asynchronous operations for every kind of store, on a uv
 * loop.
 *
 * The kinds are c10d over TCP (client.c), prefix, file, hash and etcd. Callers give
 * keys as users know them; each kind adds what it puts before them on its wire. A
 * callback comes exactly once for each call that returned 0, never from inside the call
 * itself, always on the loop's thread. Every call has a deadline. */
#ifndef STORE_ASYNC_STORE_H
#define STORE_ASYNC_STORE_H

#include <uv.h>

#include "store/core/wire.h"

struct async_store;

/* Either status is 0, and the spans of the reply live until the callback returns; or it
 * is a negative code, and err names the operation, the key and the address. For
 * operations without an answer on the wire, 0 means "written to the connection". */
typedef void (*async_store_cb)(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *err);
typedef void (*async_store_closed_cb)(void *ctx);

enum async_store_flags {
    /* GET, MULTI_GET, QUEUE_POP: wait for the keys first, as torch's get, multi_get and
     * queue_pop do. */
    ASYNC_STORE_BLOCK = 1,
    /* The keys are as on the wire: a TCP store does not put a "/" before them. */
    ASYNC_STORE_RAW = 2,
};

struct async_store_ops {
    const char *kind; /* "tcp", "prefix", "file", "hash", "etcd" */
    bool own_barrier; /* otherwise a BARRIER is made of ADD, SET and WAIT */
    int (*call)(struct async_store *s, const struct c10d_request *req, unsigned flags,
                uint64_t timeout_ms, async_store_cb cb, void *ctx,
                struct muster_error *err);
    /* Makes another handle on the same data, with a connection of its own. */
    int (*clone)(struct async_store *s, struct async_store **out,
                 struct muster_error *err);
    /* Ends calls still pending with MUSTER_ECANCELED; then, from the loop, calls
     * async_store_closed() and frees s. */
    void (*close)(struct async_store *s);
};

struct async_store {
    const struct async_store_ops *ops;
    uv_loop_t *loop;
    const char *name; /* "tcp://127.0.0.1:29400", for messages; as long as the store */
    bool ordered;     /* calls take effect in the order in which they are made */
    bool silent; /* a dialogue has found that its connection does not answer any more */
    struct async_store *inner;    /* what this is a view of; NULL: it is not a view */
    async_store_closed_cb closed; /* what async_store_close() was given */
    void *closed_ctx;
};

/* Copies the request: its spans need not outlive the call. timeout_ms may be UINT64_MAX
 * for waits that the caller ends by closing the store. */
int async_store_call(struct async_store *s, const struct c10d_request *req,
                     unsigned flags, uint64_t timeout_ms, async_store_cb cb, void *ctx,
                     struct muster_error *err);

/* Calls still pending end with MUSTER_ECANCELED before cb, which may be NULL; then s is
 * gone. */
static inline void async_store_close(struct async_store *s, async_store_closed_cb cb,
                                     void *ctx)
{
    s->closed = cb;
    s->closed_ctx = ctx;
    s->ops->close(s);
}

static inline void async_store_closed(const struct async_store *s)
{
    if (s->closed)
        s->closed(s->closed_ctx);
}

/* Shorthands, in async_store.c. */
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
int async_store_check(struct async_store *s, struct span key, uint64_t timeout_ms,
                      async_store_cb cb, void *ctx, struct muster_error *err);
int async_store_wait(struct async_store *s, struct span key, uint64_t timeout_ms,
                     async_store_cb cb, void *ctx, struct muster_error *err);

/* In barrier.c, for async_store_call(). */
int async_store_generic_barrier(struct async_store *s, struct span key,
                                int64_t world_size, uint64_t timeout_ms,
                                async_store_cb cb, void *ctx, struct muster_error *err);

/* A view of inner under "<prefix>/". If own is true, closing it closes inner too. */
int async_store_prefix(struct async_store *inner, const char *prefix, bool own,
                       struct async_store **out, struct muster_error *err);

/* A store in this process's memory, like torch's HashStore: the engine of our server
 * without the wire. Clones share the data and use one loop. */
int store_hash_open(uv_loop_t *loop, struct async_store **out,
                    struct muster_error *err);

/* A store in a file that processes share, in the format of torch's FileStore. It adds
 * itself to the file's count of users at once, or as soon as the lock is free.
 * world_size is how many stores will use the file; the last of them to close removes
 * it. With -1 nobody removes it. */
int store_file_open(uv_loop_t *loop, const char *path, int64_t world_size,
                    struct async_store **out, struct muster_error *err);

#endif
