/* agent.c - see agent.h. Callbacks post events, agent_pump() feeds them to the core,
 * agent_perform() is the only switch over its effects. What a run opens and closes, and
 * its result, is at the end of this file. */
#include "agent/agent.h"
#include "agent/agent_int.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "launch/mpi.h"
#include "launch/script.h"
#include "loop/clock.h"
#include "rendezvous/local_identity.h"
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* --- events in -------------------------------------------------------------------- */

static struct now now_of(struct agent *a)
{
    struct timespec ts;

    uv_update_time(&a->loop);
    clock_gettime(CLOCK_REALTIME, &ts);
    return (struct now){ uv_now(&a->loop), ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 };
}

/* Reserves memory for the longest queue and for all effects of one step, so that no
 * event is lost later for lack of it. Each worker posts at most two events at once, and
 * all are fed before the loop goes on. */
static int reserve_events(struct agent *a, struct muster_error *err)
{
    const size_t nproc = (size_t)a->config->nproc;

    a->queue_size = 64 + 2 * nproc;
    a->queue = mem_calloc(a->queue_size, sizeof *a->queue);
    if (!a->queue || agent_core_fx_reserve(&a->core, &a->fx) < 0 ||
        agent_core_fx_reserve(&a->core, &a->spare_fx) < 0)
        return err_nomem(err);
    return 0;
}

static void step(struct agent *a, struct agent_core_event ev)
{
    ev.now = now_of(a);
    assert(a->fx.count == 0);
    const int rc = agent_core_step(&a->core, &ev, &a->fx);

    assert(rc == 0); /* reserve_events has made room. */
    (void)rc;
}

void agent_post(struct agent *a, enum agent_core_event_kind kind, int64_t worker,
                int code)
{
    const struct agent_core_event ev = { .kind = kind, .worker = worker, .code = code };

    assert(a->queued < a->queue_size);
    a->queue[(a->queue_head + a->queued++) % a->queue_size] = ev;
}

void agent_fail(struct agent *a, const struct muster_error *why)
{
    if (a->fatal.code == 0)
        a->fatal = *why;
    agent_post(a, AGENT_EV_FATAL, 0, 0);
}

/* --- the rendezvous --------------------------------------------------------------- */

/* Tells how long the phase took, and begins the next. */
static void record_phase(struct agent *a, const char *state)
{
    const uint64_t now = uv_hrtime();

    if (state)
        agent_event(a, state, (double)(now - a->phase_began_ns) / 1e6, NULL);
    a->phase_began_ns = now;
}

static void on_joined(void *ctx, int status, const struct rdzv_round *round,
                      const struct muster_error *err)
{
    struct agent *a = ctx;

    if (status == 0) {
        a->round = *round;
        agent_job_joined(a);
    }
    agent_wait_end(a, status == 0);
    if (status == MUSTER_ECANCELED)
        return;
    if (status == 0) {
        record_phase(a, "RENDEZVOUS");
        agent_post(a, AGENT_EV_JOINED, 0, 0);
    } else {
        agent_fail(a, err);
    }
    agent_pump(a);
}

/* A node that is cut off from the majority of etcd's cluster cannot form a world, so it
 * may wait for the majority. Any other store that is gone takes the job with it. */
static bool waits_for_majority(const struct agent *a)
{
    return strcmp(a->config->rdzv.backend, "etcd-v3") == 0 && !a->run_closed &&
           a->core.why != WHY_SUCCESS;
}

