/* rendezvous.h - nodes find each other, agree who is in and in which order, and notice
 * who is gone: torch's RendezvousHandler, for nodes of ours and of torchrun in one
 * group.
 *
 *     muster_params_new("c10d", "head:29400", "job1", 2, 4, NULL, &params, &err);
 *     muster_rendezvous_open(params, NULL, NULL, &rdzv, &err);
 *     muster_rendezvous_next(rdzv, &info, &err); // blocks; info.rank of world_size
 *     ... work; num_nodes_waiting() > 0 or news: stop, and next() again ...
 *     muster_rendezvous_shutdown(rdzv, &err);    // closes the run for everybody
 *     muster_rendezvous_free(rdzv);
 *
 * The handler has a thread of its own, so that heartbeats go on while the caller
 * computes. Its functions may be called from any thread; next() from one at a time:
 * a second one meanwhile fails with MUSTER_EINVAL. Several calls of set_closed() at
 * once count as one and get the same answer, and so do those of leave(). After
 * shutdown(), and while it is under way, all of these fail with MUSTER_EINVAL.
 *
 * A handler does not survive fork(): in the child its functions fail with
 * MUSTER_EINVAL, is_closed and num_nodes_waiting say 0, cancel does nothing, and free
 * does no more than free memory: the parent's handler goes on whatever the child does.
 */
#ifndef MUSTER_RENDEZVOUS_H
#define MUSTER_RENDEZVOUS_H

#include <stdint.h>

#include <muster/error.h>
#include <muster/params.h>
#include <muster/registry.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_rendezvous;
struct muster_store; /* store.h */

/* Where next() has led to. The pointers are the handler's and hold until its next
 * next() or free; the store until shutdown, too, which closes it. */
struct muster_rendezvous_info {
    uint64_t round;
    int64_t rank, world_size;   /* of nodes */
    struct muster_store *store; /* the round's own keys; not to be closed, but clones
                                   and views of it are, before the handler is freed */
    const char *master_addr;    /* where the workers' store is, or is to be */
    uint16_t master_port;
};

/* What a running node should know. */
enum muster_news {
    MUSTER_NEWS_WAITING, /* somebody waits for the next round */
    MUSTER_NEWS_LOST,    /* a member of the running round is gone */
    MUSTER_NEWS_EVICTED, /* the others have dropped this node */
    MUSTER_NEWS_CLOSED,  /* the run id was closed */
    MUSTER_NEWS_BACKEND, /* the store is unreachable or unreadable */
};

enum muster_log_level {
    MUSTER_LOG_DEBUG,
    MUSTER_LOG_INFO,
    MUSTER_LOG_WARN,
    MUSTER_LOG_ERROR
};

/* All on the handler's own thread: be quick, and call nothing of the handler. */
struct muster_rendezvous_hooks {
    void *ctx;
    void (*log)(void *ctx, enum muster_log_level level, const char *text);
    void (*news)(void *ctx, enum muster_news news, const char *text);
};

/* Makes the handler of params' backend, connecting to nobody yet; params is copied.
 * registry NULL: the built-in backends. hooks NULL: silence; else copied. Errors:
 * MUSTER_EINVAL with torch's words for a wrong option, MUSTER_ENOENT for an unknown
 * backend, MUSTER_ENOTSUP, MUSTER_ENOMEM, MUSTER_EIO. */
MUSTER_API int muster_rendezvous_open(const struct muster_params *params,
                                      const struct muster_registry *registry,
                                      const struct muster_rendezvous_hooks *hooks,
                                      struct muster_rendezvous **out,
                                      struct muster_error *err);

/* Takes part in the next round; blocks until it is complete. A member of the running
 * round leaves that first. Errors: MUSTER_ECLOSED, MUSTER_EGRACEFUL (a spare that was
 * not needed, which is not a failure), MUSTER_ETIMEDOUT, MUSTER_ECONN, MUSTER_ESTATE,
 * MUSTER_ECANCELED, MUSTER_ENOMEM. */
MUSTER_API int muster_rendezvous_next(struct muster_rendezvous *r,
                                      struct muster_rendezvous_info *out,
                                      struct muster_error *err);

/* From another thread: next() ends with MUSTER_ECANCELED, its place handed back. */
MUSTER_API void muster_rendezvous_cancel(struct muster_rendezvous *r);

/* Cached: milliseconds old with a store of ours, up to a second with torch's. */
MUSTER_API int muster_rendezvous_is_closed(struct muster_rendezvous *r);
MUSTER_API int64_t muster_rendezvous_num_nodes_waiting(struct muster_rendezvous *r);

/* Closes the run id for everybody, for good; connects first if next() has not. Errors:
 * MUSTER_ECONN if there is no store within read_timeout, MUSTER_ETIMEDOUT,
 * MUSTER_ESTATE, MUSTER_EINVAL. */
MUSTER_API int muster_rendezvous_set_closed(struct muster_rendezvous *r,
                                            struct muster_error *err);

/* An orderly goodbye that leaves the run open: the others learn at once that this node
 * is gone. Ends a next() with MUSTER_ECANCELED. */
MUSTER_API int muster_rendezvous_leave(struct muster_rendezvous *r,
                                       struct muster_error *err);

/* Closes the run id, as set_closed() does and with its errors, and ends the heartbeats
 * in any case. If this node serves the store, the store stays until the others have
 * read that the run is closed, for some seconds at the most. */
MUSTER_API int muster_rendezvous_shutdown(struct muster_rendezvous *r,
                                          struct muster_error *err);

MUSTER_API const char *muster_rendezvous_run_id(const struct muster_rendezvous *r);
MUSTER_API const char *muster_rendezvous_backend(const struct muster_rendezvous *r);

/* 1 if an agent serves the workers' store (torch's default), 0 if worker 0 does. */
MUSTER_API int muster_rendezvous_use_agent_store(const struct muster_rendezvous *r);

/* Without shutdown() or leave() before it, the others take this node for dead. NULL is
 * fine. */
MUSTER_API void muster_rendezvous_free(struct muster_rendezvous *r);

#ifdef __cplusplus
}
#endif
#endif
