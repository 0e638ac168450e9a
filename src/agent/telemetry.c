/* telemetry.c - events and metrics of the run, as torch has them, to whoever
 * --event-log-handler and --metrics-handler name. Glue: agent/core/telemetry.c has the
 * formats. */
#include "agent/core/telemetry.h"
#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "launch/core/options.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define FILE_NAME   "file:"
#define PATIENCE_MS 100

/* Where records for machines go, a line each: nowhere, the console, or the end of a
 * file. */
struct json_lines_file {
    int fd; /* -1: nobody wants them */
    bool file;
};

struct agent_telemetry {
    struct json_lines_file events, metrics;
    bool metrics_json;        /* rather than as torch prints them */
    uint64_t calls_ns[CALLS]; /* when each began; 0: not under way */
    uint64_t lap_ns;          /* when began what takes a duration in events */
    uint64_t began_ms;        /* loop time */
    int64_t run_time_s;
};

/* --- lines ------------------------------------------------------------------------ */

/* name: null, console (console_fd, borrowed; -1: nowhere) or file:<path>. flag: for the
 * message. */
static int json_lines_open(struct json_lines_file *s, const char *flag,
                           const char *name, int console_fd, struct muster_error *err)
{
    *s = (struct json_lines_file){ .fd = -1 };
    if (strcmp(name, "null") == 0)
        return 0;
    if (strcmp(name, "console") == 0) {
        s->fd = console_fd;
        return 0;
    }
    const char *path = name + strlen(FILE_NAME);
    if (strncmp(name, FILE_NAME, strlen(FILE_NAME)) != 0 || !*path)
        return err_set(err, MUSTER_EINVAL,
                       "'%s'\n%s is one of null, console, file:<path>.", name, flag);
    s->file = true;
    s->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (s->fd < 0)
        return err_set(err, MUSTER_EIO,
                       "%s: %s: %s\nThe file is made if it is not there; its directory "
                       "must exist, and we must be allowed to write.",
                       flag, path, strerror(errno));
    return 0;
}

static void json_lines_close(struct json_lines_file *s)
{
    if (s->file && s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

/* One write a record, so that lines of several agents do not mix. rc: what printing
 * into b has returned; if it failed nothing is written. Ends b. A console that takes
 * nothing for a moment loses the record: it must not stop the agent. */
static void json_lines_write(struct json_lines_file *s, struct buf *b, int rc)
{
    struct pollfd ready = { s->fd, POLLOUT, 0 };

    if (s->fd >= 0 && rc == 0 && poll(&ready, 1, PATIENCE_MS) > 0 &&
        write(s->fd, buf_data(b), buf_len(b)) < 0 && errno != EAGAIN && errno != EINTR)
        json_lines_close(s); /* The reader is gone. */
    buf_fini(b);
}

/* --- events ----------------------------------------------------------------------- */

static int open_events(struct agent *a, struct muster_error *err)
{
    const char *name = a->config->event_handler;
    const bool quiet = env_get(a->opts.envp, "LOGLEVEL") && a->log->least > LOG_INFO;

    if (strcmp(name, "dynamic_rendezvous") == 0) /* torch's own: discards */
        name = "null";
    return json_lines_open(&a->telemetry->events, "--event-log-handler", name,
                           quiet ? -1 : STDERR_FILENO, err);
}

/* What torch's agent measures of itself goes to whoever --metrics-handler names. torch
 * times calls; we have events and effects, so a call begins and ends with the effects
 * that correspond to it. */
static int open_metrics(struct agent *a, struct muster_error *err)
{
    const char *name = a->config->metrics_handler;

    a->telemetry->metrics_json = strcmp(name, "console") != 0;
    return json_lines_open(&a->telemetry->metrics, "--metrics-handler", name,
                           STDOUT_FILENO, err);
}

int agent_telemetry_open(struct agent *a, struct muster_error *err)
{
    a->telemetry = mem_calloc(1, sizeof *a->telemetry);
    if (!a->telemetry)
        return err_nomem(err);
    a->telemetry->events.fd = a->telemetry->metrics.fd = -1;
    a->telemetry->began_ms = uv_now(&a->loop);
    const int rc = open_events(a, err);
    return rc == 0 ? open_metrics(a, err) : rc;
}

void agent_telemetry_close(struct agent *a)
{
    if (!a->telemetry)
        return;
    json_lines_close(&a->telemetry->events);
    json_lines_close(&a->telemetry->metrics);
    mem_free(a->telemetry);
    a->telemetry = NULL;
}

bool agent_events_wanted(const struct agent *a)
{
    return a->telemetry->events.fd >= 0;
}

bool agent_events_in_file(const struct agent *a)
{
    return a->telemetry->events.fd > STDERR_FILENO;
}

void agent_event_lap(struct agent *a, const char *state)
{
    if (state)
        agent_event(a, state, 1e3 * agent_event_lap_s(a), NULL);
    a->telemetry->lap_ns = uv_hrtime();
}

double agent_event_lap_s(const struct agent *a)
{
    return (double)(uv_hrtime() - a->telemetry->lap_ns) / 1e9;
}

static struct event event_base(const struct agent *a, const char *state)
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
        .timestamp_s = agent_events_in_file(a) ? (int64_t)time(NULL) : 0,
        .agent_restarts = agent_core_attempt(&a->core),
        .total_run_time_s = a->telemetry->run_time_s,
        .duration_ms = -1,
    };
}

