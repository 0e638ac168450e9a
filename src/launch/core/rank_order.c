/* rank_order.c - see rank_order.h. */
#include "launch/core/rank_order.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/py/text.h"

static bool is_number(const char *text, int64_t *out)
{
    return text && *text && strspn(text, "0123456789") == strlen(text) &&
           strlen(text) <= 9 && py_int(span_str(text), out);
}

static int by_slurm(char *const *envp, int64_t *key, struct muster_error *err)
{
    if (is_number(env_get(envp, "SLURM_NODEID"), key))
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "--rank-order=slurm, but SLURM_NODEID is not set to a number\n"
                   "Start the nodes with srun, or give each --rank-order=given and its "
                   "own --node-rank.");
}

static int by_index(char *const *envp, int64_t *key, struct muster_error *err)
{
    const char *name = env_get(envp, "HOSTNAME");
    const char *hyphen = name ? strrchr(name, '-') : NULL;

    if (is_number(env_get(envp, "JOB_COMPLETION_INDEX"), key) ||
        (hyphen && is_number(hyphen + 1, key)))
        return 0;
    return err_set(
        err, MUSTER_EINVAL,
        "--rank-order=index, but neither JOB_COMPLETION_INDEX is a number nor "
        "does HOSTNAME (%s) end in one\nUse an indexed Job or a StatefulSet, "
        "or --rank-order=given and --node-rank.",
        name ? name : "not set");
}

int rank_order_apply(struct options *o, char *const *envp, struct rank_order_text *text,
                     struct muster_error *err)
{
    const char *conf = o->rdzv_conf ? o->rdzv_conf : "";
    int64_t key = 0;
    int n, rc = 0;

    if (!o->rank_order || strcmp(o->rank_order, "node") == 0)
        return 0;
    if (strcmp(o->rank_order, "given") == 0)
        key = o->node_rank.value;
    else if (strcmp(o->rank_order, "slurm") == 0)
        rc = by_slurm(envp, &key, err);
    else
        rc = by_index(envp, &key, err);
    if (rc < 0)
        return rc;
    if (key < 0)
        return err_set(err, MUSTER_EINVAL,
                       "--rank-order=given needs a --node-rank of 0 or more, not %lld",
                       (long long)key);
    n = snprintf(text->conf, sizeof text->conf, "%s%snode_order=%lld", conf,
                 *conf ? "," : "", (long long)key);
    if (n < 0 || (size_t)n >= sizeof text->conf)
        return err_set(err, MUSTER_EINVAL, "--rdzv-conf is longer than %zu characters",
                       sizeof text->conf);
    assert(key >= 0);
    o->rdzv_conf = text->conf;
    return 0;
}
