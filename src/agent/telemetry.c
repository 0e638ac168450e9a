/* telemetry.c - events of the run, to whoever --event-log-handler names. */
#include "agent/agent_int.h"
#include "agent/core/event_json.h"
#include "agent/core/metric_names.h"
#include "launch/core/options.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int agent_events_open(struct agent *a, struct muster_error *err)
{
    const char *name = a->config->event_handler;
    const bool quiet =
        env_get(a->opts.envp, "LOGLEVEL") && a->opts.log->least > NOTE_INFO;

    if (strcmp(name, "dynamic_rendezvous") == 0) /* torch's own: discards */
        name = "null";
    return record_sink_open(&a->events, "--event-log-handler", name,
                            quiet ? -1 : STDERR_FILENO, err);
}

static struct event base_of(const struct agent *a, const char *state)
{
    const char *binary = worker_binary(a->config);
    const char *slash = strrchr(binary, '/');

    return (struct event){
        .state = state,
        .run_id = a->config->rdzv.run_id,
        .role = a->config->role,
        .hostname = a->host,
        .backend = a->config->rdzv.backend,
        .entry_point = slash ? slash + 1 : binary,
        .group_rank = { a->assigned, a->assigned ? a->round.rank : 0 },
        .group_world_size = { a->assigned, a->assigned ? a->round.world_size : 0 },
        .timestamp_s = a->events.fd > STDERR_FILENO ? (int64_t)time(NULL) : 0,
        .agent_restarts = agent_core_attempt(&a->core),
        .total_run_time_s = a->run_time_s,
        .duration_ms = -1,
    };
}

static void put(struct agent *a, struct buf *b, int rc)
{
    record_sink_put(&a->events, b, rc ? rc : buf_u8(b, '\n'));
}

static void record(struct agent *a, const struct event *e)
{
    struct buf b;

    if (a->events.fd < 0)
        return;
    buf_init(&b, SIZE_MAX);
    put(a, &b, event_print(&b, e));
}

void agent_event(struct agent *a, const char *state, double duration_ms,
                 const char *raw_error)
{
    struct event e = base_of(a, state);

    e.duration_ms = duration_ms;
    e.raw_error = raw_error;
    record(a, &e);
}

void agent_worker_event(struct agent *a, const char *state, int64_t i,
                        const struct failure *f, const char *raw_error)
{
    struct event e = base_of(a, state);

    e.of_worker = true;
    e.rank = a->range.base_rank + i;
    e.local_rank = i;
    e.role_rank = a->range.base_role_rank + i;
    e.role_world_size = a->range.role_world_size;
    e.worker_id = a->workers[i].pid;
    e.raw_error = raw_error;
    if (f) {
        e.exit_code = (struct event_number){ true, f->code };
        e.worker_pid = (struct event_number){ true, f->pid };
        e.failed_at = (struct event_number){ a->events.fd > STDERR_FILENO, f->time_s };
        e.error_file = f->error_file;
        e.first = f == &a->failures[failure_root(a->failures, a->failure_count)];
    }
    record(a, &e);
}

static const struct failure *failure_of(const struct agent *a, int64_t local_rank)
{
    for (size_t i = 0; i < a->failure_count; i++)
        if (a->failures[i].local_rank == local_rank)
            return &a->failures[i];
    return NULL;
}

/* torch's quirk: its record of "no error file" is one object for all, and the first
 * plain failure marks it. */
static const char *raw_error(const struct agent *a, const struct failure *f)
{
    if (f->data.json)
        return f->data.json;
    for (size_t i = 0; i < a->failure_count; i++)
        if (!a->failures[i].data.json && a->failures[i].code > 0)
            return "{\"message\": \"<NONE>\", \"errorTraits\": {\"category\": "
                   "\"system_terminated_error\", \"retryability\": \"False\"}}";
    return "{\"message\": \"<NONE>\"}";
}

/* One line: who failed, and why. */
static const char *verdict_text(const struct agent *a, char *to, size_t size)
{
    struct record_entry v;

    if (!record_find(channel_record(a->job.channel), RECORD_VERDICT, -1, &v))
        return NULL;
    (void)snprintf(to, size, "rank %" PRId64 " on %.*s: %.*s", v.rank, (int)v.host.n,
                   (const char *)v.host.p, (int)v.text.n, (const char *)v.text.p);
    return to;
}

