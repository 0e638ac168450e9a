/* torch.c - a node that follows torchrun's protocol to the letter; see sim.h. It caches
 * the state for a second, polls every second, compares wall clocks, writes once for
 * each action, does not pause after a write that lost, takes its world from the
 * sanitized state, and never reconnects. The decisions are those of
 * rendezvous/core/decisions.h, which equal torch's own, case by case. */
#include <assert.h>

#include "base/mem.h"
#include "rendezvous/core/decisions.h"
#include "rendezvous/core/state_pickle.h"
#include "sim/sim.h"

enum op { OP_NONE, OP_EXIT, OP_JOIN, OP_CLOSE, OP_BEAT, OP_POLL };

struct torch {
    struct sim_conn *conn;
    bool primed;  /* it has made sure that the key exists */
    bool lost;    /* the connection broke, and torch's client never reconnects */
    enum op op;   /* under way */
    enum op next; /* requested while another one was under way */
    bool asking, writing, dirty;
    struct rdzv_state state;
    struct buf value, token;
    bool whole; /* state is exactly what token encodes */
    bool has_token;
    uint64_t synced_ms; /* 0: never */
    uint64_t due_ms;    /* of the operation */
    uint64_t wake_ms;   /* until when it sleeps */
    bool member;
    uint64_t beat_ms, poll_ms;
};

static void go_on(struct sim_node *n);

static void end_op(struct sim_node *n, int code, const char *text)
{
    struct torch *o = n->core;
    const enum op op = o->op;
    struct rdzv_effect e = { .code = code, .text = text };

    o->op = OP_NONE;
    o->dirty = false;
    if (op == OP_BEAT)
        o->beat_ms = sim_now(n).mono_ms + rdzv_interval_ms(&n->sim->cfg.settings);
    if (op == OP_POLL && code == 0 && o->member) {
        o->poll_ms = sim_now(n).mono_ms + 1000;
        if (rdzv_count(&o->state, RDZV_WAITS)) {
            o->member = false;
            e.kind = RDZV_FX_NEWS;
            e.news = RDZV_NEWS_WAITING;
            e.count = (int64_t)rdzv_count(&o->state, RDZV_WAITS);
            sim_notified(n, &e);
        }
    }
    if (op == OP_EXIT || op == OP_JOIN) { /* EXIT ends here only with an error. */
        e.kind = RDZV_FX_REFUSED;
        sim_notified(n, &e);
    }
    if (op == OP_CLOSE) {
        e.kind = RDZV_FX_DONE;
        e.request = RDZV_EV_CLOSE;
        sim_notified(n, &e);
    }
}

static void fail(struct sim_node *n)
{
    struct torch *o = n->core;
    struct rdzv_effect e = { .kind = RDZV_FX_NEWS,
                             .news = RDZV_NEWS_BACKEND,
                             .text = "the connection broke" };

    o->lost = true;
    if (o->op == OP_NONE || o->op == OP_BEAT || o->op == OP_POLL) {
        o->op = OP_NONE;
        sim_notified(n, &e); /* The poll raises an exception, and the agent ends. */
    } else {
        end_op(n, MUSTER_ECONN, "The connection to the C10d store has failed.");
    }
}

static void joined(struct sim_node *n)
{
    const struct rdzv_node me = sim_identity(n);
    struct torch *o = n->core;
    const struct participant *m = rdzv_state_find(&o->state, &me);
    const struct rdzv_effect e = { .kind = RDZV_FX_JOINED,
                                   .round = o->state.round,
                                   .rank = m->rank,
                                   .world =
                                       (int64_t)rdzv_count(&o->state, RDZV_PLACES) };

    o->op = OP_NONE;
    o->member = true;
    o->beat_ms = sim_now(n).mono_ms + rdzv_interval_ms(&n->sim->cfg.settings);
    o->poll_ms = sim_now(n).mono_ms + 1000;
    sim_notified(n, &e);
}

static enum rdzv_action decide(struct sim_node *n)
{
    struct torch *o = n->core;
    const struct rdzv_node me = sim_identity(n);
    const struct rdzv_view v =
        rdzv_view_of(&o->state, &me, &n->sim->cfg.settings, sim_now(n), o->due_ms);

