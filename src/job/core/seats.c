/* coordinator.c - see coordinator.h: the messages of nodes and the answers to them,
 * HELLO, losses and deadlines. Seats are in seats_seats.c. */
#include "job/core/seats.h"
#include "base/err.h"
#include "base/mem.h"
#include "job/core/seats_int.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* ---- effects ---- */

int seats_reserve_order(struct seats *c, size_t count)
{
    struct participant **order;

    if (c->order_size >= count)
        return 0;
    count += count / 2;
    order = mem_realloc_array(c->order, count, sizeof(struct participant *));
    if (!order)
        return MUSTER_ENOMEM;
    c->order = order;
    c->order_size = count;
    return 0;
}

void seats_send(struct run_fx *fx, const struct seat_node *to, struct run_msg msg)
{
    if (run_session_is_open(to->session)) /* Else it is told when it comes back. */
        run_send(fx, to->session->peer, msg);
}

void seats_news(struct run_fx *fx, const struct seat_node *to, enum wire_news what,
                int64_t count, const char *text)
{
    seats_send(
        fx, to,
        (struct run_msg){
            .kind = MSG_NEWS, .what = what, .count = count, .text = span_str(text) });
}

static void seats_refuse(struct seats *c, struct run_fx *fx, struct seat_node *node,
                         int code, const char *text)
{
    seats_request_end(c, node);
    seats_send(
        fx, node,
        (struct run_msg){ .kind = MSG_REFUSED, .code = code, .text = span_str(text) });
}

/* ---- messages ---- */

static void refuse_closed(struct seats *c, struct run_fx *fx, struct seat_node *node)
{
    const struct participant *m = rdzv_state_find(&c->state, &node->node);

    if (rdzv_in(m, RDZV_SPARES))
        seats_refuse(c, fx, node, MUSTER_EGRACEFUL,
                     "the run ended without this spare node being needed");
    else
        seats_refuse(c, fx, node, MUSTER_ECLOSED,
                     "the rendezvous is closed: the run has ended; use a new run id");
}

void seats_close_run(struct seats *c, struct run_fx *fx)
{
    struct seat_node *next;

    c->state.closed = true;
    c->held = false;
    if (c->closed_round < 0)
        c->closed_round = c->state.round;
    c->last_call_by_ms = MONO_NEVER;
    c->dirty = true;
    c->touched = true;
    for (struct seat_node *node = c->requests.first; node; node = next) {
        next = node->request_next;
        refuse_closed(c, fx, node);
    }
    for (const struct seat_node *node = c->all.first; node; node = node->next)
        seats_news(fx, node, WIRE_CLOSED, 0, "");
}

/* Whether torchrun's nodes, which poll, may not have seen the complete round yet: a
 * node that leaves before they have would make the world that they see smaller. */
static bool seats_unsettled(const struct seats *c, const struct seat_node *node,
                            struct now now)
{
    return c->torch_nodes && c->state.complete && now.mono_ms < c->settled_by_ms &&
           rdzv_in(rdzv_state_find(&c->state, &node->node), RDZV_PLACES);
}

/* A node repeats its last JOIN after a reconnect, since the answer may have been
 * lost. */
static bool repeated(const struct seat_node *node, int64_t number)
{
    return number == node->joins && (node->request || node->member);
}

/* The answer to the node's JOIN was lost, and a node of that round has been lost since.
 * If we answered now, its world would differ from the one that the others were told, so
 * it joins again. */
static bool outdated(const struct seats *c, const struct seat_node *node)
{
    return node->member && rdzv_count(&c->state, RDZV_PLACES) != c->world;
}

/* The node has not heard yet that the round after its last one has begun for it, since
 * all members began again where they were. */
static bool unaware(const struct seats *c, const struct seat_node *node, int64_t round)
{
    return node->member && c->state.complete && round < c->state.round;
}