void agent_events_end(struct agent *a, enum agent_core_why why)
{
    char text[1500];

    if (a->events.fd < 0)
        return;
    a->run_time_s = (int64_t)((uv_now(&a->loop) - a->began_ms) / 1000);
    if (why == WHY_SIGNAL) {
        snprintf(text, sizeof text, "SignalException: Process %d got signal: %d",
                 (int)getpid(), a->core.signal);
        agent_event(a, "FAILED", -1, text);
        return;
    }
    if (why == WHY_FATAL) {
        agent_event(a, "FAILED", -1, a->fatal.text);
        return;
    }
    for (int64_t i = 0; i < a->config->nproc; i++) {
        const struct failure *f = why == WHY_SUCCESS ? NULL : failure_of(a, i);
        const char *state = why == WHY_SUCCESS ? "SUCCEEDED"
                            : f                ? "FAILED"
                                               : "TERMINATED";
        agent_worker_event(a, state, i, f, f ? raw_error(a, f) : NULL);
    }
    /* torch's agent has SUCCEEDED here even if workers failed. */
    agent_event(a, why == WHY_FAILURE ? "FAILED" : "SUCCEEDED", -1,
                why == WHY_FAILURE ? verdict_text(a, text, sizeof text) : NULL);
}

void agent_watchdog_event(struct agent *a, const char *name,
                          const struct timer_entry *e)
{
    const struct event base = base_of(a, name);
    struct watchdog_event w = { .name = name, .base = &base };
    struct buf b;

    if (a->events.fd < 0)
        return;
    if (e) {
        w.of_timer = true;
        w.pid = (int)e->pid;
        w.sig = e->sig;
        w.scope = e->scope;
        w.expires = e->expires;
    }
    buf_init(&b, SIZE_MAX);
    put(a, &b, watchdog_event_print(&b, &w));
}

/* What torch's agent measures of itself, to whoever --metrics-handler
 * names. torch times calls; we have events and effects, so a call begins and ends with
 * the effects that correspond to it. */
int agent_metrics_open(struct agent *a, struct muster_error *err)
{
    const char *name = a->config->metrics_handler;

    a->metrics_json = strcmp(name, "console") != 0;
    return record_sink_open(&a->metrics, "--metrics-handler", name, STDOUT_FILENO, err);
}

static void metrics_put(struct agent *a, const char *name, int64_t value)
{
    struct timespec ts;
    struct buf b;

    if (a->metrics.fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &ts);
    const struct metric m = { (double)ts.tv_sec + (double)ts.tv_nsec / 1e9, name,
                              value };
    buf_init(&b, SIZE_MAX);
    record_sink_put(&a->metrics, &b,
                    a->metrics_json ? metric_print_json(&b, &m) : metric_print(&b, &m));
}

static void put_workers(struct agent *a, const char *what, int64_t value)
{
    struct buf name;

    buf_init(&name, SIZE_MAX);
    if (buf_printf(&name, "workers.%s.%s", a->config->role, what) == 0 &&
        buf_u8(&name, 0) == 0)
        metrics_put(a, (const char *)buf_data(&name), value);
    buf_fini(&name);
}

/* --- calls ------------------------------------------------------------------------ */

static void begin(struct agent *a, enum metric_call call)
{
    if (a->calls_ns[call] == 0)
        a->calls_ns[call] = uv_hrtime();
}

static void end(struct agent *a, enum metric_call call, bool well)
{
    char name[80];

    if (a->calls_ns[call] == 0)
        return;
    const uint64_t ns = uv_hrtime() - a->calls_ns[call];
    a->calls_ns[call] = 0;
    snprintf(name, sizeof name, "%s.%s", metric_call_name(call),
             well ? "success" : "failure");
    metrics_put(a, name, 1);
    snprintf(name, sizeof name, "%s.duration.ms", metric_call_name(call));
    metrics_put(a, name, (int64_t)(ns / 1000000));
}