void agent_on_news(void *ctx, enum rdzv_news news, const struct muster_error *err)
{
    struct agent *a = ctx;

    switch (news) {
    case RDZV_NEWS_WAITING:
        agent_post(a, AGENT_EV_CHANGED, 0, 0);
        break;
    case RDZV_NEWS_LOST:
        agent_post(a, AGENT_EV_LOST, 0, 0);
        break;
    case RDZV_NEWS_MOVED_ON:
        agent_post(a, AGENT_EV_MOVED_ON, 0, 0);
        break;
    case RDZV_NEWS_DESERTED:
        agent_post(a, AGENT_EV_DESERTED, 0, 0);
        break;
    case RDZV_NEWS_EVICTED:
        note(a->opts.log, NOTE_WARN, AT_AGENT,
             "%s: the workers of this node are ended, and it joins again", err->text);
        agent_post(a, AGENT_EV_EVICTED, 0, 0);
        break;
    case RDZV_NEWS_CUT_OFF:
    case RDZV_NEWS_BACKEND:
        if (waits_for_majority(a)) {
            if (a->core.phase != AGENT_JOINING)
                note(
                    a->opts.log, NOTE_WARN, AT_AGENT,
                    "%s\nThis node is cut off from etcd's majority, and the others may "
                    "go on without it: its workers are ended, and it waits to be "
                    "taken back.",
                    err->text);
            agent_post(a, AGENT_EV_CUT_OFF, 0, 1);
            break;
        }
        if (a->fatal.code == 0)
            a->fatal = *err;
        a->job.cut_off = !a->run_closed;
        agent_post(a, a->run_closed ? AGENT_EV_FATAL : AGENT_EV_CUT_OFF, 0, 0);
        break;
    case RDZV_NEWS_CLOSED: /* As with torchrun, the workers run to their own end. */
        agent_on_run_closed(a);
        break;
    }
    agent_pump(a);
}

static void on_left(void *ctx, int status, const struct muster_error *err)
{
    struct agent *a = ctx;

    /* As since torch 2.14, this never hides the result. Most often
     * another node has left before us, which is fine. */
    if (status < 0)
        note(a->opts.log, NOTE_INFO, AT_AGENT,
             "Error shutting down rendezvous handler: %s",
             err ? err->text : muster_code_text(status));
    agent_post(a, AGENT_EV_LEFT, 0, 0);
    agent_pump(a);
}

static void on_place_returned(void *ctx, int status, const struct muster_error *err)
{
    struct agent *a = ctx;

    (void)status;
    (void)err;
    a->handler->ops->shutdown(a->handler, false, on_left, a);
}

static void leave(struct agent *a)
{
    agent_end_talk(a);
    if (a->job.closes)
        a->handler->ops->shutdown(a->handler, true, on_left, a);
    else
        a->handler->ops->leave(a->handler, on_place_returned, a);
}

static void on_drained(void *ctx)
{
    agent_post(ctx, AGENT_EV_DRAINED, 0, 0);
    agent_pump(ctx);
}

/* --- effects out ------------------------------------------------------------------ */

static void agent_on_timer(uv_timer_t *timer);
static void agent_end(struct agent *a, const struct agent_core_fx *fx);
static void agent_find_name(struct agent *a);

static void agent_perform(struct agent *a, const struct agent_core_fx *fx)
{
    agent_measure(a, fx);
    switch (fx->kind) {
    case AGENT_FX_JOIN:
        agent_phase(a, PHASE_RENDEZVOUS);
        agent_end_talk(a);
        agent_forget_workers(a);
        record_phase(a, NULL);
        agent_wait_begin(a, WAITING_FOR_ROUND, MONO_NEVER);
        a->handler->ops->next(a->handler, on_joined, a);
        break;
    case AGENT_FX_CANCEL_JOIN:
        agent_wait_end(a, false);
        a->handler->ops->cancel(a->handler);
        break;
    case AGENT_FX_ASSIGN:
        agent_phase(a, PHASE_RANKS);
        agent_assign(a);
        break;
    case AGENT_FX_START:
        record_phase(a, "ASSIGN_WORKER_RANKS");
        agent_phase(a, PHASE_START);
        a->assigned = true;
        agent_log_round(a);
        agent_net_choose(a);
        a->attempt = fx->attempt;
        agent_start_workers(a, fx->attempt);
        break;
    case AGENT_FX_SIGNAL:
        agent_phase(a, PHASE_STOP);
        if (a->core.why == WHY_MEMBERSHIP)
            agent_job_moved(a);
        agent_log(a, fx);
        a->workers[fx->worker].signalled_us = clock_now().wall_us;
        guard_signal(a->guard, (uint32_t)fx->worker, fx->sig);
        break;
    case AGENT_FX_LEFTOVERS:
        guard_signal_leftovers(a->guard, fx->sig);
        break;
    case AGENT_FX_KILL_ALL:
        agent_log(a, fx);
        if (!fx->code || !agent_stacks_before(a, "do not end", agent_kill_workers, a))
            agent_kill_workers(a);
        break;
    case AGENT_FX_DRAIN:
        agent_stopping_over(a);
        agent_phase(a, PHASE_OUTPUT);
        agent_phases_over(a);
        agent_watch_off(a);
        logs_drain(a->logs, on_drained, a);
        break;
    case AGENT_FX_JUDGE:
        agent_phase(a, PHASE_JUDGE);
        agent_job_report(a);
        if (a->run_closed) /* The node that closed it may be gone by now. */
            agent_post(a, AGENT_EV_VERDICT, 0, 0);
        break;
    case AGENT_FX_BARRIER:
        record_phase(a, NULL);
        agent_barrier(a);
        break;
    case AGENT_FX_LEAVE:
        agent_wait_end(a, false);
        a->job.closes = fx->close;
        agent_job_leave(a, leave);
        break;
    case AGENT_FX_FINISH:
        agent_end(a, fx);
        break;
    case AGENT_FX_LOG_SIGNAL:
        agent_log(a, fx);
        agent_show_stopping(a);
        break;
    case AGENT_FX_LOG_WAITING:
    case AGENT_FX_LOG_KILL:
    case AGENT_FX_LOG_ABANDONED:
    case AGENT_FX_LOG_FAILED:
        if (fx->final)
            agent_find_name(a);
        agent_log(a, fx);
        break;
    case AGENT_FX_LOG_SUCCEEDED:
        agent_job_report(a);
        agent_log(a, fx);
        break;
    case AGENT_FX_LOG_TERMINATED:
    case AGENT_FX_LOG_BARRIER:
    case AGENT_FX_LOG_NO_BARRIER:
        agent_log(a, fx);
        break;
    }
}

