/* decisions.c - see decisions.h: the view that all decisions are made from, the small
 * decisions, and the join. */
#include "rendezvous/core/decisions.h"

#include <assert.h>

bool rdzv_action_writes(enum rdzv_action a)
{
    return a >= RDZV_KEEP_ALIVE && a <= RDZV_CLOSE;
}

enum rdzv_seat rdzv_seat_of(const struct participant *m)
{
    if (rdzv_in(m, RDZV_SPARES))
        return SEAT_SPARE;
    if (rdzv_in(m, RDZV_PLACES))
        return SEAT_PLACE;
    return rdzv_in(m, RDZV_WAITS) ? SEAT_WAIT : SEAT_NONE;
}

struct rdzv_view rdzv_view_of(const struct rdzv_state *s, const struct rdzv_node *me,
                              const struct rdzv_settings *settings, struct now now,
                              uint64_t due_ms)
{
    const struct participant *m = rdzv_state_find(s, me);
    const int64_t interval_us = (int64_t)rdzv_interval_ms(settings) * 1000;

    return (struct rdzv_view){
        .seat = rdzv_seat_of(m),
        .in_round = rdzv_in(m, RDZV_PLACES),
        .closed = s->closed,
        .complete = s->complete,
        .placed = (int64_t)rdzv_count(s, RDZV_PLACES),
        .min_nodes = settings->min_nodes,
        .max_nodes = settings->max_nodes,
        .call_over = s->deadline_us < now.wall_us,
        .beat_due = rdzv_in(m, RDZV_BEATS) && m->beat_us <= now.wall_us - interval_us,
        .now_ms = now.mono_ms,
        .due_ms = due_ms,
    };
}

enum rdzv_action rdzv_exit_next(const struct rdzv_view *v)
{
    if (!v->in_round)
        return RDZV_FINISH;
    return v->now_ms > v->due_ms ? RDZV_FAIL_TIMEOUT : RDZV_DROP_PLACE;
}

enum rdzv_action rdzv_close_next(const struct rdzv_view *v)
{
    if (v->closed)
        return RDZV_FINISH;
    return v->now_ms > v->due_ms ? RDZV_FAIL_TIMEOUT : RDZV_CLOSE;
}

enum rdzv_action rdzv_keep_alive_next(const struct rdzv_view *v)
{
    if (!v->beat_due)
        return RDZV_FINISH;
    return v->now_ms > v->due_ms ? RDZV_FAIL_TIMEOUT : RDZV_KEEP_ALIVE;
}

/* There is nothing to change: send a heartbeat if it is due, else wait for the
 * others. */
static enum rdzv_action idle(const struct rdzv_view *v)
{
    return v->beat_due ? RDZV_KEEP_ALIVE : RDZV_SYNC;
}

/* Like torchrun, hand the seat back while the grace lasts: peers that wait for a round
 * to fill up need not wait for our heartbeat to expire. */
static enum rdzv_action give_up(const struct rdzv_view *v)
{
    if (v->now_ms - v->due_ms > RDZV_ROLLBACK_MS)
        return RDZV_FAIL_TIMEOUT;
    if (v->seat == SEAT_PLACE)
        return RDZV_DROP_PLACE;
    if (v->seat == SEAT_WAIT)
        return RDZV_DROP_WAIT;
    return RDZV_FAIL_TIMEOUT;
}

/* The decision of a node that wants to be in the next round. It is called with each
 * state that comes from the store, until it says FINISH or gives up. It depends on the
 * view alone; tests walk through every possible view. */
enum rdzv_action rdzv_join_next(const struct rdzv_view *v)
{
    assert(v->min_nodes >= 1 && v->max_nodes >= v->min_nodes && v->placed >= 0);
    if (v->closed)
        return v->seat == SEAT_SPARE ? RDZV_DISMISSED : RDZV_FAIL_CLOSED;
    if (v->seat == SEAT_SPARE) /* A spare waits without a limit. */
        return v->placed == v->max_nodes ? idle(v) : RDZV_DROP_SPARE;
    if (v->complete && v->seat == SEAT_PLACE)
        return RDZV_FINISH;
    if (v->now_ms > v->due_ms)
        return give_up(v);
    if (v->complete && v->seat == SEAT_WAIT)
        return idle(v);
    if (v->complete)
        return v->placed < v->max_nodes ? RDZV_TAKE_WAIT : RDZV_TAKE_SPARE;
    if (v->seat != SEAT_PLACE)
        return RDZV_TAKE_PLACE;
    if ((v->call_over || v->everybody) && v->placed >= v->min_nodes &&
        v->placed <= v->max_nodes)
        return RDZV_COMPLETE;
    return idle(v);
}
