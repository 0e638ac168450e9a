/* settings.c - see settings.h. */
#include "rendezvous/core/settings.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "rendezvous/core/conf_table.h"

void rdzv_settings_init(struct rdzv_settings *s, int64_t min_nodes, int64_t max_nodes)
{
    *s = (struct rdzv_settings){
        .min_nodes = min_nodes,
        .max_nodes = max_nodes,
        .join_ms = ms_of_seconds(conf_keys[CONF_JOIN_TIMEOUT].initial),
        .last_call_ms = ms_of_seconds(conf_keys[CONF_LAST_CALL_TIMEOUT].initial),
        .close_ms = ms_of_seconds(conf_keys[CONF_CLOSE_TIMEOUT].initial),
        .heartbeat_ms = ms_of_seconds(conf_keys[CONF_HEARTBEAT_TIMEOUT].initial),
        .keep_alive_interval_s = conf_keys[CONF_KEEP_ALIVE_INTERVAL].initial,
        .keep_alive_max_attempt = conf_keys[CONF_KEEP_ALIVE_MAX_ATTEMPT].initial,
    };
}

int rdzv_settings_keep_alive(struct rdzv_settings *s, const struct rdzv_params *p,
                             struct muster_error *err)
{
    int rc = conf_int(p, CONF_KEEP_ALIVE_INTERVAL, &s->keep_alive_interval_s, err);

    if (rc == 0)
        rc = conf_int(p, CONF_KEEP_ALIVE_MAX_ATTEMPT, &s->keep_alive_max_attempt, err);
    return rc;
}

int rdzv_settings_read(struct rdzv_settings *s, const struct rdzv_params *p,
                       struct muster_error *err)
{
    size_t last_call = 0;
    int rc = conf_ms(p, CONF_JOIN_TIMEOUT, &s->join_ms, err);

    if (rc == 0)
        rc = conf_ms(p, CONF_LAST_CALL_TIMEOUT, &s->last_call_ms, err);
    if (rc == 0)
        rc = conf_word(p, CONF_LAST_CALL, &last_call, err);
    if (rc == 0)
        rc = conf_ms(p, CONF_CLOSE_TIMEOUT, &s->close_ms, err);
    if (rc == 0)
        rc = conf_ms(p, CONF_HEARTBEAT_TIMEOUT, &s->heartbeat_ms, err);
    if (rc == 0)
        rc = rdzv_settings_keep_alive(s, p, err);
    if (rc == 0)
        rc = conf_ms(p, CONF_CAS_BACKOFF, &s->cas_backoff_ms, err);
    s->last_call_always = last_call == 1;
    return rc;
}

int rdzv_settings_check(const struct rdzv_settings *s, struct muster_error *err)
{
    if (s->min_nodes < 1)
        return err_set(err, MUSTER_EINVAL,
                       "The minimum number of nodes (%lld) must be greater than zero.",
                       (long long)s->min_nodes);
    if (s->max_nodes < s->min_nodes)
        return err_set(err, MUSTER_EINVAL,
                       "The maximum number of nodes (%lld) must be greater than or "
                       "equal to the minimum number of nodes (%lld).",
                       (long long)s->max_nodes, (long long)s->min_nodes);
    return 0;
}

uint64_t rdzv_interval_ms(const struct rdzv_settings *s)
{
    return ms_of_seconds(s->keep_alive_interval_s);
}

uint64_t rdzv_dead_after_ms(const struct rdzv_settings *s)
{
    int64_t product;

    if (__builtin_mul_overflow(s->keep_alive_interval_s, s->keep_alive_max_attempt,
                               &product))
        return ms_of_seconds(INT64_MAX);
    return ms_of_seconds(product);
}

#define SESSION_INTERVAL_S 5

static struct rdzv_settings of_session(const struct rdzv_settings *s)
{
    struct rdzv_settings own = *s;

    own.keep_alive_interval_s = MIN_OF(s->keep_alive_interval_s, SESSION_INTERVAL_S);
    return own;
}

uint64_t rdzv_session_interval_ms(const struct rdzv_settings *s)
{
    const struct rdzv_settings own = of_session(s);

    return rdzv_interval_ms(&own);
}

uint64_t rdzv_session_dead_after_ms(const struct rdzv_settings *s)
{
    const struct rdzv_settings own = of_session(s);

    return rdzv_dead_after_ms(&own);
}

/* X(word, value, option): what is published. Only our nodes compare it, so the words
 * are our own; messages to people name the options instead. */
