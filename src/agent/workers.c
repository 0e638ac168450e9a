/* workers.c - glue between the core and process/guard.h: the workers of one attempt are
 * started, their ends become events, and what they held is forgotten. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "hang/hang.h"
#include "launch/core/options.h"
#include "launch/refusal.h"
#include "loop/clock.h"
#include "loop/defer.h"
#include "process/cgroup.h"
#include "process/numa.h"
#include "warm/start_watch.h"

#define START_LEAST 64 /* workers that are started in one turn of the loop, */
#define START_MS    10 /* and for how long more of them are */

struct agent_starting {
    struct defer more;        /* starts some more of them */
    int64_t next;             /* the first that is still to be started */
    int64_t unanswered;       /* asked for, and the guard has not said yet */
    uint64_t exits;           /* seen in this attempt */
    struct start_watch watch; /* nodes that do not know of --warm are told */
};

static void workers_start_more(void *agent);

int agent_workers_open(struct agent *a, struct muster_error *err)
{
    a->workers = mem_calloc((size_t)a->config->nproc, sizeof *a->workers);
    a->starting = mem_calloc(1, sizeof *a->starting);
    if (!a->workers || !a->starting) {
        mem_free(a->starting);
        a->starting = NULL;
        return err_nomem(err);
    }
    defer_init(&a->starting->more, &a->loop, workers_start_more, a);
    start_watch_init(&a->starting->watch, &a->loop, a->log);
    return 0;
}

void agent_workers_close(struct agent *a)
{
    if (!a->starting)
        return;
    agent_forget_workers(a);
    start_watch_close(&a->starting->watch);
    uv_close((uv_handle_t *)&a->starting->more.idle, NULL);
}

void agent_forget_workers(struct agent *a)
{
    start_watch_stop(&a->starting->watch);
    for (int64_t i = 0; i < a->config->nproc; i++) {
        struct agent_worker *w = &a->workers[i];
        worker_result_close(w);
        mem_free(w->error_file);
        *w = (struct agent_worker){ .result_fd = -1 };
    }
}

static struct worker_place worker_place_of(const struct agent *a, int64_t local_rank,
                                           int64_t attempt)
{
    const struct rank_range *r = &a->range;

    return (struct worker_place){
        .group_rank = a->round.rank,
        .group_world_size = a->round.world_size,
        .rank = r->base_rank + local_rank,
        .world_size = r->world_size,
        .local_rank = local_rank,
        .role_rank = r->base_role_rank + local_rank,
        .role_world_size = r->role_world_size,
        .master_addr = a->round.master_addr,
        .master_port = a->round.master_port,
        .served_addr = a->round.served_addr,
        .served_port = a->round.served_port,
        .restart_count = attempt,
        .use_agent_store = a->handler->ops->use_agent_store(a->handler),
        .error_file = "",
        .timer_file = agent_timer_file(a),
        .notice_file = agent_notice_file(a),
        .interface = agent_net_interface(a),
        .hostname = a->host,
    };
}

/* Has this agent come to a job that was running before? Its node was lost and is back,
 * or is one more; the others stand still until its workers are there, and those import
 * for themselves sooner than the warm interpreter is ready for them. Legacy etcd counts
 * from one, and goes on counting from one job to the next. */
static bool is_waited_for(const struct agent *a)
{
    return a->starts == 1 && agent_job_round(a) > 0 &&
           strcmp(a->config->rdzv.backend, "etcd") != 0;
}

static int start_one(struct agent *a, int64_t i, int64_t attempt,
                     struct muster_error *err)
{
    struct worker_place place = worker_place_of(a, i, attempt);
    struct text_list env = { 0 }, argv = { 0 };
    struct logs_worker files = { -1, -1, NULL };
    struct cpu_mask cpus = { 0 };
    int answer = -1;
    int rc = agent_framework_worker(a, i, &place, &answer, err);

    if (rc == 0)
        rc = logs_worker(a->logs, i, place.rank, &files, err);

    if (rc == 0) {
        a->workers[i].error_file = files.error_file;
        place.error_file = files.error_file;
        rc = worker_env(&env, a->config, &place, a->opts.envp, err);
    }

