/* registry.h - rendezvous backends by name: torch's RendezvousHandlerRegistry.
 *
 * Built in: c10d, static, etcd, etcd-v2, etcd-v3. A caller can add backends that keep
 * the state of the dynamic rendezvous elsewhere. A registry must outlive the handlers
 * made from it; it is not for several threads at once. */
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

/* A registry with the built-in backends. */
MUSTER_API int muster_registry_new(struct muster_registry **out,
                                   struct muster_error *err);
MUSTER_API void muster_registry_free(struct muster_registry *r); /* NULL is fine */

/* MUSTER_EINVAL for an empty name; MUSTER_EEXIST if the name is taken by other ops or
 * another ctx. The same again is fine. ops and ctx are borrowed. */
MUSTER_API int muster_registry_register(struct muster_registry *r, const char *name,
                                        const struct muster_backend_ops *ops, void *ctx,
                                        struct muster_error *err);

/* 1 if the name is known, else 0. */
MUSTER_API int muster_registry_has(const struct muster_registry *r, const char *name);

#ifdef __cplusplus
}
#endif
#endif
