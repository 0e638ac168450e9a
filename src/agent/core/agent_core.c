/* agent_core.c - see agent_core.h. A step is this: note what the event changes in every
 * phase, find the first row of the table that fits, take its actions, enter its phase.
 * So the file has, in this order, the conditions and the actions that the table names,
 * the table, what is done on entering a phase, what an event changes in every phase,
 * and the step with what must hold after it. */
#include "agent/core/agent_core.h"
#include "base/err.h"
#include "base/mem.h"
#include <assert.h>
#include <signal.h>

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

/* agent_core_step has reserved the room. */
static void add_effect(struct agent_core_fx_list *fx, struct agent_core_fx what)
{
    assert(fx->count < fx->size);
    fx->items[fx->count++] = what;
}

static void add_kind(struct agent_core_fx_list *fx, enum agent_core_fx_kind kind)
{
    add_effect(fx, (struct agent_core_fx){ .kind = kind });
}

/* --- conditions ------------------------------------------------------------------- */

static bool has_failed_worker(const struct agent_core *g)
{
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (!g->workers[i].alive && g->workers[i].code != 0)
            return true;
    return false;
}

static bool after_failure(const struct agent_core *g)
{
    return g->why == WHY_PEER || g->why == WHY_FAILURE;
}

/* The workers have until the deadline of a notice to save what they have. */
static bool has_deadline(const struct agent_core *g)
{
    return g->notice_ms && (g->why == WHY_NOTICE || g->why == WHY_MEMBERSHIP);
}

static uint64_t grace_ms(const struct agent_core *g)
{
    if (has_deadline(g))
        return MONO_NEVER;
    return g->why == WHY_SIGNAL ? g->set.shutdown_ms : g->set.restart_ms;
}

/* A node that is cut off may wait to be taken back by whoever has the majority. But a
 * success is not thrown away: it is an error if nobody can say whether it counts. */
static bool may_wait(const struct agent_core *g, const struct agent_core_event *ev)
{
    return ev->code != 0 && g->why != WHY_SUCCESS;
}

#define CONDITION(name, holds)                                                         \
    static bool name(const struct agent_core *g UNUSED,                                \
                     const struct agent_core_event *ev UNUSED)                         \
    {                                                                                  \
        return holds;                                                                  \
    }
#define UNUSED __attribute__((unused))

/* clang-format off */
CONDITION(exit_failed,     ev->code != 0)
CONDITION(any_failed,      has_failed_worker(g))
CONDITION(all_exited,      g->alive == 0)
CONDITION(nobody_left,     g->empty)
CONDITION(round_is_over,   g->pending == WHY_MEMBERSHIP)
CONDITION(must_stop,       g->pending != WHY_NONE)
CONDITION(is_fenced,       g->fenced)
CONDITION(no_grace,        g->why != WHY_SUCCESS && grace_ms(g) == 0)
CONDITION(must_go,         g->pending == WHY_NOTICE)
CONDITION(goes,            g->why == WHY_NOTICE)
CONDITION(too_few_stay,    ev->code == AGENT_JOB_ENDS &&
                               (g->why == WHY_NOTICE || g->why == WHY_MEMBERSHIP))
/* The workers have done their work; what they started or wrote may still be there. */
CONDITION(ended_well,      g->why == WHY_SUCCESS)
CONDITION(for_new_round,   g->why == WHY_MEMBERSHIP)
CONDITION(is_stuck,        g->why == WHY_STUCK)
CONDITION(less_than_fatal, g->why < WHY_FATAL && g->why != WHY_SUCCESS)
CONDITION(restarts_left,   g->remaining > 0)
CONDITION(failed,          after_failure(g))
/* A node that counts for itself and has restarts left goes on alone. */
CONDITION(own_restart,     !g->job_budget && g->why == WHY_FAILURE && g->remaining > 0)
CONDITION(failure_known,   after_failure(g) && g->outcome == FAILED_FOR_GOOD)
/* A lost node is not a failure of the job. */
CONDITION(restart_known,   after_failure(g) &&
                               (g->outcome == RESTARTS || g->judge_gone || g->evicted))
