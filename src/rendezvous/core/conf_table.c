/* conf_table.c - see conf_table.h. */
#include "rendezvous/core/conf_table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/err.h"
#include "base/nearest.h"
#include "base/py/repr.h"
#include "base/py/text.h"

#define ANY_INT     .low = INT64_MIN, .high = INT64_MAX
#define AT_LEAST(n) .low = (n), .high = INT64_MAX

#define DEAD_AT_ONCE                                                                   \
    " ({}) must be at least 1: otherwise every node counts as dead at once, and no "   \
    "round completes"

const struct conf_key conf_keys[CONF_COUNT] = {
    [CONF_JOIN_TIMEOUT] = { "join_timeout", CONF_DYNAMIC, CONF_SECONDS, 600,
                            AT_LEAST(1),
                            .refusal = "The join timeout ({}) must be positive.",
                            .help = "Seconds until a node that waits for a round gives "
                                    "up." },
    [CONF_LAST_CALL_TIMEOUT] = { "last_call_timeout", CONF_DYNAMIC, CONF_SECONDS, 30,
                                 AT_LEAST(1),
                                 .refusal =
                                     "The last_call timeout ({}) must be positive.",
                                 .help = "Seconds that a round with the minimum of "
                                         "nodes stays open for more. The backend etcd "
                                         "reads it, too." },
    [CONF_LAST_CALL] = { "last_call", CONF_C10D | CONF_ETCD_V3, CONF_WORD,
                         .text = "first", .words = "first|always",
                         .refusal = "last_call ({}) is first or always; its length is "
                                    "last_call_timeout",
                         .help = "first: later rounds begin as soon as all nodes that "
                                 "are known and alive have come; always: every round "
                                 "waits for last_call_timeout, as torch's do." },
    [CONF_CLOSE_TIMEOUT] = { "close_timeout", CONF_DYNAMIC, CONF_SECONDS, 30,
                             AT_LEAST(1),
                             .refusal = "The close timeout ({}) must be positive.",
                             .help = "Seconds to close the run, or to leave it." },
    /* torch allows less than 1, and then its nodes drop themselves until the join times
     * out. */
    [CONF_KEEP_ALIVE_INTERVAL] = { "keep_alive_interval", CONF_DYNAMIC, CONF_INT, 5,
                                   AT_LEAST(1),
                                   .refusal = "keep_alive_interval" DEAD_AT_ONCE,
                                   .help = "Seconds between heartbeats." },
    [CONF_KEEP_ALIVE_MAX_ATTEMPT] = { "keep_alive_max_attempt", CONF_DYNAMIC, CONF_INT,
                                      3, AT_LEAST(1),
                                      .refusal = "keep_alive_max_attempt" DEAD_AT_ONCE,
                                      .help = "A node that misses this many heartbeats "
                                              "counts "
                                              "as dead." },
    [CONF_HEARTBEAT_TIMEOUT] = { "heartbeat_timeout", CONF_DYNAMIC, CONF_SECONDS, 5,
                                 AT_LEAST(1),
                                 .refusal =
                                     "The heartbeat timeout ({}) must be positive.",
                                 .help = "Seconds for one heartbeat." },
    [CONF_READ_TIMEOUT] = { "read_timeout", CONF_DYNAMIC | CONF_ETCD, CONF_INT, 60,
                            AT_LEAST(1),
                            .refusal = "The read timeout must be a positive integer.",
                            .help = "Seconds for the store, or the etcd cluster, to "
                                    "answer." },
    [CONF_CAS_BACKOFF] = { "cas_backoff_max_seconds", CONF_DYNAMIC, CONF_FLOAT,
                           .shown = "0.0",
                           .refusal = "cas_backoff_max_seconds ({}) must be finite and "
                                      "non-negative.",
                           .help = "After losing a write to another node, wait for a "
                                   "random time of up to this many seconds; 0: it "
                                   "depends on the number of nodes. Not needed with a "
                                   "store of ours." },
    [CONF_STORE_TYPE] = { "store_type", CONF_C10D, CONF_WORD, .text = "tcp",
                          .words = "tcp|file",
                          .refusal = "Invalid store type given. Currently only "
                                     "supports file and tcp.",
                          .help = "tcp, or file: then the endpoint is a path." },
    [CONF_BIND] = { "bind", CONF_ALL, CONF_TEXT, .text = "", .shown = "detected",
                    .help = "The address at which this node's stores listen: all, or a "
                            "numeric address." },
    [CONF_TOKEN_FILE] = { "token_file", CONF_ALL, CONF_TEXT, .shown = "none",
                          .help = "As --token-file." },
    [CONF_TOKEN_OPTIONAL] = { "token_optional", CONF_ALL, CONF_BOOL,
                              .help = "As --token-optional." },
    [CONF_ENCRYPT] = { "encrypt", CONF_ALL, CONF_BOOL, .help = "As --encrypt." },
    [CONF_MUNGE] = { "munge", CONF_ALL, CONF_BOOL, .words = "auto",
                     .shown = "0; auto under srun",
                     .help = "Take the secret from MUNGE, for jobs of one user: 1, 0, "
                             "or auto (if it runs). MUSTER_MUNGE_SOCKET: its daemon's "
                             "socket, if not the usual one." },
    [CONF_IS_HOST] = { "is_host", CONF_C10D, CONF_BOOL, -1, .shown = "detected",
                       .help = "Whether this node hosts the store." },
    [CONF_HOSTED] = { "hosted", CONF_C10D, CONF_BOOL, 1,
                      .help =
                          "Whether a store of ours may own the state and push it "
                          "to the nodes; 0: nodes read and write it as torch's do." },
    [CONF_LOSS_GRACE] = { "loss_grace_ms", CONF_C10D, CONF_INT, 50, 0, 60000,
                          .help = "Milliseconds that a node whose connection broke has "
                                  "to come back before it is lost, at most 60000." },
    [CONF_NODE_ORDER] = { "node_order", CONF_DYNAMIC, CONF_INT, -1, -1, 99999999,
                          .shown = "none",
                          .help = "The number that --rank-order has found for this "
                                  "node: lower numbers get lower ranks." },
    [CONF_RANK] = { "rank", CONF_STATIC, CONF_INT, 0, ANY_INT, .shown = "--node-rank's",
                    .help = "As --node-rank." },
    /* torch's handlers have a default of 600, and torchrun passes 900. */
    [CONF_TIMEOUT] = { "timeout", CONF_ETCD | CONF_STATIC, CONF_INT, 600, ANY_INT,
                       .shown = "900",
                       .help =
                           "Seconds until a node that waits for a round gives up." },
    [CONF_PROTOCOL] = { "protocol", CONF_ETCD_V2 | CONF_ETCD_V3, CONF_WORD,
                        .text = "http", .words = "http|https",
                        .refusal = "The protocol must be HTTP or HTTPS.",
                        .help = "http or https. The backend etcd reads it, too." },
    [CONF_LEGACY_PROTOCOL] = { "protocol", CONF_ETCD, CONF_WORD, .text = "http",
                               .words = "http|https", .exact = true,
                               .refusal = "The etcd protocol must be HTTP or HTTPS." },
    [CONF_CA_CERT] = { "ca_cert", CONF_ETCD_V2 | CONF_ETCD_V3, CONF_TEXT,
                       .shown = "the system's",
                       .help = "File with the CA of the etcd servers. The backend etcd "
                               "calls it cacert." },
    [CONF_SSL_CERT] = { "ssl_cert", CONF_ETCD_V2 | CONF_ETCD_V3, CONF_TEXT,
                        .shown = "none",
                        .help = "File with our client certificate. The backend etcd "
                                "calls it cert." },
    [CONF_SSL_CERT_KEY] = { "ssl_cert_key", CONF_ETCD_V2 | CONF_ETCD_V3, CONF_TEXT,
                            .shown = "in ssl_cert",
                            .help = "File with its key. The backend etcd calls it "
                                    "key." },
    [CONF_LEGACY_CACERT] = { "cacert", CONF_ETCD, CONF_TEXT, .shown = "the system's",
                             .help = "See ca_cert." },
    [CONF_LEGACY_CERT] = { "cert", CONF_ETCD, CONF_TEXT, .shown = "none",
                           .help = "See ssl_cert." },
    [CONF_LEGACY_KEY] = { "key", CONF_ETCD, CONF_TEXT, .shown = "in cert",
                          .help = "See ssl_cert_key." },
    [CONF_LEGACY_PREFIX] = { "etcd_prefix", CONF_ETCD, CONF_TEXT,
                             .text = "/torchelastic/p2p",
                             .help = "Where the keys are; must start with a slash." },
    [CONF_LEGACY_LAST_CALL_TIMEOUT] = { "last_call_timeout", CONF_ETCD, CONF_INT, 30,
                                        ANY_INT }, /* torch allows any number here */
    [CONF_PREFIX] = { "prefix", CONF_ETCD_V3, CONF_TEXT, .text = "/muster",
                      .help = "Where the keys are." },
    [CONF_LEASE_TTL] = { "lease_ttl", CONF_ETCD_V3, CONF_INT, 10, 2, 3600,
                         .refusal = "The lease_ttl must be between 2 and 3600 seconds.",
                         .help = "Seconds until the loss of a node is noticed, from 2 "
                                 "to 3600; 4 with --rdzv-serve." },
    [CONF_PEER_PORT] = { "peer_port", CONF_ETCD_V3, CONF_INT, 0, ANY_INT,
                         .shown = "the client's + 1",
                         .help = "With --rdzv-serve: the port at which its etcd "
                                 "servers talk to each other." },
    [CONF_USER] = { "user", CONF_ETCD | CONF_ETCD_V2 | CONF_ETCD_V3, CONF_TEXT,
                    .shown = "none", .help = "Name of an etcd user." },
    [CONF_PASSWORD_FILE] = { "password_file", CONF_ETCD | CONF_ETCD_V2 | CONF_ETCD_V3,
                             CONF_TEXT, .shown = "none",
                             .help = "File whose first line is the password. "
                                     "MUSTER_ETCD_PASSWORD may hold it, too." },
    [CONF_PASSWORD] = { "password", CONF_ETCD | CONF_ETCD_V2 | CONF_ETCD_V3, CONF_TEXT,
                        .text = "", .shown = "none",
                        .help = "The password itself; everybody on the machine can "
                                "read it." },
};