    if (rc == 0 && a->config->entry != ENTRY_FUNCTION)
        rc = worker_argv(&argv, a->config, &place, err);
    if (rc == 0 && a->config->numa != NUMA_NONE) {
        const struct devices_machine ports = devices_real(a->opts.envp);

        rc = numa_mask(&ports, a->config->numa, i, &cpus, err);
    }
    if (rc == 0 && answer < 0)
        rc = worker_result_open(a, i, &answer, err);
    if (rc == 0) {
        const struct proc_spec spec = {
            .argv = argv.items,
            .envp = env.items,
            .fd = { -1, files.out, files.err },
            .session = a->config->entry != ENTRY_RUN_PATH &&
                       a->config->entry != ENTRY_FUNCTION,
            .cpus = cpus.bits,
            .cpus_size = cpus.size,
        };
        const struct guard_service *from = warm_service(a->warm, !is_waited_for(a));

        rc = guard_spawn(a->guard, from, (uint32_t)i, &spec, answer, err);
        a->workers[i].asked_warm = rc == 0 && from;
        if (a->workers[i].asked_warm)
            warm_asked(a->warm);
    }
    if (answer >= 0)
        close(answer);
    if (files.out >= 0)
        close(files.out);
    if (files.err >= 0)
        close(files.err);
    text_list_fini(&env);
    text_list_fini(&argv);
    cpu_mask_fini(&cpus);
    return rc;
}

/* The others are not started: no answers will come for them. */
static void give_up_rest(struct agent *a)
{
    bool none = true;

    for (int64_t i = a->starting->next; i < a->config->nproc; i++) {
        a->workers[i].answered = true;
        a->starting->unanswered--;
        agent_post(a, AGENT_EV_EXIT, i, 127);
    }
    a->starting->next = a->config->nproc;
    for (int64_t i = 0; i < a->config->nproc; i++)
        none = none && (a->workers[i].pid == 0 || a->workers[i].exited);
    if (a->starting->unanswered == 0 &&
        none) /* Else the guard says so when they are gone. */
        agent_post(a, AGENT_EV_EMPTY, 0, 0);
}

/* Thousands of them take seconds, and meanwhile a signal must be heard, and heartbeats
 * sent: after a moment the loop has its turn. */
static void start_some(struct agent *a)
{
    const uint64_t until_ms = clock_mono_ms() + START_MS;
    struct muster_error err;
    int rc = 0;

    for (int64_t n = 0; a->starting->next < a->config->nproc && rc == 0; n++) {
        if (a->core.phase != AGENT_STARTING) {
            give_up_rest(a);
            return;
        }
        if (n >= START_LEAST && clock_mono_ms() >= until_ms) {
            defer_call(&a->starting->more);
            return;
        }
        rc = start_one(a, a->starting->next, a->attempt, &err);
        a->starting->next += rc == 0;
    }
    if (rc == 0)
        return;
    agent_fail(a, &err);
    give_up_rest(a);
}

static void workers_start_more(void *agent)
{
    start_some(agent);
    agent_pump(agent);
}

/* They are started in the order of local ranks, without waiting for each other. */
void agent_start_workers(struct agent *a, int64_t attempt)
{
    struct muster_error err;

    if (a->handler->ops->wipe_worker_store)
        a->handler->ops->wipe_worker_store(a->handler);
    a->started_ms = clock_mono_ms();
    a->started_us = clock_now().wall_us;
    a->starting->unanswered = a->config->nproc;
    a->starting->next = 0;
    a->starts++;
    a->refused = 0;
    a->starting->exits = 0;
    int rc = agent_signals_on(a, &err);
    if (rc == 0)
        rc = agent_watch_on(a, &err);
    if (rc == 0)
        rc = agent_framework_begin(a, attempt, &err);
    if (rc == 0)
        rc = logs_attempt(a->logs, attempt, &err);
    if (rc == 0) {
        start_some(a);
        a->oom_kills = cgroup_oom_kills(""); /* while they come up */
        return;
    }
    agent_fail(a, &err);
    give_up_rest(a);
}

/* --- what the guard tells --------------------------------------------------------- */

/* After a restart a line may say what the imports cost. */
static void watch_start(struct agent *a)
{
    const bool python =
        a->config->entry != ENTRY_EXEC && a->config->entry != ENTRY_FUNCTION;

    if (a->starts > 1 && python && !a->warm)
        start_watch_begin(&a->starting->watch, a->workers[0].pid);
}

static void workers_all_answered(struct agent *a)
{
    if (a->refused == 0) {
        for (int64_t i = 0; i < a->config->nproc; i++)
            if (a->workers[i].pid) /* It may have been given up before it began. */
                agent_worker_event(a, "START", i, NULL, NULL);
        agent_measure_started(a);
        agent_steps_started(a);
        if (a->hang)
            hang_begin(a->hang);
        watch_start(a);
        agent_post(a, AGENT_EV_STARTED, 0, 0);
        return;
    }
    struct muster_error err;
    const char *binary = worker_binary(a->config);
    struct buf why, all;

    buf_init(&why, 512);
    buf_init(&all, RECORD_TEXT_MAX);
    refusal_explain(&why, binary, env_get(a->opts.envp, "PATH"), a->refused);
    (void)buf_u8(&why, 0);
    const char *because = (const char *)buf_data(&why);
    const char *colon = because[0] ? ": " : "";
    err_set(&err, a->refused == ENOENT ? MUSTER_ENOENT : MUSTER_EACCES,
            "[Errno %d] %s: '%s'\nThe program of the workers could not be started on "
            "this node%s%s.",
            a->refused, strerror(a->refused), binary, colon, because);
    (void)buf_printf(&all, "%s: '%s'%s%s", strerror(a->refused), binary, colon,
                     because);
    agent_job_refused(a, buf_span(&all));
    buf_fini(&why);
    buf_fini(&all);
    agent_fail(a, &err);
}

