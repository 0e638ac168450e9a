/* params.c - see params.h. */
#include "rendezvous/core/params.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/py/repr.h"
#include "base/py/text.h"
#include <inttypes.h>
#include <strings.h>

static int check(const char *backend, int64_t min_nodes, int64_t max_nodes,
                 struct muster_error *err)
{
    if (!backend || !*backend)
        return err_set(err, MUSTER_EINVAL,
                       "The rendezvous backend name must be a non-empty string.");
    if (min_nodes < 1)
        return err_set(err, MUSTER_EINVAL,
                       "The minimum number of rendezvous nodes (%" PRId64
                       ") must be greater than zero.",
                       min_nodes);
    if (max_nodes < min_nodes)
        return err_set(err, MUSTER_EINVAL,
                       "The maximum number of rendezvous nodes (%" PRId64
                       ") must be greater than or equal to the minimum number of "
                       "rendezvous nodes (%" PRId64 ").",
                       max_nodes, min_nodes);
    return 0;
}

int params_init(struct rdzv_params *p, const char *backend, const char *endpoint,
                const char *run_id, int64_t min_nodes, int64_t max_nodes,
                const char *local_addr, struct muster_error *err)
{
    const int rc = check(backend, min_nodes, max_nodes, err);
    struct rdzv_params made = { .min_nodes = min_nodes, .max_nodes = max_nodes };

    if (rc < 0)
        return rc;
    made.backend = mem_strdup(backend);
    made.endpoint = mem_strdup(endpoint ? endpoint : "");
    made.run_id = mem_strdup(run_id ? run_id : "");
    made.local_addr = local_addr && *local_addr ? mem_strdup(local_addr) : NULL;
    if (!made.backend || !made.endpoint || !made.run_id ||
        (local_addr && *local_addr && !made.local_addr)) {
        params_fini(&made);
        return err_nomem(err);
    }
    *p = made;
    return 0;
}

static void option_fini(struct rdzv_option *o)
{
    mem_free(o->key);
    mem_free(o->text);
}

void params_fini(struct rdzv_params *p)
{
    if (!p)
        return;
    mem_free(p->backend);
    mem_free(p->endpoint);
    mem_free(p->run_id);
    mem_free(p->local_addr);
    for (size_t i = 0; i < p->count; i++)
        option_fini(&p->options[i]);
    mem_free(p->options);
    auth_unref(p->auth);
    *p = (struct rdzv_params){ 0 };
}

static struct rdzv_option *find(const struct rdzv_params *p, const char *key)
{
    for (size_t i = 0; i < p->count; i++) {
        if (strcmp(p->options[i].key, key) == 0)
            return &p->options[i];
    }
    return NULL;
}

/* Owns value.text if it succeeds. */
static int put(struct rdzv_params *p, const char *key, struct rdzv_option value,
               struct muster_error *err)
{
    struct rdzv_option *o = find(p, key);

    if (o) {
        value.key = o->key;
        mem_free(o->text);
        *o = value;
        return 0;
    }
    o = mem_realloc_array(p->options, p->count + 1, sizeof *o);
    if (!o)
        return err_nomem(err);
    p->options = o;
    value.key = mem_strdup(key);
    if (!value.key)
        return err_nomem(err);
    o[p->count++] = value;
    return 0;
}

int params_set_str(struct rdzv_params *p, const char *key, const char *value,
                   struct muster_error *err)
{
    char *text = mem_strdup(value);
    int rc;

    if (!text)
        return err_nomem(err);
    rc = put(p, key, (struct rdzv_option){ .kind = RDZV_STR, .text = text }, err);
    if (rc < 0)
        mem_free(text);
    return rc;
}

int params_set_int(struct rdzv_params *p, const char *key, int64_t value,
                   struct muster_error *err)
{
    return put(p, key, (struct rdzv_option){ .kind = RDZV_INT, .number = value }, err);
}

int params_set_bool(struct rdzv_params *p, const char *key, bool value,
                    struct muster_error *err)
{
    return put(p, key, (struct rdzv_option){ .kind = RDZV_BOOL, .number = value }, err);
}

int params_copy(struct rdzv_params *to, const struct rdzv_params *from,
                struct muster_error *err)
{
    struct rdzv_params made;
    int rc = params_init(&made, from->backend, from->endpoint, from->run_id,
                         from->min_nodes, from->max_nodes, from->local_addr, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < from->count && rc == 0; i++) {
        const struct rdzv_option *o = &from->options[i];

        rc = o->kind == RDZV_STR ? params_set_str(&made, o->key, o->text, err)
             : o->kind == RDZV_INT
                 ? params_set_int(&made, o->key, o->number, err)
                 : params_set_bool(&made, o->key, o->number != 0, err);
    }
    if (rc < 0) {
        params_fini(&made);
        return rc;
    }
    made.auth = auth_ref(from->auth);
    *to = made;
    return 0;
}