CONDITION(may_rejoin,      may_wait(g, ev))
CONDITION(rejoin_counts,   may_wait(g, ev) && g->why <= WHY_FAILURE)
CONDITION(for_good,        !may_wait(g, ev))
CONDITION(for_good_fatal,  !may_wait(g, ev) && g->why < WHY_FATAL)
/* Whoever sits at the terminal and presses Ctrl-C again has waited long enough; others
 * (a batch system, say) may send SIGTERM twice before they mean it. */
CONDITION(out_of_patience, g->interrupts >= 2 || g->signals >= 3)
CONDITION(has_patience,    g->interrupts < 2 && g->signals < 3)
/* clang-format on */

/* --- actions ---------------------------------------------------------------------- */

#define ACTION(name)                                                                   \
    static void name(struct agent_core *g UNUSED,                                      \
                     const struct agent_core_event *ev UNUSED,                         \
                     struct agent_core_fx_list *fx UNUSED)

ACTION(take_budget)
{
    g->job_budget = ev->code != 0;
    if (g->job_budget)
        g->remaining = g->set.max_restarts - ev->worker;
}

ACTION(use_restart)
{
    g->remaining--;
}

ACTION(no_restarts)
{
    g->remaining = 0;
}

ACTION(limit_restarts)
{
    if (ev->code) /* of HANG */
        g->remaining = 0;
}

ACTION(keep_change)
{
    g->pending = MAX_OF(g->pending, WHY_MEMBERSHIP);
}

ACTION(keep_notice)
{
    g->pending = WHY_NOTICE;
}

ACTION(end_job)
{
    g->all_go = true;
}

ACTION(keep_peer_failure)
{
    g->pending = WHY_PEER;
}

ACTION(limit_exchange)
{
    g->due_ms = MIN_OF(g->due_ms, ev->now.mono_ms + AGENT_ASSIGN_WAITS_MS);
}

ACTION(limit_barrier)
{
    g->due_ms = MIN_OF(g->due_ms, ev->now.mono_ms + AGENT_BARRIER_LOST_MS);
}

ACTION(expect_short_barrier)
{
    g->barrier_short = true;
}

ACTION(fence)
{
    g->fenced = true;
}

/* Tells what exited workers left behind to go, once. */
ACTION(ask_leftovers)
{
    if (g->leftovers_asked)
        return;
    g->leftovers_asked = true;
    add_effect(fx,
               (struct agent_core_fx){ .kind = AGENT_FX_LEFTOVERS, .sig = SIGTERM });
    if (g->alive == 0)
        g->due_ms = MIN_OF(g->due_ms, ev->now.mono_ms + AGENT_LEFTOVER_MS);
}

ACTION(ask_leftovers_again)
{
    g->leftovers_asked = false; /* More may have come since. */
    ask_leftovers(g, ev, fx);
}

/* Tells the workers to go, by stop_sig. */
ACTION(ask_workers)
{
    g->ask_ms = MONO_NEVER;
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (g->workers[i].alive)
            add_effect(fx, (struct agent_core_fx){ .kind = AGENT_FX_SIGNAL,
                                                   .worker = i,
                                                   .sig = g->stop_sig });
    if (g->alive < g->set.nproc)
        ask_leftovers(g, ev, fx);
}

/* They are told before they are killed: then they did not fail. */
ACTION(ask_unasked)
{
    if (g->ask_ms != MONO_NEVER)
        ask_workers(g, ev, fx);
}

ACTION(name_killed)
{
    for (int64_t i = 0; i < g->set.nproc; i++)
        if (g->workers[i].alive)
            add_effect(fx, (struct agent_core_fx){ .kind = AGENT_FX_LOG_KILL,
                                                   .worker = i,
                                                   .sig = g->stop_sig });
}

ACTION(abandon_workers)
{
    for (int64_t i = 0; i < g->set.nproc; i++) {
        if (!g->workers[i].alive)
            continue;
        add_effect(
            fx, (struct agent_core_fx){ .kind = AGENT_FX_LOG_ABANDONED, .worker = i });
        g->workers[i] = (struct agent_core_worker){ .code = -SIGKILL };
    }
    g->alive = 0;
}

ACTION(cancel_join)
{
    add_kind(fx, AGENT_FX_CANCEL_JOIN);
}

ACTION(ask_judge)
{
    add_kind(fx, AGENT_FX_JUDGE);
}

