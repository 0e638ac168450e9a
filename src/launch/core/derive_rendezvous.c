/* derive_rendezvous.c - the steps of derive.c that are about the rendezvous: how many
 * nodes, which backend, where, under which run id. */
#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/repr.h"
#include "base/py/text.h"
#include "launch/core/derive_int.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/core/params.h"

#define RANDOM_ID_WARNING "config has no run_id, generated a random run_id: "

/* options_parse() has checked that these are numbers. */
int derive_parse_nnodes(struct deriving *d)
{
    const char *text = d->o->nnodes, *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    struct rdzv_params *p = &d->c->rdzv;
    bool good = py_int(span_of(text, n), &p->min_nodes);

    p->max_nodes = p->min_nodes;
    good = good && (!colon || py_int(span_str(colon + 1), &p->max_nodes));
    assert(good);
    (void)good;
    return 0;
}

static bool is_static(const struct deriving *d)
{
    return strcmp(d->backend, "static") == 0;
}

/* A job on one node needs no address from the user: c10d on a free port and a random
 * id. Like torchrun this drops an id that the user gave. */
int derive_choose_backend(struct deriving *d)
{
    bool alone = d->o->standalone;
    int rc;

    d->backend = d->o->rdzv_backend;
    d->endpoint = d->o->rdzv_endpoint;
    d->id = d->o->rdzv_id;
    if (!alone && is_static(d) && !*d->endpoint && !d->o->master_port.given) {
        rc = derive_parse_nnodes(d);
        if (rc)
            return rc;
        alone = d->c->rdzv.max_nodes == 1;
    }
    if (!alone)
        return 0;
    derive_uuid(d->machine->random, d->uuid);
    d->backend = "c10d";
    d->endpoint = "localhost:0";
    d->id = d->uuid;
    return 0;
}

int derive_check_sizes(struct deriving *d)
{
    const struct rdzv_params *c = &d->c->rdzv;

    if (c->min_nodes <= 0 || c->min_nodes > c->max_nodes)
        return err_set(d->err, MUSTER_EINVAL,
                       "min_nodes must be > 0 and <= max_nodes, got min_nodes=%lld, "
                       "max_nodes=%lld",
                       (long long)c->min_nodes, (long long)c->max_nodes);
    if (d->o->max_restarts.value < 0)
        return err_set(d->err, MUSTER_EINVAL, "max_restarts must be >= 0");
    return 0;
}

int derive_warn_of_unused(struct deriving *d)
{
    char text[512];

    if (is_static(d))
        return 0;
    if (!*d->endpoint && strcmp(d->backend, "c10d") == 0 && d->c->rdzv.max_nodes > 1)
        d->machine->warn(d->machine->ctx, DERIVE_WARN_ENDPOINT,
                         "the nodes meet at localhost:29400, which is this machine: "
                         "for others give --rdzv-endpoint=HOST:PORT, the same on all");
    if (!*d->endpoint)
        d->machine->warn(d->machine->ctx, DERIVE_WARN_MASTER_ADDR,
                         "master_addr is only used for static rdzv_backend and when "
                         "rdzv_endpoint is not specified.");
    if (d->o->node_rank.value != 0 &&
        !(d->o->rank_order && strcmp(d->o->rank_order, "given") == 0)) {
        (void)snprintf(text, sizeof text,
                       "node_rank is only used for static rdzv_backend. It will be "
                       "ignored for rdzv_backend=%s.",
                       d->backend);
        d->machine->warn(d->machine->ctx, DERIVE_WARN_NODE_RANK, text);
    }
    return 0;
}

/* As in torch, backends ignore keys that they do not know, so nobody would notice a
 * misspelled one. */
static void warn_of_misspelled_keys(const struct deriving *d)
{
    const struct rdzv_params *p = &d->c->rdzv;
    char text[300];

    for (size_t i = 0; i < p->count; i++) {
        const char *key = p->options[i].key, *meant = conf_meant(key);

        if (!meant)
            continue;
        (void)snprintf(
            text, sizeof text,
            "--rdzv-conf: no backend of muster knows the key '%.100s'. Did you mean "
            "%s?",
            key, meant);
        d->machine->warn(d->machine->ctx, DERIVE_WARN_CONF, text);
    }
}

