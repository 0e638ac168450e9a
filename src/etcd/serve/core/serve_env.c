/* serve_env.c - see serve_env.h. */
#include "etcd/serve/core/serve_env.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

#define SETTINGS_MAX 40 /* how many we add at most */

/* The same for every member. */
static const char *const settings[] = {
    "ETCD_HEARTBEAT_INTERVAL=30",
    "ETCD_ELECTION_TIMEOUT=300",
    "ETCD_UNSAFE_NO_FSYNC=true",
    /* With this check, a member that is younger than five seconds could not leave or be
     * replaced. We are careful ourselves: we remove before we add, and dead members
     * before living ones. */
    "ETCD_STRICT_RECONFIG_CHECK=false",
    "ETCD_AUTO_COMPACTION_MODE=revision",
    "ETCD_AUTO_COMPACTION_RETENTION=1000",
    "ETCD_SNAPSHOT_COUNT=5000",
    "ETCD_MAX_WALS=2",
    "ETCD_MAX_SNAPSHOTS=2",
    "ETCD_QUOTA_BACKEND_BYTES=268435456",
    "ETCD_LOGGER=zap",
    "ETCD_LOG_LEVEL=warn",
};

/* With these settings only processes that hold the job's secret can connect. */
static size_t add_tls(char **env, const struct serve_env_spec *s)
{
    static const char *const kinds[] = { "", "PEER_" };
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        env[n++] = mem_printf("ETCD_%sCERT_FILE=%s", kinds[i], s->cert);
        env[n++] = mem_printf("ETCD_%sKEY_FILE=%s", kinds[i], s->key);
        env[n++] = mem_printf("ETCD_%sTRUSTED_CA_FILE=%s", kinds[i], s->ca);
        env[n++] = mem_printf("ETCD_%sCLIENT_CERT_AUTH=true", kinds[i]);
    }
    /* A machine may connect from another of its addresses than the listed one. */
    env[n++] = mem_strdup("ETCD_EXPERIMENTAL_PEER_SKIP_CLIENT_SAN_VERIFICATION=true");
    return n;
}

static size_t add_all(char **env, const struct serve_env_spec *s)
{
    const bool six = strchr(s->address, ':');
    const char *const open = six ? "[" : "", *const shut = six ? "]" : "";
    size_t n = 0;

    for (char *const *e = s->inherited; e && *e; e++)
        /* etcd has no use for the job's secret, and its environment can be read. */
        if (strncmp(*e, "ETCD_", 5) != 0 && strncmp(*e, "MUSTER_TOKEN=", 13) != 0)
            env[n++] = mem_strdup(*e);
    const size_t inherited = n;

    env[n++] = mem_printf("ETCD_NAME=%s", s->name);
    env[n++] = mem_printf("ETCD_DATA_DIR=%s/data", s->dir);
    env[n++] = mem_printf("ETCD_LISTEN_CLIENT_URLS=%s://%s%s%s:%u", s->scheme, open,
                          s->address, shut, s->host->port);
    env[n++] = mem_printf("ETCD_LISTEN_PEER_URLS=%s://%s%s%s:%u", s->scheme, open,
                          s->address, shut, s->host->peer_port);
    env[n++] = mem_printf("ETCD_ADVERTISE_CLIENT_URLS=%s", s->client_url);
    env[n++] = mem_printf("ETCD_INITIAL_ADVERTISE_PEER_URLS=%s", s->peer_url);
    env[n++] = mem_printf("ETCD_INITIAL_CLUSTER=%s", s->cluster);
    env[n++] = mem_printf("ETCD_INITIAL_CLUSTER_TOKEN=muster-%s", s->run_id);
    env[n++] =
        mem_printf("ETCD_INITIAL_CLUSTER_STATE=%s", s->existing ? "existing" : "new");
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        env[n++] = mem_strdup(settings[i]);
    if (s->cert)
        n += add_tls(env + n, s);
    assert(n - inherited <= SETTINGS_MAX);
    return n;
}

char **serve_env_new(const struct serve_env_spec *s)
{
    size_t inherited = 0;
    bool whole = true;

    while (s->inherited && s->inherited[inherited])
        inherited++;
    char **env = mem_calloc(inherited + SETTINGS_MAX + 1, sizeof *env);
    if (!env)
        return NULL;
    const size_t n = add_all(env, s);

    for (size_t i = 0; i < n; i++)
        whole = whole && env[i];
    if (whole)
        return env;
    for (size_t i = 0; i < n; i++)
        mem_free(env[i]);
    mem_free(env);
    return NULL;
}

void serve_env_free(char **env)
{
    for (size_t i = 0; env && env[i]; i++)
        mem_free(env[i]);
    mem_free(env);
}