ACTION(log_restart)
{
    if (g->why == WHY_FAILURE)
        add_kind(fx, AGENT_FX_LOG_FAILED);
}

/* On every node of a job that has failed for good the result is the same, whoever's
 * worker it was. */
ACTION(log_final_failure)
{
    add_effect(fx,
               (struct agent_core_fx){ .kind = AGENT_FX_LOG_FAILED, .final = true });
}

ACTION(log_terminated)
{
    add_kind(fx, AGENT_FX_LOG_TERMINATED);
}

ACTION(log_no_barrier)
{
    add_kind(fx, AGENT_FX_LOG_NO_BARRIER);
}

/* --- the table -------------------------------------------------------------------- */

#define IN(phase) (1u << AGENT_##phase)
#define ON(event) (1u << AGENT_EV_##event)
#define TO(phase) AGENT_##phase
#define STAY      AGENT_NEW
#define ALWAYS    NULL
#define KEEP      WHY_NONE

#define ENDING   (IN(STOPPING) | IN(KILLING) | IN(DRAINING))
#define WORKERS  (IN(STARTING) | IN(RUNNING) | IN(STOPPING) | IN(KILLING))
#define JOB_ENDS (ON(PEER_FAILED) | ON(RESTART) | ON(VERDICT))

/* clang-format off */
static const struct agent_transition table[] = {
    /* Joining and agreeing on ranks. */
    { IN(NEW), ON(BEGIN), ALWAYS, KEEP, TO(JOINING) },
    { IN(JOINING), ON(JOINED), ALWAYS, KEEP, TO(ASSIGNING) },
    { IN(ASSIGNING), ON(ASSIGNED), round_is_over, KEEP, TO(JOINING) },
    { IN(ASSIGNING), ON(ASSIGNED), ALWAYS, KEEP, TO(STARTING), { take_budget } },
    /* Whoever is lost, or has left for the next round, takes no part in the exchange of
     * ranks. torchrun's nodes fail if it does: while a node only waits, it goes on for a
     * moment. */
    { IN(ASSIGNING), ON(NODE_WAITS), ALWAYS, KEEP, STAY, { keep_change, limit_exchange } },
    { IN(ASSIGNING), ON(NODE_LOST) | ON(EVICTED) | ON(TIMEOUT), ALWAYS, KEEP, TO(JOINING) },
    { IN(ASSIGNING) | IN(JUDGING), ON(CUT_OFF), may_rejoin, KEEP, TO(JOINING) },
    { IN(NEW) | IN(JOINING) | IN(ASSIGNING), ON(CUT_OFF), for_good, WHY_FATAL, TO(LEAVING) },
    { IN(NEW) | IN(JOINING) | IN(ASSIGNING), ON(FATAL), ALWAYS, WHY_FATAL, TO(LEAVING) },
    { IN(JOINING), ON(VERDICT), ALWAYS, WHY_FAILURE, TO(LEAVING),
      { cancel_join, log_final_failure } },
    { IN(ASSIGNING), ON(VERDICT), ALWAYS, WHY_FAILURE, TO(LEAVING), { log_final_failure } },

    /* Starting: what calls for a stop waits until all have started. */
    { IN(STARTING), JOB_ENDS, ALWAYS, KEEP, STAY, { keep_peer_failure } },
    { IN(STARTING), ON(NODE_WAITS) | ON(NODE_LOST), ALWAYS, KEEP, STAY, { keep_change } },
    { IN(STARTING), ON(EVICTED), ALWAYS, KEEP, STAY, { keep_change, fence } },
    { IN(STARTING), ON(CUT_OFF), may_rejoin, KEEP, STAY, { keep_change, fence } },
    { IN(STARTING), ON(NOTICE), ALWAYS, KEEP, STAY, { keep_change } },
    { IN(STARTING), ON(NOTICE_OURS), ALWAYS, KEEP, STAY, { keep_notice } },
    { IN(STARTING), ON(STARTED), must_go, WHY_NOTICE, TO(STOPPING) },
    { IN(STARTING), ON(STARTED), round_is_over, WHY_MEMBERSHIP, TO(STOPPING) },
    { IN(STARTING), ON(STARTED), any_failed, WHY_FAILURE, TO(STOPPING) },
    { IN(STARTING), ON(STARTED), must_stop, WHY_PEER, TO(STOPPING) },
    { IN(STARTING), ON(STARTED), nobody_left, WHY_SUCCESS, TO(DRAINING) },
    { IN(STARTING), ON(STARTED), all_exited, WHY_SUCCESS, TO(STOPPING) },
    { IN(STARTING), ON(STARTED), ALWAYS, KEEP, TO(RUNNING) },

    /* Running: it ends well, fails, or has to stop for others. */
    { IN(RUNNING), ON(EMPTY), ALWAYS, WHY_SUCCESS, TO(DRAINING) },
    { IN(RUNNING), ON(LEFTOVERS), ALWAYS, WHY_SUCCESS, TO(STOPPING) },
    { IN(RUNNING), ON(EXIT), exit_failed, WHY_FAILURE, TO(STOPPING) },
    { IN(RUNNING), ON(HANG), ALWAYS, WHY_FAILURE, TO(STOPPING), { limit_restarts } },
    { IN(RUNNING), ON(STUCK), ALWAYS, WHY_STUCK, TO(STOPPING), { no_restarts } },
    { IN(RUNNING), JOB_ENDS, ALWAYS, WHY_PEER, TO(STOPPING) },
    { IN(RUNNING), ON(NODE_WAITS) | ON(NODE_LOST), ALWAYS, WHY_MEMBERSHIP, TO(STOPPING) },
    { IN(RUNNING), ON(EVICTED), ALWAYS, WHY_MEMBERSHIP, TO(STOPPING), { fence } },
    { IN(RUNNING), ON(CUT_OFF), may_rejoin, WHY_MEMBERSHIP, TO(STOPPING), { fence } },
    { IN(STARTING) | IN(RUNNING), ON(CUT_OFF), ALWAYS, WHY_FATAL, TO(STOPPING), { fence } },
    { IN(STARTING) | IN(RUNNING), ON(FATAL), ALWAYS, WHY_FATAL, TO(STOPPING) },

    /* A notice: all workers of the job have until the deadline; then this node goes, or
     * the others begin without the one that goes. */
    { IN(RUNNING), ON(NOTICE), ALWAYS, WHY_MEMBERSHIP, TO(STOPPING) },
    { IN(RUNNING), ON(NOTICE_OURS), ALWAYS, WHY_NOTICE, TO(STOPPING) },
    { ENDING, ON(NOTICE_OURS), less_than_fatal, WHY_NOTICE, STAY },
    { IN(JOINING), ON(NOTICE_OURS), ALWAYS, WHY_NOTICE, TO(LEAVING), { cancel_join } },
    { IN(NEW) | IN(ASSIGNING) | IN(JUDGING), ON(NOTICE_OURS), ALWAYS, WHY_NOTICE,
      TO(LEAVING) },
    /* Whether it still counts does not matter any more: its workers go on saving. */
    { IN(STOPPING), ON(CUT_OFF) | ON(EVICTED), goes, KEEP, STAY },

    /* Ending the workers. */
    { IN(STOPPING), ON(ENTERED), nobody_left, KEEP, TO(DRAINING) },
    { IN(STOPPING), ON(ENTERED), no_grace, KEEP, TO(KILLING), { name_killed } },
    { IN(STOPPING), ON(ENTERED), is_fenced, KEEP, TO(KILLING), { ask_unasked } },
    { IN(STOPPING), ON(LEFTOVERS), ALWAYS, KEEP, STAY, { ask_leftovers_again } },
    { IN(STOPPING), ON(TIMEOUT), ALWAYS, KEEP, TO(KILLING), { name_killed } },
    { IN(STOPPING) | IN(KILLING), ON(EMPTY), ALWAYS, KEEP, TO(DRAINING) },
    { IN(KILLING), ON(TIMEOUT), ALWAYS, KEEP, TO(DRAINING), { abandon_workers } },
    /* Its node was quicker to ask for the next round than to tell of the failure. */
    { ENDING, ON(PEER_FAILED), for_new_round, WHY_PEER, STAY },
    { ENDING, ON(FATAL), less_than_fatal, WHY_FATAL, STAY },
    /* The others are in a world in which the work of ours does not count. */
    { ENDING, ON(NEXT_ROUND), ended_well, WHY_MEMBERSHIP, STAY },
    { ENDING, ON(NODE_LOST), ended_well, KEEP, STAY, { expect_short_barrier } },
    { IN(STOPPING), ON(EVICTED), ended_well, WHY_MEMBERSHIP, TO(KILLING), { ask_unasked } },
    { IN(STOPPING), ON(EVICTED), ALWAYS, KEEP, TO(KILLING), { ask_unasked } },
    { ENDING, ON(EVICTED), ended_well, WHY_MEMBERSHIP, STAY },
    { IN(STOPPING), ON(CUT_OFF), rejoin_counts, WHY_MEMBERSHIP, TO(KILLING), { ask_unasked } },
    { IN(STOPPING), ON(CUT_OFF), for_good_fatal, WHY_FATAL, TO(KILLING), { ask_unasked } },
    { IN(STOPPING), ON(CUT_OFF), ALWAYS, KEEP, TO(KILLING), { ask_unasked } },
    { ENDING, ON(CUT_OFF), rejoin_counts, WHY_MEMBERSHIP, STAY },
    { ENDING, ON(CUT_OFF), for_good_fatal, WHY_FATAL, STAY },

    /* All are gone: what comes of it. */
    { IN(DRAINING), ON(DRAINED), too_few_stay, WHY_NOTICE, TO(LEAVING), { end_job } },
    { IN(DRAINING), ON(DRAINED), ended_well, KEEP, TO(BARRIER) },
    { IN(DRAINING), ON(DRAINED), for_new_round, KEEP, TO(JOINING) },
    { IN(DRAINING), ON(DRAINED), own_restart, KEEP, TO(JOINING),
      { ask_judge, use_restart, log_restart } },
    { IN(DRAINING), ON(DRAINED), failure_known, WHY_FAILURE, TO(LEAVING),
      { ask_judge, log_final_failure } },
    { IN(DRAINING), ON(DRAINED), restart_known, KEEP, TO(JOINING), { ask_judge, log_restart } },
    { IN(DRAINING), ON(DRAINED), failed, KEEP, TO(JUDGING), { ask_judge } },
    { IN(DRAINING), ON(DRAINED), is_stuck, KEEP, TO(LEAVING), { log_terminated } },
    { IN(DRAINING), ON(DRAINED), ALWAYS, KEEP, TO(LEAVING) },
    { IN(JUDGING), ON(RESTART) | ON(EVICTED) | ON(JUDGE_GONE), ALWAYS, KEEP, TO(JOINING),
      { log_restart } },
    { IN(JUDGING), ON(TIMEOUT), restarts_left, KEEP, TO(JOINING), { use_restart, log_restart } },
    { IN(JUDGING), ON(TIMEOUT) | ON(VERDICT), ALWAYS, WHY_FAILURE, TO(LEAVING),
      { log_final_failure } },

    /* Our workers are done; all wait for the last. */
    { IN(BARRIER), ON(BARRIER_DONE), ALWAYS, KEEP, TO(LEAVING) },
    { IN(BARRIER), ON(NODE_LOST), ALWAYS, KEEP, STAY, { limit_barrier } },
    /* The group begins again, and may not have enough nodes without this one. */
    { IN(BARRIER), ON(RESTART) | ON(EVICTED) | ON(NEXT_ROUND), ALWAYS, KEEP, TO(JOINING) },
    { IN(BARRIER), ON(VERDICT), ALWAYS, WHY_FAILURE, TO(LEAVING), { log_final_failure } },
    /* As torchrun, say so and end well, unless nobody can tell whether it counts. */
    { IN(BARRIER), ON(BARRIER_SHORT) | ON(TIMEOUT) | ON(FATAL), ALWAYS, KEEP, TO(LEAVING),
      { log_no_barrier } },
    { IN(BARRIER), ON(CUT_OFF), ALWAYS, WHY_FATAL, TO(LEAVING), { log_no_barrier } },
    { IN(LEAVING), ON(LEFT) | ON(TIMEOUT), ALWAYS, KEEP, TO(DONE) },

    /* Signals. The first: the workers get the same. The second: SIGTERM and a new grace,
     * as torchrun does. Of SIGINT, or any third: the end. */
    { WORKERS, ON(SIGNAL), out_of_patience, WHY_SIGNAL, TO(KILLING), { name_killed } },
    { WORKERS, ON(SIGNAL), ALWAYS, WHY_SIGNAL, TO(STOPPING) },
    { IN(DRAINING), ON(SIGNAL), has_patience, WHY_SIGNAL, STAY },
    { IN(JOINING), ON(SIGNAL), ALWAYS, WHY_SIGNAL, TO(LEAVING), { cancel_join } },
    { IN(NEW) | IN(ASSIGNING) | IN(DRAINING) | IN(JUDGING) | IN(BARRIER), ON(SIGNAL), ALWAYS,
      WHY_SIGNAL, TO(LEAVING) },
};
/* clang-format on */

