/* host.c - the host of a run: its nodes' messages, their silence, time; see host.h. */
#include "rdzv/host.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "rdzv/host_int.h"

#define MAX_GRACE_MS 60000u

/* ---- holders ---- */

/* Identity as bytes: two numbers, then the address. */
#define KEY_FIXED 16u
#define KEY_MAX   (KEY_FIXED + RDZV_MAX_ADDR)

static struct span identity(uint8_t *key, const struct rdzv_node *n)
{
    put_u64(key, (uint64_t)n->pid);
    put_u64(key + 8, (uint64_t)n->local_id);
    memcpy(key + KEY_FIXED, n->addr.p, n->addr.n);
    return span_of(key, KEY_FIXED + n->addr.n);
}

struct holder *host_find(const struct rdzv_host *h, const struct rdzv_node *node)
{
    uint8_t key[KEY_MAX];
    struct map_link *link;

    if (node->addr.n > RDZV_MAX_ADDR)
        return NULL;
    link = map_get(&h->holders, identity(key, node));
    return link ? CONTAINER_OF(link, struct holder, link) : NULL;
}

static struct holder *holder_of(const struct rdzv_host *h, uint32_t peer)
{
    return peer < h->by_peer_size ? h->by_peer[peer] : NULL;
}

static void heard_unlink(struct rdzv_host *h, struct holder *w)
{
    *(w->prev ? &w->prev->next : &h->heard.first) = w->next;
    *(w->next ? &w->next->prev : &h->heard.last) = w->prev;
    w->prev = w->next = NULL;
}

static void heard_append(struct rdzv_host *h, struct holder *w, struct now now)
{
    w->heard_ms = now.mono_ms;
    w->prev = h->heard.last;
    w->next = NULL;
    *(w->prev ? &w->prev->next : &h->heard.first) = w;
    h->heard.last = w;
}

static void hear(struct rdzv_host *h, struct holder *w, struct now now)
{
    heard_unlink(h, w);
    heard_append(h, w, now);
}

static void wish_begin(struct rdzv_host *h, struct holder *w)
{
    w->wish = true;
    w->wish_prev = h->wishes.last;
    w->wish_next = NULL;
    *(w->wish_prev ? &w->wish_prev->wish_next : &h->wishes.first) = w;
    h->wishes.last = w;
}

void host_wish_end(struct rdzv_host *h, struct holder *w)
{
    if (!w->wish)
        return;
    h->staying -= w->stays;
    w->wish = w->stays = false;
    *(w->wish_prev ? &w->wish_prev->wish_next : &h->wishes.first) = w->wish_next;
    *(w->wish_next ? &w->wish_next->wish_prev : &h->wishes.last) = w->wish_prev;
    w->wish_prev = w->wish_next = NULL;
}

static void gone_begin(struct rdzv_host *h, struct holder *w, uint64_t by_ms)
{
    w->lost_by_ms = by_ms;
    w->gone_next = h->gone;
    h->gone = w;
}

static void gone_end(struct rdzv_host *h, struct holder *w)
{
    struct holder **at = &h->gone;

    if (w->lost_by_ms == MONO_NEVER)
        return;
    while (*at != w)
        at = &(*at)->gone_next;
    *at = w->gone_next;
    w->gone_next = NULL;
    w->lost_by_ms = MONO_NEVER;
}

static void holder_remove(struct rdzv_host *h, struct holder *w)
{
    host_wish_end(h, w);
    heard_unlink(h, w);
    gone_end(h, w);
    if (holder_of(h, w->peer) == w)
        h->by_peer[w->peer] = NULL;
    map_remove(&h->holders, &w->link);
    mem_free(w);
}

static int reserve_peer(struct rdzv_host *h, uint32_t peer)
{
    size_t size = h->by_peer_size ? h->by_peer_size : 64;
    struct holder **by_peer;

    if (peer < h->by_peer_size)
        return 0;
    while (size <= peer)
        size *= 2;
    by_peer = mem_realloc_array(h->by_peer, size, sizeof *by_peer);
    if (!by_peer)
        return MUSTER_ENOMEM;
    memset(by_peer + h->by_peer_size, 0, (size - h->by_peer_size) * sizeof *by_peer);
    h->by_peer = by_peer;
    h->by_peer_size = size;
    return 0;
}

static struct holder *holder_new(struct rdzv_host *h, const struct rdzv_node *node)
{
    struct holder *w;
    uint8_t *key;

