/* agent_core.c - see agent_core.h. One handler per event; each looks at the phase
 * first. */
#include "agent/core/agent_core.h"
#include "base/err.h"
#include "base/mem.h"
#include <assert.h>
#include <signal.h>

/* agent_core_step has reserved the room. */
static void agent_core_put(struct agent_core_fx_list *fx, struct agent_core_fx what);
static void agent_core_put_kind(struct agent_core_fx_list *fx,
                                enum agent_core_fx_kind kind);

/* Tells every living worker to go by sig; all else follows from exits and the clock. */
static void agent_core_stop(struct agent_core *g, enum agent_core_why why, int sig,
                            uint64_t grace_ms, struct now now,
                            struct agent_core_fx_list *fx);
/* Tells what exited workers left behind to go, once. */
static void agent_core_ask_leftovers(struct agent_core *g, struct now now,
                                     struct agent_core_fx_list *fx);
/* Nothing runs any more: what was written is passed on. */
static void agent_core_drain(struct agent_core *g, struct agent_core_fx_list *fx);
/* Says goodbye with a deadline, then finishes. */
static void agent_core_leave(struct agent_core *g, struct now now,
                             struct agent_core_fx_list *fx);

static void agent_core_on_left(struct agent_core *g, struct agent_core_fx_list *fx);
static void agent_core_on_fatal(struct agent_core *g, struct now now,
                                struct agent_core_fx_list *fx);
static void agent_core_on_signal(struct agent_core *g,
                                 const struct agent_core_event *ev,
                                 struct agent_core_fx_list *fx);
static void agent_core_on_timeout(struct agent_core *g, struct now now,
                                  struct agent_core_fx_list *fx);

int agent_core_init(struct agent_core *g, const struct agent_core_settings *set,
                    struct muster_error *err)
{
    assert(set->nproc > 0);
    *g = (struct agent_core){
        .set = *set, .remaining = set->max_restarts, .empty = true, .due_ms = MONO_NEVER
    };
    g->workers = mem_calloc((size_t)set->nproc, sizeof *g->workers);
    return g->workers ? 0 : err_nomem(err);
}

void agent_core_fini(struct agent_core *g)
{
    if (!g)
        return;
    mem_free(g->workers);
    g->workers = NULL;
}

void agent_core_fx_fini(struct agent_core_fx_list *fx)
{
    mem_free(fx->items);
    *fx = (struct agent_core_fx_list){ 0 };
}

/* --- effects ---------------------------------------------------------------------- */

int agent_core_fx_reserve(const struct agent_core *g, struct agent_core_fx_list *fx)
{
    /* No step adds more than a few effects, and two for each worker. */
    const size_t more = 8 + 2 * (size_t)g->set.nproc;

    if (fx->size - fx->count >= more)
        return 0;
    const size_t size = fx->count + more;
    struct agent_core_fx *items = mem_realloc_array(fx->items, size, sizeof *items);
    if (!items)
        return MUSTER_ENOMEM;
    fx->items = items;
    fx->size = size;
    return 0;
}

static void agent_core_put(struct agent_core_fx_list *fx, struct agent_core_fx what)
{
    assert(fx->count < fx->size);
    fx->items[fx->count++] = what;
}

static void agent_core_put_kind(struct agent_core_fx_list *fx,
                                enum agent_core_fx_kind kind)
{
    agent_core_put(fx, (struct agent_core_fx){ .kind = kind });
}

/* --- joining and starting --------------------------------------------------------- */

static void join(struct agent_core *g, struct agent_core_fx_list *fx)
{
    g->phase = AGENT_JOINING;
    g->why = WHY_NONE;
    g->decision = OPEN;
    g->changed = g->lost = g->deserted = g->unjudged = g->evicted = g->fenced = false;
    g->due_ms = MONO_NEVER;
    agent_core_put_kind(fx, AGENT_FX_JOIN);
}

