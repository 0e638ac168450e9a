/* coordinator.c - see coordinator.h: the messages of nodes and the answers to them,
 * HELLO, losses and deadlines. Seats are in coordinator_seats.c. */
#include "job/core/coordinator.h"
#include "base/err.h"
#include "base/mem.h"
#include "job/core/coordinator_int.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* ---- effects ---- */

void coordinator_fx_init(struct coordinator_fx *fx)
{
    *fx = (struct coordinator_fx){ 0 };
}

void coordinator_fx_fini(struct coordinator_fx *fx)
{
    if (!fx)
        return;
    mem_free(fx->items);
    coordinator_fx_init(fx);
}

/* Reserves room before anything changes. No step sends one node more than JOINED or
 * REFUSED, WAITING twice, SPARE, LOST (one loss a step, see lose_one) and CLOSED. The
 * room grows by half, so that n nodes that come one by one do not move it n times, and
 * it shrinks again when a crowd has gone. */
static int fx_reserve(struct coordinator_fx *fx, size_t count)
{
    struct coordinator_effect *items;
    const bool enough = fx->size >= count;

    fx->count = 0;
    if (enough && fx->size / 8 <= count + 1000)
        return 0;
    count += count / 2;
    items = mem_realloc_array(fx->items, count, sizeof *items);
    if (!items)
        return enough ? 0 : MUSTER_ENOMEM;
    fx->items = items;
    fx->size = count;
    return 0;
}

/* Any event may complete a round, and by then running out of memory could not be
 * undone. */
int coordinator_reserve_order(struct coordinator *c, size_t count)
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

/* fx->text says why. */
static void coordinator_drop(struct coordinator_fx *fx, uint32_t peer)
{
    assert(fx->count < fx->size);
    fx->items[fx->count++] = (struct coordinator_effect){
        .kind = COORDINATOR_DROP, .peer = peer, .msg.text = span_str(fx->text)
    };
}

void coordinator_send(struct coordinator_fx *fx, const struct node_session *to,
                      struct coord_msg msg)
{
    if (!session_is_open(to->session, LINE_SEATS))
        return; /* It is told what it missed when it comes back. */
    assert(fx->count < fx->size);
    fx->items[fx->count++] = (struct coordinator_effect){
        .kind = COORDINATOR_SEND, .peer = to->session->peer[LINE_SEATS], .msg = msg
    };
}

static void coordinator_refuse(struct coordinator *c, struct coordinator_fx *fx,
                               struct node_session *session, int code, const char *text)
{
    coordinator_request_end(c, session);
    coordinator_send(fx, session,
                     (struct coord_msg){
                         .kind = COORD_REFUSED, .code = code, .text = span_str(text) });
}

/* ---- messages ---- */

static void refuse_closed(struct coordinator *c, struct coordinator_fx *fx,
                          struct node_session *session)
{
    const struct participant *m = rdzv_state_find(&c->state, &session->node);

    if (rdzv_in(m, RDZV_SPARES))
        coordinator_refuse(c, fx, session, MUSTER_EGRACEFUL,
                           "the run ended without this spare node being needed");
    else
        coordinator_refuse(
            c, fx, session, MUSTER_ECLOSED,
            "the rendezvous is closed: the run has ended; use a new run id");
}

void coordinator_close_run(struct coordinator *c, struct coordinator_fx *fx)
{
    struct node_session *next;

    c->state.closed = true;
    if (c->closed_round < 0)
        c->closed_round = c->state.round;
    c->last_call_by_ms = MONO_NEVER;
    c->dirty = true;
    c->touched = true;
    for (struct node_session *session = c->requests.first; session; session = next) {
        next = session->request_next;
        refuse_closed(c, fx, session);
    }
    for (const struct node_session *session = c->all.first; session;
         session = session->next)
        coordinator_send(fx, session, (struct coord_msg){ .kind = COORD_CLOSED });
}

/* Whether torchrun's nodes, which poll, may not have seen the complete round yet: a
 * node that leaves before they have would make the world that they see smaller. */
