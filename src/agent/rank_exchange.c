/* rank_exchange.c - what agents tell each other through the round's store: ranks before
 * the workers start, and the barrier after they are done.
 * rendezvous/core/rank_exchange.c decides; store/dialogue_driver.c asks. One of the two
 * is under way at a time. */
#include <stdlib.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "launch/core/options.h"
#include "loop/clock.h"
#include "rendezvous/core/conf_table.h"

#define READ_TIMEOUT_MS 60000u /* as c10d's read_timeout by default */

static bool is_static(const struct agent *a)
{
    return strcmp(a->config->rdzv.backend, "static") == 0;
}

static uint64_t timeout_ms(const struct agent *a)
{
    const enum conf_id key = is_static(a) ? CONF_TIMEOUT : CONF_READ_TIMEOUT;
    int64_t seconds = 0;

    return conf_int(&a->config->rdzv, key, &seconds, NULL) == 0 && seconds > 0
               ? ms_of_seconds(seconds)
               : READ_TIMEOUT_MS;
}

void agent_end_dialogue(struct agent *a)
{
    agent_framework_over(a);
    dialogue_driver_close(a->dialogue.driver);
    dialogue_fini(&a->dialogue.exchange.dialogue);
    dialogue_init(&a->dialogue.exchange.dialogue);
    dialogue_fini(&a->dialogue.barrier.dialogue);
    dialogue_init(&a->dialogue.barrier.dialogue);
    a->dialogue.driver = NULL;
}

static void dialogue_over(struct agent *a, enum agent_core_event_kind what)
{
    agent_end_dialogue(a);
    agent_wait_end(a, true);
    agent_post(a, what, 0, 0);
}

static void on_exchange(void *ctx, const struct dialogue_fx *fx)
{
    struct agent *a = ctx;

    switch (fx->kind) {
    case DIALOGUE_DONE:
        a->range = a->dialogue.exchange.range;
        agent_end_dialogue(a);
        agent_framework_assigned(a, timeout_ms(a), !is_static(a));
        agent_wait_end(a, true);
        break;
    case DIALOGUE_REJOIN:
        log_line(
            a->log, LOG_WARN, AT_RENDEZVOUS,
            "run '%s': the connection to the store broke while ranks were agreed on, "
            "and the other nodes have gone on; joining again",
            a->config->rdzv.run_id);
        dialogue_over(a, AGENT_EV_NODE_LOST);
        break;
    default:
        agent_fail(a, &fx->err);
        agent_end_dialogue(a);
        break;
    }
    agent_pump(a);
}

static void begin(struct agent *a, struct store_dialogue *machine, dialogue_step step,
                  dialogue_driver_cb cb)
{
    struct muster_error err;

    if (dialogue_driver_open(a->round.store, machine, step, cb, a, &a->dialogue.driver,
                             &err) < 0) {
        a->dialogue.driver = NULL;
        agent_fail(a, &err);
    }
}

void agent_assign(struct agent *a)
{
    const char *identical = env_get(a->opts.envp, "TORCH_ELASTIC_WORKER_IDENTICAL");

    if (a->round.world_size == 1 || (identical && strcmp(identical, "1") == 0)) {
        a->range =
            ranks_identical(a->round.rank, a->round.world_size, a->config->nproc);
        agent_framework_assigned(a, timeout_ms(a), !is_static(a));
        return;
    }
    if (a->round.ranks) {
        a->range = *a->round.ranks;
        agent_framework_assigned(a, timeout_ms(a), !is_static(a));
        return;
    }
    agent_end_dialogue(a);
    a->dialogue.exchange = (struct rank_exchange){
        .role = a->config->role,
        .rank = a->round.rank,
        .world = a->round.world_size,
        .nproc = a->config->nproc,
        .timeout_ms = timeout_ms(a),
        .can_rejoin = !is_static(a),
    };
    dialogue_init(&a->dialogue.exchange.dialogue);
    agent_wait_begin(a, a->round.rank == 0 ? WAITING_FOR_NODES : WAITING_FOR_RANKS,
                     clock_mono_ms() + timeout_ms(a));
    begin(a, &a->dialogue.exchange.dialogue, rank_exchange_step, on_exchange);
}

/* --- the barrier ------------------------------------------------------------------ */

/* It is given up and not failed, since the work is done. */
static void on_barrier(void *ctx, const struct dialogue_fx *fx)
{
    struct agent *a = ctx;

    if (fx->kind == DIALOGUE_DONE) {
        dialogue_over(a, AGENT_EV_BARRIER_DONE);
    } else {
        agent_fail(a, &fx->err);
        agent_end_dialogue(a);
    }
    agent_pump(a);
}

void agent_barrier(struct agent *a)
{
    if (a->round.world_size == 1) {
        agent_post(a, AGENT_EV_BARRIER_DONE, 0, 0);
        return;
    }
    agent_end_dialogue(a);
    a->dialogue.barrier = (struct exit_barrier){ .rank = a->round.rank,
                                                 .world = a->round.world_size,
                                                 .gives_up = is_static(a) };
    dialogue_init(&a->dialogue.barrier.dialogue);
    agent_wait_begin(a, WAITING_FOR_END, clock_mono_ms() + BARRIER_MS);
    begin(a, &a->dialogue.barrier.dialogue, exit_barrier_step, on_barrier);
}
