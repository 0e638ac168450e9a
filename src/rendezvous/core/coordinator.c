/* coordinator.c - see coordinator.h: what nodes say, and what they are told; HELLO;
 * losses and deadlines. Seats are in coordinator_seats.c. */
#include "rendezvous/core/coordinator.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/coordinator_int.h"
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

/* Room before anything changes. No step tells one node_session more than JOINED or
 * REFUSED, WAITING twice, SPARE, LOST (one loss a step, see lose_one),
 * CLOSED. It grows by half, so that n nodes that come one by one do not move it n
 * times, and is given back when a crowd is gone. */
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

/* Any event may complete a round, and then it is too late to run out of memory. */
int coordinator_reserve_order(struct coordinator *h, size_t count)
{
    struct participant **order;

    if (h->order_size >= count)
        return 0;
    count += count / 2;
    order = mem_realloc_array(h->order, count, sizeof(struct participant *));
    if (!order)
        return MUSTER_ENOMEM;
    h->order = order;
    h->order_size = count;
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
    if (to->lost_by_ms != MONO_NEVER)
        return; /* Told what it missed when it comes back. */
    assert(fx->count < fx->size);
    fx->items[fx->count++] = (struct coordinator_effect){ .kind = COORDINATOR_SEND,
                                                          .peer = to->peer,
                                                          .msg = msg };
}

static void coordinator_refuse(struct coordinator *h, struct coordinator_fx *fx,
                               struct node_session *w, int code, const char *text)
{
    coordinator_request_end(h, w);
    coordinator_send(fx, w,
                     (struct coord_msg){
                         .kind = COORD_REFUSED, .code = code, .text = span_str(text) });
}

/* ---- messages ---- */

static void refuse_closed(struct coordinator *h, struct coordinator_fx *fx,
                          struct node_session *w)
{
    const struct participant *m = rdzv_state_find(&h->state, &w->node);

    if (rdzv_in(m, RDZV_SPARES))
        coordinator_refuse(h, fx, w, MUSTER_EGRACEFUL,
                           "the run ended without this spare node being needed");
    else
        coordinator_refuse(
            h, fx, w, MUSTER_ECLOSED,
            "the rendezvous is closed: the run has ended; use a new run id");
}

void coordinator_close_run(struct coordinator *h, struct coordinator_fx *fx)
{
    struct node_session *next;

    h->state.closed = true;
    if (h->closed_round < 0)
        h->closed_round = h->state.round;
    h->last_call_by_ms = MONO_NEVER;
    h->dirty = true;
    h->touched = true;
    for (struct node_session *w = h->requests.first; w; w = next) {
        next = w->request_next;
        refuse_closed(h, fx, w);
    }
    for (const struct node_session *w = h->heard.first; w; w = w->next)
        coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_CLOSED });
}

/* Whether nodes that poll have yet to look at the round that is complete: a node that
 * leaves before they have would make the world that they see smaller. */
static bool coordinator_unsettled(const struct coordinator *h,
                                  const struct node_session *w, struct now now)
{
    return h->torch_nodes && h->state.complete && now.mono_ms < h->settled_by_ms &&
           rdzv_in(rdzv_state_find(&h->state, &w->node), RDZV_PLACES);
}

/* A node repeats its last JOIN after a reconnect, since the answer may be lost. */
static bool repeated(const struct node_session *w, int64_t number)
{
    return number == w->joins && (w->request || w->member);
}

/* The answer to its JOIN was lost, and since then a member of that round was, too: told
 * now, its world would be another one than the others were told. So it joins anew. */
static bool outdated(const struct coordinator *h, const struct node_session *w)
{
    return w->member && rdzv_count(&h->state, RDZV_PLACES) != h->world;
}

static int on_join(struct coordinator *h, struct node_session *w,
                   struct coordinator_fx *fx, int64_t number, struct now now)
{
    struct participant *m;