static void arm(struct agent *a)
{
    if (a->core.phase != AGENT_DONE)
        clock_arm(&a->timer, agent_on_timer, agent_core_deadline(&a->core));
}

void agent_pump(struct agent *a)
{
    if (a->pumping)
        return; /* Called from within agent_perform: the loop below goes on. */
    a->pumping = true;
    while (a->queued > 0 || a->fx.count > 0) {
        struct agent_core_fx_list fx = a->fx;
        a->fx = a->spare_fx; /* Nothing is freed: see reserve_events. */
        for (size_t i = 0; i < fx.count; i++)
            agent_perform(a, &fx.items[i]);
        fx.count = 0;
        a->spare_fx = fx;
        if (a->queued == 0)
            continue;
        const struct agent_core_event ev = a->queue[a->queue_head];
        a->queue_head = (a->queue_head + 1) % a->queue_size;
        a->queued--;
        step(a, ev);
    }
    a->pumping = false;
    arm(a);
    agent_status_changed(a);
}

static void agent_on_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    agent_post(a, AGENT_EV_TIMEOUT, 0, 0);
    agent_pump(a);
}

/* --- the result ------------------------------------------------------------------- */

static void agent_end(struct agent *a, const struct agent_core_fx *fx)
{
    struct agent_core_result *r = a->result;

    a->last = *fx;
    if (a->naming)
        return; /* again once it is known */

    r->exit_code = fx->code;
    r->why = fx->why;
    r->signal = a->core.signal;
    if (fx->why == WHY_FATAL)
        r->error = a->fatal;
    if (fx->why == WHY_FATAL && a->fatal.code == MUSTER_EGRACEFUL)
        r->exit_code = 0; /* A spare that was never needed has succeeded. */
    if (fx->why == WHY_SUCCESS)
        agent_take_answers(a);
    agent_job_conclude(a, fx->why);
    a->result->report = fx->why == WHY_FAILURE ? agent_report(a) : NULL;
    a->result->verdict = agent_verdict(a, fx->why);
    if (a->opts.story)
        agent_job_story(a);
    agent_write_report(a);
    agent_notify_parent(a, fx->why);
    agent_events_end(a, fx->why);
    agent_measure_end(a, fx->why);
    uv_stop(&a->loop);
}

void agent_begin(struct agent *a)
{
    if (a->naming || a->serve_starts || a->core.phase != AGENT_NEW)
        return;
    agent_post(a, AGENT_EV_BEGIN, 0, 0);
    agent_pump(a);
}

/* The report names this machine as Python does, which may take the resolver a while. It
 * is asked when the first failure is seen, and the end waits for it, but not for long.
 */
