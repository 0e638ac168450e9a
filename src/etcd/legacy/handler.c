/* handler.c - the backend "etcd": torch's first etcd handler, whose groups mix with
 * ours, as an implementation for rendezvous/handler_base.h.
 *
 * Who talks to whom:
 *
 *   - handler_base asks for open, join, leave, close and find;
 *   - core/machine.c says which request to etcd comes next, and this file sends it
 *     by the v2 API, one at a time;
 *   - rank 0 writes MASTER_ADDR, MASTER_PORT and muster/job to the version's store,
 *     and the others read them there.
 *
 * A join, in the machine's words: make the tree, find or begin a version, take a rank,
 * wait for the last call, confirm, until the version is final. Then find() settles the
 * workers' address in the version's store, which lies below the version's keys.
 *
 * What a loss does:
 *   - a request without an answer: the client tries the other endpoints. A
 *     conditional write is not repeated, since nobody could tell whether a document
 *     with one more rank is ours; the machine reads again. A wait that broke is over
 *     after LEGACY_HICCUP_MS, so that a proxy that cuts long polls off makes no
 *     tight loop.
 *   - a node that dies: its key rank_N is not refreshed and runs out. Members find
 *     that in the listing and tell their agents; a node that waits takes the version
 *     away.
 *   - our own key that runs out: the others go on without us, so the agent is told.
 *     CUT_OFF comes ahead of that time (the fence), while we can still stop in time.
 *
 * Workers serve their store themselves here, as with torch. If rank 0 is ours, its
 * agent serves one beside it where the job has its coordinator (job/session.h), and
 * leaves the port in the version's store, ahead of the workers' address: whoever has
 * read that knows whether there is one. torchrun's rank 0 leaves none, and the nodes
 * share no record then.
 *
 * Memory that runs out is final: handler_no_memory().
 *
 * Top to bottom: keys kept alive, requests, feed and perform, the workers' address,
 * what the base asks for, the end, what the agent asks, opening. */
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "etcd/etcd_store.h"
#include "etcd/kv.h"
#include "etcd/legacy/core/machine.h"
#include "etcd/options.h"
#include "loop/blocking_call.h"
#include "loop/clock.h"
#include "net/bind_address.h"
#include "net/listen.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/fence.h"
#include "rendezvous/core/request_queue.h"
#include "rendezvous/handler_base.h"
#include "rendezvous/local_identity.h"
#include "rendezvous/registry.h"
#include "store/extension.h"
#include "store/server.h"
#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STORE_MS 300000u /* torch's EtcdStore waits so long */
#define JOB_MS   10000u  /* a key that is there or not */
#define JOB_PORT "muster/job"

struct keep {
    struct legacy_handler *owner;
    struct legacy_keep state;
    uint64_t at_ms; /* the next refresh; MONO_NEVER: none */
    struct etcd_call *call;
    struct fence fence; /* until when the others must see the key */
};

struct legacy_handler {
    struct handler_base base; /* first: the handler as the agent sees it */
    const struct log *log;    /* borrowed */
    struct legacy *core;
    struct etcd_client *client;
    struct etcd_kv kv;
    char *run_id, *local_addr; /* owned; local_addr may be NULL */
    struct etcd_call *req;     /* the core's request */
    bool waiting;              /* and it is a long poll */
    bool in_feed;              /* of the core: requests wait until it is through */
    struct request_queue requests;
    struct keep run, rank;
    uint64_t hiccup_at_ms; /* the answer that a failed request gets; MONO_NEVER */

    struct async_store *store; /* owned: of the version */
    struct rdzv_round round;
    char addr[1025], master[1025];
    uint64_t addr_by_ms; /* rank 0 has told the workers' address by then */
    struct blocking_call *naming;

    char *bind;        /* owned; where the user wants the server to listen */
    struct auth *auth; /* a reference, or NULL */
    bool many;         /* several nodes may come */
    struct bind_lookup *binding;
    struct store_server *server; /* owned; the job's coordinator, once we were rank 0 */
    uint16_t job_port;           /* of the one of this round; 0: there is none */
};

static void legacy_feed(struct legacy_handler *o, struct legacy_event *ev);

static struct legacy_handler *legacy_of(const struct handler_base *s)
{
    return CONTAINER_OF(s, struct legacy_handler, base);
}