    if ((repeated(w, number) || w->request) && !outdated(h, w)) {
        if (w->member)
            coordinator_notify_rank(h, fx, w);
        /* What the others were told since: said before the rank, it means nothing. */
        if (w->member && h->waiting_notified)
            coordinator_send(fx, w,
                             (struct coord_msg){ .kind = COORD_WAITING,
                                                 .count = h->waiting_notified });
        coordinator_notify_spare(h, fx, w);
        return 0;
    }
    if (h->state.closed) {
        w->joins = number;
        refuse_closed(h, fx, w);
        return 0;
    }
    m = rdzv_state_put(&h->state, &w->node, RDZV_BEATS);
    if (!m)
        return MUSTER_ENOMEM;
    w->joins = number;
    w->ends = false;
    m->beat_us = now.wall_us;
    h->touched = true;
    w->member = w->spare = false;
    coordinator_request_begin(h, w);
    if (coordinator_unsettled(h, w, now)) {
        w->stays = true;
        h->staying++;
        return 0;
    }
    coordinator_move_on(h, m);
    coordinator_seat_one(h, fx, w, now);
    coordinator_settle(h, fx, now);
    return 0;
}

static void on_leave(struct coordinator *h, struct node_session *w,
                     struct coordinator_fx *fx, struct now now)
{
    struct participant *m = rdzv_state_find(&h->state, &w->node);
    char name[128];

    coordinator_request_end(h, w);
    w->ends = true;
    if (m) {
        (void)snprintf(fx->text, sizeof fx->text, "node %s has left",
                       rdzv_node_text(&w->node, name, sizeof name));
        coordinator_lose(h, fx, m, TRACE_INFO, fx->text);
    }
    coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_LEFT });
    coordinator_settle(h, fx, now);
}

/* ---- HELLO: a node is new, comes back within its grace, or finds that this is not the
 * coordinator that it knew ---- */

#define MAX_GRACE_MS 60000u

/* A member of a round that this host does not know: we are the restarted host of a run
 * that goes on. Its members come back one by one; those that have not within the
 * keep-alive bound are lost. */
static int resume(struct coordinator *h, struct node_session *w,
                  const struct coord_msg *m, struct now now)
{
    struct participant *place = rdzv_state_put(&h->state, &w->node, RDZV_BEATS);

    assert(m->rank >= 0 && m->rank < m->world && m->round <= RDZV_MAX_ROUND);
    if (!place || !rdzv_state_put(&h->state, &w->node, RDZV_PLACES))
        return MUSTER_ENOMEM;
    place->rank = m->rank;
    place->beat_us = now.wall_us;
    h->state.round = m->round;
    h->state.complete = true;
    h->resume_world = m->world;
    if (h->resume_by_ms == MONO_NEVER)
        h->resume_by_ms = now.mono_ms + rdzv_dead_after_ms(&h->settings);
    if (rdzv_count(&h->state, RDZV_PLACES) >= (size_t)m->world)
        h->resume_by_ms = MONO_NEVER;
    w->member = true;
    h->touched = h->dirty = true;
    trace(h->trace, TRACE_INFO,
          "rendezvous '%s': rank %" PRId64 " of round %" PRId64
          " is back, %zu of %" PRId64 " are",
          h->run_id, m->rank, m->round, rdzv_count(&h->state, RDZV_PLACES), m->world);
    return 0;
}