static void start(struct agent_core *g, struct agent_core_fx_list *fx)
{
    g->phase = AGENT_STARTING;
    g->due_ms = MONO_NEVER;
    /* Until now it has told workers that were stopped from workers that failed. */
    g->stop_sig = 0;
    g->empty = g->leftovers_asked = g->peer_failed = false;
    g->alive = g->set.nproc;
    for (int64_t i = 0; i < g->set.nproc; i++)
        g->workers[i] = (struct agent_core_worker){ .alive = true };
    agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_START,
                                               .attempt = agent_core_attempt(g) });
}

/* --- events ----------------------------------------------------------------------- */

static void on_exit(struct agent_core *g, const struct agent_core_event *ev,
                    struct agent_core_fx_list *fx)
{
    struct agent_core_worker *w = &g->workers[ev->worker];

    assert(ev->worker >= 0 && ev->worker < g->set.nproc);
    if (!w->alive)
        return;
    assert(g->alive > 0 && !g->empty);
    w->alive = false;
    w->code = ev->code;
    g->alive--;
    if (g->phase == AGENT_RUNNING && ev->code != 0)
        agent_core_stop(g, WHY_FAILURE, SIGTERM, g->set.restart_ms, ev->now, fx);
    /* While still starting, a failure waits for STARTED: the others' pids come first.
     */
}

static bool any_failed(const struct agent_core *g)
{
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (!g->workers[i].alive && g->workers[i].code != 0)
            return true;
    return false;
}

static void on_empty(struct agent_core *g, struct agent_core_fx_list *fx)
{
    if (g->alive > 0)
        return; /* One worker ended before the next one was started: more news is to
                   come. */
    g->empty = true;
    if (g->phase == AGENT_RUNNING) {
        g->why = WHY_SUCCESS;
        agent_core_drain(g, fx);
    } else if (g->phase == AGENT_STOPPING || g->phase == AGENT_KILLING) {
        agent_core_drain(g, fx);
    }
}

/* The workers are gone, what they started is not. */
static void on_leftovers(struct agent_core *g, struct now now,
                         struct agent_core_fx_list *fx)
{
    if (g->alive > 0)
        return;
    if (g->phase == AGENT_RUNNING) {
        g->why = WHY_SUCCESS; /* no failure, or we would be stopping */
        g->phase = AGENT_STOPPING;
        g->due_ms = now.mono_ms + AGENT_LEFTOVER_MS;
        g->ask_ms = g->tell_ms = MONO_NEVER;
    }
    if (g->phase != AGENT_STOPPING)
        return;
    g->leftovers_asked = false; /* more may have come since */
    agent_core_ask_leftovers(g, now, fx);
}

static void kill_now(struct agent_core *g, struct now now, bool late,
                     struct agent_core_fx_list *fx);
static void ask_to_go(struct agent_core *g, struct now now,
                      struct agent_core_fx_list *fx);

/* The others may be at work in a world without this node, and no worker of the old one
 * may run beside it: ours, which were told to go, get no time to do so. */
static void fence(struct agent_core *g, struct now now, struct agent_core_fx_list *fx)
{
    g->fenced = g->phase == AGENT_STARTING;
    if (g->phase != AGENT_STOPPING)
        return;
    if (g->ask_ms != MONO_NEVER)
        ask_to_go(g, now, fx); /* They are told first: then they did not fail. */
    kill_now(g, now, false, fx);
}

static void on_started(struct agent_core *g, const struct agent_core_event *ev,
                       struct agent_core_fx_list *fx)
{
    if (g->phase != AGENT_STARTING)
        return;
    g->phase = AGENT_RUNNING;
    if (g->peer_failed)
        agent_core_stop(g, any_failed(g) ? WHY_FAILURE : WHY_PEER, SIGTERM,
                        g->set.restart_ms, ev->now, fx);
    else if (g->changed)
        agent_core_stop(g, WHY_MEMBERSHIP, SIGTERM, g->set.restart_ms, ev->now, fx);
    else if (any_failed(g))
        agent_core_stop(g, WHY_FAILURE, SIGTERM, g->set.restart_ms, ev->now, fx);
    else if (g->empty)
        on_empty(g, fx);
    else if (g->alive == 0)
        on_leftovers(g, ev->now, fx);
    if (g->fenced)
        fence(g, ev->now, fx);
}