    if (map_reserve(&h->holders, 1) < 0)
        return NULL;
    w = mem_calloc(1, sizeof *w + KEY_FIXED + node->addr.n);
    if (!w)
        return NULL;
    key = (uint8_t *)(w + 1);
    w->link.key = identity(key, node);
    w->node = *node;
    w->node.addr.p = key + KEY_FIXED;
    w->lost_by_ms = MONO_NEVER;
    map_add(&h->holders, &w->link);
    return w;
}

/* ---- effects ---- */

void rdzv_host_fx_init(struct rdzv_host_fx *fx)
{
    *fx = (struct rdzv_host_fx){ 0 };
}

void rdzv_host_fx_fini(struct rdzv_host_fx *fx)
{
    if (!fx)
        return;
    mem_free(fx->items);
    rdzv_host_fx_init(fx);
}

/* Room before anything changes. No step tells one holder more than JOINED or REFUSED,
 * WAITING twice, LOST for each of the lost, CLOSED; those that lose many nodes at once
 * go through lose_some, which stops while there is room. */
static int fx_reserve(struct rdzv_host_fx *fx, size_t count)
{
    struct rdzv_host_effect *items;

    fx->count = 0;
    if (fx->size >= count)
        return 0;
    items = mem_realloc_array(fx->items, count, sizeof *items);
    if (!items)
        return MUSTER_ENOMEM;
    fx->items = items;
    fx->size = count;
    return 0;
}

static void drop(struct rdzv_host_fx *fx, uint32_t peer)
{
    assert(fx->count < fx->size);
    fx->items[fx->count++] = (struct rdzv_host_effect){
        .kind = RDZV_HOST_DROP, .peer = peer, .msg.text = span_str(fx->text)
    };
}

void host_send(struct rdzv_host_fx *fx, const struct holder *to, struct hosted_msg msg)
{
    if (to->lost_by_ms != MONO_NEVER)
        return; /* Told what it missed when it comes back. */
    assert(fx->count < fx->size);
    fx->items[fx->count++] = (struct rdzv_host_effect){ .kind = RDZV_HOST_SEND,
                                                        .peer = to->peer,
                                                        .msg = msg };
}

void host_refuse(struct rdzv_host *h, struct rdzv_host_fx *fx, struct holder *w,
                 int code, const char *text)
{
    host_wish_end(h, w);
    host_send(fx, w,
              (struct hosted_msg){
                  .kind = HOSTED_REFUSED, .code = code, .text = span_str(text) });
}

/* ---- messages ---- */

static void refuse_closed(struct rdzv_host *h, struct rdzv_host_fx *fx,
                          struct holder *w)
{
    const struct rdzv_member *m = rdzv_state_find(&h->state, &w->node);

    if (rdzv_in(m, RDZV_SPARES))
        host_refuse(h, fx, w, MUSTER_EGRACEFUL,
                    "the run ended without this spare node being needed");
    else
        host_refuse(h, fx, w, MUSTER_ECLOSED, "the rendezvous is closed");
}

void host_close_run(struct rdzv_host *h, struct rdzv_host_fx *fx)
{
    struct holder *next;

    h->state.closed = true;
    h->last_call_by_ms = MONO_NEVER;
    h->dirty = true;
    h->touched = true;
    for (struct holder *w = h->wishes.first; w; w = next) {
        next = w->wish_next;
        refuse_closed(h, fx, w);
    }
    for (const struct holder *w = h->heard.first; w; w = w->next)
        host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_CLOSED });
}

/* A member of a round that this host does not know: we are the restarted host of a run
 * that goes on. Its members come back one by one; who has not within the keep-alive
 * bound is lost. */
static int resume(struct rdzv_host *h, struct holder *w, const struct hosted_msg *m,
                  struct now now)
{
    struct rdzv_member *place = rdzv_state_put(&h->state, &w->node, RDZV_BEATS);

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

static bool can_resume(const struct rdzv_host *h, const struct hosted_msg *m)
{
    if (m->round < 0 || m->rank < 0 || m->rank >= m->world ||
        m->world > h->settings.max_nodes)
        return false;
    if (!h->touched)
        return m->round >= h->state.round;
    return h->resume_by_ms != MONO_NEVER && h->state.round == m->round;
}

/* What a node that was away must know. */
static void tell_state(struct rdzv_host *h, struct rdzv_host_fx *fx,
                       const struct holder *w, const struct hosted_msg *m)
{
    const struct rdzv_member *seat = rdzv_state_find(&h->state, &w->node);

    host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_WELCOME });
    if (h->state.closed)
        host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_CLOSED });
    else if (m->world > 0 && !(rdzv_in(seat, RDZV_PLACES) && h->state.complete &&
                               h->state.round == m->round))
        host_send(
            fx, w,
            (struct hosted_msg){
                .kind = HOSTED_EVICTED,
                .text = span_str("the others went on while this node was away") });
    else if (w->member && h->waiting_told)
        host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_WAITING, .count = 1 });
}

