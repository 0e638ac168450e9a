/* job_guard.c - process/guard.h for simulated agents: their workers are simulated
 * processes on the same machine. They die with their agent, which the guard ensures on
 * a real machine. Now and then they leave a process behind. */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/err.h"
#include "base/mem.h"
#include "process/guard.h"
#include "sim/job.h"

enum news_kind {
    NEWS_STARTED,
    NEWS_REFUSED,
    NEWS_EXITED,
    NEWS_LEFTOVERS,
    NEWS_EMPTY,
    NEWS_FENCED,
};

struct news {
    struct news *next;
    enum news_kind kind;
    uint32_t id;
    int value;
    int64_t wall_us;
};

struct guarded_worker {
    struct guarded_worker *next;
    struct job_worker worker;
    struct guard *guard;
    uint32_t id;
    bool living; /* spawned, or about to be, and not exited */
    bool doomed; /* to be killed; whoever is spawned after that order is not */
};

struct guard {
    struct os_process *agent;
    struct job_node *node;
    uv_async_t async;
    bool watched, stopped;
    const struct guard_events *events;
    void *ctx;
    struct news *first, *last;
    struct guarded_worker *held; /* newest first */
    size_t living;
    bool leftovers;
    uint64_t fences; /* how often the time was set */
};

static void guard_notify(struct guard *g, enum news_kind kind, uint32_t id, int value)
{
    struct news *n;

    if (g->stopped || g->agent->state == OS_ENDED || !g->watched)
        return;
    n = os_alloc(sizeof *n);
    n->kind = kind;
    n->id = id;
    n->value = value;
    n->wall_us = OS_WALL_US + (int64_t)os.t + g->node->machine->wall_us;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    (void)uv_async_send(&g->async);
}

static void job_guard_on_news(uv_async_t *async)
{
    struct guard *g = async->data;

    while (g->first && !g->stopped) {
        const struct news *n = g->first;
        const struct guard_exit how = { .status = n->value, .wall_us = n->wall_us };

        g->first = n->next;
        if (!g->first)
            g->last = NULL;
        switch (n->kind) {
        case NEWS_STARTED:
            g->events->on_started(g->ctx, n->id, n->value, false);
            break;
        case NEWS_REFUSED:
            g->events->on_refused(g->ctx, n->id, n->value);
            break;
        case NEWS_EXITED:
            g->events->on_exited(g->ctx, n->id, &how);
            break;
        case NEWS_LEFTOVERS:
            g->events->on_leftovers(g->ctx);
            break;
        case NEWS_EMPTY:
            g->events->on_empty(g->ctx);
            break;
        case NEWS_FENCED:
            g->events->on_fenced(g->ctx);
            break;
        }
    }
}

static void on_exited(void *ctx, struct os_process *p)
{
    struct guarded_worker *h = ctx;
    struct guard *g = h->guard;
    const int code = p->exit_code;

    if (!h->living)
        return;
    h->living = false;
    g->living--;
    job_worker_ended(&h->worker);
    guard_notify(g, NEWS_EXITED, h->id, code < 0 ? -code : (code & 0xff) << 8);
    if (g->living)
        return;
    g->leftovers = os_chance(10);
    guard_notify(g, g->leftovers ? NEWS_LEFTOVERS : NEWS_EMPTY, 0, 0);
}

static void on_spawned(void *arg, uint64_t n)
{
    struct guarded_worker *h = arg;
    struct guard *g = h->guard;
    char name[32];

    if (!h->living || g->stopped || g->agent->state == OS_ENDED)
        return;
    (void)snprintf(name, sizeof name, "%s.w%u", g->node->machine->name, h->id);
    h->worker.process =
        os_process_start(g->node->machine, name, job_worker_main, &h->worker);
    h->worker.process->ended = on_exited;
    h->worker.process->ended_ctx = h;
    g->node->workers_started++;
    guard_notify(g, NEWS_STARTED, h->id, h->worker.process->pid);
}

/* No worker outlives its agent. */
static void kill_workers(struct guard *g, bool all)
{
    for (struct guarded_worker *h = g->held; h; h = h->next) {
        if (!h->living || (!h->doomed && !all))
            continue;
        h->worker.told = true;
        if (h->worker.process) {
            os_signal(h->worker.process, SIGKILL);
        } else {
            h->living = false;
            g->living--;
            guard_notify(g, NEWS_STARTED, h->id, 999);
            guard_notify(g, NEWS_EXITED, h->id, SIGKILL);
            if (!g->living)
                guard_notify(g, NEWS_EMPTY, 0, 0);
        }
    }
}

bool job_has_workers(const struct job_node *n)
{
    return n->guard && n->guard->living;
}

void job_agent_gone(struct job_node *n)
{
    struct guard *g = n->guard;

    n->guard = NULL;
    if (g)
        kill_workers(g, true);
}