/* What comes of a failure. On every node of a job that has failed for good the result
 * is the same, whoever's worker it was. */
static void decide(struct agent_core *g, bool restart, struct now now,
                   struct agent_core_fx_list *fx)
{
    if (g->why == WHY_FAILURE || !restart)
        agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_LOG_FAILED,
                                                   .final = !restart });
    if (restart) {
        join(g, fx);
        return;
    }
    g->why = WHY_FAILURE;
    agent_core_leave(g, now, fx);
}

/* The coordinator decides if restarts are counted for the whole job, or if it is the
 * end of it; a node that counts for itself and has restarts left goes on alone. */
static void on_failed(struct agent_core *g, struct now now,
                      struct agent_core_fx_list *fx)
{
    agent_core_put_kind(fx, AGENT_FX_JUDGE);
    if (!g->judged && g->why == WHY_FAILURE && g->remaining > 0) {
        g->remaining--;
        decide(g, true, now, fx);
    } else if (g->decision != OPEN) {
        decide(g, g->decision == RESTARTS, now, fx);
    } else if (g->unjudged || g->evicted) {
        decide(g, true, now, fx); /* A lost node is not a failure of the job. */
    } else {
        g->phase = AGENT_JUDGING;
        g->due_ms = now.mono_ms + AGENT_JUDGE_MS;
    }
}

/* This attempt is over: decides what comes next. */
static void on_drained(struct agent_core *g, struct now now,
                       struct agent_core_fx_list *fx)
{
    if (g->phase != AGENT_DRAINING)
        return;
    switch (g->why) {
    case WHY_SUCCESS:
        g->phase = AGENT_BARRIER;
        if (g->lost || g->deserted)
            g->due_ms = now.mono_ms + AGENT_BARRIER_LOST_MS;
        agent_core_put_kind(fx, AGENT_FX_LOG_SUCCEEDED);
        agent_core_put_kind(fx, AGENT_FX_BARRIER);
        return;
    case WHY_MEMBERSHIP:
        join(g, fx);
        return;
    case WHY_PEER:
    case WHY_FAILURE:
        on_failed(g, now, fx);
        return;
    case WHY_STUCK:
        agent_core_put_kind(fx, AGENT_FX_LOG_TERMINATED);
        break;
    case WHY_NONE:
    case WHY_FATAL:
    case WHY_SIGNAL:
        break;
    }
    agent_core_leave(g, now, fx);
}

/* The workers have done their work; what they started or wrote may still be there. */
static bool is_ending_well(const struct agent_core *g)
{
    return g->why == WHY_SUCCESS &&
           (g->phase == AGENT_STOPPING || g->phase == AGENT_KILLING ||
            g->phase == AGENT_DRAINING);
}

/* Somebody waits, or a member is gone. Both mean a new round, which is not counted.
 * It is told once, whatever this node is at. */
static void agent_core_on_change(struct agent_core *g,
                                 const struct agent_core_event *ev,
                                 struct agent_core_fx_list *fx)
{
    const bool evicted = ev->kind == AGENT_EV_EVICTED;
    const bool lost = ev->kind == AGENT_EV_LOST || evicted;