static void write_event(struct agent *a, struct buf *b, int rc)
{
    json_lines_write(&a->telemetry->events, b, rc ? rc : buf_u8(b, '\n'));
}

static void print_event(struct agent *a, const struct event *e)
{
    struct buf b;

    if (!agent_events_wanted(a))
        return;
    buf_init(&b, SIZE_MAX);
    write_event(a, &b, event_print(&b, e));
}

void agent_event(struct agent *a, const char *state, double duration_ms,
                 const char *raw_error)
{
    struct event e = event_base(a, state);

    e.duration_ms = duration_ms;
    e.raw_error = raw_error;
    print_event(a, &e);
}

void agent_worker_event(struct agent *a, const char *state, int64_t i,
                        const struct failure *f, const char *raw_error)
{
    struct event e = event_base(a, state);

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
        e.failed_at = (struct event_number){ agent_events_in_file(a), f->time_s };
        e.error_file = f->error_file;
        e.first = f == &a->failures[failure_root(a->failures, a->failure_count)];
    }
    print_event(a, &e);
}

static const struct failure *failure_of_rank(const struct agent *a, int64_t local_rank)
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

    if (!record_find(session_record(a->job.session), RECORD_VERDICT, -1, &v))
        return NULL;
    (void)snprintf(to, size, "rank %" PRId64 " on %.*s: %.*s", v.rank, (int)v.host.n,
                   (const char *)v.host.p, (int)v.text.n, (const char *)v.text.p);
    return to;
}

void agent_events_end(struct agent *a, enum agent_core_why why)
{
    char text[1500];

    if (!agent_events_wanted(a))
        return;
    a->telemetry->run_time_s =
        (int64_t)((uv_now(&a->loop) - a->telemetry->began_ms) / 1000);
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
        const struct failure *f = why == WHY_SUCCESS ? NULL : failure_of_rank(a, i);
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
    const struct event base = event_base(a, name);
    struct watchdog_event w = { .name = name, .base = &base };
    struct buf b;

    if (!agent_events_wanted(a))
        return;
    if (e) {
        w.of_timer = true;
        w.pid = (int)e->pid;
        w.sig = e->sig;
        w.scope = e->scope;
        w.expires = e->expires;
    }
    buf_init(&b, SIZE_MAX);
    write_event(a, &b, watchdog_event_print(&b, &w));
}

static void metrics_put(struct agent *a, const char *name, int64_t value)
{
    struct timespec ts;
    struct buf b;

    if (a->telemetry->metrics.fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &ts);
    const struct metric m = { (double)ts.tv_sec + (double)ts.tv_nsec / 1e9, name,
                              value };
    buf_init(&b, SIZE_MAX);
    json_lines_write(&a->telemetry->metrics, &b,
                     a->telemetry->metrics_json ? metric_print_json(&b, &m)
                                                : metric_print(&b, &m));
}

static void put_worker_metric(struct agent *a, const char *what, int64_t value)
{
    struct buf name;

    buf_init(&name, SIZE_MAX);
    if (buf_printf(&name, "workers.%s.%s", a->config->role, what) == 0 &&
        buf_u8(&name, 0) == 0)
        metrics_put(a, (const char *)buf_data(&name), value);
    buf_fini(&name);
}

/* --- calls ------------------------------------------------------------------------ */

static void call_begins(struct agent *a, enum metric_call call)
{
    if (a->telemetry->calls_ns[call] == 0)
        a->telemetry->calls_ns[call] = uv_hrtime();
}

