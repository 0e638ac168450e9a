/* guest_link.c - a guest's connection to its host: made, lost and made again, and what
 * is said over it first. */
#include <stdio.h>

#include "rdzv/guest_int.h"

void guest_dial(struct rdzv_guest *g, struct rdzv_guest_fx *fx)
{
    g->link = LINK_DIALING;
    fx->at[fx->count++] = (struct rdzv_guest_effect){ .kind = RDZV_GUEST_DIAL };
}

static void hello(struct rdzv_guest *g, struct rdzv_guest_fx *fx)
{
    guest_send(fx, (struct hosted_msg){
                       .kind = HOSTED_HELLO,
                       .run_id = span_str(g->run_id),
                       .addr = g->cfg.self.addr,
                       .pid = g->cfg.self.pid,
                       .local_id = g->cfg.self.local_id,
                       .nonce = g->cfg.nonce,
                       .settings = buf_span(&g->settings),
                       .order = g->cfg.order,
                       .order_key = g->cfg.order_key,
                       .grace_ms = g->cfg.grace_ms,
                       .round = g->round,
                       .rank = g->rank,
                       .world = g->member ? g->world : 0,
                   });
}

void guest_goodbye(struct rdzv_guest *g, struct rdzv_guest_fx *fx)
{
    g->owed = !guest_held(g);
    if (g->owed)
        return;
    g->lefts_due++;
    guest_send(fx, (struct hosted_msg){ .kind = HOSTED_LEAVE });
}

/* Says everything that has no answer yet, in an order that makes sense to the host. */
void guest_say_again(struct rdzv_guest *g, struct rdzv_guest_fx *fx)
{
    if (g->leave.on || g->owed)
        guest_goodbye(g, fx);
    if (g->close.on)
        guest_send(fx, (struct hosted_msg){ .kind = HOSTED_CLOSE });
    if (g->join.on)
        guest_send(fx, (struct hosted_msg){ .kind = HOSTED_JOIN, .count = g->joins });
}

bool guest_held(const struct rdzv_guest *g)
{
    return g->link == LINK_HELD;
}

void guest_up(struct rdzv_guest *g, struct rdzv_guest_fx *fx, struct now now)
{
    g->link = LINK_UP;
    g->beat_ms = now.mono_ms + rdzv_interval_ms(&g->cfg.settings);
    hello(g, fx);
}

void guest_down(struct rdzv_guest *g, const struct rdzv_guest_event *ev)
{
    /* One that hangs up at our HELLO is no better than one that is not there. */
    if (g->link == LINK_HELD)
        g->pause_ms = GUEST_FIRST_PAUSE_MS;
    else
        g->pause_ms = MIN_OF(g->pause_ms * 2, GUEST_MAX_PAUSE_MS);
    g->link = LINK_PAUSED;
    g->owed = g->owed || g->lefts_due > 0;
    g->lefts_due = 0;
    if (g->join.by_ms == MONO_NEVER) /* a spare, until the host says so again */
        g->join.by_ms = ev->now.mono_ms + g->cfg.settings.join_ms;
    g->redial_ms = ev->now.mono_ms + g->pause_ms;
    g->beat_ms = MONO_NEVER;
    if (g->away_ms == MONO_NEVER) {
        g->away_ms = ev->now.mono_ms;
        trace(g->cfg.trace, TRACE_WARN,
              "the host of the rendezvous '%s' is away: %s; trying again", g->run_id,
              ev->text ? ev->text : "the connection broke");
    }
    (void)snprintf(g->text, sizeof g->text, "%.1000s",
                   ev->text ? ev->text : "the connection broke");
}
