/* handler.c - the backend "etcd": torch's first etcd handler, whose groups mix
 * with ours. The state machine (etcd/legacy/core/machine.c) decides; this sends its
 * requests, keeps its keys alive, and performs what it says. The workers' address is
 * settled in the version's store (handler.c).
 *
 * What the agent is told is told from the loop (handler.c), never from inside
 * a step: so it may ask for anything in its callbacks. */
#include "rendezvous/handler.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/trace.h"
#include "etcd/etcd_store.h"
#include "etcd/kv.h"
#include "etcd/legacy/core/machine.h"
#include "etcd/legacy/core/requests.h"
#include "etcd/options.h"
#include "loop/blocking_call.h"
#include "loop/clock.h"
#include "net/listen.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/local_identity.h"
#include "rendezvous/registry.h"
#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What the files of the backend "etcd" share; see
 * handler.c. */
#define NEWS_MAX 8

struct keep {
    struct legacy_handler *owner;
    struct legacy_keep state;
    uv_timer_t timer;
    struct etcd_call *call;
};

struct request {
    rdzv_done_cb cb;
    void *ctx;
};

struct legacy_handler {
    struct rdzv_handler base;
    const struct trace *trace; /* borrowed */
    struct legacy *core;
    struct etcd_client *client;
    struct etcd_kv kv;
    char *run_id, *local_addr; /* owned; local_addr may be NULL */
    struct etcd_call *req;     /* the core's request */
    bool waiting;              /* and it is a long poll */
    struct keep run, rank;
    uv_timer_t timer, defer_timer, hiccup;

    struct async_store *store; /* owned: of the version */
    struct rdzv_round round;
    char addr[1025], master[1025];
    uint64_t addr_by_ms; /* rank 0 has told the workers' address by then */
    struct blocking_call *naming;

    rdzv_next_cb next_cb;
    void *next_ctx;
    struct muster_error refused; /* code 0: not */
    bool rejoin;
    bool joined; /* and the workers' address is known: to be told */
    rdzv_news_cb news_cb;
    void *news_ctx;
    struct {
        enum rdzv_news kind;
        struct muster_error err;
    } news[NEWS_MAX];
    size_t news_count;
    struct request close, leave, stop;
    bool closing, close_done, leave_done, stopped, destroying;
    struct muster_error close_err;
    size_t refs;
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

/* handler.c: the only caller of the core. */
static void legacy_wish(struct legacy_handler *o, enum legacy_event_kind kind);
static void legacy_keep_stop(struct keep *k);

/* handler.c: tells the agent what there is to tell, from the loop. */
static void legacy_defer(struct legacy_handler *o);
extern const struct rdzv_handler_ops legacy_ops;

/* handler.c: the version's store, and the workers' address in it. */
static void legacy_drop_store(struct legacy_handler *o);
static void legacy_refused(struct legacy_handler *o, int code,
                           const struct muster_error *err);
static void legacy_settle_address(struct legacy_handler *o);

/* Frees o; its handles are closed, or were never made. */
static void legacy_old_free(struct legacy_handler *o);

static void feed(struct legacy_handler *o, struct legacy_event *ev);

/* ---- Keys kept alive ---- */

static void on_keep_timer(uv_timer_t *timer);

static void legacy_keep_stop(struct keep *k)
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
    struct legacy_handler *o = ctx;
    struct legacy_event ev;

    o->req = NULL;
    if (legacy_reply(&ev, o->waiting, status, a, err))
        (void)uv_timer_start(&o->hiccup, on_hiccup, LEGACY_HICCUP_MS, 0);
    else
        feed(o, &ev);
}

static void request(struct legacy_handler *o, const struct legacy_effect *e)
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

static void joined(struct legacy_handler *o, const struct legacy_effect *e)
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

static void add_news(struct legacy_handler *o, const struct legacy_effect *e)
{
    /* The version fell apart before its rank 0 told the address: the next one, then. */
    if (o->next_cb && !o->joined && e->news == RDZV_NEWS_LOST) {
        o->rejoin = true;
        legacy_defer(o);
        return;
    }
    if (o->news_count == NEWS_MAX)
        return;
    o->news[o->news_count].kind = e->news;
    err_set(&o->news[o->news_count].err, e->code ? e->code : MUSTER_ECONN, "%s",
            e->text ? e->text : "");
    o->news_count++;
    legacy_defer(o);
}

static void perform(struct legacy_handler *o, const struct legacy_effect *e)
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
        legacy_defer(o);
        return;
    case LEGACY_FX_CLOSED:
        o->close_done = true;
        o->close_err.code = e->code;
        if (e->code)
            err_set(&o->close_err, e->code, "closing run '%s': %s", o->run_id, e->text);
        legacy_defer(o);
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