const struct agent_transition *agent_core_table(size_t *rows)
{
    *rows = ARRAY_LEN(table);
    return table;
}

/* --- what is done on entering a phase --------------------------------------------- */

ACTION(enter_joining)
{
    g->why = g->pending = WHY_NONE;
    g->outcome = UNDECIDED;
    g->barrier_short = g->judge_gone = g->evicted = g->fenced = false;
    g->due_ms = MONO_NEVER;
    g->notice_ms = 0;
    add_kind(fx, AGENT_FX_JOIN);
}

ACTION(enter_assigning)
{
    add_kind(fx, AGENT_FX_ASSIGN);
}

ACTION(enter_starting)
{
    g->due_ms = MONO_NEVER;
    /* Until now it has told workers that were stopped from workers that failed. */
    g->stop_sig = 0;
    g->empty = g->leftovers_asked = false;
    g->alive = g->set.nproc;
    for (int64_t i = 0; i < g->set.nproc; i++)
        g->workers[i] = (struct agent_core_worker){ .alive = true };
    add_effect(fx, (struct agent_core_fx){ .kind = AGENT_FX_START,
                                           .attempt = agent_core_attempt(g) });
}

/* Ranks that fail together do so within milliseconds: those that would be told to go in
 * the middle of their own tracebacks are let end by themselves, where nothing waits for
 * the next attempt. */
