/* host.c - the host of a run: what its nodes say, and what they are told; see host.h.
 * HELLO is in host_hello.c, silence and time in host_time.c, seats in host_seats.c. */
#include "rdzv/host.h"

#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "rdzv/host_int.h"

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
 * WAITING twice, SPARE, LOST (one loss a step, see host_time.c), CLOSED. It grows by
 * half, so that n nodes that come one by one do not move it n times. */
static int fx_reserve(struct rdzv_host_fx *fx, size_t count)
{
    struct rdzv_host_effect *items;

    fx->count = 0;
    if (fx->size >= count)
        return 0;
    count += count / 2;
    items = mem_realloc_array(fx->items, count, sizeof *items);
    if (!items)
        return MUSTER_ENOMEM;
    fx->items = items;
    fx->size = count;
    return 0;
}

void host_drop(struct rdzv_host_fx *fx, uint32_t peer)
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
        host_refuse(h, fx, w, MUSTER_ECLOSED,
                    "the rendezvous is closed: the run has ended; use a new run id");
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

bool host_unsettled(const struct rdzv_host *h, const struct holder *w, struct now now)
{
    return h->strangers && h->state.complete && now.mono_ms < h->settled_by_ms &&
           rdzv_in(rdzv_state_find(&h->state, &w->node), RDZV_PLACES);
}

/* A node repeats its last JOIN after a reconnect, since the answer may be lost. */
static bool repeated(const struct holder *w, int64_t number)
{
    return number == w->joins && (w->wish || w->member);
}

/* The answer to its JOIN was lost, and since then a member of that round was, too: told
 * now, its world would be another one than the others were told. So it joins anew. */
static bool outdated(const struct rdzv_host *h, const struct holder *w)
{
    return w->member && rdzv_count(&h->state, RDZV_PLACES) != h->world;
}

static int on_join(struct rdzv_host *h, struct holder *w, struct rdzv_host_fx *fx,
                   int64_t number, struct now now)
{
    struct rdzv_member *m;

    if ((repeated(w, number) || w->wish) && !outdated(h, w)) {
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
    host_wish_begin(h, w);
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
        return host_hello(h, ev, fx, err);
    if (w)
        holder_hear(h, w, ev->now);
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
    host_drop(fx, ev->peer);
    return 0;
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
        host_gone(h, ev, fx);
        return 0;
    case RDZV_HOST_SEEN:
        return host_seen(h, ev, fx, err);
    case RDZV_HOST_TIMER:
        host_timer(h, fx, ev->now);
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
    h->gathered_pause_ms = GATHERED_FIRST_MS;
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

bool rdzv_host_over(const struct rdzv_host *h)
{
    return h->state.closed || (h->holders.count == 0 && h->strangers == 0);
}