/* ---- Keys kept alive ---- */

static void keep_at(struct keep *k, uint64_t pause_ms)
{
    k->at_ms = clock_mono_ms() + pause_ms;
    handler_arm(&k->owner->base);
}

static void keep_stop(struct keep *k)
{
    k->state.on = false;
    etcd_call_cancel(k->call);
    k->call = NULL;
    k->at_ms = MONO_NEVER;
    k->fence.due_ms = MONO_NEVER;
}

/* Without its key the others take a node's version away and begin another one. gone:
 * etcd says that it has run out, or we have not looked after it for too long. */
static void keep_cut_off(struct keep *k, bool gone, const char *why)
{
    k->fence.due_ms = MONO_NEVER;
    if (k->owner->many && k == &k->owner->rank)
        handler_feed(
            &k->owner->base,
            (struct life_event){ .kind = LIFE_NEWS,
                                 .news = gone ? RDZV_NEWS_EVICTED : RDZV_NEWS_CUT_OFF,
                                 .code = gone ? 0 : MUSTER_ECONN,
                                 .text = why });
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
        log_line(k->owner->log, LOG_WARN, AT_RENDEZVOUS, "keeping a key alive: %s",
                 err->text);
    if (status < 0)
        fence_unanswered(&k->fence);
    else
        fence_answered(&k->fence);
    if (pause != MONO_NEVER)
        keep_at(k, pause);
    else
        keep_cut_off(k, true, "our keep-alive key in etcd has run out");
}

static void keep_refresh(struct keep *k)
{
    const struct etcd_call_opts opts = { .key = buf_span(&k->state.path),
                                         .timeout_ms =
                                             legacy_keep_timeout_ms(&k->state) };
    struct etcd_msg m;

    k->at_ms = MONO_NEVER;
    fence_sent(&k->fence, clock_mono_ms());
    etcd_msg_init(&m);
    (void)legacy_keep_encode(&k->state, &m);
    if (etcd_client_call(k->owner->client, &m, &opts, on_kept, k, &k->call, NULL) < 0)
        handler_no_memory(&k->owner->base);
}

static void keep_start(struct keep *k, const struct legacy_effect *e)
{
    keep_stop(k);
    fence_init(&k->fence, e->ttl_s * 1000, e->ttl_s * 1000 / 5);
    if (legacy_keep_start(&k->state, e) == 0)
        keep_at(k, 0);
    else
        handler_no_memory(&k->owner->base);
}

/* ---- Requests ---- */

static void legacy_hiccup(struct legacy_handler *o)
{
    o->hiccup_at_ms = clock_mono_ms() + LEGACY_HICCUP_MS;
    handler_arm(&o->base);
}

static void legacy_on_reply(void *ctx, int status, const struct etcd_answer *a,
                            const struct muster_error *err)
{
    struct legacy_handler *o = ctx;
    struct legacy_event ev;

    o->req = NULL;
    if (legacy_reply(&ev, o->waiting, status, a, err))
        legacy_hiccup(o);
    else
        legacy_feed(o, &ev);
}

static void legacy_send(struct legacy_handler *o, const struct legacy_effect *e)
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
    (void)etcd2_encode(&m, &e->request);
    if (etcd_client_call(o->client, &m, &opts, legacy_on_reply, o, &o->req, NULL) < 0)
        handler_no_memory(&o->base);
}

/* ---- Feed and legacy_perform ---- */

static void legacy_on_joined(struct legacy_handler *o, const struct legacy_effect *e)
{
    struct muster_error err = { 0 };
    char *dir = mem_strndup((const char *)e->path.p, e->path.n);
    const int rc =
        dir ? store_etcd_open(&o->kv, dir, NULL, &o->store, &err) : err_nomem(&err);

    mem_free(dir);
    if (rc < 0) {
        handler_feed_error(&o->base, LIFE_REFUSED, &err);
        return;
    }
    o->round = (struct rdzv_round){ .round = e->version,
                                    .rank = e->node_rank,
                                    .world_size = e->world,
                                    .store = o->store };
    log_line(o->log, LOG_INFO, AT_RENDEZVOUS,
             "Joined rendezvous version %" PRIu64 " of run '%s' as rank %" PRId64
             " in a world of size %" PRId64,
             e->version, o->run_id, e->node_rank, e->world);
    handler_feed_error(&o->base, LIFE_JOINED, NULL);
}