    g->evicted |= evicted;
    if (g->phase == AGENT_RUNNING) {
        agent_core_stop(g, WHY_MEMBERSHIP, SIGTERM, g->set.restart_ms, ev->now, fx);
    } else if (g->phase == AGENT_ASSIGNING && lost) {
        join(g,
             fx); /* The exchange of ranks waits for a node that will not take part. */
    } else if (g->phase == AGENT_STARTING) {
        g->changed = true; /* dealt with as soon as they run */
    } else if (g->phase == AGENT_ASSIGNING) {
        /* torchrun's nodes fail if the exchange does, so it goes on for a moment; but
         * whoever has left for the next round will not take part in it. */
        g->changed = true;
        g->due_ms = MIN_OF(g->due_ms, ev->now.mono_ms + AGENT_ASSIGN_CHANGED_MS);
    } else if (evicted && g->phase == AGENT_BARRIER) {
        /* The world that these workers finished in is not the one that the job has now:
         * its result does not count. */
        join(g, fx);
    } else if (evicted && is_ending_well(g)) {
        g->why = WHY_MEMBERSHIP;
    } else if (evicted && g->phase == AGENT_JUDGING) {
        decide(g, true, ev->now, fx); /* The others did not wait for a decision. */
    } else if (lost && is_ending_well(g)) {
        g->lost = true;
    } else if (g->phase == AGENT_BARRIER && lost) {
        g->due_ms = MIN_OF(g->due_ms, ev->now.mono_ms + AGENT_BARRIER_LOST_MS);
    }
}

/* Our workers are done, but others begin again, and may not have enough nodes without
 * this one. As long as we are at work, CHANGED says all there is. */
static void on_moved_on(struct agent_core *g, struct agent_core_fx_list *fx)
{
    if (g->phase == AGENT_BARRIER)
        join(g, fx);
    else if (is_ending_well(g))
        g->why = WHY_MEMBERSHIP;
}

/* We cannot know whether the others go on without us. So these workers end, and
 * what they did does not count; whoever has the majority takes us back. */
static void on_cut_off(struct agent_core *g, struct now now,
                       struct agent_core_fx_list *fx)
{
    switch (g->phase) {
    case AGENT_STARTING:
        g->changed = true;
        return;
    case AGENT_RUNNING:
        agent_core_stop(g, WHY_MEMBERSHIP, SIGTERM, g->set.restart_ms, now, fx);
        return;
    case AGENT_STOPPING:
    case AGENT_KILLING:
    case AGENT_DRAINING:
        if (g->why <= WHY_FAILURE)
            g->why = WHY_MEMBERSHIP;
        return;
    case AGENT_ASSIGNING:
    case AGENT_JUDGING:
        join(g, fx);
        return;
    case AGENT_NEW:
    case AGENT_JOINING:
    case AGENT_BARRIER:
    case AGENT_LEAVING:
    case AGENT_DONE:
        return;
    }
}

/* A worker of another node failed, and the job with it, or this round of it. */
static void on_ending(struct agent_core *g, struct now now,
                      struct agent_core_fx_list *fx)
{
    if (g->phase == AGENT_RUNNING)
        agent_core_stop(g, WHY_PEER, SIGTERM, g->set.restart_ms, now, fx);
    else if (g->phase == AGENT_STARTING)
        g->peer_failed = true;
    else if (g->why == WHY_MEMBERSHIP)
        g->why = WHY_PEER; /* Its node was quicker to ask for the next round. */
}

static void on_decision(struct agent_core *g, const struct agent_core_event *ev,
                        struct agent_core_fx_list *fx)
{
    const bool restart = ev->kind == AGENT_EV_RESTART;

    if (restart && (g->judged || ev->code))
        g->remaining = g->set.max_restarts - ev->worker;
    /* A restart of the round that we have left decides nothing about the next one. */
    if (!restart || (g->phase != AGENT_JOINING && g->phase != AGENT_ASSIGNING))
        g->decision = restart ? RESTARTS : FAILED_FOR_GOOD;
    if (g->phase == AGENT_JUDGING)
        decide(g, restart, ev->now, fx);
    else if (g->phase == AGENT_BARRIER && restart)
        join(g, fx); /* Our workers are done, but the group begins again. */
    else if (g->phase == AGENT_BARRIER || (g->phase == AGENT_ASSIGNING && !restart))
        decide(g, false, ev->now, fx);
    else if (g->phase == AGENT_JOINING && !restart) { /* There is no next round. */
        agent_core_put_kind(fx, AGENT_FX_CANCEL_JOIN);
        decide(g, false, ev->now, fx);
    } else if (g->phase == AGENT_RUNNING || g->phase == AGENT_STARTING)
        on_ending(g, ev->now, fx); /* ENDING was lost with a connection. */
}

