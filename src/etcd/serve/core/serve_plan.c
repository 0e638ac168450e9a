/* serve_plan.c - see serve_plan.h. */
#include "etcd/serve/core/serve_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/endpoint.h"

#define MEMBERS_MAX 64 /* in one answer */

/* ---- the listed hosts ---- */

static int add_host(struct serve_hosts *h, const char *text, int64_t peer_port,
                    struct muster_error *err)
{
    struct endpoint e;
    struct serve_host *items;
    int rc = endpoint_parse(text, RDZV_ETCD_PORT, &e, err);

    if (rc < 0)
        return rc;
    if (h->count == SERVE_HOSTS_MAX)
        return err_set(err, MUSTER_EINVAL,
                       "--rdzv-serve takes at most %d hosts; three survive the loss of "
                       "one, five that of two",
                       SERVE_HOSTS_MAX);
    const int64_t peer = peer_port ? peer_port : e.port + 1;
    if (e.port <= 0 || peer > UINT16_MAX || peer == e.port)
        return err_set(err, MUSTER_EINVAL,
                       "--rdzv-serve: %s needs a port for clients (%d) and another for "
                       "its peers (%" PRId64 "); peer_port in --rdzv-conf names it",
                       e.host, e.port, peer);
    for (size_t i = 0; i < h->count; i++)
        if (strcmp(h->items[i].host, e.host) == 0 && h->items[i].port == e.port)
            return err_set(err, MUSTER_EINVAL,
                           "--rdzv-endpoint names %s:%d twice; with --rdzv-serve each "
                           "host is one member",
                           e.host, e.port);
    items = mem_realloc_array(h->items, h->count + 1, sizeof *items);
    if (!items)
        return err_nomem(err);
    h->items = items;
    items[h->count] = (struct serve_host){ .host = mem_strdup(e.host),
                                           .port = (uint16_t)e.port,
                                           .peer_port = (uint16_t)peer };
    if (!items[h->count].host)
        return err_nomem(err);
    h->count++;
    return 0;
}

int serve_hosts_parse(struct serve_hosts *out, const char *endpoints, int64_t peer_port,
                      struct muster_error *err)
{
    struct serve_hosts h = { 0 };
    char *copy = mem_strdup(endpoints), *save = NULL;
    int rc = copy ? 0 : err_nomem(err);

    if (rc == 0 && (peer_port < 0 || peer_port > UINT16_MAX))
        rc = err_set(err, MUSTER_EINVAL, "peer_port must be between 1 and 65535");
    for (char *p = rc == 0 ? strtok_r(copy, ",", &save) : NULL; rc == 0 && p;
         p = strtok_r(NULL, ",", &save))
        rc = add_host(&h, p, peer_port, err);
    if (rc == 0 && h.count == 0)
        rc = err_set(err, MUSTER_EINVAL,
                     "--rdzv-serve needs --rdzv-endpoint=HOST,HOST,HOST: the machines "
                     "that are to run etcd for the job");
    mem_free(copy);
    if (rc < 0) {
        serve_hosts_fini(&h);
        return rc;
    }
    *out = h;
    return 0;
}

void serve_hosts_fini(struct serve_hosts *h)
{
    for (size_t i = 0; i < h->count; i++)
        mem_free(h->items[i].host);
    mem_free(h->items);
    *h = (struct serve_hosts){ 0 };
}

char *serve_url(const char *scheme, const char *host, uint16_t port)
{
    return strchr(host, ':') ? mem_printf("%s://[%s]:%u", scheme, host, port)
                             : mem_printf("%s://%s:%u", scheme, host, port);
}

/* ---- lists of members ---- */

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* GET /members writes ids as numbers (see quote_ids), the JSON gateway as strings of
 * digits. One calls the field "id", the other "ID". */
static uint64_t id_of(const json_t *o)
{
    const json_t *id = json_object_get(o, "id");

    if (!id)
        id = json_object_get(o, "ID");
    return json_is_string(id) ? strtoull(json_string_value(id), NULL, 10) : 0;
}

static int add_member(struct serve_members *m, const json_t *o,
                      struct muster_error *err)
{
    const json_t *urls = json_object_get(o, "peerURLs");
    const char *url = json_string_value(json_array_get(urls, 0));
    const char *name = json_string_value(json_object_get(o, "name"));
    struct serve_member *items;

