/* store.h - a key-value store shared by the processes of a job.
 *
 * One set of operations for every kind of store: c10d over TCP (PyTorch's TCPStore,
 * both its servers and ours), a file (PyTorch's FileStore), memory of this process, and
 * prefixed views of these. Names and meanings are those of torch.distributed.Store.
 *
 * Every call blocks, and every call has a deadline: that of its timeout_ms argument
 * where it has one, else the store's own (300 s unless set otherwise). When it is over
 * the call returns MUSTER_ETIMEDOUT and the store stays usable.
 * Other errors: MUSTER_EHANGUP if the server closed the connection, or was silent for
 * so long after a wait had timed out that it was given up, after which every further
 * call on this store fails; MUSTER_EPROTO if it answered nonsense; MUSTER_EINVAL if an
 * argument is wrong; MUSTER_ENOTSUP if this kind of store cannot do it; MUSTER_ENOMEM.
 * The texts name the operation, the key and the address.
 *
 * A store may be used from several threads at once. Its calls share one connection:
 * while one of them waits for a key, the others wait too, each at most until its own
 * deadline. Give threads that wait often a clone each.
 *
 * A store does not survive fork(): in the child every call on it fails with
 * MUSTER_EINVAL, and muster_store_close does no more than free memory, so that the
 * parent's store goes on whatever the child does. The child opens its own. It holds the
 * parent's sockets, that of a server too, until it ends or calls exec.
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

/* Bytes that the caller owns: free them with muster_bytes_free. There is a NUL behind
 * them which does not count. */
struct muster_bytes {
    void *data;
    size_t size;
};

struct muster_bytes_list {
    struct muster_bytes *items;
    size_t count;
};

/* Both take NULL and zeroed ones, and leave them zeroed. */
MUSTER_API void muster_bytes_free(struct muster_bytes *bytes);
MUSTER_API void muster_bytes_list_free(struct muster_bytes_list *list);

/* ---- opening and closing ---- */

struct muster_store_options {
    const char *host; /* name or address of the server */
    uint16_t port;
    uint64_t timeout_ms; /* to connect, and for calls */
    bool serve; /* run a server in this process, then connect to it like anybody else
                   (torch: is_master). port 0 takes any free one: muster_store_port. */
    const char *bind; /* serve: numeric address to listen on; NULL: every address */
    int listen_fd;    /* serve: an already bound socket instead, or -1; ours on success,
                         the caller's to close otherwise */
    int64_t world_size; /* how many stores will join, the server's own included; -1: not
                           known, nobody is counted */
    bool wait_for_workers; /* with a world_size: count in, and if serving wait until all
                              have; as torch does */
};

/* host NULL, port 0, MUSTER_STORE_TIMEOUT_MS, no server, world_size -1, waits for
 * workers. */
MUSTER_API void muster_store_options_init(struct muster_store_options *o);

/* Connects, and tries again while the server is not there yet, until the timeout.
 * Errors say what stood in the way last: MUSTER_EREFUSED, MUSTER_EUNREACH,
 * MUSTER_ERESOLVE, MUSTER_ENOTSTORE (another service answers), MUSTER_EHANGUP,
 * MUSTER_ETIMEDOUT; MUSTER_EINUSE, MUSTER_EACCES if serving is not possible. */
MUSTER_API int muster_store_open_tcp(const struct muster_store_options *options,
                                     struct muster_store **out,
                                     struct muster_error *err);

/* A file that the processes share, byte compatible with torch's FileStore. With a
 * world_size, the last of that many stores to close removes the file; -1: it stays. */
MUSTER_API int muster_store_open_file(const char *path, int64_t world_size,
                                      uint64_t timeout_ms, struct muster_store **out,
                                      struct muster_error *err);

/* Memory of this process: shared with the store's clones and views only. */
MUSTER_API int muster_store_open_hash(uint64_t timeout_ms, struct muster_store **out,
                                      struct muster_error *err);

/* A view in which every key stands for "<prefix>/<key>" of inner. inner may be closed
 * before it. */
MUSTER_API int muster_store_open_prefix(struct muster_store *inner, const char *prefix,
                                        struct muster_store **out,
                                        struct muster_error *err);

/* Another store on the same data, with a connection of its own, which is there on
 * return. */
