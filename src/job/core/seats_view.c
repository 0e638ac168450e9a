/* seats_view.c - the host's state as torchrun's nodes see and change it.
 *
 * They read the whole state, change their copy and compare-and-set it. We take over a
 * state that comes back that way as it is, with one exception: the host alone judges
 * nodes of ours. So one that torchrun has dropped (its clock may be wrong) is put back,
 * and one that torchrun has invented expires like any of its own. */
#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "job/core/seats_int.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/state_pickle.h"

#define TORCH_EVERY_MS 1000u
#define SKEW_US        2000000ll   /* more than this is worth a warning */
#define LEAD_US        600000000ll /* we do not follow a clock that is ahead by more */

/* A clock that is set back must not make our nodes' heartbeats look old to nodes that
 * compare them with their own clocks. So the time that we tell goes on as before. */
int64_t seats_wall_us(struct seats *c, struct now now)
{
    const int64_t base_us = now.wall_us - (int64_t)now.mono_ms * 1000;

    if (base_us > c->base_us || c->base_us - base_us > LEAD_US)
        c->base_us = base_us;
    return c->base_us + (int64_t)now.mono_ms * 1000 + c->lead_us;
}

bool seats_stale(const struct seats *c, struct now now, bool aged)
{
    const uint64_t fresh_ms = rdzv_interval_ms(&c->settings);

    return c->dirty || (aged && c->touched &&
                        now.mono_ms - c->view_ms >= (fresh_ms ? fresh_ms : 1000));
}

struct span seats_last_view(const struct seats *c)
{
    return buf_span(&c->view);
}

static int encode(struct seats *c, struct now now)
{
    /* A restarted host may know of earlier rounds before any node joins, and the next
     * round must have a higher number. */
    if (!c->touched && c->state.round == 0)
        return buf_append_str(&c->view, RDZV_C10D_SENTINEL);
    /* The host vouches for its nodes: they are alive at this moment. */
    for (const struct seat_node *node = c->all.first; node; node = node->next) {
        struct participant *m = rdzv_state_find(&c->state, &node->node);

        if (m)
            m->beat_us = seats_wall_us(c, now);
    }
    return pickle_write_text(&c->state, &c->view);
}

int seats_view(struct seats *c, struct now now, struct span *text)
{
    int rc;

    buf_clear(&c->view);
    rc = encode(c, now);
    if (rc < 0) {
        buf_clear(&c->view);
        c->dirty = true;
        return rc;
    }
    assert(buf_len(&c->view) > 0);
    c->dirty = false;
    c->view_ms = now.mono_ms;
    *text = buf_span(&c->view);
    return 0;
}

/* A torchrun node takes a node for dead whose heartbeat is old by its own clock. If its
 * clock is ahead of the host's, the heartbeats of the host's nodes follow it: a
 * heartbeat from the future does no harm. */
static void follow_clock(struct seats *c, const struct participant *m, struct now now)
{
    const int64_t ahead = m->beat_us - now.wall_us;

    if (ahead <= c->lead_us || ahead > LEAD_US)
        return;
    if (ahead - c->lead_us > SKEW_US)
        log_line(
            c->log, LOG_WARN, AT_RENDEZVOUS,
            "rendezvous '%s': the clock of torchrun's node %.*s is %lld s ahead of the "
            "store's host; set the clocks (NTP)",
            c->run_id, (int)m->node.addr.n, (const char *)m->node.addr.p,
            (long long)(ahead / 1000000));
    c->lead_us = ahead;
    assert(c->lead_us > 0 && c->lead_us <= LEAD_US);
}

/* Carries over what only we know of the nodes that both states list. */
static void carry_over(struct seats *c, struct rdzv_state *from, struct rdzv_state *to,
                       struct now now)
{
    c->torch_nodes = 0;
    for (struct participant *m = rdzv_first(to, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct participant *old = rdzv_state_find(from, &m->node);

        m->since_ms = old && old->beat_us == m->beat_us ? old->since_ms : now.mono_ms;
        if (seats_find(c, &m->node))
            continue;
        c->torch_nodes++;
        if (m->since_ms == now.mono_ms)
            follow_clock(c, m, now);
    }
    assert(c->torch_nodes <= rdzv_count(to, RDZV_BEATS));
    if (c->torch_nodes == 0)
        c->lead_us = 0;
}

/* Puts a node of ours back where it was before a torchrun node dropped it. */
static int put_back(struct seats *c, const struct seat_node *node,
                    const struct rdzv_state *old, struct rdzv_state *now_state,
                    struct now now)
{
    const struct participant *was = rdzv_state_find(old, &node->node);
    struct participant *m;

