/* rdzv_etcd_legacy.c - the backend "etcd": torch's first etcd handler, whose groups mix
 * with ours. The state machine (rdzv/legacy.c) decides; this sends its requests, keeps
 * its keys alive, and performs what it says. The workers' address is settled in the
 * version's store (rdzv_legacy_addr.c).
 *
 * What the agent is told is told from the loop (rdzv_legacy_face.c), never from inside
 * a step: so it may ask for anything in its callbacks. */
#include <assert.h>
#include <inttypes.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_conf.h"
#include "io/rdzv_legacy_int.h"
#include "io/registry.h"
#include "io/store_etcd.h"

static void feed(struct old *o, struct legacy_event *ev);

/* ---- Keys kept alive ---- */

static void on_keep_timer(uv_timer_t *timer);

void legacy_keep_stop(struct keep *k)
{
    k->state.on = false;
    etcd_call_cancel(k->call);
    k->call = NULL;
    (void)uv_timer_stop(&k->timer);
}

static void on_kept(void *ctx, int status, const struct etcd_answer *a,
                    const struct muster_error *err)
{
    struct keep *k = ctx;
    uint64_t pause;

    (void)a;
    k->call = NULL;
    pause = legacy_keep_answer(&k->state, status);
    if (status < 0 && k->state.on)
        trace(k->owner->trace, TRACE_WARN, "keeping a key alive: %s", err->text);
    if (pause != MONO_NEVER)
        (void)uv_timer_start(&k->timer, on_keep_timer, pause, 0);
}

static void on_keep_timer(uv_timer_t *timer)
{
    struct keep *k = timer->data;
    const struct etcd_call_opts opts = { .key = buf_span(&k->state.path),
                                         .timeout_ms =
                                             legacy_keep_timeout_ms(&k->state) };
    struct etcd_msg m;

    etcd_msg_init(&m);
    if (legacy_keep_encode(&k->state, &m) < 0) {
        etcd_msg_fini(&m);
        (void)uv_timer_start(&k->timer, on_keep_timer, 1000, 0);
    } else if (etcd_client_call(k->owner->client, &m, &opts, on_kept, k, &k->call,
                                NULL) < 0) {
        (void)uv_timer_start(&k->timer, on_keep_timer, 1000, 0);
    }
}

static void start_keeping(struct keep *k, const struct legacy_effect *e)
{
    legacy_keep_stop(k);
    if (legacy_keep_start(&k->state, e) == 0)
        (void)uv_timer_start(&k->timer, on_keep_timer, 0, 0);
}

/* ---- Requests ---- */

static void on_hiccup(uv_timer_t *timer)
{
    struct legacy_event ev = { .kind = LEGACY_EV_REPLY, .code = MUSTER_ETIMEDOUT };

    feed(timer->data, &ev);
}

static void on_reply(void *ctx, int status, const struct etcd_answer *a,
                     const struct muster_error *err)
{
    struct old *o = ctx;
    struct legacy_event ev;

    o->req = NULL;
    if (legacy_reply(&ev, o->waiting, status, a, err))
        (void)uv_timer_start(&o->hiccup, on_hiccup, LEGACY_HICCUP_MS, 0);
    else
        feed(o, &ev);
}

static void request(struct old *o, const struct legacy_effect *e)
{
    const struct legacy_manner how = legacy_manner_of(e);
    const struct etcd_call_opts opts = { .key = e->request.key,
                                         .timeout_ms = how.timeout_ms,
                                         .attempt_ms = how.attempt_ms,
                                         .once = how.once };
    struct etcd_msg m;

    assert(!o->req);
    etcd_msg_init(&m);
    o->waiting = e->request.wait;
    if (etcd2_encode(&m, &e->request) < 0)
        etcd_msg_fini(&m);
    else if (etcd_client_call(o->client, &m, &opts, on_reply, o, &o->req, NULL) == 0)
        return;
    (void)uv_timer_start(&o->hiccup, on_hiccup, LEGACY_HICCUP_MS, 0);
}

/* ---- Feed and perform ---- */

static void joined(struct old *o, const struct legacy_effect *e)
{
    struct muster_error err = { 0 };
    char *dir = mem_strndup((const char *)e->path.p, e->path.n);
    const int rc =
        dir ? store_etcd_open(&o->kv, dir, NULL, &o->store, &err) : err_nomem(&err);

    mem_free(dir);
    if (rc < 0) {
        legacy_refused(o, rc, &err);
        return;
    }
    o->round = (struct rdzv_round){ .round = e->version,
                                    .rank = e->node_rank,
                                    .world_size = e->world,
                                    .store = o->store };
    trace(o->trace, TRACE_INFO,
          "Joined rendezvous version %" PRIu64 " of run '%s' as rank %" PRId64
          " in a world of size %" PRId64,
          e->version, o->run_id, e->node_rank, e->world);
    legacy_settle_address(o);
}

static void add_news(struct old *o, const struct legacy_effect *e)
{
    /* The version fell apart before its rank 0 told the address: the next one, then. */
    if (o->next_cb && !o->joined && e->news == RDZV_NEWS_LOST) {
        o->rejoin = true;
        legacy_soon(o);
        return;
    }
    if (o->news_count == NEWS_MAX)
        return;
    o->news[o->news_count].kind = e->news;
    err_set(&o->news[o->news_count].err, e->code ? e->code : MUSTER_ECONN, "%s",
            e->text ? e->text : "");
    o->news_count++;
    legacy_soon(o);
}

