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
    const struct trace *trace; /* borrowed */
    size_t refs;               /* the timer, and each handle that is closing */

    /* From the parameters. */
    char *run_id, *key; /* owned; key "torch.rendezvous.<run_id>" */
    bool file;
    char *path;         /* owned; of the file */
    struct endpoint at; /* of the TCP store; the port is the real one once we host */
    char where[1100];   /* "tcp://host:port", "file://path" */
    uint64_t read_ms;
    int is_host;                 /* 1, 0, or -1: to be found out */
    struct muster_error unbound; /* why we do not host although it is our part */
    uv_timer_t unbound_timer;    /* when to say so, if nobody else hosts either */
    bool alone; /* one node, and a port that nobody can know: no other can come */

    struct auth *auth;              /* a reference, or NULL */
    bool many;                      /* several nodes may come */
    char *bind;                     /* owned; rdzv-conf bind, or NULL */
    struct bind_address at_home;    /* where our server listens */
    struct bind_lookup *binding;    /* owned while it runs */
    struct blocking_call *deciding; /* owned while it runs */
    struct store_server *server;    /* owned, if we host */
    struct async_store *memory;     /* owned, if we host for ourselves alone */
    struct async_store *state;   /* owned: the connection for the state and the beats */
    struct async_store *watcher; /* owned: the one that waits for changes */
    bool up, connecting, can_watch, can_host, echoes, closing;
    unsigned reopened;   /* how often a connection broke while we opened */
    uint64_t lost_by_ms; /* reconnecting makes sense until then; 0: not lost */

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

/* c10d_backend_open.c: finds out who hosts, hosts if we do, then connects. */
void c10d_host_decide(struct c10d *c);

/* Another connection to the same store. cb may be NULL. */
int c10d_open_store(struct c10d *c, bool once, store_open_cb cb, void *ctx,
                    struct async_store **out, struct muster_error *err);

/* A connection may be closed at any time; NULL in *s is fine. */
void c10d_connect(struct c10d *c);
void c10d_drop(struct c10d *c, struct async_store **s);
void c10d_describe(const struct c10d *c, const struct muster_error *err,
                   struct muster_error *out);

/* From the loop: fails what is under way (opening, or a call), or with code 0 goes on
 * opening. */
void c10d_defer(struct c10d *c, int code, const struct muster_error *err);

/* c10d_backend.c: the call under way, now that the connection is there, or why it is
 * not; and its end without success. */
void c10d_call_go(struct c10d *c, int status, const struct muster_error *err);
void c10d_fail(struct c10d *c, int code, const struct muster_error *err);
void c10d_release(struct c10d *c);

#endif
