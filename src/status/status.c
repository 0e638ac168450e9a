/* status.c - see status.h. */
#include "status/status.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "status/core/put.h"

#define WAITERS_MAX 64u
#define ANSWER_MS   500u  /* for the other nodes to answer */
#define PERIOD_MS   1000u /* at least, between two questions to the other nodes */
#define NODE_MS     5u    /* at least, between two questions, for each node */
#define WAIT_NODES  256u  /* larger jobs answer at once with what is known */
#define LINES_MAX   16384u

struct waiter {
    void (*cb)(void *ctx); /* NULL: dropped by status_forget() */
    void *ctx;
};

struct lines_ask {
    struct status *s;
    struct lines_ask *prev, *next;
    status_lines_cb cb;
    void *ctx;
};

struct status {
    struct status_opts opts;
    struct session *session; /* borrowed; NULL: none */
    struct gathered gathered;
    bool asking;
    struct job_input input; /* of the last status_now */
    struct waiter waiters[WAITERS_MAX];
    size_t waiter_count;
    struct {
        struct lines_ask *first, *last;
    } lines; /* owned; those that the session has not answered yet */
    void (*on_change)(void *ctx);
    void *change_ctx;
    struct defer changed;
    struct handle_set closing;
};

/* ---- the other nodes ---- */

void gathered_fini(struct gathered *g)
{
    for (size_t i = 0; i < g->count; i++)
        node_status_fini(&g->answers[i].status);
    mem_free(g->answers);
    buf_fini(&g->bytes);
    *g = (struct gathered){ 0 };
}

int gathered_init(struct gathered *g, const struct session_answer *answers,
                  size_t count)
{
    const int64_t now_us = clock_now().wall_us;

    *g = (struct gathered){ .at_ms = clock_mono_ms() };
    buf_init(&g->bytes, SIZE_MAX);
    g->answers = mem_calloc(count ? count : 1, sizeof *g->answers);
    for (size_t i = 0; i < count; i++)
        (void)buf_append_span(&g->bytes, answers[i].bytes);
    if (!g->answers || buf_error(&g->bytes)) {
        gathered_fini(g);
        return MUSTER_ENOMEM;
    }
    const uint8_t *at = buf_data(&g->bytes);
    for (size_t i = 0; i < count; i++) {
        const size_t n = answers[i].bytes.n;
        struct job_answer *a = &g->answers[g->count];

        if (n && node_status_decode(span_of(at, n), &a->status, NULL) == 0) {
            a->node = answers[i].node;
            a->at_us = now_us;
            g->count++;
        }
        at += n;
    }
    return 0;
}

static void call_waiters(struct status *s)
{
    struct waiter waiters[WAITERS_MAX];
    const size_t count = s->waiter_count;

    memcpy(waiters, s->waiters, count * sizeof *waiters);
    s->waiter_count = 0;
    for (size_t i = 0; i < count; i++)
        if (waiters[i].cb)
            waiters[i].cb(waiters[i].ctx);
}

static void on_answers(void *ctx, const struct session_answer *answers, size_t count,
                       bool complete)
{
    struct status *s = ctx;
    struct gathered g;

    (void)complete;
    s->asking = false;
    if (gathered_init(&g, answers, count) == 0) {
        gathered_fini(&s->gathered);
        s->gathered = g;
    }
    call_waiters(s);
}

static void ask_others(struct status *s)
{
    if (s->asking)
        return;
    s->asking = session_ask(s->session, "status", span_of(NULL, 0), ANSWER_MS,
                            on_answers, s, NULL) == 0;
}

static void on_question(void *ctx, struct session_question *q, struct span payload)
{
    struct status *s = ctx;
    struct job_input in = { 0 };
    struct buf b;

    (void)payload;
    buf_init(&b, SESSION_ANSWER_MAX);
    s->opts.describe(s->opts.ctx, &in);
    if (in.own)
        node_status_encode(&b, in.own);
    session_answer(q, buf_error(&b) ? span_of(NULL, 0) : buf_span(&b));
    buf_fini(&b);
}