/* ---- Backends ---- */

static const struct {
    const char *name;
    unsigned bit;
} backends[] = {
    { "c10d", CONF_C10D },       { "static", CONF_STATIC },   { "etcd", CONF_ETCD },
    { "etcd-v2", CONF_ETCD_V2 }, { "etcd-v3", CONF_ETCD_V3 },
};

unsigned conf_backend(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(backends); i++)
        if (strcmp(backends[i].name, name) == 0)
            return backends[i].bit;
    return 0;
}

/* A built-in backend reads only the settings that the table gives it; a backend that
 * the caller registered may read any. */
static const struct rdzv_option *given(const struct rdzv_params *p,
                                       const struct conf_key *k)
{
    const unsigned backend = conf_backend(p->backend);

    return !backend || k->backends & backend ? params_get(p, k->name) : NULL;
}

/* ---- Reading ---- */

static int refuse(const struct conf_key *k, const char *value, struct muster_error *err)
{
    const char *mark = k->refusal ? strstr(k->refusal, "{}") : NULL;

    if (mark)
        return err_set(err, MUSTER_EINVAL, "%.*s%s%s", (int)(mark - k->refusal),
                       k->refusal, value, mark + 2);
    if (k->refusal)
        return err_set(err, MUSTER_EINVAL, "%s", k->refusal);
    return err_set(err, MUSTER_EINVAL,
                   "The rendezvous configuration option '%s' (%s) must be from %" PRId64
                   " to %" PRId64 ".",
                   k->name, value, k->low, k->high);
}