int guard_start(guard_fn fn, void *fn_ctx, struct guard **out, struct muster_error *err)
{
    struct guard *g = os_alloc(sizeof *g);

    g->agent = os.current;
    g->node = g->agent->arg;
    g->node->guard = g;
    *out = g;
    return 0;
}

int guard_watch(struct guard *g, uv_loop_t *loop, const struct guard_events *events,
                void *ctx, struct muster_error *err)
{
    g->events = events;
    g->ctx = ctx;
    g->watched = true;
    (void)uv_async_init(loop, &g->async, job_guard_on_news);
    g->async.data = g;
    return 0;
}

int guard_spawn(struct guard *g, const struct guard_service *from, uint32_t id,
                const struct proc_spec *spec, int result_fd, struct muster_error *err)
{
    struct guarded_worker *h = os_alloc(sizeof *h);
    size_t count = 0;

    while (spec->envp[count])
        count++;
    h->worker.env = os_alloc((count + 1) * sizeof *h->worker.env);
    for (size_t i = 0; i < count; i++) {
        h->worker.env[i] = os_alloc(strlen(spec->envp[i]) + 1);
        memcpy(h->worker.env[i], spec->envp[i], strlen(spec->envp[i]) + 1);
    }
    h->worker.node = g->node;
    h->worker.id = id;
    h->worker.round = g->node->round;
    h->worker.counted = job_shares_record(g->node);
    g->node->words[job_worker_number(&h->worker, "LOCAL_RANK") % JOB_NPROC] = NULL;
    job_check_restart_count(
        g->node, job_worker_number(&h->worker, "TORCHELASTIC_RESTART_COUNT"));
    h->guard = g;
    h->id = id;
    h->living = true;
    h->next = g->held;
    g->held = h;
    g->living++;
    os_at(os.t + os_random(500, 8 * OS_MS), on_spawned, h, 0);
    return 0;
}

/* No simulated job has services. */
int guard_service_start(struct guard *g, const struct guard_service_spec *spec,
                        const struct guard_service_events *events, void *ctx,
                        struct guard_service **out, struct muster_error *err)
{
    return err_set(err, MUSTER_ENOTSUP, "no services in a simulated job");
}

void guard_service_signal(struct guard_service *s, int sig)
{
}

void guard_service_forget(struct guard_service *s)
{
}

void guard_signal(struct guard *g, uint32_t id, int sig)
{
    for (struct guarded_worker *h = g->held; h; h = h->next) {
        if (h->id != id || !h->living)
            continue;
        job_worker_signal(&h->worker, sig);
        return;
    }
}

int guard_adopt(struct guard *g)
{
    return 0;
}

int guard_fork_error(struct muster_error *err, int errnum)
{
    return err_set(err, MUSTER_EIO, "errno %d", errnum);
}

/* There are no files. */
void guard_tidy(struct guard *g, const char *dir)
{
}

/* Simulated workers have no handlers. */
void guard_pass_on(struct guard *g, uint32_t id, int sig)
{
}

static void on_leftovers_gone(void *arg, uint64_t n)
{
    struct guard *g = arg;

    if (!g->leftovers || g->living)
        return;
    g->leftovers = false;
    guard_notify(g, NEWS_EMPTY, 0, 0);
}

void guard_signal_leftovers(struct guard *g, int sig)
{
    os_at(os.t + os_random(100, 500 * OS_MS), on_leftovers_gone, g, 0);
}

static void on_kill_all(void *arg, uint64_t n)
{
    struct guard *g = arg;

    kill_workers(g, false);
    on_leftovers_gone(g, 0);
}

static void on_fence(void *arg, uint64_t n)
{
    struct guard *g = arg;

    if (n != g->fences || g->stopped || g->agent->state == OS_ENDED || !g->living ||
        g->agent->stopped_t <= os.t)
        return;
    guard_notify(g, NEWS_FENCED, 0, 0);
    on_kill_all(g, 0);
}

/* One that finds the agent at work looks again after the same time; a simulated agent
 * has then told it a later one. */
void guard_fence(struct guard *g, uint64_t ms)
{
    g->fences++;
    if (ms < UINT32_MAX)
        os_at(os.t + ms * OS_MS, on_fence, g, g->fences);
}

void guard_kill_all(struct guard *g)
{
    for (struct guarded_worker *h = g->held; h; h = h->next)
        h->doomed = true;
    os_at(os.t + os_random(100, 20 * OS_MS), on_kill_all, g, 0);
}

pid_t guard_root(const struct guard *g)
{
    return g->agent->pid + 1000000;
}

void guard_dismiss(struct guard *g)
{
    if (g)
        kill_workers(g, true);
}

void guard_stop(struct guard *g, void (*cb)(void *ctx), void *ctx)
{
    if (!g)
        return;
    kill_workers(g, true);
    g->stopped = true;
    g->node->guard = NULL;
    if (g->watched)
        uv_close((uv_handle_t *)&g->async, NULL);
    if (cb)
        cb(ctx);
}
