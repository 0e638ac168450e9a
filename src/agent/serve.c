/* serve.c - the etcd of --rdzv-serve in the agent's life: up before the join begins,
 * gone after the rendezvous was left. */
#include "etcd/serve/serve.h"
#include "agent/agent_int.h"
#include "base/err.h"
#include "rendezvous/core/conf_table.h"

#define SERVE_MS 60000 /* unless join_timeout or read_timeout are longer */

static void serve_on_ready(void *ctx, const struct muster_error *err)
{
    struct agent *a = ctx;

    a->serve_starts = false;
    if (err) {
        agent_fail(a, err);
        agent_pump(a);
    } else {
        agent_begin(a);
    }
}

int agent_serve_open(struct agent *a, struct muster_error *err)
{
    const struct rdzv_params *p = &a->config->rdzv;
    struct etcd_serve_opts opts = {
        .endpoints = p->endpoint ? p->endpoint : "",
        .local_addr = p->local_addr,
        .run_id = p->run_id,
        .envp = a->opts.envp,
        .trace = &a->trace,
    };
    int64_t join_s = 600;
    int rc = conf_int(p, CONF_PEER_PORT, &opts.peer_port, err);

    if (rc == 0)
        rc = conf_int(p, CONF_JOIN_TIMEOUT, &join_s, err);
    if (rc < 0)
        return rc;
    opts.timeout_ms = join_s > 0 && join_s < 86400 ? (uint64_t)join_s * 1000 : SERVE_MS;
    rc = etcd_serve_open(&a->loop, a->guard, &opts, serve_on_ready, a, &a->serve, err);
    a->serve_starts = rc == 0;
    return rc;
}

static void serve_on_handler_gone(void *ctx)
{
    struct agent *a = ctx;

    a->handler = NULL;
}

static void serve_on_closed(void *ctx)
{
    struct agent *a = ctx;

    a->serve = NULL;
}

void agent_serve_close(struct agent *a)
{
    if (!a->serve)
        return;
    if (a->handler)
        a->handler->ops->destroy(a->handler, serve_on_handler_gone, a);
    while (a->handler && uv_run(&a->loop, UV_RUN_ONCE) != 0)
        ;
    etcd_serve_close(a->serve, serve_on_closed, a);
    while (a->serve && uv_run(&a->loop, UV_RUN_ONCE) != 0)
        ;
}
