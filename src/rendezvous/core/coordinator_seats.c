/* coordinator_seats.c - who sits where: torch's join rules (decisions.c), applied by
 * the host.
 *
 * Every node that asked and was not answered is in h->requests. A join seats itself
 * alone, O(1); what can move others' seats sets h->reseat, and then all requests are
 * walked in order of asking: when a round begins, when it is complete, when a place in
 * a full one becomes free. So a round costs O(n) in all. */
#include <assert.h>

#include "rendezvous/core/coordinator_int.h"
#include "rendezvous/core/decisions.h"

/* Of one round. The first makes its members go for the next one, a few more say how bad
 * it is; to tell each of n nodes of each other of a rack would be a message for every
 * pair. */
#define LOSSES_LOGGED 4u

static bool full(const struct coordinator *h)
{
    return rdzv_count(&h->state, RDZV_PLACES) >= (size_t)h->settings.max_nodes;
}

static bool enough(const struct coordinator *h)
{
    return rdzv_count(&h->state, RDZV_PLACES) >= (size_t)h->settings.min_nodes;
}

void coordinator_notify_members(struct coordinator *h, struct coordinator_fx *fx,
                                struct coord_msg msg)
{
    for (const struct node_session *w = h->heard.first; w; w = w->next) {
        if (w->member)
            coordinator_send(fx, w, msg);
    }
}

/* Members hear of it when the wait list stops being empty, when one of them is in it,
 * and when it is empty again: what they do about it does not depend on the number. In a
 * full round they do not: starting again would find no room either, and so on for ever.
 * A node that is done with its work does not follow a newcomer into the next round, but
 * follows a member: that one's work is not done, and it may need this node for a round.
 */
static void coordinator_notify_waiting(struct coordinator *h, struct coordinator_fx *fx)
{
    const size_t count = full(h) ? 0 : rdzv_count(&h->state, RDZV_WAITS);
    const int64_t now = count == 0 ? 0 : h->moved_on ? COORD_MEMBER_WAITS : 1;

    if (h->waiting_notified == now)
        return;
    h->waiting_notified = now;
    coordinator_notify_members(
        h, fx,
        (struct coord_msg){ .kind = COORD_WAITING,
                            .count = h->moved_on ? now : (int64_t)count });
}

/* The round that they were told of is over. */
void coordinator_forget_waiting(struct coordinator *h)
{
    h->waiting_notified = 0;
    h->moved_on = false;
}

void coordinator_notify_rank(struct coordinator *h, struct coordinator_fx *fx,
                             struct node_session *w)
{
    const struct participant *m = rdzv_state_find(&h->state, &w->node);

    assert(h->state.complete && rdzv_in(m, RDZV_PLACES));
    coordinator_request_end(h, w);
    w->spare = false;
    w->member = w->was_member = true;
    coordinator_send(
        fx, w,
        (struct coord_msg){
            .kind = COORD_JOINED,
            .round = h->state.round,
            .rank = m->rank,
            .world = (int64_t)rdzv_count(&h->state, RDZV_PLACES),
            .addr = h->rank0 ? h->rank0->node.addr : span_str(""),
            .pid = h->rank0 ? h->rank0->node.pid : 0,
            .local_id = h->rank0 ? h->rank0->node.local_id : 0,
            .count = h->all_read ? COORD_ALL_READ : (int64_t)h->torch_nodes,
        });
}

