/* guest_time.c - a guest's deadlines, its heartbeats, and how long it waits for a host
 * that is away. */
#include <inttypes.h>
#include <stdio.h>

#include "rdzv/guest_int.h"

static bool due(const struct wish_state *w, struct now now)
{
    return w->on && now.mono_ms >= w->by_ms;
}

static void time_out(struct rdzv_guest *g, struct rdzv_guest_fx *fx, struct now now)
{
    const char *away = g->away_ms == MONO_NEVER ? "" : "; its host is away";
    char text[300];

    if (due(&g->join, now)) {
        (void)snprintf(text, sizeof text,
                       "could not join the rendezvous '%.100s' within %" PRIu64
                       " s (join_timeout): %" PRId64 " node(s) of at least %" PRId64
                       " were there%s",
                       g->run_id, g->cfg.settings.join_ms / 1000, g->gathered,
                       g->cfg.settings.min_nodes, away);
        guest_refused(g, fx, MUSTER_ETIMEDOUT, span_str(text));
        guest_goodbye(g, fx);
    }
    if (g->join.on && g->cfg.away_ms && g->away_ms != MONO_NEVER &&
        now.mono_ms - g->away_ms >= g->cfg.away_ms) {
        (void)snprintf(text, sizeof text,
                       "the host of the rendezvous '%.100s' has been away for %" PRIu64
                       " s (read_timeout); it ended, or cannot be reached",
                       g->run_id, g->cfg.away_ms / 1000);
        guest_refused(g, fx, MUSTER_ECONN, span_str(text));
        guest_goodbye(g, fx);
    }
    if (due(&g->leave, now))
        guest_done(fx, &g->leave, RDZV_EV_LEAVE, MUSTER_ETIMEDOUT,
                   "the host did not answer the goodbye in time");
    if (due(&g->close, now))
        guest_done(
            fx, &g->close, RDZV_EV_CLOSE, MUSTER_ETIMEDOUT,
            "the host did not confirm within close_timeout that the run is closed");
}

/* A member judges its host as it would any other: silent for so long is dead. */
static uint64_t away_limit_ms(const struct rdzv_guest *g)
{
    return MAX_OF(rdzv_dead_after_ms(&g->cfg.settings), 1000u);
}

void guest_timer(struct rdzv_guest *g, struct rdzv_guest_fx *fx, struct now now)
{
    time_out(g, fx, now);
    if (g->link == LINK_PAUSED && now.mono_ms >= g->redial_ms)
        guest_dial(g, fx);
    if (guest_held(g) && now.mono_ms >= g->beat_ms) {
        g->beat_ms = now.mono_ms + rdzv_interval_ms(&g->cfg.settings);
        guest_send(fx, (struct hosted_msg){ .kind = HOSTED_ALIVE });
    }
    if (g->away_ms != MONO_NEVER && !g->away_told &&
        now.mono_ms - g->away_ms >= away_limit_ms(g)) {
        g->away_told = true;
        if (g->member)
            guest_news(
                g, fx, RDZV_NEWS_BACKEND, MUSTER_ECONN,
                span_str("the host of the rendezvous has been away for as long as "
                         "a node may be silent (keep_alive_interval * "
                         "keep_alive_max_attempt)"));
    }
}

uint64_t rdzv_guest_deadline(const struct rdzv_guest *g)
{
    uint64_t by = MONO_NEVER;

    if (g->join.on)
        by = MIN_OF(by, g->join.by_ms);
    if (g->join.on && g->cfg.away_ms && g->away_ms != MONO_NEVER)
        by = MIN_OF(by, g->away_ms + g->cfg.away_ms);
    if (g->leave.on)
        by = MIN_OF(by, g->leave.by_ms);
    if (g->close.on)
        by = MIN_OF(by, g->close.by_ms);
    if (g->link == LINK_PAUSED)
        by = MIN_OF(by, g->redial_ms);
    if (guest_held(g))
        by = MIN_OF(by, g->beat_ms);
    if (g->away_ms != MONO_NEVER && !g->away_told)
        by = MIN_OF(by, g->away_ms + away_limit_ms(g));
    return by;
}
