/* liveness.c - which nodes are alive, without comparing the clocks of two machines.
 *
 * A node is alive as long as its heartbeat changes; the time that it says does not
 * matter. A heartbeat that has not changed for interval * attempts by our own monotonic
 * clock, with a read at the end of that time, belongs to a dead node. So a clock that
 * is wrong or jumps, ours or theirs, makes no node look dead, and a process that was
 * stopped finds the others' heartbeats changed when it wakes up. torchrun's nodes
 * compare wall clocks instead; for their sake our heartbeats say a time that is not old
 * by their clocks. */
#include "rendezvous/core/cas_node_int.h"

bool rdzv_is_dead(const struct rdzv *r, const struct participant *m, uint64_t now_ms)
{
    if (!rdzv_in(m, RDZV_BEATS))
        return false;
    if (r->entry_is_ours && rdzv_node_cmp(&m->node, &r->self) == 0)
        return false;
    return now_ms - m->since_ms > rdzv_dead_after_ms(&r->settings);
}

size_t rdzv_count_live(const struct rdzv *r, const struct rdzv_state *s,
                       enum rdzv_list list, uint64_t now_ms)
{
    size_t live = 0;

    for (struct participant *m = rdzv_first(s, list); m; m = m->next[list])
        live += !rdzv_is_dead(r, m, now_ms);
    return live;
}

/* A torchrun node whose clock is ahead of ours by more than the keep-alive bound would
 * find each of our heartbeats too old. So we follow the newest one in the state, which
 * keeps us alive for that node; it only makes our death noticed later by that much. A
 * clock that is hours ahead is a mistake, and we do not follow it. The value differs
 * from our last one in any case. */
int64_t rdzv_beat_time(const struct rdzv *r, const struct rdzv_state *s,
                       int64_t wall_us)
{
    int64_t beat = wall_us;

    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        if (m->beat_us > beat && m->beat_us - wall_us <= LEAD_US)
            beat = m->beat_us;
    }
    return beat == r->beat_us ? beat + 1 : beat;
}

uint64_t rdzv_next_death(const struct rdzv *r, const struct rdzv_state *s)
{
    const uint64_t after = rdzv_dead_after_ms(&r->settings) + 1;
    uint64_t due = MONO_NEVER;

    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        if (r->entry_is_ours && rdzv_node_cmp(&m->node, &r->self) == 0)
            continue;
        if (m->since_ms + after > r->read_ms) /* Else we know already. */
            due = MIN_OF(due, m->since_ms + after);
    }
    return due;
}

/* Warns of a clock that is off. A heartbeat that has changed was written since our last
 * read, so we know how old it is at most. */
static void check_clock(const struct rdzv *r, struct participant *m, struct now now)
{
    const int64_t gap_us = (int64_t)(now.mono_ms - r->read_ms) * 1000;
    const int64_t ahead_us = m->beat_us - now.wall_us;
    char text[128];

    if (m->warned || (ahead_us <= SKEW_US && ahead_us >= -SKEW_US - gap_us))
        return;
    m->warned = true;
    log_line(
        r->log, LOG_WARN, AT_RENDEZVOUS,
        "the clock of node '%s' is %.1f s %s ours: torchrun's nodes compare clocks and "
        "drop nodes that are more than %llu s off; synchronise them (NTP)",
        rdzv_node_text(&m->node, text, sizeof text),
        (double)(ahead_us < 0 ? -ahead_us : ahead_us) / 1e6,
        ahead_us < 0 ? "behind" : "ahead of",
        (unsigned long long)rdzv_dead_after_ms(&r->settings) / 1000);
}

void rdzv_beat_seen(struct rdzv *r, struct participant *m, int64_t beat_us,
                    struct now now)
{
    m->beat_us = beat_us;
    m->since_ms = m->gone ? 0 : now.mono_ms;
    m->gone = false;
    if (beat_us == r->beat_us && rdzv_node_cmp(&m->node, &r->self) == 0)
        r->entry_is_ours =
            true; /* what we sent has arrived, even if its answer was lost */
    else
        check_clock(r, m, now);
}

/* While the backend was unreachable no node could beat, so that time says nothing about
 * them. If we could not reach it for an interval or longer, others probably could not
 * either, and a live node may still be looking for a part of it that answers (one
 * member of an etcd cluster may hang while the rest is back). So every node gets at
 * least half of the keep-alive bound from now on. */
static uint64_t since(const struct rdzv *r, const struct participant *m,
                      uint64_t now_ms)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&r->settings);
    uint64_t at = m->since_ms + r->away_ms;

    if (r->away_ms < AWAY_MS || m->since_ms == 0) /* 0: known to have ended */
        return m->since_ms;
    if (r->away_ms >= rdzv_interval_ms(&r->settings) && now_ms > dead_ms / 2)
        at = MAX_OF(at, now_ms - dead_ms / 2);
    return MIN_OF(at, now_ms);
}

void rdzv_extend_for_outage(struct rdzv *r, uint64_t now_ms)
{
    for (struct participant *m = rdzv_first(&r->seen, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS])
        m->since_ms = since(r, m, now_ms);
    r->asked_ms = now_ms; /* Count this outage only once. */
}

void rdzv_observe(struct rdzv *r, struct rdzv_state *s, struct now now)
{
    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct participant *old = rdzv_state_find(&r->seen, &m->node);
        const bool known = rdzv_in(old, RDZV_BEATS);

        const bool same = known && old->beat_us == m->beat_us;

        m->gone = known && old->gone && same;
        if (same)
            m->since_ms = since(r, old, now.mono_ms);
        else
            m->since_ms = known && old->gone ? 0 : now.mono_ms;
        m->warned = old && old->warned;
        if (m->beat_us == r->beat_us && rdzv_node_cmp(&m->node, &r->self) == 0)
            r->entry_is_ours =
                true; /* what we sent has arrived, even if its answer was lost */
        else if (known && old->beat_us != m->beat_us)
            check_clock(r, m, now);
    }
    if (s->deadline_us != r->call_us) {
        r->call_us = s->deadline_us;
        r->call_since_ms = now.mono_ms;
    }
}
