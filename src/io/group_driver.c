/* group_driver.c - see group_driver.h. Callbacks post events, pump() feeds them to the
 * core, perform() is the only switch over its effects. Begin and end: group_run.c. */
#include "io/group_driver.h"

#include <stdlib.h>
#include <time.h>

#include "io/clock.h"
#include "io/group_int.h"

/* --- events in -------------------------------------------------------------------- */

static struct now now_of(struct agent *a)
{
    struct timespec ts;

    uv_update_time(&a->loop);
    clock_gettime(CLOCK_REALTIME, &ts);
    return (struct now){ uv_now(&a->loop), ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 };
}

static void step(struct agent *a, struct group_event ev)
{
    ev.now = now_of(a);
    if (group_step(&a->group, &ev, &a->fx) < 0)
        abort(); /* A few hundred bytes; the guard ends the workers. */
}

void agent_post(struct agent *a, enum group_event_kind kind, int64_t worker, int code)
{
    const struct group_event ev = { .kind = kind, .worker = worker, .code = code };

    if (a->queued == ARRAY_LEN(a->queue)) { /* 256 exits at once: feed some now */
        step(a, a->queue[a->queue_head]);
        a->queue_head = (a->queue_head + 1) % ARRAY_LEN(a->queue);
        a->queued--;
    }
    a->queue[(a->queue_head + a->queued++) % ARRAY_LEN(a->queue)] = ev;
}

void agent_fail(struct agent *a, const struct muster_error *why)
{
    if (a->fatal.code == 0)
        a->fatal = *why;
    agent_post(a, GROUP_EV_FATAL, 0, 0);
}

/* --- the rendezvous --------------------------------------------------------------- */

/* Tells how long the phase took, and begins the next. */
static void took(struct agent *a, const char *state)
{
    const uint64_t now = uv_hrtime();

    if (state)
        agent_event(a, state, (double)(now - a->phase_began_ns) / 1e6, NULL);
    a->phase_began_ns = now;
}

static void on_joined(void *ctx, int status, const struct rdzv_round *round,
                      const struct muster_error *err)
{
    struct agent *a = ctx;

    if (status == 0)
        a->round = *round;
    agent_wait_end(a, status == 0);
    if (status == MUSTER_ECANCELED)
        return;
    if (status == 0) {
        took(a, "RENDEZVOUS");
        agent_post(a, GROUP_EV_JOINED, 0, 0);
    } else {
        agent_fail(a, err);
    }
    agent_pump(a);
}

void agent_on_news(void *ctx, enum rdzv_news news, const struct muster_error *err)
{
    struct agent *a = ctx;

    switch (news) {
    case RDZV_NEWS_WAITING:
        agent_post(a, GROUP_EV_CHANGED, 0, 0);
        break;
    case RDZV_NEWS_LOST:
    case RDZV_NEWS_EVICTED:
        agent_post(a, GROUP_EV_LOST, 0, 0);
        break;
    case RDZV_NEWS_BACKEND:
        agent_fail(a, err);
        break;
    case RDZV_NEWS_CLOSED: /* Like torchrun's, our workers run to their own end. */
        agent_on_run_closed(a);
        break;
    }
    agent_pump(a);
}

static void on_left(void *ctx, int status, const struct muster_error *err)
{
    struct agent *a = ctx;

    (void)status; /* Gone is gone: nobody is helped by the reason. */
    (void)err;
    agent_post(a, GROUP_EV_LEFT, 0, 0);
    agent_pump(a);
}

static void on_place_returned(void *ctx, int status, const struct muster_error *err)
{
    struct agent *a = ctx;

    (void)status;
    (void)err;
    a->handler->ops->shutdown(a->handler, false, on_left, a);
}

static void leave(struct agent *a, bool close)
{
    a->generation++;
    if (close)
        a->handler->ops->shutdown(a->handler, true, on_left, a);
    else
        a->handler->ops->leave(a->handler, on_place_returned, a);
}

static void on_drained(void *ctx)
{
    agent_post(ctx, GROUP_EV_DRAINED, 0, 0);
    agent_pump(ctx);
}

/* --- effects out ------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer);

static void perform(struct agent *a, const struct group_fx *fx)
{
    agent_measure(a, fx);
    switch (fx->kind) {
    case GROUP_FX_JOIN:
        a->generation++;
        agent_forget_workers(a);
        took(a, NULL);
        agent_wait_begin(a, WAITING_FOR_ROUND, MONO_NEVER);
        a->handler->ops->next(a->handler, on_joined, a);
        break;
    case GROUP_FX_CANCEL_JOIN:
        agent_wait_end(a, false);
        a->handler->ops->cancel(a->handler);
        break;
    case GROUP_FX_ASSIGN:
        agent_assign(a);
        break;
    case GROUP_FX_START:
        took(a, "ASSIGN_WORKER_RANKS");
        a->assigned = true;
        agent_say_round(a);
        agent_start_workers(a, fx->attempt);
        break;
    case GROUP_FX_SIGNAL:
        agent_say(a, fx);
        guard_signal(a->guard, (uint32_t)fx->worker, fx->sig);
        break;
    case GROUP_FX_LEFTOVERS:
        guard_signal_leftovers(a->guard, fx->sig);
        break;
    case GROUP_FX_KILL_ALL:
        guard_kill_all(a->guard);
        break;
    case GROUP_FX_DRAIN:
        agent_watch_off(a);
        logs_drain(a->logs, on_drained, a);
        break;
    case GROUP_FX_BARRIER:
        took(a, NULL);
        agent_barrier(a);
        break;
    case GROUP_FX_LEAVE:
        agent_wait_end(a, false);
        leave(a, fx->close);
        break;
    case GROUP_FX_FINISH:
        agent_end(a, fx);
        break;
    case GROUP_FX_SAY_SIGNAL:
    case GROUP_FX_SAY_KILL:
    case GROUP_FX_SAY_ABANDONED:
    case GROUP_FX_SAY_FAILED:
        if (fx->final)
            agent_find_name(a);
        agent_say(a, fx);
        break;
    case GROUP_FX_SAY_SUCCEEDED:
    case GROUP_FX_SAY_TERMINATED:
    case GROUP_FX_SAY_BARRIER:
    case GROUP_FX_SAY_NO_BARRIER:
        agent_say(a, fx);
        break;
    }
}

static void arm(struct agent *a)
{
    if (a->group.phase != GROUP_DONE)
        clock_arm(&a->timer, on_timer, group_deadline(&a->group));
}

void agent_pump(struct agent *a)
{
    if (a->pumping)
        return; /* Called from within perform: the loop below goes on. */
    a->pumping = true;
    while (a->queued > 0 || a->fx.count > 0) {
        struct group_fx_list fx = a->fx;
        a->fx = (struct group_fx_list){ 0 };
        for (size_t i = 0; i < fx.count; i++)
            perform(a, &fx.items[i]);
        group_fx_fini(&fx);
        if (a->queued == 0)
            continue;
        const struct group_event ev = a->queue[a->queue_head];
        a->queue_head = (a->queue_head + 1) % ARRAY_LEN(a->queue);
        a->queued--;
        step(a, ev);
    }
    a->pumping = false;
    arm(a);
}

static void on_timer(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    agent_post(a, GROUP_EV_TIMEOUT, 0, 0);
    agent_pump(a);
}