/* The machine of the coordinator is lost, and with it this round. */
static void on_unjudged(struct agent_core *g, const struct agent_core_event *ev,
                        struct agent_core_fx_list *fx)
{
    g->unjudged = ev->code == 0;
    if (g->unjudged && g->phase == AGENT_JUDGING && g->decision == OPEN)
        decide(g, true, ev->now, fx);
}

/* What holds between two steps, whatever came. */
static void check(const struct agent_core *g)
{
    assert(g->alive >= 0 && g->alive <= g->set.nproc);
    assert(!g->empty || g->alive == 0);
    assert(g->interrupts <= g->signals);
    switch (g->phase) {
    case AGENT_JOINING:
    case AGENT_ASSIGNING:
        assert(g->why == WHY_NONE && g->alive == 0);
        return;
    case AGENT_RUNNING:
        assert(g->why == WHY_NONE && !g->empty);
        return;
    case AGENT_STOPPING:
        assert(g->why != WHY_NONE && !g->empty);
        return;
    case AGENT_KILLING:
        assert(g->why != WHY_NONE && g->due_ms != MONO_NEVER);
        return;
    case AGENT_DRAINING:
        assert(g->why != WHY_NONE && g->alive == 0 && g->due_ms == MONO_NEVER);
        return;
    case AGENT_JUDGING:
        assert(g->why == WHY_PEER || g->why == WHY_FAILURE);
        assert(g->alive == 0 && g->due_ms != MONO_NEVER);
        return;
    case AGENT_BARRIER:
        assert(g->why == WHY_SUCCESS && g->alive == 0);
        return;
    case AGENT_LEAVING:
        assert(g->why != WHY_NONE && g->alive == 0 && g->due_ms != MONO_NEVER);
        return;
    case AGENT_DONE:
        assert(g->alive == 0 && g->due_ms == MONO_NEVER);
        return;
    case AGENT_NEW:
    case AGENT_STARTING:
        return;
    }
}