static void call_ends(struct agent *a, enum metric_call call, bool well)
{
    char name[80];

    if (a->telemetry->calls_ns[call] == 0)
        return;
    const uint64_t ns = uv_hrtime() - a->telemetry->calls_ns[call];
    a->telemetry->calls_ns[call] = 0;
    snprintf(name, sizeof name, "%s.%s", metric_call_name(call),
             well ? "success" : "failure");
    metrics_put(a, name, 1);
    snprintf(name, sizeof name, "%s.duration.ms", metric_call_name(call));
    metrics_put(a, name, (int64_t)(ns / 1000000));
}

static void call_once(struct agent *a, enum metric_call which)
{
    call_begins(a, which);
    call_ends(a, which, true);
}

/* torch looks every --monitor-interval and says so each time; we when it changes. */
static void measure_state(struct agent *a, const char *state, int64_t remaining)
{
    call_once(a, CALL_MONITOR);
    put_worker_metric(a, "remaining_restarts", remaining);
    put_worker_metric(a, state, 1);
}

/* --- when ------------------------------------------------------------------------- */

static void measure_join(struct agent *a)
{
    call_begins(a, CALL_RUN);
    if (a->telemetry->calls_ns[CALL_STOP] !=
        0) { /* for a new round: nodes came or went */
        a->telemetry->calls_ns[CALL_RESTART] = a->telemetry->calls_ns[CALL_STOP];
        call_ends(a, CALL_STOP, true);
    }
    call_begins(a, CALL_INITIALIZE);
    call_begins(a, CALL_RENDEZVOUS);
}

void agent_measure(struct agent *a, const struct agent_core_fx *fx)
{
    switch (fx->kind) {
    case AGENT_FX_JOIN:
        measure_join(a);
        break;
    case AGENT_FX_ASSIGN:
        call_begins(a, CALL_ASSIGN);
        break;
    case AGENT_FX_START:
        call_ends(a, CALL_ASSIGN, true);
        call_ends(a, CALL_RENDEZVOUS, true);
        call_begins(a, CALL_START);
        break;
    case AGENT_FX_SIGNAL:
    case AGENT_FX_LEFTOVERS:
    case AGENT_FX_DRAIN: /* torch's looking includes the ending of a failed group */
        if (a->core.why == WHY_MEMBERSHIP)
            call_begins(a, CALL_STOP);
        else if (a->core.why == WHY_FAILURE || a->core.why == WHY_STUCK)
            call_begins(a, CALL_MONITOR);
        break;
    case AGENT_FX_LOG_SUCCEEDED:
        measure_state(a, "succeeded", a->core.remaining);
        break;
    case AGENT_FX_LOG_FAILED:
        measure_state(a, "failed", a->core.remaining + (fx->final ? 0 : 1));
        if (!fx->final)
            call_begins(a, CALL_RESTART);
        call_once(a, CALL_STOP);
        break;
    case AGENT_FX_LOG_TERMINATED:
        measure_state(a, "unhealthy", a->core.remaining);
        call_once(a, CALL_STOP);
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
    call_ends(a, CALL_START, true);
    call_ends(a, CALL_INITIALIZE, true);
    call_ends(a, CALL_RESTART, true);
    measure_state(a, "healthy", a->core.remaining);
}

void agent_measure_end(struct agent *a, enum agent_core_why why)
{
    const struct agent_core *g = &a->core;
    const bool failed = why == WHY_FAILURE;
    const bool again = g->remaining != g->set.max_restarts;

    if (why == WHY_SUCCESS || why == WHY_FAILURE || why == WHY_STUCK) {
        put_worker_metric(a, "flakiness",
                          metric_flakiness(failed, g->remaining, g->set.max_restarts));
        put_worker_metric(a, "run_total", 1);
        put_worker_metric(a, "run_success_with_retries", !failed && again);
        put_worker_metric(a, "run_success_no_retries", !failed && !again);
        put_worker_metric(a, "run_failed_with_retries", failed && again);
        put_worker_metric(a, "run_failed_no_retries", failed && !again);
        call_ends(a, CALL_RUN, true);
    }
    /* The monitor's call is not under way in torch when a signal or the store ends
     * it. */
    a->telemetry->calls_ns[CALL_MONITOR] = 0;
    for (enum metric_call c = 0; c < CALLS; c++)
        call_ends(a, c, a->fatal.code == MUSTER_EGRACEFUL);
}