struct store_status status_of_store(const struct store_server_stats *s,
                                    struct store_rate *rate)
{
    return (struct store_status){
        .present = true,
        .requests = s->requests,
        .answers = s->answers,
        .bytes_in = s->bytes_in,
        .bytes_out = s->bytes_out,
        .connections = s->connections,
        .keys = s->keys,
        .rate = store_rate(rate, s->requests, clock_mono_ms()),
    };
}

/* ---- recent enough ---- */

int status_when_recent(struct status *s, void (*cb)(void *ctx), void *ctx)
{
    const size_t nodes = s->gathered.count;
    const uint64_t period = MAX_OF(PERIOD_MS, nodes * NODE_MS);
    const bool never = s->gathered.at_ms == 0;

    if (s->session && session_shared(s->session) &&
        (never || clock_mono_ms() - s->gathered.at_ms >= period)) {
        ask_others(s);
        if (s->asking && (never || nodes <= WAIT_NODES)) {
            if (s->waiter_count == WAITERS_MAX)
                return MUSTER_EFULL;
            s->waiters[s->waiter_count++] = (struct waiter){ cb, ctx };
            return 0;
        }
    }
    cb(ctx);
    return 0;
}

void status_forget(struct status *s, void *ctx)
{
    for (size_t i = 0; i < s->waiter_count; i++)
        if (s->waiters[i].ctx == ctx)
            s->waiters[i].cb = NULL;
}

static const char *why_alone(const struct status *s, const struct job_input *in)
{
    const enum session_state state =
        s->session ? session_state(s->session) : SESSION_NONE;

    if (in->nnodes_max <= 1)
        return NULL;
    switch (state) {
    case SESSION_UP:
        return NULL;
    case SESSION_NONE:
        return "the nodes have not met yet";
    case SESSION_CONNECTING:
        return "the coordinator of the job cannot be reached at the moment";
    case SESSION_ALONE:
        return in->own && in->own->group_rank >= 0 && in->nnodes_min == 1
                   ? NULL
                   : "no other node can be asked";
    case SESSION_UNSHARED:
        break;
    }
    return "the job's store is served by torchrun or by an older muster, through which "
           "the other nodes cannot be asked";
}

/* Fills in s->input: all that is known now. */
static void find_input(struct status *s)
{
    s->input = (struct job_input){ 0 };
    s->opts.describe(s->opts.ctx, &s->input);
    if (s->session) {
        s->input.record = session_record(s->session);
        s->input.self = session_node(s->session);
        s->input.answers = s->gathered.answers;
        s->input.answer_count = s->gathered.count;
    }
    if (s->input.own)
        s->input.alone = why_alone(s, &s->input);
}

int status_now(struct status *s, struct job_status *j)
{
    find_input(s);
    return job_status_build(j, &s->input);
}

uint64_t status_stamp(const struct status *s)
{
    const struct record *r = s->session ? session_record(s->session) : NULL;

    return s->gathered.at_ms + (r ? r->last : 0);
}

/* ---- last lines ---- */

/* Appends the lines of a rank of this node; false if the rank is not on this node. */
static bool own_lines(struct status *s, int64_t rank, struct buf *out)
{
    struct job_input in = { 0 };

    s->opts.describe(s->opts.ctx, &in);
    const int64_t local =
        in.own && in.own->first_rank >= 0 ? rank - in.own->first_rank : -1;
    if (local < 0 || local >= (int64_t)in.own->worker_count)
        return false;
    if (s->opts.last_lines)
        s->opts.last_lines(s->opts.ctx, (size_t)local, out);
    return true;
}

static void on_lines_question(void *ctx, struct session_question *q,
                              struct span payload)
{
    struct buf b;

    buf_init(&b, LINES_MAX);
    if (payload.n == 8)
        (void)own_lines(ctx, (int64_t)get_u64(payload.p), &b);
    session_answer(q, buf_span(&b));
    buf_fini(&b);
}

static void lines_done(struct lines_ask *l, struct span found, const char *why)
{
    LIST_REMOVE(&l->s->lines, l, prev, next);
    l->cb(l->ctx, found, why);
    mem_free(l);
}

static void on_lines_answers(void *ctx, const struct session_answer *answers,
                             size_t count, bool complete)
{
    struct lines_ask *l = ctx;
    struct span found = { NULL, 0 };

    (void)complete;
    for (size_t i = 0; i < count; i++)
        if (answers[i].bytes.n)
            found = answers[i].bytes;
    lines_done(l, found,
               found.n ? NULL
                       : "this rank has no log files, or its node cannot be asked");
}

