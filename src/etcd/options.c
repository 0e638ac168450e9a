/* options.c - see options.h. */
#include "etcd/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "etcd/core/rdzv_state.h"
#include "rendezvous/core/endpoint.h"

#define LEASE_TTL_S 10

/* torch gave the same things other names in its two etcd backends; v3 follows v2. */
static const struct {
    const char *ca, *cert, *key, *prefix, *default_prefix, *bad_protocol;
} names[] = {
    [ETCD_BACKEND_LEGACY] = { "cacert", "cert", "key", "etcd_prefix",
                              "/torchelastic/p2p",
                              "The etcd protocol must be HTTP or HTTPS." },
    [ETCD_BACKEND_V2] = { "ca_cert", "ssl_cert", "ssl_cert_key", NULL, NULL,
                          "The protocol must be HTTP or HTTPS." },
    [ETCD_BACKEND_V3] = { "ca_cert", "ssl_cert", "ssl_cert_key", "prefix", "/muster",
                          "The protocol must be HTTP or HTTPS." },
};

static int read_protocol(struct etcd_conf *conf, enum etcd_backend backend,
                         const struct rdzv_params *params, struct muster_error *err)
{
    const char *text = params_str(params, "protocol", "http");
    size_t n = strlen(text);

    if (backend != ETCD_BACKEND_LEGACY) { /* which takes it as it is */
        while (n && isspace((uint8_t)text[n - 1]))
            n--;
        while (n && isspace((uint8_t)*text))
            text++, n--;
    }
    conf->protocol = mem_strndup(text, n);
    if (!conf->protocol)
        return err_nomem(err);
    if (backend != ETCD_BACKEND_LEGACY)
        for (char *p = conf->protocol; *p; p++)
            *p = (char)tolower((uint8_t)*p);
    if (strcmp(conf->protocol, "http") != 0 && strcmp(conf->protocol, "https") != 0)
        return err_set(err, MUSTER_EINVAL, "%s", names[backend].bad_protocol);
    return 0;
}

static int add_url(struct etcd_conf *conf, const char *text, struct muster_error *err)
{
    struct endpoint e;
    char **urls;
    int rc = endpoint_parse(text, RDZV_ETCD_PORT, &e, err);

    if (rc < 0)
        return rc;
    urls = mem_realloc_array(conf->urls, conf->client.count + 1, sizeof *urls);
    if (!urls)
        return err_nomem(err);
    conf->urls = urls;
    urls[conf->client.count] =
        strchr(e.host, ':') ? mem_printf("%s://[%s]:%d", conf->protocol, e.host, e.port)
                            : mem_printf("%s://%s:%d", conf->protocol, e.host, e.port);
    if (!urls[conf->client.count])
        return err_nomem(err);
    conf->client.count++;
    return 0;
}

/* "h1:2379,h2:2379": torch has no lists here, a host name cannot hold a comma. */
static int read_endpoints(struct etcd_conf *conf, const char *text,
                          struct muster_error *err)
{
    char *copy = mem_strdup(text), *save = NULL;
    int rc = 0;

    if (!copy)
        return err_nomem(err);
    if (!strchr(copy, ','))
        rc = add_url(conf, copy, err);
    else
        for (char *p = strtok_r(copy, ",", &save); rc == 0 && p;
             p = strtok_r(NULL, ",", &save))
            rc = add_url(conf, p, err);
    mem_free(copy);
    if (rc == 0 && conf->client.count == 0)
        return err_set(err, MUSTER_EINVAL,
                       "The rendezvous endpoint '%s' names no server.", text);
    return rc;
}

static int read_password_file(struct etcd_conf *conf, const char *path,
                              struct muster_error *err)
{
    char line[1024] = "";
    FILE *f = fopen(path, "re");

    if (!f || !fgets(line, sizeof line, f)) {
        const int why = errno;

        if (f)
            (void)fclose(f);
        return err_set(err, MUSTER_EINVAL, "password_file %s: %s", path,
                       f ? "empty" : strerror(why));
    }
    (void)fclose(f);
    line[strcspn(line, "\r\n")] = '\0';
    conf->password = mem_strdup(line);
    return conf->password ? 0 : err_nomem(err);
}