static void legacy_on_refused(struct legacy_handler *o, const struct legacy_effect *e)
{
    struct muster_error err;

    (void)err_set(&err, e->code, "run '%s' on etcd at %s: %s", o->run_id,
                  etcd_client_where(o->client), e->text ? e->text : "");
    handler_feed_error(&o->base, LIFE_REFUSED, &err);
}

static void legacy_on_closed(struct legacy_handler *o, const struct legacy_effect *e)
{
    struct muster_error err = { 0 };

    if (e->code)
        (void)err_set(&err, e->code, "closing run '%s': %s", o->run_id, e->text);
    handler_feed_error(&o->base, LIFE_CLOSED, e->code ? &err : NULL);
}

static void legacy_perform(struct legacy_handler *o, const struct legacy_effect *e)
{
    switch (e->kind) {
    case LEGACY_FX_REQUEST:
        legacy_send(o, e);
        return;
    case LEGACY_FX_CANCEL:
        etcd_call_cancel(o->req);
        o->req = NULL;
        o->hiccup_at_ms = MONO_NEVER;
        return;
    case LEGACY_FX_KEEP:
        keep_start(e->rank ? &o->rank : &o->run, e);
        return;
    case LEGACY_FX_DROP:
        keep_stop(&o->rank);
        return;
    case LEGACY_FX_JOINED:
        legacy_on_joined(o, e);
        return;
    case LEGACY_FX_REFUSED:
        legacy_on_refused(o, e);
        return;
    case LEGACY_FX_CLOSED:
        legacy_on_closed(o, e);
        return;
    case LEGACY_FX_NEWS:
        handler_feed(&o->base,
                     (struct life_event){ .kind = LIFE_NEWS,
                                          .news = e->news,
                                          .code = e->code ? e->code : MUSTER_ECONN,
                                          .text = e->text });
        return;
    }
}

static void legacy_do_step(struct legacy_handler *o, struct legacy_event *ev)
{
    struct legacy_fx fx;

    ev->now = clock_now();
    if (legacy_step(o->core, ev, &fx) < 0)
        handler_no_memory(&o->base);
    for (size_t i = 0; i < fx.count && !handler_ends(&o->base); i++)
        legacy_perform(o, &fx.at[i]);
}

static void legacy_feed(struct legacy_handler *o, struct legacy_event *ev)
{
    static const enum legacy_event_kind kinds[] = { [RDZV_EV_JOIN] = LEGACY_EV_JOIN,
                                                    [RDZV_EV_LEAVE] = LEGACY_EV_LEAVE,
                                                    [RDZV_EV_CLOSE] = LEGACY_EV_CLOSE };
    enum rdzv_event_kind kind;

    assert(!o->in_feed);
    o->in_feed = true;
    if (ev)
        legacy_do_step(o, ev);
    while (!handler_ends(&o->base) && request_take(&o->requests, &kind)) {
        struct legacy_event asked = { .kind = kinds[kind] };

        legacy_do_step(o, &asked);
        if (kind == RDZV_EV_LEAVE) /* The core has nothing to wait for. */
            handler_feed_error(&o->base, LIFE_LEFT, NULL);
    }
    o->in_feed = false;
    handler_arm(&o->base);
}

static void legacy_ask(struct legacy_handler *o, enum rdzv_event_kind kind)
{
    if (request_put(&o->requests, kind))
        handler_feed(&o->base, (struct life_event){ .kind = LIFE_REFUSED,
                                                    .code = MUSTER_ECANCELED,
                                                    .text = "leaving" });
    if (!o->in_feed)
        legacy_feed(o, NULL);
}

/* ---- The workers' address ---- */

static void legacy_address_failed(struct legacy_handler *o,
                                  const struct muster_error *err)
{
    if (err->code != MUSTER_ECANCELED) /* That is our own closing. */
        handler_feed_error(&o->base, LIFE_ADDRESS, err);
}

