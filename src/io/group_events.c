/* group_events.c - events of the run, to whoever --event-log-handler names. */
#include <stdio.h>
#include <unistd.h>

#include "group/events.h"
#include "group/options.h"
#include "io/group_int.h"

int agent_events_open(struct agent *a, struct muster_error *err)
{
    const char *name = a->config->event_handler;
    const bool quiet =
        env_get(a->opts.envp, "LOGLEVEL") && a->opts.notes->least > NOTE_INFO;

    if (strcmp(name, "dynamic_rendezvous") == 0) /* torch's own: discards */
        name = "null";
    return sink_open(&a->events, "--event-log-handler", name,
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
        .agent_restarts = group_attempt(&a->group),
        .total_run_time_s = a->run_time_s,
        .duration_ms = -1,
    };
}

static void put(struct agent *a, struct buf *b, int rc)
{
    sink_put(&a->events, b, rc ? rc : buf_u8(b, '\n'));
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

void agent_events_end(struct agent *a, enum group_why why)
{
    char text[128];

    if (a->events.fd < 0)
        return;
    a->run_time_s = (int64_t)((uv_now(&a->loop) - a->began_ms) / 1000);
    if (why == WHY_SIGNAL) {
        snprintf(text, sizeof text, "SignalException: Process %d got signal: %d",
                 (int)getpid(), a->group.signal);
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
    agent_event(a, "SUCCEEDED", -1, NULL); /* of the agent, even if workers failed */
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
