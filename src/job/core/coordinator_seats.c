/* coordinator_seats.c - which node has which seat: torch's join rules (decisions.c),
 * applied by the host.
 *
 * Every node that asked and has not been answered is in c->requests. A JOIN seats its
 * own node alone, in O(1). Whatever may move the seats of other nodes sets c->reseat,
 * and then all requests are walked in the order of asking: when a round begins, when it
 * is complete, and when a place in a full one becomes free. So a round costs O(n) in
 * all. */
#include <assert.h>

#include "job/core/coordinator_int.h"
#include "rendezvous/core/decisions.h"

/* Members are told of this many losses in a round. The first one makes them go to the
 * next round, and a few more show how bad it is. To tell each of n nodes of every node
 * of a rack would be a message for every pair. */
#define LOSSES_TOLD 4u

static bool full(const struct coordinator *c)
{
    return rdzv_count(&c->state, RDZV_PLACES) >= (size_t)c->settings.max_nodes;
}

static bool enough(const struct coordinator *c)
{
    return rdzv_count(&c->state, RDZV_PLACES) >= (size_t)c->settings.min_nodes;
}

void coordinator_notify_members(struct coordinator *c, struct coordinator_fx *fx,
                                struct coord_msg msg)
{
    for (const struct node_session *session = c->all.first; session;
         session = session->next) {
        if (session->member)
            coordinator_send(fx, session, msg);
    }
}

/* Members are told when the wait list stops being empty, when one of them is in it, and
 * when it is empty again: what they do about it does not depend on the number. In a
 * full round they are not told: starting again would find no room either, and so on for
 * ever. A node that has finished its work does not follow a newcomer into the next
 * round, but it follows a member: the member's work is not finished, and it may need
 * this node for a round. */
static void coordinator_notify_waiting(struct coordinator *c, struct coordinator_fx *fx)
{
    const size_t count = full(c) ? 0 : rdzv_count(&c->state, RDZV_WAITS);
    const int64_t now = count == 0 ? 0 : c->moved_on ? COORD_MEMBER_WAITS : 1;

    if (c->waiting_notified == now)
        return;
    c->waiting_notified = now;
    coordinator_notify_members(
        c, fx,
        (struct coord_msg){ .kind = COORD_WAITING,
                            .count = c->moved_on ? now : (int64_t)count });
}

/* The round whose members were told is over. */
void coordinator_forget_waiting(struct coordinator *c)
{
    c->waiting_notified = 0;
    c->moved_on = false;
}

void coordinator_notify_rank(struct coordinator *c, struct coordinator_fx *fx,
                             struct node_session *session)
{
    const struct participant *m = rdzv_state_find(&c->state, &session->node);

    assert(c->state.complete && rdzv_in(m, RDZV_PLACES));
    coordinator_request_end(c, session);
    session->spare = false;
    session->member = session->was_member = true;
    coordinator_send(
        fx, session,
        (struct coord_msg){
            .kind = COORD_JOINED,
            .round = c->state.round,
            .rank = m->rank,
            .world = (int64_t)rdzv_count(&c->state, RDZV_PLACES),
            .addr = c->rank0 ? c->rank0->node.addr : span_str(""),
            .pid = c->rank0 ? c->rank0->node.pid : 0,
            .local_id = c->rank0 ? c->rank0->node.local_id : 0,
            .count = c->all_read ? COORD_ALL_READ : (int64_t)c->torch_nodes,
        });
}

