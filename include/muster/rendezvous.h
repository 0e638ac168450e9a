/* rendezvous.h - how nodes find each other, agree on who takes part and with which
 * rank, and notice who has gone: torch's RendezvousHandler, for nodes of ours and of
 * torchrun in one group.
 *
 *     muster_params_new("c10d", "head:29400", "job1", 2, 4, NULL, &params, &err);
 *     muster_rendezvous_open(params, NULL, NULL, &rdzv, &err);
 *     muster_rendezvous_next(rdzv, &info, &err); // blocks; info.rank of world_size
 *     ... work; num_nodes_waiting() > 0 or news: stop, and next() again ...
 *     muster_rendezvous_shutdown(rdzv, &err);    // closes the run for everybody
 *     muster_rendezvous_free(rdzv);
 *
 * The handler has a thread of its own, so that keep-alive messages go out while the
 * caller computes. Its functions may be called from any thread, but only one next() may
 * be under way: a second one returns MUSTER_EINVAL. Calls of set_closed() at the same
 * time count as one and all get its result, and so do calls of leave(). Once shutdown()
 * has been called, even before it returns, all of these return MUSTER_EINVAL.
 *
 * A handler does not survive fork(). In the child its functions fail with
 * MUSTER_EINVAL, is_closed and num_nodes_waiting return 0, cancel does nothing, and
 * free only frees memory, so nothing that the child does disturbs the parent's handler.
 *
 * If memory runs out inside a handler, that is the end of it: a call that waits, or the
 * news MUSTER_NEWS_BACKEND, says so, and from then on next(), set_closed() and
 * shutdown() return MUSTER_ENOMEM. Free it, and open another one if you can. */
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

/* What next() found. The pointers belong to the handler and stay valid until the
 * following next() or free; the store also ends with shutdown, which closes it. */
struct muster_rendezvous_info {
    uint64_t round;
    int64_t rank, world_size;   /* of nodes */
    struct muster_store *store; /* for the round's own keys. Do not close it; but close
                                   its clones and views before the handler is freed. */
    const char *master_addr;    /* where the workers' store is, or will be */
    uint16_t master_port;
};

/* What a running node should know. */
enum muster_news {
    MUSTER_NEWS_WAITING, /* another node waits for the next round */
    MUSTER_NEWS_LOST,    /* a node of the running round is gone */
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

/* Both are called on the handler's own thread. They must return soon, and must not call
 * the handler. */
struct muster_rendezvous_hooks {
    void *ctx;
    void (*log)(void *ctx, enum muster_log_level level, const char *text);
    void (*news)(void *ctx, enum muster_news news, const char *text);
};

/* Makes a handler for the backend that params names. It does not connect yet. params
 * and hooks are copied. If registry is NULL there are the built-in backends; if hooks
 * is NULL nothing is reported. Errors: MUSTER_EINVAL with torch's words for a wrong
 * option, MUSTER_ENOENT for an unknown backend, MUSTER_ENOTSUP, MUSTER_ENOMEM,
 * MUSTER_EIO. */
MUSTER_API int muster_rendezvous_open(const struct muster_params *params,
                                      const struct muster_registry *registry,
                                      const struct muster_rendezvous_hooks *hooks,
                                      struct muster_rendezvous **out,
                                      struct muster_error *err);

/* Takes part in the next round, and blocks until that is complete. A node that is in
 * the running round leaves it first. Errors: MUSTER_ECLOSED, MUSTER_EGRACEFUL (this
 * node was a spare and was not needed, which is not a failure), MUSTER_ETIMEDOUT,
 * MUSTER_ECONN, MUSTER_ESTATE, MUSTER_ECANCELED, MUSTER_ENOMEM. */
MUSTER_API int muster_rendezvous_next(struct muster_rendezvous *r,
                                      struct muster_rendezvous_info *out,
                                      struct muster_error *err);

/* Called from another thread, it makes next() give its place back and return
 * MUSTER_ECANCELED. */
MUSTER_API void muster_rendezvous_cancel(struct muster_rendezvous *r);

/* Both return what was last heard: milliseconds old with a store of ours, up to a
 * second with torch's. */
MUSTER_API int muster_rendezvous_is_closed(struct muster_rendezvous *r);
MUSTER_API int64_t muster_rendezvous_num_nodes_waiting(struct muster_rendezvous *r);

/* Closes the run id for all nodes, for good; connects first if next() has not. Errors:
 * MUSTER_ECONN if no store can be reached within read_timeout, MUSTER_ETIMEDOUT,
 * MUSTER_ESTATE, MUSTER_EINVAL. */
MUSTER_API int muster_rendezvous_set_closed(struct muster_rendezvous *r,
                                            struct muster_error *err);

/* Leaves the group but keeps the run open: the others learn at once that this node has
 * gone. A next() that is under way returns MUSTER_ECANCELED. */
MUSTER_API int muster_rendezvous_leave(struct muster_rendezvous *r,
                                       struct muster_error *err);

/* Closes the run id, as set_closed() does and with its errors, and ends the keep-alive
 * even if closing fails. A node that serves the store goes on serving until the others
 * have read that the run is closed, for a few seconds at most. */
MUSTER_API int muster_rendezvous_shutdown(struct muster_rendezvous *r,
                                          struct muster_error *err);

MUSTER_API const char *muster_rendezvous_run_id(const struct muster_rendezvous *r);
MUSTER_API const char *muster_rendezvous_backend(const struct muster_rendezvous *r);

/* 1 if an agent serves the workers' store (torch's default), 0 if worker 0 does. */
MUSTER_API int muster_rendezvous_use_agent_store(const struct muster_rendezvous *r);

/* After neither shutdown nor leave, the other nodes take this one for dead. NULL is
 * fine. */
MUSTER_API void muster_rendezvous_free(struct muster_rendezvous *r);

#ifdef __cplusplus
}
#endif
#endif
