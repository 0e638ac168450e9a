/* registry.h - rendezvous backends by name: torch's RendezvousHandlerRegistry.
 *
 * It is a value, not a global: a caller that wants backends of its own makes one. Built
 * in: c10d, static, etcd, etcd-v2, etcd-v3. */
#ifndef RENDEZVOUS_REGISTRY_H
#define RENDEZVOUS_REGISTRY_H

#include "base/log.h"
#include "rendezvous/core/params.h"
#include "rendezvous/handler.h"

/* Makes a handler. It connects only at its first next(). */
typedef int (*rdzv_create_fn)(void *ctx, uv_loop_t *loop,
                              const struct rdzv_params *params, const struct log *log,
                              struct rdzv_handler **out, struct muster_error *err);

struct registry_entry {
    char *name; /* owned */
    rdzv_create_fn create;
    void *ctx; /* borrowed */
};

struct registry {
    struct registry_entry *entries; /* owned */
    size_t count;
};

int registry_init(struct registry *r, struct muster_error *err); /* the built-ins */
void registry_fini(struct registry *r); /* NULL and zeroed are fine */

/* Returns MUSTER_EINVAL for an empty name, and MUSTER_EEXIST if the name has another
 * creator, or the same one with another ctx. To register the same again is fine. */
int registry_register(struct registry *r, const char *name, rdzv_create_fn create,
                      void *ctx, struct muster_error *err);

/* Makes a handler for params->backend. Returns MUSTER_ENOENT if the name is not
 * registered, MUSTER_EINVAL if the handler answers to another name, or the error of its
 * creator. */
int registry_create(const struct registry *r, uv_loop_t *loop,
                    const struct rdzv_params *params, const struct log *log,
                    struct rdzv_handler **out, struct muster_error *err);

/* The same with the built-ins alone. */
int rdzv_handler_create(uv_loop_t *loop, const struct rdzv_params *params,
                        const struct log *log, struct rdzv_handler **out,
                        struct muster_error *err);

/* The built-in creators of handlers that are not dynamic. */
int rdzv_static_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                       const struct log *log, struct rdzv_handler **out,
                       struct muster_error *err);
/* In etcd/legacy: "etcd". */
int rdzv_etcd_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                     const struct log *log, struct rdzv_handler **out,
                     struct muster_error *err);

#endif
