/* etcd_net.c - HTTP between nodes and members of an etcd cluster; see etcd.h. A request
 * that was sent may arrive after its node has given up. */
#include <assert.h>

#include "base/err.h"
#include "base/mem.h"
#include "sim/etcd.h"

#define CONNECT_MS 3000u

enum back { BACK_ANSWER, BACK_LINE, BACK_BROKEN, BACK_REFUSED, BACK_TIMEOUT };

static uint64_t delay(struct sim *s)
{
    const struct sim_config *c = &s->cfg;

    return c->delay_us + (c->jitter_us ? rng_below(&s->rng, c->jitter_us) : 0);
}

/* Nothing passes to or from a node until its cut is over. */
static uint64_t arrival(const struct sim_node *n)
{
    struct sim *s = n->sim;

    return MAX_OF(s->t, n->cut_t) + delay(s);
}

static struct sim_event *call_event(struct sim_call *c, uint64_t t,
                                    enum sim_event_kind kind, int what)
{
    struct sim_event *ev = sim_at(c->node->sim, t, kind);

    ev->call = c;
    ev->node = c->node->index;
    ev->boot = c->boot;
    ev->what = what;
    c->refs++;
    return ev;
}

/* The event's bytes are status and index, then the body. */
static void send_back(struct sim_call *c, enum back what, long status, uint64_t index,
                      struct span body)
{
    struct sim_event *ev;
    uint8_t *copy = mem_alloc(16 + body.n);

    assert(copy);
    put_u64(copy, (uint64_t)status);
    put_u64(copy + 8, index);
    if (body.n)
        memcpy(copy + 16, body.p, body.n);
    c->down_t = MAX_OF(c->down_t, arrival(c->node));
    ev = call_event(c, c->down_t, SIM_EV_ETCD_BACK, (int)what);
    ev->bytes = copy;
    ev->n = 16 + body.n;
}

/* ---- The node's side ---- */

struct sim_call *sim_http(struct sim_node *n, size_t member, struct etcd_msg *m,
                          uint64_t timeout_ms, sim_http_done on_done,
                          sim_http_line on_line, void *ctx)
{
    struct sim *s = n->sim;
    struct sim_call *c = mem_calloc(1, sizeof *c);
    const bool open = n->opened & 1u << member;

    assert(c);
    *c = (struct sim_call){ .node = n,
                            .boot = n->boot,
                            .member = member,
                            .msg = *m,
                            .refs = 1,
                            .on_done = on_done,
                            .on_line = on_line,
                            .ctx = ctx };
    etcd_msg_init(m);
    c->next = n->calls;
    if (c->next)
        c->next->prev_next = &c->next;
    c->prev_next = &n->calls;
    n->calls = c;
    if (!open && n->cut_t > s->t) { /* It cannot even connect. */
        (void)call_event(c, s->t + 1000 * MIN_OF(timeout_ms, (uint64_t)CONNECT_MS),
                         SIM_EV_ETCD_BACK, BACK_TIMEOUT);
        return c;
    }
    c->sent = true;
    (void)call_event(c, arrival(n) + (open ? 0 : 2 * delay(s)), SIM_EV_ETCD_AT, 0);
    if (timeout_ms < UINT64_MAX / 2000)
        (void)call_event(c, s->t + 1000 * timeout_ms, SIM_EV_ETCD_BACK, BACK_TIMEOUT);
    return c;
}

void sim_call_unref(struct sim_call *c)
{
    if (--c->refs)
        return;
    etcd_msg_fini(&c->msg);
    mem_free(c);
}

static void unlink_call(struct sim_call *c)
{
    c->done = true;
    *c->prev_next = c->next;
    if (c->next)
        c->next->prev_next = c->prev_next;
}

void sim_http_cancel(struct sim_call *c)
{
    if (!c || c->done)
        return;
    unlink_call(c);
    c->gone = true; /* A watch ends; a request that the member has accepted is done. */
    sim_call_unref(c);
}

static void finish(struct sim_call *c, int code, const struct etcd_http *http,
                   const char *why)
{
    struct muster_error err = { 0 };

    unlink_call(c);
    if (code < 0) {
        err_set(&err, code, "%s", why);
        c->node->opened &= ~(1u << c->member);
    } else {
        c->node->opened |= 1u << c->member;
    }
    c->gone = true;
    c->on_done(c->ctx, code, http, c->sent, &err);
    sim_call_unref(c);
}

void sim_http_back(struct sim_event *ev)
{
    struct sim_call *c = ev->call;
    struct etcd_http http = { 0 };

    if (c->done || c->boot != c->node->boot || !c->node->alive)
        return;
    switch ((enum back)ev->what) {
    case BACK_ANSWER:
        http = (struct etcd_http){ (long)get_u64(ev->bytes), get_u64(ev->bytes + 8),
                                   span_of(ev->bytes + 16, ev->n - 16) };
        finish(c, 0, &http, NULL);
        return;
    case BACK_LINE:
        c->on_line(c->ctx, span_of(ev->bytes + 16, ev->n - 16));
        return;
    case BACK_BROKEN:
        finish(c, MUSTER_EHANGUP, NULL, "the connection broke");
        return;
    case BACK_REFUSED:
        c->sent = false;
        finish(c, MUSTER_EREFUSED, NULL, "connection refused");
        return;
    case BACK_TIMEOUT:
        finish(c, MUSTER_ETIMEDOUT, NULL, "no answer in time");
        return;
    }
}

void sim_http_reset(struct sim_node *n)
{
    for (struct sim_call *c = n->calls; c; c = c->next) {
        c->gone = true;
        (void)call_event(c, n->sim->t, SIM_EV_ETCD_BACK, BACK_BROKEN);
    }
    n->opened = 0;
}

/* ---- The member's side ---- */

void sim_http_answer(struct sim_call *c, const struct etcd_response *r)
{
    if (!c->gone)
        send_back(c, BACK_ANSWER, r->status, r->index, buf_span(&r->body));
}

void sim_http_push(struct sim_call *c, struct span line)
{
    if (!c->gone)
        send_back(c, BACK_LINE, 200, 0, line);
}

void sim_http_break(struct sim_call *c)
{
    if (!c->gone)
        send_back(c, BACK_BROKEN, 0, 0, (struct span){ NULL, 0 });
    c->gone = true;
}

void sim_http_refuse(struct sim_call *c)
{
    send_back(c, BACK_REFUSED, 0, 0, (struct span){ NULL, 0 });
}
