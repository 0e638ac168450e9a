/* derive.c - see derive.h. There is one function for each step, in the order in which
 * torchrun 2.13 takes them, so that of two mistakes the same one is reported. First the
 * steps of the rendezvous (how many nodes, which backend, where, under which run id),
 * then those of the workers and their output. */
#include "launch/core/derive.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/py/repr.h"
#include "base/py/text.h"
#include "launch/core/env_template.h"
#include "launch/core/framework.h"
#include "policy/core/notice.h"
#include "policy/core/policy.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/endpoint.h"

/* A machine that cannot have so many processes could not run. */
#define MANY_WORKERS      64
#define HANG_LEAST_MS     1000u
#define RANDOM_ID_WARNING "config has no run_id, generated a random run_id: "

struct deriving {
    struct launch_config *c;
    const struct options *o;
    const struct derive_machine *machine;
    struct muster_error *err;
    const char *backend, *endpoint, *id; /* after the standalone rule */
    char uuid[40];
    bool launch;
};

typedef int (*derive_fn)(struct deriving *d);

/* ---- random run ids ---- */

/* Sets the bits that mark a UUID as version 4. */
static void mark_version_4(const uint8_t random[16], uint8_t out[16])
{
    memcpy(out, random, 16);
    out[6] = (uint8_t)((out[6] & 0x0f) | 0x40);
    out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
}

void derive_uuid(const uint8_t random[16], char text[37])
{
    uint8_t u[16];
    size_t at = 0;

    mark_version_4(random, u);
    for (size_t i = 0; i < sizeof u; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text[at++] = '-';
        (void)snprintf(text + at, 3, "%02x", u[i]);
        at += 2;
    }
}

void derive_uuid_decimal(const uint8_t random[16], char text[40])
{
    char digits[40];
    size_t n = 0;
    uint8_t u[16];
    unsigned __int128 v = 0;

    mark_version_4(random, u);
    for (size_t i = 0; i < sizeof u; i++)
        v = v << 8 | u[i];
    do
        digits[n++] = (char)('0' + (int)(v % 10));
    while ((v /= 10) != 0);
    for (size_t i = 0; i < n; i++)
        text[i] = digits[n - 1 - i];
    text[n] = '\0';
}

/* ---- the rendezvous ---- */

/* options_parse() has checked that these are numbers. */
static int parse_nnodes(struct deriving *d)
{
    const char *text = d->o->nnodes, *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    struct rdzv_params *p = &d->c->rdzv;
    bool good = py_int(span_of(text, n), &p->min_nodes);

    p->max_nodes = p->min_nodes;
    good = good && (!colon || py_int(span_str(colon + 1), &p->max_nodes));
    assert(good);
    (void)good;
    return 0;
}

static bool is_static(const struct deriving *d)
{
    return strcmp(d->backend, "static") == 0;
}

/* A job on one node needs no address from the user: c10d on a free port and a random
 * id. Like torchrun this drops an id that the user gave. */
static int choose_backend(struct deriving *d)
{
    bool alone = d->o->standalone;
    int rc;

    d->backend = d->o->rdzv_backend;
    d->endpoint = d->o->rdzv_endpoint;
    d->id = d->o->rdzv_id;
    if (!alone && is_static(d) && !*d->endpoint && !d->o->master_port.given) {
        rc = parse_nnodes(d);
        if (rc)
            return rc;
        alone = d->c->rdzv.max_nodes == 1;
    }
    if (!alone)
        return 0;
    derive_uuid(d->machine->random, d->uuid);
    d->backend = "c10d";
    d->endpoint = "localhost:0";
    d->id = d->uuid;
    return 0;
}

