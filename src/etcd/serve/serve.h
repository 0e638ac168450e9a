/* serve.h - runs a member of the job's own etcd cluster on this machine: --rdzv-serve.
 *
 * It finds out whether this machine is one of the listed hosts, becomes a member of a
 * new or a running cluster (core/serve_plan.h), and runs a real etcd as a service of
 * the guard, with its data in a private directory. Both end with the job. A machine
 * that is not listed runs no etcd. */
#ifndef ETCD_SERVE_SERVE_H
#define ETCD_SERVE_SERVE_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/log.h"
#include "net/http.h"
#include "process/guard.h"

struct etcd_serve;

struct etcd_serve_opts {    /* borrowed until etcd_serve_close */
    const char *endpoints;  /* --rdzv-endpoint */
    const char *local_addr; /* --local-addr, or NULL */
    const char *run_id;
    struct auth *auth;   /* the job's secret, for TLS; or NULL */
    int64_t peer_port;   /* 0: the one after the client's */
    uint64_t timeout_ms; /* until the cluster must answer */
    char *const *envp;
    const struct log *log;
};

/* Called once, from the loop. err is NULL if the cluster answers, or if this machine is
 * not listed. */
typedef void (*etcd_serve_cb)(void *ctx, const struct muster_error *err);

int etcd_serve_open(uv_loop_t *loop, struct guard *guard,
                    const struct etcd_serve_opts *opts, etcd_serve_cb cb, void *ctx,
                    struct etcd_serve **out, struct muster_error *err);

/* With a secret: the files that a client of this etcd needs; they exist until
 * etcd_serve_close. Without a secret all are NULL. */
struct http_tls etcd_serve_tls(const struct etcd_serve *s);

/* Leaves the cluster, if that is possible within seconds, so that the remaining members
 * keep their majority; then ends etcd, removes its data, frees s and calls cb. NULL is
 * fine. */
void etcd_serve_close(struct etcd_serve *s, void (*cb)(void *ctx), void *ctx);

#endif
