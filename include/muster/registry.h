/* registry.h - rendezvous backends by name: torch's RendezvousHandlerRegistry.
 *
 * Built in: c10d, static, etcd, etcd-v2, etcd-v3. A caller can add backends that keep
 * the state of the dynamic rendezvous elsewhere (muster_backend_ops), and whole
 * handlers that agree in a way of their own (muster_handler_ops). A registry must
 * outlive the handlers made from it; it is not for several threads at once. */
#ifndef MUSTER_REGISTRY_H
#define MUSTER_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/error.h>
#include <muster/params.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_registry;

/* What a backend holds: bytes that mean nothing to it, and a token that changes
 * whenever they do. Memory comes from malloc and becomes the library's. */
struct muster_state {
    void *bytes; /* NULL with size 0: nothing is held */
    size_t size;
    void *token;
    size_t token_size;
    int won; /* set_state: the new value was taken */
};

/* torch's RendezvousBackend. The functions block, and are called one at a time from a
 * thread of the library; a call should end within some seconds. 0, or a negative code
 * with err filled in; *out is zeroed before the call. */
struct muster_backend_ops {
    /* Connects, for one run. *self is handed to the others. */
    int (*open)(void *ctx, const struct muster_params *params, void **self,
                struct muster_error *err);
    int (*get_state)(void *self, struct muster_state *out, struct muster_error *err);
    /* Replaces what is held if token is still its token (token NULL: if nothing is
     * held), and says what is held afterwards. */
    int (*set_state)(void *self, const void *bytes, size_t size, const void *token,
                     size_t token_size, struct muster_state *out,
                     struct muster_error *err);
    /* "host:port" of a c10d store for the group's own keys (ranks, barriers,
     * MASTER_ADDR), the same for every node of the run. Asked once, after open. */
    const char *(*store)(void *self);
    void (*close)(void *self);
};

/* Where a handler's next() has led to. Texts end with a NUL. */
struct muster_handler_round {
    uint64_t round;
    int64_t rank, world_size; /* of nodes: 0 <= rank < world_size */
    char store[300];          /* "host:port" of a c10d store for the group's own keys
                                 (ranks, barriers), the same for every node of the round */
    char prefix[1024];     /* of those keys, without the slash behind it; "": none. As
                              the store holds keys of other rounds, too, it should say
                              which one this is. */
    char master_addr[256]; /* where the workers' store is, or is to be */
    uint16_t master_port;
};

/* torch's RendezvousHandler. The functions may block; they are called from threads of
 * the library, one at a time, except where it says otherwise. They return 0, or a
 * negative code with err filled in. One that does not come back within a minute, or
 * next() not within ten seconds of cancel(), ends the handler: it is never called
 * again, and not freed. */
struct muster_handler_ops {
    /* torch's creator: makes a handler, connecting to nobody yet. *self is handed to
     * the others. Should not block: the launching agent waits for it. */
    int (*create)(void *ctx, const struct muster_params *params, void **self,
                  struct muster_error *err);
    /* At any time, from any thread, at once. NULL: the name it is registered with. A
     * handler that answers to another name than it was asked for by is refused. */
    const char *(*backend)(void *self);
    const char *(*run_id)(void *self);  /* likewise; NULL: that of the parameters */
    int (*use_agent_store)(void *self); /* likewise; NULL: no */
    /* Takes part in the next round, for as long as that takes. A member of the running
     * round leaves that first. Errors as those of muster_rendezvous_next:
     * MUSTER_ECLOSED, MUSTER_EGRACEFUL, MUSTER_ETIMEDOUT, MUSTER_ECONN, MUSTER_ESTATE.
     * *out is zeroed before the call. */
    int (*next)(void *self, struct muster_handler_round *out, struct muster_error *err);
    /* While next() is under way, from another thread, at once: makes it come back soon,
     * with any error. */
    void (*cancel)(void *self);
    /* 1, 0, or a negative code. Asked each second while the node is in a round, and so
     * is num_nodes_waiting, which returns a count or a negative code. */
    int (*is_closed)(void *self, struct muster_error *err);
    int64_t (*num_nodes_waiting)(void *self, struct muster_error *err);
    int (*set_closed)(void *self, struct muster_error *err);
    /* Hands the place in the round back, leaving the run open. NULL: there is no way.
     */
    int (*leave)(void *self, struct muster_error *err);
    int (*shutdown)(void *self,
                    struct muster_error *err); /* closes the run, and ends */
    void (*free)(void *self);
};

/* A registry with the built-in backends. */
MUSTER_API int muster_registry_new(struct muster_registry **out,
                                   struct muster_error *err);
MUSTER_API void muster_registry_free(struct muster_registry *r); /* NULL is fine */

/* MUSTER_EINVAL for an empty name; MUSTER_EEXIST if the name is taken by other ops or
 * another ctx. The same again is fine. ops and ctx are borrowed. */
MUSTER_API int muster_registry_register(struct muster_registry *r, const char *name,
                                        const struct muster_backend_ops *ops, void *ctx,
                                        struct muster_error *err);

/* The same for a whole handler. MUSTER_EINVAL also if a function other than backend,
 * run_id, use_agent_store and leave is missing. */
MUSTER_API int muster_registry_register_handler(struct muster_registry *r,
                                                const char *name,
                                                const struct muster_handler_ops *ops,
                                                void *ctx, struct muster_error *err);

/* 1 if the name is known, else 0. */
MUSTER_API int muster_registry_has(const struct muster_registry *r, const char *name);

#ifdef __cplusplus
}
#endif
#endif