/* A password on a command line can be read by everybody on the machine: a file or the
 * environment are better, and come first. */
static int read_user(struct etcd_conf *conf, const struct rdzv_params *params,
                     struct muster_error *err)
{
    const char *file = params_str(params, "password_file", NULL);
    const char *env = getenv("MUSTER_ETCD_PASSWORD");
    int rc = 0;

    conf->client.user = params_str(params, "user", NULL);
    if (!conf->client.user)
        return 0;
    if (file)
        rc = read_password_file(conf, file, err);
    else if ((conf->password =
                  mem_strdup(env ? env : params_str(params, "password", ""))) == NULL)
        rc = err_nomem(err);
    conf->client.password = conf->password;
    return rc;
}

static int read_numbers(struct etcd_conf *conf, enum etcd_backend backend,
                        const struct rdzv_params *params, struct muster_error *err)
{
    int64_t seconds, ttl;
    int rc = params_int(params, "read_timeout", 60, &seconds, err);

    if (rc == 0 && seconds <= 0)
        return err_set(err, MUSTER_EINVAL,
                       "The read timeout must be a positive integer.");
    if (rc == 0)
        rc = params_int(params, "lease_ttl", LEASE_TTL_S, &ttl, err);
    if (rc < 0)
        return rc;
    if (backend == ETCD_BACKEND_V3 && (ttl < 2 || ttl > 3600))
        return err_set(err, MUSTER_EINVAL,
                       "The lease_ttl must be between 2 and 3600 seconds.");
    conf->read_timeout_ms = (uint64_t)MIN_OF(seconds, 86400) * 1000;
    conf->lease_ttl_s = (uint64_t)ttl;
    return 0;
}

/* torch's first handler has no such thing: its keys live 10 s. */
static int read_patience(struct etcd_conf *conf, enum etcd_backend backend,
                         const struct rdzv_params *params, struct muster_error *err)
{
    struct rdzv_settings s;
    int rc;

    if (backend == ETCD_BACKEND_LEGACY)
        return 0;
    rdzv_settings_init(&s, params->min_nodes, params->max_nodes);
    rc = rdzv_settings_keep_alive(&s, params, err);
    if (rc == 0)
        conf->client.attempt_ms = etcd_patience_ms(&s);
    return rc;
}

int etcd_conf_read(struct etcd_conf *conf, enum etcd_backend backend,
                   const struct rdzv_params *params, const struct trace *trace,
                   struct muster_error *err)
{
    int rc;

    *conf = (struct etcd_conf){ .prefix = NULL };
    rc = read_numbers(conf, backend, params, err);
    if (rc == 0)
        rc = read_patience(conf, backend, params, err);
    if (rc == 0)
        rc = read_protocol(conf, backend, params, err);
    if (rc == 0)
        rc = read_endpoints(conf, params->endpoint ? params->endpoint : "", err);
    if (rc == 0)
        rc = read_user(conf, params, err);
    if (rc < 0) {
        etcd_conf_fini(conf);
        return rc;
    }
    conf->client.api = backend == ETCD_BACKEND_V3 ? ETCD_V3 : ETCD_V2;
    conf->client.urls = (const char *const *)conf->urls;
    conf->client.tls.ca_file = params_str(params, names[backend].ca, NULL);
    conf->client.tls.cert_file = params_str(params, names[backend].cert, NULL);
    conf->client.tls.key_file = params_str(params, names[backend].key, NULL);
    conf->client.trace = trace;
    conf->client.seed = rng_mix(uv_hrtime() ^ (uint64_t)uv_os_getpid() << 40);
    if (names[backend].prefix)
        conf->prefix =
            params_str(params, names[backend].prefix, names[backend].default_prefix);
    return 0;
}

void etcd_conf_fini(struct etcd_conf *conf)
{
    if (!conf)
        return;
    for (size_t i = 0; i < conf->client.count; i++)
        mem_free(conf->urls[i]);
    mem_free(conf->urls);
    mem_free(conf->protocol);
    mem_free(conf->password);
    *conf = (struct etcd_conf){ .prefix = NULL };
}
