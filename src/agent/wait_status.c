/* wait_status.c - what a person sees while the agent waits for other nodes: on a
 * terminal one line that is kept up to date, in a log a line now and then. */
#include <time.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "launch/core/options.h"
#include "loop/clock.h"

#define LINE_MS      1000u /* a terminal's line is this old at most */
#define LOG_FIRST_MS 5000u /* of waiting, before a log should tell of it */
#define LOG_AGAIN_MS 30000u
#define CLOSED_MS    1000u

struct agent_wait {
    uv_timer_t timer; /* while we wait for other nodes: tells what for */
    enum waiting_for what;
    uint64_t since_ms, by_ms;
    struct who_is_missing *look; /* owned; once somebody is to be told */
    bool logged;
};

int agent_wait_open(struct agent *a, struct muster_error *err)
{
    a->wait = mem_calloc(1, sizeof *a->wait);
    if (!a->wait)
        return err_nomem(err);
    (void)uv_timer_init(&a->loop, &a->wait->timer);
    a->wait->timer.data = a;
    return 0;
}

void agent_wait_close(struct agent *a)
{
    if (!a->wait)
        return;
    agent_wait_end(a, false);
    uv_close((uv_handle_t *)&a->wait->timer, NULL);
}

static bool on_screen(const struct agent *a)
{
    return a->opts.log->screen && a->opts.log->screen->lines;
}

static int64_t seconds_of_day(void)
{
    const time_t now = time(NULL);
    struct tm tm;

    (void)localtime_r(&now, &tm);
    return tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec;
}

static void print_wait(struct agent *a, const struct waiting *w)
{
    struct buf b;

    buf_init(&b, 4096);
    if (waiting_print(&b, w) == 0 && buf_u8(&b, 0) == 0) {
        const char *text = (const char *)buf_data(&b);

        if (on_screen(a))
            status_line(a->opts.log, text);
        else
            log_line(a->log, LOG_WARN, AT_RENDEZVOUS, "run '%s': %s",
                     a->config->rdzv.run_id, text);
    }
    buf_fini(&b);
    a->wait->logged = true;
}

struct wait_facts {
    struct waiting w; /* points to the two below */
    struct rdzv_progress progress;
    char expected[RDZV_NAMES_SIZE];
};

/* False: the rendezvous has nothing to tell. */
static bool collect_facts(struct agent *a, struct wait_facts *f)
{
    const char *list =
        a->opts.envp ? env_get(a->opts.envp, "SLURM_STEP_NODELIST") : NULL;
    const struct missing_seen seen = who_is_missing_seen(a->wait->look);

    f->progress = (struct rdzv_progress){ 0 };
    f->expected[0] = '\0';
    f->w = (struct waiting){
        .what = a->wait->what,
        .progress = &f->progress,
        .ranks = seen.ranks,
        .done = seen.done,
        .world = a->round.world_size,
        .by_ms = a->wait->by_ms,
        .store = a->config->rdzv.endpoint,
        .expected = f->expected,
        .gone = a->job.gone,
        .since_ms = a->wait->since_ms,
        .now_ms = clock_mono_ms(),
        .wall_s = seconds_of_day(),
        .closed = a->run_closed,
    };
    if (f->w.what == WAITING_FOR_ROUND) {
        if (!a->handler->ops->progress ||
            !a->handler->ops->progress(a->handler, &f->progress))
            return false;
        if (list)
            waiting_slurm_names(list, f->expected);
    } else if (f->w.what == WAITING_FOR_END) { /* which a loss cuts short */
        f->w.by_ms = MIN_OF(f->w.by_ms, agent_core_deadline(&a->core));
    }
    return true;
}

int agent_wait_text(struct agent *a, struct buf *b)
{
    const enum agent_core_phase phase = a->core.phase;
    const uint64_t held_ms = agent_policy_wait_ms(a);
    struct wait_facts f;

    if (held_ms && phase == AGENT_JOINING)
        return buf_printf(b, "back-off: the next attempt begins in %.1f s",
                          (double)held_ms / 1e3);

    if (phase != AGENT_JOINING && phase != AGENT_ASSIGNING && phase != AGENT_BARRIER)
        return 0;
    return collect_facts(a, &f) ? waiting_print(b, &f.w) : 0;
}

static void show_wait(struct agent *a)
{
    struct wait_facts f;

    if (!collect_facts(a, &f))
        return;
    if (f.w.what == WAITING_FOR_ROUND && f.progress.stage == RDZV_AT_SPARE)
        agent_job_spare(a);
    if (f.w.what == WAITING_FOR_ROUND && f.progress.stage == RDZV_AT_STORE &&
        f.progress.dialled && !on_screen(a))
        return;
    print_wait(a, &f.w);
    if (f.w.what == WAITING_FOR_END && f.w.closed && f.w.done >= f.w.world - 1) {
        agent_post(a, AGENT_EV_BARRIER_SHORT, 0, 0);
        agent_pump(a);
    }
}

static void on_looked(void *ctx)
{
    show_wait(ctx);
}

/* Where the store knows who has come, it is asked first. */
static struct who_is_missing *look_for(struct agent *a)
{
    const struct rdzv_handler_ops *ops = a->handler->ops;
    struct async_store *store = NULL;
    struct rdzv_progress p;