static int on_join(struct seats *c, struct seat_node *node, struct run_fx *fx,
                   const struct run_msg *m, struct now now)
{
    struct participant *me;

    if ((repeated(node, m->count) || node->request || unaware(c, node, m->round)) &&
        !outdated(c, node)) {
        if (node->member)
            seats_notify_rank(c, fx, node);
        /* What the others have been told since. Before the rank it would be ignored. */
        if (node->member && c->waiting_notified)
            seats_news(fx, node, WIRE_WAITING, c->waiting_notified, "");
        seats_notify_spare(c, fx, node);
        return 0;
    }
    if (c->state.closed) {
        node->joins = m->count;
        refuse_closed(c, fx, node);
        return 0;
    }
    me = rdzv_state_put(&c->state, &node->node, RDZV_BEATS);
    if (!me)
        return MUSTER_ENOMEM;
    node->joins = m->count;
    node->ends = false;
    me->beat_us = now.wall_us;
    c->touched = true;
    node->member = node->spare = false;
    seats_request_begin(c, node);
    if (seats_unsettled(c, node, now)) {
        node->stays = true;
        c->staying++;
        return 0;
    }
    seats_move_on(c, me);
    seats_seat_one(c, fx, node, now);
    seats_settle(c, fx, now);
    return 0;
}

static void on_leave(struct seats *c, struct seat_node *node, struct run_fx *fx,
                     struct now now)
{
    struct participant *m = rdzv_state_find(&c->state, &node->node);
    char name[128];

    seats_request_end(c, node);
    node->ends = true;
    if (m) {
        (void)snprintf(fx->text, sizeof fx->text, "node %s has left",
                       rdzv_node_text(&node->node, name, sizeof name));
        seats_lose(c, fx, m, LOG_INFO, AT_RENDEZVOUS, fx->text);
    }
    seats_send(fx, node, (struct run_msg){ .kind = MSG_LEFT });
    seats_settle(c, fx, now);
}

/* ---- HELLO: the node is new, or comes back within its grace, or knew this run under a
 * host that is no more ---- */

#define MAX_GRACE_MS   60000u
#define AWAY_MOST      65536u
#define STORE_HOST_MAX 1024u

/* The node is in a round that these seats do not know, so the host was restarted
 * while the run went on. The nodes of the round come back one by one, and those that
 * have not done so within the keep-alive bound are lost. */
static int resume(struct seats *c, struct seat_node *node, const struct run_msg *m,
                  struct now now)
{
    struct participant *place = rdzv_state_put(&c->state, &node->node, RDZV_BEATS);

    assert(m->rank >= 0 && m->rank < m->world && m->round <= RDZV_MAX_ROUND);
    if (!place || !rdzv_state_put(&c->state, &node->node, RDZV_PLACES))
        return MUSTER_ENOMEM;
    place->rank = m->rank;
    place->beat_us = now.wall_us;
    c->state.round = m->round;
    c->state.complete = true;
    c->resume_world = m->world;
    if (c->resume_by_ms == MONO_NEVER)
        c->resume_by_ms = now.mono_ms + rdzv_dead_after_ms(&c->settings);
    if (rdzv_count(&c->state, RDZV_PLACES) >= (size_t)m->world)
        c->resume_by_ms = MONO_NEVER;
    node->member = true;
    c->touched = c->dirty = true;
    log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
             "rendezvous '%s': rank %" PRId64 " of round %" PRId64
             " is back; %zu of %" PRId64 " nodes are here now",
             c->run_id, m->rank, m->round, rdzv_count(&c->state, RDZV_PLACES),
             m->world);
    return 0;
}

