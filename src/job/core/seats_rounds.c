/* seats_seats.c - which node has which seat: torch's join rules (decisions.c),
 * applied by the host.
 *
 * Every node that asked and has not been answered is in c->requests. A JOIN seats its
 * own node alone, in O(1). Whatever may move the seats of other nodes sets c->reseat,
 * and then all requests are walked in the order of asking: when a round begins, when it
 * is complete, and when a place in a full one becomes free. So a round costs O(n) in
 * all. */
#include <assert.h>

#include "base/mem.h"
#include "job/core/seats_int.h"
#include "rendezvous/core/decisions.h"

/* Members are told of this many losses in a round. The first one makes them go to the
 * next round, and a few more show how bad it is. To tell each of n nodes of every node
 * of a rack would be a message for every pair. */
#define LOSSES_TOLD 4u

static bool full(const struct seats *c)
{
    return rdzv_count(&c->state, RDZV_PLACES) >= (size_t)c->settings.max_nodes;
}

static bool enough(const struct seats *c)
{
    return rdzv_count(&c->state, RDZV_PLACES) >= (size_t)c->settings.min_nodes;
}

void seats_notify_members(struct seats *c, struct run_fx *fx, enum wire_news what,
                          int64_t count, const char *text)
{
    for (const struct seat_node *node = c->all.first; node; node = node->next)
        if (node->member)
            seats_news(fx, node, what, count, text);
}

/* Members are told when the wait list stops being empty, when one of them is in it, and
 * when it is empty again: what they do about it does not depend on the number. In a
 * full round they are not told: starting again would find no room either, and so on for
 * ever. A node that has finished its work does not follow a newcomer into the next
 * round, but it follows a member: the member's work is not finished, and it may need
 * this node for a round. */
static void seats_notify_waiting(struct seats *c, struct run_fx *fx)
{
    const size_t count = full(c) ? 0 : rdzv_count(&c->state, RDZV_WAITS);
    const int64_t now = count == 0 ? 0 : c->moved_on ? WIRE_MEMBER_WAITS : 1;

    if (c->waiting_notified == now || c->held)
        return;
    c->waiting_notified = now;
    seats_notify_members(c, fx, WIRE_WAITING, c->moved_on ? now : (int64_t)count, "");
}

/* The round whose members were told is over. */
void seats_forget_waiting(struct seats *c)
{
    c->waiting_notified = 0;
    c->moved_on = false;
}

/* What rank 0 has said of the workers' store of a round, or NULL. */
static const struct seat_store *store_of(const struct seats *c, int64_t round)
{
    const struct seat_store *const s = &c->stores[round % 2];

    return c->ranked && s->by && s->round == round && c->rank0 &&
                   seats_find(c, &c->rank0->node) == s->by
               ? s
               : NULL;
}

void seats_notify_rank(struct seats *c, struct run_fx *fx, struct seat_node *node)
{
    const struct participant *m = rdzv_state_find(&c->state, &node->node);
    const struct seat_store *store = store_of(c, c->state.round);

    assert(c->state.complete && rdzv_in(m, RDZV_PLACES));
    seats_request_end(c, node);
    node->spare = false;
    node->member = node->was_member = true;
    seats_send(fx, node,
               (struct run_msg){
                   .kind = MSG_JOINED,
                   .round = c->state.round,
                   .rank = m->rank,
                   .world = (int64_t)rdzv_count(&c->state, RDZV_PLACES),
                   .addr = c->rank0 ? c->rank0->node.addr : span_str(""),
                   .pid = c->rank0 ? c->rank0->node.pid : 0,
                   .local_id = c->rank0 ? c->rank0->node.local_id : 0,
                   .count = c->all_ours ? WIRE_ALL_OURS : (int64_t)c->torch_nodes,
                   .ranks = node->ranks,
                   .where = span_str(store ? store->host : ""),
                   .port = store ? store->port : 0,
               });
}

/* The ranks of all workers, if every agent of the round has said how many it has: then
 * they need not agree on them through the store. */
