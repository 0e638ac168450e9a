/* slurm.c - see slurm.h. */
#include "launch/core/slurm.h"

#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/py/text.h"

/* The port lies below those that systems assign by themselves, and depends on the step,
 * so that two steps that share their first node do not use the same one. */
#define PORT_FIRST 15000
#define PORT_COUNT 15000

static bool get_int(char *const *envp, const char *name, int64_t *out)
{
    const char *text = env_get(envp, name);

    return text && py_int(span_str(text), out);
}

static bool is_default(const char *text, const char *initial)
{
    return strcmp(text, initial) == 0;
}

bool rendezvous_is_open(const struct options *o)
{
    return !o->standalone && is_default(o->rdzv_backend, "static") &&
           !*o->rdzv_endpoint && is_default(o->master_addr, "127.0.0.1") &&
           !o->master_port.given && o->node_rank.value == 0 &&
           strcmp(o->nnodes, "1") != 0;
}

bool slurm_applies(const struct options *o, char *const *envp)
{
    int64_t tasks;

    if (!env_get(envp, "SLURM_STEP_ID") ||
        !get_int(envp, "SLURM_STEP_NUM_TASKS", &tasks))
        return false; /* a batch script itself is not a step */
    return tasks > 1 && rendezvous_is_open(o);
}

int slurm_first_host(const char *list, char *to, size_t size)
{
    size_t n = 0;

    for (const char *p = list; *p && *p != ','; p++) {
        if (*p == '[') {
            for (p++; *p && *p != ',' && *p != '-' && *p != ']'; p++) {
                if (n + 1 >= size)
                    return MUSTER_EINVAL;
                to[n++] = *p;
            }
            p = strchr(p, ']');
            if (!p)
                return MUSTER_EINVAL;
            continue;
        }
        if (n + 1 >= size || *p == ']')
            return MUSTER_EINVAL;
        to[n++] = *p;
    }
    assert(n < size);
    if (n == 0)
        return MUSTER_EINVAL;
    to[n] = '\0';
    return 0;
}

static int bad_variable(char *const *envp, const char *name, struct muster_error *err)
{
    const char *text = env_get(envp, name);

    return err_set(err, MUSTER_EINVAL,
                   "%s is %s%s%s: this is not a Slurm job step\n"
                   "Start muster with srun, or name the rendezvous yourself: "
                   "--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --nnodes=N.",
                   name, text ? "\"" : "not set", text ? text : "", text ? "\"" : "");
}

static int check_layout(char *const *envp, int64_t nodes, struct muster_error *err)
{
    const char *layout = env_get(envp, "SLURM_STEP_TASKS_PER_NODE");
    int64_t tasks;

    if (!get_int(envp, "SLURM_STEP_NUM_TASKS", &tasks))
        return bad_variable(envp, "SLURM_STEP_NUM_TASKS", err);
    if (tasks == nodes)
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "srun started %lld tasks on %lld nodes (%s on each), but one muster "
                   "per node starts all of its workers\n"
                   "Give srun --ntasks-per-node=1, and muster run --nproc-per-node for "
                   "the workers. For a job of its own in each task: --standalone.",
                   (long long)tasks, (long long)nodes, layout ? layout : "?");
}

/* Fills in --nnodes. The upper end of a range becomes the step's number of nodes: no
 * other node can join, so the first round must not wait for more. */
static int take_nnodes(const struct options *o, const struct rendezvous_place *p,
                       struct slurm_texts *texts, struct muster_error *err)
{
    const int64_t nodes = p->nodes;
    const char *text = o->nnodes, *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    int64_t min, max;

    if (is_default(text, "1:1")) {
        (void)snprintf(texts->nnodes, sizeof texts->nnodes, "%lld", (long long)nodes);
        return 0;
    }
    texts->nnodes[0] = '\0';
    if (!py_int(span_of(text, n), &min))
        return 0; /* options_parse() has refused this already. */
    max = min;
    if (colon && !py_int(span_str(colon + 1), &max))
        return 0;
    if (min <= nodes && nodes <= max) {
        if (nodes < max)
            (void)snprintf(texts->nnodes, sizeof texts->nnodes, "%lld:%lld",
                           (long long)min, (long long)nodes);
        return 0;
    }
    if (p->munge)
        return err_set(err, MUSTER_EINVAL,
                       "--nnodes=%s, but this Slurm job step has %lld nodes (%s)\n"
                       "Leave out --nnodes, or give srun as many nodes with -N.",
                       text, (long long)nodes, "SLURM_STEP_NUM_NODES");
    return err_set(err, MUSTER_EINVAL,
                   "--nnodes=%s, but %s has started %lld nodes\nLeave out --nnodes.",
                   text, p->scheduler, (long long)nodes);
}

