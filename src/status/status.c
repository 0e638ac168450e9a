/* status.c - see status.h. */
#include "status/status.h"

#include "base/err.h"
#include "base/mem.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "status/core/put.h"

#define WAITERS_MAX 64u

struct waiter {
    void (*cb)(void *ctx);
    void *ctx;
};

struct status {
    struct status_opts opts;
    struct job_input input; /* of the last status_now */
    struct waiter waiters[WAITERS_MAX];
    size_t waiter_count;
    void (*on_change)(void *ctx);
    void *change_ctx;
    struct defer changed;
    struct handle_set closing;
};

/* ---- recent enough ---- */

int status_when_recent(struct status *s, void (*cb)(void *ctx), void *ctx)
{
    (void)s;
    cb(ctx);
    return 0;
}

void status_forget(struct status *s, void *ctx)
{
    for (size_t i = 0; i < s->waiter_count; i++)
        if (s->waiters[i].ctx == ctx)
            s->waiters[i].cb = NULL;
}

int status_now(struct status *s, struct job_status *j)
{
    s->input = (struct job_input){ 0 };
    s->opts.describe(s->opts.ctx, &s->input);
    return job_status_build(j, &s->input);
}

/* ---- change ---- */

static void on_deferred(void *ctx)
{
    struct status *s = ctx;

    if (s->on_change)
        s->on_change(s->change_ctx);
}

void status_on_change(struct status *s, void (*cb)(void *ctx), void *ctx)
{
    s->on_change = cb;
    s->change_ctx = ctx;
}

void status_changed(struct status *s)
{
    if (s && s->on_change)
        defer_call(&s->changed);
}

/* ---- the agent's socket ---- */

struct asked {
    struct status *s;
    struct local_request *r;
    uint32_t node;
};

static void answer_status(void *ctx)
{
    struct asked *a = ctx;
    struct job_status j;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (status_now(a->s, &j) == 0) {
        job_status_json(&b, &j, a->node, !a->node);
        job_status_fini(&j);
    } else {
        buf_fail(&b, MUSTER_ENOMEM);
    }
    local_request_answer(a->r, &b, buf_error(&b));
    mem_free(a);
}

static void on_status(void *ctx, struct local_request *r, const json_t *body)
{
    struct asked *a = mem_calloc(1, sizeof *a);

    if (!a) {
        local_request_refuse(r, "out of memory");
        return;
    }
    a->s = ctx;
    a->r = r;
    a->node = (uint32_t)json_integer_value(json_object_get(body, "node"));
    if (status_when_recent(ctx, answer_status, a) != 0) {
        local_request_refuse(r, "too many ask at the same time");
        mem_free(a);
    }
}

static void on_lines(void *ctx, struct local_request *r, const json_t *body)
{
    struct status *s = ctx;
    const json_int_t rank = json_integer_value(json_object_get(body, "rank"));
    struct job_input in = { 0 };
    struct buf lines, b;

    s->opts.describe(s->opts.ctx, &in);
    const int64_t local = in.own ? rank - in.own->first_rank : -1;
    if (!in.own || in.own->first_rank < 0 || local < 0 ||
        local >= (int64_t)in.own->worker_count) {
        local_request_refuse(r, "rank %lld is not on this node", (long long)rank);
        return;
    }
    buf_init(&lines, 65536);
    buf_init(&b, SIZE_MAX);
    if (s->opts.last_lines)
        s->opts.last_lines(s->opts.ctx, (size_t)local, &lines);
    put_json(&b, buf_span(&lines));
    buf_fini(&lines);
    local_request_answer(r, &b, buf_error(&b));
}

int status_serve_local(struct status *s, struct local_socket *local)
{
    const int rc = local_socket_register(local, "status", on_status, s);

    return rc ? rc : local_socket_register(local, "lines", on_lines, s);
}

/* ---- open and close ---- */

int status_open(const struct status_opts *opts, struct status **out,
                struct muster_error *err)
{
    struct status *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->opts = *opts;
    defer_init(&s->changed, opts->loop, on_deferred, s);
    *out = s;
    return 0;
}

static void on_closed(void *ctx)
{
    mem_free(ctx);
}

void status_close(struct status *s)
{
    if (!s)
        return;
    handle_set_begin(&s->closing, on_closed, s);
    handle_set_close(&s->closing, &s->changed.idle);
    handle_set_end(&s->closing);
}