static bool assign_ranks(struct seats *c, struct run_fx *fx)
{
    const size_t count = c->world;
    struct role_info *infos = mem_calloc(count, sizeof *infos);
    struct rank_range *ranges = mem_calloc(count, sizeof *ranges);
    bool all = true;

    fx->no_memory |= !infos || !ranges;
    for (const struct participant *m = rdzv_first(&c->state, RDZV_PLACES);
         m && infos && ranges; m = m->next[RDZV_PLACES]) {
        const struct seat_node *node = seats_find(c, &m->node);

        assert(m->rank >= 0 && (size_t)m->rank < count);
        all &= node && node->nproc > 0;
        if (all)
            infos[m->rank] = (struct role_info){ node->role, m->rank, node->nproc };
    }
    if (infos && ranges && all && ranks_assign(infos, count, ranges, NULL) < 0)
        fx->no_memory = true;
    for (const struct participant *m = rdzv_first(&c->state, RDZV_PLACES); m && ranges;
         m = m->next[RDZV_PLACES]) {
        struct seat_node *node = seats_find(c, &m->node);

        if (node)
            node->ranks = ranges[m->rank];
    }
    all = all && infos && ranges;
    mem_free(infos);
    mem_free(ranges);
    return all;
}

/* Tells the nodes of the complete round that are not to wait for rank 0. */
static void notify_ranks(struct seats *c, struct run_fx *fx)
{
    struct seat_node *next;

    for (struct seat_node *node = c->requests.first; node; node = next) {
        const struct participant *m = rdzv_state_find(&c->state, &node->node);

        next = node->request_next;
        if (rdzv_in(m, RDZV_PLACES) && (!c->held || m == c->rank0))
            seats_notify_rank(c, fx, node);
    }
}

void seats_notify_joined(struct seats *c, struct run_fx *fx)
{
    assert(c->state.complete);
    if (c->on_round)
        c->on_round(c->on_round_ctx, c->state.round);
    c->world = rdzv_count(&c->state, RDZV_PLACES);
    c->rank0 = NULL;
    c->all_ours = true;
    for (struct participant *m = rdzv_first(&c->state, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct seat_node *node = seats_find(c, &m->node);

        if (m->rank == 0)
            c->rank0 = m;
        c->all_ours &= node != NULL;
    }
    c->ranked = assign_ranks(c, fx);
    c->held = c->ranked && c->world > 1 && !store_of(c, c->state.round);
    notify_ranks(c, fx);
}

int seats_store(struct seats *c, struct run_fx *fx, struct seat_node *node,
                const struct run_msg *m, struct now now)
{
    struct seat_store *const s = &c->stores[m->round % 2];
    char *host;

    /* Of an earlier round, after a reconnect; or the node is not rank 0 any more. */
    if (!c->rank0 || seats_find(c, &c->rank0->node) != node ||
        m->round < c->state.round || m->round > c->state.round + 1)
        return 0;
    host = mem_strndup((const char *)m->where.p, m->where.n);
    if (!host)
        return MUSTER_ENOMEM;
    mem_free(s->host);
    *s = (struct seat_store){ node, m->round, m->port, host };
    if (!c->held || !store_of(c, c->state.round))
        return 0;
    c->held = false;
    notify_ranks(c, fx);
    seats_settle(c, fx, now);
    return 0;
}

/* Whether every member lives and nobody else wants to come, so that the next round can
 * be the same as this one. */
static bool nothing_has_changed(const struct seats *c)
{
    for (const struct seat_node *node = c->all.first; node; node = node->next)
        if (node->member && !run_session_is_open(node->session))
            return false;
    return c->state.complete && !c->state.closed && c->ranked && !c->held &&
           rdzv_count(&c->state, RDZV_PLACES) == c->world &&
           rdzv_count(&c->state, RDZV_WAITS) == 0 && c->state.round < RDZV_MAX_ROUND &&
           !c->settings.last_call_always;
}

void seats_restart(struct seats *c, int64_t round, struct run_fx *fx)
{
    if (round != c->state.round || !nothing_has_changed(c) || !store_of(c, round + 1))
        return;
    c->state.round++;
    c->dirty = true;
    c->departures = c->losses = 0;
    log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
             "rendezvous '%s': round %lld begins with the same %zu nodes", c->run_id,
             (long long)c->state.round, c->world);
    for (struct seat_node *node = c->all.first; node; node = node->next)
        if (node->member)
            seats_notify_rank(c, fx, node);
}

