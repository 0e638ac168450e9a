/* ours.c - the driver of a node of ours on the state's key: what rendezvous/dynamic.c
 * and its c10d backend do, on a simulated connection; see sim.h. */
#include <assert.h>
#include <stdio.h>

#include "base/mem.h"
#include "sim/sim.h"
#include "store/core/reserved.h"

struct ours {
    struct rdzv *rdzv;
    struct sim_conn *state, *watch;
    bool primed;  /* this connection has made sure that the key exists */
    bool priming; /* it is doing so: the next answer belongs to that */
    enum { NOTHING, READ, WRITE } call;
    bool sent; /* the call is on its way */
    struct buf value, expected;
    bool waiting;       /* a WAIT is under way */
    uint64_t wait_hash; /* what it waits for */
    bool cancelled;     /* it is not wanted any more */
    bool next_wait;     /* another one is to follow */
    uint64_t next_hash; /* what that will wait for */
};

static void feed(struct sim_node *n, struct rdzv_event ev);

static void connect_state(struct sim_node *n)
{
    struct ours *o = n->core;

    if (!o->state)
        o->state = sim_connect(n);
}

static struct span key(void)
{
    return span_str(SIM_WIRE_KEY);
}

static void send_call(struct sim_node *n)
{
    struct ours *o = n->core;
    struct c10d_request req = { .op = C10D_COMPARE_SET, .key = key() };

    if (!o->state || !o->state->at_host || o->call == NOTHING || o->sent)
        return;
    if (!o->primed) {
        if (!o->priming) {
            o->priming = true;
            req.value = span_str(RDZV_C10D_SENTINEL);
            sim_request(o->state, &req);
        }
        return;
    }
    o->sent = true;
    if (o->call == READ) {
        req.op = C10D_GET;
    } else {
        req.expected = buf_span(&o->expected);
        req.value = buf_span(&o->value);
    }
    sim_request(o->state, &req);
}

/* The last hash is kept, since all nodes of a group need it one after another. */
static uint64_t hash_of(struct sim *s, struct span value)
{
    if (!span_eq(value, buf_span(&s->hashed))) {
        buf_clear(&s->hashed);
        sim_must(buf_append_span(&s->hashed, value));
        s->hash = reserved_hash(value);
    }
    return s->hash;
}

static void on_watch(struct sim_node *n, const struct rdzv_effect *e)
{
    struct ours *o = n->core;
    const struct span held = e->present ? e->value : span_str(RDZV_C10D_SENTINEL);
    const struct c10d_request cancel = { .op = C10D_CANCEL_WAIT };

    o->next_hash = hash_of(n->sim, held);
    if (o->waiting && !o->cancelled && o->wait_hash == o->next_hash)
        return;
    o->next_wait = true;
    if (!o->watch) {
        o->watch = sim_connect(n);
        o->waiting = o->cancelled = false;
        return;
    }
    if (o->waiting && !o->cancelled) {
        o->cancelled = true;
        sim_request(o->watch, &cancel);
    }
}

static void send_wait(struct sim_node *n)
{
    struct ours *o = n->core;
    struct c10d_request wait = { .op = C10D_WAIT };
    char name[256];
    struct buf list;

    if (!o->watch || !o->watch->at_host || o->waiting || !o->next_wait)
        return;
    (void)snprintf(name, sizeof name, "%s%016llx/%s", RESERVED_CHANGED,
                   (unsigned long long)o->next_hash, SIM_WIRE_KEY);
    buf_init(&list, SIZE_MAX);
    sim_must(c10d_list_add(&list, span_str(name)));
    wait.list = (struct c10d_list){ buf_span(&list), 1 };
    sim_request(o->watch, &wait);
    buf_fini(&list);
    o->waiting = true;
    o->cancelled = o->next_wait = false;
    o->wait_hash = o->next_hash;
}

static void keep(struct buf *b, struct span s)
{
    buf_clear(b);
    sim_must(buf_append_span(b, s));
}

static void ours_perform(struct sim_node *n, const struct rdzv_effect *e)
{
    struct ours *o = n->core;

    switch (e->kind) {
    case RDZV_FX_READ_STATE:
        assert(o->call == NOTHING);
        o->call = READ;
        o->sent = false;
        connect_state(n);
        return;
    case RDZV_FX_WRITE_STATE:
        assert(o->call == NOTHING);
        o->call = WRITE;
        o->sent = false;
        keep(&o->value, e->value);
        keep(&o->expected, e->has_token ? e->token : span_str(RDZV_C10D_SENTINEL));
        connect_state(n);
        return;
    case RDZV_FX_WATCH:
        on_watch(n, e);
        return;
    case RDZV_FX_JOINED:
    case RDZV_FX_REFUSED:
    case RDZV_FX_DONE:
    case RDZV_FX_NEWS:
        sim_notified(n, e);
        return;
    }
}