static int check_sizes(struct deriving *d)
{
    const struct rdzv_params *c = &d->c->rdzv;

    if (c->min_nodes <= 0 || c->min_nodes > c->max_nodes)
        return err_set(d->err, MUSTER_EINVAL,
                       "min_nodes must be > 0 and <= max_nodes, got min_nodes=%lld, "
                       "max_nodes=%lld",
                       (long long)c->min_nodes, (long long)c->max_nodes);
    if (d->o->max_restarts.value < 0)
        return err_set(d->err, MUSTER_EINVAL, "max_restarts must be >= 0");
    return 0;
}

static int warn_of_unused(struct deriving *d)
{
    char text[512];

    if (is_static(d))
        return 0;
    if (!*d->endpoint && strcmp(d->backend, "c10d") == 0 && d->c->rdzv.max_nodes > 1)
        d->machine->warn(d->machine->ctx, DERIVE_WARN_ENDPOINT,
                         "the nodes meet at localhost:29400, which is this machine: "
                         "for others give --rdzv-endpoint=HOST:PORT, the same on all");
    if (!*d->endpoint)
        d->machine->warn(d->machine->ctx, DERIVE_WARN_MASTER_ADDR,
                         "master_addr is only used for static rdzv_backend and when "
                         "rdzv_endpoint is not specified.");
    if (d->o->node_rank.value != 0 &&
        !(d->o->rank_order && strcmp(d->o->rank_order, "given") == 0)) {
        (void)snprintf(text, sizeof text,
                       "node_rank is only used for static rdzv_backend. It will be "
                       "ignored for rdzv_backend=%s.",
                       d->backend);
        d->machine->warn(d->machine->ctx, DERIVE_WARN_NODE_RANK, text);
    }
    return 0;
}

/* As in torch, backends ignore keys that they do not know, so nobody would notice a
 * misspelled one. */
static void warn_of_misspelled_keys(const struct deriving *d)
{
    const struct rdzv_params *p = &d->c->rdzv;
    char text[300];

    for (size_t i = 0; i < p->count; i++) {
        const char *key = p->options[i].key, *meant = conf_meant(key);

        if (!meant)
            continue;
        (void)snprintf(
            text, sizeof text,
            "--rdzv-conf: no backend of muster knows the key '%.100s'. Did you mean "
            "%s?",
            key, meant);
        d->machine->warn(d->machine->ctx, DERIVE_WARN_CONF, text);
    }
}

static int parse_rdzv_conf(struct deriving *d)
{
    struct rdzv_params *p = &d->c->rdzv;
    int rc = conf_parse(p, d->o->rdzv_conf, d->err);

    if (rc == 0)
        warn_of_misspelled_keys(d);
    if (rc == 0 && is_static(d))
        rc =
            params_set_int(p, conf_keys[CONF_RANK].name, d->o->node_rank.value, d->err);
    if (rc == 0 && d->o->rdzv_serve) {
        if (strcmp(d->backend, "etcd-v3") != 0)
            return err_set(
                d->err, MUSTER_EINVAL,
                "--rdzv-serve runs an etcd for --rdzv-backend=etcd-v3, not for "
                "%s",
                d->backend);
        d->c->rdzv_serve = true;
        /* This etcd is near and serves one job, so its leases can be short. */
        if (!conf_given(p, CONF_LEASE_TTL))
            rc = params_set_int(p, conf_keys[CONF_LEASE_TTL].name, 4, d->err);
        if (rc == 0 && !conf_given(p, CONF_KEEP_ALIVE_INTERVAL))
            rc = params_set_int(p, conf_keys[CONF_KEEP_ALIVE_INTERVAL].name, 3, d->err);
    }
    if (rc == 0 && d->o->token_file)
        rc = params_set_str(p, conf_keys[CONF_TOKEN_FILE].name, d->o->token_file,
                            d->err);
    if (rc == 0 && d->o->token_optional)
        rc = params_set_bool(p, conf_keys[CONF_TOKEN_OPTIONAL].name, true, d->err);
    if (rc == 0 && d->o->encrypt)
        rc = params_set_bool(p, conf_keys[CONF_ENCRYPT].name, true, d->err);
    if (rc == 0 && !conf_given(p, CONF_TIMEOUT))
        rc = params_set_int(p, conf_keys[CONF_TIMEOUT].name, 900, d->err);
    return rc;
}

