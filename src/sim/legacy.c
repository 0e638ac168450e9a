/* legacy.c - the driver of a node of torch's first etcd handler: what
 * etcd/legacy/handler.c does, on a simulated cluster; and what must hold of the
 * document that its nodes share. See etcd.h. */
#include <assert.h>

#include "base/mem.h"
#include "etcd/legacy/core/document.h"
#include "etcd/legacy/core/requests.h"
#include "sim/etcd.h"

struct keep {
    struct legacy_handler *owner;
    struct legacy_keep state;
    struct sim_timer timer;
    struct sim_ask *call;
};

struct legacy_handler {
    struct sim_node *node;
    struct legacy *core;
    struct sim_client client;
    struct sim_ask *req;
    bool waiting; /* and it is a long poll */
    struct keep run, rank;
    struct sim_timer hiccup;
};

static void feed(struct legacy_handler *o, struct legacy_event *ev);

/* ---- Keys kept alive ---- */

static void refresh(void *ctx);

static void on_kept(void *ctx, int status, const struct etcd_answer *answer,
                    const struct muster_error *err)
{
    struct keep *k = ctx;
    uint64_t pause;

    (void)answer;
    (void)err;
    k->call = NULL;
    pause = legacy_keep_answer(&k->state, status);
    if (pause != MONO_NEVER)
        sim_timer_start(k->owner->node, &k->timer, pause, refresh, k);
}

static void refresh(void *ctx)
{
    struct keep *k = ctx;
    const struct sim_ask_opts o = { .timeout_ms = legacy_keep_timeout_ms(&k->state) };
    struct etcd_msg m;

    etcd_msg_init(&m);
    sim_must(legacy_keep_encode(&k->state, &m));
    k->call = sim_ask(&k->owner->client, &m, &o, on_kept, k);
}

static void stop_keeping(struct keep *k)
{
    k->state.on = false;
    sim_ask_cancel(k->call);
    k->call = NULL;
    sim_timer_stop(&k->timer);
}

static void start_keeping(struct keep *k, const struct legacy_effect *e)
{
    stop_keeping(k);
    sim_must(legacy_keep_start(&k->state, e));
    sim_timer_start(k->owner->node, &k->timer, 0, refresh, k);
}

/* ---- Requests ---- */

static void on_hiccup(void *ctx)
{
    struct legacy_event ev = { .kind = LEGACY_EV_REPLY, .code = MUSTER_ETIMEDOUT };

    feed(ctx, &ev);
}

static void on_reply(void *ctx, int status, const struct etcd_answer *answer,
                     const struct muster_error *err)
{
    struct legacy_handler *o = ctx;
    struct legacy_event ev;

    o->req = NULL;
    if (legacy_reply(&ev, o->waiting, status, answer, err))
        sim_timer_start(o->node, &o->hiccup, LEGACY_HICCUP_MS, on_hiccup, o);
    else
        feed(o, &ev);
}

static void request(struct legacy_handler *o, const struct legacy_effect *e)
{
    const struct legacy_manner how = legacy_manner_of(e);
    const struct sim_ask_opts opts = { .timeout_ms = how.timeout_ms,
                                       .attempt_ms = how.attempt_ms,
                                       .once = how.once };
    struct etcd_msg m;

    assert(!o->req);
    etcd_msg_init(&m);
    sim_must(etcd2_encode(&m, &e->request));
    o->waiting = e->request.wait;
    o->req = sim_ask(&o->client, &m, &opts, on_reply, o);
}

/* ---- Feed and perform ---- */

static void tell(struct legacy_handler *o, const struct legacy_effect *e)
{
    struct rdzv_effect told = { .kind = RDZV_FX_NEWS,
                                .round = (int64_t)e->version,
                                .rank = e->node_rank,
                                .world = e->world,
                                .news = e->news,
                                .code = e->code,
                                .text = e->text };

    if (e->kind == LEGACY_FX_JOINED)
        told.kind = RDZV_FX_JOINED;
    if (e->kind == LEGACY_FX_REFUSED)
        told.kind = RDZV_FX_REFUSED;
    if (e->kind == LEGACY_FX_CLOSED) {
        told.kind = RDZV_FX_DONE;
        told.request = RDZV_EV_CLOSE;
    }
    sim_told(o->node, &told);
}

static void perform(struct legacy_handler *o, const struct legacy_effect *e)
{
    switch (e->kind) {
    case LEGACY_FX_REQUEST:
        request(o, e);
        return;
    case LEGACY_FX_CANCEL:
        sim_ask_cancel(o->req);
        o->req = NULL;
        sim_timer_stop(&o->hiccup);
        return;
    case LEGACY_FX_KEEP:
        start_keeping(e->rank ? &o->rank : &o->run, e);
        return;
    case LEGACY_FX_DROP:
        stop_keeping(&o->rank);
        return;
    case LEGACY_FX_JOINED:
    case LEGACY_FX_REFUSED:
    case LEGACY_FX_CLOSED:
    case LEGACY_FX_NEWS:
        tell(o, e);
        return;
    }
}

static void feed(struct legacy_handler *o, struct legacy_event *ev)
{
    struct sim_node *n = o->node;
    const uint32_t boot = n->boot;
    struct legacy_fx fx;

    ev->now = sim_now(n);
    sim_must(legacy_step(o->core, ev, &fx));
    for (size_t i = 0; i < fx.count && n->alive && n->boot == boot; i++)
        perform(o, &fx.at[i]);
    if (n->alive && n->boot == boot)
        sim_arm(n);
}

