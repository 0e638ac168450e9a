/* find_self.h - finds out which of the hosts of --rdzv-endpoint is this machine.
 *
 * It asks the resolver, which blocks, so serve.c runs serve_find_self() as a blocking
 * call in a thread. */
#ifndef ETCD_SERVE_FIND_SELF_H
#define ETCD_SERVE_FIND_SELF_H

#include "etcd/serve/core/serve_plan.h"

struct serve_find {
    size_t count;
    char local_addr[256]; /* --local-addr, or "". If given, it alone decides. */
    struct {
        char host[256];
        char address[64]; /* out: numeric */
        bool ours;        /* out */
    } hosts[SERVE_HOSTS_MAX];
};

/* local_addr may be NULL. The caller frees it; NULL: out of memory. */
struct serve_find *serve_find_new(const struct serve_hosts *hosts,
                                  const char *local_addr);

void serve_find_self(void *find); /* blocks */

/* The first host that is this machine; find->count if none is. */
size_t serve_found(const struct serve_find *find);

#endif
