/* coordinator_view.c - the host's state as torchrun's nodes see and change it.
 *
 * They read the whole state, change their copy and compare-and-set it. A state that
 * came back that way is taken as it is, with one exception: nodes of ours are judged by
 * the host alone, so one that torchrun has dropped (its clock may be wrong) is put
 * back, and one that it has invented is left to expire like any of its own. */
#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/coordinator_int.h"
#include "rendezvous/core/state_pickle.h"

#define TORCH_EVERY_MS 1000u
#define SKEW_US        2000000ll   /* more than this is worth a warning */
#define LEAD_US        600000000ll /* more than this we do not follow */

/* A clock that is set back must not make our nodes' heartbeats old to those who compare
 * them with theirs: the time that we tell goes on as it was. */
int64_t coordinator_wall_us(struct coordinator *h, struct now now)
{
    const int64_t base_us = now.wall_us - (int64_t)now.mono_ms * 1000;

    if (base_us > h->base_us || h->base_us - base_us > LEAD_US)
        h->base_us = base_us;
    return h->base_us + (int64_t)now.mono_ms * 1000 + h->lead_us;
}

bool coordinator_stale(const struct coordinator *h, struct now now, bool aged)
{
    const uint64_t fresh_ms = rdzv_interval_ms(&h->settings);

    return h->dirty || (aged && h->touched &&
                        now.mono_ms - h->view_ms >= (fresh_ms ? fresh_ms : 1000));
}

struct span coordinator_last_view(const struct coordinator *h)
{
    return buf_span(&h->view);
}

static int encode(struct coordinator *h, struct now now)
{
    /* A restarted host may know of earlier rounds before anybody joins: whoever begins
     * must begin after them. */
    if (!h->touched && h->state.round == 0)
        return buf_append_str(&h->view, RDZV_C10D_SENTINEL);
    /* The host vouches for its nodes: they are as alive as this very moment. */
    for (const struct node_session *w = h->heard.first; w; w = w->next) {
        struct participant *m = rdzv_state_find(&h->state, &w->node);

        if (m)
            m->beat_us = coordinator_wall_us(h, now);
    }
    return pickle_write_text(&h->state, &h->view);
}

int coordinator_view(struct coordinator *h, struct now now, struct span *text)
{
    int rc;

    buf_clear(&h->view);
    rc = encode(h, now);
    if (rc < 0) {
        buf_clear(&h->view);
        h->dirty = true;
        return rc;
    }
    assert(buf_len(&h->view) > 0);
    h->dirty = false;
    h->view_ms = now.mono_ms;
    *text = buf_span(&h->view);
    return 0;
}

/* A torchrun node takes a heartbeat that is old by its own clock for a dead node's. If
 * its clock is ahead of the host's, the host's nodes beat by that one: a heartbeat from
 * the future does no harm to anybody. */
static void follow_clock(struct coordinator *h, const struct participant *m,
                         struct now now)
{
    const int64_t ahead = m->beat_us - now.wall_us;

    if (ahead <= h->lead_us || ahead > LEAD_US)
        return;
    if (ahead - h->lead_us > SKEW_US)
        trace(
            h->trace, TRACE_WARN,
            "rendezvous '%s': the clock of torchrun's node %.*s is %lld s ahead of the "
            "store's host; set the clocks (NTP)",
            h->run_id, (int)m->node.addr.n, (const char *)m->node.addr.p,
            (long long)(ahead / 1000000));
    h->lead_us = ahead;
    assert(h->lead_us > 0 && h->lead_us <= LEAD_US);
}

/* Takes over what only we know of the nodes that both states list. */
static void carry_over(struct coordinator *h, struct rdzv_state *from,
                       struct rdzv_state *to, struct now now)
{
    h->torch_nodes = 0;
    for (struct participant *m = rdzv_first(to, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct participant *old = rdzv_state_find(from, &m->node);

        m->since_ms = old && old->beat_us == m->beat_us ? old->since_ms : now.mono_ms;
        if (coordinator_find(h, &m->node))
            continue;
        h->torch_nodes++;
        if (m->since_ms == now.mono_ms)
            follow_clock(h, m, now);
    }
    assert(h->torch_nodes <= rdzv_count(to, RDZV_BEATS));
    if (h->torch_nodes == 0)
        h->lead_us = 0;
}

/* Puts a node of ours back where it was before a torchrun node dropped it. */
static int put_back(struct coordinator *h, const struct node_session *w,
                    const struct rdzv_state *old, struct rdzv_state *now_state,
                    struct now now)
{
    const struct participant *was = rdzv_state_find(old, &w->node);
    struct participant *m;