void coordinator_notify_joined(struct coordinator *h, struct coordinator_fx *fx)
{
    struct node_session *next;

    assert(h->state.complete);
    h->world = rdzv_count(&h->state, RDZV_PLACES);
    h->rank0 = NULL;
    h->all_read = true;
    for (struct participant *m = rdzv_first(&h->state, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct node_session *w = coordinator_find(h, &m->node);

        if (m->rank == 0)
            h->rank0 = m;
        h->all_read &= w && (w->nonce & 0xffff) == COORD_READS;
    }
    for (struct node_session *w = h->requests.first; w; w = next) {
        next = w->request_next;
        if (rdzv_in(rdzv_state_find(&h->state, &w->node), RDZV_PLACES))
            coordinator_notify_rank(h, fx, w);
    }
}

static void complete(struct coordinator *h, struct coordinator_fx *fx, struct now now)
{
    assert(rdzv_count(&h->state, RDZV_PLACES) <= h->order_size);
    rdzv_complete_round_in(&h->state, h->order);
    h->settled_by_ms = now.mono_ms + SETTLE_MS;
    h->departures = h->losses = 0;
    h->gathered_pause_ms = GATHERED_FIRST_MS;
    h->last_call_by_ms = MONO_NEVER;
    coordinator_forget_waiting(h);
    h->dirty = true;
    names_of(&h->state, RDZV_PLACES, h->members);
    trace(h->trace, TRACE_INFO, "rendezvous '%s': round %lld is complete, %zu nodes",
          h->run_id, (long long)h->state.round, rdzv_count(&h->state, RDZV_PLACES));
    coordinator_notify_joined(h, fx);
    h->reseat = h->requests.first != NULL;
}

/* Every node that is known and has not been lost has a place, and one of them was in a
 * round before: there is nobody to wait for. Those who have never been seen join later,
 * as growth does. Newcomers alone and torchrun's nodes are given their last call. */
static bool everybody_is_here(const struct coordinator *h)
{
    if (h->state.round == 0 || h->settings.last_call_always || h->torch_nodes > 0 ||
        rdzv_count(&h->state, RDZV_PLACES) != h->node_sessions.count)
        return false;
    for (const struct node_session *w = h->requests.first; w; w = w->request_next)
        if (w->was_member)
            return true;
    return false;
}

/* What a node with that seat sees: torch's join rules (rendezvous/core/decisions.c) say
 * what follows. How long it may wait is its own affair. */
static struct rdzv_view join_view(const struct coordinator *h, enum rdzv_seat seat)
{
    return (struct rdzv_view){
        .seat = seat,
        .closed = h->state.closed,
        .complete = h->state.complete,
        .placed = (int64_t)rdzv_count(&h->state, RDZV_PLACES),
        .min_nodes = h->settings.min_nodes,
        .max_nodes =
            MAX_OF(h->settings.max_nodes, (int64_t)rdzv_count(&h->state, RDZV_PLACES)),
        .due_ms = MONO_NEVER,
    };
}

static void coordinator_complete_if_due(struct coordinator *h,
                                        struct coordinator_fx *fx, struct now now)
{
    struct rdzv_view v = join_view(h, SEAT_PLACE);

    if (h->state.complete || !buf_len(&h->settings_text))
        return;
    v.call_over = full(h) || now.mono_ms >= h->last_call_by_ms;
    v.everybody = everybody_is_here(h);
    if (rdzv_join_next(&v) == RDZV_COMPLETE)
        complete(h, fx, now);
}

void coordinator_call_last(struct coordinator *h, struct now now)
{
    if (h->state.complete || !enough(h) || h->last_call_by_ms != MONO_NEVER)
        return;
    h->last_call_by_ms = now.mono_ms + h->settings.last_call_ms;
    h->state.deadline_us =
        coordinator_wall_us(h, now) + (int64_t)h->settings.last_call_ms * 1000;
    h->dirty = true;
}

static void move_to(struct coordinator *h, struct participant *m, enum rdzv_list list)
{
    assert(rdzv_in(m, RDZV_BEATS)); /* So adding it to a list takes no memory. */
    (void)rdzv_state_put(&h->state, &m->node, list);
    for (int other = RDZV_PLACES; other <= RDZV_SPARES; other++) {
        if (other != (int)list)
            rdzv_state_drop(&h->state, m, (enum rdzv_list)other);
    }
    h->dirty = true;
}

static void take_place(struct coordinator *h, struct participant *m, struct now now)
{
    move_to(h, m, RDZV_PLACES);
    m->rank = 0;
    coordinator_call_last(h, now);
}

/* Gives one request the seat that torch's node would take. But who waited while a round
 * filled up without it becomes a spare: torch leaves it waiting (see
 * coordinator_notify_waiting). A spare that finds room is one of those who wait at
 * once.
 */
static void seat(struct coordinator *h, struct node_session *w, struct now now)
{
    struct participant *m = rdzv_state_find(&h->state, &w->node);
    struct rdzv_view v = join_view(h, rdzv_seat_of(m));

    assert(m && !h->state.closed);
    if ((v.seat == SEAT_WAIT && full(h)) || rdzv_join_next(&v) == RDZV_DROP_SPARE)
        v.seat = SEAT_NONE;
    switch (rdzv_join_next(&v)) {
    case RDZV_TAKE_PLACE:
        take_place(h, m, now);
        return;
    case RDZV_TAKE_WAIT:
        move_to(h, m, RDZV_WAITS);
        return;
    case RDZV_TAKE_SPARE:
        move_to(h, m, RDZV_SPARES);
        return;
    default:
        return; /* It has the seat that it is to have. */
    }
}

void coordinator_notify_spare(struct coordinator *h, struct coordinator_fx *fx,
                              struct node_session *w)
{
    const bool spare =
        w->request && rdzv_in(rdzv_state_find(&h->state, &w->node), RDZV_SPARES);

    if (spare == w->spare)
        return;
    w->spare = spare;
    coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_SPARE, .count = spare });
}

/* Tells nodes that wait for whom they wait, but only now and then, so that n nodes that
 * arrive together do not tell each other n times. */
static struct coord_msg gathered(const struct coordinator *h, struct now now)
{
    return (struct coord_msg){
        .kind = COORD_GATHERED,
        .count = (int64_t)rdzv_count(&h->state, RDZV_PLACES),
        .grace_ms = h->last_call_by_ms == MONO_NEVER ? MONO_NEVER
                    : h->last_call_by_ms <= now.mono_ms
                        ? 0
                        : h->last_call_by_ms - now.mono_ms,
    };
}

