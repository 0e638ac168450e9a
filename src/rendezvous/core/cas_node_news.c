/* cas_node_news.c - what the agent of a node in a running round must know. Each thing
 * is told once. */
#include <stdio.h>

#include "rendezvous/core/cas_node_int.h"

static void news(struct rdzv *r, struct rdzv_fx *fx, enum rdzv_news what, int64_t count)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_NEWS);

    e->news = what;
    e->count = count;
    e->text = r->news_text;
}

/* How many of the round's participants neither have their place any more nor wait for
 * the next round, and one of them for the message. moved: one of them waits. */
static size_t count_lost(const struct rdzv *r, uint64_t now_ms,
                         const struct rdzv_node **one, bool *moved)
{
    size_t lost = 0;

    for (size_t i = 0; i < r->roster.count; i++) {
        const struct participant *m = rdzv_state_find(&r->seen, &r->roster.nodes[i]);

        if ((rdzv_in(m, RDZV_PLACES) || rdzv_in(m, RDZV_WAITS)) &&
            !rdzv_is_dead(r, m, now_ms)) {
            *moved |= !rdzv_in(m, RDZV_PLACES);
            continue;
        }
        lost++;
        *one = &r->roster.nodes[i];
    }
    return lost;
}

/* Waiting nodes are news only if there is room for them: a full round that starts again
 * would be as full as before, with others left over. */
static void notify_waiting(struct rdzv *r, uint64_t now_ms, struct rdzv_fx *fx)
{
    const size_t live = rdzv_count_live(r, &r->seen, RDZV_PLACES, now_ms);
    const size_t waiting = (int64_t)live >= r->settings.max_nodes
                               ? 0
                               : rdzv_count_live(r, &r->seen, RDZV_WAITS, now_ms);

    if (waiting > r->waiting_notified) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "%zu node(s) wait for the next round of the rendezvous '%s'",
                       waiting, r->run_id);
        news(r, fx, RDZV_NEWS_WAITING, (int64_t)waiting);
    }
    r->waiting_notified = waiting;
}

static void notify_lost(struct rdzv *r, uint64_t now_ms, struct rdzv_fx *fx)
{
    const struct rdzv_node *one = NULL;
    char name[128];
    bool moved = false;
    size_t lost;

    if (rdzv_count_live(r, &r->seen, RDZV_PLACES, now_ms) == r->roster.count)
        return; /* Usually nobody is missing. */
    lost = count_lost(r, now_ms, &one, &moved);
    if (r->seen.closed) { /* Nodes leave a closed run one by one. */
        if (lost && !r->deserted_notified)
            rdzv_fx_add(fx, RDZV_FX_NEWS)->news = RDZV_NEWS_DESERTED;
        r->deserted_notified |= lost > 0;
        return;
    }
    if (moved && !r->moved_notified)
        rdzv_fx_add(fx, RDZV_FX_NEWS)->news = RDZV_NEWS_MOVED_ON;
    r->moved_notified |= moved;
    if (lost > r->lost_notified) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "node '%s' is gone from round %lld of the rendezvous '%s'",
                       rdzv_node_text(one, name, sizeof name),
                       (long long)r->roster.round, r->run_id);
        news(r, fx, RDZV_NEWS_LOST, (int64_t)lost);
        r->lost_notified = lost;
    }
}

void rdzv_notify_cut_off(struct rdzv *r, bool was_absent, struct rdzv_fx *fx)
{
    const bool why = r->why.code && r->failures;

    if (was_absent) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "this node was away for longer than a node may be silent "
                       "(keep_alive_interval * keep_alive_max_attempt)");
        news(r, fx, RDZV_NEWS_EVICTED, 0);
        return;
    }
    (void)snprintf(
        r->news_text, sizeof r->news_text,
        "no heartbeat of '%s' has reached the rendezvous '%s' in time%s%.200s",
        r->self_text, r->run_id, why ? ": " : "", why ? r->why.text : "");
    news(r, fx, RDZV_NEWS_CUT_OFF, 0);
    fx->at[fx->count - 1].code = MUSTER_ECONN;
}

bool rdzv_notify(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    const struct participant *me = rdzv_state_find(&r->seen, &r->self);
    const bool in = rdzv_in(me, RDZV_PLACES) && r->seen.complete &&
                    r->seen.round == r->roster.round;

    if (r->seen.closed && !r->closed_notified && !r->close.on) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "the rendezvous '%s' was closed", r->run_id);
        news(r, fx, RDZV_NEWS_CLOSED, 0);
        r->closed_notified = true;
    }
    if (!in) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "the other nodes have dropped '%s' from round %lld of the "
                       "rendezvous '%s'",
                       r->self_text, (long long)r->roster.round, r->run_id);
        news(r, fx, RDZV_NEWS_EVICTED, 0);
        return false;
    }
    if (!r->seen.closed) /* otherwise the run ends, and no new round is needed */
        notify_waiting(r, now.mono_ms, fx);
    notify_lost(r, now.mono_ms, fx);
    return true;
}
