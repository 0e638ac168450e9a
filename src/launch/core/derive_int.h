/* derive_int.h - the steps of derive_config() and what they share. */
#ifndef LAUNCH_CORE_DERIVE_INT_H
#define LAUNCH_CORE_DERIVE_INT_H

#include "launch/core/derive.h"

struct deriving {
    struct launch_config *c;
    const struct options *o;
    const struct derive_machine *machine;
    struct muster_error *err;
    const char *backend, *endpoint, *id; /* after the standalone rule */
    char uuid[40];
    bool launch;
};

typedef int (*derive_fn)(struct deriving *d);

/* derive_rendezvous.c: each 0, or an error in d->err. */
int derive_parse_nnodes(struct deriving *d);
int derive_choose_backend(struct deriving *d);
int derive_check_sizes(struct deriving *d);
int derive_warn_of_unused(struct deriving *d);
int derive_parse_rdzv_conf(struct deriving *d);
int derive_set_endpoint(struct deriving *d);
int derive_set_run_id(struct deriving *d);
int derive_check_rendezvous(struct deriving *d);
int derive_check_static_endpoint(struct deriving *d);

#endif
