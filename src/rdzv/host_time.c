/* host_time.c - how a host loses nodes, and what else is due with time. */
#include <inttypes.h>
#include <stdio.h>

#include "rdzv/host_int.h"

/* Those who want the next round, and stayed for the sake of nodes that poll. */
static void leave_stayed(struct rdzv_host *h)
{
    for (struct holder *w = h->wishes.first; w && h->staying; w = w->wish_next) {
        struct rdzv_member *m = rdzv_state_find(&h->state, &w->node);

        if (!w->stays)
            continue;
        w->stays = false;
        h->staying--;
        if (m)
            host_leave_place(h, m);
    }
    h->reseat = true;
}

static void lose_holder(struct rdzv_host *h, struct holder *w, struct rdzv_host_fx *fx,
                        const char *why)
{
    struct rdzv_member *m = rdzv_state_find(&h->state, &w->node);
    char name[128];

    (void)snprintf(fx->text, sizeof fx->text, "node %s is lost: %s",
                   rdzv_node_text(&w->node, name, sizeof name), why);
    host_wish_end(h, w);
    if (m)
        host_lose(h, fx, m, TRACE_WARN, fx->text);
    if (w->lost_by_ms == MONO_NEVER)
        host_drop(fx, w->peer);
    holder_remove(h, w);
}

void host_gone(struct rdzv_host *h, const struct rdzv_host_event *ev,
               struct rdzv_host_fx *fx)
{
    struct holder *w = holder_of(h, ev->peer);
    uint64_t by_ms;

    if (!w)
        return;
    by_ms = ev->now.mono_ms + w->grace_ms;
    if (host_unsettled(h, w, ev->now))
        by_ms = MAX_OF(by_ms, h->settled_by_ms);
    h->by_peer[ev->peer] = NULL;
    host_gone_begin(h, w, by_ms);
    if (by_ms <= ev->now.mono_ms) {
        lose_holder(h, w, fx, "its connection broke");
        host_settle(h, fx, ev->now);
    }
}

/* One loss at a time: each may have to be told to every other node, and the texts of
 * two would share one buffer. More are due at once. */
static bool lose_one(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&h->settings);
    struct holder *oldest = h->heard.first;

    if (oldest && now.mono_ms - oldest->heard_ms >= dead_ms) {
        lose_holder(h, oldest, fx, "it has been silent for too long");
        return true;
    }
    if (h->gone.first && h->gone.first->lost_by_ms <= now.mono_ms) {
        lose_holder(h, h->gone.first, fx, "its connection broke");
        return true;
    }
    return false;
}

void host_timer(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now)
{
    if (lose_one(h, fx, now)) {
        host_settle(h, fx, now);
        return;
    }
    if (h->resume_by_ms <= now.mono_ms) {
        h->resume_by_ms = MONO_NEVER;
        (void)snprintf(fx->text, sizeof fx->text,
                       "%zu of %" PRId64 " nodes came back after the host's restart",
                       rdzv_count(&h->state, RDZV_PLACES), h->resume_world);
        host_tell_members(
            h, fx,
            (struct hosted_msg){ .kind = HOSTED_LOST, .text = span_str(fx->text) });
        return;
    }
    if (h->strangers)
        host_expire_strangers(h, fx, now);
    if (h->staying && now.mono_ms >= h->settled_by_ms)
        leave_stayed(h);
    host_tell_gathered(h, fx, now);
    host_settle(h, fx, now);
}

uint64_t rdzv_host_deadline(const struct rdzv_host *h)
{
    uint64_t by = MIN_OF(h->last_call_by_ms, h->resume_by_ms);

    by = MIN_OF(by, h->gathered_due_ms);
    if (h->staying)
        by = MIN_OF(by, h->settled_by_ms);
    if (h->strangers)
        by = MIN_OF(by, h->strangers_due_ms);
    if (h->heard.first)
        by = MIN_OF(by, h->heard.first->heard_ms + rdzv_dead_after_ms(&h->settings));
    if (h->gone.first)
        by = MIN_OF(by, h->gone.first->lost_by_ms);
    return by;
}
