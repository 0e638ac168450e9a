/* net.c - connections between nodes and the host. Bytes come in order and late; they
 * are held back while a node is cut off, and lost when a side dies. See sim.h. */
#include <assert.h>

#include "base/mem.h"
#include "sim/sim.h"

static uint64_t delay(struct sim *s)
{
    const struct sim_config *c = &s->cfg;

    return c->delay_us + (c->jitter_us ? rng_below(&s->rng, c->jitter_us) : 0);
}

/* When a byte that is sent now arrives: after the delay, and not before a cut is over
 * or earlier bytes have arrived. */
static uint64_t arrival(struct sim_node *n, uint64_t *last_t)
{
    uint64_t t = n->sim->t + delay(n->sim);

    if (n->cut_t > n->sim->t)
        t = n->cut_t + delay(n->sim);
    t = MAX_OF(t, *last_t);
    *last_t = t;
    return t;
}

static struct sim_event *conn_event(struct sim_conn *c, uint64_t t,
                                    enum sim_event_kind kind)
{
    struct sim_event *ev = sim_at(c->node->sim, t, kind);

    ev->conn = c;
    ev->node = c->node_index;
    ev->boot = c->boot;
    c->refs++;
    return ev;
}

static uint32_t free_peer(struct sim_host *h)
{
    size_t i = h->free_from;

    while (i < h->conn_count && h->conns[i])
        i++;
    h->free_from = i + 1;
    if (i == h->conn_room) {
        h->conn_room = h->conn_room ? h->conn_room * 2 : 64;
        h->conns = mem_realloc_array(h->conns, h->conn_room, sizeof *h->conns);
        assert(h->conns);
    }
    if (i == h->conn_count)
        h->conn_count++;
    return (uint32_t)i;
}

struct sim_conn *sim_connect(struct sim_node *n)
{
    struct sim_conn *c = mem_calloc(1, sizeof *c);

    assert(c);
    c->node = n;
    c->node_index = n->index;
    c->boot = n->boot;
    c->refs = 1; /* of the node */
    c->at_node = true;
    buf_init(&c->in_host, SIZE_MAX);
    buf_init(&c->in_node, SIZE_MAX);
    c10d_decoder_init(&c->decoder);
    (void)conn_event(c, arrival(n, &c->down_t), SIM_EV_OPENED);
    return c;
}

void sim_conn_unref(struct sim_conn *c)
{
    if (--c->refs)
        return;
    buf_fini(&c->in_host);
    buf_fini(&c->in_node);
    mem_free(c);
}

/* The node closes its side. The host learns it once bytes get through. */
void sim_hang_up(struct sim_conn *c)
{
    if (!c->at_node)
        return;
    c->at_node = false;
    if (c->at_host)
        (void)conn_event(c, arrival(c->node, &c->up_t), SIM_EV_DROPPED);
    sim_conn_unref(c);
}

/* Closes the host's side. */
static void forget_peer(struct sim_conn *c)
{
    struct sim_host *h = &c->node->sim->host;

    c->at_host = false;
    h->conns[c->peer] = NULL;
    h->free_from = MIN_OF(h->free_from, c->peer);
}

void sim_drop(struct sim_conn *c)
{
    if (!c->at_host)
        return;
    forget_peer(c);
    if (c->at_node)
        (void)conn_event(c, arrival(c->node, &c->down_t), SIM_EV_BROKEN);
    sim_conn_unref(c);
}

static void send(struct sim_conn *c, struct span bytes, enum sim_event_kind kind)
{
    uint64_t *last_t = kind == SIM_EV_UP ? &c->up_t : &c->down_t;
    struct sim *s = c->node->sim;

    while (bytes.n) { /* There is mostly one piece. */
        size_t n = bytes.n;
        uint8_t *copy;
        struct sim_event *ev;

        if (s->cfg.any_cut && rng_below(&s->rng, 8) == 0)
            n = 1 + rng_below(&s->rng, bytes.n);
        copy = mem_memdup(bytes.p, n);
        assert(copy);
        ev = conn_event(c, arrival(c->node, last_t), kind);
        ev->bytes = copy;
        ev->n = n;
        bytes = span_of(bytes.p + n, bytes.n - n);
    }
}

