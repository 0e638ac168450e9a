/* group_end.c - how the workers of an attempt are ended, and the agent itself: told to
 * go, killed, drained, and goodbye. See group.h. */
#include <assert.h>
#include <signal.h>

#include "group/group_int.h"

void group_leave(struct group *g, struct now now, struct group_fx_list *fx)
{
    g->phase = GROUP_LEAVING;
    g->due_ms =
        now.mono_ms + (g->why == WHY_FATAL ? GROUP_CLOSE_FATAL_MS : GROUP_CLOSE_MS);
    /* As torchrun: a signal leaves the run id open, so that the job can go on without
     * this node; every other end closes it. */
    group_put(
        fx, (struct group_fx){ .kind = GROUP_FX_LEAVE, .close = g->why != WHY_SIGNAL });
}

static void finish(struct group *g, struct group_fx_list *fx)
{
    /* Like torchrun, an unhealthy (stuck) group is no failure. */
    const bool good = g->why == WHY_SUCCESS || g->why == WHY_STUCK;

    g->phase = GROUP_DONE;
    g->due_ms = MONO_NEVER;
    group_put(fx, (struct group_fx){
                      .kind = GROUP_FX_FINISH, .why = g->why, .code = good ? 0 : 1 });
}

void group_on_left(struct group *g, struct group_fx_list *fx)
{
    if (g->phase == GROUP_LEAVING)
        finish(g, fx);
}

/* --- stopping --------------------------------------------------------------------- */

void group_drain(struct group *g, struct group_fx_list *fx)
{
    g->phase = GROUP_DRAINING;
    g->due_ms = MONO_NEVER;
    group_put_kind(fx, GROUP_FX_DRAIN);
}

void group_ask_leftovers(struct group *g, struct now now, struct group_fx_list *fx)
{
    if (g->leftovers_asked)
        return;
    g->leftovers_asked = true;
    group_put(fx, (struct group_fx){ .kind = GROUP_FX_LEFTOVERS, .sig = SIGTERM });
    if (g->alive == 0)
        g->due_ms = MIN_OF(g->due_ms, now.mono_ms + GROUP_LEFTOVER_MS);
}

static void kill_all(struct group *g, struct now now, struct group_fx_list *fx)
{
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (g->workers[i].alive)
            group_put(fx, (struct group_fx){ .kind = GROUP_FX_SAY_KILL,
                                             .worker = i,
                                             .sig = g->stop_sig });
    g->phase = GROUP_KILLING;
    g->due_ms = now.mono_ms + GROUP_REAP_MS;
    group_put_kind(fx, GROUP_FX_KILL_ALL);
}

void group_stop(struct group *g, enum group_why why, int sig, uint64_t grace_ms,
                struct now now, struct group_fx_list *fx)
{
    g->why = why;
    g->phase = GROUP_STOPPING;
    g->stop_sig = sig;
    g->due_ms =
        grace_ms < MONO_NEVER - now.mono_ms ? now.mono_ms + grace_ms : MONO_NEVER;
    if (g->empty) {
        group_drain(g, fx);
        return;
    }
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (g->workers[i].alive)
            group_put(fx, (struct group_fx){
                              .kind = GROUP_FX_SIGNAL, .worker = i, .sig = sig });
    if (g->alive < g->set.nproc)
        group_ask_leftovers(g, now, fx);
    if (grace_ms == 0)
        kill_all(g, now, fx);
}

static bool has_workers(const struct group *g)
{
    return g->phase == GROUP_STARTING || g->phase == GROUP_RUNNING ||
           g->phase == GROUP_STOPPING || g->phase == GROUP_KILLING;
}

void group_on_fatal(struct group *g, struct now now, struct group_fx_list *fx)
{
    switch (g->phase) {
    case GROUP_STARTING:
    case GROUP_RUNNING:
        group_stop(g, WHY_FATAL, SIGTERM, GROUP_FAILURE_GRACE_MS, now, fx);
        return;
    case GROUP_STOPPING:
    case GROUP_KILLING:
    case GROUP_DRAINING:
        if (g->why < WHY_FATAL && g->why != WHY_SUCCESS)
            g->why = WHY_FATAL;
        return;
    case GROUP_NEW:
    case GROUP_JOINING:
    case GROUP_ASSIGNING:
        g->why = WHY_FATAL;
        group_leave(g, now, fx);
        return;
    case GROUP_BARRIER: /* Our work is done: as torchrun, say so and end well. */
        group_put_kind(fx, GROUP_FX_SAY_NO_BARRIER);
        group_leave(g, now, fx);
        return;
    case GROUP_LEAVING:
    case GROUP_DONE:
        return;
    }
}

/* Whoever sits at the terminal and presses Ctrl-C again has waited long enough; others
 * (a batch system, say) may send SIGTERM twice before they mean it. */
static bool out_of_patience(const struct group *g)
{
    return g->interrupts >= 2 || g->signals >= 3;
}

/* First: the workers get the same. Second: SIGTERM and a new grace, as torchrun does;
 * of SIGINT, or any third: the end. */
void group_on_signal(struct group *g, const struct group_event *ev,
                     struct group_fx_list *fx)
{
    if (g->phase == GROUP_LEAVING || g->phase == GROUP_DONE)
        return;
    g->signals++;
    g->interrupts += ev->code == SIGINT;
    g->signal = ev->code;
    group_put(fx, (struct group_fx){ .kind = g->phase == GROUP_BARRIER
                                                 ? GROUP_FX_SAY_BARRIER
                                                 : GROUP_FX_SAY_SIGNAL,
                                     .sig = ev->code });
    if (has_workers(g) && out_of_patience(g)) {
        g->why = WHY_SIGNAL;
        kill_all(g, ev->now, fx);
    } else if (has_workers(g)) {
        group_stop(g, WHY_SIGNAL, g->signals == 1 ? ev->code : SIGTERM,
                   g->set.shutdown_ms, ev->now, fx);
    } else if (g->phase == GROUP_DRAINING && !out_of_patience(g)) {
        g->why = WHY_SIGNAL;
    } else {
        g->why = WHY_SIGNAL;
        if (g->phase == GROUP_JOINING)
            group_put_kind(fx, GROUP_FX_CANCEL_JOIN);
        group_leave(g, ev->now, fx);
    }
}

void group_on_timeout(struct group *g, struct now now, struct group_fx_list *fx)
{
    if (now.mono_ms < g->due_ms)
        return;
    g->due_ms = MONO_NEVER;
    if (g->phase == GROUP_STOPPING) {
        kill_all(g, now, fx);
    } else if (g->phase == GROUP_KILLING) {
        for (int64_t i = 0; i < g->set.nproc; i++) {
            struct group_worker *w = &g->workers[i];
            if (!w->alive)
                continue;
            group_put(fx,
                      (struct group_fx){ .kind = GROUP_FX_SAY_ABANDONED, .worker = i });
            w->alive = false;
            w->code = -SIGKILL;
        }
        g->alive = 0;
        group_drain(g, fx);
    } else if (g->phase == GROUP_BARRIER) {
        group_put_kind(fx, GROUP_FX_SAY_NO_BARRIER);
        group_leave(g, now, fx);
    } else if (g->phase == GROUP_LEAVING) {
        finish(g, fx);
    }
}
