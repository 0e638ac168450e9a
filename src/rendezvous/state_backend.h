/* state_backend.h - where a dynamic rendezvous keeps its state: one value that is read,
 * and replaced if no other node has replaced it. This is torch's RendezvousBackend, but
 * asynchronous, on a uv loop. Implementations: c10d_backend.c (TCP and file store),
 * etcd-v2, etcd-v3, and a wrapper around a caller's blocking functions.
 *
 * The driver (dynamic.c) is the only caller. At most one get or set is under way, and
 * one watch beside it. Callbacks never come from inside the call, always on the loop's
 * thread, and exactly once for each get, set and open. None comes after close was
 * called, except close's own. */
#ifndef RENDEZVOUS_STATE_BACKEND_H
#define RENDEZVOUS_STATE_BACKEND_H

#include "base/log.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/params.h"
#include "rendezvous/handler.h"
#include "store/async_store.h"

struct rdzv_backend;
struct store_conn;
struct store_server;

typedef void (*rdzv_open_cb)(void *ctx, int status, const struct muster_error *err);

/* ev->kind is STATE (get), WROTE (set) or FAILED (either), with its fields as in
 * cas_node.h, borrowed until the callback returns; the driver stamps ev->now. FAILED
 * with `again`: worth repeating after a pause, since the backend reconnects by
 * itself. */
typedef void (*rdzv_state_cb)(void *ctx, const struct rdzv_event *ev);

typedef void (*rdzv_changed_cb)(void *ctx);
typedef void (*rdzv_gone_cb)(void *ctx);
typedef void (*rdzv_peer_cb)(void *ctx, struct span node);
typedef void (*rdzv_cut_off_cb)(void *ctx, const char *why);

/* A store of ours that hosts the run. */
struct rdzv_host {
    const char *host; /* borrowed */
    uint16_t port;
};

struct rdzv_backend_ops {
    const char *name; /* "c10d"; what the handler's backend() returns */

    /* Connects, and hosts the store if that is this node's task. Called once, before
     * all others. */
    void (*open)(struct rdzv_backend *b, rdzv_open_cb cb, void *ctx);

    void (*get)(struct rdzv_backend *b, uint64_t timeout_ms, rdzv_state_cb cb,
                void *ctx);

    /* Replaces the value if token is still its token; without a token, if there is no
     * value. quiet: watchers need not be told, if the backend can do that. Copies value
     * and token if it needs them longer than the call. */
    void (*set)(struct rdzv_backend *b, struct span value, bool has_token,
                struct span token, bool quiet, uint64_t timeout_ms, rdzv_state_cb cb,
                void *ctx);

    /* Calls cb once, when the backend's value may differ from `value` (from nothing, if
     * not present). Replaces the last watch, whose cb then never comes. Returns false
     * if it cannot watch at present; the driver polls then. May be NULL. */
    bool (*watch)(struct rdzv_backend *b, bool present, struct span value,
                  rdzv_changed_cb cb, void *ctx);

    /* Shows our node, under the name `self`, to the others for as long as this process
     * lives, and reports which of them end. cut_off: the others may soon be told that
     * we have ended, or have been told (core/fence.h). A second call changes our name.
     * The text is copied. May be NULL: then only heartbeats show it. */
    void (*presence)(struct rdzv_backend *b, const char *self, rdzv_peer_cb cb,
                     rdzv_cut_off_cb cut_off, void *ctx);
    /* When cut_off comes if nothing reaches the backend from now on, by mono_ms; or
     * MONO_NEVER. NULL if presence is. */
    uint64_t (*fence_due)(const struct rdzv_backend *b);

    /* Opens a store for the group's own keys, with a connection of its own, so that a
     * blocking read does not hold up a heartbeat. The caller closes it before the
     * backend. It may not be connected yet; calls wait then. */
    int (*store)(struct rdzv_backend *b, struct async_store **out,
                 struct muster_error *err);

    /* "tcp://10.0.0.1:29400", for messages. */
    const char *(*where)(const struct rdzv_backend *b);

    /* Why open() takes so long; NULL: not known yet. May be NULL: then the backend logs
     * it itself. */
    const char *(*last_error)(const struct rdzv_backend *b);

    /* Where a store of ours hosts runs, so that nodes need not read and write the state
     * themselves. Returns false if the store does not. May be NULL. */
    bool (*host)(const struct rdzv_backend *b, struct rdzv_host *out);
    /* The connection over which open() has found that out, for the caller to own; NULL
     * if it was taken before. NULL if host is. */
    struct store_conn *(*take_conn)(struct rdzv_backend *b);
    /* That store if it is in this process, else NULL. May be NULL. */
    const struct store_server *(*serves)(const struct rdzv_backend *b);

    /* The address under which other nodes can reach this machine, as the store's
     * connection shows it; for machines whose own name does not resolve. Returns false
     * if it is not known. May be NULL. */
    bool (*own_addr)(const struct rdzv_backend *b, char *out, size_t size);

    /* How many connections other nodes have to the store that this process hosts; 0 if
     * it hosts none. May be NULL. */
    size_t (*other_connections)(const struct rdzv_backend *b);

    /* Ends everything. b is freed by the time of the callback. */
    void (*close)(struct rdzv_backend *b, rdzv_gone_cb cb, void *ctx);
};

struct rdzv_backend {
    const struct rdzv_backend_ops *ops;
    uv_loop_t *loop;
};

/* Makes a dynamic handler on b, which it owns from then on, even if it fails. Reads
 * torch's settings from params: join_timeout, last_call_timeout, ... Returns
 * MUSTER_EINVAL with torch's words if one is wrong. params is copied; log is borrowed
 * and may be NULL. */
int rdzv_dynamic_create(uv_loop_t *loop, const struct rdzv_params *params,
                        const struct log *log, struct rdzv_backend *b,
                        struct rdzv_handler **out, struct muster_error *err);

/* The built-in backend "c10d": options store_type, read_timeout, is_host. */
int backend_c10d_new(uv_loop_t *loop, const struct rdzv_params *params,
                     const struct log *log, struct rdzv_backend **out,
                     struct muster_error *err);

/* In etcd/rdzv_backend.c: "etcd-v2" and "etcd-v3". */
int backend_etcd2_new(uv_loop_t *loop, const struct rdzv_params *params,
                      const struct log *log, struct rdzv_backend **out,
                      struct muster_error *err);
int backend_etcd3_new(uv_loop_t *loop, const struct rdzv_params *params,
                      const struct log *log, struct rdzv_backend **out,
                      struct muster_error *err);

/* Makes the built-in backend of params without a handler, with the job's secret if
 * there is one. Returns MUSTER_EINVAL if it is not a backend that keeps a state. */
int rdzv_backend_create(uv_loop_t *loop, const struct rdzv_params *params,
                        struct rdzv_backend **out, struct muster_error *err);

#endif