/* str(timedelta): "0:10:00", "-1 day, 23:59:59". */
static void duration(int64_t s, char *out, size_t size)
{
    int64_t days = s / 86400, rest = s % 86400;
    int n = 0;

    if (rest < 0) {
        rest += 86400;
        days--;
    }
    if (days != 0)
        n = snprintf(out, size, "%" PRId64 " day%s, ", days,
                     llabs(days) == 1 ? "" : "s");
    (void)snprintf(out + n, size - (size_t)n, "%" PRId64 ":%02d:%02d", rest / 3600,
                   (int)(rest / 60 % 60), (int)(rest % 60));
}

int conf_int(const struct rdzv_params *p, enum conf_id id, int64_t *out,
             struct muster_error *err)
{
    const struct conf_key *k = &conf_keys[id];
    char text[64];
    int64_t value = k->initial;
    const int rc = given(p, k) ? params_int(p, k->name, 0, &value, err) : 0;

    assert(k->kind == CONF_INT || k->kind == CONF_SECONDS);
    if (rc < 0)
        return rc;
    if (given(p, k) && (value < k->low || value > k->high)) {
        if (k->kind == CONF_SECONDS)
            duration(value, text, sizeof text);
        else
            (void)snprintf(text, sizeof text, "%" PRId64, value);
        return refuse(k, text, err);
    }
    *out = value;
    return 0;
}