static int set_endpoint(struct deriving *d)
{
    char *text;

    if (!is_static(d) || *d->endpoint)
        return text_set(&d->c->rdzv.endpoint, d->endpoint) ? err_nomem(d->err) : 0;
    text = mem_printf("%s:%lld", d->o->master_addr,
                      d->o->master_port.given ? (long long)d->o->master_port.value
                                              : 29500LL);
    if (!text)
        return err_nomem(d->err);
    mem_free(d->c->rdzv.endpoint);
    d->c->rdzv.endpoint = text;
    return 0;
}

static int set_run_id(struct deriving *d)
{
    char text[sizeof RANDOM_ID_WARNING + 40];

    if (!*d->id) {
        derive_uuid_decimal(d->machine->random, d->uuid);
        d->id = d->uuid;
        (void)snprintf(text, sizeof text, RANDOM_ID_WARNING "%s", d->uuid);
        d->machine->warn(d->machine->ctx, DERIVE_WARN_RUN_ID, text);
    }
    return text_set(&d->c->rdzv.run_id, d->id) ? err_nomem(d->err) : 0;
}

/* Some keys have flags of their own; torchrun ends with an exception if such a key is
 * given a second time. */
static int check_rendezvous(struct deriving *d)
{
    static const char *const keys[] = { "backend",   "endpoint",  "run_id",
                                        "min_nodes", "max_nodes", "local_addr" };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (params_get(&d->c->rdzv, keys[i]))
            return err_set(d->err, MUSTER_EINVAL,
                           "got multiple values for keyword argument '%s'\n"
                           "Leave %s= out of --rdzv-conf: it has a flag of its own.",
                           keys[i], keys[i]);
    if (!*d->backend)
        return err_set(d->err, MUSTER_EINVAL,
                       "The rendezvous backend name must be a non-empty string.");
    return 0;
}

/* All nodes must name the same port, as a static rendezvous cannot choose one. */
static int check_static_endpoint(struct deriving *d)
{
    const char *text = d->c->rdzv.endpoint;
    const struct span bare = py_strip(span_str(text));
    struct endpoint e;
    int rc;

    if (!is_static(d))
        return 0;
    if (bare.n == 0)
        return err_set(d->err, MUSTER_EINVAL,
                       "Endpoint is missing in endpoint. Try to add --master-addr and "
                       "--master-port");
    rc = endpoint_parse(text, -1, &e, d->err);
    if (rc == 0 && e.port < 0)
        rc = err_set(d->err, MUSTER_EINVAL,
                     "port is missing in endpoint: %.*s. Try to specify "
                     "--master-port",
                     (int)bare.n, (const char *)bare.p);
    return rc;
}

/* ---- workers and output ---- */

static int check_launch(struct deriving *d)
{
    if (d->launch && d->o->no_python && !d->o->use_env)
        return err_set(d->err, MUSTER_EINVAL,
                       "When using the '--no-python' flag, you must also set the "
                       "'--use-env' flag.");
    return 0;
}

static int count_workers(struct deriving *d)
{
    static const char *const words[] = { "cpu", "gpu", "xpu", "auto" };
    const char *text = d->o->nproc_per_node;

    if (py_int(span_str(text), &d->c->nproc))
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(text, words[i]) == 0)
            return d->machine->count_devices(d->machine->ctx, text, &d->c->nproc,
                                             d->err);
    return err_set(d->err, MUSTER_EINVAL,
                   "Unsupported nproc_per_node value: %s\n"
                   "--nproc-per-node takes a number, or cpu, gpu, xpu or auto.",
                   text);
}

