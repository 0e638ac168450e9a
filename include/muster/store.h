/* store.h - a key-value store shared by the processes of a job.
 *
 * Every kind of store has the same operations: c10d over TCP (PyTorch's TCPStore, both
 * its servers and ours), a file (PyTorch's FileStore), memory of this process, and
 * prefixed views of these. Names and meanings are those of torch.distributed.Store.
 *
 * Every call blocks, and every call has a deadline: its timeout_ms argument where it
 * has one, else the store's own timeout (300 s unless set otherwise). When the deadline
 * has passed, the call returns MUSTER_ETIMEDOUT and the store stays usable.
 * Other errors: MUSTER_EHANGUP if the server closed the connection, or stayed silent
 * for so long after a timed-out wait that the connection was given up; every further
 * call on this store fails then. MUSTER_ENOMEM if there was no memory for the call's
 * keys and values, which is harmless, or for what has been sent or is on its way here:
 * every further call fails then, too. MUSTER_EPROTO if the server broke the protocol,
 * MUSTER_EINVAL if an argument is wrong, and MUSTER_ENOTSUP if this kind of store does
 * not have the operation. The texts name the operation, the key and the address.
 *
 * A store may be used from several threads at once. Its calls share one connection:
 * while one of them waits for a key, the others wait too, each at most until its own
 * deadline. Give each thread that waits often a clone of its own.
 *
 * A store does not survive fork(). In the child every call on it fails with
 * MUSTER_EINVAL, and muster_store_close only frees memory, so nothing that the child
 * does disturbs the parent's store. The child opens a store of its own. It keeps copies
 * of the parent's sockets, a server's too, until it ends or calls exec.
 *
 * Keys are text without NUL; values are any bytes. A TCP store takes keys of up to 8191
 * bytes and values of up to 8 MiB. */
#ifndef MUSTER_STORE_H
#define MUSTER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "muster/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MUSTER_STORE_TIMEOUT_MS UINT64_C(300000)
#define MUSTER_FOREVER          UINT64_MAX

struct muster_store; /* opaque */

/* Bytes that the caller owns and frees with muster_bytes_free. A NUL follows them,
 * which size does not count. */
struct muster_bytes {
    void *data;
    size_t size;
};

struct muster_bytes_list {
    struct muster_bytes *items;
    size_t count;
};

/* Both accept NULL and zeroed structs, and zero what they have freed. */
MUSTER_API void muster_bytes_free(struct muster_bytes *bytes);
MUSTER_API void muster_bytes_list_free(struct muster_bytes_list *list);

/* ---- opening and closing ---- */

struct muster_store_options {
    const char *host; /* name or address of the server */
    uint16_t port;
    uint64_t timeout_ms; /* for connecting, and for calls */
    bool serve;         /* run a server in this process and connect to it like any other
                           client (torch: is_master). With port 0 it takes a free port;
                           muster_store_port says which. */
    const char *bind;   /* serve: numeric address to listen on; NULL: every address */
    int listen_fd;      /* serve: a socket that is already bound, or -1. On success it
                           belongs to the store, otherwise the caller closes it. */
    int64_t world_size; /* how many stores will join, the server's own included; -1: not
                           known, and they are not counted */
    bool wait_for_workers; /* with a world_size: add this store to the count, and if it
                              serves wait until all have joined, as torch does */
};

/* Sets host NULL, port 0, MUSTER_STORE_TIMEOUT_MS, no server, world_size -1, and
 * wait_for_workers. */
MUSTER_API void muster_store_options_init(struct muster_store_options *o);

/* Connects, and until the timeout tries again if the server cannot be reached yet. The
 * error is that of the last attempt: MUSTER_EREFUSED, MUSTER_EUNREACH, MUSTER_ERESOLVE,
 * MUSTER_ENOTSTORE (another service answers), MUSTER_EHANGUP or MUSTER_ETIMEDOUT; if
 * the server cannot be started it is MUSTER_EINUSE or MUSTER_EACCES. */
MUSTER_API int muster_store_open_tcp(const struct muster_store_options *options,
                                     struct muster_store **out,
                                     struct muster_error *err);

/* Opens a file that the processes share, byte compatible with torch's FileStore. With a
 * world_size, the last of that many stores to close removes the file; with -1 the file
 * stays. */
MUSTER_API int muster_store_open_file(const char *path, int64_t world_size,
                                      uint64_t timeout_ms, struct muster_store **out,
                                      struct muster_error *err);

/* Makes a store in the memory of this process. Only its clones and views share it. */
MUSTER_API int muster_store_open_hash(uint64_t timeout_ms, struct muster_store **out,
                                      struct muster_error *err);

/* Makes a view in which every key stands for "<prefix>/<key>" of inner. inner may be
 * closed before the view is. */
