/* server.c - the host: the store engine, the wire and the coordinator, put together as
 * in store/server.c and job/run_driver.c, but on simulated connections;
 * see sim.h. */
#include <assert.h>

#include "base/mem.h"
#include "job/core/coordinator.h"
#include "rendezvous/core/coordinator_wire.h"
#include "sim/sim.h"
#include "store/core/reserved.h"

#define NOBODY UINT32_MAX

static struct now host_now(const struct sim *s)
{
    return (struct now){ s->t / 1000 + 5000, SIM_WALL_US + (int64_t)s->t };
}

void sim_host_start(struct sim *s)
{
    struct sim_host *h = &s->host;

    h->store = store_new(s->cfg.seed, SIZE_MAX);
    assert(h->store);
    store_fx_init(&h->fx);
    h->rdzv_fx = mem_calloc(1, sizeof *h->rdzv_fx);
    assert(h->rdzv_fx);
    coordinator_fx_init(h->rdzv_fx);
    sessions_init(&h->sessions);
    h->timer_t = SIM_NEVER;
    h->epoch++;
    h->watched = false;
    h->up = true;
    s->host_calm_t = s->t;
}

void sim_host_stop(struct sim *s)
{
    struct sim_host *h = &s->host;

    if (!h->up)
        return;
    h->up = false;
    for (size_t i = 0; i < h->conn_count; i++) {
        if (h->conns[i])
            sim_drop(h->conns[i]);
    }
    coordinator_free(h->rdzv);
    sessions_fini(&h->sessions);
    h->rdzv = NULL;
    coordinator_fx_fini(h->rdzv_fx);
    mem_free(h->rdzv_fx);
    h->rdzv_fx = NULL;
    store_fx_fini(&h->fx);
    store_free(h->store);
    h->store = NULL;
    if (h->last_valid)
        rdzv_state_fini(&h->last);
    h->last_valid = false;
    buf_clear(&h->last_value);
}

static void reply(struct sim *s, const struct store_effect *e)
{
    struct sim_conn *c = e->peer == NOBODY ? NULL : s->host.conns[e->peer];
    struct buf b;

    if (!c)
        return;
    if (e->kind == STORE_CLOSE) {
        sim_fail(s, "the host closes %s's connection: %s", c->node->name, e->reason);
        return;
    }
    buf_init(&b, SIZE_MAX);
    sim_must(c10d_encode_reply(&b, &e->reply));
    sim_send_down(c, buf_span(&b));
    buf_fini(&b);
}

static void step(struct sim *s, const struct store_event *ev)
{
    struct sim_host *h = &s->host;

    sim_must(store_step(h->store, ev, &h->fx));
    for (size_t i = 0; i < h->fx.count && h->up; i++)
        reply(s, &h->fx.items[i]);
}

/* The state's key as the store has it; empty if it is not there. */
static struct span key_value(struct sim *s)
{
    const struct c10d_request get = { .op = C10D_GET, .key = span_str(SIM_WIRE_KEY) };
    const struct store_event ev = { STORE_REQUEST, .peer = NOBODY, .request = &get };
    const struct sim_host *h = &s->host;

    sim_must(store_step(h->store, &ev, &s->host.fx));
    if (h->fx.count != 1 || h->fx.items[0].kind != STORE_REPLY)
        return span_of("", 0);
    return h->fx.items[0].reply.value;
}

static void host_feed(struct sim *s, struct coordinator_event *ev);

/* Writes the coordinator's state to its key if the key is out of date. */
static void publish_view(struct sim *s, bool aged)
{
    struct c10d_request set = { .op = C10D_SET, .key = span_str(SIM_WIRE_KEY) };
    const struct store_event ev = { STORE_REQUEST, .peer = NOBODY, .request = &set };
    struct sim_host *h = &s->host;
    const struct now now = host_now(s);

    if (!h->rdzv || !coordinator_stale(h->rdzv, now, aged))
        return;
    sim_must(coordinator_view(h->rdzv, now, &set.value));
    step(s, &ev);
    sim_check_state(s, set.value, NOBODY);
}

/* Tells the coordinator what a node has written to the key, if it has. */
static void take_foreign_write(struct sim *s)
{
    struct coordinator_event ev = { .kind = COORDINATOR_SEEN };

    if (!s->host.rdzv)
        return;
    ev.value = key_value(s);
    if (ev.value.n == 0 || span_eq(ev.value, coordinator_last_view(s->host.rdzv)))
        return;
    host_feed(s, &ev);
    if (s->host.watched)
        publish_view(s, false);
}

static void send_msg(struct sim_conn *c, const struct coord_msg *m)
{
    uint8_t length[8] = { 0 };
    struct buf b;

    buf_init(&b, SIZE_MAX);
    sim_must(buf_append(&b, length, sizeof length));
    sim_must(coord_encode(&b, m));
    put_u64(b.mem + b.head, buf_len(&b) - sizeof length);
    sim_send_down(c, buf_span(&b));
    buf_fini(&b);
}