void coordinator_notify_gathered(struct coordinator *h, struct coordinator_fx *fx,
                                 struct now now)
{
    const size_t count = rdzv_count(&h->state, RDZV_PLACES);

    if (now.mono_ms < h->gathered_due_ms)
        return;
    h->gathered_due_ms = MONO_NEVER;
    if (h->state.complete || count == h->gathered)
        return;
    h->gathered = count;
    if (count > RDZV_NAMES_MAX) /* A few may hear of each other every second. */
        h->gathered_pause_ms = MIN_OF(2 * h->gathered_pause_ms, GATHERED_MOST_MS);
    h->gathered_ms = now.mono_ms;
    names_of(&h->state, RDZV_PLACES, h->names);
    names_without(h->members, h->names, h->missing);
    struct coord_msg all = gathered(h, now);
    all.text = span_str(h->names);
    all.addr = span_str(h->missing);
    for (const struct node_session *w = h->requests.first; w; w = w->request_next)
        coordinator_send(fx, w, all);
}

static void seat_and_notify(struct coordinator *h, struct coordinator_fx *fx,
                            struct node_session *w, struct now now)
{
    seat(h, w, now);
    coordinator_notify_spare(h, fx, w);
    coordinator_complete_if_due(h, fx, now);
}

void coordinator_seat_one(struct coordinator *h, struct coordinator_fx *fx,
                          struct node_session *w, struct now now)
{
    seat_and_notify(h, fx, w, now);
    if (h->state.complete || !w->request)
        return;
    coordinator_send(fx, w, gathered(h, now));
    if (h->gathered_due_ms == MONO_NEVER)
        h->gathered_due_ms = now.mono_ms + h->gathered_pause_ms;
}

void coordinator_settle(struct coordinator *h, struct coordinator_fx *fx,
                        struct now now)
{
    while (h->reseat) {
        struct node_session *next;

        h->reseat = false;
        for (struct node_session *w = h->requests.first; w; w = next) {
            next = w->request_next;
            seat_and_notify(h, fx, w, now);
            if (h->reseat)
                break; /* The round has just filled up: those left over are late. */
        }
    }
    coordinator_complete_if_due(h, fx, now);
    coordinator_notify_waiting(h, fx);
}

static void coordinator_leave_place(struct coordinator *h, struct participant *m)
{
    struct rdzv_state *s = &h->state;
    const bool was_complete = s->complete;

    if (!rdzv_in(m, RDZV_PLACES))
        return;
    rdzv_state_drop(s, m, RDZV_PLACES);
    rdzv_places_removed(s, &h->settings);
    h->dirty = true;
    if (was_complete && !s->complete) {
        coordinator_forget_waiting(h);
        h->resume_by_ms = MONO_NEVER;
        h->reseat = true;
    } else if (!s->complete) {
        h->gathered_due_ms = h->gathered_ms + h->gathered_pause_ms;
        if (!enough(h))
            h->last_call_by_ms = MONO_NEVER;
    } else if (rdzv_count(s, RDZV_SPARES) > 0) {
        h->reseat = true; /* A place is free: the spares become waiting nodes. */
    }
}

void coordinator_move_on(struct coordinator *h, struct participant *m)
{
    h->moved_on |= h->state.complete && rdzv_in(m, RDZV_PLACES);
    coordinator_leave_place(h, m);
}

/* A rack that loses power is one event to a reader of the log, not a thousand lines. */
static void log_departure(struct coordinator *h, enum trace_level level,
                          const char *text)
{
    const unsigned most = 8;

    if (++h->departures <= most)
        trace(h->trace, level, "rendezvous '%s': %s", h->run_id, text);
    if (h->departures == most)
        trace(h->trace, level, "rendezvous '%s': further departures are not listed",
              h->run_id);
}

void coordinator_lose(struct coordinator *h, struct coordinator_fx *fx,
                      struct participant *m, enum trace_level level, const char *text)
{
    const bool ran = h->state.complete && rdzv_in(m, RDZV_PLACES);
    struct node_session *w = coordinator_find(h, &m->node);

    log_departure(h, h->state.closed ? TRACE_DEBUG : level, text);
    if (w)
        w->member = false; /* It is not told of its own loss. */
    if (ran && !h->state.closed && ++h->losses <= LOSSES_LOGGED)
        coordinator_notify_members(
            h, fx, (struct coord_msg){ .kind = COORD_LOST, .text = span_str(text) });
    coordinator_leave_place(h, m);
    if (!w && h->torch_nodes > 0)
        h->torch_nodes--;
    if (h->rank0 == m)
        h->rank0 = NULL;
    rdzv_state_forget(&h->state, m);
    h->dirty = true;
}