MUSTER_API int muster_store_clone(struct muster_store *s, struct muster_store **out,
                                  struct muster_error *err);

/* No other call on s may be under way. A server that it runs ends with the last store
 * made from it (views and clones included). NULL is fine. */
MUSTER_API void muster_store_close(struct muster_store *s);

/* The timeout of calls that have no timeout_ms argument. */
MUSTER_API void muster_store_set_timeout(struct muster_store *s, uint64_t timeout_ms);
MUSTER_API uint64_t muster_store_timeout(const struct muster_store *s);

/* "tcp://node7:29400": for messages. Lives as long as s. */
MUSTER_API const char *muster_store_name(const struct muster_store *s);

/* The port of the TCP server that it talks to; 0 for other kinds. */
MUSTER_API uint16_t muster_store_port(const struct muster_store *s);

/* ---- operations ---- */

/* A TCP server sends no receipt: 0 means that it is on its way. */
MUSTER_API int muster_store_set(struct muster_store *s, const char *key,
                                const void *value, size_t size,
                                struct muster_error *err);

/* Waits until the key exists. */
MUSTER_API int muster_store_get(struct muster_store *s, const char *key,
                                struct muster_bytes *value, struct muster_error *err);

/* Adds to the decimal number at key (0 if missing); *result is the sum, NULL is fine.
 */
MUSTER_API int muster_store_add(struct muster_store *s, const char *key, int64_t delta,
                                int64_t *result, struct muster_error *err);

/* Sets desired if the value is expected, or if the key is missing and expected is
 * empty. *value is desired if that was done, else what is there; if the key is missing
 * it is, as in torch, expected. */
MUSTER_API int muster_store_compare_set(struct muster_store *s, const char *key,
                                        const void *expected, size_t expected_size,
                                        const void *desired, size_t desired_size,
                                        struct muster_bytes *value,
                                        struct muster_error *err);

MUSTER_API int muster_store_append(struct muster_store *s, const char *key,
                                   const void *value, size_t size,
                                   struct muster_error *err);

/* *deleted: whether it was there; NULL is fine. */
MUSTER_API int muster_store_delete(struct muster_store *s, const char *key,
                                   bool *deleted, struct muster_error *err);

/* *ready: whether all the keys exist. Does not wait. */
MUSTER_API int muster_store_check(struct muster_store *s, const char *const *keys,
                                  size_t count, bool *ready, struct muster_error *err);

/* Waits until all the keys exist. */
MUSTER_API int muster_store_wait(struct muster_store *s, const char *const *keys,
                                 size_t count, uint64_t timeout_ms,
                                 struct muster_error *err);

/* Waits until all the keys exist; values in the order of the keys. */
MUSTER_API int muster_store_multi_get(struct muster_store *s, const char *const *keys,
                                      size_t count, struct muster_bytes_list *values,
                                      struct muster_error *err);

/* values are borrowed and not changed. */
MUSTER_API int muster_store_multi_set(struct muster_store *s, const char *const *keys,
                                      const struct muster_bytes *values, size_t count,
                                      struct muster_error *err);

/* Counts what the server keeps, which may be more than you put there. */
MUSTER_API int muster_store_num_keys(struct muster_store *s, int64_t *count,
                                     struct muster_error *err);

/* In any order. */
MUSTER_API int muster_store_list_keys(struct muster_store *s,
                                      struct muster_bytes_list *keys,
                                      struct muster_error *err);

/* Waits until world_size callers have come to the barrier of that key. A key is good
 * for one barrier. */
MUSTER_API int muster_store_barrier(struct muster_store *s, const char *key,
                                    int64_t world_size, uint64_t timeout_ms,
                                    struct muster_error *err);

/* Queues: first in, first out, a name space of their own. Not on files, nor on torch's
 * server with use_libuv=False. */
MUSTER_API int muster_store_queue_push(struct muster_store *s, const char *key,
                                       const void *value, size_t size,
                                       struct muster_error *err);

/* If block, waits for an item. MUSTER_EEMPTY if there is none, which may happen even
 * after a wait: another may have been faster. */
MUSTER_API int muster_store_queue_pop(struct muster_store *s, const char *key,
                                      bool block, struct muster_bytes *value,
                                      struct muster_error *err);

MUSTER_API int muster_store_queue_len(struct muster_store *s, const char *key,
                                      int64_t *count, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