static void take_event(struct agent_core *g, const struct agent_core_event *ev,
                       struct agent_core_fx_list *fx)
{
    switch (ev->kind) {
    case AGENT_EV_BEGIN:
        join(g, fx);
        break;
    case AGENT_EV_JOINED:
        if (g->phase == AGENT_JOINING) {
            g->phase = AGENT_ASSIGNING;
            agent_core_put_kind(fx, AGENT_FX_ASSIGN);
        }
        break;
    case AGENT_EV_ASSIGNED:
        if (g->phase == AGENT_ASSIGNING && g->changed)
            join(g, fx);
        else if (g->phase == AGENT_ASSIGNING) {
            g->judged = ev->code != 0;
            if (g->judged)
                g->remaining = g->set.max_restarts - ev->worker;
            start(g, fx);
        }
        break;
    case AGENT_EV_STARTED:
        on_started(g, ev, fx);
        break;
    case AGENT_EV_CUT_OFF: /* The others may have gone on in a world without us. */
        if (ev->code && g->why != WHY_SUCCESS) {
            on_cut_off(g, ev->now, fx);
        } else {
            if (is_ending_well(g) || g->phase == AGENT_BARRIER)
                g->why = WHY_FATAL;
            agent_core_on_fatal(g, ev->now, fx);
        }
        fence(g, ev->now, fx);
        break;
    case AGENT_EV_FATAL:
        agent_core_on_fatal(g, ev->now, fx);
        break;
    case AGENT_EV_EXIT:
        on_exit(g, ev, fx);
        break;
    case AGENT_EV_LEFTOVERS:
        on_leftovers(g, ev->now, fx);
        break;
    case AGENT_EV_EMPTY:
        on_empty(g, fx);
        break;
    case AGENT_EV_DRAINED:
        on_drained(g, ev->now, fx);
        break;
    case AGENT_EV_CHANGED:
    case AGENT_EV_LOST:
        agent_core_on_change(g, ev, fx);
        break;
    case AGENT_EV_EVICTED:
        agent_core_on_change(g, ev, fx);
        fence(g, ev->now, fx);
        break;
    case AGENT_EV_DESERTED:
        if (g->phase == AGENT_BARRIER) {
            agent_core_put_kind(fx, AGENT_FX_LOG_NO_BARRIER);
            agent_core_leave(g, ev->now, fx);
        }
        g->deserted = true;
        break;
    case AGENT_EV_MOVED_ON:
        on_moved_on(g, fx);
        break;
    case AGENT_EV_STUCK:
        if (g->phase == AGENT_RUNNING) {
            g->remaining = 0;
            agent_core_stop(g, WHY_STUCK, SIGTERM, g->set.restart_ms, ev->now, fx);
        }
        break;
    case AGENT_EV_HANG:
        if (g->phase == AGENT_RUNNING) {
            if (ev->code)
                g->remaining = 0;
            agent_core_stop(g, WHY_FAILURE, SIGTERM, g->set.restart_ms, ev->now, fx);
        }
        break;
    case AGENT_EV_SIGNAL:
        agent_core_on_signal(g, ev, fx);
        break;
    case AGENT_EV_BARRIER_DONE:
        if (g->phase == AGENT_BARRIER)
            agent_core_leave(g, ev->now, fx);
        break;
    case AGENT_EV_LEFT:
        agent_core_on_left(g, fx);
        break;
    case AGENT_EV_TIMEOUT:
        agent_core_on_timeout(g, ev->now, fx);
        break;
    case AGENT_EV_ENDING:
        on_ending(g, ev->now, fx);
        break;
    case AGENT_EV_RESTART:
    case AGENT_EV_VERDICT:
        on_decision(g, ev, fx);
        break;
    case AGENT_EV_UNJUDGED:
        on_unjudged(g, ev, fx);
        break;
    }
}

int agent_core_step(struct agent_core *g, const struct agent_core_event *ev,
                    struct agent_core_fx_list *fx)
{
    if (agent_core_fx_reserve(g, fx) < 0)
        return MUSTER_ENOMEM;
    take_event(g, ev, fx);
    check(g);
    return 0;
}

/* --- ending the workers of an attempt, and the agent itself -------------------------
 */

static void agent_core_leave(struct agent_core *g, struct now now,
                             struct agent_core_fx_list *fx)
{
    g->phase = AGENT_LEAVING;
    g->due_ms =
        now.mono_ms + (g->why == WHY_FATAL ? AGENT_CLOSE_FATAL_MS : AGENT_CLOSE_MS);
    /* As torchrun: a signal leaves the run id open, so that the job can go on without
     * this node; every other end closes it. */
    agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_LEAVE,
                                               .close = g->why != WHY_SIGNAL });
}

static void finish(struct agent_core *g, struct agent_core_fx_list *fx)
{
    /* Like torchrun, an unhealthy (stuck) group is not a failure. */
    const bool good = g->why == WHY_SUCCESS || g->why == WHY_STUCK;

    g->phase = AGENT_DONE;
    g->due_ms = MONO_NEVER;
    agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_FINISH,
                                               .why = g->why,
                                               .code = good ? 0 : 1 });
}

static void agent_core_on_left(struct agent_core *g, struct agent_core_fx_list *fx)
{
    if (g->phase == AGENT_LEAVING)
        finish(g, fx);
}

/* --- stopping --------------------------------------------------------------------- */

static void agent_core_drain(struct agent_core *g, struct agent_core_fx_list *fx)
{
    g->phase = AGENT_DRAINING;
    g->due_ms = MONO_NEVER;
    agent_core_put_kind(fx, AGENT_FX_DRAIN);
}

