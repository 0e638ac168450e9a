/* backend.h - the place where the nodes of a run keep the state of their rendezvous,
 * without the rules of who joins: torch's RendezvousBackend, for handlers that have
 * rules of their own.
 *
 *     muster_params_new("etcd-v3", "head:2379", "job1", 2, 4, NULL, &params, &err);
 *     muster_backend_open(params, &backend, &err);
 *     muster_backend_get_state(backend, &state, &err);
 *     ... make the next state out of it ...
 *     muster_backend_set_state(backend, next, size, state.token, state.token_size,
 *                              &held, &err); // held.won, or somebody was faster
 *     muster_state_free(&state);
 *     muster_state_free(&held);
 *     muster_backend_free(backend);
 *
 * Keys and values are those of torch's backends c10d and etcd-v2, and of our etcd-v3,
 * so that a handler that writes torch's state meets torch's nodes and ours.
 *
 * A backend has a thread of its own. Its functions may be called from any thread; calls
 * at the same time are run one after the other. In a child of fork() they fail with
 * MUSTER_EINVAL, and free only frees memory. */
#ifndef MUSTER_BACKEND_H
#define MUSTER_BACKEND_H

#include <stddef.h>

#include <muster/error.h>
#include <muster/params.h>
#include <muster/registry.h>
#include <muster/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_backend;

/* Connects to the backend that params names: "c10d", "etcd-v2" or "etcd-v3". For c10d
 * that may be a store that this process serves, until the backend is freed and all of
 * its stores are closed. Blocks for at most read_timeout (60 s). Errors: MUSTER_EINVAL
 * with torch's words for a wrong option, also for any other backend; MUSTER_ECONN,
 * MUSTER_ENOMEM, MUSTER_EIO. */
MUSTER_API int muster_backend_open(const struct muster_params *params,
                                   struct muster_backend **out,
                                   struct muster_error *err);

/* Reads what is held: bytes and their token, or nothing. The caller frees it with
 * muster_state_free. Errors: MUSTER_ECONN and other connection errors,
 * MUSTER_ETIMEDOUT; MUSTER_ESTATE if the value there is not one that a backend of this
 * kind writes. */
MUSTER_API int muster_backend_get_state(struct muster_backend *b,
                                        struct muster_state *out,
                                        struct muster_error *err);

/* Replaces what is held if token is still its token (with token NULL: if nothing is
 * held), and writes what is held afterwards to *out. out->won says that these are the
 * caller's bytes; two writers of equal bytes may both have won. Errors are those of
 * muster_backend_get_state; after an error the bytes may or may not have been written.
 */
MUSTER_API int muster_backend_set_state(struct muster_backend *b, const void *bytes,
                                        size_t size, const void *token,
                                        size_t token_size, struct muster_state *out,
                                        struct muster_error *err);

/* Opens a store at the same place for the group's own keys, with a connection of its
 * own. It may outlive the backend; the caller closes it. */
MUSTER_API int muster_backend_store(struct muster_backend *b, struct muster_store **out,
                                    struct muster_error *err);

MUSTER_API void muster_state_free(struct muster_state *s); /* NULL, zeroed are fine */

/* No other call on b may be under way. NULL is fine. */
MUSTER_API void muster_backend_free(struct muster_backend *b);

#ifdef __cplusplus
}
#endif
#endif