int status_lines(struct status *s, int64_t rank, status_lines_cb cb, void *ctx)
{
    struct lines_ask *l;
    uint8_t payload[8];
    struct buf b;

    buf_init(&b, LINES_MAX);
    if (own_lines(s, rank, &b)) {
        cb(ctx, buf_span(&b),
           buf_len(&b) ? NULL : "this rank has written nothing into log files");
        buf_fini(&b);
        return 0;
    }
    buf_fini(&b);
    if (!s->session || !session_shared(s->session)) {
        cb(ctx, span_of(NULL, 0), "there is no such rank on this node");
        return 0;
    }
    l = mem_calloc(1, sizeof *l);
    if (!l)
        return MUSTER_ENOMEM;
    *l = (struct lines_ask){ .s = s, .cb = cb, .ctx = ctx };
    put_u64(payload, (uint64_t)rank);
    const int rc = session_ask(s->session, "lines", span_of(payload, sizeof payload),
                               ANSWER_MS, on_lines_answers, l, NULL);
    if (rc == 0)
        LIST_APPEND(&s->lines, l, prev, next);
    else
        mem_free(l);
    return rc;
}

int status_stacks(struct status *s, status_lines_cb cb, void *ctx)
{
    return s->opts.stacks ? s->opts.stacks(s->opts.ctx, cb, ctx) : MUSTER_ENOTSUP;
}

int status_set_session(struct status *s, struct session *session)
{
    int rc = session_on_question(session, "status", on_question, s);

    if (rc == 0)
        rc = session_on_question(session, "lines", on_lines_question, s);
    if (rc == 0)
        s->session = session;
    return rc;
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

struct status_asked {
    struct status *s;
    struct local_request *r;
};

/* The command builds the status from what is known here: see job_status.h. */
static void answer_status(void *ctx)
{
    struct status_asked *a = ctx;
    struct buf bytes, text;

    buf_init(&bytes, SIZE_MAX);
    buf_init(&text, SIZE_MAX);
    find_input(a->s);
    job_input_encode(&bytes, &a->s->input);
    put_str(&text, "\"");
    buf_fail(&text, buf_error(&bytes));
    (void)base64_encode(&text, buf_span(&bytes));
    put_str(&text, "\"");
    local_request_answer(a->r, &text, buf_error(&text));
    buf_fini(&bytes);
    mem_free(a);
}

static void on_status(void *ctx, struct local_request *r, const json_t *body)
{
    struct status_asked *a = mem_calloc(1, sizeof *a);

    (void)body;
    if (!a) {
        local_request_refuse(r, "out of memory");
        return;
    }
    *a = (struct status_asked){ ctx, r };
    if (status_when_recent(ctx, answer_status, a) != 0) {
        local_request_refuse(r, "too many requests wait for an answer");
        mem_free(a);
    }
}

static void answer_lines(void *ctx, struct span text, const char *why)
{
    struct buf b;

    if (why) {
        local_request_refuse(ctx, "%s", why);
        return;
    }
    buf_init(&b, SIZE_MAX);
    put_json(&b, text);
    local_request_answer(ctx, &b, buf_error(&b));
}

static void on_lines(void *ctx, struct local_request *r, const json_t *body)
{
    const json_int_t rank = json_integer_value(json_object_get(body, "rank"));

    if (status_lines(ctx, rank, answer_lines, r) != 0)
        local_request_refuse(r, "too many requests wait for an answer");
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

static void status_on_closed(void *ctx)
{
    struct status *s = ctx;

    gathered_fini(&s->gathered);
    mem_free(s);
}

/* The session ends with us and brings no more answers. Callbacks that wait for one are
 * called now, so that they free what they hold. */
void status_close(struct status *s)
{
    if (!s)
        return;
    call_waiters(s);
    while (s->lines.first)
        lines_done(s->lines.first, span_of(NULL, 0), "the job has ended");
    handle_set_begin(&s->closing, status_on_closed, s);
    handle_set_close(&s->closing, &s->changed.idle);
    handle_set_end(&s->closing);
}
