/* worker_env.c - see worker_env.h. */
#include "launch/core/worker_env.h"

#include <assert.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/py/template.h"
#include "base/py/text.h"
#include "launch/core/env_template.h"
#include "launch/core/framework.h"

#define RUN_PATH_NAME "run_script_path"

/* Runs the script as torchrun's --run-path does: in an interpreter of its own, as
 * __main__, under torch's error recorder if there is a torch. Unlike there, a script
 * that calls sys.exit() ends well (torchrun 2.13 hangs). */
static const char run_path_program[] =
    "import runpy, sys\n"
    "sys.argv = sys.argv[1:]\n"
    "def run_script_path():\n"
    "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    "try:\n"
    "    from torch.distributed.elastic.multiprocessing.errors import record\n"
    "except ImportError:\n"
    "    record = lambda f: f\n"
    "record(run_script_path)()\n";

static int put_int(struct text_list *l, const char *name, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return env_put(l, name, text);
}

static void put_numbers(struct text_list *l, const struct launch_config *c,
                        const struct worker_place *p)
{
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        { "RANK", p->rank },
        { "GROUP_RANK", p->group_rank },
        { "ROLE_RANK", p->role_rank },
        { "LOCAL_WORLD_SIZE", c->nproc },
        { "WORLD_SIZE", p->world_size },
        { "GROUP_WORLD_SIZE", p->group_world_size },
        { "ROLE_WORLD_SIZE", p->role_world_size },
        { "MASTER_PORT", p->master_port },
        { "TORCHELASTIC_RESTART_COUNT", p->restart_count },
        { "TORCHELASTIC_MAX_RESTARTS", c->max_restarts },
        { "LOCAL_RANK", c->virtual_local_rank ? 0 : p->local_rank },
    };

    assert(p->rank >= 0 && p->rank < p->world_size);
    assert(p->local_rank >= 0 && p->local_rank < c->nproc);
    assert(p->group_rank >= 0 && p->group_rank < p->group_world_size);
    assert(p->role_rank >= 0 && p->role_rank < p->role_world_size);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        (void)put_int(l, rows[i].name, rows[i].value);
}

static void put_texts(struct text_list *l, const struct launch_config *c,
                      const struct worker_place *p, char *const *envp)
{
    const char *nccl = env_get(envp, "TORCH_NCCL_ASYNC_ERROR_HANDLING");
    const struct {
        const char *name, *value; /* NULL: leave as it is */
    } rows[] = {
        { "ROLE_NAME", c->role },
        { "MASTER_ADDR", p->master_addr },
        { "MUSTER_MASTER_ADDR", p->served_addr },
        { "TORCHELASTIC_RUN_ID", c->rdzv.run_id },
        { "TORCHELASTIC_USE_AGENT_STORE", p->use_agent_store ? "True" : "False" },
        { "TORCH_NCCL_ASYNC_ERROR_HANDLING", nccl ? NULL : "1" },
        { "TORCHELASTIC_ERROR_FILE", p->error_file },
        { "TORCHELASTIC_SIGNALS_TO_HANDLE", c->signals },
        { "TORCHELASTIC_TIMER_FILE", p->timer_file },
        { "MUSTER_NOTICE_FILE", p->notice_file },
        { "OMP_NUM_THREADS", c->set_omp ? "1" : NULL },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].value)
            (void)env_put(l, rows[i].name, rows[i].value);
}

/* Each worker sees one device, under the number 0. As in torch 2.15, AMD's list comes
 * first if there is one: its runtime reads both variables, and they must agree. */
static int put_virtual_device(struct text_list *l, int64_t local_rank,
                              char *const *envp, struct muster_error *err)
{
    const char *hip = env_get(envp, "HIP_VISIBLE_DEVICES");
    const bool is_hip = hip && *hip;
    const char *name = is_hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
    const char *all = env_get(envp, name), *item = all;
    struct span device;
    char *text;
    int rc;

    if (!all)
        return put_int(l, "CUDA_VISIBLE_DEVICES", local_rank) ? err_nomem(err) : 0;
    for (int64_t i = 0; i < local_rank && item; i++) {
        item = strchr(item, ',');
        item = item ? item + 1 : NULL;
    }
    if (!item)
        return err_set(err, MUSTER_EINVAL,
                       "local_rank %lld exceeds available GPUs in %s=%s\n"
                       "--virtual-local-rank needs a device for each worker: lower "
                       "--nproc-per-node or name more devices.",
                       (long long)local_rank, name, all);
    device = py_strip(span_of(item, strcspn(item, ",")));
    text = mem_strndup((const char *)device.p, device.n);
    rc = text ? env_put(l, "CUDA_VISIBLE_DEVICES", text) : MUSTER_ENOMEM;
    if (rc == 0 && is_hip)
        rc = env_put(l, "HIP_VISIBLE_DEVICES", text);
    mem_free(text);
    return rc ? err_nomem(err) : 0;
}