static void feed(struct sim_node *n, struct rdzv_event ev)
{
    struct ours *o = n->core;
    const uint32_t boot = n->boot;
    struct rdzv_fx fx;

    ev.now = sim_now(n);
    sim_must(rdzv_step(o->rdzv, &ev, &fx));
    for (size_t i = 0; i < fx.count && n->alive && n->boot == boot; i++)
        ours_perform(n, &fx.at[i]);
    if (!n->alive || n->boot != boot)
        return;
    send_call(n);
    send_wait(n);
    sim_arm(n);
}

static void ours_on_reply(struct sim_conn *c, const struct c10d_reply *r)
{
    struct sim_node *n = c->node;
    struct ours *o = n->core;
    struct rdzv_event ev = { 0 };
    const bool write = o->call == WRITE;

    if (c == o->watch) {
        if (r->op == C10D_CANCEL_WAIT || (r->op == C10D_WAIT && !o->cancelled)) {
            const bool changed = !o->cancelled;

            o->waiting = o->cancelled = false;
            if (changed)
                feed(n, (struct rdzv_event){ .kind = RDZV_EV_CHANGED });
            else
                send_wait(n);
        }
        return;
    }
    if (o->priming) {
        o->priming = false;
        o->primed = true;
        send_call(n);
        return;
    }
    o->call = NOTHING;
    rdzv_c10d_answer(&ev, write, buf_span(&o->expected), buf_span(&o->value), r->value);
    if (write && !ev.won && !ev.present)
        o->primed = false; /* A restarted host starts empty. */
    feed(n, ev);
}

static void ours_on_opened(struct sim_conn *c)
{
    send_call(c->node);
    send_wait(c->node);
}

static void on_broken(struct sim_conn *c)
{
    struct sim_node *n = c->node;
    struct ours *o = n->core;

    if (c == o->watch) {
        o->watch = NULL;
        o->waiting = o->cancelled = false;
        feed(n, (struct rdzv_event){ .kind = RDZV_EV_CHANGED });
        return;
    }
    o->state = NULL;
    o->primed = o->priming = false;
    if (o->call == NOTHING)
        return;
    o->call = NOTHING;
    feed(n, (struct rdzv_event){ .kind = RDZV_EV_FAILED,
                                 .code = MUSTER_ECONN,
                                 .text = "the connection broke",
                                 .again = true });
}

static void on_start(struct sim_node *n)
{
    struct ours *o = mem_calloc(1, sizeof *o);
    const struct rdzv_config cfg = { .run_id = SIM_RUN,
                                     .self = sim_identity(n),
                                     .settings = n->sim->cfg.settings,
                                     .seed = rng_u64(&n->rng) };

    assert(o);
    n->core = o;
    buf_init(&o->value, SIZE_MAX);
    buf_init(&o->expected, SIZE_MAX);
    sim_must(rdzv_new(&cfg, &o->rdzv, NULL));
    rdzv_can_watch(o->rdzv, n->kind == SIM_OURS);
}

static void on_stop(struct sim_node *n)
{
    struct ours *o = n->core;

    if (o->state)
        sim_hang_up(o->state);
    if (o->watch)
        sim_hang_up(o->watch);
    rdzv_free(o->rdzv);
    buf_fini(&o->value);
    buf_fini(&o->expected);
    mem_free(o);
    n->core = NULL;
}

static void ours_on_request(struct sim_node *n, enum rdzv_event_kind request)
{
    feed(n, (struct rdzv_event){ .kind = request });
}

static void ours_on_timer(struct sim_node *n)
{
    feed(n, (struct rdzv_event){ .kind = RDZV_EV_TIMER });
}

static uint64_t deadline(const struct sim_node *n)
{
    const struct ours *o = n->core;

    return rdzv_deadline(o->rdzv);
}

static const struct rdzv_node *members(const struct sim_node *n, size_t *count)
{
    const struct ours *o = n->core;

    return rdzv_participants(o->rdzv, count);
}

const struct sim_driver sim_ours = {
    .start = on_start,
    .stop = on_stop,
    .request = ours_on_request,
    .opened = ours_on_opened,
    .broken = on_broken,
    .reply = ours_on_reply,
    .timer = ours_on_timer,
    .deadline = deadline,
    .members = members,
};