static void agent_core_ask_leftovers(struct agent_core *g, struct now now,
                                     struct agent_core_fx_list *fx)
{
    if (g->leftovers_asked)
        return;
    g->leftovers_asked = true;
    agent_core_put(
        fx, (struct agent_core_fx){ .kind = AGENT_FX_LEFTOVERS, .sig = SIGTERM });
    if (g->alive == 0)
        g->due_ms = MIN_OF(g->due_ms, now.mono_ms + AGENT_LEFTOVER_MS);
}

static void kill_all(struct agent_core *g, struct now now, bool late,
                     struct agent_core_fx_list *fx)
{
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (g->workers[i].alive)
            agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_LOG_KILL,
                                                       .worker = i,
                                                       .sig = g->stop_sig });
    kill_now(g, now, late, fx);
}

static void kill_now(struct agent_core *g, struct now now, bool late,
                     struct agent_core_fx_list *fx)
{
    g->phase = AGENT_KILLING;
    g->due_ms = now.mono_ms + AGENT_REAP_MS;
    agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_KILL_ALL,
                                               .code = late && g->alive > 0 });
}

/* Tells the workers to go, by stop_sig. */
static void ask_to_go(struct agent_core *g, struct now now,
                      struct agent_core_fx_list *fx)
{
    g->ask_ms = MONO_NEVER;
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (g->workers[i].alive)
            agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_SIGNAL,
                                                       .worker = i,
                                                       .sig = g->stop_sig });
    if (g->alive < g->set.nproc)
        agent_core_ask_leftovers(g, now, fx);
}

/* Ranks that fail together do so within milliseconds: those that would be told to go in
 * the middle of their own tracebacks are let end by themselves, where nothing waits for
 * the next attempt. */
static bool is_last_failure(const struct agent_core *g)
{
    return g->remaining == 0 &&
           (g->why == WHY_PEER || (g->why == WHY_FAILURE && any_failed(g)));
}

static void agent_core_stop(struct agent_core *g, enum agent_core_why why, int sig,
                            uint64_t grace_ms, struct now now,
                            struct agent_core_fx_list *fx)
{
    g->why = why;
    g->phase = AGENT_STOPPING;
    g->stop_sig = sig;
    g->due_ms =
        grace_ms < MONO_NEVER - now.mono_ms ? now.mono_ms + grace_ms : MONO_NEVER;
    g->tell_ms = grace_ms > AGENT_TELL_MS ? now.mono_ms + AGENT_TELL_MS : MONO_NEVER;
    g->ask_ms = MONO_NEVER;
    if (g->empty) {
        agent_core_drain(g, fx);
        return;
    }
    if (is_last_failure(g) && g->alive > 0 && grace_ms > AGENT_PATIENCE_MS) {
        g->ask_ms = now.mono_ms + AGENT_PATIENCE_MS;
        return;
    }
    ask_to_go(g, now, fx);
    if (grace_ms == 0)
        kill_all(g, now, false, fx);
}

static bool has_workers(const struct agent_core *g)
{
    return g->phase == AGENT_STARTING || g->phase == AGENT_RUNNING ||
           g->phase == AGENT_STOPPING || g->phase == AGENT_KILLING;
}

static void agent_core_on_fatal(struct agent_core *g, struct now now,
                                struct agent_core_fx_list *fx)
{
    switch (g->phase) {
    case AGENT_STARTING:
    case AGENT_RUNNING:
        agent_core_stop(g, WHY_FATAL, SIGTERM, g->set.restart_ms, now, fx);
        return;
    case AGENT_STOPPING:
    case AGENT_KILLING:
    case AGENT_DRAINING:
        if (g->why < WHY_FATAL && g->why != WHY_SUCCESS)
            g->why = WHY_FATAL;
        return;
    case AGENT_JUDGING: /* The deadline decides if nobody else does. */
        return;
    case AGENT_NEW:
    case AGENT_JOINING:
    case AGENT_ASSIGNING:
        g->why = WHY_FATAL;
        agent_core_leave(g, now, fx);
        return;
    case AGENT_BARRIER: /* Our work is done: as torchrun, say so and end well. */
        agent_core_put_kind(fx, AGENT_FX_LOG_NO_BARRIER);
        agent_core_leave(g, now, fx);
        return;
    case AGENT_LEAVING:
    case AGENT_DONE:
        return;
    }
}