static bool is_last_failure(const struct agent_core *g)
{
    return g->remaining == 0 &&
           (g->why == WHY_PEER || (g->why == WHY_FAILURE && has_failed_worker(g)));
}

/* Tells every living worker to go; all else follows from exits and the clock. */
ACTION(enter_stopping)
{
    const uint64_t grace = grace_ms(g), now = ev->now.mono_ms;

    g->ask_ms = g->tell_ms = MONO_NEVER;
    if (g->why == WHY_SUCCESS) { /* All have exited by themselves. */
        g->due_ms = now + AGENT_LEFTOVER_MS;
        ask_leftovers_again(g, ev, fx);
        return;
    }
    if (has_deadline(g)) {
        g->stop_sig = g->notice_sig;
        g->due_ms = g->notice_ms;
        if (g->stop_sig)
            ask_workers(g, ev, fx);
        return;
    }
    g->stop_sig = g->why == WHY_SIGNAL && g->signals == 1 ? g->signal : SIGTERM;
    g->due_ms = grace < MONO_NEVER - now ? now + grace : MONO_NEVER;
    if (grace > AGENT_TELL_MS)
        g->tell_ms = now + AGENT_TELL_MS;
    if (g->empty)
        return;
    if (is_last_failure(g) && g->alive > 0 && grace > AGENT_PATIENCE_MS)
        g->ask_ms = now + AGENT_PATIENCE_MS;
    else
        ask_workers(g, ev, fx);
}