    if (!url)
        return err_set(err, MUSTER_EPROTO, "a member of the list has no peerURLs");
    items = mem_realloc_array(m->items, m->count + 1, sizeof *items);
    if (!items)
        return err_nomem(err);
    m->items = items;
    items[m->count] = (struct serve_member){
        .id = id_of(o),
        .started = json_array_size(json_object_get(o, "clientURLs")) > 0,
        .name = mem_strdup(name ? name : ""),
        .peer_url = mem_strdup(url),
    };
    m->count++;
    return items[m->count - 1].name && items[m->count - 1].peer_url ? 0
                                                                    : err_nomem(err);
}

/* GET /members writes ids as unsigned 64-bit numbers, which jansson cannot read. With
 * quotes around them they are read as strings. */
static void quote_ids(struct buf *out, struct span body)
{
    static const char key[] = "\"id\":";
    const size_t n = sizeof key - 1;

    for (size_t i = 0; i < body.n;) {
        if (body.n - i <= n || memcmp(body.p + i, key, n) != 0 ||
            !is_digit(body.p[i + n])) {
            buf_u8(out, body.p[i++]);
            continue;
        }
        buf_append_str(out, "\"id\":\"");
        for (i += n; i < body.n && is_digit(body.p[i]); i++)
            buf_u8(out, body.p[i]);
        buf_u8(out, '"');
    }
}

int serve_members_parse(struct serve_members *out, struct span body,
                        struct muster_error *err)
{
    struct serve_members m = { 0 };
    json_error_t why;
    struct buf text;
    json_t *root;
    int rc = 0;

    buf_init(&text, SIZE_MAX);
    quote_ids(&text, body);
    root = buf_error(&text) ? NULL
                            : json_loadb((const char *)buf_data(&text), buf_len(&text),
                                         JSON_REJECT_DUPLICATES, &why);
    buf_fini(&text);
    const json_t *list = json_is_array(root) ? root : json_object_get(root, "members");

    if (!json_is_array(list) || json_array_size(list) > MEMBERS_MAX)
        rc = err_set(err, MUSTER_EPROTO, "the answer is not a list of etcd's members");
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++)
        rc = add_member(&m, json_array_get(list, i), err);
    json_decref(root);
    if (rc < 0) {
        serve_members_fini(&m);
        return rc;
    }
    *out = m;
    return 0;
}

void serve_members_fini(struct serve_members *m)
{
    for (size_t i = 0; i < m->count; i++) {
        mem_free(m->items[i].name);
        mem_free(m->items[i].peer_url);
    }
    mem_free(m->items);
    *m = (struct serve_members){ 0 };
}

/* ---- the decision ---- */

void serve_tag(char out[SERVE_TAG_SIZE], const char *run_id)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (const char *p = run_id; *p; p++)
        h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
    snprintf(out, SERVE_TAG_SIZE, "%08x-", (unsigned)(h ^ h >> 32));
}

static bool is_foreign(const struct serve_view *v)
{
    for (size_t i = 0; i < v->listed->count; i++)
        if (v->listed->items[i].name[0] &&
            strncmp(v->listed->items[i].name, v->tag, strlen(v->tag)) != 0)
            return true;
    return false;
}

/* A member that has announced no address for clients has not run, or was killed before
 * it could announce it. If the others are a majority we replace it, which is right in
 * both cases. If they are not, they are waiting for it, so there was no majority yet
 * and none of its votes can have counted. */
static enum serve_action plan_of_list(const struct serve_view *v, uint64_t *old)
{
    const struct serve_member *own = NULL;
    size_t started = 0;

    for (size_t i = 0; i < v->listed->count; i++) {
        const struct serve_member *m = &v->listed->items[i];

        if (strcmp(m->peer_url, v->peer_url) == 0)
            own = m;
        else
            started += m->started;
    }
    if (!own)
        return SERVE_ADD;
    if (!own->started && started < v->listed->count / 2 + 1)
        return SERVE_NEW;
    *old = own->id;
    return SERVE_REPLACE;
}

enum serve_action serve_plan(const struct serve_view *v, uint64_t *old)
{
    assert(v->hosts > 0 && v->refused < v->hosts);
    if (v->listed && v->listed->count > 0)
        return is_foreign(v) ? SERVE_FOREIGN : plan_of_list(v, old);
    /* Hosts that do not answer may be a running cluster that still lists us. Only if
     * nothing listens at a majority of the hosts can there be no such cluster. */
    return v->refused + 1 >= v->hosts / 2 + 1 ? SERVE_NEW : SERVE_WAIT;
}