static void perform(struct old *o, const struct legacy_effect *e)
{
    switch (e->kind) {
    case LEGACY_FX_REQUEST:
        request(o, e);
        return;
    case LEGACY_FX_CANCEL:
        etcd_call_cancel(o->req);
        o->req = NULL;
        (void)uv_timer_stop(&o->hiccup);
        return;
    case LEGACY_FX_KEEP:
        start_keeping(e->rank ? &o->rank : &o->run, e);
        return;
    case LEGACY_FX_DROP:
        legacy_keep_stop(&o->rank);
        return;
    case LEGACY_FX_JOINED:
        joined(o, e);
        return;
    case LEGACY_FX_REFUSED:
        err_set(&o->refused, e->code, "run '%s' on etcd at %s: %s", o->run_id,
                etcd_client_where(o->client), e->text ? e->text : "");
        legacy_soon(o);
        return;
    case LEGACY_FX_CLOSED:
        o->close_done = true;
        o->close_err.code = e->code;
        if (e->code)
            err_set(&o->close_err, e->code, "closing run '%s': %s", o->run_id, e->text);
        legacy_soon(o);
        return;
    case LEGACY_FX_NEWS:
        add_news(o, e);
        return;
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct legacy_event ev = { .kind = LEGACY_EV_TIMER };

    feed(timer->data, &ev);
}

static void feed(struct old *o, struct legacy_event *ev)
{
    struct legacy_fx fx;
    uint64_t due;

    ev->now = (struct now){ uv_hrtime() / 1000000u, 0 };
    (void)legacy_step(o->core, ev, &fx); /* Out of memory is among the effects. */
    for (size_t i = 0; i < fx.count; i++)
        perform(o, &fx.at[i]);
    due = legacy_deadline(o->core);
    if (due == MONO_NEVER) {
        (void)uv_timer_stop(&o->timer);
        return;
    }
    uv_update_time(o->base.loop);
    (void)uv_timer_start(&o->timer, on_timer,
                         due > ev->now.mono_ms ? due - ev->now.mono_ms : 0, 0);
}

void legacy_wish(struct old *o, enum legacy_event_kind kind)
{
    struct legacy_event ev = { .kind = kind };

    feed(o, &ev);
}

/* ---- Open and close ---- */

void legacy_old_free(struct old *o)
{
    legacy_free(o->core);
    legacy_keep_fini(&o->run.state);
    legacy_keep_fini(&o->rank.state);
    mem_free(o->run_id);
    mem_free(o->local_addr);
    mem_free(o);
}

static void init_timers(struct old *o, uv_loop_t *loop)
{
    uv_timer_t *const timers[] = { &o->timer, &o->soon, &o->hiccup };
    struct keep *const keeps[] = { &o->run, &o->rank };

    for (size_t i = 0; i < ARRAY_LEN(timers); i++) {
        (void)uv_timer_init(loop, timers[i]); /* cannot fail */
        timers[i]->data = o;
    }
    for (size_t i = 0; i < ARRAY_LEN(keeps); i++) {
        keeps[i]->owner = o;
        legacy_keep_init(&keeps[i]->state);
        (void)uv_timer_init(loop, &keeps[i]->timer);
        keeps[i]->timer.data = keeps[i];
    }
}

static int read_seconds(const struct rdzv_params *p, const char *key, int64_t dflt,
                        uint64_t *out_ms, struct muster_error *err)
{
    int64_t s;
    const int rc = params_int(p, key, dflt, &s, err);

    if (rc == 0)
        *out_ms = s <= 0 ? 0 : (uint64_t)MIN_OF(s, 86400 * 365) * 1000;
    return rc;
}

static int make_parts(struct old *o, const struct rdzv_params *params,
                      const struct etcd_conf *conf, struct muster_error *err)
{
    struct legacy_config cfg = { .prefix = conf->prefix,
                                 .run_id = params->run_id,
                                 .min_nodes = params->min_nodes,
                                 .max_nodes = params->max_nodes,
                                 .seed = conf->client.seed,
                                 .trace = o->trace };
    int rc = read_seconds(params, "timeout", 600, &cfg.timeout_ms, err);

    if (rc == 0)
        rc = read_seconds(params, "last_call_timeout", 30, &cfg.last_call_ms, err);
    if (rc == 0)
        rc = legacy_new(&cfg, &o->core, err);
    if (rc < 0)
        return rc;
    o->run_id = mem_strdup(params->run_id);
    if (params->local_addr)
        o->local_addr = mem_strdup(params->local_addr);
    if (!o->run_id || (params->local_addr && !o->local_addr))
        return err_nomem(err);
    return etcd_client_new(o->base.loop, &conf->client, &o->client, err);
}

int rdzv_etcd_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                     const struct trace *trace, struct rdzv_handler **out,
                     struct muster_error *err)
{
    struct etcd_conf conf;
    struct old *o;
    int rc = etcd_conf_read(&conf, ETCD_BACKEND_LEGACY, params, trace, err);

    (void)ctx;
    if (rc < 0)
        return rc;
    o = mem_calloc(1, sizeof *o);
    if (o) {
        o->base = (struct rdzv_handler){ &legacy_ops, loop };
        o->trace = trace;
    }
    rc = o ? make_parts(o, params, &conf, err) : err_nomem(err);
    etcd_conf_fini(&conf);
    if (rc < 0) {
        if (o)
            legacy_old_free(o);
        return rc;
    }
    o->kv = (struct etcd_kv){ o->client, ETCD_V2 };
    init_timers(o, loop);
    *out = &o->base;
    return 0;
}
