/* framework.c - see framework.h. */
#include "launch/core/framework.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/py/text.h"
#include "launch/core/env_template.h"

#define BIT(f) (1u << (f))

static const char *const words[] = {
    [FOR_NONE] = "",     [FOR_JAX] = "jax",         [FOR_MPI] = "mpi",
    [FOR_TF] = "tf",     [FOR_HOROVOD] = "horovod", [FOR_XGBOOST] = "xgboost",
    [FOR_VLLM] = "vllm", [FOR_SGLANG] = "sglang",
};

/* What a worker gets. The rows of PMI replace what an outer launcher (srun) has set:
 * they are about a descriptor of ours. All others give way to the user's. */
static const struct variable {
    unsigned of; /* bits of enum framework */
    bool always;
    const char *name, *value;
} variables[] = {
    /* jax.distributed.initialize() takes the address from the first, and looks for
     * Open MPI's launcher by the second to read the other three. */
    { BIT(FOR_JAX), false, "JAX_COORDINATOR_ADDRESS", "${coordinator}" },
    { BIT(FOR_JAX), false, "OMPI_MCA_orte_hnp_uri", "0.0;tcp://${coordinator}" },
    { BIT(FOR_JAX), false, "OMPI_COMM_WORLD_SIZE", "${world_size}" },
    { BIT(FOR_JAX), false, "OMPI_COMM_WORLD_RANK", "${rank}" },
    { BIT(FOR_JAX), false, "OMPI_COMM_WORLD_LOCAL_RANK", "${local_rank}" },
    { BIT(FOR_TF), false, "TF_CONFIG",
      "{\"cluster\": {\"worker\": [${cluster}]}, \"task\": {\"type\": \"worker\", "
      "\"index\": ${rank}}}" },
    { BIT(FOR_MPI) | BIT(FOR_HOROVOD), true, "PMI_FD", "3" },
    { BIT(FOR_MPI) | BIT(FOR_HOROVOD), true, "PMI_RANK", "${rank}" },
    { BIT(FOR_MPI) | BIT(FOR_HOROVOD), true, "PMI_SIZE", "${world_size}" },
    { BIT(FOR_MPI) | BIT(FOR_HOROVOD), true, "PMI_SPAWNED", "0" },
    { BIT(FOR_MPI) | BIT(FOR_HOROVOD), true, "MPI_LOCALRANKID", "${local_rank}" },
    { BIT(FOR_MPI) | BIT(FOR_HOROVOD), true, "MPI_LOCALNRANKS", "${local_world_size}" },
    /* Its MPI controller needs no server of its own: MPI finds ours. */
    { BIT(FOR_HOROVOD), false, "HOROVOD_CONTROLLER", "mpi" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_CPU_OPERATIONS", "mpi" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_RANK", "${rank}" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_SIZE", "${world_size}" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_LOCAL_RANK", "${local_rank}" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_LOCAL_SIZE", "${local_world_size}" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_CROSS_RANK", "${node_rank}" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_CROSS_SIZE", "${nnodes}" },
    { BIT(FOR_HOROVOD), false, "HOROVOD_HOSTNAME", "${hostname}" },
    { BIT(FOR_XGBOOST), false, "DMLC_ROLE", "worker" },
    { BIT(FOR_XGBOOST), false, "DMLC_TRACKER_URI", "${coordinator_addr}" },
    { BIT(FOR_XGBOOST), false, "DMLC_TRACKER_PORT", "${coordinator_port}" },
    { BIT(FOR_XGBOOST), false, "DMLC_NUM_WORKER", "${world_size}" },
    { BIT(FOR_XGBOOST), false, "DMLC_TASK_ID", "${rank}" },
};

/* Behind the user's arguments, in jobs of several nodes. */
static const struct argument {
    enum framework of;
    bool workers_only; /* from node 1 on */
    const char *flag, *value;
} arguments[] = {
    { FOR_VLLM, false, "--nnodes", "${nnodes}" },
    { FOR_VLLM, false, "--node-rank", "${node_rank}" },
    { FOR_VLLM, false, "--master-addr", "${coordinator_addr}" },
    { FOR_VLLM, false, "--master-port", "${coordinator_port}" },
    { FOR_VLLM, true, "--headless", NULL },
    { FOR_SGLANG, false, "--nnodes", "${nnodes}" },
    { FOR_SGLANG, false, "--node-rank", "${node_rank}" },
    { FOR_SGLANG, false, "--dist-init-addr", "${coordinator}" },
};

enum framework framework_of(const char *word)
{
    for (size_t i = 1; word && i < ARRAY_LEN(words); i++)
        if (strcmp(words[i], word) == 0)
            return (enum framework)i;
    return FOR_NONE;
}

const char *framework_name(enum framework f)
{
    return words[f];
}

bool framework_has_pmi(enum framework f)
{
    return f == FOR_MPI || f == FOR_HOROVOD;
}

int64_t framework_ports(const struct launch_config *c)
{
    return c->framework == FOR_TF ? c->nproc : 1;
}

int framework_check(const struct launch_config *c, struct muster_error *err)
{
    int rc = 0;

    if (!c->framework)
        return 0;
    if ((c->framework == FOR_VLLM || c->framework == FOR_SGLANG) && c->nproc != 1)
        return err_set(err, MUSTER_EINVAL,
                       "--for=%s: one process of it runs on each node, and starts the "
                       "others itself, but --nproc-per-node is %" PRId64 "\n"
                       "Leave out --nproc-per-node.",
                       words[c->framework], c->nproc);
    if (framework_has_pmi(c->framework) && c->warm)
        return err_set(err, MUSTER_EINVAL,
                       "--for=%s gives each worker a descriptor, which a worker that "
                       "--warm forks cannot have\nLeave out one of the two.",
                       words[c->framework]);
    for (size_t i = 0; rc == 0 && i < c->args.count; i++)
        rc = env_template_check("argument", c->args.items[i], err);
    if (rc)
        err_add(err,
                " With --for, names in the program's arguments are replaced, too.");
    return rc;
}

/* --- the nodes' texts ---------------------------------------------------------------
 */

struct node {
    struct span addr, ports;
    int64_t workers;
};

static bool node_parse(struct node *n, const char *text)
{
    const char *first = strchr(text, ' ');
    const char *second = first ? strchr(first + 1, ' ') : NULL;

    if (!second)
        return false;
    n->addr = span_of(text, (size_t)(first - text));
    n->ports = span_str(second + 1);
    return n->addr.n > 0 && n->addr.n < 256 &&
           strcspn(text, "\"\\\n\t,{}") >= n->addr.n &&
           py_int(span_of(first + 1, (size_t)(second - first - 1)), &n->workers) &&
           n->workers > 0 && n->workers < 1 << 20;
}

/* Takes the next port; false at the end, and if it is none. */
static bool port_next(struct span *ports, int64_t *port)
{
    const uint8_t *comma = ports->n ? memchr(ports->p, ',', ports->n) : NULL;
    const size_t n = comma ? (size_t)(comma - ports->p) : ports->n;
    const bool good =
        n > 0 && py_int(span_of(ports->p, n), port) && *port > 0 && *port < 65536;

    *ports = span_of(ports->p + n + (comma != NULL), ports->n - n - (comma != NULL));
    return good;
}

int framework_nodes_check(const struct text_list *nodes, int64_t workers,
                          struct muster_error *err)
{
    int64_t all = 0;

    for (size_t i = 0; i < nodes->count; i++) {
        struct node n = { 0 };
        int64_t port;
        bool good = node_parse(&n, nodes->items[i]) && n.ports.n > 0;

        while (good && n.ports.n > 0)
            good = port_next(&n.ports, &port);
        if (!good)
            return err_set(err, MUSTER_EPROTO,
                           "node %zu has told \"%.80s\", and not where its workers are",
                           i, nodes->items[i]);
        all += n.workers;
    }
    if (nodes->count == 0 || all != workers)
        return err_set(err, MUSTER_EPROTO,
                       "%zu nodes have told of %" PRId64 " workers, and there are "
                       "%" PRId64,
                       nodes->count, all, workers);
    return 0;
}

static int put_address(struct buf *out, struct span addr)
{
    const bool v6 = memchr(addr.p, ':', addr.n) != NULL;

    return buf_printf(out, "%s%.*s%s", v6 ? "[" : "", (int)addr.n, (const char *)addr.p,
                      v6 ? "]" : "");
}

int framework_put_coordinator(struct buf *out, const struct text_list *nodes, bool addr,
                              bool port)
{
    struct node n;
    int64_t number = 0;

    if (!nodes || nodes->count == 0 || !node_parse(&n, nodes->items[0]))
        return 0;
    if (addr && !port)
        return buf_append_span(out, n.addr);
    (void)port_next(&n.ports, &number);
    if (addr)
        (void)put_address(out, n.addr);
    return buf_printf(out, "%s%" PRId64, addr ? ":" : "", number);
}

int framework_put_cluster(struct buf *out, const struct text_list *nodes)
{
    bool first = true;

    for (size_t i = 0; nodes && i < nodes->count; i++) {
        struct node n;
        int64_t port;

        if (!node_parse(&n, nodes->items[i]))
            continue;
        while (n.ports.n > 0 && port_next(&n.ports, &port)) {
            (void)buf_append_str(out, first ? "\"" : ", \"");
            (void)put_address(out, n.addr);
            (void)buf_printf(out, ":%" PRId64 "\"", port);
            first = false;
        }
    }
    return buf_error(out);
}

int framework_mapping(struct buf *out, const struct text_list *nodes)
{
    (void)buf_append_str(out, "(vector");
    for (size_t i = 0; i < nodes->count;) {
        struct node n, next = { 0 };
        size_t same = 1;

        if (!node_parse(&n, nodes->items[i]))
            break;
        while (i + same < nodes->count && node_parse(&next, nodes->items[i + same]) &&
               next.workers == n.workers)
            same++;
        (void)buf_printf(out, ",(%zu,%zu,%" PRId64 ")", i, same, n.workers);
        i += same;
    }
    return buf_append_str(out, ")");
}

/* --- variables and arguments --------------------------------------------------------
 */

/* Whether the user has given this option to the program. */
static bool has_argument(const struct launch_config *c, const char *flag)
{
    const size_t n = strlen(flag);

    for (size_t i = 0; i < c->args.count; i++) {
        const char *arg = c->args.items[i];
        size_t same = 0;

        while (same < n && (arg[same] == flag[same] ||
                            (same > 1 && flag[same] == '-' && arg[same] == '_')))
            same++;
        if (same == n && (arg[n] == '\0' || arg[n] == '='))
            return true;
    }
    return false;
}

static bool is_kept(const struct variable *v, const struct launch_config *c,
                    char *const *envp)
{
    return env_get(c->env.items, v->name) || (!v->always && env_get(envp, v->name));
}

int framework_kept(struct buf *out, const struct launch_config *c, char *const *envp)
{
    for (size_t i = 0; i < ARRAY_LEN(variables); i++)
        if (variables[i].of & BIT(c->framework) && is_kept(&variables[i], c, envp))
            (void)buf_printf(out, "%s%s", buf_len(out) ? ", " : "", variables[i].name);
    for (size_t i = 0; i < ARRAY_LEN(arguments); i++)
        if (arguments[i].of == c->framework && has_argument(c, arguments[i].flag))
            (void)buf_printf(out, "%s%s", buf_len(out) ? ", " : "", arguments[i].flag);
    return buf_error(out);
}

int framework_env(struct text_list *env, const struct launch_config *c,
                  const struct worker_place *p, char *const *envp)
{
    struct buf b;
    int rc = 0;

    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(variables); i++) {
        const struct variable *v = &variables[i];

        if (!(v->of & BIT(c->framework)) || is_kept(v, c, envp))
            continue;
        buf_clear(&b);
        rc = env_template_expand(&b, v->value, c, p);
        if (rc == 0)
            rc = buf_u8(&b, 0);
        if (rc == 0)
            rc = env_put(env, v->name, (const char *)buf_data(&b));
    }
    buf_fini(&b);
    return rc;
}

int framework_add_expanded(struct text_list *l, const char *text,
                           const struct launch_config *c, const struct worker_place *p)
{
    struct buf b;
    int rc;

    buf_init(&b, SIZE_MAX);
    rc = env_template_expand(&b, text, c, p);
    if (rc == 0)
        rc = text_list_add(l, buf_len(&b) ? (const char *)buf_data(&b) : "",
                           buf_len(&b));
    buf_fini(&b);
    return rc;
}

int framework_args(struct text_list *argv, const struct launch_config *c,
                   const struct worker_place *p)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && p->group_world_size > 1 && i < ARRAY_LEN(arguments);
         i++) {
        const struct argument *a = &arguments[i];

        if (a->of != c->framework || has_argument(c, a->flag) ||
            (a->workers_only && p->group_rank == 0))
            continue;
        rc = text_list_add(argv, a->flag, strlen(a->flag));
        if (rc == 0 && a->value)
            rc = framework_add_expanded(argv, a->value, c, p);
    }
    return rc;
}
