/* etcd_absent.c - the etcd backends' places in the registry while this build has none. */
#include "base/err.h"
#include "io/registry.h"

static int absent(const struct rdzv_params *params, struct muster_error *err)
{
    return err_set(err, MUSTER_ENOTSUP,
                   "this build of muster has no rendezvous backend '%s'; use c10d, which "
                   "needs no server of its own",
                   params->backend);
}

#define ABSENT(name)                                                                   \
    int name(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,             \
             const struct trace *trace, struct rdzv_handler **out,                     \
             struct muster_error *err)                                                 \
    {                                                                                  \
        (void)ctx;                                                                     \
        (void)loop;                                                                    \
        (void)trace;                                                                   \
        (void)out;                                                                     \
        return absent(params, err);                                                    \
    }

ABSENT(rdzv_etcd_create)
