/* host_hello.c - HELLO: a node introduces itself, is new, comes back within its grace,
 * or finds that the host is not the one it knew. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "rdzv/host_int.h"

#define MAX_GRACE_MS 60000u

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
    else if (w->member && h->losses)
        host_send(fx, w,
                  (struct hosted_msg){
                      .kind = HOSTED_LOST,
                      .text = span_str("a node was lost while this one was away") });
    else if (w->member && h->waiting_told)
        host_send(fx, w, (struct hosted_msg){ .kind = HOSTED_WAITING, .count = 1 });
}

/* Whoever set the settings is gone, and nobody else is there: they may have been a
 * mistake, which the next one need not repeat. */
static bool is_deserted(const struct rdzv_host *h)
{
    return h->holders.count == 0 && rdzv_count(&h->state, RDZV_PLACES) == 0 &&
           rdzv_count(&h->state, RDZV_BEATS) == 0;
}

static int take_settings(struct rdzv_host *h, const struct hosted_msg *m,
                         struct muster_error *err)
{
    struct rdzv_settings theirs;
    int rc = rdzv_settings_parse(m->settings, &theirs, err);

    if (rc < 0)
        return rc;
    if (buf_len(&h->settings_text) == 0 || is_deserted(h)) {
        h->settings = theirs;
        buf_clear(&h->settings_text);
        return buf_append_span(&h->settings_text, m->settings);
    }
    rc = rdzv_settings_compare(&h->settings, m->settings, err);
    if (rc == 0)
        return 0;
    if (theirs.min_nodes != h->settings.min_nodes ||
        theirs.max_nodes != h->settings.max_nodes) /* They could never agree when a
                                                      round is full. "here" is there. */
        return rdzv_settings_compare(&theirs, buf_span(&h->settings_text), err);
    trace(h->trace, TRACE_WARN, "rendezvous '%s': node %.*s: %s", h->run_id,
          (int)MIN_OF(m->addr.n, 200), (const char *)m->addr.p, err->text);
    return 0;
}

static void attach(struct rdzv_host *h, struct holder *w, uint32_t peer)
{
    host_gone_end(h, w);
    w->spare = false; /* What it was told may have been lost. */
    w->peer = peer;
    h->by_peer[peer] = w;
}

/* The peer is no holder: it is told, and may go. */
static void turn_away(struct rdzv_host_fx *fx, uint32_t peer, int code,
                      const struct muster_error *err)
{
    (void)snprintf(fx->text, sizeof fx->text, "%.500s", err->text);
    fx->items[fx->count++] = (struct rdzv_host_effect){
        .kind = RDZV_HOST_SEND,
        .peer = peer,
        .msg = { .kind = HOSTED_REFUSED, .code = code, .text = span_str(fx->text) }
    };
}

/* Back within its grace, or its old connection is half-open. */
static void come_back(struct rdzv_host *h, const struct rdzv_host_event *ev,
                      struct rdzv_host_fx *fx, struct holder *w)
{
    if (w->lost_by_ms == MONO_NEVER) {
        h->by_peer[w->peer] = NULL;
        (void)snprintf(fx->text, sizeof fx->text,
                       "the node has come back over another connection");
        host_drop(fx, w->peer);
    }
    attach(h, w, ev->peer);
    holder_hear(h, w, ev->now);
    tell_state(h, fx, w, ev->msg);
}

static int come_new(struct rdzv_host *h, const struct rdzv_host_event *ev,
                    struct rdzv_host_fx *fx, const struct rdzv_node *node)
{
    const struct hosted_msg *m = ev->msg;
    struct holder *w = holder_new(h, node);

    if (!w)
        return MUSTER_ENOMEM;
    w->nonce = m->nonce;
    w->order = m->order;
    w->order_key = m->order_key;
    w->grace_ms = MIN_OF(m->grace_ms, MAX_GRACE_MS);
    holder_heard(h, w, ev->now);
    attach(h, w, ev->peer);
    if (can_resume(h, m) && resume(h, w, m, ev->now) < 0) {
        holder_remove(h, w);
        return MUSTER_ENOMEM;
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

int host_hello(struct rdzv_host *h, const struct rdzv_host_event *ev,
               struct rdzv_host_fx *fx, struct muster_error *err)
{
    const struct hosted_msg *m = ev->msg;
    const struct rdzv_node node = { m->addr, m->pid, m->local_id };
    struct holder *w;
    int rc;

    if (m->addr.n == 0 || m->addr.n > RDZV_MAX_ADDR) {
        (void)snprintf(fx->text, sizeof fx->text, "HELLO with an address of %zu bytes",
                       m->addr.n);
        host_drop(fx, ev->peer);
        return 0;
    }
    rc = host_reserve_peer(h, ev->peer);
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
    if (rc < 0)
        turn_away(fx, ev->peer, rc, err);
    else if (w)
        come_back(h, ev, fx, w);
    else if (come_new(h, ev, fx, &node) < 0)
        return err_nomem(err);
    return 0;
}
