/* params_int.h - the structs that params.h and registry.h keep opaque. */
#ifndef API_PARAMS_INT_H
#define API_PARAMS_INT_H

#include "muster/params.h"
#include "muster/registry.h"
#include "rendezvous/core/params.h"
#include "rendezvous/registry.h"

struct muster_params {
    struct rdzv_params inner;
};

struct muster_registry {
    struct registry inner;
    struct foreign **foreign; /* owned: what the caller has registered */
    size_t count;
};

#endif