static void feed(struct legacy_handler *o, struct legacy_event *ev)
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

static void legacy_wish(struct legacy_handler *o, enum legacy_event_kind kind)
{
    struct legacy_event ev = { .kind = kind };

    feed(o, &ev);
}

/* ---- Open and close ---- */

static void legacy_old_free(struct legacy_handler *o)
{
    legacy_free(o->core);
    legacy_keep_fini(&o->run.state);
    legacy_keep_fini(&o->rank.state);
    mem_free(o->run_id);
    mem_free(o->local_addr);
    mem_free(o);
}

static void init_timers(struct legacy_handler *o, uv_loop_t *loop)
{
    uv_timer_t *const timers[] = { &o->timer, &o->defer_timer, &o->hiccup };
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

static int read_seconds(const struct rdzv_params *p, enum conf_id key, uint64_t *out_ms,
                        struct muster_error *err)
{
    int64_t s;
    const int rc = conf_int(p, key, &s, err);

    if (rc == 0)
        *out_ms = s <= 0 ? 0 : (uint64_t)MIN_OF(s, 86400 * 365) * 1000;
    return rc;
}

static int make_parts(struct legacy_handler *o, const struct rdzv_params *params,
                      const struct etcd_conf *conf, struct muster_error *err)
{
    struct legacy_config cfg = { .prefix = conf->prefix,
                                 .run_id = params->run_id,
                                 .min_nodes = params->min_nodes,
                                 .max_nodes = params->max_nodes,
                                 .seed = conf->client.seed,
                                 .trace = o->trace };
    int rc = read_seconds(params, CONF_TIMEOUT, &cfg.timeout_ms, err);

    if (rc == 0)
        rc =
            read_seconds(params, CONF_LEGACY_LAST_CALL_TIMEOUT, &cfg.last_call_ms, err);
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
    struct legacy_handler *o;
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

/* What the agent calls of the backend "etcd", and what it is told.
 * See handler.c. */
static struct legacy_handler *old_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct legacy_handler, base);
}

/* ---- Telling the agent ---- */

static void tell_next(struct legacy_handler *o)
{
    const rdzv_next_cb cb = o->next_cb;
    struct muster_error err = o->refused;
    const bool joined = o->joined;

    o->refused.code = 0;
    o->joined = false;
    if (!cb || (!joined && !err.code))
        return;
    o->next_cb = NULL;
    cb(o->next_ctx, err.code, err.code ? NULL : &o->round, err.code ? &err : NULL);
}

static void notify_request(struct request *w, const struct muster_error *err)
{
    const rdzv_done_cb cb = w->cb;

    w->cb = NULL;
    if (cb)
        cb(w->ctx, err->code, err->code ? err : NULL);
}

static void on_defer(uv_timer_t *timer)
{
    struct legacy_handler *o = timer->data;
    const struct muster_error none = { 0 };

    if (o->destroying)
        return;
    if (o->rejoin && o->next_cb && !o->joined && !o->refused.code) {
        legacy_drop_store(o);
        legacy_wish(o, LEGACY_EV_JOIN);
    }
    o->rejoin = false;
    tell_next(o);
    for (size_t i = 0; i < o->news_count && !o->destroying; i++)
        if (o->news_cb)
            o->news_cb(o->news_ctx, o->news[i].kind, &o->news[i].err);
    o->news_count = 0;
    if (o->close_done && !o->destroying) {
        o->close_done = o->closing = false;
        if (o->stop.cb) {
            o->stopped = true;
            legacy_keep_stop(&o->rank);
            legacy_keep_stop(&o->run);
        }
        notify_request(&o->close, &o->close_err);
        notify_request(&o->stop, &o->close_err);
    }
    if (o->leave_done && !o->destroying) {
        o->leave_done = false;
        notify_request(&o->leave, &none);
        if (o->stopped) /* Else it closes, which is not done yet. */
            notify_request(&o->stop, &none);
    }
}

static void legacy_defer(struct legacy_handler *o)
{
    (void)uv_timer_start(&o->defer_timer, on_defer, 0, 0);
}

/* ---- What the agent calls ---- */

static const char *backend(const struct rdzv_handler *h)
{
    (void)h;
    return "etcd";
}

static const char *run_id(const struct rdzv_handler *h)
{
    return old_of(h)->run_id;
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    (void)h;
    return false;
}

static void next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct legacy_handler *o = old_of(h);

    assert(!o->next_cb && !o->stopped);
    o->next_cb = cb;
    o->next_ctx = ctx;
    o->refused.code = 0;
    o->joined = false;
    o->news_count = 0;
    legacy_drop_store(o);
    trace(o->trace, TRACE_INFO, "Attempting to join next rendezvous of run '%s'",
          o->run_id);
    legacy_wish(o, LEGACY_EV_JOIN);
}