void worker_net(struct worker_net *out, const struct launch_config *c,
                const char *interface, char *const *envp)
{
    static const struct {
        const char *name;
        const char *before; /* the interface, in the value */
        bool asked;         /* only with --net */
    } rows[WORKER_NET_VARS] = {
        { "GLOO_SOCKET_IFNAME", "", false },
        { "TP_SOCKET_IFNAME", "", false },
        /* Without "=", NCCL takes every interface whose name begins like that. */
        { "NCCL_SOCKET_IFNAME", "=", true },
    };

    out->count = 0;
    for (size_t i = 0; interface && *interface && i < ARRAY_LEN(rows); i++) {
        if ((rows[i].asked && !c->net) || env_get(envp, rows[i].name))
            continue;
        out->vars[out->count].name = rows[i].name;
        (void)snprintf(out->vars[out->count].value, sizeof out->vars[0].value,
                       "%s%.15s", rows[i].before, interface);
        out->count++;
    }
}

int worker_env(struct text_list *out, const struct launch_config *c,
               const struct worker_place *p, char *const *envp,
               struct muster_error *err)
{
    struct text_list l = { 0 };
    struct worker_net net;
    int rc = 0;

    /* OpenMP complains of an empty number; the agents' secret is not the workers'. */
    for (char *const *e = envp; e && *e; e++)
        if (strcmp(*e, "OMP_NUM_THREADS=") != 0 &&
            strncmp(*e, "MUSTER_TOKEN=", 13) != 0)
            (void)text_list_add(&l, *e, strlen(*e));
    put_numbers(&l, c, p);
    put_texts(&l, c, p, envp);
    if (p->served_addr)
        (void)put_int(&l, "MUSTER_MASTER_PORT", p->served_port);
    worker_net(&net, c, p->interface, envp);
    for (size_t i = 0; i < net.count; i++)
        (void)env_put(&l, net.vars[i].name, net.vars[i].value);
    if (l.err)
        rc = err_nomem(err);
    else if (c->virtual_local_rank)
        rc = put_virtual_device(&l, p->local_rank, envp, err);
    if (rc == 0 && c->framework && p->nodes)
        rc = framework_env(&l, c, p, envp) ? err_nomem(err) : 0;
    if (rc == 0 && c->env.count)
        rc = env_template_apply(&l, c, p) ? err_nomem(err) : 0;
    if (rc) {
        text_list_fini(&l);
        return rc;
    }
    *out = l;
    return 0;
}

static int add_expanded(struct text_list *l, const char *text, const char *local_rank)
{
    const struct template_value values[] = { { "local_rank", local_rank } };
    struct buf b;
    int rc;

    buf_init(&b, SIZE_MAX);
    rc = template_expand(&b, text, values, ARRAY_LEN(values));
    if (rc == 0)
        rc = text_list_add(l, buf_len(&b) ? (const char *)buf_data(&b) : "",
                           buf_len(&b));
    buf_fini(&b);
    return rc;
}

static int add_plain(struct text_list *l, const char *text)
{
    return text_list_add(l, text, strlen(text));
}

/* Program, interpreter flags and script: the part that differs by mode. */
static int add_command(struct text_list *l, const struct launch_config *c,
                       const char *local_rank)
{
    if (c->entry == ENTRY_EXEC)
        return add_plain(l, c->script); /* As in torchrun, no macros in this one. */
    (void)add_plain(l, c->python);
    (void)add_plain(l, "-u");
    if (c->entry == ENTRY_MODULE)
        (void)add_plain(l, "-m");
    if (c->entry == ENTRY_RUN_PATH) {
        (void)add_plain(l, "-c");
        (void)add_plain(l, run_path_program);
    }
    return add_expanded(l, c->script, local_rank);
}

int worker_argv(struct text_list *out, const struct launch_config *c,
                const struct worker_place *p, struct muster_error *err)
{
    struct text_list l = { 0 };
    char number[24];
    int rc;

    (void)snprintf(number, sizeof number, "%lld", (long long)p->local_rank);
    rc = add_command(&l, c, number);
    if (rc == 0 && c->local_rank_arg)
        rc = add_expanded(&l, "--local-rank=${local_rank}", number);
    for (size_t i = 0; rc == 0 && i < c->args.count; i++)
        rc = c->framework && p->nodes
                 ? framework_add_expanded(&l, c->args.items[i], c, p)
                 : add_expanded(&l, c->args.items[i], number);
    if (rc == 0 && c->framework && p->nodes)
        rc = framework_args(&l, c, p);
    if (rc) {
        text_list_fini(&l);
        return err_nomem(err);
    }
    *out = l;
    return 0;
}

const char *worker_binary(const struct launch_config *c)
{
    if (c->entry == ENTRY_RUN_PATH)
        return RUN_PATH_NAME;
    return c->entry == ENTRY_EXEC || c->entry == ENTRY_FUNCTION ? c->script : c->python;
}

const char *worker_report_name(const struct launch_config *c)
{
    if (c->title && *c->title)
        return c->title;
    if (c->entry == ENTRY_RUN_PATH || c->entry == ENTRY_EXEC ||
        c->entry == ENTRY_FUNCTION || c->python_is_custom)
        return worker_binary(c);
    if (c->script[0] != '-')
        return c->script;
    for (size_t i = 0; i < c->args.count; i++) /* The first that is not a flag. */
        if (c->args.items[i][0] != '-')
            return c->args.items[i];
    return "";
}
