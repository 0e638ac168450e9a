/* service.c - see service.h. */
#include "stacks/service.h"

#include <stdio.h>

#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"

#define KIND    "stacks"
#define AT_ONCE 8u

/* One reading of this node's stacks. */
struct task {
    struct stacks_service *s; /* NULL once the service is gone */
    struct stacks_reading *reading;
    struct task *prev, *next;
    bool holds; /* the workers' main threads, for native frames or their own answer */
    stacks_cb cb;
    void *ctx;
};

struct gathering;

struct stacks_service {
    struct stacks_service_opts opts;
    struct stacks_target *targets; /* owned, room for opts.most */
    struct session *session;       /* borrowed; NULL: none */
    struct {
        struct task *first, *last;
    } tasks; /* owned, as are the next */
    struct {
        struct gathering *first, *last;
    } gatherings;     /* whose answers the session has yet to bring */
    struct buf known; /* what the last reading of this node gave */
    size_t running;
    uint64_t holds;
    bool answers; /* workers told by themselves where they are, the last time */
};

/* --- this node -------------------------------------------------------------------- */

static void unlink_task(struct task *t)
{
    LIST_REMOVE(&t->s->tasks, t, prev, next);
    t->s->running--;
    t->s->holds += t->holds; /* The service has ended meanwhile. */
}

static void service_on_read(void *ctx, int status, struct span json,
                            const struct muster_error *err)
{
    struct task *t = ctx;
    struct stack_sample sample = { 0 };
    struct muster_error why;
    char text[400];

    if (status == 0 && stack_sample_parse(&sample, json, &why) != 0) {
        status = why.code;
        err = &why;
    }
    if (status != 0) {
        snprintf(text, sizeof text, "%.100s: %.250s", t->s->opts.node, err->text);
        (void)stack_sample_note(&sample, text);
    }
    if (status == 0) {
        buf_clear(&t->s->known);
        (void)buf_append_span(&t->s->known, json);
    }
    stack_sample_sort(&sample);
    t->holds = t->holds || sample.held;
    t->s->answers = sample.held;
    unlink_task(t);
    t->cb(t->ctx, &sample);
    stack_sample_fini(&sample);
    mem_free(t);
}

int stacks_of_node(struct stacks_service *s, enum stacks_depth depth,
                   uint64_t timeout_ms, stacks_cb cb, void *ctx,
                   struct muster_error *err)
{
    struct task *t;

    if (s->running >= AT_ONCE)
        return err_set(err, MUSTER_EFULL,
                       "too many requests for stacks at the same time");
    t = mem_calloc(1, sizeof *t);
    if (!t)
        return err_nomem(err);
    *t = (struct task){ .s = s, .cb = cb, .ctx = ctx };
    const struct stacks_read_opts opts = {
        .loop = s->opts.loop,
        .targets = s->targets,
        .count = s->opts.targets(s->opts.ctx, s->targets, s->opts.most),
        .node = s->opts.node,
        .envp = s->opts.envp,
        .depth = depth,
        .timeout_ms = timeout_ms,
        .known = buf_span(&s->known),
        .done = service_on_read,
        .ctx = t,
    };
    const int rc = stacks_read(&opts, &t->reading, err);
    if (rc != 0) {
        mem_free(t);
        return rc;
    }
    t->holds = depth == STACKS_FULL || s->answers;
    s->holds += t->holds;
    LIST_APPEND(&s->tasks, t, prev, next);
    s->running++;
    return 0;
}

/* --- all nodes -------------------------------------------------------------------- */

struct gathering {
    struct stacks_service *s;
    struct gathering *prev, *next;
    stacks_cb cb;
    void *ctx;
    const char *alone; /* why only this node was asked */
};

static void service_on_answers(void *ctx, const struct session_answer *answers,
                               size_t count, bool complete)
{
    struct gathering *g = ctx;
    struct stack_sample sample = { 0 };

    (void)complete;
    for (size_t i = 0; i < count; i++) {
        const struct session_answer *a = &answers[i];
        char text[200];

        if (!a->missing && stack_sample_parse_of(&sample, a->bytes, a->host, NULL) == 0)
            continue;
        snprintf(text, sizeof text, "node %.*s %s", (int)MIN_OF(a->host.n, (size_t)100),
                 (const char *)a->host.p,
                 a->missing ? "did not answer"
                            : "answered with something other than stacks");
        (void)stack_sample_note(&sample, text);
    }
    stack_sample_sort(&sample);
    LIST_REMOVE(&g->s->gatherings, g, prev, next);
    g->cb(g->ctx, &sample);
    stack_sample_fini(&sample);
    mem_free(g);
}

static void service_on_own(void *ctx, struct stack_sample *sample)
{
    struct gathering *g = ctx;

    if (g->alone)
        (void)stack_sample_note(sample, g->alone);
    g->cb(g->ctx, sample);
    mem_free(g);
}

/* Why other nodes cannot be asked; NULL if there are none. */
static const char *why_alone(const struct stacks_service *s)
{
    if (!s->session || session_state(s->session) == SESSION_ALONE)
        return NULL;
    if (session_state(s->session) == SESSION_UNSHARED)
        return "this node alone: the store is not served by muster, so other nodes "
               "cannot be asked";
    return "this node alone: the coordinator of the job cannot be reached now";
}

