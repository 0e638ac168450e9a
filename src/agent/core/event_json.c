/* events.c - see events.h. Members in torch's order, numbers in Python's form. */
#include "agent/core/event_json.h"

#include <inttypes.h>

#include "base/py/json.h"

static int put_number(struct buf *out, const char *before, struct event_number n)
{
    if (!n.given)
        return buf_printf(out, "%snull", before);
    return buf_printf(out, "%s%" PRId64, before, n.value);
}

static int put_text(struct buf *out, const char *before, const char *text)
{
    const int rc = buf_append_str(out, before);

    if (rc != 0)
        return rc;
    return text ? json_text(out, text) : buf_append_str(out, "null");
}

static int put_real(struct buf *out, double v)
{
    json_t *real = json_real(v);
    const int rc = real ? json_python(out, real) : buf_append_str(out, "null");

    json_decref(real);
    return rc;
}

/* The inner object, which travels as a text. */
static int inner(struct buf *b, const struct event *e)
{
    int rc = put_number(b, "{\"group_world_size\": ", e->group_world_size);

    if (rc == 0)
        rc = put_text(b, ", \"entry_point\": ", e->entry_point);
    if (rc == 0 && e->of_worker) {
        rc = buf_printf(b,
                        ", \"local_rank\": [%" PRId64 "], \"role_rank\": [%" PRId64
                        "], \"role_world_size\": [%" PRId64 "]",
                        e->local_rank, e->role_rank, e->role_world_size);
        if (rc == 0)
            rc = put_number(b, ", \"exit_code\": [", e->exit_code);
        if (rc == 0)
            rc = put_number(b, "], \"worker_pid\": [", e->worker_pid);
        if (rc == 0)
            rc = buf_u8(b, ']');
    }
    return rc ? rc : buf_append(b, "}", 2);
}

/* From the opening of the record to "hostname". */
static int head(struct buf *out, const struct event *e, const char *name)
{
    int rc = put_text(out, "{\"name\": ", name);

    if (rc == 0)
        rc = buf_printf(out, ", \"source\": \"%s\", \"timestamp\": 0, \"metadata\": ",
                        e->of_worker ? "WORKER" : "AGENT");
    if (rc == 0)
        rc = put_text(out, "{\"run_id\": ", e->run_id);
    if (rc == 0)
        rc = put_number(
            out, ", \"global_rank\": ", (struct event_number){ e->of_worker, e->rank });
    if (rc == 0)
        rc = put_number(out, ", \"group_rank\": ", e->group_rank);
    if (rc == 0 && e->of_worker)
        rc = buf_printf(out, ", \"worker_id\": \"%d\"", e->worker_id);
    else if (rc == 0)
        rc = buf_append_str(out, ", \"worker_id\": null");
    if (rc == 0)
        rc = put_text(out, ", \"role\": ", e->role);
    return rc ? rc : put_text(out, ", \"hostname\": ", e->hostname);
}

static int middle(struct buf *out, const struct event *e, const char *state)
{
    int rc = put_text(out, ", \"state\": ", state);

    if (rc == 0)
        rc = buf_printf(out, ", \"total_run_time\": %" PRId64, e->total_run_time_s);
    if (rc == 0)
        rc = put_text(out, ", \"rdzv_backend\": ", e->backend);
    return rc ? rc : put_text(out, ", \"raw_error\": ", e->raw_error);
}

static int failure(struct buf *out, const struct event *e)
{
    int rc = put_number(out, ", \"failed_at\": ", e->failed_at);

    if (rc == 0)
        rc = put_text(out, ", \"error_file\": ", e->error_file);
    return rc ? rc : buf_printf(out, ", \"first\": %s", e->first ? "true" : "false");
}

int event_print(struct buf *out, const struct event *e)
{
    struct buf md;
    char name[96] = "torchelastic.worker.status.";

    strncat(name, e->state, sizeof name - strlen(name) - 1);
    buf_init(&md, SIZE_MAX);
    int rc = inner(&md, e);
    if (rc == 0)
        rc = head(out, e, name);
    if (rc == 0)
        rc = middle(out, e, e->state);
    if (rc == 0)
        rc = put_text(out, ", \"metadata\": ", (const char *)buf_data(&md));
    if (rc == 0)
        rc = buf_printf(out, ", \"agent_restarts\": %" PRId64 ", \"duration_ms\": ",
                        e->agent_restarts);
    if (rc == 0)
        rc = e->duration_ms < 0 ? buf_append_str(out, "null")
                                : put_real(out, e->duration_ms);
    if (rc == 0 && e->failed_at.given)
        rc = failure(out, e);
    buf_fini(&md);
    return rc ? rc : buf_append_str(out, "}}");
}

int watchdog_event_print(struct buf *out, const struct watchdog_event *w)
{
    struct buf md;

    buf_init(&md, SIZE_MAX);
    int rc = put_text(&md, "{\"watchdog_event\": ", w->name);
    if (rc == 0 && w->of_timer) {
        rc = buf_printf(&md, ", \"worker_pid\": \"%d\"", w->pid);
        if (rc == 0)
            rc = put_text(&md, ", \"scope_id\": ", w->scope);
        if (rc == 0)
            rc = buf_append_str(&md, ", \"expiration_time\": \"");
        if (rc == 0)
            rc = put_real(&md, w->expires);
        if (rc == 0)
            rc = buf_printf(&md, "\", \"signal\": \"%d\"", w->sig);
    }
    if (rc == 0)
        rc = buf_append(&md, "}", 2);
    if (rc == 0)
        rc = head(out, w->base, w->name);
    if (rc == 0)
        rc = middle(out, w->base, "RUNNING");
    if (rc == 0)
        rc = put_text(out, ", \"metadata\": ", (const char *)buf_data(&md));
    if (rc == 0)
        rc = buf_printf(out, ", \"agent_restarts\": %" PRId64 "}}",
                        w->base->agent_restarts);
    buf_fini(&md);
    return rc;
}
