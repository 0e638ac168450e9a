/* backend_foreign.h - a caller's blocking backend as one of ours. */
#ifndef API_BACKEND_FOREIGN_H
#define API_BACKEND_FOREIGN_H

#include "io/rdzv_backend.h"
#include "muster/registry.h"

struct foreign {
    char *name;                           /* owned */
    const struct muster_backend_ops *ops; /* borrowed */
    void *ctx;                            /* borrowed */
};

/* A rdzv_create_fn whose ctx is a struct foreign. */
int foreign_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                   const struct trace *trace, struct rdzv_handler **out,
                   struct muster_error *err);

#endif