static void on_named(void *ctx, void *data)
{
    struct agent *a = ctx;
    const struct rdzv_fqdn *f = data;

    a->naming = NULL;
    if (f)
        snprintf(a->host, sizeof a->host, "%s", f->name);
    if (a->core.phase == AGENT_DONE) {
        agent_end(a, &a->last);
    } else {
        agent_begin(a); /* Events name the host from the start. */
    }
}

/* This machine's name, for reports. */
static void agent_find_name(struct agent *a)
{
    struct rdzv_fqdn own, *f;

    if (rdzv_fqdn_quick(&own)) {
        snprintf(a->host, sizeof a->host, "%s", own.name);
        return;
    }
    f = mem_calloc(1, sizeof *f);
    if (!f || a->naming ||
        blocking_call_run(&a->loop, rdzv_fqdn_resolve, f, RDZV_NAME_MS, on_named, a,
                          &a->naming, NULL) != 0)
        mem_free(f);
}

void agent_core_result_fini(struct agent_core_result *r)
{
    for (size_t i = 0; i < r->answer_count; i++)
        mem_free(r->answers[i].bytes);
    mem_free(r->answers);
    mem_free(r->report);
    mem_free(r->verdict);
    mem_free(r->story);
    mem_free(r->failure);
    *r = (struct agent_core_result){ 0 };
}

/* --- open and close --------------------------------------------------------------- */

/* Like torchrun's, the rendezvous follows TORCH_LOGS below warnings. */
static void on_trace(void *ctx, enum trace_level level, const char *text)
{
    static const enum note_level levels[] = {
        [TRACE_DEBUG] = NOTE_DEBUG, [TRACE_INFO] = NOTE_INFO,
        [TRACE_WARN] = NOTE_WARN,   [TRACE_ADVICE] = NOTE_WARN,
        [TRACE_ECHO] = NOTE_WARN,   [TRACE_ERROR] = NOTE_ERROR,
    };
    const struct agent *a = ctx;

    note(a->opts.log, levels[level],
         level == TRACE_ADVICE ? AT_ADVICE
         : level == TRACE_ECHO ? AT_ECHO
                               : AT_RENDEZVOUS,
         "%s", text);
}

static int open_all(struct agent *a, struct muster_error *err)
{
    const struct launch_config *c = a->config;
    const struct agent_core_settings set = {
        .nproc = c->nproc,
        .max_restarts = c->max_restarts,
        .shutdown_ms = ms_of_seconds(c->shutdown_timeout_s),
        .restart_ms = c->restart_grace_ms,
    };
    int rc = agent_core_init(&a->core, &set, err);

    if (rc == 0)
        rc = agent_status_check(a, err);

    if (rc == 0)
        rc = agent_net_open(a, err);
    if (rc == 0)
        rc = reserve_events(a, err);
    a->events.fd = a->metrics.fd = -1;
    a->trace = (struct trace){ on_trace, a, TRACE_DEBUG };
    if (rc == 0)
        rc = agent_events_open(a, err);
    if (rc == 0)
        rc = agent_metrics_open(a, err);

    a->workers = mem_calloc((size_t)c->nproc, sizeof *a->workers);
    if (rc == 0 && !a->workers)
        rc = err_nomem(err);
    if (rc == 0)
        rc = guard_watch(a->guard, &a->loop, &agent_guard_events, a, err);
    if (rc == 0 && c->warm) { /* It imports while the nodes find each other. */
        const struct warm_opts warm = { &a->loop, a->guard, c, a->opts.envp,
                                        a->opts.log };
        rc = warm_open(&warm, &a->warm, err);
    }
    if (rc == 0)
        rc = logs_open(&a->loop, c, a->opts.log, a->opts.envp, &a->logs, err);
    if (rc == 0 && logs_temp(a->logs))
        guard_tidy(a->guard, logs_temp(a->logs));
    if (rc == 0 && c->rdzv_serve)
        rc = agent_serve_open(a, err);
    const struct rdzv_params *rdzv = a->serve ? &a->serve_params : &c->rdzv;

    if (rc == 0 && a->opts.registry)
        rc = registry_create(a->opts.registry, &a->loop, rdzv, &a->trace, &a->handler,
                             err);
    else if (rc == 0)
        rc = rdzv_handler_create(&a->loop, rdzv, &a->trace, &a->handler, err);
    if (rc == 0)
        rc = agent_job_open(a, err);
    if (rc == 0)
        a->handler->ops->on_news(a->handler, agent_on_news, a);
    return rc;
}