static void warm_on_answer(struct agent *a, uint32_t id, bool forked)
{
    struct agent_worker *w = &a->workers[id];

    if (w->asked_warm)
        warm_answered(a->warm, forked);
    w->asked_warm = false;
    w->forked = forked;
}

static void workers_on_started(void *ctx, uint32_t id, pid_t pid, bool forked)
{
    struct agent *a = ctx;

    warm_on_answer(a, id, forked);
    a->workers[id].pid = pid;
    a->workers[id].answered = true;
    if (--a->starting->unanswered == 0)
        workers_all_answered(a);
    agent_pump(a);
}

static void workers_on_refused(void *ctx, uint32_t id, int errnum)
{
    struct agent *a = ctx;
    bool none = true;

    warm_on_answer(a, id, false);
    a->workers[id].answered = true;
    if (a->refused == 0)
        a->refused = errnum;
    agent_post(a, AGENT_EV_EXIT, id, 127);
    for (int64_t i = 0; i < a->config->nproc; i++)
        none = none && a->workers[i].pid == 0;
    if (--a->starting->unanswered == 0) {
        workers_all_answered(a);
        if (none)
            agent_post(a, AGENT_EV_EMPTY, 0, 0);
    }
    agent_pump(a);
}

static void workers_on_exited(void *ctx, uint32_t id, const struct guard_exit *how)
{
    struct agent *a = ctx;
    struct agent_worker *w = &a->workers[id];

    if (!w->answered)
        return; /* An old worker that was given up; its successor is being started. */
    w->exited = true;
    if (!w->exited_us) /* of MPI it may be known sooner */
        w->exited_us = how->wall_us;
    w->order = a->starting->exits++;
    w->dumped = WIFSIGNALED(how->status) && WCOREDUMP(how->status);
    w->peak_kb = how->peak_kb;
    w->code =
        WIFSIGNALED(how->status) ? -WTERMSIG(how->status) : WEXITSTATUS(how->status);
    w->left_early =
        w->code == 0 && !w->signalled_us && agent_framework_left_early(a, id);
    if (w->aborted || w->left_early)
        w->code = w->aborted ? w->aborted : 1;
    /* A result that is too long must fail before this counts as a success. */
    worker_result_read(a, id);
    if (w->code == 0)
        logs_worker_left(a->logs, id);
    agent_job_exited(a, id);
    agent_post(a, AGENT_EV_EXIT, id, w->code);
    agent_pump(a);
}

static void workers_on_leftovers(void *ctx)
{
    agent_post(ctx, AGENT_EV_LEFTOVERS, 0, 0);
    agent_pump(ctx);
}

static void workers_on_empty(void *ctx)
{
    agent_post(ctx, AGENT_EV_EMPTY, 0, 0);
    agent_pump(ctx);
}

static void workers_on_lost(void *ctx, int errnum)
{
    struct agent *a = ctx;
    struct muster_error err;

    if (errnum)
        guard_fork_error(&err, errnum);
    else
        err_set(&err, MUSTER_EIO,
                "the guard process was killed, and the workers with it\n"
                "Somebody sent SIGKILL to muster-guard, or the kernel was out of "
                "memory.");
    agent_fail(a, &err);
    for (int64_t i = 0; i < a->config->nproc; i++)
        agent_post(a, AGENT_EV_EXIT, i, -9);
    agent_post(a, AGENT_EV_EMPTY, 0, 0);
    agent_pump(a);
}

static void workers_on_fenced(void *ctx)
{
    struct agent *a = ctx;

    log_line(
        a->log, LOG_WARN, AT_AGENT,
        "this process was stopped for longer than a node may be silent, and the others "
        "may have gone on without it: the guard has ended its workers, and it joins "
        "again");
    agent_post(a, AGENT_EV_CUT_OFF, 0, 1);
    agent_pump(a);
}

const struct guard_events agent_guard_events = {
    .on_started = workers_on_started,
    .on_refused = workers_on_refused,
    .on_exited = workers_on_exited,
    .on_leftovers = workers_on_leftovers,
    .on_empty = workers_on_empty,
    .on_lost = workers_on_lost,
    .on_fenced = workers_on_fenced,
};
