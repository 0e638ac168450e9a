/* etcd_node.c - the driver of a node of ours whose state is in etcd, v2 or v3: what
 * rendezvous/dynamic.c and etcd/rdzv_backend.c do, on a simulated cluster; see etcd.h.
 */
#include <assert.h>

#include "base/mem.h"
#include "etcd/core/rdzv_state.h"
#include "sim/etcd.h"

#define LEASE_TTL_S 10u
#define POLL_MS     20000u
#define PUT_MS      10000u

struct dynamic {
    struct sim_node *node;
    struct rdzv *rdzv;
    struct sim_client client;
    struct etcd_names names;
    struct etcd_seen seen;
    bool want_call; /* waits for our lease */
    bool busy;      /* a get or set is under way */
    struct kv_operation ask;
    struct sim_ask *req;
    uint64_t req_by_ms;
    bool watching; /* the core is to be told of a change */
    bool unlucky;  /* so it is asked again in a second, not at once */
    struct sim_timer soon;
    struct kv_operation wait; /* v2 */
    struct sim_ask *wait_req;
    struct sim_stream stream, peers; /* v3 */
    struct sim_lease run, here;
    int64_t run_id; /* of the last lease that was granted; it may have run out */
    struct kv_operation put; /* of our presence */
    struct sim_ask *put_req;
    struct sim_timer put_timer;
    char *path; /* owned: of our presence */
};

static void feed(struct dynamic *d, struct rdzv_event ev);
static void start_wait(struct dynamic *d);
static void on_soon(void *ctx);

static bool is_v3(const struct dynamic *d)
{
    return d->client.api == ETCD_V3;
}

static struct sim_ask *send(struct dynamic *d, const struct kv_operation *ask,
                            uint64_t timeout_ms, sim_ask_done cb)
{
    const struct sim_ask_opts o = { .timeout_ms = timeout_ms,
                                    .attempt_ms =
                                        ask->kind == KV_OPERATION_WAIT ? POLL_MS : 0,
                                    .once = kv_operation_once(ask),
                                    .expect = kv_operation_expect(ask) };
    struct etcd_msg m;

    etcd_msg_init(&m);
    sim_must(kv_operation_encode(ask, &m));
    return sim_ask(&d->client, &m, &o, cb, d);
}

/* ---- Get and set ---- */

static void on_events(void *ctx, const struct etcd3_reply *events);
static void on_asked(void *ctx, int status, const struct etcd_answer *answer,
                     const struct muster_error *err);

static void send_call(struct dynamic *d)
{
    const uint64_t now = sim_now(d->node).mono_ms;

    if (is_v3(d) && !d->run_id) {
        d->want_call = true; /* opening: the first lease comes first */
        return;
    }
    d->want_call = false;
    d->ask.lease = d->run_id;
    d->req_by_ms = now + ETCD_REQUEST_MS;
    d->req = send(d, &d->ask, ETCD_REQUEST_MS, on_asked);
}

static void told(struct dynamic *d, bool write, bool won, const struct etcd_held *held)
{
    char token[ETCD_TOKEN_SIZE];
    const uint32_t boot = d->node->boot;
    struct sim_node *n = d->node;
    struct rdzv_event ev;

    etcd_state_event(&ev, write, won, held, token);
    etcd_seen_told(&d->seen, held);
    if (is_v3(d) && !d->stream.client)
        sim_stream_start(&d->stream, &d->client, d->names.change_key, false, false,
                         (int64_t)held->revision + 1, on_events, d);
    feed(d, ev);
    if (n->boot == boot && d->watching && etcd_is_stale(&d->seen))
        sim_timer_start(n, &d->soon, 0, on_soon, d);
}

static void on_asked(void *ctx, int status, const struct etcd_answer *answer,
                     const struct muster_error *err)
{
    struct dynamic *d = ctx;
    const uint64_t now = sim_now(d->node).mono_ms;
    struct kv_operation ask;
    struct rdzv_event ev;
    struct etcd_held held;

    d->req = NULL;
    if (!kv_operation_answer(&d->ask, &status, answer, &held)) {
        d->req =
            send(d, &d->ask, d->req_by_ms > now ? d->req_by_ms - now : 0, on_asked);
        return;
    }
    d->busy = false;
    ask = d->ask; /* the core may ask again while it is told */
    d->ask = (struct kv_operation){ .kind = KV_OPERATION_GET };
    if (status == 0 || status == MUSTER_EEXIST) {
        told(d, ask.kind == KV_OPERATION_PUT, status == 0, &held);
    } else {
        if (status == MUSTER_ENOENT && is_v3(d))
            sim_lease_check(&d->run);
        etcd_state_failed(&ev, status);
        ev.text = err->text;
        feed(d, ev);
    }
    kv_operation_fini(&ask);
}

