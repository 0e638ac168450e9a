/* params.c - the public functions for rendezvous/core/params.h and
 * rendezvous/core/endpoint.h. */
#include "muster/params.h"

#include "api/need.h"
#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/core/params.h"

int muster_params_new(const char *backend, const char *endpoint, const char *run_id,
                      int64_t min_nodes, int64_t max_nodes, const char *local_addr,
                      struct muster_params **out, struct muster_error *err)
{
    struct muster_params *p;
    int rc;

    if (need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    rc = params_init(&p->inner, backend, endpoint, run_id, min_nodes, max_nodes,
                     local_addr, err);
    if (rc < 0) {
        mem_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void muster_params_free(struct muster_params *p)
{
    if (p)
        params_fini(&p->inner);
    mem_free(p);
}

int muster_params_set(struct muster_params *p, const char *key, const char *value,
                      struct muster_error *err)
{
    if (need(p, "params", err) < 0 || need(key, "key", err) < 0 ||
        need(value, "value", err) < 0)
        return MUSTER_EINVAL;
    return params_set_str(&p->inner, key, value, err);
}

int muster_params_set_int(struct muster_params *p, const char *key, int64_t value,
                          struct muster_error *err)
{
    if (need(p, "params", err) < 0 || need(key, "key", err) < 0)
        return MUSTER_EINVAL;
    return params_set_int(&p->inner, key, value, err);
}

int muster_params_set_bool(struct muster_params *p, const char *key, int value,
                           struct muster_error *err)
{
    if (need(p, "params", err) < 0 || need(key, "key", err) < 0)
        return MUSTER_EINVAL;
    return params_set_bool(&p->inner, key, value != 0, err);
}

int muster_params_parse(struct muster_params *p, const char *text,
                        struct muster_error *err)
{
    if (need(p, "params", err) < 0)
        return MUSTER_EINVAL;
    return conf_parse(&p->inner, text, err);
}

const char *muster_params_get(const struct muster_params *p, const char *key)
{
    return p && key ? params_str(&p->inner, key, NULL) : NULL;
}

int muster_params_get_as_int(const struct muster_params *p, const char *key,
                             int64_t dflt, int64_t *out, struct muster_error *err)
{
    if (need(p, "params", err) < 0 || need(key, "key", err) < 0 ||
        need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    return params_int(&p->inner, key, dflt, out, err);
}

int muster_params_get_as_bool(const struct muster_params *p, const char *key, int dflt,
                              int *out, struct muster_error *err)
{
    if (need(p, "params", err) < 0 || need(key, "key", err) < 0 ||
        need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    return params_bool(&p->inner, key, dflt, out, err);
}

const char *muster_params_backend(const struct muster_params *p)
{
    return p ? p->inner.backend : "";
}

const char *muster_params_endpoint(const struct muster_params *p)
{
    return p ? p->inner.endpoint : "";
}

const char *muster_params_run_id(const struct muster_params *p)
{
    return p ? p->inner.run_id : "";
}

const char *muster_params_local_addr(const struct muster_params *p)
{
    return p ? p->inner.local_addr : NULL;
}

int64_t muster_params_min_nodes(const struct muster_params *p)
{
    return p ? p->inner.min_nodes : 0;
}

int64_t muster_params_max_nodes(const struct muster_params *p)
{
    return p ? p->inner.max_nodes : 0;
}

int muster_endpoint_parse(const char *text, int default_port, char *host, size_t size,
                          int *port, struct muster_error *err)
{
    struct endpoint e;
    const int rc = endpoint_parse(text, default_port, &e, err);

    if (rc < 0)
        return rc;
    if (need(host, "host", err) < 0 || need(port, "port", err) < 0)
        return MUSTER_EINVAL;
    if (strlen(e.host) >= size)
        return err_set(err, MUSTER_EFULL, "no room for a host name of %zu bytes",
                       strlen(e.host));
    memcpy(host, e.host, strlen(e.host) + 1);
    *port = e.port;
    return 0;
}