/* MULTI_GET of keys, or MULTI_SET of keys and values in turn; NULL ends them. */
static void legacy_ask_store(struct legacy_handler *o, enum c10d_op op,
                             async_store_cb cb, const char *const *texts)
{
    struct c10d_request req = { .op = op };
    struct muster_error err = { 0 };
    struct buf list;
    size_t n = 0;
    int rc = 0;

    buf_init(&list, SIZE_MAX);
    for (; rc == 0 && texts[n]; n++)
        rc = c10d_list_add(&list, span_str(texts[n])) < 0 ? err_nomem(&err) : 0;
    req.list = (struct c10d_list){ buf_span(&list), op == C10D_MULTI_SET ? n / 2 : n };
    if (rc == 0)
        rc = async_store_call(o->store, &req, ASYNC_STORE_BLOCK, STORE_MS, cb, o, &err);
    buf_fini(&list);
    if (rc < 0)
        legacy_address_failed(o, &err);
}

static uint16_t port_of(struct span s)
{
    char text[8];

    (void)snprintf(text, sizeof text, "%.*s", (int)MIN_OF(s.n, 7u), (const char *)s.p);
    const long number = strtol(text, NULL, 10);
    return number < 1 || number > 65535 ? 0 : (uint16_t)number;
}

/* torchrun's rank 0 does not set this key. Without it the nodes share no record. */
static void on_job_port(void *ctx, int status, const struct c10d_reply *r,
                        const struct muster_error *err)
{
    struct legacy_handler *o = ctx;

    if (status == MUSTER_ECANCELED)
        return; /* We closed the store meanwhile. */
    if (status < 0 && status != MUSTER_ENOENT)
        log_line(o->log, LOG_WARN, AT_RENDEZVOUS, "finding the job's coordinator: %s",
                 err->text);
    o->job_port = status < 0 ? 0 : port_of(r->value);
    handler_feed_error(&o->base, LIFE_ADDRESS, NULL);
}

static void read_job_port(struct legacy_handler *o)
{
    const struct c10d_request get = { .op = C10D_GET, .key = span_str(JOB_PORT) };
    struct muster_error err = { 0 };

    if (async_store_call(o->store, &get, 0, JOB_MS, on_job_port, o, &err) < 0)
        legacy_address_failed(o, &err);
}

static void legacy_on_address(void *ctx, int status, const struct c10d_reply *r,
                              const struct muster_error *err)
{
    struct legacy_handler *o = ctx;
    struct muster_error bad = { 0 };
    struct c10d_list list;
    struct span addr = { NULL, 0 }, port = { NULL, 0 };

    if (status < 0) {
        legacy_address_failed(o, err);
        return;
    }
    list = r->list;
    (void)c10d_list_next(&list, &addr);
    (void)c10d_list_next(&list, &port);
    o->round.master_port = port_of(port);
    if (addr.n == 0 || addr.n >= sizeof o->master || o->round.master_port == 0) {
        err_set(&bad, MUSTER_ESTATE, "rank 0 has announced no address but '%.*s:%.*s'",
                (int)MIN_OF(addr.n, 200u), (const char *)addr.p,
                (int)MIN_OF(port.n, 7u), (const char *)port.p);
        legacy_address_failed(o, &bad);
        return;
    }
    (void)snprintf(o->master, sizeof o->master, "%.*s", (int)addr.n,
                   (const char *)addr.p);
    o->round.master_addr = o->master;
    read_job_port(o);
}

static void legacy_read_address(struct legacy_handler *o)
{
    legacy_ask_store(o, C10D_MULTI_GET, legacy_on_address,
                     (const char *[]){ "MASTER_ADDR", "MASTER_PORT", NULL });
}

static void on_published(void *ctx, int status, const struct c10d_reply *r,
                         const struct muster_error *err)
{
    (void)r;
    if (status < 0)
        legacy_address_failed(ctx, err);
    else
        legacy_read_address(ctx);
}

static void legacy_announce_address(struct legacy_handler *o)
{
    struct muster_error err = { 0 };
    uint16_t port = 0;
    char text[8], job[8] = "";
    const char *pairs[] = { JOB_PORT,      job,  "MASTER_ADDR", o->addr,
                            "MASTER_PORT", text, NULL };

    if (listen_free_port(&port, &err) < 0) {
        legacy_address_failed(o, &err);
        return;
    }
    (void)snprintf(text, sizeof text, "%u", port);
    if (o->server)
        (void)snprintf(job, sizeof job, "%u", store_server_port(o->server));
    legacy_ask_store(o, C10D_MULTI_SET, on_published, o->server ? pairs : pairs + 2);
}