static int take_settings(struct rdzv_host *h, const struct hosted_msg *m,
                         struct muster_error *err)
{
    struct rdzv_settings theirs;
    int rc = rdzv_settings_parse(m->settings, &theirs, err);

    if (rc < 0)
        return rc;
    if (buf_len(&h->settings_text) == 0) {
        h->settings = theirs;
        return buf_append_span(&h->settings_text, m->settings);
    }
    rc = rdzv_settings_compare(&h->settings, m->settings, err);
    if (rc == 0)
        return 0;
    if (theirs.min_nodes != h->settings.min_nodes ||
        theirs.max_nodes != h->settings.max_nodes)
        return rc; /* Such nodes could never agree when a round is full. */
    trace(h->trace, TRACE_WARN, "rendezvous '%s': node %.*s: %s", h->run_id,
          (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
    return 0;
}

static void attach(struct rdzv_host *h, struct holder *w, uint32_t peer)
{
    gone_end(h, w);
    w->spare = false; /* What it was told may have been lost. */
    w->peer = peer;
    h->by_peer[peer] = w;
}

static int on_hello(struct rdzv_host *h, const struct rdzv_host_event *ev,
                    struct rdzv_host_fx *fx, struct muster_error *err)
{
    const struct hosted_msg *m = ev->msg;
    const struct rdzv_node node = { m->addr, m->pid, m->local_id };
    struct holder *w;
    int rc;

    if (m->addr.n == 0 || m->addr.n > RDZV_MAX_ADDR) {
        (void)snprintf(fx->text, sizeof fx->text, "HELLO with an address of %zu bytes",
                       m->addr.n);
        drop(fx, ev->peer);
        return 0;
    }
    rc = reserve_peer(h, ev->peer);
    if (rc == 0)
        rc = take_settings(h, m, err);
    if (rc == MUSTER_ENOMEM)
        return rc;
    w = rc == 0 ? host_find(h, &node) : NULL;
    if (w && w->nonce != m->nonce) {
        char name[128];

        rc =
            err_set(err, MUSTER_EEXIST,
                    "node '%s' is already here as another process: two containers with "
                    "the same host name and pid? give each its own --local-addr",
                    rdzv_node_text(&node, name, sizeof name));
    }
    if (rc < 0) { /* The peer is no holder: it is told, and may go. */
        (void)snprintf(fx->text, sizeof fx->text, "%.500s", err->text);
        fx->items[fx->count++] = (struct rdzv_host_effect){
            .kind = RDZV_HOST_SEND,
            .peer = ev->peer,
            .msg = { .kind = HOSTED_REFUSED, .code = rc, .text = span_str(fx->text) }
        };
        return 0;
    }
    if (w) { /* Back within its grace, or its old connection is half-open. */
        if (w->lost_by_ms == MONO_NEVER) {
            h->by_peer[w->peer] = NULL;
            (void)snprintf(fx->text, sizeof fx->text,
                           "the node has come back over another connection");
            drop(fx, w->peer);
        }
        attach(h, w, ev->peer);
        hear(h, w, ev->now);
        tell_state(h, fx, w, m);
        return 0;
    }
    w = holder_new(h, &node);
    if (!w)
        return err_nomem(err);
    w->nonce = m->nonce;
    w->order = m->order;
    w->order_key = m->order_key;
    w->grace_ms = MIN_OF(m->grace_ms, MAX_GRACE_MS);
    heard_append(h, w, ev->now);
    attach(h, w, ev->peer);
    if (can_resume(h, m) && resume(h, w, m, ev->now) < 0) {
        holder_remove(h, w);
        return err_nomem(err);
    }
    if (!w->member && !h->state.complete && m->round >= h->state.round &&
        m->round < INT32_MAX) {
        h->state.round =
            m->round + 1; /* Rounds only grow, over a host's restart too. */
        h->dirty = true;
    }
    tell_state(h, fx, w, m);
    return 0;
}

bool host_unsettled(const struct rdzv_host *h, const struct holder *w, struct now now)
{
    return h->strangers && h->state.complete && now.mono_ms < h->settled_by_ms &&
           rdzv_in(rdzv_state_find(&h->state, &w->node), RDZV_PLACES);
}

/* Those who want the next round, and stayed for the sake of nodes that poll. */
static void leave_stayed(struct rdzv_host *h)
{
    for (struct holder *w = h->wishes.first; w && h->staying; w = w->wish_next) {
        struct rdzv_member *m = rdzv_state_find(&h->state, &w->node);

        if (!w->stays)
            continue;
        w->stays = false;
        h->staying--;
        if (m)
            host_leave_place(h, m);
    }
    h->reseat = true;
}

/* A node repeats its last JOIN after a reconnect, since the answer may be lost. */
static bool repeated(const struct holder *w, int64_t number)
{
    return number == w->joins && (w->wish || w->member);
}

static int on_join(struct rdzv_host *h, struct holder *w, struct rdzv_host_fx *fx,
                   int64_t number, struct now now)
{
    struct rdzv_member *m;

    if (repeated(w, number) || w->wish) {
        if (w->member)
            host_tell_rank(h, fx, w);
        host_tell_spare(h, fx, w);
        return 0;
    }
    w->joins = number;
    if (h->state.closed) {
        refuse_closed(h, fx, w);
        return 0;
    }
    m = rdzv_state_put(&h->state, &w->node, RDZV_BEATS);
    if (!m)
        return MUSTER_ENOMEM;
    m->beat_us = now.wall_us;
    h->touched = true;
    w->member = w->spare = false;
    wish_begin(h, w);
    if (host_unsettled(h, w, now)) {
        w->stays = true;
        h->staying++;
        return 0;
    }
    host_leave_place(h, m);
    host_seat_one(h, fx, w, now);
    host_settle(h, fx, now);
    return 0;
}

static void on_leave(struct rdzv_host *h, struct holder *w, struct rdzv_host_fx *fx,
                     struct now now)
{
    struct rdzv_member *m = rdzv_state_find(&h->state, &w->node);
    char name[128];

    host_wish_end(h, w);
    if (m) {
        (void)snprintf(fx->text, sizeof fx->text, "node %s has left",
                       rdzv_node_text(&w->node, name, sizeof name));
        host_lose(h, fx, m, TRACE_INFO, fx->text);
    }
    host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_LEFT });
    host_settle(h, fx, now);
}

