/* registry.h - rendezvous backends by name: torch's RendezvousHandlerRegistry.
 *
 * c10d, static, etcd, etcd-v2 and etcd-v3 are built in. A caller can add backends that
 * keep the state of the dynamic rendezvous elsewhere (muster_backend_ops), and whole
 * handlers that agree in a way of their own (muster_handler_ops). A registry must
 * outlive the handlers made from it, and only one thread at a time may use it. */
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

/* What a backend holds: bytes that it does not interpret, and a token that changes
 * whenever they do. A backend allocates both with malloc, and the library frees them.
 */
struct muster_state {
    void *bytes; /* NULL with size 0: nothing is held */
    size_t size;
    void *token;
    size_t token_size;
    int won; /* set_state: the new value was taken */
};

/* torch's RendezvousBackend. The functions may block; a thread of the library calls
 * them one at a time, and a call should end within some seconds. They return 0, or a
 * negative code with err filled in. *out is zeroed before the call. */
struct muster_backend_ops {
    /* Connects, for one run. The other functions get *self. */
    int (*open)(void *ctx, const struct muster_params *params, void **self,
                struct muster_error *err);
    int (*get_state)(void *self, struct muster_state *out, struct muster_error *err);
    /* Replaces what is held if token is still its token (with token NULL: if nothing is
     * held), and writes what is held afterwards to *out. */
    int (*set_state)(void *self, const void *bytes, size_t size, const void *token,
                     size_t token_size, struct muster_state *out,
                     struct muster_error *err);
    /* Returns "host:port" of a c10d store for the group's own keys (ranks, barriers,
     * MASTER_ADDR), the same for every node of the run. Called once, after open. */
    const char *(*store)(void *self);
    void (*close)(void *self);
};

/* What a handler's next() found. Texts end with a NUL. */
struct muster_handler_round {
    uint64_t round;
    int64_t rank, world_size; /* of nodes: 0 <= rank < world_size */
    char store[300];          /* "host:port" of a c10d store for the group's own keys
                                 (ranks, barriers), the same for every node of the round */
    char prefix[1024];     /* of those keys, without the slash behind it; "": none. The
                              store also holds keys of other rounds, so the prefix
                              should identify this one. */
    char master_addr[256]; /* where the workers' store is, or will be */
    uint16_t master_port;
};

/* torch's RendezvousHandler. The functions may block. Threads of the library call them
 * one at a time, unless a comment below allows more. They return 0, or a negative code
 * with err filled in. If a function does not return within a minute, or next() within
 * ten seconds of cancel(), the library gives the handler up: it never calls it again,
 * and does not free it. */
struct muster_handler_ops {
    /* torch's creator: makes a handler, which does not connect yet. The other functions
     * get *self. Should not block, as the launching agent waits for it. */
    int (*create)(void *ctx, const struct muster_params *params, void **self,
                  struct muster_error *err);
    /* May be called at any time and from any thread, and must return at once. NULL
     * stands for the name that the handler is registered with. A handler that returns a
     * name other than the one it was asked for by is refused. */
    const char *(*backend)(void *self);
    const char *(*run_id)(void *self);  /* likewise; NULL: that of the parameters */
    int (*use_agent_store)(void *self); /* likewise; NULL: no */
    /* Takes part in the next round, for as long as that takes. A node that is in the
     * running round leaves it first. The errors are those of muster_rendezvous_next:
     * MUSTER_ECLOSED, MUSTER_EGRACEFUL, MUSTER_ETIMEDOUT, MUSTER_ECONN, MUSTER_ESTATE.
     * *out is zeroed before the call. */
    int (*next)(void *self, struct muster_handler_round *out, struct muster_error *err);
    /* Called from another thread while next() is under way. Must return at once, and
     * makes next() return soon, with any error. */
    void (*cancel)(void *self);
    /* Returns 1, 0, or a negative code; num_nodes_waiting returns a count or a negative
     * code. Both are called each second while the node is in a round. */
    int (*is_closed)(void *self, struct muster_error *err);
    int64_t (*num_nodes_waiting)(void *self, struct muster_error *err);
    int (*set_closed)(void *self, struct muster_error *err);
    /* Gives the place in the round back and keeps the run open. NULL if the handler
     * cannot do that. */
    int (*leave)(void *self, struct muster_error *err);
    /* Closes the run and ends the handler's part in it. */
    int (*shutdown)(void *self, struct muster_error *err);
    void (*free)(void *self);
};

/* Makes a registry with the built-in backends. */
MUSTER_API int muster_registry_new(struct muster_registry **out,
                                   struct muster_error *err);
MUSTER_API void muster_registry_free(struct muster_registry *r); /* NULL is fine */

/* Adds a backend. MUSTER_EINVAL for an empty name; MUSTER_EEXIST if the name is taken
 * with other ops or another ctx. Registering the same again is fine. ops and ctx are
 * borrowed. */
MUSTER_API int muster_registry_register(struct muster_registry *r, const char *name,
                                        const struct muster_backend_ops *ops, void *ctx,
                                        struct muster_error *err);

/* Adds a whole handler, by the same rules. Also MUSTER_EINVAL if a function other than
 * backend, run_id, use_agent_store and leave is NULL. */
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