#define WORDS(X)                                                                       \
    X("min", s->min_nodes, (const char *)NULL) /* --nnodes has both */                 \
    X("max", s->max_nodes, (const char *)NULL)                                         \
    X("join_ms", s->join_ms, "join_timeout in ms")                                     \
    X("last_call_ms", s->last_call_ms, "last_call_timeout in ms")                      \
    X("close_ms", s->close_ms, "close_timeout in ms")                                  \
    X("keep_alive_s", s->keep_alive_interval_s, "keep_alive_interval")                 \
    X("keep_alive_max", s->keep_alive_max_attempt, "keep_alive_max_attempt")

#define ALWAYS_WORD "last_call_always"

int rdzv_settings_print(const struct rdzv_settings *s, struct buf *out)
{
    const size_t before = buf_len(out);
    int rc = 0;

#define PRINT(word, value, option)                                                     \
    if (rc == 0)                                                                       \
        rc = buf_printf(out, "%s%s=%lld", buf_len(out) > before ? " " : "", word,      \
                        (long long)(value));
    WORDS(PRINT)
#undef PRINT
    if (rc == 0 && s->last_call_always) /* Nodes that do not know the word skip it. */
        rc = buf_append_str(out, " " ALWAYS_WORD "=1");
    return rc;
}

/* Finds the number after "word=" in text; false if it is not there. */
static bool find_word(struct span text, const char *word, long long *value)
{
    const size_t n = strlen(word);

    for (size_t at = 0; at < text.n;) {
        const uint8_t *p = text.p + at;
        const uint8_t *end = memchr(p, ' ', text.n - at);
        const size_t len = end ? (size_t)(end - p) : text.n - at;
        char digits[24] = "";

        at += len + 1;
        if (len <= n + 1 || len - n - 1 >= sizeof digits || memcmp(p, word, n) != 0 ||
            p[n] != '=')
            continue;
        memcpy(digits, p + n + 1, len - n - 1);
        *value = strtoll(digits, NULL, 10);
        return true;
    }
    return false;
}

int rdzv_settings_parse(struct span text, struct rdzv_settings *out,
                        struct muster_error *err)
{
    struct rdzv_settings got, *s = &got;
    long long value;

    rdzv_settings_init(s, 0, 0);
#define PARSE(word, field, option)                                                     \
    if (!find_word(text, word, &value) || value < 0 || value > INT64_MAX / 1000000)    \
        return err_set(err, MUSTER_EINVAL, "the settings have no usable '%s'", word);  \
    field = (__typeof__(field))value;
    WORDS(PARSE)
#undef PARSE
    s->last_call_always = find_word(text, ALWAYS_WORD, &value) && value != 0;
    if (rdzv_settings_check(s, err) < 0)
        return MUSTER_EINVAL;
    *out = got;
    return 0;
}

static int differ(struct muster_error *err, int before)
{
    return before < 0 ? before
                      : err_set(err, MUSTER_EINVAL,
                                "nodes of this run were started with different "
                                "settings:");
}

/* As on a command line: "2", "2:4". */
static const char *nnodes(int64_t min, int64_t max, char *out, size_t size)
{
    (void)snprintf(out, size, min == max ? "%lld" : "%lld:%lld", (long long)min,
                   (long long)max);
    return out;
}

bool rdzv_settings_nnodes_differ(const struct rdzv_settings *s, struct span theirs)
{
    long long min, max;

    return find_word(theirs, "min", &min) && find_word(theirs, "max", &max) &&
           (min != s->min_nodes || max != s->max_nodes);
}

int rdzv_settings_compare(const struct rdzv_settings *s, struct span theirs,
                          struct muster_error *err)
{
    long long value, min = s->min_nodes, max = s->max_nodes;
    char here[48], there[48];
    int rc = 0;

    (void)find_word(theirs, "min", &min);
    (void)find_word(theirs, "max", &max);
    if (min != s->min_nodes || max != s->max_nodes) {
        rc = differ(err, rc);
        err_add(err, " --nnodes is %s here, %s there;",
                nnodes(s->min_nodes, s->max_nodes, here, sizeof here),
                nnodes(min, max, there, sizeof there));
    }
#define COMPARE(word, ours, option)                                                    \
    if (option && find_word(theirs, word, &value) && value != (long long)(ours)) {     \
        rc = differ(err, rc);                                                          \
        err_add(err, " %s is %lld here, %lld there;", option, (long long)(ours),       \
                value);                                                                \
    }
    WORDS(COMPARE)
#undef COMPARE
    if (rc < 0)
        err_add(err, " start all nodes with the same settings");
    return rc;
}
