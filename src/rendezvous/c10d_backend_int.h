/* c10d_backend_int.h - shared by c10d_backend.c and c10d_backend_open.c. */
#ifndef RENDEZVOUS_C10D_BACKEND_INT_H
#define RENDEZVOUS_C10D_BACKEND_INT_H

#include <assert.h>

#include "base/buf.h"
#include "loop/blocking_call.h"
#include "net/bind_address.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/local_identity.h"
#include "rendezvous/state_backend.h"
#include "store/client.h"
#include "store/server.h"

struct c10d {
    struct rdzv_backend base;
    const struct log *log; /* borrowed */
    size_t refs; /* one for each timer, and one for each part that is closing */

    /* From the parameters. */
    char *run_id, *key; /* owned; key "torch.rendezvous.<run_id>" */
    bool file;
    char *path;         /* of the store's file */
    struct endpoint at; /* of the TCP store; once we host, the actual port */
    char where[1100];   /* "tcp://host:port", "file://path" */
    uint64_t read_ms;
    int is_host;                 /* 1, 0, or -1: detect it */
    struct muster_error unbound; /* why we do not host although we should */
    uv_timer_t unbound_timer; /* when to log that, if no other process hosts either */
    bool alone; /* no other node can come: one node, and a port that nobody knows */

    struct auth *auth;              /* a reference, or NULL */
    bool many;                      /* several nodes may come */
    char *bind;                     /* owned; rdzv-conf bind, or NULL */
    struct bind_address listen_at;  /* where our server listens */
    struct bind_lookup *binding;    /* owned while it runs */
    struct blocking_call *deciding; /* owned while it runs */
    struct store_server *server;    /* owned, if we host */
    struct async_store *memory;     /* owned, if the store is for us alone */
    /* owned: the connection for the state and the heartbeats */
    struct async_store *state;
    struct async_store *watcher; /* owned: the connection that waits for changes */
    char local[IP_TEXT];         /* our end of the last connection to a server; or "" */
    bool up, connecting, can_watch, can_host, closing;
    unsigned reopened;   /* how often a connection broke while we opened */
    uint64_t open_by_ms; /* until when that is tried again; 0: not begun */
    uint64_t lost_by_ms; /* until when to reconnect; 0: the connection is not lost */

    rdzv_open_cb on_open;
    void *open_ctx;
    struct {
        rdzv_state_cb cb; /* NULL: none under way */
        void *ctx;
        bool write;
        uint64_t timeout_ms;
        struct buf sent, expected;
    } call;
    struct {
        rdzv_changed_cb cb;
        void *ctx;
        uint64_t wanted, waited; /* hashes of values */
        bool waiting;
    } watch;
    struct {
        uv_timer_t timer;
        struct muster_error err;
    } deferred;
    rdzv_gone_cb on_gone;
    void *gone_ctx;
};

extern const struct rdzv_backend_ops c10d_ops;

/* c10d_backend_open.c: finds out which process hosts the store, hosts it if that is us,
 * then connects. */
void c10d_host_decide(struct c10d *c);

/* A connection to the store; without cb, another one, which is made when it is needed.
 */
int c10d_open_store(struct c10d *c, bool once, store_open_cb cb, void *ctx,
                    struct async_store **out, struct muster_error *err);

/* c10d_connect() opens the connection for the state, unless it is there, and puts the
 * sentinel. c10d_drop() may be called at any time; NULL in *s is fine. */
void c10d_connect(struct c10d *c);
void c10d_drop(struct c10d *c, struct async_store **s);
void c10d_describe(const struct c10d *c, const struct muster_error *err,
                   struct muster_error *out);

/* Acts from the loop: fails what is under way (opening, or a call), or with code 0 goes
 * on opening. */
void c10d_defer(struct c10d *c, int code, const struct muster_error *err);

/* c10d_backend.c: c10d_call_go() sends the call under way now that the connection is
 * there, or fails it if there is none; c10d_fail() fails it. */
void c10d_call_go(struct c10d *c, int status, const struct muster_error *err);
void c10d_fail(struct c10d *c, int code, const struct muster_error *err);
void c10d_release(struct c10d *c);

#endif