static int on_msg(struct rdzv_host *h, const struct rdzv_host_event *ev,
                  struct rdzv_host_fx *fx, struct muster_error *err)
{
    struct holder *w = holder_of(h, ev->peer);

    if (!w && ev->msg->kind == HOSTED_HELLO)
        return on_hello(h, ev, fx, err);
    if (w)
        hear(h, w, ev->now);
    switch (w ? ev->msg->kind : HOSTED_HELLO) {
    case HOSTED_JOIN:
        return on_join(h, w, fx, ev->msg->count, ev->now);
    case HOSTED_LEAVE:
        on_leave(h, w, fx, ev->now);
        return 0;
    case HOSTED_CLOSE:
        if (!h->state.closed)
            host_close_run(h, fx);
        else
            host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_CLOSED });
        return 0;
    case HOSTED_ALIVE:
        return 0;
    case HOSTED_HELLO:
    case HOSTED_WELCOME:
    case HOSTED_JOINED:
    case HOSTED_GATHERED:
    case HOSTED_REFUSED:
    case HOSTED_LEFT:
    case HOSTED_CLOSED:
    case HOSTED_WAITING:
    case HOSTED_SPARE:
    case HOSTED_LOST:
    case HOSTED_EVICTED:
    case HOSTED_KIND_COUNT:
        break;
    }
    (void)snprintf(fx->text, sizeof fx->text, "%s message out of turn",
                   hosted_kind_name(ev->msg->kind));
    drop(fx, ev->peer);
    return 0;
}

/* ---- loss and time ---- */

static void lose_holder(struct rdzv_host *h, struct holder *w, struct rdzv_host_fx *fx,
                        const char *why)
{
    struct rdzv_member *m = rdzv_state_find(&h->state, &w->node);
    char name[128];

    (void)snprintf(fx->text, sizeof fx->text, "node %s is lost: %s",
                   rdzv_node_text(&w->node, name, sizeof name), why);
    host_wish_end(h, w);
    if (m)
        host_lose(h, fx, m, TRACE_WARN, fx->text);
    if (w->lost_by_ms == MONO_NEVER)
        drop(fx, w->peer);
    holder_remove(h, w);
}

static void on_gone(struct rdzv_host *h, const struct rdzv_host_event *ev,
                    struct rdzv_host_fx *fx)
{
    struct holder *w = holder_of(h, ev->peer);
    uint64_t by_ms;