/* If two nodes claim the same rank, the first one is believed. */
static bool rank_is_taken(const struct seats *c, int64_t rank)
{
    for (const struct participant *m = rdzv_first(&c->state, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (m->rank == rank)
            return true;
    }
    return false;
}

static bool can_resume(const struct seats *c, const struct run_msg *m)
{
    if (m->round < 0 || m->rank < 0 || m->rank >= m->world ||
        m->world > c->settings.max_nodes)
        return false;
    if (!c->touched)
        return m->round >= c->state.round;
    return c->resume_by_ms != MONO_NEVER && c->state.round == m->round &&
           c->resume_world == m->world && !rank_is_taken(c, m->rank);
}

/* Tells a node that was away what it must know. If the run has ended meanwhile, the
 * node may still have been in the world that ended it. */
static void notify_state(struct seats *c, struct run_fx *fx, struct seat_node *node,
                         const struct run_msg *m)
{
    static const char evicted[] = "the others went on while this node was away";
    const struct participant *seat = rdzv_state_find(&c->state, &node->node);

    if (c->state.closed) {
        if (m->world > 0 && m->round < c->closed_round)
            seats_news(fx, node, WIRE_EVICTED, 0, evicted);
        seats_news(fx, node, WIRE_CLOSED, 0, "");
    } else if (m->world > 0 && unaware(c, node, m->round) && !outdated(c, node))
        seats_notify_rank(c, fx, node);
    else if (m->world > 0 && !(rdzv_in(seat, RDZV_PLACES) && c->state.complete &&
                               c->state.round == m->round))
        seats_news(fx, node, WIRE_EVICTED, 0, evicted);
    else if (node->member && c->losses)
        seats_news(fx, node, WIRE_LOST, 0, "a node was lost while this one was away");
    else if (node->member && c->waiting_notified)
        seats_news(fx, node, WIRE_WAITING, c->waiting_notified, "");
}

/* Whether the node that set the settings is gone, and no other node is here. The
 * settings may have been a mistake, so the next node may bring its own. */
static bool is_deserted(const struct seats *c)
{
    return c->nodes.count == 0 && rdzv_count(&c->state, RDZV_PLACES) == 0 &&
           rdzv_count(&c->state, RDZV_BEATS) == 0;
}

/* All nodes are judged by what they agreed on. All of a run may
 * lose their connections at once, and more than that are not nodes: without a secret
 * anybody may join and vanish, as often as a network allows, and ask to be waited
 * for. */
static void use_silence(struct seats *c)
{
    const uint64_t nodes = (uint64_t)MAX_OF(c->settings.max_nodes, 0);

    c->sessions->away_most =
        (size_t)MIN_OF(MAX_OF(2 * nodes, SESSION_AWAY_LEAST), (uint64_t)AWAY_MOST);
    c->sessions->silent_us =
        MIN_OF(rdzv_session_dead_after_ms(&c->settings), MONO_NEVER / 4000) * 1000;
}

/* 0, or why the node cannot take part. The first node's settings count for all; err has
 * how others differ, as the node that brings them sees it, even if it may take part. */
static int take_settings(struct seats *c, const struct run_msg *m,
                         struct muster_error *err)
{
    struct rdzv_settings theirs;
    int rc = rdzv_settings_parse(m->settings, &theirs, err);

    if (rc < 0)
        return rc;
    if (buf_len(&c->settings_text) == 0 || is_deserted(c)) {
        buf_clear(&c->settings_text);
        if (buf_append_span(&c->settings_text, m->settings) < 0)
            return err_nomem(err);
        c->settings = theirs;
        use_silence(c);
        return 0;
    }
    rc = rdzv_settings_compare(&c->settings, m->settings, err);
    if (rc == 0)
        return 0;
    if (!rdzv_settings_nnodes_differ(&c->settings, m->settings)) {
        log_line(c->log, LOG_WARN, AT_RENDEZVOUS, "run '%s': node %.*s: %s", c->run_id,
                 (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
        (void)rdzv_settings_compare(&theirs, buf_span(&c->settings_text), err);
        return 0;
    }
    /* Nodes with a different --nnodes could never agree on when a round is full. The
     * nodes that wait here should know why this one was turned away, but the log need
     * not say it once for each of a hundred such nodes. */
    if (!c->nnodes_logged)
        log_line(c->log, LOG_WARN, AT_RENDEZVOUS, "run '%s': turned node %.*s away: %s",
                 c->run_id, (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p,
                 err->text);
    c->nnodes_logged = true;
    return rdzv_settings_compare(&theirs, buf_span(&c->settings_text), err);
}

/* To us the order of ranks is a number. But torchrun's nodes sort by name, and one of
 * them may complete a round, so the number becomes part of the name. */
static struct rdzv_node name_of(const struct run_msg *m,
                                char ordered[RDZV_ORDERED_SIZE])
{
    struct rdzv_node name = { m->addr, m->pid, m->local_id };

    if (m->order == WIRE_BY_KEY)
        name.addr = rdzv_ordered_addr(m->addr, m->rank_order_key, ordered);
    return name;
}

int seats_may_join(struct seats *c, const struct run_msg *m,
                   const struct run_session *s, struct muster_error *err)
{
    char ordered[RDZV_ORDERED_SIZE], text[128];
    struct rdzv_node name;
    int rc;

    if (m->addr.n == 0 || m->addr.n > RDZV_MAX_ADDR || m->round < -1 ||
        m->round > RDZV_MAX_ROUND)
        return err_set(err, MUSTER_EPROTO,
                       "HELLO with an address of %zu bytes and round %" PRId64,
                       m->addr.n, m->round);
    name = name_of(m, ordered);
    rc = take_settings(c, m, err);
    if (rc < 0)
        return rc;
    const struct seat_node *node = seats_find(c, &name);

    if (node ? node->session == s : !s || !s->seat)
        return 0;
    return err_set(
        err, MUSTER_EEXIST,
        "node '%s' is already connected from another process. Two containers "
        "may have the same host name and pid: give each its own --local-addr",
        rdzv_node_text(&name, text, sizeof text));
}

static int admit_new(struct seats *c, struct run_session *s, const struct run_msg *m,
                     struct now now)
{
    char ordered[RDZV_ORDERED_SIZE];
    const struct rdzv_node name = name_of(m, ordered);
    struct seat_node *node = seat_node_new(c, &name, s);

    if (!node || (can_resume(c, m) && resume(c, node, m, now) < 0))
        return MUSTER_ENOMEM;
    node->nproc = m->flags & MSG_RECORD ? MAX_OF(m->nproc, 0) : 0;
    node->role = mem_strndup((const char *)m->name.p, m->name.n);
    if (!node->role)
        return MUSTER_ENOMEM;
    s->grace_us = MIN_OF(m->grace_ms, MAX_GRACE_MS) * 1000u;
    if (!node->member && !c->state.complete && m->round >= c->state.round &&
        m->round < RDZV_MAX_ROUND) {
        c->state.round = m->round + 1; /* Rounds only grow, even over a restart. */
        c->dirty = true;
    }
    return 0;
}

int seats_hello(struct seats *c, struct run_session *s, const struct run_msg *m,
                struct now now, struct run_fx *fx)
{
    assert(run_session_is_open(s));
    if (!s->seat && admit_new(c, s, m, now) < 0)
        return MUSTER_ENOMEM;
    s->seat->spare = false; /* What we told it may have been lost. */
    notify_state(c, fx, s->seat, m);
    return 0;
}

/* ---- losses, and what else is due with time ---- */

/* These nodes want the next round, but stayed for the sake of nodes that poll. */
static void release_stayers(struct seats *c)
{
    for (struct seat_node *node = c->requests.first; node && c->staying;
         node = node->request_next) {
        struct participant *m = rdzv_state_find(&c->state, &node->node);

        if (!node->stays)
            continue;
        node->stays = false;
        c->staying--;
        if (m)
            seats_move_on(c, m);
    }
    c->reseat = true;
}

static const char *why_lost(const struct run_session *s)
{
    return s->crowded ? "too many others are away, too"
           : s->broke ? "its connection broke"
                      : "it has been silent for too long";
}

void seats_lost(struct seats *c, struct seat_node *node, struct now now,
                struct run_fx *fx)
{
    struct participant *m = rdzv_state_find(&c->state, &node->node);
    char name[128];

    (void)snprintf(fx->text, sizeof fx->text, "node %s is lost: %s",
                   rdzv_node_text(&node->node, name, sizeof name),
                   why_lost(node->session));
    seats_request_end(c, node);
    if (m)
        seats_lose(c, fx, m, LOG_WARN, AT_ECHO, fx->text);
    seat_node_remove(c, node);
    seats_settle(c, fx, now);
}

uint64_t seats_gone(struct seats *c, struct seat_node *node, bool hung_up,
                    struct now now, struct run_fx *fx)
{
    const bool seated = rdzv_state_find(&c->state, &node->node) || node->request;
    const uint64_t grace_ms = node->session->grace_us / 1000;

    if (seated && !node->ends && !(c->state.closed && hung_up))
        c->awaits_until_ms = now.mono_ms + MAX_OF(grace_ms, REDIAL_MS);
    if (seats_unsettled(c, node, now))
        return c->settled_by_ms * 1000;
    /* A node without a seat has nothing to come back for. */
    if (!seated) {
        seat_node_remove(c, node);
        seats_settle(c, fx, now);
    }
    return 0;
}

void seats_timer(struct seats *c, struct now now, struct run_fx *fx)
{
    if (c->resume_by_ms <= now.mono_ms) {
        c->resume_by_ms = MONO_NEVER;
        (void)snprintf(fx->text, sizeof fx->text,
                       "%zu of %" PRId64 " nodes came back after the host's restart",
                       rdzv_count(&c->state, RDZV_PLACES), c->resume_world);
        seats_notify_members(c, fx, WIRE_LOST, 0, fx->text);
        return;
    }
    if (c->torch_nodes)
        seats_expire_torch_nodes(c, fx, now);
    if (c->staying && now.mono_ms >= c->settled_by_ms)
        release_stayers(c);
    seats_notify_gathered(c, fx, now);
    seats_settle(c, fx, now);
}

uint64_t seats_deadline(const struct seats *c)
{
    uint64_t by = MIN_OF(c->last_call_by_ms, c->resume_by_ms);

    by = MIN_OF(by, c->gathered_due_ms);
    if (c->staying)
        by = MIN_OF(by, c->settled_by_ms);
    if (c->torch_nodes)
        by = MIN_OF(by, c->torch_due_ms);
    return by;
}

/* ---- the step ---- */

bool seats_message(struct seats *c, struct seat_node *node, const struct run_msg *m,
                   struct now now, struct run_fx *fx)
{
    switch (m->kind) {
    case MSG_JOIN:
        if (on_join(c, node, fx, m, now) < 0)
            fx->no_memory = true;
        return true;
    case MSG_LEAVE:
        on_leave(c, node, fx, now);
        return true;
    case MSG_STORE:
        if (m->where.n == 0 || m->where.n > STORE_HOST_MAX || m->port == 0)
            run_drop(fx, node->session->peer,
                     "STORE without an address, or a long one");
        else if (seats_store(c, fx, node, m, now) < 0)
            fx->no_memory = true;
        return true;
    case MSG_CLOSE:
        node->ends = true;
        if (!c->state.closed)
            seats_close_run(c, fx);
        else
            seats_news(fx, node, WIRE_CLOSED, 0, "");
        return true;
    default:
        return false;
    }
}

/* Any event may complete a round, so there must be room to sort the nodes. */
int seats_prepare(struct seats *c)
{
    return seats_reserve_order(c, rdzv_count(&c->state, RDZV_BEATS) +
                                      rdzv_count(&c->state, RDZV_PLACES) + 1);
}

void seats_check(const struct seats *c)
{
    assert(c->state.round >= 0);
    assert(!c->state.closed || !c->requests.first); /* They were refused. */
    assert(!c->state.complete || c->last_call_by_ms == MONO_NEVER);
    assert(c->staying <= c->nodes.count);
    assert(!c->requests.first == !c->requests.last);
    assert(!c->all.first == (c->nodes.count == 0));
    assert(!c->held || (c->state.complete && c->ranked));
    (void)c;
}

/* ---- new and free ---- */

struct seats *seats_new(struct span run_id, struct sessions *sessions,
                        const struct log *log)
{
    struct seats *c = mem_calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    if (!c->run_id) {
        mem_free(c);
        return NULL;
    }
    c->log = log;
    c->sessions = sessions;
    rdzv_settings_init(&c->settings, 1, 1);
    rdzv_state_init(&c->state);
    map_init(&c->nodes, 0);
    buf_init(&c->settings_text, WIRE_MAX);
    buf_init(&c->view, SIZE_MAX);
    c->last_call_by_ms = c->resume_by_ms = c->torch_due_ms = MONO_NEVER;
    c->closed_round = -1;
    c->gathered_due_ms = MONO_NEVER;
    c->gathered_pause_ms = GATHERED_FIRST_MS;
    c->dirty = true;
    return c;
}

void seats_free(struct seats *c)
{
    if (!c)
        return;
    c->sessions->silent_us = SESSION_SILENT_US;
    while (c->all.first)
        seat_node_remove(c, c->all.first);
    map_fini(&c->nodes);
    mem_free(c->order);
    rdzv_state_fini(&c->state);
    buf_fini(&c->settings_text);
    buf_fini(&c->view);
    for (size_t i = 0; i < ARRAY_LEN(c->stores); i++)
        mem_free(c->stores[i].host);
    mem_free(c->run_id);
    mem_free(c);
}

void seats_on_round(struct seats *c, void (*cb)(void *ctx, int64_t round), void *ctx)
{
    c->on_round = cb;
    c->on_round_ctx = ctx;
}

size_t seats_nodes(const struct seats *c)
{
    return c->nodes.count;
}

int64_t seats_round(const struct seats *c)
{
    return c->state.round;
}

bool seats_closed(const struct seats *c)
{
    return c->state.closed;
}

uint64_t seats_awaits_until_ms(const struct seats *c)
{
    return c->awaits_until_ms;
}

bool seats_over(const struct seats *c)
{
    return c->state.closed || (c->nodes.count == 0 && c->torch_nodes == 0);
}
