/* handler.h - what every rendezvous looks like to the agent: asynchronous, on a uv
 * loop. All have one base (handler_base.h).
 *
 * At most one next() is under way. Callbacks never come from inside the call. */
#ifndef RENDEZVOUS_HANDLER_H
#define RENDEZVOUS_HANDLER_H

#include "rendezvous/core/news.h"
#include "rendezvous/core/progress.h"
#include "store/async_store.h"

struct rdzv_handler;
struct session;
struct rank_range;
struct store_server_stats;
struct auth;

/* The outcome of a round; all pointers borrowed until the next next() or destroy. */
struct rdzv_round {
    uint64_t round;
    int64_t rank, world_size; /* counted in nodes */
    /* of this node's workers; NULL: the agents have to agree on them */
    const struct rank_range *ranks;
    /* the round's store, with its prefix: role_info, barrier, ... */
    struct async_store *store;
    const char *master_addr; /* for the workers */
    uint16_t master_port;
    /* With encryption the two fields above lead to a relay on this machine, and these
     * to the workers' store itself; otherwise NULL and 0. */
    const char *served_addr;
    uint16_t served_port;
};

/* A store that serves a round. */
struct rdzv_store_at {
    const char *host; /* borrowed */
    uint16_t port;
    bool local;   /* it is in this process */
    bool alone;   /* no other node can come, and nothing else is known */
    bool records; /* it has said that it keeps the job's record; else it may */
};

typedef void (*rdzv_next_cb)(void *ctx, int status, const struct rdzv_round *round,
                             const struct muster_error *err);
typedef void (*rdzv_done_cb)(void *ctx, int status, const struct muster_error *err);

typedef void (*rdzv_news_cb)(void *ctx, enum rdzv_news news,
                             const struct muster_error *err);

struct rdzv_handler_ops {
    const char *(*backend)(const struct rdzv_handler *h);
    bool (*use_agent_store)(const struct rdzv_handler *h);
    void (*next)(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx);
    /* Leaves while next() is under way: its callback comes with MUSTER_ECANCELED. */
    void (*cancel)(struct rdzv_handler *h);
    void (*on_news)(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx);
    int64_t (*num_nodes_waiting)(const struct rdzv_handler *h); /* as last seen */
    bool (*is_closed)(const struct rdzv_handler *h);            /* as last seen */
    /* What next() is waiting for; false if it is not waiting. May be NULL. */
    bool (*progress)(const struct rdzv_handler *h, struct rdzv_progress *out);
    /* For rank 0 while its next() waits for other nodes: the store in which nodes that
     * have come leave their ranks (rendezvous/core/rank_exchange.h). NULL if there is
     * none, or not now. May be NULL. */
    struct async_store *(*gathers_at)(const struct rdzv_handler *h);
    /* Where a store of ours serves the round that was joined last: the job's
     * coordinator is there (job/session.h). False: nowhere, or the store is torchrun's.
     * May be NULL. */
    bool (*store_at)(const struct rdzv_handler *h, struct rdzv_store_at *out);
    /* The address of this node on the way to the others, as the connection to the host
     * of the rendezvous shows it. May be a name, and may be a loopback address. False:
     * not known. May be NULL. */
    bool (*own_addr)(const struct rdzv_handler *h, char *out, size_t size);
    /* What the stores that this process serves have done since the handler was opened,
     * and what they hold now: the store of the rendezvous and that of the workers
     * together. False: other processes serve them. May be NULL. */
    bool (*store_stats)(const struct rdzv_handler *h, struct store_server_stats *out);
    /* The session has found out that the node with this rank in that round is gone.
     * Where nodes have to find that out for themselves, it is acted on as if its
     * heartbeats had stopped; one more heartbeat brings it back. With rank -1, it is
     * about every node that has not left that round while we wait for the next one.
     * Returns true if the report helps, and false while we join the next round, where
     * it leads to nothing by itself. May be NULL. */
    bool (*node_gone)(struct rdzv_handler *h, uint64_t round, int64_t rank);
    /* Until when, by mono_ms, no other node can begin without us, with some time to
     * spare, even if no sign of life of ours gets through from now on (core/fence.h).
     * MONO_NEVER: that is not known, or no other node can come. May be NULL. */
    uint64_t (*fence_due)(const struct rdzv_handler *h);
    /* The agent's session with the run (job/session.h), over which a handler may ask
     * for seats if its store hosts runs. Called before the first next(); without it the
     * handler opens one of its own. May be NULL. */
    void (*use_session)(struct rdzv_handler *h, struct session *s);
    /* How many nodes of that round are or may be torchrun's. May be NULL. */
    int64_t (*torch_nodes)(const struct rdzv_handler *h);
    /* The names of the spares, where nodes read them from the shared state and the job
     * session need not know them: a list as in core/progress.h. May be NULL. */
    void (*spares)(const struct rdzv_handler *h, char *to);
    /* A worker has failed, and the workers of this node are gone: all may begin again
     * where they are, so what the next round needs of this node can be made ready. May
     * be NULL. */
    void (*round_ends)(struct rdzv_handler *h);
    void (*set_closed)(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx);
    /* Leaves without closing the run: gives our place up. */
    void (*leave)(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx);
    /* Stops the heartbeats and, if close is true, closes the run id. */
    void (*shutdown)(struct rdzv_handler *h, bool close, rdzv_done_cb cb, void *ctx);
    /* Before new workers start: removes the keys of the last attempt from the worker
     * store, if this node hosts it. May be NULL. */
    void (*wipe_worker_store)(struct rdzv_handler *h);
    /* How often workers have written to their store so far, if this node hosts it. May
     * be NULL. */
    uint64_t (*worker_writes)(const struct rdzv_handler *h);
    /* When the first write since the last call of this came, in loop time; 0: there was
     * none. May be NULL. */
    uint64_t (*first_write_ms)(struct rdzv_handler *h);
    void (*destroy)(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx);
};

struct rdzv_handler {
    const struct rdzv_handler_ops *ops;
    uv_loop_t *loop;
    struct auth *auth; /* borrowed; the job's secret, or NULL */
    /* Names this process to the host of the run, on every connection; 0: it has not
     * been named to anybody, and any number will do. */
    uint64_t nonce;
};

#endif