static void sim_send_up(struct sim_conn *c, struct span bytes)
{
    if (c->at_node)
        send(c, bytes, SIM_EV_UP);
}

void sim_send_down(struct sim_conn *c, struct span bytes)
{
    if (c->at_host)
        send(c, bytes, SIM_EV_DOWN);
}

void sim_request(struct sim_conn *c, const struct c10d_request *req)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    sim_must(c10d_encode_request(&b, req, NULL));
    if (c10d_has_reply(req->op)) {
        assert(c->asked_count < ARRAY_LEN(c->asked));
        c->asked[(c->asked_first + c->asked_count++) % ARRAY_LEN(c->asked)] = req->op;
    }
    sim_send_up(c, buf_span(&b));
    buf_fini(&b);
}

static void net_on_opened(struct sim *s, struct sim_conn *c)
{
    const struct c10d_request hello = { .op = C10D_VALIDATE, .word = C10D_MAGIC };
    const struct c10d_request ping = { .op = C10D_PING, .word = 7 };

    if (!c->at_node)
        return;
    if (!s->host.up) { /* refused */
        c->at_node = false;
        c->node->driver->broken(c);
        sim_conn_unref(c);
        return;
    }
    c->peer = free_peer(&s->host);
    s->host.conns[c->peer] = c;
    c->at_host = true;
    c->refs++;
    c->node->epoch = s->host.epoch;
    sim_request(c, &hello);
    sim_request(c, &ping);
    c->node->driver->opened(c);
}

static void take_replies(struct sim_conn *c)
{
    while (c->asked_count && c->at_node) {
        struct c10d_reply_decoder d;
        struct c10d_reply r;
        bool whole = false;
        int64_t used;

        /* A wait that was cancelled in time gets no answer. */
        if (c->asked[c->asked_first] == C10D_WAIT && c->asked_count > 1 &&
            buf_len(&c->in_node) && buf_data(&c->in_node)[0] == 1) {
            c->asked_first = (c->asked_first + 1) % ARRAY_LEN(c->asked);
            c->asked_count--;
        }
        c10d_reply_decoder_init(&d, c->asked[c->asked_first], 0, SIZE_MAX);
        used = c10d_decode_reply(&d, buf_data(&c->in_node), buf_len(&c->in_node), &r,
                                 &whole, NULL);
        if (used < 0)
            sim_fail(c->node->sim, "%s: the host's answer is not %s", c->node->name,
                     c10d_op_name(c->asked[c->asked_first]));
        if (!whole || used < 0)
            return;
        c->asked_first = (c->asked_first + 1) % ARRAY_LEN(c->asked);
        c->asked_count--;
        if (r.op != C10D_PING)
            c->node->driver->reply(c, &r);
        buf_consume(&c->in_node, (size_t)used);
    }
}

void sim_net_event(struct sim *s, struct sim_event *ev)
{
    struct sim_conn *c = ev->conn;

    switch (ev->kind) {
    case SIM_EV_OPENED:
        net_on_opened(s, c);
        return;
    case SIM_EV_UP:
        if (!c->at_host || c->power_lost)
            return;
        sim_must(buf_append(&c->in_host, ev->bytes, ev->n));
        sim_host_bytes(s, c);
        return;
    case SIM_EV_DOWN:
        if (!c->at_node)
            return;
        sim_must(buf_append(&c->in_node, ev->bytes, ev->n));
        if (c->hosted && c->asked_count == 0)
            c->node->driver->bytes(c);
        else
            take_replies(c);
        if (c->hosted && c->asked_count == 0 && buf_len(&c->in_node) && c->at_node)
            c->node->driver->bytes(c);
        return;
    case SIM_EV_BROKEN:
        if (!c->at_node)
            return;
        c->at_node = false;
        c->node->driver->broken(c);
        sim_conn_unref(c);
        return;
    case SIM_EV_DROPPED:
        if (!c->at_host || c->power_lost)
            return;
        forget_peer(c);
        sim_host_left(s, c);
        sim_conn_unref(c);
        return;
    case SIM_EV_TIMER:
    case SIM_EV_HOST_TIMER:
    case SIM_EV_AGENT:
    case SIM_EV_FAULT:
    case SIM_EV_ETCD_AT:
    case SIM_EV_ETCD_BACK:
    case SIM_EV_ETCD_TICK:
        return;
    }
}