static int float_ms(const struct rdzv_params *p, const struct conf_key *k,
                    uint64_t *out, struct muster_error *err)
{
    struct buf number;
    double seconds = (double)k->initial;
    int rc = given(p, k) ? params_float(p, k->name, 0, &seconds, err) : 0;

    if (rc < 0)
        return rc;
    if (isfinite(seconds) && seconds >= 0) {
        *out = (uint64_t)(MIN_OF(seconds, 86400.0) * 1000);
        return 0;
    }
    buf_init(&number, 64);
    rc = py_repr_float(&number, seconds);
    buf_u8(&number, '\0');
    rc = rc < 0 || buf_error(&number) ? err_nomem(err)
                                      : refuse(k, (const char *)buf_data(&number), err);
    buf_fini(&number);
    return rc;
}

int conf_ms(const struct rdzv_params *p, enum conf_id id, uint64_t *out,
            struct muster_error *err)
{
    int64_t seconds;
    int rc;

    if (conf_keys[id].kind == CONF_FLOAT)
        return float_ms(p, &conf_keys[id], out, err);
    rc = conf_int(p, id, &seconds, err);
    if (rc == 0)
        *out = ms_of_seconds(seconds);
    return rc;
}

int conf_bool(const struct rdzv_params *p, enum conf_id id, int *out,
              struct muster_error *err)
{
    const struct conf_key *k = &conf_keys[id];

    assert(k->kind == CONF_BOOL);
    *out = (int)k->initial;
    if (!given(p, k))
        return 0;
    if (k->words && strcmp(params_str(p, k->name, ""), k->words) == 0) {
        *out = -1; /* munge=auto */
        return 0;
    }
    return params_bool(p, k->name, 0, out, err);
}

int conf_word(const struct rdzv_params *p, enum conf_id id, size_t *out,
              struct muster_error *err)
{
    const struct conf_key *k = &conf_keys[id];
    const char *asked = given(p, k) ? params_str(p, k->name, k->text) : k->text;
    const struct span value = k->exact ? span_str(asked) : py_strip(span_str(asked));
    int (*const differ)(const char *, const char *, size_t) =
        k->exact ? strncmp : strncasecmp;
    const char *word = k->words;

    assert(k->kind == CONF_WORD);
    for (size_t i = 0; word; i++) {
        const size_t n = strcspn(word, "|");

        if (value.n == n && differ((const char *)value.p, word, n) == 0) {
            *out = i;
            return 0;
        }
        word = word[n] ? word + n + 1 : NULL;
    }
    return refuse(k, asked, err);
}

const char *conf_text(const struct rdzv_params *p, enum conf_id id)
{
    const struct conf_key *k = &conf_keys[id];

    assert(k->kind == CONF_TEXT);
    return given(p, k) ? params_str(p, k->name, k->text) : k->text;
}

bool conf_given(const struct rdzv_params *p, enum conf_id id)
{
    return params_get(p, conf_keys[id].name) != NULL;
}

/* ---- For people ---- */

void conf_backends_text(struct buf *out, unsigned mask)
{
    const char *comma = "";

    if (mask == CONF_ALL) {
        buf_append_str(out, "all");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
        if (!(mask & backends[i].bit))
            continue;
        buf_append_str(out, comma);
        buf_append_str(out, backends[i].name);
        comma = ", ";
    }
}

void conf_default_text(struct buf *out, const struct conf_key *k)
{
    char number[32];

    (void)snprintf(number, sizeof number, "%" PRId64, k->initial);
    buf_append_str(out, k->shown ? k->shown : k->text ? k->text : number);
}

const char *conf_meant(const char *key)
{
    struct nearest best = { 0 };

    for (size_t i = 0; i < CONF_COUNT; i++)
        nearest_try(&best, span_str(key), conf_keys[i].name);
    return best.word && strcmp(best.word, key) != 0 ? best.word : NULL;
}