static void legacy_on_bind_address(void *ctx, const struct bind_address *at)
{
    struct legacy_handler *o = ctx;
    struct store_server_opts opts;
    struct muster_error err;

    o->binding = NULL;
    store_server_opts_init(&opts);
    opts.extension = &run_extension;
    opts.bind = bind_address_text(at);
    opts.auth = o->auth;
    opts.log = o->log;
    if (store_server_open(o->base.handler.loop, &opts, &o->server, &err) == 0)
        bind_address_log(o->log, "the job's coordinator",
                         store_server_address(o->server), at);
    else
        log_line(o->log, LOG_WARN, AT_RENDEZVOUS, "no coordinator for the job: %s",
                 err.text);
    legacy_announce_address(o);
}

static void legacy_publish_address(struct legacy_handler *o)
{
    const struct bind_ask ask = { .asked = o->bind, .host = o->addr, .many = true };

    if (o->server || !o->many)
        legacy_announce_address(o);
    else
        bind_address_find(o->base.handler.loop, &ask, legacy_on_bind_address, o,
                          &o->binding);
}

static void legacy_take_number(struct legacy_handler *o)
{
    const char *local = etcd_client_local(o->client);

    if (!local[0])
        return;
    rdzv_log_nameless(o->log, o->addr, local);
    (void)snprintf(o->addr, sizeof o->addr, "%s", local);
}

static void legacy_on_name(void *ctx, void *data)
{
    struct legacy_handler *o = ctx;
    const struct rdzv_fqdn *f = data;

    o->naming = NULL;
    if (f)
        (void)snprintf(o->addr, sizeof o->addr, "%s", f->name);
    else
        rdzv_hostname(o->addr, sizeof o->addr);
    if (!f || !f->resolves)
        legacy_take_number(o);
    legacy_publish_address(o);
}

static void legacy_find(struct handler_base *s)
{
    struct legacy_handler *o = legacy_of(s);
    struct rdzv_fqdn *job, own;

    o->addr_by_ms = clock_mono_ms() + STORE_MS;
    if (o->round.rank != 0) {
        legacy_read_address(o);
        return;
    }
    if (o->local_addr)
        (void)snprintf(o->addr, sizeof o->addr, "%s", o->local_addr);
    if (o->addr[0]) {
        legacy_publish_address(o);
        return;
    }
    if (rdzv_fqdn_quick(&own)) {
        legacy_on_name(o, &own);
        return;
    }
    job = mem_calloc(1, sizeof *job);
    if (!job || blocking_call_run(s->handler.loop, rdzv_fqdn_resolve, job, RDZV_NAME_MS,
                                  legacy_on_name, o, &o->naming, NULL) < 0) {
        mem_free(job);
        legacy_on_name(o, NULL);
    }
}

/* ---- What the base asks for ---- */

static void legacy_open(struct handler_base *s)
{
    handler_feed_error(s, LIFE_OPENED, NULL);
}

static void no_matter(void *ctx)
{
    (void)ctx;
}

static void legacy_drop(struct handler_base *s)
{
    struct legacy_handler *o = legacy_of(s);

    blocking_call_cancel(o->naming);
    o->naming = NULL;
    bind_address_cancel(o->binding);
    o->binding = NULL;
    o->job_port = 0;
    if (o->store)
        async_store_close(o->store, no_matter, NULL);
    o->store = NULL;
}

static void legacy_join(struct handler_base *s)
{
    struct legacy_handler *o = legacy_of(s);

    log_line(o->log, LOG_INFO, AT_RENDEZVOUS,
             "Attempting to join next rendezvous of run '%s'", o->run_id);
    legacy_ask(o, RDZV_EV_JOIN);
}

static void legacy_leave(struct handler_base *s)
{
    legacy_ask(legacy_of(s), RDZV_EV_LEAVE);
}

static void legacy_close(struct handler_base *s)
{
    legacy_ask(legacy_of(s), RDZV_EV_CLOSE);
}

static const struct rdzv_round *legacy_round(const struct handler_base *s)
{
    return &legacy_of(s)->round;
}

static uint64_t legacy_due(const struct handler_base *s)
{
    const struct legacy_handler *o = legacy_of(s);

    return MIN_OF(
        MIN_OF(legacy_deadline(o->core), o->hiccup_at_ms),
        MIN_OF(MIN_OF(o->run.at_ms, o->rank.at_ms), fence_due(&o->rank.fence)));
}