/* Whoever sits at the terminal and presses Ctrl-C again has waited long enough; others
 * (a batch system, say) may send SIGTERM twice before they mean it. */
static bool out_of_patience(const struct agent_core *g)
{
    return g->interrupts >= 2 || g->signals >= 3;
}

/* First: the workers get the same. Second: SIGTERM and a new grace, as torchrun does;
 * of SIGINT, or any third: the end. */
static void agent_core_on_signal(struct agent_core *g,
                                 const struct agent_core_event *ev,
                                 struct agent_core_fx_list *fx)
{
    if (g->phase == AGENT_LEAVING || g->phase == AGENT_DONE)
        return;
    g->signals++;
    g->interrupts += ev->code == SIGINT;
    g->signal = ev->code;
    agent_core_put(fx, (struct agent_core_fx){ .kind = g->phase == AGENT_BARRIER
                                                           ? AGENT_FX_LOG_BARRIER
                                                           : AGENT_FX_LOG_SIGNAL,
                                               .sig = ev->code });
    if (has_workers(g) && out_of_patience(g)) {
        g->why = WHY_SIGNAL;
        kill_all(g, ev->now, false, fx);
    } else if (has_workers(g)) {
        agent_core_stop(g, WHY_SIGNAL, g->signals == 1 ? ev->code : SIGTERM,
                        g->set.shutdown_ms, ev->now, fx);
    } else if (g->phase == AGENT_DRAINING && !out_of_patience(g)) {
        g->why = WHY_SIGNAL;
    } else {
        g->why = WHY_SIGNAL;
        if (g->phase == AGENT_JOINING)
            agent_core_put_kind(fx, AGENT_FX_CANCEL_JOIN);
        agent_core_leave(g, ev->now, fx);
    }
}

static void agent_core_on_timeout(struct agent_core *g, struct now now,
                                  struct agent_core_fx_list *fx)
{
    if (g->phase == AGENT_STOPPING && now.mono_ms >= g->ask_ms)
        ask_to_go(g, now, fx);
    if (g->phase == AGENT_STOPPING && now.mono_ms >= g->tell_ms) {
        g->tell_ms = MONO_NEVER;
        if (g->alive > 0 && now.mono_ms < g->due_ms)
            agent_core_put_kind(fx, AGENT_FX_LOG_WAITING);
    }
    if (now.mono_ms < g->due_ms)
        return;
    g->due_ms = MONO_NEVER;
    if (g->phase == AGENT_ASSIGNING) {
        join(g, fx);
    } else if (g->phase == AGENT_STOPPING) {
        kill_all(g, now, true, fx);
    } else if (g->phase == AGENT_KILLING) {
        for (int64_t i = 0; i < g->set.nproc; i++) {
            struct agent_core_worker *w = &g->workers[i];
            if (!w->alive)
                continue;
            agent_core_put(fx, (struct agent_core_fx){ .kind = AGENT_FX_LOG_ABANDONED,
                                                       .worker = i });
            w->alive = false;
            w->code = -SIGKILL;
        }
        g->alive = 0;
        agent_core_drain(g, fx);
    } else if (g->phase == AGENT_JUDGING) { /* No coordinator: count for ourselves. */
        const bool restart = g->remaining > 0;

        g->remaining -= restart;
        decide(g, restart, now, fx);
    } else if (g->phase == AGENT_BARRIER) {
        agent_core_put_kind(fx, AGENT_FX_LOG_NO_BARRIER);
        agent_core_leave(g, now, fx);
    } else if (g->phase == AGENT_LEAVING) {
        finish(g, fx);
    }
}
