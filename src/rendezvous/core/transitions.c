/* transitions.c - what actions and deaths do to the state; see decisions.h. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "muster/error.h"
#include "rendezvous/core/decisions.h"

static int by_node(const void *a, const void *b)
{
    const struct participant *const *x = a, *const *y = b;

    return rdzv_node_cmp(&(*x)->node, &(*y)->node);
}

void rdzv_complete_round_in(struct rdzv_state *s, struct participant **order)
{
    size_t count = 0;

    assert(!s->complete);
    for (struct participant *m = rdzv_first(s, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES])
        order[count++] = m;
    assert(count == rdzv_count(s, RDZV_PLACES));
    qsort(order, count, sizeof(struct participant *), by_node);
    for (size_t i = 0; i < count; i++)
        order[i]->rank = (int64_t)i;
    s->complete = true;
    s->deadline_us = WALL_NEVER;
}

/* Completes the round: ranks in the order of the nodes, no last call any more. */
static int rdzv_complete_round(struct rdzv_state *s)
{
    struct participant **order = mem_realloc_array(NULL, rdzv_count(s, RDZV_PLACES) + 1,
                                                   sizeof(struct participant *));

    if (!order)
        return MUSTER_ENOMEM;
    rdzv_complete_round_in(s, order);
    mem_free(order);
    return 0;
}

void rdzv_places_removed(struct rdzv_state *s, const struct rdzv_settings *settings)
{
    const int64_t left = (int64_t)rdzv_count(s, RDZV_PLACES);

    assert(settings->min_nodes >= 1);
    if (s->complete && left == 0) {
        s->complete = false;
        s->round++;
    } else if (!s->complete && left < settings->min_nodes) {
        s->deadline_us = WALL_NEVER;
    }
}

/* Adds the node to the list, with a fresh heartbeat. */
static int seat(struct rdzv_state *s, const struct rdzv_node *me, enum rdzv_list list,
                int64_t wall_us)
{
    struct participant *m = rdzv_state_put(s, me, RDZV_BEATS);

    if (!m)
        return MUSTER_ENOMEM;
    m->beat_us = wall_us;
    return rdzv_state_put(s, me, list) ? 0 : MUSTER_ENOMEM;
}

static int take_place(struct rdzv_state *s, const struct rdzv_node *me,
                      const struct rdzv_settings *settings, int64_t wall_us)
{
    int64_t placed;

    if (seat(s, me, RDZV_PLACES, wall_us) < 0)
        return MUSTER_ENOMEM;
    rdzv_state_drop(s, rdzv_state_find(s, me), RDZV_WAITS);
    placed = (int64_t)rdzv_count(s, RDZV_PLACES);
    if (placed == settings->min_nodes)
        s->deadline_us = wall_us + (int64_t)settings->last_call_ms * 1000;
    return placed == settings->max_nodes ? rdzv_complete_round(s) : 0;
}

static int take_wait(struct rdzv_state *s, const struct rdzv_node *me, int64_t wall_us)
{
    if (seat(s, me, RDZV_WAITS, wall_us) < 0)
        return MUSTER_ENOMEM;
    rdzv_state_drop(s, rdzv_state_find(s, me), RDZV_SPARES);
    return 0;
}

/* Removes the node from the list, and its heartbeat. */
static void unseat(struct rdzv_state *s, const struct rdzv_node *me,
                   enum rdzv_list list)
{
    rdzv_state_drop(s, rdzv_state_find(s, me), list);
    rdzv_state_drop(s, rdzv_state_find(s, me), RDZV_BEATS);
}

int rdzv_apply(struct rdzv_state *s, enum rdzv_action a, const struct rdzv_node *me,
               const struct rdzv_settings *settings, int64_t wall_us)
{
    struct participant *m;

    switch (a) {
    case RDZV_KEEP_ALIVE:
        m = rdzv_state_put(s, me, RDZV_BEATS);
        if (m)
            m->beat_us = wall_us;
        return m ? 0 : MUSTER_ENOMEM;
    case RDZV_TAKE_PLACE:
        return take_place(s, me, settings, wall_us);
    case RDZV_TAKE_WAIT:
        return take_wait(s, me, wall_us);
    case RDZV_TAKE_SPARE:
        return seat(s, me, RDZV_SPARES, wall_us);
    case RDZV_DROP_PLACE:
        unseat(s, me, RDZV_PLACES);
        rdzv_places_removed(s, settings);
        return 0;
    case RDZV_DROP_WAIT:
        unseat(s, me, RDZV_WAITS);
        return 0;
    case RDZV_DROP_SPARE:
        unseat(s, me, RDZV_SPARES);
        return 0;
    case RDZV_COMPLETE:
        return rdzv_complete_round(s);
    case RDZV_CLOSE:
        s->closed = true;
        return 0;
    case RDZV_SYNC:
    case RDZV_FINISH:
    case RDZV_FAIL_CLOSED:
    case RDZV_FAIL_TIMEOUT:
    case RDZV_DISMISSED:
    case RDZV_ACTION_COUNT:
        return 0;
    }
    return 0;
}

size_t rdzv_sweep(struct rdzv_state *s, const struct rdzv_settings *settings,
                  rdzv_dead_fn dead, const void *ctx)
{
    struct participant *next;
    bool places = false;
    size_t count = 0;

    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m; m = next) {
        next = m->next[RDZV_BEATS];
        if (!dead(ctx, m))
            continue;
        places |= rdzv_in(m, RDZV_PLACES);
        rdzv_state_forget(s, m);
        count++;
    }
    if (places)
        rdzv_places_removed(s, settings);
    return count;
}

static bool expired(const void *ctx, const struct participant *m)
{
    const int64_t *limit_us = ctx;

    return m->beat_us < *limit_us;
}

size_t rdzv_sanitize(struct rdzv_state *s, const struct rdzv_settings *settings,
                     int64_t wall_us)
{
    const int64_t limit_us = wall_us - (int64_t)rdzv_dead_after_ms(settings) * 1000;

    return rdzv_sweep(s, settings, expired, &limit_us);
}