static void legacy_timer(struct handler_base *s)
{
    struct legacy_handler *o = legacy_of(s);
    struct legacy_event ev = { .kind = LEGACY_EV_TIMER };
    const uint64_t now = clock_mono_ms();
    const bool was_absent = o->rank.fence.asked;

    if (now >= o->run.at_ms)
        keep_refresh(&o->run);
    if (now >= o->rank.at_ms)
        keep_refresh(&o->rank);
    if (fence_passed(&o->rank.fence, now))
        keep_cut_off(&o->rank, was_absent,
                     "our keep-alive key in etcd could not be renewed in time");
    if (now >= o->hiccup_at_ms) {
        struct legacy_event late = { .kind = LEGACY_EV_REPLY,
                                     .code = MUSTER_ETIMEDOUT };

        o->hiccup_at_ms = MONO_NEVER;
        legacy_feed(o, &late);
    }
    if (!handler_ends(s) && now >= legacy_deadline(o->core))
        legacy_feed(o, &ev);
}

static void legacy_stopped(struct handler_base *s, const struct muster_error *err)
{
    (void)err;
    keep_stop(&legacy_of(s)->rank);
    keep_stop(&legacy_of(s)->run);
}

/* ---- The end ---- */

static void on_store_gone(void *ctx)
{
    struct legacy_handler *o = ctx;

    etcd_client_close(o->client, handle_set_left, &o->base.closing);
}

static void legacy_destroy(struct handler_base *s)
{
    struct legacy_handler *o = legacy_of(s);

    blocking_call_cancel(o->naming);
    o->naming = NULL;
    bind_address_cancel(o->binding);
    o->binding = NULL;
    etcd_call_cancel(o->req);
    o->req = NULL;
    keep_stop(&o->run);
    keep_stop(&o->rank);
    handle_set_add(&s->closing);
    if (o->store)
        async_store_close(o->store, on_store_gone, o);
    else
        on_store_gone(o);
    o->store = NULL;
    if (o->server) {
        handle_set_add(&s->closing);
        store_server_close(o->server, handle_set_left, &s->closing);
        o->server = NULL;
    }
}

static void legacy_handler_free(struct legacy_handler *o)
{
    legacy_free(o->core);
    legacy_keep_fini(&o->run.state);
    legacy_keep_fini(&o->rank.state);
    mem_free(o->run_id);
    mem_free(o->local_addr);
    mem_free(o->bind);
    auth_unref(o->auth);
    mem_free(o);
}

static void legacy_release(struct handler_base *s)
{
    const struct handler_gone gone = s->gone;

    legacy_handler_free(legacy_of(s));
    gone.cb(gone.ctx);
}

static const struct handler_impl legacy_impl = {
    .open = legacy_open,
    .join = legacy_join,
    .leave = legacy_leave,
    .close = legacy_close,
    .find = legacy_find,
    .drop = legacy_drop,
    .deadline = legacy_due,
    .timer = legacy_timer,
    .stopped = legacy_stopped,
    .round = legacy_round,
    .destroy = legacy_destroy,
    .release = legacy_release,
};

/* ---- What the agent asks ---- */

static struct legacy_handler *legacy_of_handler(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct legacy_handler, base.handler);
}

static const char *legacy_backend(const struct rdzv_handler *h)
{
    (void)h;
    return "etcd";
}

static bool legacy_use_agent_store(const struct rdzv_handler *h)
{
    (void)h;
    return false;
}

static int64_t legacy_num_waiting(const struct rdzv_handler *h)
{
    return legacy_waiting(legacy_of_handler(h)->core);
}

static bool legacy_is_closed(const struct rdzv_handler *h)
{
    return legacy_closed(legacy_of_handler(h)->core);
}

static bool legacy_tell_progress(const struct rdzv_handler *h,
                                 struct rdzv_progress *out)
{
    const struct legacy_handler *o = legacy_of_handler(h);