ACTION(enter_killing)
{
    g->fenced = false;
    g->due_ms = ev->now.mono_ms + AGENT_REAP_MS;
    add_effect(fx, (struct agent_core_fx){ .kind = AGENT_FX_KILL_ALL,
                                           .code = ev->kind == AGENT_EV_TIMEOUT &&
                                                   g->alive > 0 });
}

ACTION(enter_draining)
{
    g->due_ms = MONO_NEVER;
    add_kind(fx, AGENT_FX_DRAIN);
}

ACTION(enter_judging)
{
    g->due_ms = ev->now.mono_ms + AGENT_JUDGE_MS;
}

ACTION(enter_barrier)
{
    if (g->barrier_short)
        g->due_ms = ev->now.mono_ms + AGENT_BARRIER_LOST_MS;
    add_kind(fx, AGENT_FX_LOG_SUCCEEDED);
    add_kind(fx, AGENT_FX_BARRIER);
}

/* As torchrun: a signal leaves the run id open, so that the job can go on without this
 * node; every other end closes it. */
ACTION(enter_leaving)
{
    const bool goes_alone =
        g->why == WHY_SIGNAL || (g->why == WHY_NOTICE && !g->all_go);

    g->due_ms =
        ev->now.mono_ms + (g->why == WHY_FATAL ? AGENT_CLOSE_FATAL_MS : AGENT_CLOSE_MS);
    if (g->why == WHY_NOTICE) /* Whoever serves the store leaves last. */
        g->due_ms = MAX_OF(g->due_ms, g->notice_ms + AGENT_CLOSE_MS);
    add_effect(fx,
               (struct agent_core_fx){ .kind = AGENT_FX_LEAVE, .close = !goes_alone });
}

