/* serve.c - glue between the agent and etcd/serve: the etcd of --rdzv-serve, up before
 * the join begins, gone after the rendezvous was left. */
#include "etcd/serve/serve.h"
#include "agent/agent_int.h"
#include "auth/secret.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/conf_table.h"

#define SERVE_MS 60000 /* unless join_timeout or read_timeout are longer */

struct agent_serve {
    struct etcd_serve *etcd;
    bool starting;             /* the join waits for it */
    struct auth *auth;         /* the secret that it has certificates from, or NULL */
    struct rdzv_params params; /* with what is to be known of it */
};

static void serve_on_ready(void *ctx, const struct muster_error *err)
{
    struct agent *a = ctx;

    a->serve->starting = false;
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
        log_line(
            a->log, LOG_WARN, AT_AGENT,
            "etcd of this job: without TLS, since munge gives the job its secret only "
            "later; with --token-file on every node its members and clients talk TLS");
    return rc;
}

/* What the rendezvous must know of the etcd that it will find. */
static int set_params(struct agent *a, struct muster_error *err)
{
    const struct http_tls tls = etcd_serve_tls(a->serve->etcd);
    const struct {
        enum conf_id key;
        const char *value;
    } set[] = { { CONF_PROTOCOL, tls.ca_file ? "https" : NULL },
                { CONF_CA_CERT, tls.ca_file },
                { CONF_SSL_CERT, tls.cert_file },
                { CONF_SSL_CERT_KEY, tls.key_file } };
    int rc = params_copy(&a->serve->params, &a->config->rdzv, err);

    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(set); i++)
        if (set[i].value)
            rc = params_set_str(&a->serve->params, conf_keys[set[i].key].name,
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
        .log = a->log,
    };
    int64_t join_s = 600;

    if (!a->config->rdzv_serve)
        return 0;
    a->serve = mem_calloc(1, sizeof *a->serve);
    if (!a->serve)
        return err_nomem(err);
    int rc = conf_int(p, CONF_PEER_PORT, &opts.peer_port, err);

    if (rc == 0)
        rc = conf_int(p, CONF_JOIN_TIMEOUT, &join_s, err);
    if (rc < 0)
        return rc;
    opts.timeout_ms = join_s > 0 && join_s < 86400 ? (uint64_t)join_s * 1000 : SERVE_MS;
    rc = load_secret(a, &a->serve->auth, err);
    opts.auth = a->serve->auth;
    if (rc == 0)
        rc = etcd_serve_open(&a->loop, a->guard, &opts, serve_on_ready, a,
                             &a->serve->etcd, err);
    a->serve->starting = rc == 0;
    return rc < 0 ? rc : set_params(a, err);
}

bool agent_serve_is_starting(const struct agent *a)
{
    return a->serve && a->serve->starting;
}

const struct rdzv_params *agent_serve_params(const struct agent *a)
{
    return a->serve ? &a->serve->params : &a->config->rdzv;
}

static void serve_on_closed(void *ctx)
{
    struct agent *a = ctx;

    a->serve->etcd = NULL;
}

void agent_serve_close(struct agent *a)
{
    struct agent_serve *s = a->serve;

    if (!s)
        return;
    agent_handler_close(a);
    while (a->handler && uv_run(&a->loop, UV_RUN_ONCE) != 0)
        ;
    if (s->etcd)
        etcd_serve_close(s->etcd, serve_on_closed, a);
    while (s->etcd && uv_run(&a->loop, UV_RUN_ONCE) != 0)
        ;
    auth_unref(s->auth);
    params_fini(&s->params);
    mem_free(s);
    a->serve = NULL;
}
