/* options.c - see options.h. */
#include "etcd/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "etcd/core/rdzv_state.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/endpoint.h"

/* torch's two etcd backends have different names for the same options; our v3 has those
 * of v2. */
static const struct {
    enum conf_id protocol, ca, cert, key;
} names[] = {
    [ETCD_BACKEND_LEGACY] = { CONF_LEGACY_PROTOCOL, CONF_LEGACY_CACERT,
                              CONF_LEGACY_CERT, CONF_LEGACY_KEY },
    [ETCD_BACKEND_V2] = { CONF_PROTOCOL, CONF_CA_CERT, CONF_SSL_CERT,
                          CONF_SSL_CERT_KEY },
    [ETCD_BACKEND_V3] = { CONF_PROTOCOL, CONF_CA_CERT, CONF_SSL_CERT,
                          CONF_SSL_CERT_KEY },
};

static int read_protocol(struct etcd_conf *conf, enum etcd_backend backend,
                         const struct rdzv_params *params, struct muster_error *err)
{
    size_t word;
    const int rc = conf_word(params, names[backend].protocol, &word, err);

    if (rc < 0)
        return rc;
    conf->protocol = mem_strdup(word == 1 ? "https" : "http");
    return conf->protocol ? 0 : err_nomem(err);
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

/* Reads "h1:2379,h2:2379". torch takes no lists here, and host names have no commas. */
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

/* Everybody on the machine can read a password on a command line. A file or the
 * environment is safer, and takes precedence. */
static int read_user(struct etcd_conf *conf, const struct rdzv_params *params,
                     struct muster_error *err)
{
    const char *file = conf_text(params, CONF_PASSWORD_FILE);
    const char *env = getenv("MUSTER_ETCD_PASSWORD");
    int rc = 0;

    conf->client.user = conf_text(params, CONF_USER);
    if (!conf->client.user)
        return 0;
    if (file)
        rc = read_password_file(conf, file, err);
    else if ((conf->password =
                  mem_strdup(env ? env : conf_text(params, CONF_PASSWORD))) == NULL)
        rc = err_nomem(err);
    conf->client.password = conf->password;
    return rc;
}

static int read_numbers(struct etcd_conf *conf, enum etcd_backend backend,
                        const struct rdzv_params *params, struct muster_error *err)
{
    int64_t seconds, ttl = 0;
    int rc = conf_int(params, CONF_READ_TIMEOUT, &seconds, err);

    if (rc == 0 && backend == ETCD_BACKEND_V3)
        rc = conf_int(params, CONF_LEASE_TTL, &ttl, err);
    if (rc < 0)
        return rc;
    conf->read_timeout_ms = (uint64_t)MIN_OF(seconds, 86400) * 1000;
    conf->lease_ttl_s = (uint64_t)ttl;
    return 0;
}

/* torch's first handler has no settings for its keep-alive: its keys live for 10 s. */
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
                   const struct rdzv_params *params, const struct log *log,
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
    conf->client.tls.ca_file = conf_text(params, names[backend].ca);
    conf->client.tls.cert_file = conf_text(params, names[backend].cert);
    conf->client.tls.key_file = conf_text(params, names[backend].key);
    conf->client.log = log;
    conf->client.seed = rng_mix(uv_hrtime() ^ (uint64_t)uv_os_getpid() << 40);
    if (backend != ETCD_BACKEND_V2)
        conf->prefix = conf_text(
            params, backend == ETCD_BACKEND_V3 ? CONF_PREFIX : CONF_LEGACY_PREFIX);
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
