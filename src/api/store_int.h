/* store_int.h - the inside of a struct muster_store, for the files of api/.
 *
 * Stores made from one another (clones, views) share a home: a loop, which the callers
 * run by turns, and the server if there is one, on a loop with a thread of its own. All
 * that hangs on a loop is touched from it only. */
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
    struct rdzv_backend
        *backend;  /* owned, may be NULL: what the stores are made from */
    size_t stores; /* that live here; from the loop */
};

/* An async_store that several stores use: a view keeps what it looks at. */
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

int home_new(struct home **out, struct muster_error *err); /* with a thread */
int home_new_by_turns(struct home **out, struct muster_error *err);

/* Nothing lives there any more. Ends the backend and the server, if there are. */
void home_free(struct home *h);

/* From the loop. Makes a store out of an open async_store and counts it in; takes
 * over a, and under (a reference) unless it fails. */
int store_settle(struct home *h, struct async_store *a, struct shared *under,
                 uint64_t timeout_ms, uint16_t port, struct muster_store **out,
                 struct muster_error *err);

#endif