    if (!w)
        return;
    by_ms = ev->now.mono_ms + w->grace_ms;
    if (host_unsettled(h, w, ev->now))
        by_ms = MAX_OF(by_ms, h->settled_by_ms);
    h->by_peer[ev->peer] = NULL;
    gone_begin(h, w, by_ms);
    if (by_ms <= ev->now.mono_ms) {
        lose_holder(h, w, fx, "its connection broke");
        host_settle(h, fx, ev->now);
    }
}

/* One loss at a time: each may have to be told to every other node, and the texts of
 * two would share one buffer. More are due at once. */
static bool lose_one(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now)
{
    const uint64_t dead_ms = rdzv_dead_after_ms(&h->settings);
    struct holder *oldest = h->heard.first;

    if (oldest && now.mono_ms - oldest->heard_ms >= dead_ms) {
        lose_holder(h, oldest, fx, "it has been silent for too long");
        return true;
    }
    for (struct holder *w = h->gone; w; w = w->gone_next) {
        if (w->lost_by_ms <= now.mono_ms) {
            lose_holder(h, w, fx, "its connection broke");
            return true;
        }
    }
    return false;
}

static void on_timer(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now)
{
    if (lose_one(h, fx, now)) {
        host_settle(h, fx, now);
        return;
    }
    if (h->resume_by_ms <= now.mono_ms) {
        h->resume_by_ms = MONO_NEVER;
        (void)snprintf(fx->text, sizeof fx->text,
                       "%zu of %" PRId64 " nodes came back after the host's restart",
                       rdzv_count(&h->state, RDZV_PLACES), h->resume_world);
        host_tell_members(
            h, fx,
            (struct hosted_msg){ .kind = HOSTED_LOST, .text = span_str(fx->text) });
        return;
    }
    if (h->strangers)
        host_expire_strangers(h, fx, now);
    if (h->staying && now.mono_ms >= h->settled_by_ms)
        leave_stayed(h);
    host_tell_gathered(h, fx, now);
    host_settle(h, fx, now);
}

uint64_t rdzv_host_deadline(const struct rdzv_host *h)
{
    uint64_t by = MIN_OF(h->last_call_by_ms, h->resume_by_ms);

    by = MIN_OF(by, h->gathered_due_ms);
    if (h->staying)
        by = MIN_OF(by, h->settled_by_ms);
    if (h->strangers)
        by = MIN_OF(by, h->strangers_due_ms);
    if (h->heard.first)
        by = MIN_OF(by, h->heard.first->heard_ms + rdzv_dead_after_ms(&h->settings));
    for (const struct holder *w = h->gone; w; w = w->gone_next)
        by = MIN_OF(by, w->lost_by_ms);
    return by;
}

int rdzv_host_step(struct rdzv_host *h, const struct rdzv_host_event *ev,
                   struct rdzv_host_fx *fx, struct muster_error *err)
{
    struct muster_error mine = { 0 };

    if (!err)
        err = &mine;
    if (fx_reserve(fx, 6 * (h->holders.count + 1) + 8) < 0)
        return err_nomem(err);
    switch (ev->kind) {
    case RDZV_HOST_MSG:
        return on_msg(h, ev, fx, err);
    case RDZV_HOST_GONE:
        on_gone(h, ev, fx);
        return 0;
    case RDZV_HOST_SEEN:
        return host_seen(h, ev, fx, err);
    case RDZV_HOST_TIMER:
        on_timer(h, fx, ev->now);
        return 0;
    }
    return 0;
}

/* ---- new and free ---- */

struct rdzv_host *rdzv_host_new(struct span run_id, const struct trace *trace)
{
    struct rdzv_host *h = mem_calloc(1, sizeof *h);

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
    map_init(&h->holders, 0);
    buf_init(&h->settings_text, HOSTED_MAX);
    buf_init(&h->view, SIZE_MAX);
    h->last_call_by_ms = h->resume_by_ms = h->strangers_due_ms = MONO_NEVER;
    h->gathered_due_ms = MONO_NEVER;
    h->dirty = true;
    return h;
}

void rdzv_host_free(struct rdzv_host *h)
{
    if (!h)
        return;
    while (h->heard.first)
        holder_remove(h, h->heard.first);
    map_fini(&h->holders);
    mem_free(h->by_peer);
    rdzv_state_fini(&h->state);
    buf_fini(&h->settings_text);
    buf_fini(&h->view);
    mem_free(h->run_id);
    mem_free(h);
}

size_t rdzv_host_nodes(const struct rdzv_host *h)
{
    return h->holders.count;
}

int64_t rdzv_host_round(const struct rdzv_host *h)
{
    return h->state.round;
}

bool rdzv_host_closed(const struct rdzv_host *h)
{
    return h->state.closed;
}