ACTION(enter_done)
{
    /* Like torchrun, an unhealthy (stuck) group is not a failure. */
    const bool good = g->why == WHY_SUCCESS || g->why == WHY_STUCK;

    g->due_ms = MONO_NEVER;
    add_effect(fx, (struct agent_core_fx){
                       .kind = AGENT_FX_FINISH, .why = g->why, .code = good ? 0 : 1 });
}

static const agent_action entries[] = {
    [AGENT_JOINING] = enter_joining,   [AGENT_ASSIGNING] = enter_assigning,
    [AGENT_STARTING] = enter_starting, [AGENT_STOPPING] = enter_stopping,
    [AGENT_KILLING] = enter_killing,   [AGENT_DRAINING] = enter_draining,
    [AGENT_JUDGING] = enter_judging,   [AGENT_BARRIER] = enter_barrier,
    [AGENT_LEAVING] = enter_leaving,   [AGENT_DONE] = enter_done,
};

/* --- what an event changes in every phase ----------------------------------------- */

/* False: the table has nothing to say to it. */
#define NOTE(name)                                                                     \
    static bool name(struct agent_core *g, const struct agent_core_event *ev UNUSED,   \
                     struct agent_core_fx_list *fx UNUSED)

NOTE(note_exit)
{
    struct agent_core_worker *w = &g->workers[ev->worker];

    assert(ev->worker >= 0 && ev->worker < g->set.nproc);
    if (!w->alive)
        return false;
    assert(g->alive > 0 && !g->empty);
    w->alive = false;
    w->code = ev->code;
    g->alive--;
    return true;
}

NOTE(note_leftovers)
{
    return g->alive == 0;
}

NOTE(note_empty) /* If one ended before the next was started, more will come. */
{
    g->empty |= g->alive == 0;
    return g->alive == 0;
}

NOTE(note_drained)
{
    if (ev->code == AGENT_NO_RESTART)
        g->remaining = 0;
    if (ev->code == AGENT_FREE_RESTART)
        g->remaining++; /* which use_restart takes back */
    return true;
}

NOTE(note_notice)
{
    if (g->notice_ms == 0) {
        g->notice_ms = ev->now.mono_ms + (uint64_t)ev->worker;
        g->notice_sig = ev->code;
    }
    return true;
}

NOTE(note_signal)
{
    if (g->phase == AGENT_LEAVING || g->phase == AGENT_DONE)
        return false;
    g->signals++;
    g->interrupts += ev->code == SIGINT;
    g->signal = ev->code;
    add_effect(fx, (struct agent_core_fx){ .kind = g->phase == AGENT_BARRIER
                                                       ? AGENT_FX_LOG_BARRIER
                                                       : AGENT_FX_LOG_SIGNAL,
                                           .sig = ev->code });
    return true;
}

/* The table hears of it when the phase's own time is up. */
NOTE(note_timeout)
{
    const uint64_t now = ev->now.mono_ms;

    if (g->phase == AGENT_STOPPING && now >= g->ask_ms)
        ask_workers(g, ev, fx);
    if (g->phase == AGENT_STOPPING && now >= g->tell_ms) {
        g->tell_ms = MONO_NEVER;
        if (g->alive > 0 && now < g->due_ms)
            add_kind(fx, AGENT_FX_LOG_WAITING);
    }
    if (now < g->due_ms)
        return false;
    g->due_ms = MONO_NEVER;
    return true;
}