/* ---- Watching ---- */

static void changed(struct dynamic *d)
{
    if (!d->watching)
        return;
    d->watching = false;
    feed(d, (struct rdzv_event){ .kind = RDZV_EV_CHANGED });
}

static void on_soon(void *ctx)
{
    struct dynamic *d = ctx;

    if (etcd_is_stale(&d->seen))
        changed(d);
    else if (d->watching)
        start_wait(d);
}

static void on_waited(void *ctx, int status, const struct etcd_answer *answer,
                      const struct muster_error *err)
{
    struct dynamic *d = ctx;
    struct etcd_held held;

    (void)err;
    d->wait_req = NULL;
    if (!kv_operation_answer(&d->wait, &status, answer, &held)) {
        d->wait_req = send(d, &d->wait, UINT64_MAX, on_waited);
        return;
    }
    d->seen.resync = status == 0;
    if (status == 0)
        changed(d);
    else if (d->watching)
        sim_timer_start(d->node, &d->soon, 1000, on_soon, d);
}

static void start_wait(struct dynamic *d)
{
    if (is_v3(d))
        return;
    sim_ask_cancel(d->wait_req);
    kv_operation_fini(&d->wait);
    sim_must(kv_operation_init(&d->wait, ETCD_V2, KV_OPERATION_WAIT,
                               span_str(d->names.key)));
    d->wait.revision = d->seen.revision;
    d->wait_req = send(d, &d->wait, UINT64_MAX, on_waited);
}

static void on_events(void *ctx, const struct etcd3_reply *events)
{
    struct dynamic *d = ctx;

    etcd_seen_events(&d->seen, d->names.change_key, events);
    if (!d->busy && etcd_is_stale(&d->seen))
        changed(d);
}

static void on_watch(struct dynamic *d)
{
    d->watching = true;
    sim_timer_stop(&d->soon);
    if (etcd_is_stale(&d->seen))
        sim_timer_start(d->node, &d->soon, 0, on_soon, d);
    else
        start_wait(d);
}

/* ---- Who is there ---- */

static void put_presence(void *ctx);

static void on_put(void *ctx, int status, const struct etcd_answer *answer,
                   const struct muster_error *err)
{
    struct dynamic *d = ctx;

    (void)answer;
    (void)err;
    d->put_req = NULL;
    if (status == MUSTER_ENOENT)
        sim_lease_check(&d->here);
    else if (status < 0)
        sim_timer_start(d->node, &d->put_timer, 1000, put_presence, d);
}

static void put_presence(void *ctx)
{
    struct dynamic *d = ctx;
    const struct etcd_put put = { .path = span_str(d->path),
                                  .value = span_str("1"),
                                  .lease = d->here.state.id };

    sim_ask_cancel(d->put_req);
    d->put_req = NULL;
    if (!put.lease)
        return;
    kv_operation_fini(&d->put);
    sim_must(kv_operation_init_put(&d->put, ETCD_V3, &put));
    d->put_req = send(d, &d->put, PUT_MS, on_put);
}

static void on_peers(void *ctx, const struct etcd3_reply *events)
{
    struct dynamic *d = ctx;
    struct sim_node *node = d->node;
    const uint32_t boot = node->boot;
    const size_t n = strlen(d->names.nodes);

    for (size_t i = 0; events && i < events->event_count && node->boot == boot; i++) {
        const struct etcd3_event *e = &events->events[i];

        if (!e->deleted || e->kv.key.n <= n)
            continue;
        if (span_eq(e->kv.key, span_str(d->path)))
            put_presence(d);
        else
            feed(d, (struct rdzv_event){
                        .kind = RDZV_EV_GONE,
                        .value = span_of(e->kv.key.p + n, e->kv.key.n - n) });
    }
}

/* ---- Feed and perform ---- */

static void perform(struct dynamic *d, const struct rdzv_effect *e)
{
    struct etcd_put put;

    switch (e->kind) {
    case RDZV_FX_READ_STATE:
        assert(!d->busy);
        d->busy = true;
        kv_operation_fini(&d->ask);
        sim_must(kv_operation_init(&d->ask, d->client.api, KV_OPERATION_GET,
                                   span_str(d->names.key)));
        send_call(d);
        return;
    case RDZV_FX_WRITE_STATE:
        assert(!d->busy);
        d->busy = true;
        kv_operation_fini(&d->ask);
        put = etcd_state_put(&d->names, e->value, e->has_token, e->token, e->quiet, 0);
        sim_must(kv_operation_init_put(&d->ask, d->client.api, &put));
        send_call(d);
        return;
    case RDZV_FX_WATCH:
        on_watch(d);
        return;
    case RDZV_FX_JOINED:
    case RDZV_FX_REFUSED:
    case RDZV_FX_DONE:
    case RDZV_FX_NEWS:
        sim_told(d->node, e);
        return;
    }
}