const struct rdzv_option *params_get(const struct rdzv_params *p, const char *key)
{
    return find(p, key);
}

const char *params_str(const struct rdzv_params *p, const char *key, const char *dflt)
{
    const struct rdzv_option *o = find(p, key);

    return o && o->kind == RDZV_STR ? o->text : dflt;
}

int params_int(const struct rdzv_params *p, const char *key, int64_t dflt, int64_t *out,
               struct muster_error *err)
{
    const struct rdzv_option *o = find(p, key);
    int64_t value = o ? o->number : dflt;

    if (o && o->kind == RDZV_STR && !py_int(span_str(o->text), &value))
        return err_set(err, MUSTER_EINVAL,
                       "The rendezvous configuration option '%s' does not represent a "
                       "valid integer value.",
                       key);
    *out = value;
    return 0;
}

int params_float(const struct rdzv_params *p, const char *key, double dflt, double *out,
                 struct muster_error *err)
{
    const struct rdzv_option *o = find(p, key);
    double value = o ? (double)o->number : dflt;

    if (o && o->kind == RDZV_STR && !py_float(o->text, &value))
        return err_set(err, MUSTER_EINVAL, "%s('%s') is not a valid float value.", key,
                       o->text);
    *out = value;
    return 0;
}

/* Like torch, ignores case but does not trim spaces. */
static int truth(const char *text)
{
    static const char *const yes[] = { "1", "true", "t", "yes", "y" };
    static const char *const no[] = { "0", "false", "f", "no", "n" };

    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0)
            return 1;
        if (strcasecmp(text, no[i]) == 0)
            return 0;
    }
    return -1;
}

int params_bool(const struct rdzv_params *p, const char *key, int dflt, int *out,
                struct muster_error *err)
{
    const struct rdzv_option *o = find(p, key);
    int value = dflt;

    if (o) {
        value = o->kind == RDZV_STR ? truth(o->text)
                : o->number == 0    ? 0
                : o->number == 1    ? 1
                                    : -1;
        if (value < 0)
            return err_set(
                err, MUSTER_EINVAL,
                "The rendezvous configuration option '%s' does not represent "
                "a valid boolean value.",
                key);
    }
    *out = value;
    return 0;
}

/* ---- the configuration string of --rdzv-conf ---- */

static int set(struct rdzv_params *p, struct span key, struct span value,
               struct muster_error *err)
{
    char *k = mem_strndup((const char *)key.p, key.n);
    char *v = mem_strndup((const char *)value.p, value.n);
    const int rc = k && v ? params_set_str(p, k, v, err) : err_nomem(err);

    mem_free(k);
    mem_free(v);
    return rc;
}

static int one(struct rdzv_params *p, struct span part, struct muster_error *err)
{
    const uint8_t *eq = part.n ? memchr(part.p, '=', part.n) : NULL;
    const size_t before = eq ? (size_t)(eq - part.p) : part.n;
    const struct span key = py_strip(span_of(part.p, before));
    const struct span value =
        eq ? py_strip(span_of(eq + 1, part.n - before - 1)) : span_of(NULL, 0);

    if (key.n == 0)
        return err_set(err, MUSTER_EINVAL,
                       "The rendezvous configuration string must be in format "
                       "<key1>=<value1>,...,<keyN>=<valueN>.");
    if (value.n == 0)
        return err_set(err, MUSTER_EINVAL,
                       "The rendezvous configuration option '%.*s' must have a value "
                       "specified.",
                       (int)MIN_OF(key.n, 400u), (const char *)key.p);
    return set(p, key, value, err);
}

int conf_parse(struct rdzv_params *p, const char *text, struct muster_error *err)
{
    struct span left = py_strip(span_str(text ? text : ""));
    bool more = left.n > 0;
    int rc = 0;

    while (more && rc == 0) {
        const uint8_t *comma = left.n ? memchr(left.p, ',', left.n) : NULL;
        const size_t n = comma ? (size_t)(comma - left.p) : left.n;

        rc = one(p, span_of(left.p, n), err);
        more = comma != NULL; /* After a trailing comma there is an empty part. */
        left = more ? span_of(comma + 1, left.n - n - 1) : left;
    }
    return rc;
}