static bool coordinator_unsettled(const struct coordinator *c,
                                  const struct node_session *session, struct now now)
{
    return c->torch_nodes && c->state.complete && now.mono_ms < c->settled_by_ms &&
           rdzv_in(rdzv_state_find(&c->state, &session->node), RDZV_PLACES);
}

/* A node repeats its last JOIN after a reconnect, since the answer may have been
 * lost. */
static bool repeated(const struct node_session *session, int64_t number)
{
    return number == session->joins && (session->request || session->member);
}

/* The answer to the node's JOIN was lost, and a node of that round has been lost since.
 * If we answered now, its world would differ from the one that the others were told, so
 * it joins again. */
static bool outdated(const struct coordinator *c, const struct node_session *session)
{
    return session->member && rdzv_count(&c->state, RDZV_PLACES) != c->world;
}

static int on_join(struct coordinator *c, struct node_session *session,
                   struct coordinator_fx *fx, int64_t number, struct now now)
{
    struct participant *m;

    if ((repeated(session, number) || session->request) && !outdated(c, session)) {
        if (session->member)
            coordinator_notify_rank(c, fx, session);
        /* What the others have been told since. Before the rank it would be ignored. */
        if (session->member && c->waiting_notified)
            coordinator_send(fx, session,
                             (struct coord_msg){ .kind = COORD_WAITING,
                                                 .count = c->waiting_notified });
        coordinator_notify_spare(c, fx, session);
        return 0;
    }
    if (c->state.closed) {
        session->joins = number;
        refuse_closed(c, fx, session);
        return 0;
    }
    m = rdzv_state_put(&c->state, &session->node, RDZV_BEATS);
    if (!m)
        return MUSTER_ENOMEM;
    session->joins = number;
    session->ends = false;
    m->beat_us = now.wall_us;
    c->touched = true;
    session->member = session->spare = false;
    coordinator_request_begin(c, session);
    if (coordinator_unsettled(c, session, now)) {
        session->stays = true;
        c->staying++;
        return 0;
    }
    coordinator_move_on(c, m);
    coordinator_seat_one(c, fx, session, now);
    coordinator_settle(c, fx, now);
    return 0;
}

static void on_leave(struct coordinator *c, struct node_session *session,
                     struct coordinator_fx *fx, struct now now)
{
    struct participant *m = rdzv_state_find(&c->state, &session->node);
    char name[128];

    coordinator_request_end(c, session);
    session->ends = true;
    if (m) {
        (void)snprintf(fx->text, sizeof fx->text, "node %s has left",
                       rdzv_node_text(&session->node, name, sizeof name));
        coordinator_lose(c, fx, m, TRACE_INFO, fx->text);
    }
    coordinator_send(fx, session, (struct coord_msg){ .kind = COORD_LEFT });
    coordinator_settle(c, fx, now);
}

/* ---- HELLO: the node is new, or comes back within its grace, or knew this run under a
 * coordinator that is no more ---- */

#define MAX_GRACE_MS 60000u
#define LOST_BROKE   "its connection broke"
#define AWAY_MOST    65536u

static void lose_session(struct coordinator *c, struct node_session *session,
                         struct coordinator_fx *fx, const char *why);

/* The node is in a round that this coordinator does not know, so the host was restarted
 * while the run went on. The nodes of the round come back one by one, and those that
 * have not done so within the keep-alive bound are lost. */
static int resume(struct coordinator *c, struct node_session *session,
                  const struct coord_msg *m, struct now now)
{
    struct participant *place = rdzv_state_put(&c->state, &session->node, RDZV_BEATS);

    assert(m->rank >= 0 && m->rank < m->world && m->round <= RDZV_MAX_ROUND);
    if (!place || !rdzv_state_put(&c->state, &session->node, RDZV_PLACES))
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
    session->member = true;
    c->touched = c->dirty = true;
    trace(c->trace, TRACE_INFO,
          "rendezvous '%s': rank %" PRId64 " of round %" PRId64
          " is back; %zu of %" PRId64 " nodes are here now",
          c->run_id, m->rank, m->round, rdzv_count(&c->state, RDZV_PLACES), m->world);
    return 0;
}

