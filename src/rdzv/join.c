/* join.c - the decision of a node that wants to be in the next round.
 *
 * Called with each state that comes from the store, until it says FINISH or gives up.
 * It depends on the view alone; tests walk through every view there is. */
#include "rdzv/decide.h"

/* Nothing to change: show that we live if it is time, else wait for others. */
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

enum rdzv_action rdzv_join_next(const struct rdzv_view *v)
{
    if (v->closed)
        return v->seat == SEAT_SPARE ? RDZV_DISMISSED : RDZV_FAIL_CLOSED;
    if (v->seat == SEAT_SPARE) /* A spare waits for as long as it takes. */
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
    if (v->call_over && v->placed >= v->min_nodes && v->placed <= v->max_nodes)
        return RDZV_COMPLETE;
    return idle(v);
}