/* Writes the user's options, then our place in the order of ranks, munge, and whether
 * this node hosts the store. What the user has set of the last two stays. */
static bool put_conf(const char *conf, const struct rendezvous_place *p,
                     struct slurm_texts *texts)
{
    const int n = snprintf(texts->conf, sizeof texts->conf, "%s%snode_order=%lld%s%s",
                           conf, *conf ? "," : "", (long long)p->rank,
                           !p->munge || strstr(conf, "munge=") ? "" : ",munge=auto",
                           strstr(conf, "is_host=") ? ""
                           : p->rank == 0           ? ",is_host=true"
                                                    : ",is_host=false");

    return n > 0 && (size_t)n < sizeof texts->conf;
}

int rendezvous_fill(struct options *o, const struct rendezvous_place *p,
                    struct slurm_texts *texts, struct muster_error *err)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    int rc = 0;

    texts->nnodes[0] = '\0';
    if (p->nodes > 0)
        rc = take_nnodes(o, p, texts, err);
    if (rc)
        return rc;
    for (const char *c = p->id; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;

    const int64_t port =
        PORT_FIRST + (p->port ? p->port : (int64_t)(hash >> 16)) % PORT_COUNT;
    assert(port >= PORT_FIRST && port < PORT_FIRST + PORT_COUNT);
    (void)snprintf(texts->endpoint, sizeof texts->endpoint,
                   strchr(p->host, ':') ? "[%s]:%d" : "%s:%d", p->host, (int)port);
    (void)snprintf(texts->id, sizeof texts->id, "%s", p->id);
    if (!put_conf(o->rdzv_conf, p, texts))
        return err_set(err, MUSTER_EINVAL, "--rdzv-conf is longer than %zu characters",
                       sizeof texts->conf);
    o->rdzv_conf = texts->conf;
    if (texts->nnodes[0])
        o->nnodes = texts->nnodes;
    if (is_default(o->rdzv_id, "none"))
        o->rdzv_id = texts->id;
    o->rdzv_backend = "c10d";
    o->rdzv_endpoint = texts->endpoint;
    return 0;
}

int slurm_apply(struct options *o, char *const *envp, struct slurm_texts *texts,
                struct muster_error *err)
{
    struct rendezvous_place p = { .scheduler = "Slurm", .munge = true };
    const char *list;
    int64_t job_number, step;
    int rc;

    if (!get_int(envp, "SLURM_STEP_NUM_NODES", &p.nodes) || p.nodes < 1)
        return bad_variable(envp, "SLURM_STEP_NUM_NODES", err);
    if (!get_int(envp, "SLURM_NODEID", &p.rank) || p.rank < 0 || p.rank >= p.nodes)
        return bad_variable(envp, "SLURM_NODEID", err);
    if (!get_int(envp, "SLURM_JOB_ID", &job_number) || job_number < 0 ||
        job_number > INT32_MAX * 1024LL)
        return bad_variable(envp, "SLURM_JOB_ID", err);
    if (!get_int(envp, "SLURM_STEP_ID", &step))
        return bad_variable(envp, "SLURM_STEP_ID", err);
    list = env_get(envp, "SLURM_STEP_NODELIST");
    if (!list || slurm_first_host(list, p.host, sizeof p.host))
        return bad_variable(envp, "SLURM_STEP_NODELIST", err);
    rc = check_layout(envp, p.nodes, err);
    if (rc)
        return rc;
    p.port = PORT_COUNT + job_number * 7 + (step & 0xff); /* never 0 */
    (void)snprintf(p.id, sizeof p.id, "slurm-%.20s.%lld", env_get(envp, "SLURM_JOB_ID"),
                   (long long)step);
    return rendezvous_fill(o, &p, texts, err);
}