/* Two that say they are the same rank: the first one is believed. */
static bool rank_is_taken(const struct coordinator *h, int64_t rank)
{
    for (const struct participant *m = rdzv_first(&h->state, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (m->rank == rank)
            return true;
    }
    return false;
}

static bool can_resume(const struct coordinator *h, const struct coord_msg *m)
{
    if (m->round < 0 || m->rank < 0 || m->rank >= m->world ||
        m->world > h->settings.max_nodes)
        return false;
    if (!h->touched)
        return m->round >= h->state.round;
    return h->resume_by_ms != MONO_NEVER && h->state.round == m->round &&
           h->resume_world == m->world && !rank_is_taken(h, m->rank);
}

static void notify_evicted_one(struct coordinator_fx *fx, const struct node_session *w)
{
    coordinator_send(
        fx, w,
        (struct coord_msg){
            .kind = COORD_EVICTED,
            .text = span_str("the others went on while this node was away") });
}

/* What a node that was away must know. If the run has ended meanwhile, it may still
 * have been in the world that ended it. */
static void notify_state(struct coordinator *h, struct coordinator_fx *fx,
                         const struct node_session *w, const struct coord_msg *m)
{
    const struct participant *seat = rdzv_state_find(&h->state, &w->node);

    coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_WELCOME });
    if (h->state.closed) {
        if (m->world > 0 && m->round < h->closed_round)
            notify_evicted_one(fx, w);
        coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_CLOSED });
    } else if (m->world > 0 && !(rdzv_in(seat, RDZV_PLACES) && h->state.complete &&
                                 h->state.round == m->round))
        notify_evicted_one(fx, w);
    else if (w->member && h->losses)
        coordinator_send(
            fx, w,
            (struct coord_msg){
                .kind = COORD_LOST,
                .text = span_str("a node was lost while this one was away") });
    else if (w->member && h->waiting_notified)
        coordinator_send(
            fx, w,
            (struct coord_msg){ .kind = COORD_WAITING, .count = h->waiting_notified });
}

/* Whoever set the settings is gone, and nobody else is there: they may have been a
 * mistake, which the next one need not repeat. */
static bool is_deserted(const struct coordinator *h)
{
    return h->node_sessions.count == 0 && rdzv_count(&h->state, RDZV_PLACES) == 0 &&
           rdzv_count(&h->state, RDZV_BEATS) == 0;
}

struct settings_before {
    bool replaced;
    struct rdzv_settings settings;
    struct buf text; /* owned if replaced */
};

static void settings_keep(struct settings_before *before)
{
    if (before->replaced)
        buf_fini(&before->text);
}

static void settings_put_back(struct coordinator *h, struct settings_before *before)
{
    if (!before->replaced)
        return;
    buf_fini(&h->settings_text);
    h->settings = before->settings;
    h->settings_text = before->text;
}

/* before: what counted until now, to be put back if the node cannot be taken in. */
static int take_settings(struct coordinator *h, const struct coord_msg *m,
                         struct settings_before *before, struct muster_error *err)
{
    struct rdzv_settings theirs;
    struct buf text;
    int rc = rdzv_settings_parse(m->settings, &theirs, err);