int derive_parse_rdzv_conf(struct deriving *d)
{
    struct rdzv_params *p = &d->c->rdzv;
    int rc = conf_parse(p, d->o->rdzv_conf, d->err);

    if (rc == 0)
        warn_of_misspelled_keys(d);
    if (rc == 0 && is_static(d))
        rc =
            params_set_int(p, conf_keys[CONF_RANK].name, d->o->node_rank.value, d->err);
    if (rc == 0 && d->o->rdzv_serve) {
        if (strcmp(d->backend, "etcd-v3") != 0)
            return err_set(
                d->err, MUSTER_EINVAL,
                "--rdzv-serve runs an etcd for --rdzv-backend=etcd-v3, not for "
                "%s",
                d->backend);
        d->c->rdzv_serve = true;
        /* This etcd is near and serves one job, so its leases can be short. */
        if (!conf_given(p, CONF_LEASE_TTL))
            rc = params_set_int(p, conf_keys[CONF_LEASE_TTL].name, 4, d->err);
        if (rc == 0 && !conf_given(p, CONF_KEEP_ALIVE_INTERVAL))
            rc = params_set_int(p, conf_keys[CONF_KEEP_ALIVE_INTERVAL].name, 3, d->err);
    }
    if (rc == 0 && d->o->token_file)
        rc = params_set_str(p, conf_keys[CONF_TOKEN_FILE].name, d->o->token_file,
                            d->err);
    if (rc == 0 && d->o->token_optional)
        rc = params_set_bool(p, conf_keys[CONF_TOKEN_OPTIONAL].name, true, d->err);
    if (rc == 0 && d->o->encrypt)
        rc = params_set_bool(p, conf_keys[CONF_ENCRYPT].name, true, d->err);
    if (rc == 0 && !conf_given(p, CONF_TIMEOUT))
        rc = params_set_int(p, conf_keys[CONF_TIMEOUT].name, 900, d->err);
    return rc;
}

int derive_set_endpoint(struct deriving *d)
{
    char *text;

    if (!is_static(d) || *d->endpoint)
        return text_set(&d->c->rdzv.endpoint, d->endpoint) ? err_nomem(d->err) : 0;
    text = mem_printf("%s:%lld", d->o->master_addr,
                      d->o->master_port.given ? (long long)d->o->master_port.value
                                              : 29500LL);
    if (!text)
        return err_nomem(d->err);
    mem_free(d->c->rdzv.endpoint);
    d->c->rdzv.endpoint = text;
    return 0;
}

int derive_set_run_id(struct deriving *d)
{
    char text[sizeof RANDOM_ID_WARNING + 40];

    if (!*d->id) {
        derive_uuid_decimal(d->machine->random, d->uuid);
        d->id = d->uuid;
        (void)snprintf(text, sizeof text, RANDOM_ID_WARNING "%s", d->uuid);
        d->machine->warn(d->machine->ctx, DERIVE_WARN_RUN_ID, text);
    }
    return text_set(&d->c->rdzv.run_id, d->id) ? err_nomem(d->err) : 0;
}

/* Some keys have flags of their own; torchrun ends with an exception if such a key is
 * given a second time. */
int derive_check_rendezvous(struct deriving *d)
{
    static const char *const keys[] = { "backend",   "endpoint",  "run_id",
                                        "min_nodes", "max_nodes", "local_addr" };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (params_get(&d->c->rdzv, keys[i]))
            return err_set(d->err, MUSTER_EINVAL,
                           "got multiple values for keyword argument '%s'\n"
                           "Leave %s= out of --rdzv-conf: it has a flag of its own.",
                           keys[i], keys[i]);
    if (!*d->backend)
        return err_set(d->err, MUSTER_EINVAL,
                       "The rendezvous backend name must be a non-empty string.");
    return 0;
}

/* All nodes must name the same port, as a static rendezvous cannot choose one. */
int derive_check_static_endpoint(struct deriving *d)
{
    const char *text = d->c->rdzv.endpoint;
    const struct span bare = py_strip(span_str(text));
    struct endpoint e;
    int rc;

    if (!is_static(d))
        return 0;
    if (bare.n == 0)
        return err_set(d->err, MUSTER_EINVAL,
                       "Endpoint is missing in endpoint. Try to add --master-addr and "
                       "--master-port");
    rc = endpoint_parse(text, -1, &e, d->err);
    if (rc == 0 && e.port < 0)
        rc = err_set(d->err, MUSTER_EINVAL,
                     "port is missing in endpoint: %.*s. Try to specify "
                     "--master-port",
                     (int)bare.n, (const char *)bare.p);
    return rc;
}