static void on_gone(void *ctx)
{
    struct agent *a = ctx;
    a->handler = NULL;
}

static void close_all(struct agent *a)
{
    agent_wait_end(a, false);
    warm_close(a->warm);
    start_watch_close(&a->start_watch);
    agent_end_talk(a);
    agent_serve_close(a);
    guard_dismiss(a->guard); /* The guard ends while we clean up. */
    agent_hang_close(a);
    agent_stacks_close(a);
    agent_status_close(a);
    agent_signals_off(a);
    agent_forget_workers(a);
    blocking_call_cancel(a->naming);
    agent_net_close(a);
    agent_watch_off(a);
    agent_job_close(a);
    record_sink_close(&a->events);
    record_sink_close(&a->metrics);
    uv_close((uv_handle_t *)&a->timer, NULL);
    uv_close((uv_handle_t *)&a->before_sleep, NULL);
    uv_close((uv_handle_t *)&a->wait.timer, NULL);
    uv_close((uv_handle_t *)&a->stuck_timer, NULL);
    uv_close((uv_handle_t *)&a->starting.idle, NULL);
    if (a->handler)
        a->handler->ops->destroy(a->handler, on_gone, a);
    logs_close(a->logs, a->result->why == WHY_SUCCESS);
    guard_stop(a->guard, NULL, NULL);
    uv_run(&a->loop, UV_RUN_DEFAULT);
    const int rc = uv_loop_close(&a->loop);
    if (rc != 0)
        note(a->opts.log, NOTE_DEBUG, AT_AGENT, "the loop ended with open handles");
    agent_status_free(a);
    agent_forget_failures(a);
    mem_free(a->timer_file);
    mem_free(a->workers);
    agent_core_fini(&a->core);
    agent_core_fx_fini(&a->fx);
    agent_core_fx_fini(&a->spare_fx);
    mem_free(a->queue);
}

/* If this process is stopped, its signs of life stop, too, and the other nodes begin
 * without it; then the guard must end the workers. So whenever a sign of life has been
 * answered, the guard is told until when they may run. Nobody is woken up for that: it
 * happens when the loop is about to sleep again after whatever brought the answer. */
static void agent_on_sleep(uv_prepare_t *prepare)
{
    struct agent *a = prepare->data;
    const uint64_t due =
        a->handler ? a->handler->ops->fence_due(a->handler) : MONO_NEVER;

    if (due == a->fence_told_ms)
        return;
    const uint64_t now = clock_mono_ms();
    a->fence_told_ms = due;
    guard_fence(a->guard, due == MONO_NEVER ? UINT64_MAX : due > now ? due - now : 0);
}

static void fence_open(struct agent *a)
{
    (void)uv_prepare_init(&a->loop, &a->before_sleep);
    uv_unref((uv_handle_t *)&a->before_sleep);
    a->before_sleep.data = a;
    a->fence_told_ms = MONO_NEVER;
    if (a->config->rdzv.max_nodes > 1 && a->handler && a->handler->ops->fence_due)
        (void)uv_prepare_start(&a->before_sleep, agent_on_sleep);
}

/* --- run -------------------------------------------------------------------------- */

/* If we were started without one of these three, a socket of ours must not take its
 * number. */
static void fill_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return;
}

#define DESCRIPTORS_LEAST 32

/* libuv aborts the process if it gets no descriptors for its pipes, so they are counted
 * before anything starts. Those of the workers are not among them: a lack of these is
 * an error of its own. */
static int check_descriptors(struct muster_error *err)
{
    int fds[DESCRIPTORS_LEAST];
    size_t count = 0;
    struct rlimit limit = { 0 };
    bool enough = false;

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    while (!enough && (fds[count] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) >= 0) {
        count++;
        /* The numbers above the lowest free one are mostly free, too. */
        enough = count == ARRAY_LEN(fds) || (rlim_t)fds[0] + 256 < limit.rlim_cur;
    }
    while (count > 0)
        close(fds[--count]);
    if (enough)
        return 0;
    return err_set(err, MUSTER_EIO,
                   "too few descriptors for open files: %d are needed beside those in "
                   "use, and the limit is %llu\n"
                   "Raise it: ulimit -n 1024.",
                   DESCRIPTORS_LEAST, (unsigned long long)limit.rlim_cur);
}