    if (!was)
        return 0;
    m = rdzv_state_put(now_state, &node->node, RDZV_BEATS);
    if (!m)
        return MUSTER_ENOMEM;
    m->beat_us = seats_wall_us(c, now);
    m->since_ms = now.mono_ms;
    if (rdzv_in(m, RDZV_PLACES) || rdzv_in(m, RDZV_WAITS) || rdzv_in(m, RDZV_SPARES))
        return 0;
    for (int list = RDZV_PLACES; list <= RDZV_SPARES; list++) {
        /* A place counts only in the round it was taken in. */
        if (!rdzv_in(was, (enum rdzv_list)list) ||
            (list == RDZV_PLACES && old->round != now_state->round))
            continue;
        m = rdzv_state_put(now_state, &node->node, (enum rdzv_list)list);
        if (!m)
            return MUSTER_ENOMEM;
        m->rank = was->rank;
        c->dirty = true;
    }
    return 0;
}

/* Whether the ranks of the complete round are 0 .. n - 1, as far as a sum can tell.
 * Nodes of ours check their own rank against the world that they are told. */
static bool ranks_look_whole(const struct rdzv_state *s)
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

/* Tells members that a torchrun node has ended their round without them. */
static void notify_evicted(struct seats *c, struct run_fx *fx, int64_t was_round)
{
    for (struct seat_node *node = c->all.first; node; node = node->next) {
        if (!node->member ||
            (c->state.complete && c->state.round == was_round &&
             rdzv_in(rdzv_state_find(&c->state, &node->node), RDZV_PLACES)))
            continue;
        node->member = false;
        seats_news(fx, node, WIRE_EVICTED, 0,
                   "a torchrun node found this node dead; its clock may be wrong");
    }
}

/* A torchrun node set the deadline by its own clock, which may be far from ours. So we
 * only look at whether it is a new deadline, and begin our own last call then;
 * torchrun's nodes watch their own clocks. A torchrun node that found us dead has taken
 * the last call back. Once we are put back there are enough nodes again, and nobody
 * else would begin another. */
static void follow_last_call(struct seats *c, int64_t was_us, struct now now)
{
    if (c->state.complete || c->state.deadline_us == WALL_NEVER)
        c->last_call_by_ms = MONO_NEVER;
    else if (c->state.deadline_us != was_us || c->last_call_by_ms == MONO_NEVER)
        c->last_call_by_ms = now.mono_ms + c->settings.last_call_ms;
    if (buf_len(&c->settings_text) && !c->state.closed)
        seats_begin_last_call(c, now);
}

static void after_seen(struct seats *c, struct run_fx *fx, bool was_complete,
                       int64_t was_round, struct now now)
{
    struct rdzv_state *s = &c->state;

    if (s->closed) {
        seats_close_run(c, fx);
        return;
    }
    notify_evicted(c, fx, was_round);
    if (s->round != was_round || !was_complete || !s->complete) {
        seats_forget_waiting(c);
        c->resume_by_ms = MONO_NEVER; /* The round that was resumed is over. */
    }
    if (s->complete && !(was_complete && was_round == s->round)) {
        c->settled_by_ms = now.mono_ms + SETTLE_MS;
        if (ranks_look_whole(s))
            seats_notify_joined(c, fx);
        else
            log_line(
                c->log, LOG_ERROR, AT_RENDEZVOUS,
                "rendezvous '%s': a torchrun node completed round %lld with ranks "
                "that have holes; its nodes' clocks are likely more than %llu s apart",
                c->run_id, (long long)s->round,
                (unsigned long long)rdzv_dead_after_ms(&c->settings) / 1000);
    }
    c->reseat = true;
    seats_settle(c, fx, now);
}

/* Finds a node that was in the round and now is neither in it nor waiting for the next
 * one, or NULL. A torchrun node that leaves of its own accord writes just that. */
static const struct participant *find_departed(const struct rdzv_state *was,
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

static void notify_left(struct seats *c, struct run_fx *fx,
                        const struct participant *left)
{
    char name[128];

    assert(rdzv_in(left, RDZV_PLACES));
    (void)snprintf(fx->text, sizeof fx->text, "node %s has left the round",
                   rdzv_node_text(&left->node, name, sizeof name));
    seats_notify_members(c, fx, WIRE_LOST, 0, fx->text);
}

int seats_seen(struct seats *c, struct span value, struct now now, struct run_fx *fx,
               struct muster_error *err)
{
    const bool was_complete = c->state.complete;
    const int64_t was_round = c->state.round, was_deadline_us = c->state.deadline_us;
    const struct participant *left;
    struct rdzv_state seen;
    int rc;

    if (span_eq(value, span_str(RDZV_C10D_SENTINEL)))
        return 0;
    rc = pickle_read_text(value, &seen, err);
    if (rc < 0) {
        c->dirty = true; /* Ours overwrites it at the next read. */
        return rc;
    }
    if (seen.round < c->state.round || seen.round > RDZV_MAX_ROUND) {
        rc = err_set(err, MUSTER_ESTATE,
                     "a node wrote round %lld after round %lld: rounds grow by one",
                     (long long)seen.round, (long long)c->state.round);
        rdzv_state_fini(&seen);
        c->dirty = true;
        return rc;
    }
    buf_clear(&c->view);
    rc = buf_append_span(&c->view, value);
    for (struct seat_node *node = c->all.first; node && rc == 0; node = node->next)
        rc = put_back(c, node, &c->state, &seen, now);
    if (rc == 0)
        rc = seats_reserve_order(c, rdzv_count(&seen, RDZV_BEATS) +
                                        rdzv_count(&seen, RDZV_PLACES) +
                                        c->nodes.count + 1);
    if (rc < 0) {
        rdzv_state_fini(&seen);
        c->dirty = true;
        return err_nomem(err);
    }
    seen.closed = seen.closed || c->state.closed; /* A closed run stays closed. */
    carry_over(c, &c->state, &seen, now);
    left = find_departed(&c->state, &seen);
    if (left && !seen.closed)
        notify_left(c, fx, left);
    assert(c->order_size >= rdzv_count(&seen, RDZV_PLACES));
    rdzv_state_fini(&c->state);
    c->state = seen;
    c->rank0 = NULL;
    c->touched = true;
    /* view_ms stays as it is: the heartbeats of our nodes are as old as before in what
     * they wrote. */
    if (c->torch_nodes) /* Frequent writes must not postpone the check for ever. */
        c->torch_due_ms = MIN_OF(c->torch_due_ms, now.mono_ms + TORCH_EVERY_MS);
    follow_last_call(c, was_deadline_us, now);
    after_seen(c, fx, was_complete, was_round, now);
    return 0;
}

void seats_expire_torch_nodes(struct seats *c, struct run_fx *fx, struct now now)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&c->settings);
    struct participant *next;

    if (now.mono_ms < c->torch_due_ms)
        return;
    c->torch_due_ms = now.mono_ms + TORCH_EVERY_MS;
    for (struct participant *m = rdzv_first(&c->state, RDZV_BEATS); m; m = next) {
        char name[128];
        char text[256];

        next = m->next[RDZV_BEATS];
        if (seats_find(c, &m->node) || now.mono_ms - m->since_ms <= dead_ms)
            continue;
        (void)snprintf(text, sizeof text, "node %s has been silent for %llu s",
                       rdzv_node_text(&m->node, name, sizeof name),
                       (unsigned long long)(now.mono_ms - m->since_ms) / 1000);
        (void)snprintf(fx->text, sizeof fx->text, "%s", text);
        seats_lose(c, fx, m, LOG_WARN, AT_RENDEZVOUS, fx->text);
        c->torch_due_ms = now.mono_ms; /* One loss a step: see lose_one. */
        return;
    }
}