/* ---- Start and stop ---- */

static void on_start(struct sim_node *n)
{
    struct legacy_handler *o = mem_calloc(1, sizeof *o);
    const struct rdzv_settings *set = &n->sim->cfg.settings;
    const struct legacy_config cfg = { .prefix = "/torchelastic/p2p",
                                       .run_id = SIM_RUN,
                                       .min_nodes = set->min_nodes,
                                       .max_nodes = set->max_nodes,
                                       .timeout_ms = set->join_ms,
                                       .last_call_ms = set->last_call_ms,
                                       .seed = rng_u64(&n->rng) };

    assert(o);
    n->core = o;
    n->opened = 0;
    o->node = n;
    o->client = (struct sim_client){ .node = n,
                                     .api = ETCD_V2,
                                     .count = n->sim->etcd->count,
                                     .attempt_ms = ETCD_ATTEMPT_MS };
    o->client.current = rng_below(&n->rng, o->client.count);
    rng_init(&o->client.rng, rng_u64(&n->rng));
    o->run.owner = o->rank.owner = o;
    legacy_keep_init(&o->run.state);
    legacy_keep_init(&o->rank.state);
    sim_must(legacy_new(&cfg, &o->core, NULL));
}

static void on_stop(struct sim_node *n)
{
    struct legacy_handler *o = n->core;

    stop_keeping(&o->run);
    stop_keeping(&o->rank);
    sim_ask_cancel(o->req);
    sim_timer_stop(&o->hiccup);
    legacy_keep_fini(&o->run.state);
    legacy_keep_fini(&o->rank.state);
    legacy_free(o->core);
    mem_free(o);
    n->core = NULL;
}

static void on_wish(struct sim_node *n, enum rdzv_event_kind wish)
{
    const struct rdzv_effect left = { .kind = RDZV_FX_DONE, .request = RDZV_EV_LEAVE };
    struct legacy_event ev = { .kind = LEGACY_EV_JOIN };

    if (wish == RDZV_EV_LEAVE)
        ev.kind = LEGACY_EV_LEAVE;
    if (wish == RDZV_EV_CLOSE)
        ev.kind = LEGACY_EV_CLOSE;
    feed(n->core, &ev);
    if (wish == RDZV_EV_LEAVE)
        sim_told(n, &left);
}

static void on_timer(struct sim_node *n)
{
    struct legacy_event ev = { .kind = LEGACY_EV_TIMER };

    feed(n->core, &ev);
}

static uint64_t deadline(const struct sim_node *n)
{
    const struct legacy_handler *o = n->core;

    return legacy_deadline(o->core);
}

const struct sim_driver sim_legacy = {
    .start = on_start,
    .stop = on_stop,
    .wish = on_wish,
    .timer = on_timer,
    .deadline = deadline,
};

/* ---- What must hold of the document ---- */

static const char *const status_names[] = {
    [LEGACY_SETUP] = "setup",   [LEGACY_JOINABLE] = "joinable",
    [LEGACY_FROZEN] = "frozen", [LEGACY_FINAL] = "final",
    [LEGACY_CLOSED] = "closed",
};

static void check_change(struct sim *s, const struct legacy_doc *is)
{
    const struct rdzv_settings *set = &s->cfg.settings;
    const struct sim_legacy_doc *was = &s->doc;
    const bool final = is->status == LEGACY_FINAL;

    if (was->closed && is->status != LEGACY_CLOSED)
        sim_fail(s, "closed was taken back");
    if (is->version && is->version < was->version)
        sim_fail(s, "the version went from %llu back to %llu",
                 (unsigned long long)was->version, (unsigned long long)is->version);
    if (final && ((int64_t)is->participants < set->min_nodes ||
                  (int64_t)is->participants > set->max_nodes ||
                  is->keep_alives != is->participants))
        sim_fail(s, "version %llu is final with %zu nodes, of whom %zu have confirmed",
                 (unsigned long long)is->version, is->participants, is->keep_alives);
    if (is->version == was->version && was->final && is->status != LEGACY_CLOSED &&
        (!final || is->participants != was->participants))
        sim_fail(s, "version %llu was final and has changed",
                 (unsigned long long)is->version);
}

void sim_legacy_check(struct sim *s, struct span value)
{
    struct legacy_doc doc = { 0 };
    struct muster_error err;

    if (span_eq(value, buf_span(&s->host.last_value)))
        return;
    buf_clear(&s->host.last_value);
    sim_must(buf_append_span(&s->host.last_value, value));
    if (value.n == 0) {
        sim_say(s, NULL, "holds no version");
        if (s->doc.closed)
            sim_fail(s, "closed was taken away");
        return;
    }
    if (legacy_doc_read(&doc, value, &err) < 0) {
        sim_fail(s, "the document cannot be read: %s", err.text);
        return;
    }
    sim_say(s, NULL, "holds %s's version %llu %s, %zu nodes, %zu confirmed, %lld wait",
            s->writer ? s->writer->name : "nobody", (unsigned long long)doc.version,
            status_names[doc.status], doc.participants, doc.keep_alives,
            (long long)doc.waiting);
    check_change(s, &doc);
    s->doc.closed |= doc.status == LEGACY_CLOSED;
    if (doc.version)
        s->doc.version = doc.version;
    s->doc.final = doc.status == LEGACY_FINAL;
    s->doc.participants = doc.participants;
    legacy_doc_fini(&doc);
}
