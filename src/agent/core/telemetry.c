/* telemetry.c - see telemetry.h. Members in torch's order, numbers in Python's form. */
#include "agent/core/telemetry.h"

#include <inttypes.h>

#include "base/py/json.h"
#include "muster/error.h"

/* A float as Python shows it. */
static void put_real(struct buf *out, double v)
{
    json_t *real = json_real(v);

    buf_fail(out, real ? json_python(out, real) : MUSTER_ENOMEM);
    json_decref(real);
}

/* ---- events ---- */

static void put_number(struct buf *out, const char *before, struct event_number n)
{
    if (n.given)
        buf_printf(out, "%s%" PRId64, before, n.value);
    else
        buf_printf(out, "%snull", before);
}

static void put_text(struct buf *out, const char *before, const char *text)
{
    buf_append_str(out, before);
    if (text)
        json_text(out, text);
    else
        buf_append_str(out, "null");
}

/* The inner object, which travels as a text. */
static void put_inner(struct buf *b, const struct event *e)
{
    put_number(b, "{\"group_world_size\": ", e->group_world_size);
    put_text(b, ", \"entry_point\": ", e->entry_point);
    if (e->of_worker) {
        buf_printf(b,
                   ", \"local_rank\": [%" PRId64 "], \"role_rank\": [%" PRId64
                   "], \"role_world_size\": [%" PRId64 "]",
                   e->local_rank, e->role_rank, e->role_world_size);
        put_number(b, ", \"exit_code\": [", e->exit_code);
        put_number(b, "], \"worker_pid\": [", e->worker_pid);
        buf_u8(b, ']');
    }
}

/* The record up to "agent_restarts"; ends the inner object. */
static void put_record(struct buf *out, const struct event *e, const char *name,
                       const char *state, struct buf *inner)
{
    put_text(out, "{\"name\": ", name);
    buf_printf(out, ", \"source\": \"%s\", \"timestamp\": %" PRId64 ", \"metadata\": ",
               e->of_worker ? "WORKER" : "AGENT", e->timestamp_s);
    put_text(out, "{\"run_id\": ", e->run_id);
    put_number(out,
               ", \"global_rank\": ", (struct event_number){ e->of_worker, e->rank });
    put_number(out, ", \"group_rank\": ", e->group_rank);
    if (e->of_worker)
        buf_printf(out, ", \"worker_id\": \"%d\"", e->worker_id);
    else
        buf_append_str(out, ", \"worker_id\": null");
    put_text(out, ", \"role\": ", e->role);
    put_text(out, ", \"hostname\": ", e->hostname);
    put_text(out, ", \"state\": ", state);
    buf_printf(out, ", \"total_run_time\": %" PRId64, e->total_run_time_s);
    put_text(out, ", \"rdzv_backend\": ", e->backend);
    put_text(out, ", \"raw_error\": ", e->raw_error);
    buf_append(inner, "}", 2);
    buf_fail(out, buf_error(inner));
    put_text(out, ", \"metadata\": ", (const char *)buf_data(inner));
    buf_printf(out, ", \"agent_restarts\": %" PRId64, e->agent_restarts);
    buf_fini(inner);
}

int event_print(struct buf *out, const struct event *e)
{
    struct buf inner;
    char name[96] = "torchelastic.worker.status.";

    strncat(name, e->state, sizeof name - strlen(name) - 1);
    buf_init(&inner, SIZE_MAX);
    put_inner(&inner, e);
    put_record(out, e, name, e->state, &inner);
    buf_append_str(out, ", \"duration_ms\": ");
    if (e->duration_ms < 0)
        buf_append_str(out, "null");
    else
        put_real(out, e->duration_ms);
    if (e->failed_at.given) {
        put_number(out, ", \"failed_at\": ", e->failed_at);
        put_text(out, ", \"error_file\": ", e->error_file);
        buf_printf(out, ", \"first\": %s", e->first ? "true" : "false");
    }
    return buf_append_str(out, "}}");
}

int watchdog_event_print(struct buf *out, const struct watchdog_event *w)
{
    struct buf inner;

    buf_init(&inner, SIZE_MAX);
    put_text(&inner, "{\"watchdog_event\": ", w->name);
    if (w->of_timer) {
        buf_printf(&inner, ", \"worker_pid\": \"%d\"", w->pid);
        put_text(&inner, ", \"scope_id\": ", w->scope);
        buf_append_str(&inner, ", \"expiration_time\": \"");
        put_real(&inner, w->expires);
        buf_printf(&inner, "\", \"signal\": \"%d\"", w->sig);
    }
    put_record(out, w->base, w->name, "RUNNING", &inner);
    return buf_append_str(out, "}}");
}

/* ---- metrics ---- */

const char *metric_call_name(enum metric_call call)
{
    static const char *const names[] = {
#define METRIC_CALL_NAME(name, word) [name] = word,
        METRIC_CALLS(METRIC_CALL_NAME)
#undef METRIC_CALL_NAME
    };
    return names[call];
}

int metric_print(struct buf *out, const struct metric *m)
{
    buf_u8(out, '[');
    put_real(out, m->timestamp);
    return buf_printf(out, "][" METRIC_GROUP "]: %s=%" PRId64 "\n", m->name, m->value);
}

int metric_print_json(struct buf *out, const struct metric *m)
{
    buf_append_str(out, "{\"timestamp\": ");
    put_real(out, m->timestamp);
    buf_append_str(out, ", \"group_name\": \"" METRIC_GROUP "\", \"name\": ");
    json_text(out, m->name);
    return buf_printf(out, ", \"value\": %" PRId64 "}\n", m->value);
}

int64_t metric_flakiness(bool failed, int64_t remaining, int64_t max_restarts)
{
    if (failed)
        return 100;
    return (int64_t)(100.0 -
                     100.0 * (double)(remaining + 1) / (double)(max_restarts + 1));
}