NOTE(note_evicted)
{
    return g->evicted = true;
}

NOTE(note_barrier_short)
{
    return g->barrier_short = true;
}

NOTE(note_restart)
{
    if (g->job_budget || ev->code)
        g->remaining = g->set.max_restarts - ev->worker;
    /* A restart of the round that we have left says nothing about the next one. */
    if (g->phase != AGENT_JOINING && g->phase != AGENT_ASSIGNING)
        g->outcome = RESTARTS;
    return true;
}

NOTE(note_verdict)
{
    g->outcome = FAILED_FOR_GOOD;
    return true;
}

NOTE(note_judge)
{
    g->judge_gone = ev->kind == AGENT_EV_JUDGE_GONE;
    return true;
}

static bool (*const notes[])(struct agent_core *g, const struct agent_core_event *ev,
                             struct agent_core_fx_list *fx) = {
    [AGENT_EV_EXIT] = note_exit,        [AGENT_EV_LEFTOVERS] = note_leftovers,
    [AGENT_EV_EMPTY] = note_empty,      [AGENT_EV_DRAINED] = note_drained,
    [AGENT_EV_SIGNAL] = note_signal,    [AGENT_EV_TIMEOUT] = note_timeout,
    [AGENT_EV_EVICTED] = note_evicted,  [AGENT_EV_BARRIER_SHORT] = note_barrier_short,
    [AGENT_EV_RESTART] = note_restart,  [AGENT_EV_VERDICT] = note_verdict,
    [AGENT_EV_JUDGE_GONE] = note_judge, [AGENT_EV_JUDGE_BACK] = note_judge,
    [AGENT_EV_NOTICE] = note_notice,    [AGENT_EV_NOTICE_OURS] = note_notice,
    [AGENT_EV_ENTERED] = NULL,
};

/* --- the step --------------------------------------------------------------------- */

/* What holds between two steps, whatever came. */
static void check_invariants(const struct agent_core *g)
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
        assert(g->why == WHY_NONE && g->pending == WHY_NONE && !g->empty);
        return;
    case AGENT_STOPPING:
        assert(g->why != WHY_NONE && !g->empty && !g->fenced);
        return;
    case AGENT_KILLING:
        assert(g->why != WHY_NONE && g->due_ms != MONO_NEVER);
        return;
    case AGENT_DRAINING:
        assert(g->why != WHY_NONE && g->alive == 0 && g->due_ms == MONO_NEVER);
        return;
    case AGENT_JUDGING:
        assert(g->why == WHY_PEER || g->why == WHY_FAILURE);
        assert(g->outcome == UNDECIDED && g->alive == 0 && g->due_ms != MONO_NEVER);
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

static const struct agent_transition *find_transition(const struct agent_core *g,
                                                      enum agent_core_event_kind kind,
                                                      const struct agent_core_event *ev)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        const struct agent_transition *t = &table[i];

        if (t->phases & (1u << g->phase) && t->events & (1u << kind) &&
            (!t->when || t->when(g, ev)))
            return t;
    }
    return NULL;
}

/* Follows a row; true if it led into a phase, perhaps the same one again. */
static bool follow(struct agent_core *g, const struct agent_transition *t,
                   const struct agent_core_event *ev, struct agent_core_fx_list *fx)
{
    if (!t)
        return false;
    if (t->why != KEEP)
        g->why = t->why;
    for (size_t i = 0; i < ARRAY_LEN(t->actions) && t->actions[i]; i++)
        t->actions[i](g, ev, fx);
    if (t->next == STAY)
        return false;
    g->phase = t->next;
    if (entries[g->phase])
        entries[g->phase](g, ev, fx);
    return true;
}

int agent_core_step(struct agent_core *g, const struct agent_core_event *ev,
                    struct agent_core_fx_list *fx)
{
    enum agent_core_event_kind kind = ev->kind;

    if (agent_core_fx_reserve(g, fx) < 0)
        return MUSTER_ENOMEM;
    if (!notes[kind] || notes[kind](g, ev, fx))
        while (follow(g, find_transition(g, kind, ev), ev, fx))
            kind = AGENT_EV_ENTERED;
    check_invariants(g);
    return 0;
}
