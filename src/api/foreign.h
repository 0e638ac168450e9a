/* foreign.h - wraps what a caller registers, so that it works as a backend or a handler
 * of ours: a backend for the state of the dynamic rendezvous (foreign_backend.c), or a
 * whole handler (foreign_handler.c). */
#ifndef API_FOREIGN_H
#define API_FOREIGN_H

#include "muster/registry.h"
#include "rendezvous/registry.h"
#include "rendezvous/state_backend.h"

/* Exactly one of backend and handler is set. */
struct foreign {
    char *name;                               /* owned */
    const struct muster_backend_ops *backend; /* borrowed */
    const struct muster_handler_ops *handler; /* borrowed */
    void *ctx;                                /* borrowed */
};

/* Each is a rdzv_create_fn whose ctx is a struct foreign. */
int foreign_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                   const struct log *log, struct rdzv_handler **out,
                   struct muster_error *err);
int foreign_handler_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                           const struct log *log, struct rdzv_handler **out,
                           struct muster_error *err);

/* MUSTER_EINVAL if a function that every handler needs is missing; the error names it.
 */
int foreign_handler_check(const char *name, const struct muster_handler_ops *ops,
                          struct muster_error *err);

#endif
