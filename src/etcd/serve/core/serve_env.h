/* serve_env.h - the environment that the etcd of --rdzv-serve is started with.
 *
 * Settings are passed in the environment and not as options, as an etcd that does not
 * know one of them then still starts. Pure; serve.c is its only caller. */
#ifndef ETCD_SERVE_CORE_SERVE_ENV_H
#define ETCD_SERVE_CORE_SERVE_ENV_H

#include "etcd/serve/core/serve_plan.h"

struct serve_env_spec {            /* all borrowed */
    char *const *inherited;        /* the agent's; may be NULL */
    const struct serve_host *host; /* this machine */
    const char *scheme;            /* http or https */
    const char *address;           /* numeric: where it listens */
    const char *name;              /* of the member */
    const char *dir;               /* its data go to DIR/data */
    const char *run_id;
    const char *client_url, *peer_url; /* the URLs that it announces */
    const char *cluster;               /* serve_cluster_new() or _existing() */
    bool existing;                     /* it joins a running cluster */
    const char *ca, *cert, *key;       /* files; all NULL: no TLS */
};

/* Makes a list of NAME=value that ends with NULL. The user's own ETCD_ settings, which
 * are meant for another etcd, are left out. NULL if memory runs out. */
char **serve_env_new(const struct serve_env_spec *spec);
void serve_env_free(char **env); /* NULL is fine */

#endif