    if (rc < 0)
        return rc;
    if (buf_len(&h->settings_text) == 0 || is_deserted(h)) {
        buf_init(&text, COORD_MAX);
        if (buf_append_span(&text, m->settings) < 0)
            return MUSTER_ENOMEM;
        *before = (struct settings_before){ true, h->settings, h->settings_text };
        h->settings = theirs;
        h->settings_text = text;
        return 0;
    }
    rc = rdzv_settings_compare(&h->settings, m->settings, err);
    if (rc == 0)
        return 0;
    if (!rdzv_settings_nnodes_differ(&h->settings, m->settings)) {
        trace(h->trace, TRACE_WARN, "run '%s': node %.*s: %s", h->run_id,
              (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
        return 0;
    }
    /* The two could never agree when a round is full. The nodes that wait here should
     * know why, but not be told once for each of a hundred such nodes. */
    if (!h->nnodes_logged)
        trace(h->trace, TRACE_WARN, "run '%s': turned node %.*s away: %s", h->run_id,
              (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
    h->nnodes_logged = true;
    return rdzv_settings_compare(&theirs, buf_span(&h->settings_text), err);
}

static void attach(struct coordinator *h, struct node_session *w, uint32_t peer)
{
    assert(peer < h->by_peer_size && !h->by_peer[peer]);
    coordinator_gone_end(h, w);
    w->spare = false; /* What it was told may have been lost. */
    w->peer = peer;
    h->by_peer[peer] = w;
}

/* The peer is not a node_session: it is told, and may go. */
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

/* Back within its grace, or its old connection is half-open. */
static void come_back(struct coordinator *h, const struct coordinator_event *ev,
                      struct coordinator_fx *fx, struct node_session *w)
{
    if (w->lost_by_ms == MONO_NEVER) {
        h->by_peer[w->peer] = NULL;
        (void)snprintf(fx->text, sizeof fx->text,
                       "the node has come back over another connection");
        coordinator_drop(fx, w->peer);
    }
    attach(h, w, ev->peer);
    node_session_hear(h, w, ev->now);
    notify_state(h, fx, w, ev->msg);
}

static int come_new(struct coordinator *h, const struct coordinator_event *ev,
                    struct coordinator_fx *fx, const struct rdzv_node *node)
{
    const struct coord_msg *m = ev->msg;
    struct node_session *w = node_session_new(h, node);

    if (!w)
        return MUSTER_ENOMEM;
    w->nonce = m->nonce;
    w->grace_ms = MIN_OF(m->grace_ms, MAX_GRACE_MS);
    node_session_heard(h, w, ev->now);
    attach(h, w, ev->peer);
    if (can_resume(h, m) && resume(h, w, m, ev->now) < 0) {
        node_session_remove(h, w);
        return MUSTER_ENOMEM;
    }
    if (!w->member && !h->state.complete && m->round >= h->state.round &&
        m->round < RDZV_MAX_ROUND) {
        h->state.round =
            m->round + 1; /* Rounds only grow, over a host's restart too. */
        h->dirty = true;
    }
    notify_state(h, fx, w, m);
    return 0;
}

static int coordinator_hello(struct coordinator *h, const struct coordinator_event *ev,
                             struct coordinator_fx *fx, struct muster_error *err)
{
    const struct coord_msg *m = ev->msg;
    struct rdzv_node node = { m->addr, m->pid, m->local_id };
    char ordered[RDZV_ORDERED_SIZE];
    struct settings_before before = { .replaced = false };
    struct node_session *w;
    int rc;

    if (m->addr.n == 0 || m->addr.n > RDZV_MAX_ADDR || m->round < -1 ||
        m->round > RDZV_MAX_ROUND) {
        (void)snprintf(fx->text, sizeof fx->text,
                       "HELLO with an address of %zu bytes and round %" PRId64,
                       m->addr.n, m->round);
        coordinator_drop(fx, ev->peer);
        return 0;
    }
    /* The order of ranks is a value here; but torchrun's nodes sort by name, and one of
     * them may be the one that completes a round. */
    if (m->order == COORD_BY_KEY)
        node.addr = rdzv_ordered_addr(m->addr, m->rank_order_key, ordered);
    rc = coordinator_reserve_peer(h, ev->peer);
    if (rc == 0)
        rc = take_settings(h, m, &before, err);
    if (rc == MUSTER_ENOMEM)
        return err_nomem(err);
    w = rc == 0 ? coordinator_find(h, &node) : NULL;
    if (w && w->nonce != m->nonce) {
        char name[128];

        rc =
            err_set(err, MUSTER_EEXIST,
                    "node '%s' is already here as another process: two containers with "
                    "the same host name and pid? give each its own --local-addr",
                    rdzv_node_text(&node, name, sizeof name));
    }
    if (rc < 0)
        turn_away(fx, ev->peer, rc, err);
    else if (w)
        come_back(h, ev, fx, w);
    else if (come_new(h, ev, fx, &node) < 0) {
        settings_put_back(h, &before);
        return err_nomem(err);
    }
    settings_keep(&before);
    return 0;
}

/* ---- losses, and what else is due with time ---- */

/* Those who want the next round, and stayed for the sake of nodes that poll. */
static void leave_stayed(struct coordinator *h)
{
    for (struct node_session *w = h->requests.first; w && h->staying;
         w = w->request_next) {
        struct participant *m = rdzv_state_find(&h->state, &w->node);

        if (!w->stays)
            continue;
        w->stays = false;
        h->staying--;
        if (m)
            coordinator_move_on(h, m);
    }
    h->reseat = true;
}

static void lose_session(struct coordinator *h, struct node_session *w,
                         struct coordinator_fx *fx, const char *why)
{
    struct participant *m = rdzv_state_find(&h->state, &w->node);
    char name[128];

    (void)snprintf(fx->text, sizeof fx->text, "node %s is lost: %s",
                   rdzv_node_text(&w->node, name, sizeof name), why);
    coordinator_request_end(h, w);
    if (m)
        coordinator_lose(h, fx, m, TRACE_WARN, fx->text);
    if (w->lost_by_ms == MONO_NEVER)
        coordinator_drop(fx, w->peer);
    node_session_remove(h, w);
}

static void coordinator_gone(struct coordinator *h, const struct coordinator_event *ev,
                             struct coordinator_fx *fx)
{
    struct node_session *w = node_session_of(h, ev->peer);
    uint64_t by_ms;

    if (!w)
        return;
    /* One that has no seat has nothing to come back for, and costs nothing. */
    const bool seated = rdzv_state_find(&h->state, &w->node) || w->request;

    by_ms = ev->now.mono_ms + (seated ? w->grace_ms : 0);
    if (seated && !w->ends && !(h->state.closed && ev->hung_up))
        h->awaits_until_ms = ev->now.mono_ms + MAX_OF(w->grace_ms, REDIAL_MS);
    if (coordinator_unsettled(h, w, ev->now))
        by_ms = MAX_OF(by_ms, h->settled_by_ms);
    h->by_peer[ev->peer] = NULL;
    coordinator_gone_begin(h, w, by_ms);
    if (by_ms <= ev->now.mono_ms) {
        lose_session(h, w, fx, "its connection broke");
        coordinator_settle(h, fx, ev->now);
    }
}

/* One loss at a time: each may have to be told to every other node, and the texts of
 * two would share one buffer. More are due at once. */
static bool lose_one(struct coordinator *h, struct coordinator_fx *fx, struct now now)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&h->settings);
    struct node_session *oldest = h->heard.first;

    if (oldest && now.mono_ms - oldest->heard_ms >= dead_ms) {
        lose_session(h, oldest, fx, "it has been silent for too long");
        return true;
    }
    if (h->gone.first && h->gone.first->lost_by_ms <= now.mono_ms) {
        lose_session(h, h->gone.first, fx, "its connection broke");
        return true;
    }
    return false;
}

static void coordinator_timer(struct coordinator *h, struct coordinator_fx *fx,
                              struct now now)
{
    if (lose_one(h, fx, now)) {
        coordinator_settle(h, fx, now);
        return;
    }
    if (h->resume_by_ms <= now.mono_ms) {
        h->resume_by_ms = MONO_NEVER;
        (void)snprintf(fx->text, sizeof fx->text,
                       "%zu of %" PRId64 " nodes came back after the host's restart",
                       rdzv_count(&h->state, RDZV_PLACES), h->resume_world);
        coordinator_notify_members(
            h, fx,
            (struct coord_msg){ .kind = COORD_LOST, .text = span_str(fx->text) });
        return;
    }
    if (h->torch_nodes)
        coordinator_expire_torch_nodes(h, fx, now);
    if (h->staying && now.mono_ms >= h->settled_by_ms)
        leave_stayed(h);
    coordinator_notify_gathered(h, fx, now);
    coordinator_settle(h, fx, now);
}

uint64_t coordinator_deadline(const struct coordinator *h)
{
    uint64_t by = MIN_OF(h->last_call_by_ms, h->resume_by_ms);

    by = MIN_OF(by, h->gathered_due_ms);
    if (h->staying)
        by = MIN_OF(by, h->settled_by_ms);
    if (h->torch_nodes)
        by = MIN_OF(by, h->torch_due_ms);
    if (h->heard.first)
        by = MIN_OF(by, h->heard.first->heard_ms + rdzv_dead_after_ms(&h->settings));
    if (h->gone.first)
        by = MIN_OF(by, h->gone.first->lost_by_ms);
    return by;
}

/* ---- the step ---- */

static int on_msg(struct coordinator *h, const struct coordinator_event *ev,
                  struct coordinator_fx *fx, struct muster_error *err)
{
    struct node_session *w = node_session_of(h, ev->peer);

    if (!w && ev->msg->kind == COORD_HELLO)
        return coordinator_hello(h, ev, fx, err);
    if (w && ev->msg->kind != COORD_JOIN)
        node_session_hear(h, w, ev->now);
    switch (w ? ev->msg->kind : COORD_HELLO) {
    case COORD_JOIN:
        if (on_join(h, w, fx, ev->msg->count, ev->now) < 0)
            return err_nomem(err);
        node_session_hear(h, w, ev->now);
        return 0;
    case COORD_LEAVE:
        on_leave(h, w, fx, ev->now);
        return 0;
    case COORD_CLOSE:
        w->ends = true;
        if (!h->state.closed)
            coordinator_close_run(h, fx);
        else
            coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_CLOSED });
        return 0;
    case COORD_ALIVE: /* So that it knows of us what we know of it. */
        coordinator_send(fx, w, (struct coord_msg){ .kind = COORD_ALIVE });
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

static int coordinator_take(struct coordinator *h, const struct coordinator_event *ev,
                            struct coordinator_fx *fx, struct muster_error *err)
{
    if (fx_reserve(fx, 6 * (h->node_sessions.count + 1) + 8) < 0 ||
        coordinator_reserve_order(h, rdzv_count(&h->state, RDZV_BEATS) +
                                         rdzv_count(&h->state, RDZV_PLACES) + 1) < 0)
        return err_nomem(err);
    switch (ev->kind) {
    case COORDINATOR_MSG:
        return on_msg(h, ev, fx, err);
    case COORDINATOR_GONE:
        coordinator_gone(h, ev, fx);
        return 0;
    case COORDINATOR_SEEN:
        return coordinator_seen(h, ev, fx, err);
    case COORDINATOR_TIMER:
        coordinator_timer(h, fx, ev->now);
        return 0;
    }
    return 0;
}

/* What holds between steps, whoever said what. */
static void check(const struct coordinator *h, const struct coordinator_fx *fx)
{
    assert(fx->count <= fx->size);
    assert(h->state.round >= 0);
    assert(!h->state.closed || !h->requests.first); /* They were refused. */
    assert(!h->state.complete || h->last_call_by_ms == MONO_NEVER);
    assert(h->staying <= h->node_sessions.count);
    assert(!h->requests.first == !h->requests.last);
    assert(!h->heard.first == (h->node_sessions.count == 0));
    (void)h;
    (void)fx;
}

int coordinator_step(struct coordinator *h, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, struct muster_error *err)
{
    struct muster_error mine = { 0 };
    const int rc = coordinator_take(h, ev, fx, err ? err : &mine);

    check(h, fx);
    return rc;
}

/* ---- new and free ---- */

struct coordinator *coordinator_new(struct span run_id, const struct trace *trace)
{
    struct coordinator *h = mem_calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    if (!h->run_id) {
        mem_free(h);
        return NULL;
    }
    h->trace = trace;
    rdzv_settings_init(&h->settings, 1, 1);
    rdzv_state_init(&h->state);
    map_init(&h->node_sessions, 0);
    buf_init(&h->settings_text, COORD_MAX);
    buf_init(&h->view, SIZE_MAX);
    h->last_call_by_ms = h->resume_by_ms = h->torch_due_ms = MONO_NEVER;
    h->closed_round = -1;
    h->gathered_due_ms = MONO_NEVER;
    h->gathered_pause_ms = GATHERED_FIRST_MS;
    h->dirty = true;
    return h;
}

void coordinator_free(struct coordinator *h)
{
    if (!h)
        return;
    while (h->heard.first)
        node_session_remove(h, h->heard.first);
    map_fini(&h->node_sessions);
    mem_free(h->by_peer);
    mem_free(h->order);
    rdzv_state_fini(&h->state);
    buf_fini(&h->settings_text);
    buf_fini(&h->view);
    mem_free(h->run_id);
    mem_free(h);
}

size_t coordinator_nodes(const struct coordinator *h)
{
    return h->node_sessions.count;
}

int64_t coordinator_round(const struct coordinator *h)
{
    return h->state.round;
}

bool coordinator_closed(const struct coordinator *h)
{
    return h->state.closed;
}

uint64_t coordinator_awaits_until_ms(const struct coordinator *h)
{
    return h->awaits_until_ms;
}

bool coordinator_over(const struct coordinator *h)
{
    return h->state.closed || (h->node_sessions.count == 0 && h->torch_nodes == 0);
}
