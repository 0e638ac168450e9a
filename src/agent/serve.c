/* serve.c - the etcd of --rdzv-serve in the agent's life: up before the join begins,
 * gone after the rendezvous was left. */
#include "etcd/serve/serve.h"
#include "agent/agent_int.h"
#include "auth/secret.h"
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

/* With munge, the process that serves the store makes the job's key, and that happens
 * later: nobody could hand it out before there is an etcd. */
static int load_secret(struct agent *a, struct auth **out, struct muster_error *err)
{
    const struct rdzv_params *p = &a->config->rdzv;
    const struct secret_opts opts = { .token_file = conf_text(p, CONF_TOKEN_FILE),
                                      .run_id = p->run_id };
    int munge = 0, rc = secret_load(&opts, out, err);

    if (rc == 0 && !*out)
        rc = conf_bool(p, CONF_MUNGE, &munge, err);
    if (munge)
        note(a->opts.log, NOTE_WARN, AT_AGENT,
             "etcd of this job: without TLS, since munge gives the job its secret only "
             "later; with --token-file on every node its members and clients talk TLS");
    return rc;
}

/* What the rendezvous must know of the etcd that it will find. */
static int set_params(struct agent *a, struct muster_error *err)
{
    const struct http_tls tls = etcd_serve_tls(a->serve);
    const struct {
        enum conf_id key;
        const char *value;
    } set[] = { { CONF_PROTOCOL, tls.ca_file ? "https" : NULL },
                { CONF_CA_CERT, tls.ca_file },
                { CONF_SSL_CERT, tls.cert_file },
                { CONF_SSL_CERT_KEY, tls.key_file } };
    int rc = params_copy(&a->serve_params, &a->config->rdzv, err);

    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(set); i++)
        if (set[i].value)
            rc = params_set_str(&a->serve_params, conf_keys[set[i].key].name,
                                set[i].value, err);
    return rc;
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
    rc = load_secret(a, &a->serve_auth, err);
    opts.auth = a->serve_auth;
    if (rc == 0)
        rc = etcd_serve_open(&a->loop, a->guard, &opts, serve_on_ready, a, &a->serve,
                             err);
    a->serve_starts = rc == 0;
    return rc < 0 ? rc : set_params(a, err);
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
    auth_unref(a->serve_auth);
    params_fini(&a->serve_params);
}
