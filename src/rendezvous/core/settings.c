/* settings.c - see settings.h. */
#include "rendezvous/core/settings.h"

#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/py/repr.h"

void rdzv_settings_init(struct rdzv_settings *s, int64_t min_nodes, int64_t max_nodes)
{
    *s = (struct rdzv_settings){
        .min_nodes = min_nodes,
        .max_nodes = max_nodes,
        .join_ms = 600000,
        .last_call_ms = 30000,
        .close_ms = 30000,
        .heartbeat_ms = 5000,
        .keep_alive_interval_s = 5,
        .keep_alive_max_attempt = 3,
    };
}

int rdzv_settings_last_call(struct rdzv_settings *s, const struct rdzv_params *p,
                            struct muster_error *err)
{
    const char *word = params_str(p, "last_call", "first");

    if (strcmp(word, "always") != 0 && strcmp(word, "first") != 0)
        return err_set(err, MUSTER_EINVAL,
                       "last_call (%s) is first or always; its length is "
                       "last_call_timeout",
                       word);
    s->last_call_always = strcmp(word, "always") == 0;
    return 0;
}

int rdzv_settings_keep_alive(struct rdzv_settings *s, const struct rdzv_params *p,
                             struct muster_error *err)
{
    int rc = params_int(p, "keep_alive_interval", s->keep_alive_interval_s,
                        &s->keep_alive_interval_s, err);

    if (rc == 0)
        rc = params_int(p, "keep_alive_max_attempt", s->keep_alive_max_attempt,
                        &s->keep_alive_max_attempt, err);
    /* torch takes them, and its nodes drop themselves until the join times out. */
    if (rc == 0 && (s->keep_alive_interval_s < 1 || s->keep_alive_max_attempt < 1))
        rc = err_set(
            err, MUSTER_EINVAL,
            "keep_alive_interval (%lld) and keep_alive_max_attempt (%lld) must "
            "be at least 1: else every node counts as dead at once, and no "
            "round completes",
            (long long)s->keep_alive_interval_s, (long long)s->keep_alive_max_attempt);
    return rc;
}

int rdzv_settings_cas_backoff(struct rdzv_settings *s, const struct rdzv_params *p,
                              struct muster_error *err)
{
    double seconds;
    int rc = params_float(p, "cas_backoff_max_seconds", 0, &seconds, err);

    if (rc < 0)
        return rc;
    if (!isfinite(seconds) || seconds < 0) {
        struct buf number;

        buf_init(&number, 64);
        rc = py_repr_float(&number, seconds);
        if (rc == 0)
            rc = err_set(err, MUSTER_EINVAL,
                         "cas_backoff_max_seconds (%.*s) must be finite and "
                         "non-negative.",
                         (int)buf_len(&number), buf_data(&number));
        buf_fini(&number);
        return rc;
    }
    s->cas_backoff_ms = (uint64_t)(MIN_OF(seconds, 86400.0) * 1000);
    return 0;
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

/* X(word, value, option): what is published. Ours alone compares it, so the words are
 * ours; people are told the options. */
#define WORDS(X)                                                                       \
    X("min", s->min_nodes, "the least of --nnodes")                                    \
    X("max", s->max_nodes, "the most of --nnodes")                                     \
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

/* The number behind "word=" in text, or false if it is not there. */
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
        return err_set(err, MUSTER_EINVAL, "settings without a usable '%s'", word);    \
    field = (__typeof__(field))value;
    WORDS(PARSE)
#undef PARSE
    s->last_call_always = find_word(text, ALWAYS_WORD, &value) && value != 0;
    if (rdzv_settings_check(s, err) < 0)
        return MUSTER_EINVAL;
    *out = got;
    return 0;
}

int rdzv_settings_compare(const struct rdzv_settings *s, struct span theirs,
                          struct muster_error *err)
{
    long long value;
    int rc = 0;

#define COMPARE(word, ours, option)                                                    \
    if (find_word(theirs, word, &value) && value != (long long)(ours)) {               \
        if (rc == 0)                                                                   \
            rc = err_set(err, MUSTER_EINVAL,                                           \
                         "nodes of this run were started with different settings:");   \
        err_add(err, " %s is %lld here, %lld there;", option, (long long)(ours),       \
                value);                                                                \
    }
    WORDS(COMPARE)
#undef COMPARE
    if (rc < 0)
        err_add(err, " start them all alike");
    return rc;
}