static void cancel(struct rdzv_handler *h)
{
    struct legacy_handler *o = old_of(h);

    if (!o->next_cb)
        return;
    legacy_drop_store(o);
    legacy_wish(o, LEGACY_EV_LEAVE);
    err_set(&o->refused, MUSTER_ECANCELED, "joining the run '%s' was canceled",
            o->run_id);
    legacy_defer(o);
}

static void on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    old_of(h)->news_cb = cb;
    old_of(h)->news_ctx = ctx;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    return legacy_waiting(old_of(h)->core);
}

static bool is_closed(const struct rdzv_handler *h)
{
    return legacy_closed(old_of(h)->core);
}

static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct legacy_handler *o = old_of(h);

    if (!o->next_cb)
        return false;
    if (!o->store && legacy_progress(o->core, out)) {
        const char *trouble = etcd_client_last_error(o->client);

        if (out->stage == RDZV_AT_STORE && trouble)
            progress_why(out, trouble);
        return true;
    }
    if (!o->store)
        return false;
    *out = (struct rdzv_progress){ .stage = RDZV_AT_ADDRESS,
                                   .by_ms = o->addr_by_ms,
                                   .start_by_ms = MONO_NEVER };
    return !o->joined;
}

static void begin_close(struct legacy_handler *o)
{
    if (!o->closing)
        legacy_wish(o, LEGACY_EV_CLOSE);
    o->closing = true;
}

static void set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct legacy_handler *o = old_of(h);

    assert(!o->close.cb && !o->stopped);
    o->close = (struct request){ cb, ctx };
    begin_close(o);
}

static void leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct legacy_handler *o = old_of(h);

    assert(!o->leave.cb && !o->stopped);
    o->leave = (struct request){ cb, ctx };
    if (o->next_cb)
        cancel(h); /* Which leaves, too. */
    else
        legacy_wish(o, LEGACY_EV_LEAVE);
    o->leave_done = true;
    legacy_defer(o);
}

static void shutdown_handler(struct rdzv_handler *h, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    struct legacy_handler *o = old_of(h);

    assert(!o->stop.cb && !o->stopped);
    if (o->next_cb)
        cancel(h);
    o->stop = (struct request){ cb, ctx };
    if (close) {
        begin_close(o);
        return;
    }
    o->stopped = true;
    legacy_wish(o, LEGACY_EV_LEAVE);
    legacy_keep_stop(&o->run);
    o->leave_done = true;
    legacy_defer(o);
}

static void wipe_worker_store(struct rdzv_handler *h)
{
    (void)h; /* Worker 0 hosts it, anew each time. */
}

/* ---- The end ---- */

static void part_gone(void *ctx)
{
    struct legacy_handler *o = ctx;
    void (*cb)(void *) = o->gone_cb;
    void *const cb_ctx = o->gone_ctx;

    if (--o->refs)
        return;
    legacy_old_free(o);
    if (cb)
        cb(cb_ctx);
}

static void on_timer_gone(uv_handle_t *handle)
{
    part_gone(handle->data);
}

static void on_keep_gone(uv_handle_t *handle)
{
    part_gone(((struct keep *)handle->data)->owner);
}

static void on_store_gone(void *ctx)
{
    struct legacy_handler *o = ctx;

    etcd_client_close(o->client, part_gone, o);
}

static void destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct legacy_handler *o = old_of(h);

    o->destroying = o->stopped = true;
    o->gone_cb = cb;
    o->gone_ctx = ctx;
    o->next_cb = NULL;
    o->news_cb = NULL;
    o->close.cb = o->leave.cb = o->stop.cb = NULL;
    blocking_call_cancel(o->naming);
    o->naming = NULL;
    etcd_call_cancel(o->req);
    o->req = NULL;
    legacy_keep_stop(&o->run);
    legacy_keep_stop(&o->rank);
    o->refs = 6;
    uv_close((uv_handle_t *)&o->timer, on_timer_gone);
    uv_close((uv_handle_t *)&o->defer_timer, on_timer_gone);
    uv_close((uv_handle_t *)&o->hiccup, on_timer_gone);
    uv_close((uv_handle_t *)&o->run.timer, on_keep_gone);
    uv_close((uv_handle_t *)&o->rank.timer, on_keep_gone);
    if (o->store)
        async_store_close(o->store, on_store_gone, o);
    else
        on_store_gone(o);
    o->store = NULL;
}

const struct rdzv_handler_ops legacy_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .destroy = destroy,
};

/* The store of a version of the backend "etcd", and the workers'
 * address in it: rank 0 writes it, all read it. See handler.c. */
#define STORE_MS 300000u /* torch's EtcdStore waits so long */

/* ---- The store of a version ---- */