    switch (o->op) {
    case OP_EXIT:
        return rdzv_exit_next(&v);
    case OP_JOIN:
        return rdzv_join_next(&v);
    case OP_CLOSE:
        return rdzv_close_next(&v);
    case OP_BEAT:
        return rdzv_keep_alive_next(&v);
    case OP_POLL:
    case OP_NONE:
        return RDZV_FINISH;
    }
    return RDZV_FINISH;
}

/* Takes one action after a sync. True if the next one follows at once. */
static bool act(struct sim_node *n)
{
    struct torch *o = n->core;
    const struct rdzv_settings *settings = &n->sim->cfg.settings;
    const struct rdzv_node me = sim_identity(n);
    const enum rdzv_action a = decide(n);

    n->spare = rdzv_in(rdzv_state_find(&o->state, &me), RDZV_SPARES);
    switch (a) {
    case RDZV_FINISH:
        if (o->op == OP_EXIT) {
            o->op = OP_JOIN;
            return true;
        }
        if (o->op == OP_JOIN)
            joined(n);
        else
            end_op(n, 0, "");
        return false;
    case RDZV_FAIL_CLOSED:
        end_op(n, MUSTER_ECLOSED, "closed");
        return false;
    case RDZV_FAIL_TIMEOUT:
        end_op(n, MUSTER_ETIMEDOUT, "timed out");
        return false;
    case RDZV_DISMISSED:
        end_op(n, MUSTER_EGRACEFUL, "terminating pending rendezvous");
        return false;
    case RDZV_SYNC:
        o->wake_ms = sim_now(n).mono_ms + 1000;
        return false;
    default:
        break;
    }
    sim_must(rdzv_apply(&o->state, a, &me, settings, sim_now(n).wall_us));
    if (a == RDZV_DROP_SPARE)
        o->due_ms = sim_now(n).mono_ms + settings->join_ms;
    o->dirty = true;
    o->whole = false;
    return true;
}

static void ask(struct sim_node *n)
{
    struct torch *o = n->core;
    struct c10d_request req = { .op = C10D_COMPARE_SET, .key = span_str(SIM_WIRE_KEY) };

    o->asking = true;
    if (!o->conn) {
        o->conn = sim_connect(n);
        return;
    }
    if (!o->conn->at_host)
        return;
    o->writing = o->primed && o->dirty;
    if (!o->primed) {
        req.value = span_str(RDZV_C10D_SENTINEL);
    } else if (o->dirty) {
        buf_clear(&o->value);
        sim_must(pickle_write_text(&o->state, &o->value));
        req.value = buf_span(&o->value);
        req.expected =
            o->has_token ? buf_span(&o->token) : span_str(RDZV_C10D_SENTINEL);
    } else {
        req = (struct c10d_request){ .op = C10D_GET, .key = req.key };
    }
    sim_request(o->conn, &req);
}

static void go_on(struct sim_node *n)
{
    struct torch *o = n->core;
    const uint32_t boot = n->boot;

    while (n->alive && n->boot == boot && o->op != OP_NONE && !o->asking) {
        const uint64_t now_ms = sim_now(n).mono_ms;

        if (!o->dirty && o->synced_ms && o->synced_ms + 1000 >= now_ms) {
            if (!act(n))
                break;
            continue;
        }
        ask(n);
    }
    if (!n->alive || n->boot != boot)
        return;
    if (o->op == OP_NONE && o->next != OP_NONE) {
        o->op = o->next;
        o->next = OP_NONE;
        o->due_ms =
            sim_now(n).mono_ms + (o->op == OP_EXIT ? n->sim->cfg.settings.join_ms
                                                   : n->sim->cfg.settings.close_ms);
        go_on(n);
        return;
    }
    sim_arm(n);
}

static void on_beat(void *ctx, struct participant *m, int64_t beat_us)
{
    (void)ctx;
    m->beat_us = beat_us;
}

/* torch decodes every answer. The simulator need not if the result is known. */
static void decode(struct sim_node *n, struct span value)
{
    struct torch *o = n->core;

    if (o->writing && span_eq(value, buf_span(&o->value)))
        return; /* It is what this node wrote. */
    if (o->whole &&
        (span_eq(value, buf_span(&o->token)) ||
         pickle_only_beats(&o->state, buf_span(&o->token), value, on_beat, NULL)))
        return;
    rdzv_state_fini(&o->state);
    if (pickle_read_text(value, &o->state, NULL) < 0)
        sim_fail(n->sim, "%s cannot read the state", n->name);
}