int stacks_of_job(struct stacks_service *s, uint64_t timeout_ms, stacks_cb cb,
                  void *ctx, struct muster_error *err)
{
    struct gathering *g = mem_calloc(1, sizeof *g);
    int rc;

    if (!g)
        return err_nomem(err);
    *g = (struct gathering){ s, NULL, NULL, cb, ctx, why_alone(s) };
    if (s->session && session_shared(s->session)) {
        char within[32];

        snprintf(within, sizeof within, "%u",
                 (unsigned)MIN_OF(timeout_ms, (uint64_t)STACKS_WAIT_MOST_MS));
        rc = session_ask(s->session, KIND, span_str(within),
                         timeout_ms + STACKS_TRAVEL_MS, service_on_answers, g, err);
        if (rc == 0)
            LIST_APPEND(&s->gatherings, g, prev, next);
    } else
        rc = stacks_of_node(s, STACKS_FULL, timeout_ms, service_on_own, g, err);
    if (rc != 0)
        mem_free(g);
    return rc;
}

/* --- questions of other nodes ----------------------------------------------------- */

struct asked {
    struct stacks_service *s;
    struct session_question *q;
    char node[256];
};

static void answer_question(void *ctx, struct stack_sample *sample)
{
    struct asked *a = ctx;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    (void)stack_sample_print_within(&b, sample, a->node, SESSION_ANSWER_MAX);
    session_answer(a->q, buf_span(&b));
    buf_fini(&b);
    mem_free(a);
}

static uint64_t bounded(uint64_t ms)
{
    return ms >= 100 ? MIN_OF(ms, (uint64_t)STACKS_WAIT_MOST_MS) : STACKS_WAIT_MS;
}

/* "1500": how long a reading may take, in milliseconds. */
static uint64_t time_of(struct span text)
{
    uint64_t ms;

    return span_take_number(&text, &ms) && !text.n ? bounded(ms) : STACKS_WAIT_MS;
}

static void service_on_question(void *ctx, struct session_question *q,
                                struct span payload)
{
    struct stacks_service *s = ctx;
    struct asked *a = mem_calloc(1, sizeof *a);

    if (!a) {
        session_answer(q, span_of(NULL, 0));
        return;
    }
    a->s = s;
    a->q = q;
    snprintf(a->node, sizeof a->node, "%s", s->opts.node);
    if (stacks_of_node(s, STACKS_FULL, time_of(payload), answer_question, a, NULL) == 0)
        return;
    struct stack_sample none = { 0 };
    (void)stack_sample_note(&none, "a node could not read the stacks of its ranks");
    answer_question(a, &none);
    stack_sample_fini(&none);
}

int stacks_service_session(struct stacks_service *s, struct session *session)
{
    s->session = session;
    return session_on_question(session, KIND, service_on_question, s);
}

/* --- the agent's own socket ------------------------------------------------------- */

static void answer_request(void *ctx, struct stack_sample *sample)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    const int rc = stack_sample_print_within(&b, sample, NULL, STACK_JOB_BYTES);
    local_request_answer(ctx, &b, rc);
}

static void service_on_request(void *ctx, struct local_request *r, const json_t *body)
{
    struct stacks_service *s = ctx;
    struct muster_error err;
    const json_t *wait = json_object_get(body, "wait_ms");
    const json_int_t ms = json_is_integer(wait) ? json_integer_value(wait) : 0;

    if (s->opts.targets(s->opts.ctx, s->targets, s->opts.most) == 0 &&
        !(s->session && session_shared(s->session)))
        local_request_refuse(r, "no worker of this job runs now");
    else if (stacks_of_job(s, bounded(ms > 0 ? (uint64_t)ms : 0), answer_request, r,
                           &err) != 0)
        local_request_refuse(r, "%s", err.text);
}

int stacks_service_local(struct stacks_service *s, struct local_socket *local)
{
    return local_socket_register(local, KIND, service_on_request, s);
}

uint64_t stacks_service_holds(const struct stacks_service *s, uint64_t *count)
{
    uint64_t now = 0;

    *count = s->holds;
    for (const struct task *t = s->tasks.first; t; t = t->next)
        now += t->holds;
    return now;
}

/* --- open and close --------------------------------------------------------------- */

int stacks_service_open(const struct stacks_service_opts *opts,
                        struct stacks_service **out, struct muster_error *err)
{
    struct stacks_service *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->opts = *opts;
    buf_init(&s->known, STACK_NODE_BYTES);
    s->targets = mem_calloc(opts->most, sizeof *s->targets);
    if (!s->targets) {
        mem_free(s);
        return err_nomem(err);
    }
    *out = s;
    return 0;
}

/* Whoever waits for a reading gets an empty one, so that what it holds is freed. */
void stacks_service_close(struct stacks_service *s)
{
    if (!s)
        return;
    for (struct task *t; (t = s->tasks.first);) {
        struct stack_sample none = { 0 };

        stacks_read_cancel(t->reading);
        unlink_task(t);
        t->cb(t->ctx, &none);
        mem_free(t);
    }
    /* The session ends, too: its answers do not come. */
    for (struct gathering *g; (g = s->gatherings.first);) {
        struct stack_sample none = { 0 };

        LIST_REMOVE(&s->gatherings, g, prev, next);
        g->cb(g->ctx, &none);
        mem_free(g);
    }
    buf_fini(&s->known);
    mem_free(s->targets);
    mem_free(s);
}
