/* options.h - the options of the three etcd backends: --rdzv-endpoint, --rdzv-conf.
 */
#ifndef ETCD_OPTIONS_H
#define ETCD_OPTIONS_H

#include "etcd/client.h"
#include "rendezvous/core/params.h"

enum etcd_backend { ETCD_BACKEND_LEGACY, ETCD_BACKEND_V2, ETCD_BACKEND_V3 };

struct etcd_conf {
    struct etcd_client_opts client; /* borrows from params and from what follows */
    char **urls;                    /* owned, and so is each */
    char *protocol, *password;      /* owned */
    uint64_t read_timeout_ms;
    const char *prefix;   /* borrowed; legacy: etcd_prefix; v3: prefix */
    uint64_t lease_ttl_s; /* v3 */
};

/* MUSTER_EINVAL with torch's words, or with ours where torch has no such option. Unlike
 * torch, all three take a list of endpoints, "h1:2379,h2:2379". conf borrows from
 * params. */
int etcd_conf_read(struct etcd_conf *conf, enum etcd_backend backend,
                   const struct rdzv_params *params, const struct log *log,
                   struct muster_error *err);
void etcd_conf_fini(struct etcd_conf *conf); /* NULL and zeroed are fine */

#endif