    if (!was)
        return 0;
    m = rdzv_state_put(now_state, &w->node, RDZV_BEATS);
    if (!m)
        return MUSTER_ENOMEM;
    m->beat_us = coordinator_wall_us(h, now);
    m->since_ms = now.mono_ms;
    if (rdzv_in(m, RDZV_PLACES) || rdzv_in(m, RDZV_WAITS) || rdzv_in(m, RDZV_SPARES))
        return 0;
    for (int list = RDZV_PLACES; list <= RDZV_SPARES; list++) {
        /* A place counts only in the round it was taken in. */
        if (!rdzv_in(was, (enum rdzv_list)list) ||
            (list == RDZV_PLACES && old->round != now_state->round))
            continue;
        m = rdzv_state_put(now_state, &w->node, (enum rdzv_list)list);
        if (!m)
            return MUSTER_ENOMEM;
        m->rank = was->rank;
        h->dirty = true;
    }
    return 0;
}

/* True if the ranks of the complete round are 0 .. n - 1, as far as a sum can tell; the
 * nodes of ours check their own against the world they are told. */
static bool ranks_hold(const struct rdzv_state *s)
{
    const size_t n = rdzv_count(s, RDZV_PLACES);
    uint64_t sum = 0;

    for (const struct participant *m = rdzv_first(s, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (m->rank < 0 || (uint64_t)m->rank >= n)
            return false;
        sum += (uint64_t)m->rank;
    }
    return n && sum == (uint64_t)n * (n - 1) / 2;
}

/* Members whose round a torchrun node has ended without them. */
static void notify_evicted(struct coordinator *h, struct coordinator_fx *fx,
                           int64_t was_round)
{
    for (struct node_session *w = h->heard.first; w; w = w->next) {
        if (!w->member || (h->state.complete && h->state.round == was_round &&
                           rdzv_in(rdzv_state_find(&h->state, &w->node), RDZV_PLACES)))
            continue;
        w->member = false;
        coordinator_send(
            fx, w,
            (struct coord_msg){
                .kind = COORD_EVICTED,
                .text = span_str("a torchrun node found this node dead; its clock "
                                 "may be wrong") });
    }
}

/* Their clock set the deadline and ours may be far from it, so only that it is a new
 * one counts: then our own last call begins. They look at their clocks themselves. One
 * that found us dead has taken the last call back; with us put back there are enough
 * again, and nobody else would begin another. */
static void follow_last_call(struct coordinator *h, int64_t was_us, struct now now)
{
    if (h->state.complete || h->state.deadline_us == WALL_NEVER)
        h->last_call_by_ms = MONO_NEVER;
    else if (h->state.deadline_us != was_us || h->last_call_by_ms == MONO_NEVER)
        h->last_call_by_ms = now.mono_ms + h->settings.last_call_ms;
    if (buf_len(&h->settings_text) && !h->state.closed)
        coordinator_call_last(h, now);
}

static void after_seen(struct coordinator *h, struct coordinator_fx *fx,
                       bool was_complete, int64_t was_round, struct now now)
{
    struct rdzv_state *s = &h->state;

    if (s->closed) {
        coordinator_close_run(h, fx);
        return;
    }
    notify_evicted(h, fx, was_round);
    if (s->round != was_round || !was_complete || !s->complete) {
        coordinator_forget_waiting(h);
        h->resume_by_ms = MONO_NEVER; /* The round that was resumed is over. */
    }
    if (s->complete && !(was_complete && was_round == s->round)) {
        h->settled_by_ms = now.mono_ms + SETTLE_MS;
        if (ranks_hold(s))
            coordinator_notify_joined(h, fx);
        else
            trace(
                h->trace, TRACE_ERROR,
                "rendezvous '%s': a torchrun node completed round %lld with ranks "
                "that have holes; its nodes' clocks are likely more than %llu s apart",
                h->run_id, (long long)s->round,
                (unsigned long long)rdzv_dead_after_ms(&h->settings) / 1000);
    }
    h->reseat = true;
    coordinator_settle(h, fx, now);
}

/* One that was in the round and now neither is nor queues for the next; NULL if all are
 * there. A node that leaves by itself writes just that. */
static const struct participant *who_left(const struct rdzv_state *was,
                                          const struct rdzv_state *is)
{
    if (!was->complete || !is->complete || was->round != is->round)
        return NULL;
    for (const struct participant *m = rdzv_first(was, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct participant *now = rdzv_state_find(is, &m->node);

        if (!rdzv_in(now, RDZV_PLACES) && !rdzv_in(now, RDZV_WAITS))
            return m;
    }
    return NULL;
}

static void notify_left(struct coordinator *h, struct coordinator_fx *fx,
                        const struct participant *left)
{
    char name[128];

    assert(rdzv_in(left, RDZV_PLACES));
    (void)snprintf(fx->text, sizeof fx->text, "node %s has left the round",
                   rdzv_node_text(&left->node, name, sizeof name));
    coordinator_notify_members(
        h, fx, (struct coord_msg){ .kind = COORD_LOST, .text = span_str(fx->text) });
}

int coordinator_seen(struct coordinator *h, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, struct muster_error *err)
{
    const bool was_complete = h->state.complete;
    const int64_t was_round = h->state.round, was_deadline_us = h->state.deadline_us;
    const struct participant *left;
    struct rdzv_state seen;
    int rc;

    if (span_eq(ev->value, span_str(RDZV_C10D_SENTINEL)))
        return 0;
    rc = pickle_read_text(ev->value, &seen, err);
    if (rc < 0) {
        h->dirty = true; /* Ours overwrites it at the next look. */
        return rc;
    }
    if (seen.round < h->state.round || seen.round > RDZV_MAX_ROUND) {
        rc = err_set(err, MUSTER_ESTATE,
                     "a node wrote round %lld after round %lld: rounds grow by one",
                     (long long)seen.round, (long long)h->state.round);
        rdzv_state_fini(&seen);
        h->dirty = true;
        return rc;
    }
    buf_clear(&h->view);
    rc = buf_append_span(&h->view, ev->value);
    for (struct node_session *w = h->heard.first; w && rc == 0; w = w->next)
        rc = put_back(h, w, &h->state, &seen, ev->now);
    if (rc == 0)
        rc = coordinator_reserve_order(h, rdzv_count(&seen, RDZV_BEATS) +
                                              rdzv_count(&seen, RDZV_PLACES) +
                                              h->node_sessions.count + 1);
    if (rc < 0) {
        rdzv_state_fini(&seen);
        h->dirty = true;
        return err_nomem(err);
    }
    seen.closed = seen.closed || h->state.closed; /* Closed stays closed. */
    carry_over(h, &h->state, &seen, ev->now);
    left = who_left(&h->state, &seen);
    if (left && !seen.closed)
        notify_left(h, fx, left);
    assert(h->order_size >= rdzv_count(&seen, RDZV_PLACES));
    rdzv_state_fini(&h->state);
    h->state = seen;
    h->rank0 = NULL;
    h->touched = true;
    /* view_ms stays: what they wrote has our nodes' heartbeats as old as before. */
    if (h->torch_nodes) /* Their writes must not put the look at them off for ever. */
        h->torch_due_ms = MIN_OF(h->torch_due_ms, ev->now.mono_ms + TORCH_EVERY_MS);
    follow_last_call(h, was_deadline_us, ev->now);
    after_seen(h, fx, was_complete, was_round, ev->now);
    return 0;
}

void coordinator_expire_torch_nodes(struct coordinator *h, struct coordinator_fx *fx,
                                    struct now now)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&h->settings);
    struct participant *next;

    if (now.mono_ms < h->torch_due_ms)
        return;
    h->torch_due_ms = now.mono_ms + TORCH_EVERY_MS;
    for (struct participant *m = rdzv_first(&h->state, RDZV_BEATS); m; m = next) {
        char name[128];
        char text[256];

        next = m->next[RDZV_BEATS];
        if (coordinator_find(h, &m->node) || now.mono_ms - m->since_ms <= dead_ms)
            continue;
        (void)snprintf(text, sizeof text, "node %s has been silent for %llu s",
                       rdzv_node_text(&m->node, name, sizeof name),
                       (unsigned long long)(now.mono_ms - m->since_ms) / 1000);
        (void)snprintf(fx->text, sizeof fx->text, "%s", text);
        coordinator_lose(h, fx, m, TRACE_WARN, fx->text);
        h->torch_due_ms = now.mono_ms; /* One at a time: see lose_one. */
        return;
    }
}