    if (!life_wants_round(&o->base.life))
        return false;
    if (!o->store && legacy_progress(o->core, out)) {
        const char *last_error = etcd_client_last_error(o->client);

        if (out->stage == RDZV_AT_STORE && last_error)
            progress_why(out, last_error);
        return true;
    }
    if (!o->store)
        return false;
    *out = (struct rdzv_progress){ .stage = RDZV_AT_ADDRESS,
                                   .by_ms = o->addr_by_ms,
                                   .start_by_ms = MONO_NEVER };
    return true;
}

static bool legacy_store_at(const struct rdzv_handler *h, struct rdzv_store_at *out)
{
    const struct legacy_handler *o = legacy_of_handler(h);
    const bool local =
        o->server && o->job_port == store_server_port(o->server) && o->round.rank == 0;

    *out = (struct rdzv_store_at){
        .host = local ? store_server_own_host(o->server) : o->master,
        .port = o->job_port,
        .local = local,
        .alone = !o->many,
    };
    return out->alone || o->job_port != 0;
}

static uint64_t legacy_fence_due(const struct rdzv_handler *h)
{
    const struct legacy_handler *o = legacy_of_handler(h);

    return o->many ? fence_due(&o->rank.fence) : MONO_NEVER;
}

/* The protocol does not tell torchrun's nodes from ours, so any other may be one. */
static int64_t legacy_torch_nodes(const struct rdzv_handler *h)
{
    return legacy_of_handler(h)->round.world_size - 1;
}

static bool legacy_own_addr(const struct rdzv_handler *h, char *out, size_t size)
{
    const char *local = etcd_client_local(legacy_of_handler(h)->client);

    (void)snprintf(out, size, "%s", local);
    return local[0] != '\0';
}

/* Worker 0 hosts the workers' store, anew each time: there is none to wipe. */
static const struct rdzv_handler_ops legacy_ops = {
    HANDLER_BASE_OPS,
    .backend = legacy_backend,
    .use_agent_store = legacy_use_agent_store,
    .num_nodes_waiting = legacy_num_waiting,
    .is_closed = legacy_is_closed,
    .progress = legacy_tell_progress,
    .store_at = legacy_store_at,
    .fence_due = legacy_fence_due,
    .torch_nodes = legacy_torch_nodes,
    .own_addr = legacy_own_addr,
};

/* ---- Opening ---- */

static void init_keep(struct keep *k, struct legacy_handler *o)
{
    k->owner = o;
    k->at_ms = MONO_NEVER;
    fence_init(&k->fence, UINT64_MAX, 1); /* until keep_start() */
    legacy_keep_init(&k->state);
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

static int legacy_make_parts(struct legacy_handler *o, const struct rdzv_params *params,
                             const struct etcd_conf *conf, struct muster_error *err)
{
    struct legacy_config cfg = { .prefix = conf->prefix,
                                 .run_id = params->run_id,
                                 .min_nodes = params->min_nodes,
                                 .max_nodes = params->max_nodes,
                                 .seed = conf->client.seed,
                                 .log = o->log };
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
    o->bind = mem_strdup(conf_text(params, CONF_BIND));
    o->auth = auth_ref(params->auth);
    o->many = params->max_nodes > 1;
    if (!o->run_id || !o->bind || (params->local_addr && !o->local_addr))
        return err_nomem(err);
    return etcd_client_new(o->base.handler.loop, &conf->client, &o->client, err);
}

int rdzv_etcd_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                     const struct log *log, struct rdzv_handler **out,
                     struct muster_error *err)
{
    struct etcd_conf conf;
    struct legacy_handler *o;
    int rc = etcd_conf_read(&conf, ETCD_BACKEND_LEGACY, params, log, err);

    (void)ctx;
    if (rc < 0)
        return rc;
    o = mem_calloc(1, sizeof *o);
    if (o) {
        o->log = log;
        o->hiccup_at_ms = MONO_NEVER;
        init_keep(&o->run, o);
        init_keep(&o->rank, o);
        o->base.handler.loop = loop;
    }
    rc = o ? legacy_make_parts(o, params, &conf, err) : err_nomem(err);
    etcd_conf_fini(&conf);
    if (rc < 0) {
        if (o)
            legacy_handler_free(o);
        return rc;
    }
    o->kv = (struct etcd_kv){ o->client, ETCD_V2 };
    handler_base_init(&o->base, loop, &legacy_ops, &legacy_impl);
    life_init(&o->base.life, o->run_id, log, 0, false);
    *out = &o->base.handler;
    return 0;
}