MUSTER_API int muster_store_open_prefix(struct muster_store *inner, const char *prefix,
                                        struct muster_store **out,
                                        struct muster_error *err);

/* Makes another store on the same data, with a connection of its own, which is
 * established on return. */
MUSTER_API int muster_store_clone(struct muster_store *s, struct muster_store **out,
                                  struct muster_error *err);

/* No other call on s may be under way. A server that s runs ends when s and all views
 * and clones made from it are closed. NULL is fine. */
MUSTER_API void muster_store_close(struct muster_store *s);

/* The timeout of calls that have no timeout_ms argument. */
MUSTER_API void muster_store_set_timeout(struct muster_store *s, uint64_t timeout_ms);
MUSTER_API uint64_t muster_store_timeout(const struct muster_store *s);

/* A name for messages, "tcp://node7:29400" for instance. Valid as long as s. */
MUSTER_API const char *muster_store_name(const struct muster_store *s);

/* The port of the TCP server that s talks to; 0 for other kinds of store. */
MUSTER_API uint16_t muster_store_port(const struct muster_store *s);

/* ---- operations ---- */

/* A TCP server does not confirm a set: 0 means that the value was sent, not that it has
 * arrived. */
MUSTER_API int muster_store_set(struct muster_store *s, const char *key,
                                const void *value, size_t size,
                                struct muster_error *err);

/* Waits until the key exists. */
MUSTER_API int muster_store_get(struct muster_store *s, const char *key,
                                struct muster_bytes *value, struct muster_error *err);

/* Adds delta to the decimal number at key (0 if the key is missing). *result is the
 * sum; NULL is fine. */
MUSTER_API int muster_store_add(struct muster_store *s, const char *key, int64_t delta,
                                int64_t *result, struct muster_error *err);

/* Sets the key to desired if its value equals expected, or if the key is missing and
 * expected is empty. *value becomes desired if that was done, else the value that the
 * key has; if the key is missing, *value becomes expected, as in torch. */
MUSTER_API int muster_store_compare_set(struct muster_store *s, const char *key,
                                        const void *expected, size_t expected_size,
                                        const void *desired, size_t desired_size,
                                        struct muster_bytes *value,
                                        struct muster_error *err);

/* Appends to the value of the key, and makes the key if it is missing. */
MUSTER_API int muster_store_append(struct muster_store *s, const char *key,
                                   const void *value, size_t size,
                                   struct muster_error *err);

/* *deleted says whether the key existed; NULL is fine. */
MUSTER_API int muster_store_delete(struct muster_store *s, const char *key,
                                   bool *deleted, struct muster_error *err);

/* *ready says whether all the keys exist. Does not wait for them. */
MUSTER_API int muster_store_check(struct muster_store *s, const char *const *keys,
                                  size_t count, bool *ready, struct muster_error *err);

/* Waits until all the keys exist. */
MUSTER_API int muster_store_wait(struct muster_store *s, const char *const *keys,
                                 size_t count, uint64_t timeout_ms,
                                 struct muster_error *err);

/* Waits until all the keys exist. The values are in the order of the keys. */
MUSTER_API int muster_store_multi_get(struct muster_store *s, const char *const *keys,
                                      size_t count, struct muster_bytes_list *values,
                                      struct muster_error *err);

/* Sets several keys at once. values is only read. */
MUSTER_API int muster_store_multi_set(struct muster_store *s, const char *const *keys,
                                      const struct muster_bytes *values, size_t count,
                                      struct muster_error *err);

/* Counts all keys that the server keeps, also those that other clients or the server
 * itself have set. */
MUSTER_API int muster_store_num_keys(struct muster_store *s, int64_t *count,
                                     struct muster_error *err);

/* Lists the keys, in no particular order. */
MUSTER_API int muster_store_list_keys(struct muster_store *s,
                                      struct muster_bytes_list *keys,
                                      struct muster_error *err);

/* Waits until world_size callers have reached the barrier of that key. A key can serve
 * for one barrier only. */
MUSTER_API int muster_store_barrier(struct muster_store *s, const char *key,
                                    int64_t world_size, uint64_t timeout_ms,
                                    struct muster_error *err);

/* Queues are first in, first out, and their names are apart from the other keys. File
 * stores and torch's server with use_libuv=False do not have them. */
MUSTER_API int muster_store_queue_push(struct muster_store *s, const char *key,
                                       const void *value, size_t size,
                                       struct muster_error *err);

/* With block it waits for an item. MUSTER_EEMPTY means that there is none; that may
 * happen after a wait, too, if another caller took the item first. */
MUSTER_API int muster_store_queue_pop(struct muster_store *s, const char *key,
                                      bool block, struct muster_bytes *value,
                                      struct muster_error *err);

MUSTER_API int muster_store_queue_len(struct muster_store *s, const char *key,
                                      int64_t *count, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