static void arm(struct sim *s)
{
    struct sim_host *h = &s->host;
    const uint64_t due = h->rdzv ? coordinator_deadline(h->rdzv) : MONO_NEVER;
    uint64_t t;

    if (due == MONO_NEVER)
        return;
    t = due > 5000 ? (due - 5000) * 1000 : 0;
    t = MAX_OF(t, s->t);
    if (h->timer_t <= t)
        return;
    h->timer_t = t;
    sim_at(s, t, SIM_EV_HOST_TIMER)->node = h->epoch;
}

void sim_host_timer(struct sim *s)
{
    struct coordinator_event ev = { .kind = COORDINATOR_TIMER };
    struct sim_host *h = &s->host;

    h->timer_t = SIM_NEVER;
    if (!h->rdzv)
        return;
    if (coordinator_deadline(h->rdzv) <= host_now(s).mono_ms)
        host_feed(s, &ev);
    if (h->watched)
        publish_view(s, false);
    arm(s);
}

static void host_feed(struct sim *s, struct coordinator_event *ev)
{
    struct sim_host *h = &s->host;
    struct muster_error err;
    int rc;

    ev->now = host_now(s);
    rc = coordinator_step(h->rdzv, ev, h->rdzv_fx, &err);
    if (rc == MUSTER_ESTATE && h->epoch > 1)
        return; /* The writer does not know what the restarted host knows. */
    if (rc < 0) {
        sim_fail(s, "the host's coordinator failed: %s", err.text);
        return;
    }
    for (size_t i = 0; i < h->rdzv_fx->count; i++) {
        const struct coordinator_effect *e = &h->rdzv_fx->items[i];
        struct sim_conn *c = e->peer < h->conn_count ? h->conns[e->peer] : NULL;

        if (!c)
            continue;
        if (e->kind == COORDINATOR_SEND) {
            sim_log(s, NULL, "tells %s %s", c->node->name,
                    coord_kind_name(e->msg.kind));
            send_msg(c, &e->msg);
        } else {
            sim_drop(c);
        }
    }
    arm(s);
}

static void on_message(struct sim *s, struct sim_conn *c, struct span bytes)
{
    struct coordinator_event ev = { .kind = COORDINATOR_MSG, .peer = c->peer };
    struct sim_host *h = &s->host;
    struct muster_error err;
    struct coord_msg msg;
    bool begun = false;

    if (coord_decode(bytes, &msg, &err) < 0) {
        sim_fail(s, "the host cannot read what %s sent: %s", c->node->name, err.text);
        return;
    }
    if (!h->rdzv) {
        h->rdzv = coordinator_new(span_str(SIM_RUN), &h->sessions, NULL);
        assert(h->rdzv);
        begun = true;
    }
    c->hosted = true;
    ev.msg = &msg;
    if (begun)
        take_foreign_write(s); /* Nodes without a coordinator may have begun a round. */
    host_feed(s, &ev);
    if (h->watched)
        publish_view(s, false);
}

/* Also remembers that somebody waits for the key to change. */
static bool is_about_key(struct sim_host *h, const struct c10d_request *req)
{
    struct c10d_list list = req->list;
    struct span name = req->key;

    if (list.count && !c10d_list_next(&list, &name))
        return false;
    if (reserved_parse(name).kind == RESERVED_IS_CHANGED) {
        h->watched = true;
        return true;
    }
    return span_eq(name, span_str(SIM_WIRE_KEY));
}

static void server_on_request(struct sim *s, struct sim_conn *c,
                              const struct c10d_request *req)
{
    const struct store_event ev = { STORE_REQUEST, .peer = c->peer, .request = req };
    const bool key = is_about_key(&s->host, req);

    s->host.requests++;
    if (req->op == C10D_QUEUE_PUSH && span_eq(req->key, span_str(COORD_KEY))) {
        on_message(s, c, req->value);
        return;
    }
    if (key)
        publish_view(s, req->op != C10D_COMPARE_SET);
    step(s, &ev);
    if (key && req->op == C10D_COMPARE_SET) {
        sim_check_state(s, key_value(s), c->peer);
        take_foreign_write(s);
    }
}

void sim_host_bytes(struct sim *s, struct sim_conn *c)
{
    while (c->at_host && !s->fail[0]) {
        struct c10d_request req;
        struct muster_error err;
        const int64_t used = c10d_decode_request(&c->decoder, buf_data(&c->in_host),
                                                 buf_len(&c->in_host), &req, &err);

        if (used < 0) {
            sim_fail(s, "%s's bytes are not a request: %s", c->node->name, err.text);
            return;
        }
        if (used == 0)
            return;
        if (req.op != C10D_VALIDATE)
            server_on_request(s, c, &req);
        buf_consume(&c->in_host, (size_t)used);
    }
}

void sim_host_left(struct sim *s, struct sim_conn *c)
{
    const struct store_event ev = { STORE_LEFT, .peer = c->peer };
    struct coordinator_event gone = { .kind = COORDINATOR_GONE, .peer = c->peer };

    if (!s->host.up)
        return;
    step(s, &ev);
    if (c->hosted && s->host.rdzv) {
        host_feed(s, &gone);
        if (s->host.watched)
            publish_view(s, false);
    }
}