/* ---- whose turn it is ---- */

#define TURN_KEY "bXVzdGVyL3NlcnZlL3R1cm4=" /* muster/serve/turn, in base64 */

bool serve_turn_lease(struct span body, uint64_t *lease)
{
    json_t *root = json_loadb((const char *)body.p, body.n, 0, NULL);

    *lease = id_of(root);
    json_decref(root);
    return *lease != 0;
}

void serve_turn_take(char out[SERVE_TURN_ROOM], uint64_t lease)
{
    snprintf(out, SERVE_TURN_ROOM,
             "{\"compare\":[{\"key\":\"" TURN_KEY "\",\"target\":\"CREATE\","
             "\"create_revision\":\"0\"}],\"success\":[{\"request_put\":{\"key\":"
             "\"" TURN_KEY "\",\"lease\":\"%" PRIu64 "\"}}]}",
             lease);
}

bool serve_turn_is_ours(struct span body)
{
    json_t *root = json_loadb((const char *)body.p, body.n, 0, NULL);
    const bool ours = json_is_true(json_object_get(root, "succeeded"));

    json_decref(root);
    return ours;
}

void serve_turn_give(char out[SERVE_TURN_ROOM], uint64_t lease)
{
    snprintf(out, SERVE_TURN_ROOM, "{\"ID\":\"%" PRIu64 "\"}", lease);
}

static bool runs_on(const struct serve_member *m, const struct serve_host *h,
                    const char *scheme)
{
    char *url = serve_url(scheme, h->host, h->peer_port);
    const bool same = url && strcmp(url, m->peer_url) == 0;

    mem_free(url);
    return same;
}

/* Which host a member runs on; hosts->count if it is not listed. */
static size_t host_of(const struct serve_leave_view *v, const struct serve_member *m)
{
    size_t i = 0;

    while (i < v->hosts->count && !runs_on(m, &v->hosts->items[i], v->scheme))
        i++;
    return i;
}

size_t serve_leave_next(const struct serve_leave_view *v)
{
    size_t own = SERVE_NOBODY, last_dead = SERVE_NOBODY, dead = 0;

    for (size_t i = 0; i < v->listed->count; i++) {
        const struct serve_member *m = &v->listed->items[i];
        const size_t host = host_of(v, m);

        if (host == v->self) {
            own = i;
        } else if (m->id && host < v->hosts->count && !v->answers[host]) {
            last_dead = i;
            dead++;
        }
    }
    assert(dead <= v->listed->count && (dead > 0) == (last_dead != SERVE_NOBODY));
    if (dead * 2 >= v->listed->count)
        return SERVE_NOBODY;
    if (dead > 0)
        return last_dead;
    if (v->left || v->listed->count < 2 || own == SERVE_NOBODY)
        return SERVE_NOBODY;
    return v->listed->items[own].id ? own : SERVE_NOBODY;
}

int serve_cluster_new(struct buf *out, const struct serve_hosts *hosts,
                      const char *scheme, const char *tag)
{
    for (size_t i = 0; i < hosts->count; i++) {
        char *url = serve_url(scheme, hosts->items[i].host, hosts->items[i].peer_port);

        if (!url)
            return MUSTER_ENOMEM;
        buf_printf(out, "%s%s%zu=%s", i ? "," : "", tag, i, url);
        mem_free(url);
    }
    return buf_error(out);
}

int serve_cluster_existing(struct buf *out, const struct serve_members *members,
                           const char *own_name, const char *own_peer_url)
{
    for (size_t i = 0; i < members->count; i++) {
        const struct serve_member *m = &members->items[i];
        const bool own = strcmp(m->peer_url, own_peer_url) == 0;

        buf_printf(out, "%s", buf_len(out) ? "," : "");
        if (own || m->name[0])
            buf_printf(out, "%s=%s", own ? own_name : m->name, m->peer_url);
        else /* It was added and has not started yet. etcd compares only addresses. */
            buf_printf(out, "to-come-%zu=%s", i, m->peer_url);
    }
    return buf_error(out);
}

bool serve_version_parse(struct span body, int *major, int *minor)
{
    char text[256];
    const char *at;

    snprintf(text, sizeof text, "%.*s", (int)MIN_OF(body.n, sizeof text - 1),
             (const char *)body.p);
    at = strstr(text, "\"etcdserver\":\"");
    return at && sscanf(at, "\"etcdserver\":\"%d.%d", major, minor) == 2;
}

/* ---- etcd's environment ---- */

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