static void take(struct sim_node *n, struct span value)
{
    struct torch *o = n->core;
    const bool none = value.n == 0 || span_eq(value, span_str(RDZV_C10D_SENTINEL));

    if (!none)
        decode(n, value);
    else if (!o->writing) /* After a write, torch keeps its own state all the same. */
        rdzv_state_fini(&o->state);
    o->has_token = !none;
    buf_clear(&o->token);
    sim_must(!none && buf_append_span(&o->token, value));
    o->dirty = false;
    o->synced_ms = sim_now(n).mono_ms;
    o->whole =
        rdzv_sanitize(&o->state, &n->sim->cfg.settings, sim_now(n).wall_us) == 0 &&
        !none;
}

static void torch_on_reply(struct sim_conn *c, const struct c10d_reply *r)
{
    struct sim_node *n = c->node;
    struct torch *o = n->core;

    o->asking = false;
    if (!o->primed) {
        o->primed = true;
    } else {
        take(n, r->value);
        if (!act(n)) {
            if (n->alive)
                go_on(n);
            return;
        }
    }
    go_on(n);
}

static void torch_on_opened(struct sim_conn *c)
{
    ask(c->node);
}

static void on_broken(struct sim_conn *c)
{
    struct torch *o = c->node->core;

    o->conn = NULL;
    o->asking = false;
    fail(c->node);
}

static void on_start(struct sim_node *n)
{
    struct torch *o = mem_calloc(1, sizeof *o);

    assert(o);
    n->core = o;
    rdzv_state_init(&o->state);
    buf_init(&o->value, SIZE_MAX);
    buf_init(&o->token, SIZE_MAX);
    o->wake_ms = MONO_NEVER;
}

static void on_stop(struct sim_node *n)
{
    struct torch *o = n->core;

    if (o->conn)
        sim_hang_up(o->conn);
    rdzv_state_fini(&o->state);
    buf_fini(&o->value);
    buf_fini(&o->token);
    mem_free(o);
    n->core = NULL;
}

static void torch_on_request(struct sim_node *n, enum rdzv_event_kind request)
{
    struct torch *o = n->core;

    if (o->lost) {
        o->op = request == RDZV_EV_JOIN ? OP_JOIN : OP_CLOSE;
        end_op(n, MUSTER_ECONN, "The connection to the C10d store has failed.");
        return;
    }
    if (request == RDZV_EV_LEAVE)
        return; /* torchrun has no such request. */
    o->member = false;
    if (o->op != OP_NONE) { /* A keep-alive or a poll has to end first. */
        o->next = request == RDZV_EV_JOIN ? OP_EXIT : OP_CLOSE;
        return;
    }
    o->op = request == RDZV_EV_JOIN ? OP_EXIT : OP_CLOSE;
    o->due_ms =
        sim_now(n).mono_ms + (request == RDZV_EV_JOIN ? n->sim->cfg.settings.join_ms
                                                      : n->sim->cfg.settings.close_ms);
    go_on(n);
}

static void torch_on_timer(struct sim_node *n)
{
    struct torch *o = n->core;
    const uint64_t now_ms = sim_now(n).mono_ms;

    if (o->op != OP_NONE) {
        o->wake_ms = MONO_NEVER;
        go_on(n);
        return;
    }
    if (!o->member || o->lost)
        return;
    o->op = now_ms >= o->beat_ms ? OP_BEAT : OP_POLL;
    o->due_ms = now_ms + n->sim->cfg.settings.heartbeat_ms;
    go_on(n);
}

static uint64_t deadline(const struct sim_node *n)
{
    const struct torch *o = n->core;

    if (o->asking || o->lost)
        return MONO_NEVER;
    if (o->op != OP_NONE)
        return o->wake_ms;
    return o->member ? MIN_OF(o->beat_ms, o->poll_ms) : MONO_NEVER;
}

const struct sim_driver sim_torch = {
    .start = on_start,
    .stop = on_stop,
    .request = torch_on_request,
    .opened = torch_on_opened,
    .broken = on_broken,
    .reply = torch_on_reply,
    .timer = torch_on_timer,
    .deadline = deadline,
};
