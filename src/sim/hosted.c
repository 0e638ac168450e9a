/* hosted.c - the driver of a node on a coordinator: rendezvous/core/member.c on a
 * simulated connection; see sim.h. */
#include <assert.h>

#include "base/mem.h"
#include "sim/sim.h"

struct hosted {
    struct member *member;
    struct sim_conn *conn;
};

static void feed(struct sim_node *n, struct member_event ev);

static void send_msg(struct sim_conn *c, const struct coord_msg *m)
{
    struct c10d_request push = { .op = C10D_QUEUE_PUSH, .key = span_str(COORD_KEY) };
    struct buf b;

    buf_init(&b, SIZE_MAX);
    sim_must(coord_encode(&b, m));
    push.value = buf_span(&b);
    c->hosted = true;
    sim_request(c, &push);
    buf_fini(&b);
}

static void hosted_perform(struct sim_node *n, const struct member_effect *e)
{
    struct hosted *o = n->core;

    switch (e->kind) {
    case MEMBER_DIAL:
        if (o->conn)
            sim_hang_up(o->conn);
        o->conn = sim_connect(n);
        return;
    case MEMBER_HANG_UP:
        if (o->conn)
            sim_hang_up(o->conn);
        o->conn = NULL;
        return;
    case MEMBER_SEND:
        if (o->conn)
            send_msg(o->conn, &e->msg);
        return;
    case MEMBER_NOTIFY:
        sim_notified(n, &e->notice);
        return;
    }
}

static void feed(struct sim_node *n, struct member_event ev)
{
    struct hosted *o = n->core;
    const uint32_t boot = n->boot;
    struct member_fx fx;

    ev.now = sim_now(n);
    member_step(o->member, &ev, &fx);
    for (size_t i = 0; i < fx.count && n->alive && n->boot == boot; i++)
        hosted_perform(n, &fx.at[i]);
    if (n->alive && n->boot == boot)
        sim_arm(n);
}

static void hosted_on_opened(struct sim_conn *c)
{
    feed(c->node, (struct member_event){ .kind = MEMBER_UP });
}

/* For check.c: a spare has no time limit; once it stops being one, its time to join
 * begins anew. */
static void set_spare(struct sim_node *n, bool spare)
{
    n->spare = spare;
    n->join_by_t = n->sim->t + n->sim->cfg.settings.join_ms * 1000;
}

static void on_broken(struct sim_conn *c)
{
    struct hosted *o = c->node->core;

    if (c != o->conn)
        return;
    if (c->node->spare)
        set_spare(c->node, false);
    o->conn = NULL;
    feed(c->node, (struct member_event){ .kind = MEMBER_DOWN,
                                         .code = MUSTER_EHANGUP,
                                         .text = "the connection broke" });
}

static void on_bytes(struct sim_conn *c)
{
    struct sim_node *n = c->node;
    const uint32_t boot = n->boot;

    while (n->boot == boot && n->alive && c->at_node && buf_len(&c->in_node) >= 8) {
        const uint64_t len = get_u64(buf_data(&c->in_node));
        struct member_event ev = { .kind = MEMBER_MSG };
        struct coord_msg msg;

        if (buf_len(&c->in_node) - 8 < len)
            return;
        if (coord_decode(span_of(buf_data(&c->in_node) + 8, (size_t)len), &msg, NULL) <
            0) {
            sim_fail(n->sim, "%s cannot read what the host sent", n->name);
            return;
        }
        ev.msg = &msg;
        if (msg.kind == COORD_SPARE)
            set_spare(n, msg.count != 0);
        feed(n, ev);
        buf_consume(&c->in_node, (size_t)len + 8);
    }
}

static void hosted_on_reply(struct sim_conn *c, const struct c10d_reply *r)
{
    (void)c;
    (void)r; /* Only the answer to the PING is needed. */
}

static void on_start(struct sim_node *n)
{
    struct hosted *o = mem_calloc(1, sizeof *o);
    const struct member_config cfg = { .run_id = SIM_RUN,
                                       .self = sim_identity(n),
                                       .settings = n->sim->cfg.settings,
                                       .nonce = rng_u64(&n->rng),
                                       .grace_ms = n->sim->cfg.grace_ms,
                                       .echoes = true };

    assert(o);
    n->core = o;
    sim_must(member_new(&cfg, &o->member, NULL));
}

static void on_stop(struct sim_node *n)
{
    struct hosted *o = n->core;

    if (o->conn)
        sim_hang_up(o->conn);
    member_free(o->member);
    mem_free(o);
    n->core = NULL;
}

static void hosted_on_request(struct sim_node *n, enum rdzv_event_kind request)
{
    feed(n, (struct member_event){ .kind = MEMBER_REQUEST, .request = request });
}

static void hosted_on_timer(struct sim_node *n)
{
    feed(n, (struct member_event){ .kind = MEMBER_TIMER });
}

static uint64_t deadline(const struct sim_node *n)
{
    const struct hosted *o = n->core;

    return member_deadline(o->member);
}

const struct sim_driver sim_hosted = {
    .start = on_start,
    .stop = on_stop,
    .request = hosted_on_request,
    .opened = hosted_on_opened,
    .broken = on_broken,
    .reply = hosted_on_reply,
    .bytes = on_bytes,
    .timer = hosted_on_timer,
    .deadline = deadline,
};