/* MPI takes its ranks from mpirun or srun: under us each worker would be rank 0 of a
 * world of its own, and the job would seem to succeed. */
static void warn_of_mpi(const struct agent *a)
{
    const struct launch_config *c = a->config;
    char library[64], clean[256];

    if (c->entry != ENTRY_EXEC || (c->nproc < 2 && c->rdzv.max_nodes < 2) ||
        !mpi_library(c->script, env_get(a->opts.envp, "PATH"), library, sizeof library))
        return;
    note(a->opts.log, NOTE_WARN, AT_LAUNCH,
         "%s is linked to %s, and muster does not give MPI its ranks: each worker will "
         "be rank 0 of 1 in MPI_COMM_WORLD\nStart it with mpirun or srun; or let it "
         "take RANK and WORLD_SIZE from the environment.",
         c->script, escape_text(clean, sizeof clean, span_str(library)));
}

/* A stack frame of its own, made after the guard was forked: otherwise each page that
 * we write to would be copied. */
__attribute__((noinline)) static int run_guarded(const struct agent_core_opts *opts,
                                                 struct guard *guard,
                                                 struct agent_core_result *out,
                                                 struct muster_error *err)
{
    struct agent a = {
        .opts = *opts, .config = opts->config, .guard = guard, .result = out
    };
    int rc = uv_loop_init(&a.loop);

    if (rc != 0) {
        guard_stop(guard, NULL, NULL);
        return err_set(err, MUSTER_EIO,
                       "no event loop for the agent: %s\n"
                       "It needs epoll and eventfd, and descriptors for them.",
                       uv_strerror(rc));
    }
    agent_signals_quiet();
    uv_timer_init(&a.loop, &a.timer);
    uv_timer_init(&a.loop, &a.wait.timer);
    uv_timer_init(&a.loop, &a.stuck_timer);
    defer_init(&a.starting, &a.loop, agent_start_more, &a);
    start_watch_init(&a.start_watch, &a.loop, a.opts.log);
    a.timer.data = a.wait.timer.data = a.stuck_timer.data = &a;
    rdzv_hostname(a.host, sizeof a.host);
    rc = open_all(&a, err);
    fence_open(&a);
    if (rc == 0)
        rc = script_check(a.config, err);
    if (rc == 0) {
        agent_reap_orphans(&a);
        agent_signals_open(&a);
        warn_of_mpi(&a);
        a.began_ms = uv_now(&a.loop);
        a.began_us = clock_now().wall_us;
        agent_status_open(&a);
        agent_stacks_open(&a);
        agent_hang_open(&a);
        agent_log_config(&a);
        if (a.events.fd >= 0)
            agent_find_name(&a);
        agent_begin(&a);
        agent_pump(&a);
        uv_run(&a.loop, UV_RUN_DEFAULT);
    }
    close_all(&a);
    agent_signals_unquiet();
    return rc;
}

static void adopt(const struct agent_core_opts *opts, struct guard *guard)
{
    const int errnum = guard_adopt(guard);

    if (errnum)
        note(opts->log, NOTE_WARN, AT_AGENT,
             "prctl(PR_SET_CHILD_SUBREAPER) is denied here: %s\nProcesses that workers "
             "leave behind in sessions of their own stay when the job ends, and "
             "workers if "
             "their guard is killed.",
             strerror(errnum));
}

int agent_core_run(const struct agent_core_opts *opts, struct agent_core_result *out,
                   struct muster_error *err)
{
    struct guard *guard = NULL;

    *out = (struct agent_core_result){ 0 };
    if (opts->config->nproc < 1)
        return err_set(err, MUSTER_EINVAL,
                       "--nproc-per-node is %" PRId64 ": at least one worker must run",
                       opts->config->nproc);
    fill_standard_fds();
    int rc = check_descriptors(err);
    if (rc == 0)
        rc = guard_start(opts->fn, opts->fn_ctx, &guard, err);
    if (rc == 0 && opts->own_process)
        adopt(opts, guard);
    return rc == 0 ? run_guarded(opts, guard, out, err) : rc;
}