static void complete(struct seats *c, struct run_fx *fx, struct now now)
{
    assert(rdzv_count(&c->state, RDZV_PLACES) <= c->order_size);
    rdzv_complete_round_in(&c->state, c->order);
    c->settled_by_ms = now.mono_ms + SETTLE_MS;
    c->departures = c->losses = 0;
    c->gathered_pause_ms = GATHERED_FIRST_MS;
    c->last_call_by_ms = MONO_NEVER;
    seats_forget_waiting(c);
    c->dirty = true;
    names_of(&c->state, RDZV_PLACES, c->members);
    log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
             "rendezvous '%s': round %lld is complete, %zu nodes", c->run_id,
             (long long)c->state.round, rdzv_count(&c->state, RDZV_PLACES));
    seats_notify_joined(c, fx);
    c->reseat = c->requests.first != NULL;
}

/* Every node that is known and has not been lost has a place, and one of them was in a
 * round before, so there is nobody to wait for. Nodes that have never been seen join
 * later and make the group grow. If all nodes are newcomers, or one is torchrun's,
 * there is a last call. */
static bool everybody_is_here(const struct seats *c)
{
    if (c->state.round == 0 || c->settings.last_call_always || c->torch_nodes > 0 ||
        rdzv_count(&c->state, RDZV_PLACES) != c->nodes.count)
        return false;
    for (const struct seat_node *node = c->requests.first; node;
         node = node->request_next)
        if (node->was_member)
            return true;
    return false;
}

/* What a node with that seat sees, as input for torch's join rules
 * (rendezvous/core/decisions.c). How long it may wait is up to the node itself. */
static struct rdzv_view join_view(const struct seats *c, enum rdzv_seat seat)
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

static void seats_complete_if_due(struct seats *c, struct run_fx *fx, struct now now)
{
    struct rdzv_view v = join_view(c, SEAT_PLACE);

    if (c->state.complete || !buf_len(&c->settings_text))
        return;
    v.call_over = full(c) || now.mono_ms >= c->last_call_by_ms;
    v.everybody = everybody_is_here(c);
    if (rdzv_join_next(&v) == RDZV_COMPLETE)
        complete(c, fx, now);
}

void seats_begin_last_call(struct seats *c, struct now now)
{
    if (c->state.complete || !enough(c) || c->last_call_by_ms != MONO_NEVER)
        return;
    c->last_call_by_ms = now.mono_ms + c->settings.last_call_ms;
    c->state.deadline_us =
        seats_wall_us(c, now) + (int64_t)c->settings.last_call_ms * 1000;
    c->dirty = true;
}

static void move_to(struct seats *c, struct participant *m, enum rdzv_list list)
{
    assert(rdzv_in(m, RDZV_BEATS)); /* So adding it to a list needs no memory. */
    (void)rdzv_state_put(&c->state, &m->node, list);
    for (int other = RDZV_PLACES; other <= RDZV_SPARES; other++) {
        if (other != (int)list)
            rdzv_state_drop(&c->state, m, (enum rdzv_list)other);
    }
    c->dirty = true;
}

static void take_place(struct seats *c, struct participant *m, struct now now)
{
    move_to(c, m, RDZV_PLACES);
    m->rank = 0;
    seats_begin_last_call(c, now);
}

/* Gives the node of one request the seat that torch's node would take, with one
 * difference: a node that waited while a round filled up without it becomes a spare,
 * where torch leaves it waiting (see seats_notify_waiting). A spare for which
 * there is room again becomes a waiting node at once. */
static void seat(struct seats *c, struct seat_node *node, struct now now)
{
    struct participant *m = rdzv_state_find(&c->state, &node->node);
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

void seats_notify_spare(struct seats *c, struct run_fx *fx, struct seat_node *node)
{
    const bool spare =
        node->request && rdzv_in(rdzv_state_find(&c->state, &node->node), RDZV_SPARES);

    if (spare == node->spare)
        return;
    node->spare = spare;
    seats_news(fx, node, WIRE_SPARE, spare, "");
}

/* Says how many nodes have come, and how long the round waits for more. */
static struct run_msg gathered(const struct seats *c, struct now now)
{
    return (struct run_msg){
        .kind = MSG_GATHERED,
        .count = (int64_t)rdzv_count(&c->state, RDZV_PLACES),
        .grace_ms = c->last_call_by_ms == MONO_NEVER ? MONO_NEVER
                    : c->last_call_by_ms <= now.mono_ms
                        ? 0
                        : c->last_call_by_ms - now.mono_ms,
    };
}

/* Tells waiting nodes which nodes have come, but only now and then, so that n nodes
 * that arrive together do not cause n messages to each. */
void seats_notify_gathered(struct seats *c, struct run_fx *fx, struct now now)
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
    struct run_msg all = gathered(c, now);
    all.text = span_str(c->names);
    all.addr = span_str(c->missing);
    for (const struct seat_node *node = c->requests.first; node;
         node = node->request_next)
        seats_send(fx, node, all);
}

