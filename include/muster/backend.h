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
 * A backend has a thread of its own. Its functions may be called from any thread, and
 * take turns. In a child of fork() they fail with MUSTER_EINVAL, and free does no more
 * than free memory. */
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

/* Connects to the place that params names, "c10d", "etcd-v2" or "etcd-v3"; for c10d
 * that may be a store that this process serves until backend and stores are gone.
 * Blocks for read_timeout (60 s) at the most. Errors: MUSTER_EINVAL with torch's words
 * for a wrong option, also for another backend; MUSTER_ECONN, MUSTER_ENOMEM,
 * MUSTER_EIO. */
MUSTER_API int muster_backend_open(const struct muster_params *params,
                                   struct muster_backend **out,
                                   struct muster_error *err);

/* What is held: bytes and their token, or nothing. The caller frees it with
 * muster_state_free. Errors: MUSTER_ECONN and others of its kind, MUSTER_ETIMEDOUT;
 * MUSTER_ESTATE if what is there was written by somebody else. */
MUSTER_API int muster_backend_get_state(struct muster_backend *b,
                                        struct muster_state *out,
                                        struct muster_error *err);

/* Replaces what is held if token is still its token (token NULL: if nothing is held),
 * and says what is held afterwards; out->won: these bytes. Two writers of equal bytes
 * may both have won. Errors as those of muster_backend_get_state: after one of these,
 * the bytes may have been written or not. */
MUSTER_API int muster_backend_set_state(struct muster_backend *b, const void *bytes,
                                        size_t size, const void *token,
                                        size_t token_size, struct muster_state *out,
                                        struct muster_error *err);

/* A store at the same place for the group's own keys, with a connection of its own. It
 * may outlive the backend; the caller closes it. */
MUSTER_API int muster_backend_store(struct muster_backend *b, struct muster_store **out,
                                    struct muster_error *err);

MUSTER_API void muster_state_free(struct muster_state *s); /* NULL, zeroed are fine */

/* Not while another thread is in one of the others. NULL is fine. */
MUSTER_API void muster_backend_free(struct muster_backend *b);

#ifdef __cplusplus
}
#endif
#endif
