/* group_run.c - a run of the agent from its beginning to its end: what it opens, what
 * it closes, and the result. What happens in between is group_driver.c's. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/group_int.h"
#include "io/rdzv_local.h"

/* --- the result ------------------------------------------------------------------- */

void agent_end(struct agent *a, const struct group_fx *fx)
{
    struct group_result *r = a->result;

    a->last = *fx;
    if (a->naming)
        return; /* once more when it is known */

    r->exit_code = fx->code;
    r->why = fx->why;
    r->signal = a->group.signal;
    if (fx->why == WHY_FATAL)
        r->error = a->fatal;
    if (fx->why == WHY_FATAL && a->fatal.code == MUSTER_EGRACEFUL)
        r->exit_code = 0; /* A spare that was never needed has done its duty. */
    if (fx->why == WHY_SUCCESS)
        agent_take_answers(a);
    a->result->report = fx->why == WHY_FAILURE ? agent_report(a) : NULL;
    agent_tell_parent(a, fx->why);
    agent_events_end(a, fx->why);
    agent_measure_end(a, fx->why);
    uv_stop(&a->loop);
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
    if (a->group.phase == GROUP_DONE) {
        agent_end(a, &a->last);
    } else if (a->group.phase == GROUP_NEW) { /* Events name the host from the start. */
        agent_post(a, GROUP_EV_BEGIN, 0, 0);
        agent_pump(a);
    }
}

void agent_find_name(struct agent *a)
{
    struct rdzv_fqdn own, *f;

    if (rdzv_fqdn_quick(&own)) {
        snprintf(a->host, sizeof a->host, "%s", own.name);
        return;
    }
    f = mem_calloc(1, sizeof *f);
    if (!f || a->naming ||
        offload_run(&a->loop, rdzv_fqdn_resolve, f, RDZV_NAME_MS, on_named, a,
                    &a->naming, NULL) != 0)
        mem_free(f);
}

void group_result_fini(struct group_result *r)
{
    for (size_t i = 0; i < r->answer_count; i++)
        mem_free(r->answers[i].bytes);
    mem_free(r->answers);
    mem_free(r->report);
    *r = (struct group_result){ 0 };
}

/* --- open and close --------------------------------------------------------------- */

/* Like torchrun's, the rendezvous follows TORCH_LOGS below warnings. */
static void on_trace(void *ctx, enum trace_level level, const char *text)
{
    static const enum note_level levels[] = {
        [TRACE_DEBUG] = NOTE_DEBUG,
        [TRACE_INFO] = NOTE_INFO,
        [TRACE_WARN] = NOTE_WARN,
        [TRACE_ERROR] = NOTE_ERROR,
    };
    const struct agent *a = ctx;

    note(a->opts.notes, levels[level], "muster/rendezvous", "%s", text);
}

static int open_all(struct agent *a, struct muster_error *err)
{
    const struct launch_config *c = a->config;
    const struct group_settings set = {
        .nproc = c->nproc,
        .max_restarts = c->max_restarts,
        .shutdown_ms = ms_of_seconds(c->shutdown_timeout_s),
    };
    int rc = group_init(&a->group, &set, err);

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
    if (rc == 0)
        rc = logs_open(&a->loop, c, a->opts.notes, a->opts.envp, &a->logs, err);
    if (rc == 0 && a->opts.registry)
        rc = registry_create(a->opts.registry, &a->loop, &c->rdzv, &a->trace,
                             &a->handler, err);
    else if (rc == 0)
        rc = rdzv_handler_create(&a->loop, &c->rdzv, &a->trace, &a->handler, err);
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
    guard_dismiss(a->guard); /* It takes its time while we tidy up. */
    agent_signals_off(a);
    agent_forget_workers(a);
    offload_cancel(a->naming);
    agent_watch_off(a);
    sink_close(&a->events);
    sink_close(&a->metrics);
    uv_close((uv_handle_t *)&a->timer, NULL);
    uv_close((uv_handle_t *)&a->wait.timer, NULL);
    uv_close((uv_handle_t *)&a->stuck_timer, NULL);
    if (a->handler)
        a->handler->ops->destroy(a->handler, on_gone, a);
    logs_close(a->logs, a->result->why == WHY_SUCCESS);
    guard_stop(a->guard, NULL, NULL);
    uv_run(&a->loop, UV_RUN_DEFAULT);
    const int rc = uv_loop_close(&a->loop);
    if (rc != 0)
        note(a->opts.notes, NOTE_DEBUG, "muster/agent",
             "the loop ended with open handles");
    agent_forget_failures(a);
    mem_free(a->timer_file);
    mem_free(a->workers);
    group_fini(&a->group);
    group_fx_fini(&a->fx);
}

/* --- run -------------------------------------------------------------------------- */

/* Whoever started us without one of these three must not get our sockets in its place.
 */
static void fill_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return;
}

int group_run(const struct group_opts *opts, struct group_result *out,
              struct muster_error *err)
{
    struct agent a = { .opts = *opts, .config = opts->config, .result = out };

    struct sigaction quiet = { .sa_handler = SIG_IGN }, before;

    *out = (struct group_result){ 0 };
    if (a.config->nproc < 1)
        return err_set(err, MUSTER_EINVAL,
                       "--nproc-per-node is %" PRId64 ": at least one worker must run",
                       a.config->nproc);
    fill_standard_fds();
    int rc = guard_start(opts->fn, opts->fn_ctx, &a.guard, err);
    if (rc != 0)
        return rc;
    sigaction(SIGPIPE, &quiet, &before); /* A console that goes is an error code. */
    uv_loop_init(&a.loop);
    uv_timer_init(&a.loop, &a.timer);
    uv_timer_init(&a.loop, &a.wait.timer);
    uv_timer_init(&a.loop, &a.stuck_timer);
    a.timer.data = a.wait.timer.data = a.stuck_timer.data = &a;
    rc = open_all(&a, err);
    if (rc == 0) {
        a.began_ms = uv_now(&a.loop);
        rdzv_hostname(a.host, sizeof a.host);
        agent_say_config(&a);
        if (a.events.fd >= 0)
            agent_find_name(&a);
        if (!a.naming)
            agent_post(&a, GROUP_EV_BEGIN, 0, 0);
        agent_pump(&a);
        uv_run(&a.loop, UV_RUN_DEFAULT);
    }
    close_all(&a);
    sigaction(SIGPIPE, &before, NULL);
    return rc;
}