/* Before anything is said about the workers that cannot be. */
static int check_processes(struct deriving *d)
{
    const struct derive_machine *m = d->machine;
    const char *limit = NULL;
    int64_t most = 0;

    if (d->c->nproc > MANY_WORKERS && m->most_processes)
        most = m->most_processes(m->ctx, &limit);
    if (most > 0 && d->c->nproc >= most)
        return err_set(d->err, MUSTER_EINVAL,
                       "--nproc-per-node=%s: this machine cannot have more than %lld "
                       "processes (%s)",
                       d->o->nproc_per_node, (long long)most, limit);
    return 0;
}

static int apply_omp_rule(struct deriving *d)
{
    static const char text[] =
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in "
        "default, to avoid your system being overloaded, please further tune the "
        "variable for optimal performance in your application as needed.";

    if (d->c->nproc <= 1 || env_get(d->machine->envp, "OMP_NUM_THREADS"))
        return 0;
    d->c->set_omp = true;
    d->machine->warn(d->machine->ctx, DERIVE_WARN_OMP, text);
    return 0;
}

static int parse_ranks_filter(struct deriving *d)
{
    struct rank_filter *f = &d->c->filter;

    if (!*d->o->local_ranks_filter)
        return 0;
    f->on = true;
    for (const char *p = d->o->local_ranks_filter; p;) {
        const char *comma = strchr(p, ',');
        int64_t *ranks = mem_realloc_array(f->ranks, f->count + 1, sizeof *ranks);

        if (!ranks)
            return err_nomem(d->err);
        f->ranks = ranks;
        if (!py_int(span_of(p, comma ? (size_t)(comma - p) : strlen(p)),
                    &ranks[f->count]))
            return err_set(d->err, MUSTER_EINVAL,
                           "--local_ranks_filter must be a comma-separated list of "
                           "integers e.g. --local_ranks_filter=0,1,2");
        f->count++;
        p = comma ? comma + 1 : NULL;
    }
    return 0;
}

static int check_logs_specs(struct deriving *d)
{
    if (!d->o->logs_specs)
        return 0;
    return err_set(d->err, MUSTER_EINVAL,
                   "Could not find entrypoint under 'torchrun.logs_specs[%s]' key\n"
                   "muster has no Python plug-ins: leave out --logs-specs.",
                   d->o->logs_specs);
}

/* "-r" and "-t": 0 to 3, or a map like 0:1,1:3. */
static int derive_streams(struct stream_map *m, const char *text,
                          struct muster_error *err)
{
    struct stream_map out = { 0 };
    const size_t n = strlen(text);

    if (n == 1 && text[0] >= '0' && text[0] <= '3') {
        *m = (struct stream_map){ .all = (uint8_t)(text[0] - '0') };
        return 0;
    }
    out.each = true;
    for (size_t i = 0; n % 4 == 3; i += 4) {
        if (text[i] < '0' || text[i] > '9' || text[i + 1] != ':' || text[i + 2] < '0' ||
            text[i + 2] > '3')
            break;
        out.by_rank[text[i] - '0'] = (uint8_t)(text[i + 2] - '0');
        if (i + 3 == n) {
            *m = out;
            return 0;
        }
        if (text[i + 3] != ',')
            break;
    }
    return err_set(err, MUSTER_EINVAL,
                   "%s does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>\n"
                   "Give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one for each "
                   "local rank from 0 to 9: 0:3,1:2.",
                   text);
}

static int parse_streams(struct deriving *d)
{
    const int rc = derive_streams(&d->c->redirects, d->o->redirects, d->err);

    return rc ? rc : derive_streams(&d->c->tee, d->o->tee, d->err);
}

static int check_log_dir(struct deriving *d)
{
    const char *dir = d->o->log_dir;

    if (dir && strcmp(dir, "/dev/null") != 0 &&
        d->machine->is_file(d->machine->ctx, dir))
        return err_set(d->err, MUSTER_EINVAL, "log_dir: %s is a file", dir);
    return 0;
}