static void seat_and_notify(struct seats *c, struct run_fx *fx, struct seat_node *node,
                            struct now now)
{
    seat(c, node, now);
    seats_notify_spare(c, fx, node);
    seats_complete_if_due(c, fx, now);
}

void seats_seat_one(struct seats *c, struct run_fx *fx, struct seat_node *node,
                    struct now now)
{
    seat_and_notify(c, fx, node, now);
    if (c->state.complete || !node->request)
        return;
    seats_send(fx, node, gathered(c, now));
    if (c->gathered_due_ms == MONO_NEVER)
        c->gathered_due_ms = now.mono_ms + c->gathered_pause_ms;
}

void seats_settle(struct seats *c, struct run_fx *fx, struct now now)
{
    while (c->reseat) {
        struct seat_node *next;

        c->reseat = false;
        for (struct seat_node *node = c->requests.first; node; node = next) {
            next = node->request_next;
            seat_and_notify(c, fx, node, now);
            if (c->reseat)
                break; /* The round has filled up: start over. */
        }
    }
    seats_complete_if_due(c, fx, now);
    seats_notify_waiting(c, fx);
}

static void seats_leave_place(struct seats *c, struct participant *m);

/* One of them is gone before the round began: those that have not been told of it ask
 * for the next one. */
static void release_held(struct seats *c)
{
    c->held = false;
    for (const struct seat_node *node = c->requests.first; node;
         node = node->request_next) {
        struct participant *m = rdzv_state_find(&c->state, &node->node);

        if (m)
            seats_move_on(c, m);
    }
    c->reseat = true;
}

static void seats_leave_place(struct seats *c, struct participant *m)
{
    struct rdzv_state *s = &c->state;
    const bool was_complete = s->complete;

    if (!rdzv_in(m, RDZV_PLACES))
        return;
    rdzv_state_drop(s, m, RDZV_PLACES);
    rdzv_places_removed(s, &c->settings);
    c->dirty = true;
    if (c->held)
        release_held(c);
    if (was_complete && !s->complete) {
        seats_forget_waiting(c);
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

void seats_move_on(struct seats *c, struct participant *m)
{
    c->moved_on |= c->state.complete && rdzv_in(m, RDZV_PLACES);
    seats_leave_place(c, m);
}

/* A rack that loses power is one event to a reader of the log, not a thousand lines. */
static void log_departure(struct seats *c, enum log_level level, enum log_place place,
                          const char *text)
{
    const unsigned most = 8;

    if (++c->departures <= most)
        log_line(c->log, level, place, "rendezvous '%s': %s", c->run_id, text);
    if (c->departures == most)
        log_line(c->log, level, place,
                 "rendezvous '%s': further departures are not listed", c->run_id);
}

void seats_lose(struct seats *c, struct run_fx *fx, struct participant *m,
                enum log_level level, enum log_place place, const char *text)
{
    const bool ran = c->state.complete && rdzv_in(m, RDZV_PLACES);
    struct seat_node *node = seats_find(c, &m->node);

    log_departure(c, c->state.closed ? LOG_DEBUG : level, place, text);
    if (node)
        node->member = false; /* It need not be told of its own loss. */
    if (ran && !c->state.closed && ++c->losses <= LOSSES_TOLD)
        seats_notify_members(c, fx, WIRE_LOST, 0, text);
    seats_leave_place(c, m);
    if (!node && c->torch_nodes > 0)
        c->torch_nodes--;
    if (c->rank0 == m)
        c->rank0 = NULL;
    rdzv_state_forget(&c->state, m);
    c->dirty = true;
}
