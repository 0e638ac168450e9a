/* job.c - random jobs. The nodes, the options, and what goes wrong and when, are drawn
 * from one seed. check.c has what must hold. See job.h. */
#include "sim/job.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/agent.h"
#include "base/mem.h"
#include "launch/core/derive.h"
#include "sim/etcd.h"
#include "store/core/reserved.h"
#include "store/extension.h"
#include "store/server.h"

#define STORE_NAME "store"

struct job *the_job;
uint64_t job_node_us;

static struct job only;

/* ---- an agent: what src/cmd/run.c does ---- */

static bool no_file(void *ctx, const char *path)
{
    return false;
}

static int no_devices(void *ctx, const char *word, int64_t *n, struct muster_error *err)
{
    *n = 1;
    return 0;
}

static void no_warning(void *ctx, enum derive_warning what, const char *text)
{
}

struct arguments {
    char text[24][160];
    char *argv[25];
    size_t count;
};

static void add_argument(struct arguments *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void add_argument(struct arguments *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(w->text[w->count], sizeof w->text[0], fmt, ap);
    va_end(ap);
    w->argv[w->count] = w->text[w->count];
    w->count++;
}

const char *job_host_name(const struct job *j)
{
    return j->set.store_apart ? STORE_NAME : j->nodes[j->set.host].machine->name;
}

static void command_line(struct arguments *w, const struct job_node *n)
{
    const struct job_settings *s = &n->job->set;
    const char *host = job_host_name(n->job);
    const bool is_static = strcmp(s->backend, "static") == 0;

    if (s->min_nodes == s->max_nodes)
        add_argument(w, "--nnodes=%" PRId64, s->min_nodes);
    else
        add_argument(w, "--nnodes=%" PRId64 ":%" PRId64, s->min_nodes, s->max_nodes);
    add_argument(w, "--nproc-per-node=%" PRId64, s->nproc);
    add_argument(w, "--max-restarts=%" PRId64, s->max_restarts);
    if (s->policy[0])
        add_argument(w, "--restart-policy=%s", s->policy);
    if (s->backoff[0])
        add_argument(w, "--restart-backoff=%s", s->backoff);
    if (s->budget[0])
        add_argument(w, "--restart-budget=%s", s->budget);
    add_argument(w, "--rdzv-id=" JOB_RUN);
    add_argument(w, "--rdzv-backend=%s", s->backend);
    if (n->job->etcd_members) {
        char list[64] = "";

        for (size_t i = 0; i < n->job->etcd_members; i++)
            (void)snprintf(list + strlen(list), sizeof list - strlen(list),
                           "%setcd%zu:2379", i ? "," : "", i);
        add_argument(w, "--rdzv-endpoint=%s", list);
        if (strcmp(s->backend, "etcd") == 0)
            add_argument(w,
                         "--rdzv-conf=timeout=%" PRIu64 ",last_call_timeout=%" PRIu64,
                         s->join_s, s->last_call_s);
        else
            add_argument(
                w, "--rdzv-conf=join_timeout=%" PRIu64 ",last_call_timeout=%" PRIu64,
                s->join_s, s->last_call_s);
    } else if (is_static) {
        add_argument(w, "--node-rank=%zu", n->index);
        add_argument(w, "--master-addr=%s", host);
        add_argument(w, "--master-port=%d", JOB_PORT);
        add_argument(w, "--rdzv-conf=timeout=%" PRIu64, s->join_s);
    } else {
        add_argument(w, "--rdzv-endpoint=%s:%d", host, JOB_PORT);
        add_argument(
            w, "--rdzv-conf=join_timeout=%" PRIu64 ",last_call_timeout=%" PRIu64 "%s%s",
            s->join_s, s->last_call_s, s->grace_ms ? ",loss_grace_ms=1000" : "",
            n->kind == JOB_FALLBACK ? ",hosted=0" : "");
    }
    add_argument(w, "--no-python");
    add_argument(w, "work");
}

static int run_agent(struct job_node *n, const struct launch_config *c)
{
    static char path[] = "PATH=/bin", alone[] = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1";
    char *const envp[] = { path, the_job->set.share ? NULL : alone, NULL };
    const struct log_writer log = { .log = { .emit = job_log }, .fd = -1 };
    const struct agent_opts opts = {
        .config = c, .envp = envp, .log = &log, .handle_signals = true
    };
    struct agent_result r;
    struct muster_error err = { 0 };

    if (agent_run(&opts, &r, &err) != 0) {
        n->error = err.code;
        (void)snprintf(n->text, sizeof n->text, "%.*s",
                       (int)MIN_OF(strcspn(err.text, "\n"), sizeof n->text - 1),
                       err.text);
        return 1;
    }
    n->why = (int)r.why;
    if (r.why == WHY_FATAL) {
        n->error = r.error.code;
        (void)snprintf(n->text, sizeof n->text, "%.*s",
                       (int)MIN_OF(strcspn(r.error.text, "\n"), sizeof n->text - 1),
                       r.error.text);
    }
    const int code = r.exit_code;
    agent_result_fini(&r);
    return code;
}

static int agent_main(void *arg)
{
    struct job_node *n = arg;
    struct arguments *w = os_alloc(sizeof *w);
    struct derive_machine ports = { .count_devices = no_devices,
                                    .is_file = no_file,
                                    .warn = no_warning };
    char *none[] = { NULL };
    struct options_input input = { w->argv, 0, none, false };
    struct launch_config c;
    struct muster_error err = { 0 };
    struct options o;
    int code;

    command_line(w, n);
    input.argc = w->count;
    ports.envp = none;
    if (options_parse(&o, &input, &err) != OPTIONS_FINE ||
        derive_config(&c, &o, false, &ports, &err) != 0) {
        os_fail("%s: %s", n->machine->name, err.text);
        return 2;
    }
    n->error = 0;
    n->text[0] = '\0';
    n->why = 0;
    os.current->asked = 0;
    os.current->fail_at = n->lives == 1 ? n->fail_alloc : 0;
    code = run_agent(n, &c);
    n->starved = os.current->fail_at && os.current->asked >= os.current->fail_at;
    the_job->starved += n->starved;
    os.current->fail_at = 0;
    launch_config_fini(&c);
    if (os.current->blocks)
        os_fail("%s ends and has not freed %zu blocks of memory", n->machine->name,
                os.current->blocks);
    return code;
}

struct job_node *job_current(void)
{
    return os.current && os.current->main == agent_main ? os.current->arg : NULL;
}

static void on_agent_ended(void *ctx, struct os_process *p)
{
    struct job_node *n = ctx;

    if (n->agent != p)
        return;
    n->ended = true;
    n->exit_code = p->exit_code;
    n->end_t = os.t;
    n->session = NULL;
    job_node_us += os.t - n->start_t;
    os_log(n->machine->name, "ENDS with %d (why %d) %s", p->exit_code, n->why, n->text);
    job_tell(n->machine->name, "ends with %d", p->exit_code);
    job_agent_gone(n);
    job_torch_gone(n);
    job_etcd_life(n);
    job_check_gone(n);
}

static bool is_host(const struct job_node *n)
{
    const struct job *j = n->job;

    return n->index == j->set.host && !j->etcd_members && !j->set.store_apart;
}

void job_start_node(void *node, uint64_t due)
{
    struct job_node *n = node;

    n->starts_due -= (unsigned)due;
    if (!n->machine->up || (n->agent && !n->ended))
        return;
    n->ended = false;
    n->job->epoch += is_host(n);
    n->lives++;
    n->start_t = os.t;
    n->agent = os_process_start(n->machine, n->machine->name,
                                n->kind == JOB_TORCH ? job_torch_main : agent_main, n);
    n->agent->ended = on_agent_ended;
    n->agent->ended_ctx = n;
    job_etcd_life(n);
    os_log(n->machine->name, "STARTS");
}

static int store_main(void *arg);
OS_INSTEAD_OF(reserved_parse_slow);

/* To a store of torch's, our reserved keys are ordinary keys that nobody has set. */
struct reserved __wrap_reserved_parse_slow(struct span name)
{
    if (os.current && ((os.current->main == store_main && the_job->set.plain) ||
                       os.current->main == job_torch_main))
        return (struct reserved){ .kind = RESERVED_NONE };
    return __real_reserved_parse_slow(name);
}

static int store_main(void *arg)
{
    struct store_server_opts opts;
    struct store_server *server;
    uv_loop_t *loop = os_alloc(sizeof *loop);

    store_server_opts_init(&opts);
    opts.port = JOB_PORT;
    if (!the_job->set.plain)
        opts.extension = &run_extension;
    (void)uv_loop_init(loop);
    if (store_server_open(loop, &opts, &server, NULL) < 0)
        return 1;
    return uv_run(loop, UV_RUN_DEFAULT);
}

/* ---- faults ---- */

enum fault {
    FAULT_RESET,
    FAULT_HALF, /* a reset that only one side learns of */
    FAULT_CUT,
    FAULT_ONE_WAY,
    FAULT_KILL,
    FAULT_POWER,
    FAULT_STOP,
    FAULT_JUMP,
    FAULT_WORKER,
    FAULT_SIGNAL,
    FAULT_ETCD,
    FAULT_COUNT
};

static const char *const fault_names[FAULT_COUNT] = { "reset",   "half", "cut",
                                                      "one-way", "kill", "power",
                                                      "stop",    "jump", "worker",
                                                      "signal",  "etcd" };

/* By default nodes may be silent for 15 s, and need some of it to find each other. */
#define SILENT_US    (8 * OS_SECOND)
#define HEARTBEAT_US (5 * OS_SECOND)
#define AWAKE_US     (10 * OS_SECOND) /* after which a node knows what it has missed */

static void calm_from(uint64_t t)
{
    the_job->last_fault_t = MAX_OF(the_job->last_fault_t, t);
}

/* The node cannot reach the others until then, or they cannot reach it. */
static void away_until(const struct job_node *n, uint64_t t)
{
    struct job *j = the_job;

    calm_from(t);
    if (t <= os.t + SILENT_US)
        return;
    j->away_us += t - os.t;
    if (is_host(n))
        j->long_outage = true; /* The others give up a host that is silent. */
}

/* Likewise, because of the network. Except on etcd-v3, a node that has not reached the
 * host, or etcd, for so long ends, and closes the run for the others if its goodbye
 * gets through. */
static void cut_until(const struct job_node *n, uint64_t t)
{
    away_until(n, t);
    the_job->long_outage |=
        t > os.t + SILENT_US && strcmp(the_job->set.backend, "etcd-v3") != 0;
}

static uint64_t away_t(const struct job_node *n)
{
    const uint64_t cut_t = MAX_OF(n->machine->out_t, n->machine->in_t);

    return MAX_OF(n->agent ? n->agent->stopped_t : 0, cut_t);
}

bool job_awake(const struct job_node *n)
{
    const struct job_node *host = &n->job->nodes[n->job->set.host];
    const uint64_t t =
        MAX_OF(MAX_OF(away_t(n), n->job->half_t), is_host(host) ? away_t(host) : 0);

    return t == 0 || os.t > t + AWAKE_US;
}

static struct os_process *any_worker(void)
{
    struct os_process *found = NULL;
    uint64_t seen = 0;

    for (struct os_process *p = os.processes; p; p = p->next)
        if (p->main == job_worker_main && p->state != OS_ENDED && os_chance(++seen))
            found = p;
    return found;
}

void job_cut_node(struct job_node *n, bool both, uint64_t until_t)
{
    struct os_machine *m = n->machine;
    const bool out = both || os_chance(2);

    if (out)
        m->out_t = MAX_OF(m->out_t, until_t);
    if (both || !out)
        m->in_t = MAX_OF(m->in_t, until_t);
    job_etcd_cut(n, until_t);
}

static void power_back(void *arg, uint64_t n)
{
    struct job_node *node = arg;

    os_machine_on(node->machine);
    job_start_node(node, n);
}

static void kill_node(struct job_node *n, bool power)
{
    const bool again = os_chance(2);
    const uint64_t back_t = os.t + os_random(50 * OS_MS, 5 * OS_SECOND);

    n->killed = true;
    if (is_host(n))
        the_job->host_lost = true;
    if (power)
        os_machine_off(n->machine);
    else if (n->agent)
        os_signal(n->agent, SIGKILL);
    if (again) {
        os_log("fault", "%s is back at %.3f", n->machine->name, (double)back_t / 1e6);
        n->starts_due++;
        os_at(back_t, power ? power_back : job_start_node, n, 1);
        calm_from(back_t);
    } else {
        n->given_up = true;
    }
}

static void on_fault(void *arg, uint64_t kind)
{
    struct job *j = arg;
    struct job_node *n = &j->nodes[os_random(0, j->set.nodes)];
    uint64_t until_t =
        os.t + os_random(OS_MS, os_chance(2) ? 800 * OS_MS : 40 * OS_SECOND);
    struct os_process *p;

    os_log("fault", "%s %s", fault_names[kind], n->machine->name);
    calm_from(os.t);
    switch ((enum fault)kind) {
    case FAULT_RESET:
        (void)os_reset(n->machine, false);
        job_etcd_reset(n);
        return;
    case FAULT_HALF:
        j->cuts += os_reset(n->machine, true) > 0;
        j->half_t = os.t + HEARTBEAT_US; /* By then the other side has noticed it. */
        calm_from(j->half_t);
        return;
    case FAULT_CUT:
    case FAULT_ONE_WAY:
        j->cuts++;
        job_cut_node(n, kind == FAULT_CUT, until_t);
        cut_until(n, until_t);
        return;
    case FAULT_KILL:
    case FAULT_POWER:
        if (n->lives == 0 || n->ended)
            return;
        j->kills++;
        kill_node(n, kind == FAULT_POWER);
        return;
    case FAULT_STOP:
        if (!n->agent)
            return;
        j->stops++;
        if (j->only_pauses)
            until_t = os.t + os_random(OS_SECOND, 300 * OS_SECOND);
        os_stop_until(n->agent, until_t);
        if (j->only_pauses && os_chance(2)) /* the whole machine */
            for (p = os.processes; p; p = p->next)
                if (p->machine == n->machine)
                    os_stop_until(p, until_t);
        away_until(n, until_t);
        return;
    case FAULT_JUMP:
        if (j->torchruns)
            return; /* After a jump, torchrun's nodes keep evicting each other. */
        n->machine->wall_us += (int64_t)os_random(0, 240) * 1000000 - 120000000;
        n->machine->jumped_t = os.t;
        return;
    case FAULT_WORKER:
        p = any_worker();
        if (!p || j->done_t != OS_NEVER)
            return; /* A node that is done does not restart for one that fails late. */
        j->worker_failures++;
        os_signal(p, SIGSEGV);
        if (j->only_failures && os_chance(2))
            os_at(os.t + os_random(0, 100 * OS_MS), on_fault, j, FAULT_WORKER);
        return;
    case FAULT_SIGNAL:
        if (!n->agent || n->ended)
            return;
        j->signals++;
        n->signalled = true;
        os_signal(n->agent, SIGTERM);
        return;
    case FAULT_ETCD:
        if (job_etcd_fault(until_t - os.t)) {
            calm_from(until_t);
            /* Leases and elections take some seconds more. */
            j->long_outage |= until_t - os.t > 3 * OS_SECOND || !j->cluster_alone;
        }
        return;
    case FAULT_COUNT:
        return;
    }
}

static uint64_t any_fault(const struct job *j)
{
    static const enum fault mild[] = { FAULT_WORKER, FAULT_WORKER, FAULT_WORKER,
                                       FAULT_JUMP, FAULT_RESET };

    return j->only_resets     ? FAULT_RESET
           : j->only_pauses   ? FAULT_STOP
           : j->only_failures ? mild[os_random(0, ARRAY_LEN(mild))]
                              : os_random(0, FAULT_COUNT);
}

void job_moment(void)
{
    const uint64_t kind = any_fault(the_job);

    if (!the_job->moments || !os_chance(10))
        return;
    the_job->moments--;
    os_at(os.t +
              (os_chance(2) ? os_random(0, 4 * os.delay_us) : os_random(0, OS_SECOND)),
          on_fault, the_job, kind);
}

/* ---- drawing a job ---- */

static const char *const theme_names[] = { "calm",  "reset",  "fail",    "pause",
                                           "storm", "memory", "cluster", "starve" };

/* Groups in which not all nodes are alike. */
static const struct group {
    const char *name;
    bool plain;
    enum job_kind other; /* what some nodes run */
    unsigned one_in;     /* how many do */
} groups[] = { { "mixed", true, JOB_TORCH, 2 },
               { "visited", false, JOB_TORCH, 3 },
               { "torch", true, JOB_TORCH, 1 },
               { "fallback", false, JOB_FALLBACK, 3 } };

static const struct group *group_of(const char *backend)
{
    for (size_t i = 0; i < ARRAY_LEN(groups); i++)
        if (strcmp(backend, groups[i].name) == 0)
            return &groups[i];
    return NULL;
}

static bool is_elastic(enum job_theme theme)
{
    return theme == THEME_STORM || theme == THEME_STARVE || theme == THEME_PAUSE;
}

static void draw_group(struct job *j, const struct group *g, enum job_theme theme)
{
    struct job_settings *s = &j->set;

    /* Rounds change often, with faults and without. There are no spares beside
     * torchrun, whose nodes begin a full round again and again for one that waits. */
    if (is_elastic(theme)) {
        s->nodes = (size_t)os_random(1, 7);
        s->max_nodes = g->other != JOB_TORCH && os_chance(4)
                           ? (int64_t)os_random(1, s->nodes + 1)
                           : (int64_t)s->nodes;
        s->min_nodes = (int64_t)os_random(1, (uint64_t)s->max_nodes + 1);
        s->host = (size_t)os_random(0, s->nodes);
    }
    j->nodes = os_alloc(s->nodes * sizeof *j->nodes);
    for (size_t i = 0; i < s->nodes; i++) {
        const bool other = os_chance(g->one_in);

        if (other && (i != s->host || s->store_apart || g->other != JOB_TORCH))
            j->nodes[i].kind = g->other;
        s->mixed |= j->nodes[i].kind != JOB_OURS;
        j->torchruns += j->nodes[i].kind == JOB_TORCH;
    }
    /* torchrun remembers the address of the workers' store. When members come and go,
     * only nodes whose workers serve it can go on. */
    s->share = !j->torchruns || (!is_elastic(theme) && os_chance(2));
    s->spare_torch = theme == THEME_RESET || theme == THEME_FAIL;
}

static void draw_settings(struct job *j, const char *backend, enum job_theme theme)
{
    struct job_settings *s = &j->set;

    const struct group *g = group_of(backend);

    s->plain = s->store_apart = strcmp(backend, "plain") == 0 || (g && g->plain);
    (void)snprintf(s->backend, sizeof s->backend, "%s",
                   s->plain || g ? "c10d" : backend);
    s->share = true;
    s->nodes = (size_t)os_random(1, 5);
    s->max_nodes = (int64_t)s->nodes;
    s->min_nodes = s->max_nodes;
    if (strcmp(backend, "static") != 0 && is_elastic(theme) && os_chance(2))
        s->min_nodes = (int64_t)os_random(1, s->nodes + 1);
    s->nproc = (int64_t)os_random(1, 3);
    s->max_restarts = (int64_t)os_random(0, 4);
    s->host = strcmp(backend, "static") == 0 ? 0 : (size_t)os_random(0, s->nodes);
    s->work_us = os_random(OS_SECOND, 20 * OS_SECOND);
    s->grace_ms =
        theme == THEME_RESET || theme == THEME_FAIL || os_chance(2) ? 1000 : 0;
    s->join_s = os_random(60, 120); /* longer than workers may take to end */
    s->last_call_s = os_random(1, 5);
    s->manners = (enum job_manners)os_random(0, 3);
    /* Only its workers tell a node of a static group that another one is gone. */
    s->workers_fail_with_peers = strcmp(backend, "static") == 0 || os_chance(3);
    s->import_us = os_random(0, 2 * OS_SECOND);
    if (g)
        draw_group(j, g, theme);
    else
        j->nodes = os_alloc(s->nodes * sizeof *j->nodes);
}

static void draw_world(struct job *j)
{
    char name[32];

    os.delay_us = os_random(20, os_chance(4) ? 50 * OS_MS : 500);
    os.jitter_us = os_random(0, 2 * os.delay_us);
    os.send_room = os_chance(4) ? os_random(200, 4000) : 1 << 20;
    os.any_cut = os_chance(2);
    for (size_t i = 0; i < j->set.nodes; i++) {
        struct job_node *n = &j->nodes[i];

        (void)snprintf(name, sizeof name, "n%zu", i);
        n->job = j;
        n->index = i;
        n->machine = os_machine_add(name);
        n->machine->wall_us = (int64_t)os_random(0, 4 * OS_SECOND);
        n->starts_due++;
        os_at(os_random(0, os_chance(4) ? 10 * OS_SECOND : 300 * OS_MS), job_start_node,
              n, 1);
    }
}

static void draw_faults(struct job *j, enum job_theme theme)
{
    const uint64_t span = 12 * OS_SECOND + j->set.work_us;
    const size_t count = (size_t)os_random(1, 5);

    if (theme == THEME_CALM)
        return;
    /* From its start to its end an agent makes 350 to 1400 allocations. */
    if (theme == THEME_MEMORY || theme == THEME_STARVE)
        j->nodes[os_random(0, j->set.nodes)].fail_alloc =
            os_random(1, theme == THEME_MEMORY ? 1200 : 3000);
    if (theme == THEME_MEMORY)
        return;
    if (theme == THEME_CLUSTER) {
        j->cluster_alone = true;
        for (size_t i = 0; i < count; i++)
            os_at(os_random(0, span), on_fault, j, FAULT_ETCD);
        return;
    }
    j->only_resets = theme == THEME_RESET;
    j->only_failures = theme == THEME_FAIL;
    j->only_pauses = theme == THEME_PAUSE;
    if (os_chance(2)) {
        j->moments = (unsigned)count;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint64_t t =
            os_chance(2) ? os_random(0, 2 * OS_SECOND) : os_random(0, span);

        os_at(t, on_fault, j, any_fault(j));
        calm_from(t);
    }
}

/* ---- playing it ---- */

static bool all_ended(const struct job *j)
{
    for (size_t i = 0; i < j->set.nodes; i++)
        if (j->nodes[i].starts_due || (j->nodes[i].agent && !j->nodes[i].ended))
            return false;
    return true;
}

/* When every node must have ended: after all waits that the manual limits, one after
 * the other: to join, for the ranks, at the exit barrier. */
static uint64_t limit_of(const struct job *j)
{
    return MAX_OF(j->last_fault_t, 10 * OS_SECOND) +
           (3 * j->set.join_s + 300 + 300 + 60) * OS_SECOND + 4 * j->set.work_us;
}

/* ---- a job by hand: script.c, crowd.c ---- */

void job_begin(uint64_t seed, bool loud, size_t room)
{
    os_begin(seed, loud);
    os.send_room = 1 << 20;
    cluster.count = 0;
    the_job = &only;
    only = (struct job){ .done_t = OS_NEVER };
    only.set = (struct job_settings){ .backend = "c10d",
                                      .min_nodes = 1,
                                      .max_nodes = 1,
                                      .nproc = 1,
                                      .max_restarts = 3,
                                      .work_us = OS_NEVER / 4,
                                      .join_s = 600,
                                      .last_call_s = 30,
                                      .share = true };
    only.nodes = os_alloc(room * sizeof *only.nodes);
    job_check_begin();
}

void job_end(void)
{
    os_end();
}

struct job_node *job_add_node(enum job_kind kind, const char *name)
{
    struct job_node *n = &only.nodes[only.set.nodes];

    *n = (struct job_node){ .job = &only, .index = only.set.nodes++, .kind = kind };
    n->machine = os_machine_add(name);
    only.torchruns += kind == JOB_TORCH;
    return n;
}

void job_start_store(void *arg, uint64_t n)
{
    only.epoch++;
    if (!only.store_machine)
        only.store_machine = os_machine_add(STORE_NAME);
    only.store = os_process_start(only.store_machine, STORE_NAME, store_main, NULL);
}

void job_stop_store(void)
{
    if (only.store)
        os_signal(only.store, SIGKILL);
}

void job_fail_worker(const struct job_node *n)
{
    for (struct os_process *p = os.processes; p; p = p->next)
        if (p->main == job_worker_main && p->state != OS_ENDED &&
            p->machine == n->machine) {
            os_signal(p, SIGSEGV);
            return;
        }
}

/* ---- a job by chance ---- */

bool job_play(uint64_t seed, const char *backend, const char *faults, bool loud)
{
    enum job_theme theme = THEME_STORM;

    job_begin(seed, loud, 0);
    if (strcmp(faults, "any") == 0)
        theme = (enum job_theme)os_random(0, ARRAY_LEN(theme_names));
    for (size_t i = 0; i < ARRAY_LEN(theme_names); i++)
        if (strcmp(faults, theme_names[i]) == 0)
            theme = (enum job_theme)i;
    draw_settings(&only, backend, theme);
    draw_world(&only);
    os.slow_names = theme != THEME_RESET && theme != THEME_FAIL;
    if (only.set.store_apart)
        job_start_store(NULL, 0);
    if (strncmp(backend, "etcd", 4) == 0) {
        only.etcd_members = os_chance(2) ? 3 : 1;
        job_etcd_start(&only, backend);
    }
    draw_faults(&only, theme);
    os_log("job",
           "%s, %s: %zu nodes of %" PRId64 ":%" PRId64 ", %" PRId64
           " workers each, %" PRId64 " restarts, work %.1f s, grace %" PRIu64,
           backend, theme_names[theme], only.set.nodes, only.set.min_nodes,
           only.set.max_nodes, only.set.nproc, only.set.max_restarts,
           (double)only.set.work_us / 1e6, only.set.grace_ms);
    while (!os.fail[0] && !all_ended(&only) && os.heap_count) {
        if (os.heap[0].t > limit_of(&only)) {
            for (size_t i = 0; i < only.set.nodes; i++)
                if (!only.nodes[i].ended && !only.nodes[i].given_up)
                    os_fail("%s has not ended", only.nodes[i].machine->name);
            break;
        }
        (void)os_run(os.heap[0].t);
    }
    if (!os.fail[0] && !all_ended(&only))
        os_fail("no event is left, but not all nodes have ended");
    if (!os.fail[0])
        job_check_end(&only, theme);
    job_end();
    return !os.fail[0];
}