static int set_shutdown_timeout(struct deriving *d)
{
    const struct option_int *flag = &d->o->shutdown_timeout;
    const char *text = env_get(d->machine->envp, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");

    if (flag->given && flag->value < 0)
        return err_set(d->err, MUSTER_EINVAL,
                       "shutdown_timeout must be non-negative, got %lld",
                       (long long)flag->value);
    d->c->shutdown_timeout_s = flag->given ? flag->value : 30;
    if (!flag->given && text && !py_int(span_str(text), &d->c->shutdown_timeout_s))
        return py_bad_int(d->err, text, strlen(text),
                          "TORCH_ELASTIC_SHUTDOWN_TIMEOUT takes whole seconds.");
    return 0;
}

/* Nobody looks for the logs of thousands of attempts where nobody asked for logs. */
static int set_log_attempts(struct deriving *d)
{
    const struct option_int *flag = &d->o->log_attempts;
    const char *dir = d->o->log_dir;

    if (flag->given && flag->value < 1)
        return err_set(d->err, MUSTER_EINVAL,
                       "--log-attempts=%lld: give how many of the last attempts' log "
                       "directories to keep, 1 or more",
                       (long long)flag->value);
    d->c->log_attempts = flag->given ? flag->value : dir && *dir ? 0 : LOG_ATTEMPTS;
    return 0;
}

static int set_restart_grace(struct deriving *d)
{
    const char *text = d->o->restart_grace;

    d->c->restart_grace_ms =
        MIN_OF(ms_of_seconds(d->c->shutdown_timeout_s), RESTART_GRACE_MOST_MS);
    if (!text || !*text)
        return 0;
    return duration_parse("--restart-grace", span_str(text), 0, &d->c->restart_grace_ms,
                          d->err);
}

/* Splits at single commas; two of them stand for one. */
static int split_list(struct text_list *l, const char *text)
{
    struct buf b;
    int rc = 0;

    if (!text)
        return 0;
    buf_init(&b, SIZE_MAX);
    for (const char *p = text; rc == 0; p++) {
        if (p[0] == ',' && p[1] == ',') {
            rc = buf_u8(&b, ',');
            p++;
        } else if (*p == ',' || *p == '\0') {
            rc = text_list_add(l, buf_len(&b) ? (const char *)buf_data(&b) : "",
                               buf_len(&b));
            buf_clear(&b);
        } else {
            rc = buf_u8(&b, (uint8_t)*p);
        }
        if (*p == '\0')
            break;
    }
    buf_fini(&b);
    return rc;
}

static enum numa_mode numa_of(const char *word)
{
    for (enum numa_mode m = NUMA_NODE; word && m <= NUMA_CORE_COMPLEX; m++)
        if (strcmp(numa_mode_word(m), word) == 0)
            return m;
    return NUMA_NONE;
}

/* MUSTER_WARM=1 and MUSTER_WARM=0 switch it on and off, as for flags. */
static const char *warm_value(const char *given)
{
    if (!given || strcmp(given, "0") == 0)
        return NULL;
    return strcmp(given, "1") == 0 ? "" : given;
}

static int copy_plain_values(struct deriving *d)
{
    struct launch_config *c = d->c;
    const struct options *o = d->o;
    const struct {
        char **to;
        const char *from;
    } texts[] = {
        { &c->role, o->role },
        { &c->rdzv.backend, d->backend },
        { &c->rdzv.local_addr, o->local_addr && *o->local_addr ? o->local_addr : NULL },
        { &c->start_method, o->start_method },
        { &c->event_handler, o->event_log_handler },
        { &c->metrics_handler, o->metrics_handler },
        { &c->failure, o->failure },
        { &c->report, o->report && *o->report ? o->report : NULL },
        { &c->warm, warm_value(o->warm) },
        { &c->net, o->net && *o->net ? o->net : NULL },
        { &c->status_http, o->status_http },
        { &c->hang, o->hang },
        { &c->notice, o->notice && *o->notice ? o->notice : NULL },
        { &c->on_notice, o->on_notice && *o->on_notice ? o->on_notice : NULL },
        { &c->progress_file,
          o->progress_file && *o->progress_file ? o->progress_file : NULL },
        { &c->signals, o->signals_to_handle },
        { &c->log_dir, o->log_dir && *o->log_dir ? o->log_dir : NULL },
        { &c->prefix_template,
          *o->log_line_prefix_template
              ? o->log_line_prefix_template
              : env_get(d->machine->envp, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") },
        { &c->script, o->script },
        { &c->title, env_get(d->machine->envp, "MUSTER_TITLE") },
    };

    c->on_failure_finish = strcmp(o->on_failure, "finish") == 0;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (text_set(texts[i].to, texts[i].from))
            return err_nomem(d->err);
    for (size_t i = 0; i < o->n_script_args; i++)
        if (text_list_add(&c->args, o->script_args[i], strlen(o->script_args[i])))
            return err_nomem(d->err);
    if (split_list(&c->stdout_needles, o->duplicate_stdout_filters) ||
        split_list(&c->stderr_needles, o->duplicate_stderr_filters) ||
        split_list(&c->notify, o->notify && *o->notify ? o->notify : NULL))
        return err_nomem(d->err);
    c->max_restarts = o->max_restarts.value;
    c->monitor_interval_s = o->monitor_interval;
    c->virtual_local_rank = o->virtual_local_rank;
    c->numa = numa_of(o->numa_binding);
    return 0;
}

static int choose_entry(struct deriving *d)
{
    const struct options *o = d->o;
    const char *python = env_get(d->machine->envp, "PYTHON_EXEC");

    d->c->local_rank_arg = d->launch && !o->use_env;
    if (!o->run_path && o->no_python && o->module)
        return err_set(d->err, MUSTER_EINVAL,
                       "Don't use both the '--no-python' flag and the '--module' flag "
                       "at the same time.");
    d->c->entry = o->run_path    ? ENTRY_RUN_PATH
                  : o->no_python ? ENTRY_EXEC
                  : o->module    ? ENTRY_MODULE
                                 : ENTRY_SCRIPT;
    if (d->c->warm && d->c->entry == ENTRY_EXEC)
        return err_set(d->err, MUSTER_EINVAL,
                       "--warm forks workers from a Python interpreter: it does not go "
                       "with --no-python");
    if (!python || d->c->entry == ENTRY_EXEC || d->c->entry == ENTRY_RUN_PATH)
        return 0;
    d->c->python_is_custom = true;
    return text_set(&d->c->python, python) ? err_nomem(d->err) : 0;
}

/* torchrun ends with a bare AssertionError here. */
static int check_positive(struct deriving *d)
{
    if (d->c->nproc < 1)
        return err_set(d->err, MUSTER_EINVAL,
                       "--nproc-per-node is %lld: at least one worker must run",
                       (long long)d->c->nproc);
    if (!(d->c->monitor_interval_s > 0))
        return err_set(d->err, MUSTER_EINVAL,
                       "--monitor-interval is %g: it must be more than 0 seconds",
                       d->c->monitor_interval_s);
    return 0;
}

/* What could only be waited for in vain, or fail after everything has begun. Each asks
 * the machine only where the answer can matter. */
static int check_hopeless(struct deriving *d)
{
    const struct derive_machine *m = d->machine;
    const struct {
        const char *option, *path;
    } files[] = { { "--report", d->c->report },
                  { "--progress-file", d->c->progress_file } };

    if (d->o->standalone && d->c->rdzv.min_nodes > 1)
        return err_set(d->err, MUSTER_EINVAL,
                       "--standalone is for one machine, but --nnodes=%s waits for "
                       "%lld nodes\n"
                       "Leave out --nnodes; or, for several machines, replace "
                       "--standalone by --rdzv-backend=c10d "
                       "--rdzv-endpoint=HOST:29400, the same on all of them.",
                       d->o->nnodes, (long long)d->c->rdzv.min_nodes);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        const char *path = files[i].path, *slash = path ? strrchr(path, '/') : NULL;
        char *dir = slash ? mem_strndup(path, (size_t)MAX_OF(slash - path, 1)) : NULL;
        const bool there = !dir || !m->is_dir || m->is_dir(m->ctx, dir);

        if (slash && !dir)
            return err_nomem(d->err);
        if (!there)
            (void)err_set(d->err, MUSTER_EINVAL,
                          "%s=%s: there is no directory %s\n"
                          "Make it first (mkdir -p %s), on this node, too.",
                          files[i].option, path, dir, dir);
        mem_free(dir);
        if (!there)
            return MUSTER_EINVAL;
    }
    return 0;
}

/* A rule has a colon; a path may begin with what no rule does. */
static bool is_policy_file(const char *text)
{
    return text[0] == '/' || text[0] == '.' ||
           (!strchr(text, ':') && strcmp(text, "default") != 0);
}

static int refuse_policy_file(struct deriving *d, const char *path)
{
    struct nearest near = { 0 };

    (void)err_set(d->err, MUSTER_EINVAL,
                  "--restart-policy=%.200s: neither `default`, nor rules like "
                  "ImportError:stop, nor a file that can be read: %s",
                  path, strerror(errno));
    nearest_try(&near, span_str(path), "default");
    if (near.word)
        err_add(d->err, "\nDid you mean %s?", near.word);
    return MUSTER_EINVAL;
}

static int parse_policy(struct deriving *d)
{
    const struct options *o = d->o;
    const struct derive_machine *m = d->machine;
    struct policy_options given = { .budget = o->restart_budget,
                                    .backoff = o->restart_backoff };
    const char *rules = o->restart_policy;
    char *text = NULL;
    struct policy p;
    struct buf b;
    int rc;

    d->c->exit_by_cause = strcmp(o->exit_codes, "cause") == 0;
    if (rules && *rules && is_policy_file(rules)) {
        errno = ENOENT;
        text = m->read_text ? m->read_text(m->ctx, rules, POLICY_TEXT_MAX + 1) : NULL;
        if (!text)
            return refuse_policy_file(d, rules);
        rules = text;
    }
    given.rules = rules && (*rules || text) ? rules : NULL;
    given.budget = given.budget && *given.budget ? given.budget : NULL;
    given.backoff = given.backoff && *given.backoff ? given.backoff : NULL;
    if (!given.rules && !given.budget && !given.backoff)
        return 0;
    rc = policy_parse(&p, &given, d->err);
    mem_free(text);
    if (rc)
        return rc;
    /* The budget alone means no other limit. */
    if (p.budget && d->c->max_restarts == 0)
        d->c->max_restarts = POLICY_UNLIMITED;
    buf_init(&b, SIZE_MAX);
    if (policy_print(&b, &p) == 0)
        d->c->policy = mem_strndup((const char *)buf_data(&b), buf_len(&b));
    policy_fini(&p);
    buf_fini(&b);
    return d->c->policy ? 0 : err_nomem(d->err);
}

static int check_notice(struct deriving *d)
{
    struct notice_sources from;
    int sig, rc = notice_parse(&from, d->c->notice, d->err);

    return rc ? rc : notice_answer_parse(&sig, d->c->on_notice, d->err);
}

int hang_option_parse(const char *text, uint64_t *time_ms, enum hang_action *action,
                      struct muster_error *err)
{
    const size_t n = strcspn(text, ":");
    uint64_t ms;
    const int rc = duration_parse("--hang", span_of(text, n), 0, &ms, err);

    if (rc)
        return rc;
    if (ms < HANG_LEAST_MS)
        return err_set(err, MUSTER_EINVAL,
                       "--hang=%.100s: the shortest time is one second", text);
    size_t chosen = 0;
    if (text[n] == ':') {
        while (chosen < HANG_ACTIONS &&
               strcmp(text + n + 1, hang_action_name((enum hang_action)chosen)) != 0)
            chosen++;
        if (chosen == HANG_ACTIONS)
            return err_set(err, MUSTER_EINVAL,
                           "--hang=%.100s: choose from report, restart, stop", text);
    }
    assert(chosen < HANG_ACTIONS);
    *time_ms = ms;
    *action = (enum hang_action)chosen;
    return 0;
}

static int parse_hang(struct deriving *d)
{
    struct launch_config *c = d->c;

    if (!c->hang || !*c->hang)
        return 0;
    const int rc = hang_option_parse(c->hang, &c->hang_ms, &c->hang_action, d->err);
    c->hang[strcspn(c->hang, ":")] = '\0'; /* the time alone, as it was given */
    return rc;
}

static int parse_env_file(struct deriving *d)
{
    const struct derive_machine *m = d->machine;
    const char *path = d->o->env_file;
    char *text;
    int rc;

    if (!path || !*path || !m->read_text)
        return 0;
    text = m->read_text(m->ctx, path, ENV_FILE_MOST + 1);
    if (!text)
        return err_set(d->err, MUSTER_EINVAL, "--env-file=%s: %s", path,
                       strerror(errno));
    rc = strlen(text) > ENV_FILE_MOST
             ? err_set(d->err, MUSTER_EINVAL, "--env-file=%s has more than %u KiB",
                       path, ENV_FILE_MOST >> 10)
             : env_template_add_file(&d->c->env, path, span_str(text), d->err);
    mem_free(text);
    return rc;
}

static int parse_env(struct deriving *d)
{
    const struct option_each *each = &d->o->env;
    struct text_list list = { 0 };
    int rc = parse_env_file(d);

    if (rc == 0 && each->is_list && *each->items[0] &&
        split_list(&list, each->items[0]))
        rc = err_nomem(d->err);
    for (size_t i = 0; rc == 0 && i < list.count; i++)
        rc = env_template_add(&d->c->env, "MUSTER_ENV:", span_str(list.items[i]),
                              d->err);
    for (size_t i = 0; rc == 0 && !each->is_list && i < each->count; i++)
        rc = env_template_add(&d->c->env, "--env", span_str(each->items[i]), d->err);
    text_list_fini(&list);
    return rc;
}

static int set_framework(struct deriving *d)
{
    d->c->framework = framework_of(d->o->framework);
    return framework_check(d->c, d->err);
}

int derive_config(struct launch_config *c, const struct options *o, bool launch,
                  const struct derive_machine *machine, struct muster_error *err)
{
    static const derive_fn steps[] = {
        check_launch,
        choose_backend,
        parse_nnodes,
        check_sizes,
        warn_of_unused,
        count_workers,
        check_processes,
        apply_omp_rule,
        parse_rdzv_conf,
        set_endpoint,
        parse_ranks_filter,
        check_logs_specs,
        parse_streams,
        check_log_dir,
        set_shutdown_timeout,
        set_restart_grace,
        set_log_attempts,
        copy_plain_values,
        parse_hang,
        parse_policy,
        check_notice,
        choose_entry,
        set_run_id,
        check_rendezvous,
        check_static_endpoint,
        check_positive,
        check_hopeless,
        parse_env,
        set_framework,
    };
    struct deriving d = {
        .c = c, .o = o, .machine = machine, .err = err, .launch = launch
    };
    int rc = launch_config_init(c, err);

    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(steps); i++)
        rc = steps[i](&d);
    if (rc)
        launch_config_fini(c);
    return rc;
}