static void no_matter(void *ctx)
{
    (void)ctx;
}

static void legacy_drop_store(struct legacy_handler *o)
{
    blocking_call_cancel(o->naming);
    o->naming = NULL;
    if (o->store)
        async_store_close(o->store, no_matter, NULL);
    o->store = NULL;
}

/* ---- The workers' address ---- */

static void legacy_refused(struct legacy_handler *o, int code,
                           const struct muster_error *err)
{
    if (code == MUSTER_ECANCELED)
        return; /* The store was closed under it: by us. */
    o->refused = *err;
    o->refused.code = code;
    legacy_defer(o);
}

static void on_address(void *ctx, int status, const struct c10d_reply *r,
                       const struct muster_error *err)
{
    struct legacy_handler *o = ctx;
    struct muster_error bad = { 0 };
    struct c10d_list list;
    struct span addr = { NULL, 0 }, port = { NULL, 0 };
    char text[8] = "";
    long number;

    if (status < 0) {
        legacy_refused(o, status, err);
        return;
    }
    list = r->list;
    (void)c10d_list_next(&list, &addr);
    (void)c10d_list_next(&list, &port);
    (void)snprintf(text, sizeof text, "%.*s", (int)MIN_OF(port.n, 7u),
                   (const char *)port.p);
    number = strtol(text, NULL, 10);
    if (addr.n == 0 || addr.n >= sizeof o->master || number < 1 || number > 65535) {
        err_set(&bad, MUSTER_ESTATE, "rank 0 has announced no address but '%.*s:%s'",
                (int)MIN_OF(addr.n, 200u), (const char *)addr.p, text);
        legacy_refused(o, MUSTER_ESTATE, &bad);
        return;
    }
    (void)snprintf(o->master, sizeof o->master, "%.*s", (int)addr.n,
                   (const char *)addr.p);
    o->round.master_addr = o->master;
    o->round.master_port = (uint16_t)number;
    o->joined = true;
    legacy_defer(o);
}

static void read_address(struct legacy_handler *o)
{
    const struct span keys[] = { span_str("MASTER_ADDR"), span_str("MASTER_PORT") };
    struct muster_error err = { 0 };
    const int rc =
        async_store_multi_get(o->store, keys, 2, STORE_MS, on_address, o, &err);

    if (rc < 0)
        legacy_refused(o, rc, &err);
}

static void on_published(void *ctx, int status, const struct c10d_reply *r,
                         const struct muster_error *err)
{
    (void)r;
    if (status < 0)
        legacy_refused(ctx, status, err);
    else
        read_address(ctx);
}

static void publish(struct legacy_handler *o)
{
    struct muster_error err = { 0 };
    uint16_t port = 0;
    char text[8];
    int rc = listen_free_port(&port, &err);

    if (rc == 0) {
        const struct span keys[] = { span_str("MASTER_ADDR"), span_str("MASTER_PORT") };
        struct span values[] = { span_str(o->addr), { NULL, 0 } };

        (void)snprintf(text, sizeof text, "%u", port);
        values[1] = span_str(text);
        rc = async_store_multi_set(o->store, keys, values, 2, STORE_MS, on_published, o,
                                   &err);
    }
    if (rc < 0)
        legacy_refused(o, rc, &err);
}

static void take_number(struct legacy_handler *o)
{
    const char *local = etcd_client_local(o->client);

    if (!local[0])
        return;
    rdzv_say_nameless(o->trace, o->addr, local);
    (void)snprintf(o->addr, sizeof o->addr, "%s", local);
}

static void on_name(void *ctx, void *data)
{
    struct legacy_handler *o = ctx;
    const struct rdzv_fqdn *f = data;

    o->naming = NULL;
    if (f)
        (void)snprintf(o->addr, sizeof o->addr, "%s", f->name);
    else
        rdzv_hostname(o->addr, sizeof o->addr);
    if (!f || !f->resolves)
        take_number(o);
    publish(o);
}

static void legacy_settle_address(struct legacy_handler *o)
{
    struct rdzv_fqdn *job, own;

    o->addr_by_ms = clock_mono_ms() + STORE_MS;
    if (o->round.rank != 0) {
        read_address(o);
        return;
    }
    if (o->local_addr)
        (void)snprintf(o->addr, sizeof o->addr, "%s", o->local_addr);
    if (o->addr[0]) {
        publish(o);
        return;
    }
    if (rdzv_fqdn_quick(&own)) {
        on_name(o, &own);
        return;
    }
    job = mem_calloc(1, sizeof *job);
    if (!job || blocking_call_run(o->base.loop, rdzv_fqdn_resolve, job, RDZV_NAME_MS,
                                  on_name, o, &o->naming, NULL) < 0) {
        mem_free(job);
        on_name(o, NULL);
    }
}
