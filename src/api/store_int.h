/* store_int.h - the inside of a struct muster_store, for the files of api/.
 *
 * Stores made from one another (clones, views) share a home: a loop, which the callers
 * run by turns, and the server if there is one, on a loop with a thread of its own.
 * Everything that belongs to a loop is only touched from that loop. */
#ifndef API_STORE_INT_H
#define API_STORE_INT_H

#include <stdatomic.h>

#include "api/blocking_loop.h"
#include "muster/store.h"
#include "rendezvous/state_backend.h"
#include "store/async_store.h"
#include "store/server.h"

struct home {
    struct blocking_loop *calls;   /* owned */
    struct blocking_loop *serving; /* owned, may be NULL: where the server runs */
    struct store_server *server;   /* owned, may be NULL */
    struct rdzv_backend *backend;  /* owned, may be NULL: the stores are made from it */
    size_t stores; /* how many use this home; touched on the loop only */
};

/* An async_store that several stores use. A view holds a reference to the one below. */
struct shared {
    struct async_store *async_store; /* owned */
    struct shared *under;            /* a reference, or NULL */
    size_t refs;
};

struct muster_store {
    struct home *home;
    struct shared *shared; /* a reference */
    _Atomic uint64_t timeout_ms;
    char *name; /* owned */
    uint16_t port;
};

/* by_turns: see blocking_loop_new(). */
int home_new(bool by_turns, struct home **out, struct muster_error *err);

/* Closes the backend and the server, if there are any. No store may use h any more. */
void home_free(struct home *h);

/* Makes a store out of an open async_store and counts it in h->stores. Called on the
 * loop. On success the store owns a, and under, which is a reference. */
int store_adopt(struct home *h, struct async_store *a, struct shared *under,
                uint64_t timeout_ms, uint16_t port, struct muster_store **out,
                struct muster_error *err);

/* Closes an async_store that was not adopted, then ends the job with err. Called on the
 * loop. */
void store_undo(struct blocking_loop_job *job, struct async_store *a,
                const struct muster_error *err);

#endif
