/* stacks.c - glue between the agent and stacks/service.h: the stacks of this node's
 * workers, for whoever may ask, and before workers are killed. */
#include <signal.h>

#include "agent/agent_int.h"
#include "base/mem.h"
#include "launch/core/options.h"
#include "stacks/core/findings.h"
#include "stacks/service.h"

#define BEFORE_MS 1500u /* for the stacks of workers that are to be killed, */
#define DUMP_MS   400u  /* and for what they print of themselves */

size_t agent_stacks_targets(void *ctx, struct stacks_target *out, size_t most)
{
    const struct agent *a = ctx;
    size_t n = 0;

    for (int64_t i = 0; i < a->config->nproc && n < most; i++)
        if (a->workers[i].pid > 0 && !a->workers[i].exited)
            out[n++] =
                (struct stacks_target){ a->range.base_rank + i, i, a->workers[i].pid };
    return n;
}

/* A job goes on without this, as it does without the status. */
void agent_stacks_open(struct agent *a)
{
    const struct stacks_service_opts opts = {
        .loop = &a->loop,
        .run_id = a->config->rdzv.run_id,
        .node = a->host,
        .envp = a->opts.envp,
        .targets = agent_stacks_targets,
        .most = (size_t)a->config->nproc,
        .ctx = a,
    };
    struct muster_error why = { 0 };
    int rc = stacks_service_open(&opts, &a->stacks, &why);

    if (rc == 0 && a->local)
        rc = stacks_service_local(a->stacks, a->local);
    if (rc == 0)
        rc = stacks_service_session(a->stacks, a->job.session);
    if (rc != 0)
        log_line(a->log, LOG_DEBUG, AT_AGENT, "no stacks: %s", why.text);
}

/* --- before a kill ---------------------------------------------------------------- */

struct before {
    struct agent *a;
    const char *what;
    void (*cb)(void *ctx);
    void *ctx;
    uv_timer_t timer;
};

static void before_on_closed(uv_handle_t *h)
{
    mem_free(h->data);
}

static void before_end(uv_timer_t *timer)
{
    struct before *b = timer->data;

    b->cb(b->ctx);
    uv_close((uv_handle_t *)timer, before_on_closed);
}

/* Where stacks may not be read, a Python with PYTHONFAULTHANDLER prints its own to
 * stderr when it is aborted. The worker is about to be killed anyway. */
static bool abort_unread(struct agent *a, const struct stack_sample *sample)
{
    const char *set = env_get(a->opts.envp, "PYTHONFAULTHANDLER");
    bool any = false;

    for (size_t i = 0; set && *set && i < sample->count; i++) {
        const struct stack_rank *r = &sample->ranks[i];

        if (stack_kind_of(r) != STACK_UNREAD || !*r->processes[0].missing)
            continue;
        guard_signal(a->guard, (uint32_t)r->local_rank, SIGABRT);
        any = true;
    }
    if (any)
        log_line(
            a->log, LOG_WARN, AT_STACKS,
            "workers whose stacks cannot be read get SIGABRT: PYTHONFAULTHANDLER has "
            "them print to their stderr where they are");
    return any;
}

static void before_on_stacks(void *ctx, struct stack_sample *sample)
{
    struct before *b = ctx;
    struct agent *a = b->a;
    struct stack_findings f;
    struct buf out;

    buf_init(&out, 65536);
    if (sample->count > 0 && stack_findings_make(&f, sample) == 0) {
        (void)stack_findings_print(&out, &f, sample);
        if (buf_error(&out) == 0 && buf_len(&out) > 0) /* without the last newline */
            log_line(a->log, LOG_WARN, AT_STACKS,
                     "where the workers that %s are:\n%.*s", b->what,
                     (int)buf_len(&out) - 1, (const char *)buf_data(&out));
        stack_findings_fini(&f);
    }
    buf_fini(&out);
    uv_timer_start(&b->timer, before_end, abort_unread(a, sample) ? DUMP_MS : 0, 0);
}

bool agent_stacks_before(struct agent *a, const char *what, void (*cb)(void *ctx),
                         void *ctx)
{
    struct before *b = a->stacks ? mem_calloc(1, sizeof *b) : NULL;

    if (!b)
        return false;
    *b = (struct before){ .a = a, .what = what, .cb = cb, .ctx = ctx };
    if (stacks_of_node(a->stacks, STACKS_FULL, BEFORE_MS, before_on_stacks, b, NULL)) {
        mem_free(b);
        return false;
    }
    (void)uv_timer_init(&a->loop, &b->timer);
    b->timer.data = b;
    return true;
}

void agent_kill_workers(void *agent)
{
    struct agent *a = agent;

    if (a->core.phase == AGENT_KILLING)
        guard_kill_all(a->guard);
}

void agent_stacks_close(struct agent *a)
{
    stacks_service_close(a->stacks);
    a->stacks = NULL;
}