static void call(struct agent *a, enum metric_call which)
{
    begin(a, which);
    end(a, which, true);
}

/* torch looks every --monitor-interval and says so each time; we when it changes. */
static void put_state(struct agent *a, const char *state, int64_t remaining)
{
    call(a, CALL_MONITOR);
    put_workers(a, "remaining_restarts", remaining);
    put_workers(a, state, 1);
}

/* --- when ------------------------------------------------------------------------- */

static void on_join(struct agent *a)
{
    begin(a, CALL_RUN);
    if (a->calls_ns[CALL_STOP] != 0) { /* for a new round: nodes came or went */
        a->calls_ns[CALL_RESTART] = a->calls_ns[CALL_STOP];
        end(a, CALL_STOP, true);
    }
    begin(a, CALL_INITIALIZE);
    begin(a, CALL_RENDEZVOUS);
}

void agent_measure(struct agent *a, const struct agent_core_fx *fx)
{
    switch (fx->kind) {
    case AGENT_FX_JOIN:
        on_join(a);
        break;
    case AGENT_FX_ASSIGN:
        begin(a, CALL_ASSIGN);
        break;
    case AGENT_FX_START:
        end(a, CALL_ASSIGN, true);
        end(a, CALL_RENDEZVOUS, true);
        begin(a, CALL_START);
        break;
    case AGENT_FX_SIGNAL:
    case AGENT_FX_LEFTOVERS:
    case AGENT_FX_DRAIN: /* torch's looking includes the ending of a failed group */
        if (a->core.why == WHY_MEMBERSHIP)
            begin(a, CALL_STOP);
        else if (a->core.why == WHY_FAILURE || a->core.why == WHY_STUCK)
            begin(a, CALL_MONITOR);
        break;
    case AGENT_FX_LOG_SUCCEEDED:
        put_state(a, "succeeded", a->core.remaining);
        break;
    case AGENT_FX_LOG_FAILED:
        put_state(a, "failed", a->core.remaining + (fx->final ? 0 : 1));
        if (!fx->final)
            begin(a, CALL_RESTART);
        call(a, CALL_STOP);
        break;
    case AGENT_FX_LOG_TERMINATED:
        put_state(a, "unhealthy", a->core.remaining);
        call(a, CALL_STOP);
        break;
    case AGENT_FX_LOG_WAITING:
    case AGENT_FX_CANCEL_JOIN:
    case AGENT_FX_JUDGE:
    case AGENT_FX_KILL_ALL:
    case AGENT_FX_BARRIER:
    case AGENT_FX_LEAVE:
    case AGENT_FX_FINISH:
    case AGENT_FX_LOG_SIGNAL:
    case AGENT_FX_LOG_KILL:
    case AGENT_FX_LOG_ABANDONED:
    case AGENT_FX_LOG_BARRIER:
    case AGENT_FX_LOG_NO_BARRIER:
        break;
    }
}

void agent_measure_started(struct agent *a)
{
    end(a, CALL_START, true);
    end(a, CALL_INITIALIZE, true);
    end(a, CALL_RESTART, true);
    put_state(a, "healthy", a->core.remaining);
}

void agent_measure_end(struct agent *a, enum agent_core_why why)
{
    const struct agent_core *g = &a->core;
    const bool failed = why == WHY_FAILURE;
    const bool again = g->remaining != g->set.max_restarts;

    if (why == WHY_SUCCESS || why == WHY_FAILURE || why == WHY_STUCK) {
        put_workers(a, "flakiness",
                    metric_flakiness(failed, g->remaining, g->set.max_restarts));
        put_workers(a, "run_total", 1);
        put_workers(a, "run_success_with_retries", !failed && again);
        put_workers(a, "run_success_no_retries", !failed && !again);
        put_workers(a, "run_failed_with_retries", failed && again);
        put_workers(a, "run_failed_no_retries", failed && !again);
        end(a, CALL_RUN, true);
    }
    /* The monitor's call is not under way in torch when a signal or the store ends it.
     */
    a->calls_ns[CALL_MONITOR] = 0;
    for (enum metric_call c = 0; c < CALLS; c++)
        end(a, c, a->fatal.code == MUSTER_EGRACEFUL);
}