void coordinator_notify_joined(struct coordinator *c, struct coordinator_fx *fx)
{
    struct node_session *next;

    assert(c->state.complete);
    c->world = rdzv_count(&c->state, RDZV_PLACES);
    c->rank0 = NULL;
    c->all_read = true;
    for (struct participant *m = rdzv_first(&c->state, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct node_session *session = coordinator_find(c, &m->node);

        if (m->rank == 0)
            c->rank0 = m;
        c->all_read &= session && (session->session->nonce & 0xffff) == COORD_READS;
    }
    for (struct node_session *session = c->requests.first; session; session = next) {
        next = session->request_next;
        if (rdzv_in(rdzv_state_find(&c->state, &session->node), RDZV_PLACES))
            coordinator_notify_rank(c, fx, session);
    }
}

static void complete(struct coordinator *c, struct coordinator_fx *fx, struct now now)
{
    assert(rdzv_count(&c->state, RDZV_PLACES) <= c->order_size);
    rdzv_complete_round_in(&c->state, c->order);
    c->settled_by_ms = now.mono_ms + SETTLE_MS;
    c->departures = c->losses = 0;
    c->gathered_pause_ms = GATHERED_FIRST_MS;
    c->last_call_by_ms = MONO_NEVER;
    coordinator_forget_waiting(c);
    c->dirty = true;
    names_of(&c->state, RDZV_PLACES, c->members);
    trace(c->trace, TRACE_INFO, "rendezvous '%s': round %lld is complete, %zu nodes",
          c->run_id, (long long)c->state.round, rdzv_count(&c->state, RDZV_PLACES));
    coordinator_notify_joined(c, fx);
    c->reseat = c->requests.first != NULL;
}

/* Every node that is known and has not been lost has a place, and one of them was in a
 * round before, so there is nobody to wait for. Nodes that have never been seen join
 * later and make the group grow. If all nodes are newcomers, or one is torchrun's,
 * there is a last call. */
static bool everybody_is_here(const struct coordinator *c)
{
    if (c->state.round == 0 || c->settings.last_call_always || c->torch_nodes > 0 ||
        rdzv_count(&c->state, RDZV_PLACES) != c->node_sessions.count)
        return false;
    for (const struct node_session *session = c->requests.first; session;
         session = session->request_next)
        if (session->was_member)
            return true;
    return false;
}

/* What a node with that seat sees, as input for torch's join rules
 * (rendezvous/core/decisions.c). How long it may wait is up to the node itself. */
static struct rdzv_view join_view(const struct coordinator *c, enum rdzv_seat seat)
{
    return (struct rdzv_view){
        .seat = seat,
        .closed = c->state.closed,
        .complete = c->state.complete,
        .placed = (int64_t)rdzv_count(&c->state, RDZV_PLACES),
        .min_nodes = c->settings.min_nodes,
        .max_nodes =
            MAX_OF(c->settings.max_nodes, (int64_t)rdzv_count(&c->state, RDZV_PLACES)),
        .due_ms = MONO_NEVER,
    };
}

static void coordinator_complete_if_due(struct coordinator *c,
                                        struct coordinator_fx *fx, struct now now)
{
    struct rdzv_view v = join_view(c, SEAT_PLACE);

    if (c->state.complete || !buf_len(&c->settings_text))
        return;
    v.call_over = full(c) || now.mono_ms >= c->last_call_by_ms;
    v.everybody = everybody_is_here(c);
    if (rdzv_join_next(&v) == RDZV_COMPLETE)
        complete(c, fx, now);
}

void coordinator_begin_last_call(struct coordinator *c, struct now now)
{
    if (c->state.complete || !enough(c) || c->last_call_by_ms != MONO_NEVER)
        return;
    c->last_call_by_ms = now.mono_ms + c->settings.last_call_ms;
    c->state.deadline_us =
        coordinator_wall_us(c, now) + (int64_t)c->settings.last_call_ms * 1000;
    c->dirty = true;
}

static void move_to(struct coordinator *c, struct participant *m, enum rdzv_list list)
{
    assert(rdzv_in(m, RDZV_BEATS)); /* So adding it to a list needs no memory. */
    (void)rdzv_state_put(&c->state, &m->node, list);
    for (int other = RDZV_PLACES; other <= RDZV_SPARES; other++) {
        if (other != (int)list)
            rdzv_state_drop(&c->state, m, (enum rdzv_list)other);
    }
    c->dirty = true;
}

static void take_place(struct coordinator *c, struct participant *m, struct now now)
{
    move_to(c, m, RDZV_PLACES);
    m->rank = 0;
    coordinator_begin_last_call(c, now);
}

/* Gives the node of one request the seat that torch's node would take, with one
 * difference: a node that waited while a round filled up without it becomes a spare,
 * where torch leaves it waiting (see coordinator_notify_waiting). A spare for which
 * there is room again becomes a waiting node at once. */
static void seat(struct coordinator *c, struct node_session *session, struct now now)
{
    struct participant *m = rdzv_state_find(&c->state, &session->node);
    struct rdzv_view v = join_view(c, rdzv_seat_of(m));

    assert(m && !c->state.closed);
    if ((v.seat == SEAT_WAIT && full(c)) || rdzv_join_next(&v) == RDZV_DROP_SPARE)
        v.seat = SEAT_NONE;
    switch (rdzv_join_next(&v)) {
    case RDZV_TAKE_PLACE:
        take_place(c, m, now);
        return;
    case RDZV_TAKE_WAIT:
        move_to(c, m, RDZV_WAITS);
        return;
    case RDZV_TAKE_SPARE:
        move_to(c, m, RDZV_SPARES);
        return;
    default:
        return; /* It already has the right seat. */
    }
}

void coordinator_notify_spare(struct coordinator *c, struct coordinator_fx *fx,
                              struct node_session *session)
{
    const bool spare = session->request &&
                       rdzv_in(rdzv_state_find(&c->state, &session->node), RDZV_SPARES);

    if (spare == session->spare)
        return;
    session->spare = spare;
    coordinator_send(fx, session,
                     (struct coord_msg){ .kind = COORD_SPARE, .count = spare });
}

/* Says how many nodes have come, and how long the round waits for more. */
static struct coord_msg gathered(const struct coordinator *c, struct now now)
{
    return (struct coord_msg){
        .kind = COORD_GATHERED,
        .count = (int64_t)rdzv_count(&c->state, RDZV_PLACES),
        .grace_ms = c->last_call_by_ms == MONO_NEVER ? MONO_NEVER
                    : c->last_call_by_ms <= now.mono_ms
                        ? 0
                        : c->last_call_by_ms - now.mono_ms,
    };
}

/* Tells waiting nodes which nodes have come, but only now and then, so that n nodes
 * that arrive together do not cause n messages to each. */
void coordinator_notify_gathered(struct coordinator *c, struct coordinator_fx *fx,
                                 struct now now)
{
    const size_t count = rdzv_count(&c->state, RDZV_PLACES);

    if (now.mono_ms < c->gathered_due_ms)
        return;
    c->gathered_due_ms = MONO_NEVER;
    if (c->state.complete || count == c->gathered)
        return;
    c->gathered = count;
    if (count > RDZV_NAMES_MAX) /* A few nodes may be told every second. */
        c->gathered_pause_ms = MIN_OF(2 * c->gathered_pause_ms, GATHERED_MOST_MS);
    c->gathered_ms = now.mono_ms;
    names_of(&c->state, RDZV_PLACES, c->names);
    names_without(c->members, c->names, c->missing);
    struct coord_msg all = gathered(c, now);
    all.text = span_str(c->names);
    all.addr = span_str(c->missing);
    for (const struct node_session *session = c->requests.first; session;
         session = session->request_next)
        coordinator_send(fx, session, all);
}

static void seat_and_notify(struct coordinator *c, struct coordinator_fx *fx,
                            struct node_session *session, struct now now)
{
    seat(c, session, now);
    coordinator_notify_spare(c, fx, session);
    coordinator_complete_if_due(c, fx, now);
}

void coordinator_seat_one(struct coordinator *c, struct coordinator_fx *fx,
                          struct node_session *session, struct now now)
{
    seat_and_notify(c, fx, session, now);
    if (c->state.complete || !session->request)
        return;
    coordinator_send(fx, session, gathered(c, now));
    if (c->gathered_due_ms == MONO_NEVER)
        c->gathered_due_ms = now.mono_ms + c->gathered_pause_ms;
}

void coordinator_settle(struct coordinator *c, struct coordinator_fx *fx,
                        struct now now)
{
    while (c->reseat) {
        struct node_session *next;

        c->reseat = false;
        for (struct node_session *session = c->requests.first; session;
             session = next) {
            next = session->request_next;
            seat_and_notify(c, fx, session, now);
            if (c->reseat)
                break; /* The round has filled up: start over. */
        }
    }
    coordinator_complete_if_due(c, fx, now);
    coordinator_notify_waiting(c, fx);
}

static void coordinator_leave_place(struct coordinator *c, struct participant *m)
{
    struct rdzv_state *s = &c->state;
    const bool was_complete = s->complete;

    if (!rdzv_in(m, RDZV_PLACES))
        return;
    rdzv_state_drop(s, m, RDZV_PLACES);
    rdzv_places_removed(s, &c->settings);
    c->dirty = true;
    if (was_complete && !s->complete) {
        coordinator_forget_waiting(c);
        c->resume_by_ms = MONO_NEVER;
        c->reseat = true;
    } else if (!s->complete) {
        c->gathered_due_ms = c->gathered_ms + c->gathered_pause_ms;
        if (!enough(c))
            c->last_call_by_ms = MONO_NEVER;
    } else if (rdzv_count(s, RDZV_SPARES) > 0) {
        c->reseat = true; /* A place is free, so spares become waiting nodes. */
    }
}

void coordinator_move_on(struct coordinator *c, struct participant *m)
{
    c->moved_on |= c->state.complete && rdzv_in(m, RDZV_PLACES);
    coordinator_leave_place(c, m);
}

/* A rack that loses power is one event to a reader of the log, not a thousand lines. */
static void log_departure(struct coordinator *c, enum trace_level level,
                          const char *text)
{
    const unsigned most = 8;

    if (++c->departures <= most)
        trace(c->trace, level, "rendezvous '%s': %s", c->run_id, text);
    if (c->departures == most)
        trace(c->trace, level, "rendezvous '%s': further departures are not listed",
              c->run_id);
}

void coordinator_lose(struct coordinator *c, struct coordinator_fx *fx,
                      struct participant *m, enum trace_level level, const char *text)
{
    const bool ran = c->state.complete && rdzv_in(m, RDZV_PLACES);
    struct node_session *session = coordinator_find(c, &m->node);

    log_departure(c, c->state.closed ? TRACE_DEBUG : level, text);
    if (session)
        session->member = false; /* It need not be told of its own loss. */
    if (ran && !c->state.closed && ++c->losses <= LOSSES_TOLD)
        coordinator_notify_members(
            c, fx, (struct coord_msg){ .kind = COORD_LOST, .text = span_str(text) });
    coordinator_leave_place(c, m);
    if (!session && c->torch_nodes > 0)
        c->torch_nodes--;
    if (c->rank0 == m)
        c->rank0 = NULL;
    rdzv_state_forget(&c->state, m);
    c->dirty = true;
}
