/* conf.c - see conf.h. */
#include "rdzv/conf.h"

#include "base/err.h"
#include "base/mem.h"
#include "rdzv/pytext.h"

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
        more = comma != NULL; /* A trailing comma has an empty part behind it. */
        left = more ? span_of(comma + 1, left.n - n - 1) : left;
    }
    return rc;
}
