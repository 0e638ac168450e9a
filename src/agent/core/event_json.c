/* event_json.c - see event_json.h. Members in torch's order, numbers in Python's
 * form. */
#include "agent/core/event_json.h"

#include <inttypes.h>

#include "base/py/json.h"

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

static void put_real(struct buf *out, double v)
{
    json_t *real = json_real(v);

    if (real)
        json_python(out, real);
    else
        buf_append_str(out, "null");
    json_decref(real);
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
    buf_append(b, "}", 2);
}

/* From the opening of the record to "hostname". */
static void head(struct buf *out, const struct event *e, const char *name)
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
}

static void middle(struct buf *out, const struct event *e, const char *state)
{
    put_text(out, ", \"state\": ", state);

    buf_printf(out, ", \"total_run_time\": %" PRId64, e->total_run_time_s);
    put_text(out, ", \"rdzv_backend\": ", e->backend);
    put_text(out, ", \"raw_error\": ", e->raw_error);
}

static void put_failure(struct buf *out, const struct event *e)
{
    put_number(out, ", \"failed_at\": ", e->failed_at);

    put_text(out, ", \"error_file\": ", e->error_file);
    buf_printf(out, ", \"first\": %s", e->first ? "true" : "false");
}

int event_print(struct buf *out, const struct event *e)
{
    struct buf md;
    char name[96] = "torchelastic.worker.status.";

    strncat(name, e->state, sizeof name - strlen(name) - 1);
    buf_init(&md, SIZE_MAX);
    put_inner(&md, e);
    head(out, e, name);
    middle(out, e, e->state);
    put_text(out, ", \"metadata\": ", (const char *)buf_data(&md));
    buf_printf(
        out, ", \"agent_restarts\": %" PRId64 ", \"duration_ms\": ", e->agent_restarts);
    if (e->duration_ms < 0)
        buf_append_str(out, "null");
    else
        put_real(out, e->duration_ms);
    if (e->failed_at.given)
        put_failure(out, e);
    buf_append_str(out, "}}");
    buf_fail(out, buf_error(&md));
    buf_fini(&md);
    return buf_error(out);
}

int watchdog_event_print(struct buf *out, const struct watchdog_event *w)
{
    struct buf md;

    buf_init(&md, SIZE_MAX);
    put_text(&md, "{\"watchdog_event\": ", w->name);
    if (w->of_timer) {
        buf_printf(&md, ", \"worker_pid\": \"%d\"", w->pid);
        put_text(&md, ", \"scope_id\": ", w->scope);
        buf_append_str(&md, ", \"expiration_time\": \"");
        put_real(&md, w->expires);
        buf_printf(&md, "\", \"signal\": \"%d\"", w->sig);
    }
    buf_append(&md, "}", 2);
    head(out, w->base, w->name);
    middle(out, w->base, "RUNNING");
    put_text(out, ", \"metadata\": ", (const char *)buf_data(&md));
    buf_printf(out, ", \"agent_restarts\": %" PRId64 "}}", w->base->agent_restarts);
    buf_fail(out, buf_error(&md));
    buf_fini(&md);
    return buf_error(out);
}
