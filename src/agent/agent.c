/* agent.c - see agent.h. Callbacks post events, agent_pump() feeds them to the core,
 * agent_perform() is the only switch over its effects. What a run opens and closes, and
 * its result, is at the end of this file.
 *
 * Who brings events: workers.c (the guard: started, exited, empty), job.c (the job's
 * coordinator), rank_exchange.c (ranks, the exit barrier), signals.c, worker_health.c,
 * hang.c, serve.c, and here the rendezvous and the clock. They post and then pump; a
 * post from within agent_perform() is fed when that effect is done, never in the middle
 * of it.
 *
 * How a run lives. The guard is forked first, while this process has neither loop nor
 * threads. Then all parts are opened (open_all), BEGIN is posted as soon as the
 * machine's name and the job's own etcd are there, if either is wanted, and the loop
 * runs until FINISH. close_all() closes in an order in which nobody calls what is gone:
 * what asks others first, the guard while we clean up, the handler and the logs last.
 *
 * What a loss does. The guard gone: all workers count as killed, and the run fails. The
 * store or the coordinator gone: see the core. This process stopped: the guard ends the
 * workers when the others would begin without them (agent_on_sleep). This process
 * killed: the guard sees its pipe closed and ends all that is below it. No memory: what
 * a step needs is reserved at the start, so no event is lost for lack of it; whatever
 * cannot open ends the run. */
#include "agent/agent.h"
#include "agent/agent_int.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "launch/mpi.h"
#include "launch/script.h"
#include "loop/blocking_call.h"
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

struct agent_driver {
    struct agent_core_event *queue; /* owned: a ring of events not yet fed */
    size_t queue_size, queued, queue_head;
    bool pumping;
    struct agent_core_fx_list fx, spare_fx; /* what a step led to; the other one */
    uv_timer_t timer;
    uv_prepare_t before_sleep;    /* tells the guard until when our workers may run */
    uint64_t fence_told_ms;       /* which time it was told; MONO_NEVER: none */
    struct blocking_call *naming; /* under way */
    struct agent_core_fx last;    /* how it ends */
    bool failure_told;            /* the result has the failure, and it was passed on */
};

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

    a->driver->queue_size = 64 + 2 * nproc;
    a->driver->queue = mem_calloc(a->driver->queue_size, sizeof *a->driver->queue);
    if (!a->driver->queue || agent_core_fx_reserve(&a->core, &a->driver->fx) < 0 ||
        agent_core_fx_reserve(&a->core, &a->driver->spare_fx) < 0)
        return err_nomem(err);
    return 0;
}

static void agent_feed(struct agent *a, struct agent_core_event ev)
{
    const bool restarts = a->core.phase == AGENT_JOINING ||
                          a->core.outcome == RESTARTS || ev.kind == AGENT_EV_RESTART;

    ev.now = now_of(a);
    assert(a->driver->fx.count == 0);
    const int rc = agent_core_step(&a->core, &ev, &a->driver->fx);

    assert(rc == 0); /* reserve_events has made room. */
    (void)rc;
    /* Before the workers are stopped, or when the node asks for another round by
     * itself. */
    if (a->core.why == WHY_MEMBERSHIP || (!restarts && a->core.phase == AGENT_JOINING))
        agent_job_moved(a);
}

void agent_post(struct agent *a, enum agent_core_event_kind kind, int64_t worker,
                int code)
{
    const struct agent_core_event ev = { .kind = kind, .worker = worker, .code = code };

    assert(a->driver->queued < a->driver->queue_size);
    a->driver
        ->queue[(a->driver->queue_head + a->driver->queued++) % a->driver->queue_size] =
        ev;
}

void agent_fail(struct agent *a, const struct muster_error *why)
{
    if (a->fatal.code == 0)
        a->fatal = *why;
    agent_post(a, AGENT_EV_FATAL, 0, 0);
}

/* --- the rendezvous --------------------------------------------------------------- */