    switch (a->wait->what) {
    case WAITING_FOR_ROUND:
        store = ops->gathers_at ? ops->gathers_at(a->handler) : NULL;
        if (!store || !ops->progress(a->handler, &p) || p.stage != RDZV_AT_ROUND)
            return NULL;
        return who_is_missing_open(store, MISSING_AT_START, p.max_nodes, 0, on_looked,
                                   a);
    case WAITING_FOR_NODES:
        return who_is_missing_open(a->round.store, MISSING_AT_START,
                                   a->round.world_size, a->round.rank, on_looked, a);
    case WAITING_FOR_END:
        return who_is_missing_open(a->round.store, MISSING_AT_END, a->round.world_size,
                                   a->round.rank, on_looked, a);
    case WAITING_FOR_RANKS:
        break;
    }
    return NULL;
}

/* If the store has not answered since the last time, an old line is shown rather than
 * none. */
static void on_wait(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    if (!a->wait->look)
        a->wait->look = look_for(a);
    if (!a->wait->look || !who_is_missing_ask(a->wait->look))
        show_wait(a);
}

/* A node that is done closes the run once all are done, and it takes a moment until
 * each node knows that. If we still wait after that moment, the node that closed the
 * run will not come. Others may, and need the store. */
static void look_who_comes(struct agent *a)
{
    (void)uv_timer_start(&a->wait->timer, on_wait, CLOSED_MS,
                         on_screen(a) ? LINE_MS : LOG_AGAIN_MS);
}

void agent_on_run_closed(struct agent *a)
{
    const enum agent_core_phase phase = a->core.phase;

    struct muster_error err;

    a->run_closed = true;
    if (phase == AGENT_ASSIGNING) { /* The exchange of ranks would wait for it. */
        (void)err_set(
            &err, MUSTER_ECLOSED,
            "another node has closed the run '%s' while ranks were agreed on: "
            "it failed, or was ended; the other nodes' logs tell why",
            a->config->rdzv.run_id);
        agent_fail(a, &err);
        return;
    }
    if (phase == AGENT_STARTING || phase == AGENT_RUNNING)
        log_line(
            a->log, LOG_WARN, AT_RENDEZVOUS,
            "run '%s': another node has closed the run: it failed, or was ended. The "
            "workers here go on to their own end; the other nodes' logs tell why",
            a->config->rdzv.run_id);
    else if (phase == AGENT_BARRIER)
        look_who_comes(a);
}

void agent_wait_begin(struct agent *a, enum waiting_for what, uint64_t by_ms)
{
    agent_wait_end(a, false);
    a->wait->what = what;
    a->wait->by_ms = by_ms;
    a->wait->since_ms = clock_mono_ms();
    if (what == WAITING_FOR_END && a->run_closed) {
        look_who_comes(a);
        return;
    }
    if (a->opts.log->fd < 0 ||
        (what == WAITING_FOR_ROUND && !a->handler->ops->progress))
        return;
    (void)uv_timer_start(&a->wait->timer, on_wait,
                         on_screen(a) ? LINE_MS : LOG_FIRST_MS,
                         on_screen(a) ? LINE_MS : LOG_AGAIN_MS);
}

static void log_wait_done(const struct agent *a)
{
    const double s = (double)(clock_mono_ms() - a->wait->since_ms) / 1000;
    const long long world = a->round.world_size, rank = a->round.rank;
    const char *run = a->config->rdzv.run_id;

    switch (a->wait->what) {
    case WAITING_FOR_ROUND:
        log_line(
            a->log, LOG_WARN, AT_RENDEZVOUS,
            "run '%s': the group is complete after %.1f s: %lld node%s, this is number "
            "%lld",
            run, s, world, world == 1 ? "" : "s", rank);
        break;
    case WAITING_FOR_NODES:
    case WAITING_FOR_RANKS:
        log_line(a->log, LOG_WARN, AT_RENDEZVOUS,
                 "run '%s': all %lld nodes have their ranks after %.1f s", run, world,
                 s);
        break;
    case WAITING_FOR_END:
        log_line(a->log, LOG_WARN, AT_RENDEZVOUS,
                 "run '%s': all %lld nodes are done after %.1f s", run, world, s);
        break;
    }
}

void agent_wait_end(struct agent *a, bool came)
{
    (void)uv_timer_stop(&a->wait->timer);
    who_is_missing_close(a->wait->look);
    a->wait->look = NULL;
    status_line(a->opts.log, NULL);
    if (came && a->wait->logged)
        log_wait_done(a);
    a->wait->logged = false;
}

/* ---- workers that were told to end ---- */

static bool is_stopping(const struct agent *a)
{
    return a->core.phase == AGENT_STOPPING && a->core.why == WHY_SIGNAL &&
           a->core.alive > 0;
}

static void on_stopping(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    const uint64_t by = a->core.due_ms, now = clock_mono_ms();
    struct buf b;

    if (!is_stopping(a)) {
        agent_stopping_over(a);
        return;
    }
    buf_init(&b, 256);
    if (stopping_print(&b, a->core.alive,
                       by == MONO_NEVER ? MONO_NEVER
                       : by > now       ? by - now
                                        : 0,
                       a->core.interrupts == 1) == 0 &&
        buf_u8(&b, 0) == 0)
        status_line(a->opts.log, (const char *)buf_data(&b));
    buf_fini(&b);
}

/* Nobody is waited for while workers run, so the timer is free. */
void agent_show_stopping(struct agent *a)
{
    if (!on_screen(a) || !is_stopping(a))
        return;
    on_stopping(&a->wait->timer);
    (void)uv_timer_start(&a->wait->timer, on_stopping, LINE_MS, LINE_MS);
}

void agent_stopping_over(struct agent *a)
{
    if (!on_screen(a))
        return;
    (void)uv_timer_stop(&a->wait->timer);
    status_line(a->opts.log, NULL);
}