static void feed(struct dynamic *d, struct rdzv_event ev)
{
    struct sim_node *n = d->node;
    const uint32_t boot = n->boot;
    struct rdzv_fx fx;

    ev.now = sim_now(n);
    sim_must(rdzv_step(d->rdzv, &ev, &fx));
    for (size_t i = 0; i < fx.count && n->alive && n->boot == boot; i++)
        perform(d, &fx.at[i]);
    if (n->alive && n->boot == boot)
        sim_arm(n);
}

/* ---- Start and stop ---- */

static void on_run_lease(void *ctx)
{
    struct dynamic *d = ctx;

    d->run_id = d->run.state.id;
    if (d->want_call)
        send_call(d);
}

static void start_v3(struct dynamic *d)
{
    const struct rdzv_node self = sim_identity(d->node);
    char text[128];

    d->path =
        mem_printf("%s%s", d->names.nodes, rdzv_node_text(&self, text, sizeof text));
    assert(d->path);
    sim_lease_start(&d->run, &d->client, ETCD_RUN_TTL_S, on_run_lease, d);
    sim_lease_start(&d->here, &d->client, LEASE_TTL_S, put_presence, d);
    sim_stream_start(&d->peers, &d->client, d->names.nodes, true, true, 0, on_peers, d);
}

static void on_start(struct sim_node *n)
{
    struct dynamic *d = mem_calloc(1, sizeof *d);
    struct rdzv_config cfg = { .run_id = SIM_RUN,
                               .self = sim_identity(n),
                               .settings = n->sim->cfg.settings,
                               .seed = rng_u64(&n->rng) };

    cfg.settings.ours_only = n->kind != SIM_ETCD2;
    assert(d);
    n->core = d;
    n->opened = 0;
    d->node = n;
    d->client = (struct sim_client){ .node = n,
                                     .api = n->kind == SIM_ETCD2 ? ETCD_V2 : ETCD_V3,
                                     .count = n->sim->etcd->count,
                                     .attempt_ms = etcd_patience_ms(&cfg.settings) };
    d->client.current = rng_below(&n->rng, d->client.count);
    rng_init(&d->client.rng, rng_u64(&n->rng));
    sim_must(etcd_names_init(&d->names, d->client.api, "/muster", SIM_RUN));
    sim_must(rdzv_new(&cfg, &d->rdzv, NULL));
    rdzv_can_watch(d->rdzv, true);
    if (is_v3(d))
        start_v3(d);
}

static void on_stop(struct sim_node *n)
{
    struct dynamic *d = n->core;

    sim_ask_cancel(d->req);
    sim_ask_cancel(d->wait_req);
    sim_ask_cancel(d->put_req);
    sim_timer_stop(&d->soon);
    sim_timer_stop(&d->put_timer);
    sim_stream_stop(&d->stream);
    sim_stream_stop(&d->peers);
    sim_lease_stop(&d->run);
    sim_lease_stop(&d->here);
    kv_operation_fini(&d->ask);
    kv_operation_fini(&d->wait);
    kv_operation_fini(&d->put);
    etcd_names_fini(&d->names);
    rdzv_free(d->rdzv);
    mem_free(d->path);
    mem_free(d);
    n->core = NULL;
}

static void on_wish(struct sim_node *n, enum rdzv_event_kind wish)
{
    feed(n->core, (struct rdzv_event){ .kind = wish });
}

static void on_timer(struct sim_node *n)
{
    feed(n->core, (struct rdzv_event){ .kind = RDZV_EV_TIMER });
}

static uint64_t deadline(const struct sim_node *n)
{
    const struct dynamic *d = n->core;

    return rdzv_deadline(d->rdzv);
}

static const struct rdzv_node *members(const struct sim_node *n, size_t *count)
{
    const struct dynamic *d = n->core;

    return participants(d->rdzv, count);
}

const struct sim_driver sim_etcd = {
    .start = on_start,
    .stop = on_stop,
    .wish = on_wish,
    .timer = on_timer,
    .deadline = deadline,
    .members = members,
};