static void agent_on_joined(void *ctx, int status, const struct rdzv_round *round,
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
        agent_event_lap(a, "RENDEZVOUS");
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
        agent_post(a, AGENT_EV_NODE_WAITS, 0, 0);
        break;
    case RDZV_NEWS_LOST:
        agent_post(a, AGENT_EV_NODE_LOST, 0, 0);
        break;
    case RDZV_NEWS_MOVED_ON:
        agent_post(a, AGENT_EV_NEXT_ROUND, 0, 0);
        break;
    case RDZV_NEWS_DESERTED:
        agent_post(a, AGENT_EV_BARRIER_SHORT, 0, 0);
        break;
    case RDZV_NEWS_EVICTED:
        log_line(a->log, LOG_WARN, AT_AGENT,
                 "%s: the workers of this node are ended, and it joins again",
                 err->text);
        agent_post(a, AGENT_EV_EVICTED, 0, 0);
        break;
    case RDZV_NEWS_CUT_OFF:
    case RDZV_NEWS_BACKEND:
        if (waits_for_majority(a)) {
            if (a->core.phase != AGENT_JOINING)
                log_line(
                    a->log, LOG_WARN, AT_AGENT,
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

static void agent_on_left(void *ctx, int status, const struct muster_error *err)
{
    struct agent *a = ctx;

    /* As since torch 2.14, this never hides the result. Most often
     * another node has left before us, which is fine. */
    if (status < 0)
        log_line(a->log, LOG_INFO, AT_AGENT,
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
    a->handler->ops->shutdown(a->handler, false, agent_on_left, a);
}

static void leave_rendezvous(struct agent *a)
{
    agent_end_dialogue(a);
    if (a->job.closes)
        a->handler->ops->shutdown(a->handler, true, agent_on_left, a);
    else
        a->handler->ops->leave(a->handler, on_place_returned, a);
}

static void agent_on_drained(void *ctx)
{
    if (agent_notice_busy(ctx, agent_on_drained))
        return;
    const int noticed = agent_notice_outcome(ctx);

    agent_post(ctx, AGENT_EV_DRAINED, 0, noticed ? noticed : agent_policy_outcome(ctx));
    agent_pump(ctx);
}

/* --- effects out ------------------------------------------------------------------ */

static void agent_on_timer(uv_timer_t *timer);
static void agent_end(struct agent *a, const struct agent_core_fx *fx);
static void agent_tell_verdict(struct agent *a);
static void agent_find_name(struct agent *a);

static void join_round(struct agent *a)
{
    agent_notice_over(a);
    agent_event_lap(a, NULL);
    agent_wait_begin(a, WAITING_FOR_ROUND, MONO_NEVER);
    a->handler->ops->next(a->handler, agent_on_joined, a);
}

static void agent_perform(struct agent *a, const struct agent_core_fx *fx)
{
    agent_measure(a, fx);
    switch (fx->kind) {
    case AGENT_FX_JOIN:
        agent_step(a, STEP_RENDEZVOUS);
        agent_end_dialogue(a);
        agent_forget_workers(a);
        if (!agent_policy_holds(a, join_round))
            join_round(a);
        break;
    case AGENT_FX_CANCEL_JOIN:
        if (agent_policy_cancel(a))
            break;
        agent_wait_end(a, false);
        a->handler->ops->cancel(a->handler);
        break;
    case AGENT_FX_ASSIGN:
        agent_step(a, STEP_RANKS);
        agent_assign(a);
        break;
    case AGENT_FX_START:
        agent_event_lap(a, "ASSIGN_WORKER_RANKS");
        agent_step(a, STEP_START);
        a->assigned = true;
        agent_log_round(a);
        agent_net_choose(a);
        a->attempt = fx->attempt;
        agent_start_workers(a, fx->attempt);
        break;
    case AGENT_FX_SIGNAL:
        agent_step(a, STEP_STOP);
        agent_log(a, fx);
        a->workers[fx->worker].signalled_us = clock_now().wall_us;
        if (a->core.notice_ms && fx->sig != SIGTERM)
            guard_pass_on(a->guard, (uint32_t)fx->worker, fx->sig);
        else
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
        agent_step(a, STEP_OUTPUT);
        agent_steps_over(a);
        agent_watch_off(a);
        if ((a->core.why == WHY_FAILURE || a->core.why == WHY_PEER) &&
            a->core.remaining > 0 && a->handler->ops->round_ends)
            a->handler->ops->round_ends(a->handler);
        logs_drain(a->logs, agent_on_drained, a);
        break;
    case AGENT_FX_JUDGE:
        agent_step(a, STEP_JUDGE);
        agent_job_report(a);
        if (a->run_closed) /* The node that closed it may be gone by now. */
            agent_post(a, AGENT_EV_VERDICT, 0, 0);
        break;
    case AGENT_FX_BARRIER:
        agent_event_lap(a, NULL);
        agent_barrier(a);
        break;
    case AGENT_FX_LEAVE:
        agent_wait_end(a, false);
        agent_tell_verdict(a);
        a->job.closes = fx->close;
        agent_job_leave(a, leave_rendezvous);
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

static void arm_timer(struct agent *a)
{
    if (a->core.phase != AGENT_DONE)
        clock_arm(&a->driver->timer, agent_on_timer, agent_core_deadline(&a->core));
}

void agent_pump(struct agent *a)
{
    if (a->driver->pumping)
        return; /* Called from within agent_perform: the loop below goes on. */
    a->driver->pumping = true;
    while (a->driver->queued > 0 || a->driver->fx.count > 0) {
        struct agent_core_fx_list fx = a->driver->fx;
        a->driver->fx = a->driver->spare_fx; /* Nothing is freed: see reserve_events. */
        for (size_t i = 0; i < fx.count; i++)
            agent_perform(a, &fx.items[i]);
        fx.count = 0;
        a->driver->spare_fx = fx;
        if (a->driver->queued == 0)
            continue;
        const struct agent_core_event ev = a->driver->queue[a->driver->queue_head];
        a->driver->queue_head = (a->driver->queue_head + 1) % a->driver->queue_size;
        a->driver->queued--;
        agent_feed(a, ev);
    }
    a->driver->pumping = false;
    arm_timer(a);
    agent_status_changed(a);
}

static void agent_on_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    agent_post(a, AGENT_EV_TIMEOUT, 0, 0);
    agent_pump(a);
}

/* --- the result ------------------------------------------------------------------- */

/* Once, when all that it needs is known. */
static void agent_tell_failure(struct agent *a, enum agent_core_why why)
{
    struct agent_result *r = a->result;

    if (a->driver->failure_told || a->driver->naming)
        return;
    a->driver->failure_told = true;
    agent_notify_parent(a, why); /* what it logs comes before the box, as torch's */
    r->failure_box = why == WHY_FAILURE ? agent_failure_box(a) : NULL;
    r->verdict = agent_verdict(a, why);
    if (why == WHY_FAILURE && a->opts.on_failure)
        a->opts.on_failure(a->opts.ctx, r->failure_box, r->verdict);
}

/* The run has judged, and this node is about to say goodbye. */
static void agent_tell_verdict(struct agent *a)
{
    struct record_entry v;

    if (a->core.phase == AGENT_LEAVING && a->core.why == WHY_FAILURE &&
        record_find(session_record(a->job.session), RECORD_VERDICT, -1, &v))
        agent_tell_failure(a, WHY_FAILURE);
}

static void agent_end(struct agent *a, const struct agent_core_fx *fx)
{
    struct agent_result *r = a->result;

    a->driver->last = *fx;
    if (a->driver->naming)
        return; /* again once it is known */

    r->exit_code = fx->code;
    r->why = fx->why;
    r->signal = a->core.signal;
    if (fx->why == WHY_FATAL)
        r->error = a->fatal;
    if (fx->why == WHY_FATAL && a->fatal.code == MUSTER_EGRACEFUL)
        r->exit_code = 0; /* A spare that was never needed has succeeded. */
    if (fx->why == WHY_SUCCESS)
        agent_collect_results(a);
    agent_job_conclude(a, fx->why);
    if (fx->why == WHY_FAILURE || fx->why == WHY_PEER)
        r->exit_code = agent_framework_code(a, r->exit_code);
    r->exit_code = agent_exit_code(a, fx->why, r->exit_code);
    if (a->opts.story)
        agent_job_story(a);
    agent_write_report(a);
    agent_tell_failure(a, fx->why);
    agent_events_end(a, fx->why);
    agent_measure_end(a, fx->why);
    uv_stop(&a->loop);
}

void agent_begin(struct agent *a)
{
    if (a->driver->naming || agent_serve_is_starting(a) || a->core.phase != AGENT_NEW)
        return;
    agent_post(a, AGENT_EV_BEGIN, 0, 0);
    agent_pump(a);
}

/* The report names this machine as Python does, which may take the resolver a while. It
 * is asked when the first failure is seen, and the end waits for it, but not for
 * long. */
static void on_named(void *ctx, void *data)
{
    struct agent *a = ctx;
    const struct rdzv_fqdn *f = data;

    a->driver->naming = NULL;
    if (f)
        snprintf(a->host, sizeof a->host, "%s", f->name);
    if (a->core.phase == AGENT_DONE) {
        agent_end(a, &a->driver->last);
    } else {
        agent_tell_verdict(a);
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
    if (!f || a->driver->naming ||
        blocking_call_run(&a->loop, rdzv_fqdn_resolve, f, RDZV_NAME_MS, on_named, a,
                          &a->driver->naming, NULL) != 0)
        mem_free(f);
}

void agent_result_fini(struct agent_result *r)
{
    for (size_t i = 0; i < r->result_count; i++)
        mem_free(r->results[i].bytes);
    mem_free(r->results);
    mem_free(r->failure_box);
    mem_free(r->verdict);
    mem_free(r->story);
    mem_free(r->failure);
    *r = (struct agent_result){ 0 };
}

/* --- open and close --------------------------------------------------------------- */

static int open_core(struct agent *a, struct muster_error *err)
{
    const struct launch_config *c = a->config;
    const struct agent_core_settings set = {
        .nproc = c->nproc,
        .max_restarts = c->max_restarts,
        .shutdown_ms = ms_of_seconds(c->shutdown_timeout_s),
        .restart_ms = c->restart_grace_ms,
    };
    const int rc = agent_core_init(&a->core, &set, err);

    return rc == 0 ? reserve_events(a, err) : rc;
}

static int open_guard(struct agent *a, struct muster_error *err)
{
    return guard_watch(a->guard, &a->loop, &agent_guard_events, a, err);
}

/* It imports while the nodes find each other. */
static int open_warm(struct agent *a, struct muster_error *err)
{
    const struct warm_opts warm = { &a->loop, a->guard, a->config, a->opts.envp,
                                    a->log };

    return a->config->warm ? warm_open(&warm, &a->warm, err) : 0;
}

static int open_logs(struct agent *a, struct muster_error *err)
{
    const struct launch_config *c = a->config;
    const struct logs_opts opts = {
        .loop = &a->loop,
        .log = a->log,
        .envp = a->opts.envp,
        .dir = c->log_dir,
        .run_id = c->rdzv.run_id,
        .role = c->role,
        .nproc = c->nproc,
        .attempts = c->log_attempts,
        .redirects = &c->redirects,
        .tee = &c->tee,
        .filter = &c->filter,
        .prefix_template = c->prefix_template,
        .needles = { &c->stdout_needles, &c->stderr_needles },
    };
    const int rc = logs_open(&opts, &a->logs, err);

    if (rc == 0 && logs_temp(a->logs))
        guard_tidy(a->guard, logs_temp(a->logs));
    return rc;
}

static int open_handler(struct agent *a, struct muster_error *err)
{
    const struct rdzv_params *rdzv = agent_serve_params(a);
    int rc = a->opts.registry
                 ? registry_create(a->opts.registry, &a->loop, rdzv, a->log,
                                   &a->handler, err)
                 : rdzv_handler_create(&a->loop, rdzv, a->log, &a->handler, err);

    if (rc == 0)
        rc = agent_job_open(a, err);
    if (rc == 0)
        a->handler->ops->on_news(a->handler, agent_on_news, a);
    return rc;
}

static int open_all(struct agent *a, struct muster_error *err)
{
    static int (*const opens[])(struct agent * a, struct muster_error * err) = {
        open_core,
        agent_workers_open,
        agent_health_open,
        agent_wait_open,
        agent_steps_open,
        agent_status_check,
        agent_net_open,
        agent_telemetry_open,
        agent_policy_open,
        agent_notice_open,
        agent_framework_open,
        open_guard,
        open_warm,
        open_logs,
        agent_serve_open,
        open_handler,
    };
    int rc = 0;

    for (size_t i = 0; i < ARRAY_LEN(opens) && rc == 0; i++)
        rc = opens[i](a, err);
    return rc;
}

static void on_handler_gone(void *ctx)
{
    struct agent *a = ctx;

    a->handler = NULL;
}

void agent_handler_close(struct agent *a)
{
    if (a->handler)
        a->handler->ops->destroy(a->handler, on_handler_gone, a);
}

static void close_all(struct agent *a)
{
    agent_wait_close(a);
    warm_close(a->warm);
    agent_end_dialogue(a);
    agent_serve_close(a);
    guard_dismiss(a->guard); /* The guard ends while we clean up. */
    agent_hang_close(a);
    agent_stacks_close(a);
    agent_status_close(a);
    agent_signals_off(a);
    agent_workers_close(a);
    blocking_call_cancel(a->driver->naming);
    agent_net_close(a);
    agent_health_close(a);
    agent_job_close(a);
    agent_policy_close(a);
    agent_notice_close(a);
    agent_notify_close(a);
    agent_telemetry_close(a);
    uv_close((uv_handle_t *)&a->driver->timer, NULL);
    uv_close((uv_handle_t *)&a->driver->before_sleep, NULL);
    agent_handler_close(a);
    logs_close(a->logs, a->result->why == WHY_SUCCESS);
    guard_stop(a->guard, NULL, NULL);
    uv_run(&a->loop, UV_RUN_DEFAULT);
    const int rc = uv_loop_close(&a->loop);
    if (rc != 0)
        log_line(a->log, LOG_DEBUG, AT_AGENT, "the loop ended with open handles");
    agent_framework_close(a);
    agent_status_free(a);
    agent_policy_free(a);
    agent_notice_free(a);
    agent_forget_failures(a);
    mem_free(a->wait);
    mem_free(a->health);
    mem_free(a->signals);
    mem_free(a->starting);
    mem_free(a->steps);
    mem_free(a->workers);
    agent_core_fini(&a->core);
    agent_core_fx_fini(&a->driver->fx);
    agent_core_fx_fini(&a->driver->spare_fx);
    mem_free(a->driver->queue);
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

    if (due == a->driver->fence_told_ms)
        return;
    a->driver->fence_told_ms = due;
    guard_fence(a->guard, ms_left(due, clock_mono_ms()));
}

static void fence_open(struct agent *a)
{
    (void)uv_prepare_init(&a->loop, &a->driver->before_sleep);
    uv_unref((uv_handle_t *)&a->driver->before_sleep);
    a->driver->before_sleep.data = a;
    a->driver->fence_told_ms = MONO_NEVER;
    if (a->config->rdzv.max_nodes > 1 && a->handler && a->handler->ops->fence_due)
        (void)uv_prepare_start(&a->driver->before_sleep, agent_on_sleep);
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

    if (c->framework || c->entry != ENTRY_EXEC ||
        (c->nproc < 2 && c->rdzv.max_nodes < 2) ||
        !mpi_library(c->script, env_get(a->opts.envp, "PATH"), library, sizeof library))
        return;
    log_line(
        a->log, LOG_WARN, AT_LAUNCH,
        "%s is linked to %s, and muster does not give MPI its ranks: each worker will "
        "be rank 0 of 1 in MPI_COMM_WORLD\nAdd --for=mpi for MPICH and Intel MPI, or "
        "start it with mpirun; or let it take RANK and WORLD_SIZE from the "
        "environment.",
        c->script, escape_text(clean, sizeof clean, span_str(library)));
}

/* A stack frame of its own, made after the guard was forked: otherwise each page that
 * we write to would be copied. */
__attribute__((noinline)) static int run_guarded(const struct agent_opts *opts,
                                                 struct guard *guard,
                                                 struct agent_result *out,
                                                 struct muster_error *err)
{
    struct agent_driver driver = { 0 };
    struct agent a = { .opts = *opts,
                       .log = &opts->log->log,
                       .config = opts->config,
                       .driver = &driver,
                       .guard = guard,
                       .result = out };
    int rc = uv_loop_init(&a.loop);

    if (rc != 0) {
        guard_stop(guard, NULL, NULL);
        return err_set(err, MUSTER_EIO,
                       "no event loop for the agent: %s\n"
                       "It needs epoll and eventfd, and descriptors for them.",
                       uv_strerror(rc));
    }
    agent_signals_quiet();
    uv_timer_init(&a.loop, &driver.timer);
    driver.timer.data = &a;
    rdzv_hostname(a.host, sizeof a.host);
    rc = open_all(&a, err);
    fence_open(&a);
    if (rc == 0)
        rc = script_check(a.config, err);
    if (rc == 0)
        rc = agent_signals_open(&a, err);
    if (rc == 0) {
        warn_of_mpi(&a);
        a.began_us = clock_now().wall_us;
        agent_status_open(&a);
        agent_stacks_open(&a);
        agent_hang_open(&a);
        agent_notice_on(&a);
        agent_notify_on(&a);
        agent_log_config(&a);
        if (agent_events_wanted(&a))
            agent_find_name(&a);
        agent_begin(&a);
        agent_pump(&a);
        uv_run(&a.loop, UV_RUN_DEFAULT);
    }
    close_all(&a);
    agent_signals_unquiet();
    return rc;
}

static void adopt_orphans(const struct agent_opts *opts, struct guard *guard)
{
    const int errnum = guard_adopt(guard);

    if (errnum)
        log_line(
            &opts->log->log, LOG_WARN, AT_AGENT,
            "prctl(PR_SET_CHILD_SUBREAPER) is denied here: %s\nProcesses that workers "
            "leave behind in sessions of their own stay when the job ends, and "
            "workers if their guard is killed.",
            strerror(errnum));
}

int agent_run(const struct agent_opts *opts, struct agent_result *out,
              struct muster_error *err)
{
    struct guard *guard = NULL;

    *out = (struct agent_result){ 0 };
    if (opts->config->nproc < 1)
        return err_set(err, MUSTER_EINVAL,
                       "--nproc-per-node is %" PRId64 ": at least one worker must run",
                       opts->config->nproc);
    fill_standard_fds();
    int rc = check_descriptors(err);
    if (rc == 0)
        rc = guard_start(opts->fn, opts->fn_ctx, &guard, err);
    if (rc == 0 && opts->own_process)
        adopt_orphans(opts, guard);
    return rc == 0 ? run_guarded(opts, guard, out, err) : rc;
}
