/* guest_hear.c - what the host of a rendezvous says to one of its nodes. */
#include <inttypes.h>
#include <stdio.h>

#include "rdzv/guest_int.h"

static void on_joined(struct rdzv_guest *g, struct rdzv_guest_fx *fx,
                      const struct hosted_msg *m)
{
    if (!g->join.on)
        return; /* We gave up meanwhile, and have said so or shall. */
    if (m->world < 1 || m->rank < 0 || m->rank >= m->world ||
        m->addr.n > RDZV_MAX_ADDR) {
        (void)snprintf(g->text, sizeof g->text,
                       "the host told rank %" PRId64 " of %" PRId64
                       " nodes, which cannot be",
                       m->rank, m->world);
        g->join.on = false;
        guest_tell(fx, (struct rdzv_effect){ .kind = RDZV_FX_REFUSED,
                                             .code = MUSTER_EPROTO,
                                             .text = g->text });
        return;
    }
    g->join.on = false;
    g->member = true;
    g->waiting = 0;
    g->round = m->round;
    g->rank = m->rank;
    g->world = m->world;
    if (m->addr.n)
        memcpy(g->zero, m->addr.p, m->addr.n);
    g->zero[m->addr.n] = '\0';
    g->zero_pid = m->pid;
    g->zero_local_id = m->local_id;
    g->strangers = m->count;
    guest_tell(fx, (struct rdzv_effect){ .kind = RDZV_FX_JOINED,
                                         .round = m->round,
                                         .rank = m->rank,
                                         .world = m->world });
}

static void on_closed(struct rdzv_guest *g, struct rdzv_guest_fx *fx)
{
    const bool known = g->closed;

    g->closed = true;
    guest_done(fx, &g->close, RDZV_EV_CLOSE, 0, NULL);
    guest_refused(g, fx, MUSTER_ECLOSED,
                  span_str("the rendezvous is closed: the run has ended; use a "
                           "new run id"));
    if (!known && g->member)
        guest_news(g, fx, RDZV_NEWS_CLOSED, 0, span_str("the run was closed"));
}

static void on_gathered(struct rdzv_guest *g, const struct hosted_msg *m,
                        struct now now)
{
    g->gathered = m->count;
    g->start_by_ms =
        m->grace_ms > MONO_NEVER - now.mono_ms ? MONO_NEVER : now.mono_ms + m->grace_ms;
    if (!m->text.n)
        return;
    names_copy(g->names, m->text);
    names_copy(g->missing, m->addr);
}

/* The HELLO itself is refused: a later try needs a new one. Who is no guest has no
 * place to leave, and cannot close the run of those who are. */
static void on_turned_away(struct rdzv_guest *g, struct rdzv_guest_fx *fx,
                           const struct hosted_msg *m, struct now now)
{
    g->link = LINK_PAUSED;
    g->redial_ms = now.mono_ms + GUEST_MAX_PAUSE_MS;
    g->away_ms = MONO_NEVER;
    (void)snprintf(g->text, sizeof g->text, "%.*s", (int)MIN_OF(m->text.n, 1100),
                   (const char *)m->text.p);
    guest_done(fx, &g->leave, RDZV_EV_LEAVE, 0, NULL);
    guest_done(fx, &g->close, RDZV_EV_CLOSE, m->code < 0 ? m->code : MUSTER_EPROTO,
               g->text);
}

/* What was said before the host heard our LEAVE is about the place that we gave up, not
 * about the one that we may have asked for since: its LEFT comes after it. */
static bool is_stale(const struct rdzv_guest *g, enum hosted_kind kind)
{
    return g->lefts_due > 0 && kind != HOSTED_LEFT && kind != HOSTED_CLOSED;
}

void guest_hear(struct rdzv_guest *g, const struct rdzv_guest_event *ev,
                struct rdzv_guest_fx *fx)
{
    const struct hosted_msg *m = ev->msg;

    if (is_stale(g, m->kind))
        return;
    switch (m->kind) {
    case HOSTED_WELCOME:
        g->link = LINK_HELD;
        if (g->away_ms != MONO_NEVER)
            trace(g->cfg.trace, TRACE_INFO,
                  "the host of the rendezvous '%s' is back after %" PRIu64 " ms",
                  g->run_id, ev->now.mono_ms - g->away_ms);
        g->away_ms = MONO_NEVER;
        g->away_told = false;
        guest_say_again(g, fx);
        return;
    case HOSTED_JOINED:
        on_joined(g, fx, m);
        return;
    case HOSTED_REFUSED:
        guest_refused(g, fx, m->code < 0 ? m->code : MUSTER_EPROTO, m->text);
        if (g->link == LINK_UP)
            on_turned_away(g, fx, m, ev->now);
        return;
    case HOSTED_LEFT:
        g->member = false;
        g->lefts_due = MAX_OF(g->lefts_due - 1, 0);
        guest_done(fx, &g->leave, RDZV_EV_LEAVE, 0, NULL);
        return;
    case HOSTED_CLOSED:
        on_closed(g, fx);
        return;
    case HOSTED_GATHERED:
        on_gathered(g, m, ev->now);
        return;
    case HOSTED_WAITING:
        g->waiting = m->count;
        if (m->count > 0 && g->member)
            guest_news(g, fx, RDZV_NEWS_WAITING, 0, span_str(""));
        return;
    case HOSTED_SPARE:
        /* Like torch's, a spare waits for as long as the run goes on; once it is none,
         * its time begins anew. */
        g->join.by_ms =
            m->count ? MONO_NEVER : ev->now.mono_ms + g->cfg.settings.join_ms;
        return;
    case HOSTED_LOST:
        if (g->member)
            guest_news(g, fx, RDZV_NEWS_LOST, 0, m->text);
        return;
    case HOSTED_EVICTED:
        if (g->member)
            guest_news(g, fx, RDZV_NEWS_EVICTED, 0, m->text);
        g->member = false;
        return;
    case HOSTED_HELLO:
    case HOSTED_JOIN:
    case HOSTED_LEAVE:
    case HOSTED_CLOSE:
    case HOSTED_ALIVE:
    case HOSTED_KIND_COUNT:
        return; /* A host does not say such things; nothing depends on it. */
    }
}