/* If two nodes claim the same rank, the first one is believed. */
static bool rank_is_taken(const struct coordinator *c, int64_t rank)
{
    for (const struct participant *m = rdzv_first(&c->state, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (m->rank == rank)
            return true;
    }
    return false;
}

static bool can_resume(const struct coordinator *c, const struct coord_msg *m)
{
    if (m->round < 0 || m->rank < 0 || m->rank >= m->world ||
        m->world > c->settings.max_nodes)
        return false;
    if (!c->touched)
        return m->round >= c->state.round;
    return c->resume_by_ms != MONO_NEVER && c->state.round == m->round &&
           c->resume_world == m->world && !rank_is_taken(c, m->rank);
}

static void notify_evicted_one(struct coordinator_fx *fx,
                               const struct node_session *session)
{
    coordinator_send(
        fx, session,
        (struct coord_msg){
            .kind = COORD_EVICTED,
            .text = span_str("the others went on while this node was away") });
}

/* Tells a node that was away what it must know. If the run has ended meanwhile, the
 * node may still have been in the world that ended it. */
static void notify_state(struct coordinator *c, struct coordinator_fx *fx,
                         const struct node_session *session, const struct coord_msg *m)
{
    const struct participant *seat = rdzv_state_find(&c->state, &session->node);

    coordinator_send(fx, session, (struct coord_msg){ .kind = COORD_WELCOME });
    if (c->state.closed) {
        if (m->world > 0 && m->round < c->closed_round)
            notify_evicted_one(fx, session);
        coordinator_send(fx, session, (struct coord_msg){ .kind = COORD_CLOSED });
    } else if (m->world > 0 && !(rdzv_in(seat, RDZV_PLACES) && c->state.complete &&
                                 c->state.round == m->round))
        notify_evicted_one(fx, session);
    else if (session->member && c->losses)
        coordinator_send(
            fx, session,
            (struct coord_msg){
                .kind = COORD_LOST,
                .text = span_str("a node was lost while this one was away") });
    else if (session->member && c->waiting_notified)
        coordinator_send(
            fx, session,
            (struct coord_msg){ .kind = COORD_WAITING, .count = c->waiting_notified });
}

/* Whether the node that set the settings is gone, and no other node is here. The
 * settings may have been a mistake, so the next node may bring its own. */
static bool is_deserted(const struct coordinator *c)
{
    return c->node_sessions.count == 0 && rdzv_count(&c->state, RDZV_PLACES) == 0 &&
           rdzv_count(&c->state, RDZV_BEATS) == 0;
}

struct settings_before {
    bool replaced;
    struct rdzv_settings settings;
    struct buf text; /* owned if replaced */
};

/* All lines of the run's nodes are judged by what the nodes agreed on. All of a run may
 * lose their connections at once, and more than that are not nodes: without a secret
 * anybody may join and vanish, as often as a network allows, and ask to be waited
 * for. */
static void use_silence(struct coordinator *c)
{
    const uint64_t nodes = (uint64_t)MAX_OF(c->settings.max_nodes, 0);

    c->sessions->away_most =
        (size_t)MIN_OF(MAX_OF(2 * nodes, SESSION_AWAY_LEAST), (uint64_t)AWAY_MOST);
    c->sessions->silent_us =
        MIN_OF(rdzv_session_dead_after_ms(&c->settings), MONO_NEVER / 4000) * 1000;
}

static void settings_commit(struct settings_before *before)
{
    if (before->replaced)
        buf_fini(&before->text);
}

static void settings_roll_back(struct coordinator *c, struct settings_before *before)
{
    if (!before->replaced)
        return;
    buf_fini(&c->settings_text);
    c->settings = before->settings;
    use_silence(c);
    c->settings_text = before->text;
}

/* before: the settings so far, which are put back if the node cannot be taken in. */
static int take_settings(struct coordinator *c, const struct coord_msg *m,
                         struct settings_before *before, struct muster_error *err)
{
    struct rdzv_settings theirs;
    struct buf text;
    int rc = rdzv_settings_parse(m->settings, &theirs, err);

    if (rc < 0)
        return rc;
    if (buf_len(&c->settings_text) == 0 || is_deserted(c)) {
        buf_init(&text, COORD_MAX);
        if (buf_append_span(&text, m->settings) < 0)
            return MUSTER_ENOMEM;
        *before = (struct settings_before){ true, c->settings, c->settings_text };
        c->settings = theirs;
        use_silence(c);
        c->settings_text = text;
        return 0;
    }
    rc = rdzv_settings_compare(&c->settings, m->settings, err);
    if (rc == 0)
        return 0;
    if (!rdzv_settings_nnodes_differ(&c->settings, m->settings)) {
        trace(c->trace, TRACE_WARN, "run '%s': node %.*s: %s", c->run_id,
              (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
        return 0;
    }
    /* Nodes with a different --nnodes could never agree on when a round is full. The
     * nodes that wait here should know why this one was turned away, but the log need
     * not say it once for each of a hundred such nodes. */
    if (!c->nnodes_logged)
        trace(c->trace, TRACE_WARN, "run '%s': turned node %.*s away: %s", c->run_id,
              (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
    c->nnodes_logged = true;
    return rdzv_settings_compare(&theirs, buf_span(&c->settings_text), err);
}

static uint64_t us_of(struct now now)
{
    return now.mono_ms * 1000;
}

static void attach(struct coordinator *c, struct node_session *session, uint32_t peer,
                   struct now now)
{
    session->spare = false; /* What we told it may have been lost. */
    session_open(c->sessions, session->session, LINE_SEATS, peer, us_of(now));
}

/* Refuses a peer that has no session: it is told why, and may go. */
static void turn_away(struct coordinator_fx *fx, uint32_t peer, int code,
                      const struct muster_error *err)
{
    (void)snprintf(fx->text, sizeof fx->text, "%.500s", err->text);
    fx->items[fx->count++] = (struct coordinator_effect){
        .kind = COORDINATOR_SEND,
        .peer = peer,
        .msg = { .kind = COORD_REFUSED, .code = code, .text = span_str(fx->text) }
    };
}

/* The node is back within its grace, or its old connection is half-open. */
static void readmit(struct coordinator *c, const struct coordinator_event *ev,
                    struct coordinator_fx *fx, struct node_session *session)
{
    if (session_is_open(session->session, LINE_SEATS)) {
        (void)snprintf(fx->text, sizeof fx->text,
                       "the node has come back over another connection");
        coordinator_drop(fx, session->session->peer[LINE_SEATS]);
    }
    attach(c, session, ev->peer, ev->now);
    notify_state(c, fx, session, ev->msg);
}

static int admit_new(struct coordinator *c, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, const struct rdzv_node *node,
                     struct session *s)
{
    const struct coord_msg *m = ev->msg;
    struct node_session *session = node_session_new(c, node, s);

    if (!session) {
        session_release(c->sessions, s);
        return MUSTER_ENOMEM;
    }
    if (can_resume(c, m) && resume(c, session, m, ev->now) < 0) {
        node_session_remove(c, session);
        return MUSTER_ENOMEM;
    }
    s->grace_us = MIN_OF(m->grace_ms, MAX_GRACE_MS) * 1000u;
    attach(c, session, ev->peer, ev->now);
    if (!session->member && !c->state.complete && m->round >= c->state.round &&
        m->round < RDZV_MAX_ROUND) {
        c->state.round = m->round + 1; /* Rounds only grow, even over a restart. */
        c->dirty = true;
    }
    notify_state(c, fx, session, m);
    return 0;
}

static int coordinator_hello(struct coordinator *c, const struct coordinator_event *ev,
                             struct coordinator_fx *fx, struct muster_error *err)
{
    const struct coord_msg *m = ev->msg;
    struct rdzv_node node = { m->addr, m->pid, m->local_id };
    char ordered[RDZV_ORDERED_SIZE];
    struct settings_before before = { .replaced = false };
    const struct session *other;
    struct node_session *session;
    struct session *s;
    int rc;

    if (m->addr.n == 0 || m->addr.n > RDZV_MAX_ADDR || m->round < -1 ||
        m->round > RDZV_MAX_ROUND) {
        (void)snprintf(fx->text, sizeof fx->text,
                       "HELLO with an address of %zu bytes and round %" PRId64,
                       m->addr.n, m->round);
        coordinator_drop(fx, ev->peer);
        return 0;
    }
    /* To us the order of ranks is a number. But torchrun's nodes sort by name, and one
     * of them may complete a round, so the number becomes part of the name. */
    if (m->order == COORD_BY_KEY)
        node.addr = rdzv_ordered_addr(m->addr, m->rank_order_key, ordered);
    rc = take_settings(c, m, &before, err);
    if (rc == MUSTER_ENOMEM)
        return err_nomem(err);
    session = rc == 0 ? coordinator_find(c, &node) : NULL;
    other = sessions_find(c->sessions, m->nonce);
    if (rc == 0 &&
        (session ? session->session != other : other && other->part[LINE_SEATS])) {
        char name[128];

        rc = err_set(
            err, MUSTER_EEXIST,
            "node '%s' is already connected from another process. Two containers "
            "may have the same host name and pid: give each its own --local-addr",
            rdzv_node_text(&node, name, sizeof name));
    }
    if (rc == 0 && session && other->owed[LINE_SEATS]) { /* It is lost already. */
        lose_session(c, session, fx, LOST_BROKE);
        coordinator_settle(c, fx, ev->now);
        session = NULL;
    }
    if (rc < 0)
        turn_away(fx, ev->peer, rc, err);
    else if (!(s = sessions_meet(c->sessions, m->nonce, ev->peer)) ||
             (!session && admit_new(c, ev, fx, &node, s) < 0)) {
        settings_roll_back(c, &before);
        return err_nomem(err);
    } else if (session)
        readmit(c, ev, fx, session);
    settings_commit(&before);
    return 0;
}

/* ---- losses, and what else is due with time ---- */

/* These nodes want the next round, but stayed for the sake of nodes that poll. */
static void release_stayers(struct coordinator *c)
{
    for (struct node_session *session = c->requests.first; session && c->staying;
         session = session->request_next) {
        struct participant *m = rdzv_state_find(&c->state, &session->node);

        if (!session->stays)
            continue;
        session->stays = false;
        c->staying--;
        if (m)
            coordinator_move_on(c, m);
    }
    c->reseat = true;
}

static void lose_session(struct coordinator *c, struct node_session *session,
                         struct coordinator_fx *fx, const char *why)
{
    struct participant *m = rdzv_state_find(&c->state, &session->node);
    char name[128];

    (void)snprintf(fx->text, sizeof fx->text, "node %s is lost: %s",
                   rdzv_node_text(&session->node, name, sizeof name), why);
    coordinator_request_end(c, session);
    if (m)
        coordinator_lose(c, fx, m, TRACE_ECHO, fx->text);
    if (session_is_open(session->session, LINE_SEATS)) {
        coordinator_drop(fx, session->session->peer[LINE_SEATS]);
        session_close(c->sessions, session->session, LINE_SEATS, 0, 0);
    }
    node_session_remove(c, session);
}

/* One loss at a time: each may have to be told to every other node, and the texts of
 * two would share one buffer. The next one is due at once. */
static bool lose_one(struct coordinator *c, struct coordinator_fx *fx, struct now now)
{
    struct session *s;

    sessions_judge(c->sessions, us_of(now));
    s = sessions_owed(c->sessions, LINE_SEATS);
    if (!s)
        return false;
    lose_session(c, s->part[LINE_SEATS], fx,
                 s->crowded ? "too many others are away, too"
                 : s->broke ? LOST_BROKE
                            : "it has been silent for too long");
    return true;
}

static void coordinator_gone(struct coordinator *c, const struct coordinator_event *ev,
                             struct coordinator_fx *fx)
{
    struct node_session *session = node_session_of(c, ev->peer);

    if (!session)
        return;
    const bool seated = rdzv_state_find(&c->state, &session->node) || session->request;
    const uint64_t grace_ms = session->session->grace_us / 1000;

    if (seated && !session->ends && !(c->state.closed && ev->hung_up))
        c->awaits_until_ms = ev->now.mono_ms + MAX_OF(grace_ms, REDIAL_MS);
    session_close(c->sessions, session->session, LINE_SEATS, us_of(ev->now),
                  coordinator_unsettled(c, session, ev->now) ? c->settled_by_ms * 1000
                                                             : 0);
    /* A node without a seat has nothing to come back for, and losing it costs
     * nothing. */
    if (seated && sessions_deadline(c->sessions, LINE_SEATS) > us_of(ev->now))
        return;
    if (!seated)
        lose_session(c, session, fx, LOST_BROKE);
    else
        (void)lose_one(c, fx, ev->now);
    coordinator_settle(c, fx, ev->now);
}

static void coordinator_timer(struct coordinator *c, struct coordinator_fx *fx,
                              struct now now)
{
    if (lose_one(c, fx, now)) {
        coordinator_settle(c, fx, now);
        return;
    }
    if (c->resume_by_ms <= now.mono_ms) {
        c->resume_by_ms = MONO_NEVER;
        (void)snprintf(fx->text, sizeof fx->text,
                       "%zu of %" PRId64 " nodes came back after the host's restart",
                       rdzv_count(&c->state, RDZV_PLACES), c->resume_world);
        coordinator_notify_members(
            c, fx,
            (struct coord_msg){ .kind = COORD_LOST, .text = span_str(fx->text) });
        return;
    }
    if (c->torch_nodes)
        coordinator_expire_torch_nodes(c, fx, now);
    if (c->staying && now.mono_ms >= c->settled_by_ms)
        release_stayers(c);
    coordinator_notify_gathered(c, fx, now);
    coordinator_settle(c, fx, now);
}

uint64_t coordinator_deadline(const struct coordinator *c)
{
    uint64_t by = MIN_OF(c->last_call_by_ms, c->resume_by_ms);

    by = MIN_OF(by, c->gathered_due_ms);
    if (c->staying)
        by = MIN_OF(by, c->settled_by_ms);
    if (c->torch_nodes)
        by = MIN_OF(by, c->torch_due_ms);
    const uint64_t loss_us = sessions_deadline(c->sessions, LINE_SEATS);

    return loss_us == MONO_NEVER ? by : MIN_OF(by, (loss_us + 999) / 1000);
}

/* ---- the step ---- */

static int on_msg(struct coordinator *c, const struct coordinator_event *ev,
                  struct coordinator_fx *fx, struct muster_error *err)
{
    struct node_session *session = node_session_of(c, ev->peer);

    if (!session && ev->msg->kind == COORD_HELLO &&
        !sessions_of(c->sessions, LINE_RECORD, ev->peer))
        return coordinator_hello(c, ev, fx, err);
    if (session)
        session_heard(c->sessions, session->session, us_of(ev->now));
    switch (session ? ev->msg->kind : COORD_HELLO) {
    case COORD_JOIN:
        if (on_join(c, session, fx, ev->msg->count, ev->now) < 0)
            return err_nomem(err);
        return 0;
    case COORD_LEAVE:
        on_leave(c, session, fx, ev->now);
        return 0;
    case COORD_CLOSE:
        session->ends = true;
        if (!c->state.closed)
            coordinator_close_run(c, fx);
        else
            coordinator_send(fx, session, (struct coord_msg){ .kind = COORD_CLOSED });
        return 0;
    case COORD_ALIVE: /* The echo shows the node that we are alive. */
        coordinator_send(fx, session, (struct coord_msg){ .kind = COORD_ALIVE });
        return 0;
    case COORD_HELLO:
    case COORD_WELCOME:
    case COORD_JOINED:
    case COORD_GATHERED:
    case COORD_REFUSED:
    case COORD_LEFT:
    case COORD_CLOSED:
    case COORD_WAITING:
    case COORD_SPARE:
    case COORD_LOST:
    case COORD_EVICTED:
    case COORD_KIND_COUNT:
        break;
    }
    (void)snprintf(fx->text, sizeof fx->text, "%s message out of turn",
                   coord_kind_name(ev->msg->kind));
    coordinator_drop(fx, ev->peer);
    return 0;
}

static int coordinator_take(struct coordinator *c, const struct coordinator_event *ev,
                            struct coordinator_fx *fx, struct muster_error *err)
{
    if (fx_reserve(fx, 6 * (c->node_sessions.count + 1) + 8) < 0 ||
        coordinator_reserve_order(c, rdzv_count(&c->state, RDZV_BEATS) +
                                         rdzv_count(&c->state, RDZV_PLACES) + 1) < 0)
        return err_nomem(err);
    switch (ev->kind) {
    case COORDINATOR_MSG:
        return on_msg(c, ev, fx, err);
    case COORDINATOR_GONE:
        coordinator_gone(c, ev, fx);
        return 0;
    case COORDINATOR_SEEN:
        return coordinator_seen(c, ev, fx, err);
    case COORDINATOR_TIMER:
        coordinator_timer(c, fx, ev->now);
        return 0;
    }
    return 0;
}

/* What holds between steps, whatever the peers sent. */
static void check(const struct coordinator *c, const struct coordinator_fx *fx)
{
    assert(fx->count <= fx->size);
    assert(c->state.round >= 0);
    assert(!c->state.closed || !c->requests.first); /* They were refused. */
    assert(!c->state.complete || c->last_call_by_ms == MONO_NEVER);
    assert(c->staying <= c->node_sessions.count);
    assert(!c->requests.first == !c->requests.last);
    assert(!c->all.first == (c->node_sessions.count == 0));
    (void)c;
    (void)fx;
}

int coordinator_step(struct coordinator *c, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, struct muster_error *err)
{
    struct muster_error mine = { 0 };
    const int rc = coordinator_take(c, ev, fx, err ? err : &mine);

    check(c, fx);
    return rc;
}

/* ---- new and free ---- */

struct coordinator *coordinator_new(struct span run_id, struct sessions *sessions,
                                    const struct trace *trace)
{
    struct coordinator *c = mem_calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    if (!c->run_id) {
        mem_free(c);
        return NULL;
    }
    c->trace = trace;
    c->sessions = sessions;
    rdzv_settings_init(&c->settings, 1, 1);
    rdzv_state_init(&c->state);
    map_init(&c->node_sessions, 0);
    buf_init(&c->settings_text, COORD_MAX);
    buf_init(&c->view, SIZE_MAX);
    c->last_call_by_ms = c->resume_by_ms = c->torch_due_ms = MONO_NEVER;
    c->closed_round = -1;
    c->gathered_due_ms = MONO_NEVER;
    c->gathered_pause_ms = GATHERED_FIRST_MS;
    c->dirty = true;
    return c;
}

void coordinator_free(struct coordinator *c)
{
    if (!c)
        return;
    c->sessions->silent_us = SESSION_SILENT_US;
    while (c->all.first) {
        session_close(c->sessions, c->all.first->session, LINE_SEATS, 0, 0);
        node_session_remove(c, c->all.first);
    }
    map_fini(&c->node_sessions);
    mem_free(c->order);
    rdzv_state_fini(&c->state);
    buf_fini(&c->settings_text);
    buf_fini(&c->view);
    mem_free(c->run_id);
    mem_free(c);
}

size_t coordinator_nodes(const struct coordinator *c)
{
    return c->node_sessions.count;
}

int64_t coordinator_round(const struct coordinator *c)
{
    return c->state.round;
}

bool coordinator_closed(const struct coordinator *c)
{
    return c->state.closed;
}

uint64_t coordinator_awaits_until_ms(const struct coordinator *c)
{
    return c->awaits_until_ms;
}

bool coordinator_over(const struct coordinator *c)
{
    return c->state.closed || (c->node_sessions.count == 0 && c->torch_nodes == 0);
}
