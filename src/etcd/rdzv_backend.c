/* rdzv_backend.c - the rendezvous state in etcd, for the dynamic handler: get, set and
 * watch, then open, presence and close. What is not I/O is in core/rdzv_state.c.
 *
 * etcd-v2 has torch's keys and bytes, so that nodes of torchrun
 * --rdzv-backend=etcd-v2 can be in the group. etcd-v3 is our own. There everything that
 * a node writes is under a lease that the node keeps alive. All nodes write the state,
 * so it stays as long as any node lives; a few minutes after the last node has gone,
 * etcd has deleted everything of the run. */
#include "base/err.h"
#include "base/mem.h"
#include "etcd/core/rdzv_state.h"
#include "etcd/etcd_store.h"
#include "etcd/kv.h"
#include "etcd/lease.h"
#include "etcd/options.h"
#include "etcd/watch.h"
#include "loop/handle_set.h"
#include "rendezvous/state_backend.h"
#include <stdio.h>

struct etcd_state {
    struct rdzv_backend base;
    struct etcd_client *client; /* owned */
    struct etcd_kv kv;
    struct etcd_names names;
    uint64_t lease_ttl_s;
    struct etcd_presence {
        char *path; /* owned; of our key */
        struct etcd_lease *lease;
        struct etcd_watch *watch; /* of the keys of the others */
        struct etcd_op *put;
        uv_timer_t again; /* to put again */
        rdzv_peer_cb on_peer;
        rdzv_cut_off_cb on_cut_off;
        void *ctx;
    } presence; /* v3 */
    uint64_t read_ms;
    rdzv_open_cb on_open;
    void *open_ctx;
    uint64_t open_by_ms;
    struct etcd_op *req; /* get or set under way */
    rdzv_state_cb on_state;
    void *state_ctx;
    struct etcd_seen seen;
    bool not_sent; /* a request that could not be sent must be reported */
    rdzv_changed_cb on_changed;
    void *changed_ctx;
    uv_timer_t defer_timer;   /* reports a change that is known, or repeats a wait */
    struct etcd_op *wait;     /* v2 */
    struct etcd_watch *watch; /* v3 */
    struct etcd_lease *lease; /* v3 */
    int64_t lease_id;
    struct muster_error not_granted; /* why no lease was granted; code 0: none failed */
    struct handle_set closing;
    rdzv_gone_cb on_gone;
    void *gone_ctx;
};

static inline struct etcd_state *etcd_state_of(struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct etcd_state, base);
}

/* ---- Get and set ---- */

static void etcd_state_notify(struct etcd_state *b, struct rdzv_event *ev)
{
    const rdzv_state_cb cb = b->on_state;

    b->req = NULL;
    b->on_state = NULL;
    cb(b->state_ctx, ev);
}

static void etcd_state_fail(struct etcd_state *b, int code,
                            const struct muster_error *why)
{
    struct muster_error err = *why;
    struct rdzv_event ev;

    if (code == MUSTER_ENOENT && b->lease)
        etcd_lease_check(b->lease);
    etcd_state_failed(&ev, code);
    err_wrap(&err, "The connection to etcd has failed");
    ev.text = err.text;
    etcd_state_notify(b, &ev);
}

static void on_defer(uv_timer_t *timer);
static void on_events(void *ctx, const struct etcd3_reply *events);

/* v3. If the watch cannot be started, the next answer tries again. */
static void etcd_state_start_watch(struct etcd_state *b, uint64_t revision)
{
    struct etcd_watch_opts opts = { .start_revision = (int64_t)revision + 1,
                                    .on_change = on_events,
                                    .ctx = b };

    if (b->kv.api != ETCD_V3 || b->watch)
        return;
    opts.key = span_str(b->names.change_key);
    (void)etcd_watch_start(b->client, &opts, &b->watch, NULL);
}

static void etcd_state_answer(struct etcd_state *b, bool write, bool won,
                              const struct etcd_held *held)
{
    char token[ETCD_TOKEN_SIZE];
    struct rdzv_event ev;

    etcd_state_event(&ev, write, won, held, token);
    etcd_seen_notified(&b->seen, held);
    etcd_state_start_watch(b, held->revision);
    etcd_state_notify(b, &ev);
    if (b->on_changed && etcd_is_stale(&b->seen)) /* It has changed since. */
        (void)uv_timer_start(&b->defer_timer, on_defer, 0, 0);
}

static void on_got(void *ctx, int status, const struct etcd_held *held,
                   const struct muster_error *err)
{
    if (status < 0)
        etcd_state_fail(ctx, status, err);
    else
        etcd_state_answer(ctx, false, false, held);
}

static void rdzv_backend_on_put(void *ctx, int status, const struct etcd_held *held,
                                const struct muster_error *err)
{
    if (status < 0 && status != MUSTER_EEXIST)
        etcd_state_fail(ctx, status, err);
    else
        etcd_state_answer(ctx, true, status == 0, held);
}

/* The failure is reported from the loop, like every other answer. */
static void report_not_sent(struct etcd_state *b)
{
    b->not_sent = true;
    (void)uv_timer_start(&b->defer_timer, on_defer, 0, 0);
}

static void etcd_state_get(struct rdzv_backend *base, uint64_t timeout_ms,
                           rdzv_state_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    const struct etcd_kv_request req = {
        .kind = KV_OPERATION_GET,
        .path = span_str(b->names.key),
        .timeout_ms = MIN_OF(timeout_ms, MIN_OF(b->read_ms, ETCD_REQUEST_MS)),
    };

    b->on_state = cb;
    b->state_ctx = ctx;
    if (etcd_kv_start(&b->kv, &req, on_got, b, &b->req, NULL) < 0)
        report_not_sent(b);
}

static void etcd_state_set(struct rdzv_backend *base, struct span value, bool has_token,
                           struct span token, bool quiet, uint64_t timeout_ms,
                           rdzv_state_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    const struct etcd_put put =
        etcd_state_put(&b->names, value, has_token, token, quiet, b->lease_id);
    const struct etcd_kv_request req = {
        .kind = KV_OPERATION_PUT,
        .put = &put,
        .timeout_ms = MIN_OF(timeout_ms, MIN_OF(b->read_ms, ETCD_REQUEST_MS)),
    };

    b->on_state = cb;
    b->state_ctx = ctx;
    if (etcd_kv_start(&b->kv, &req, rdzv_backend_on_put, b, &b->req, NULL) < 0)
        report_not_sent(b);
}

/* ---- Watching ---- */

static void etcd_state_start_wait(struct etcd_state *b);

static void etcd_state_changed(struct etcd_state *b)
{
    const rdzv_changed_cb cb = b->on_changed;

    b->on_changed = NULL;
    if (cb)
        cb(b->changed_ctx);
}

static void on_defer(uv_timer_t *timer)
{
    struct etcd_state *b = timer->data;
    struct muster_error err = { 0 };

    if (b->not_sent) {
        b->not_sent = false;
        etcd_state_fail(b, err_nomem(&err), &err);
    } else if (etcd_is_stale(&b->seen)) {
        etcd_state_changed(b);
    } else if (b->on_changed) {
        etcd_state_start_wait(b);
    }
}

static void rdzv_backend_on_waited(void *ctx, int status, const struct etcd_held *held,
                                   const struct muster_error *err)
{
    struct etcd_state *b = ctx;

    (void)held;
    (void)err;
    b->wait = NULL;
    b->seen.resync = status == 0;
    if (status == 0)
        etcd_state_changed(b);
    else if (b->on_changed) /* etcd is unreachable; reads report that. */
        (void)uv_timer_start(&b->defer_timer, on_defer, 1000, 0);
}

static void etcd_state_start_wait(struct etcd_state *b)
{
    const struct etcd_kv_request req = { .kind = KV_OPERATION_WAIT,
                                         .path = span_str(b->names.key),
                                         .revision = b->seen.revision,
                                         .timeout_ms = UINT64_MAX };

    if (b->kv.api != ETCD_V2)
        return; /* v3's watch runs all the time. */
    etcd_op_cancel(b->wait);
    b->wait = NULL;
    if (etcd_kv_start(&b->kv, &req, rdzv_backend_on_waited, b, &b->wait, NULL) < 0)
        (void)uv_timer_start(&b->defer_timer, on_defer, 1000, 0);
}

static void on_events(void *ctx, const struct etcd3_reply *events)
{
    struct etcd_state *b = ctx;

    etcd_seen_events(&b->seen, b->names.change_key, events);
    if (!b->on_state && etcd_is_stale(&b->seen))
        etcd_state_changed(b);
}

static bool etcd_state_watch(struct rdzv_backend *base, bool present, struct span value,
                             rdzv_changed_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);

    (void)present; /* b->seen has what the driver has seen last. */
    (void)value;
    b->on_changed = cb;
    b->changed_ctx = ctx;
    (void)uv_timer_stop(&b->defer_timer);
    if (etcd_is_stale(&b->seen))
        (void)uv_timer_start(&b->defer_timer, on_defer, 0, 0);
    else
        etcd_state_start_wait(b);
    return b->kv.api == ETCD_V2 || b->watch;
}

/* ---- Open ---- */

static void etcd_state_opened(struct etcd_state *b, int status,
                              const struct muster_error *why)
{
    const rdzv_open_cb cb = b->on_open;
    struct muster_error err = { 0 };

    if (!cb)
        return;
    b->on_open = NULL;
    if (status < 0) {
        err = *why;
        err.code = status == MUSTER_ENOMEM ? status : MUSTER_ECONN;
        err_wrap(&err, "The connection to etcd has failed");
    }
    cb(b->open_ctx, err.code, status < 0 ? &err : NULL);
}

/* Like torch's client, we ask for the other members of the cluster, to use them if this
 * one fails. */
static void on_machines(void *ctx, int status, const struct etcd_answer *a,
                        const struct muster_error *err)
{
    struct etcd_state *b = ctx;
    struct span list, url;

    if (status == 0) {
        list = a->body;
        while (etcd2_machines_next(&list, &url))
            if (etcd_client_add(b->client, url) < 0)
                break;
    }
    etcd_state_opened(b, status, err);
}

static int etcd_state_open_v2(struct etcd_state *b, struct muster_error *err)
{
    const struct etcd_call_opts opts = { .timeout_ms = b->read_ms,
                                         .key = span_str(b->names.key),
                                         .raw = true };
    struct etcd_msg m;

    etcd_msg_init(&m);
    (void)etcd2_encode_machines(&m);
    return etcd_client_call(b->client, &m, &opts, on_machines, b, NULL, err);
}

static void on_granted(void *ctx, int64_t id)
{
    struct etcd_state *b = ctx;

    b->lease_id = id;
    etcd_state_opened(b, 0, NULL);
}

static void on_not_granted(void *ctx, const struct muster_error *err)
{
    struct etcd_state *b = ctx;

    /* A lease that has run out stays in lease_id. Writes under it fail, and are
     * repeated under the next lease; without a lease the keys would stay for ever. */
    b->not_granted = *err;
    if (!etcd_is_transient(err->code) || uv_now(b->base.loop) >= b->open_by_ms)
        etcd_state_opened(b, err->code, err);
}

static void on_late_failure(uv_timer_t *timer)
{
    struct etcd_state *b = timer->data;
    struct muster_error err = { 0 };

    err_nomem(&err);
    etcd_state_opened(b, MUSTER_ENOMEM, &err);
}

static void etcd_state_open(struct rdzv_backend *base, rdzv_open_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    const struct etcd_lease_opts lease = { .ttl_s = ETCD_RUN_TTL_S,
                                           .seed =
                                               uv_hrtime() ^ (uint64_t)uv_os_getpid(),
                                           .on_granted = on_granted,
                                           .on_failed = on_not_granted,
                                           .ctx = b };
    struct muster_error err = { 0 };
    int rc;

    b->on_open = cb;
    b->open_ctx = ctx;
    b->open_by_ms = uv_now(base->loop) + b->read_ms;
    if (b->kv.api == ETCD_V2)
        rc = etcd_state_open_v2(b, &err);
    else
        rc = etcd_lease_start(b->client, &lease, &b->lease, &err);
    if (rc < 0)
        (void)uv_timer_start(&b->defer_timer, on_late_failure, 0, 0);
}

/* ---- Presence: v3 lets etcd itself say which nodes are alive. Each node has a key
 * under a lease that it keeps alive, and watches the keys of the others. The clocks of
 * two machines are never compared. ---- */

#define PRESENCE_MS      10000u
#define PRESENCE_STOP_MS 1000u

static void presence_put(struct etcd_state *b);

static void presence_on_put_again(uv_timer_t *timer)
{
    presence_put(CONTAINER_OF(timer, struct etcd_state, presence.again));
}

static void presence_on_put(void *ctx, int status, const struct etcd_held *held,
                            const struct muster_error *err)
{
    struct etcd_presence *p = &((struct etcd_state *)ctx)->presence;

    (void)held;
    (void)err; /* The reads and writes of the state report such an error. */
    p->put = NULL;
    if (status == MUSTER_ENOENT) /* It has run out: presence_on_granted() puts again. */
        etcd_lease_check(p->lease);
    else if (status < 0)
        (void)uv_timer_start(&p->again, presence_on_put_again, 1000, 0);
}

static void presence_put(struct etcd_state *b)
{
    struct etcd_presence *p = &b->presence;
    const struct etcd_put put = { .path = span_str(p->path),
                                  .value = span_str("1"),
                                  .lease = etcd_lease_id(p->lease) };
    const struct etcd_kv_request req = { .kind = KV_OPERATION_PUT,
                                         .put = &put,
                                         .timeout_ms = PRESENCE_MS };

    etcd_op_cancel(p->put);
    p->put = NULL;
    if (put.lease && etcd_kv_start(&b->kv, &req, presence_on_put, b, &p->put, NULL) < 0)
        (void)uv_timer_start(&p->again, presence_on_put_again, 1000, 0);
}

static void presence_on_granted(void *ctx, int64_t id)
{
    (void)id;
    presence_put(ctx);
}

static void presence_on_cut_off(void *ctx, const char *why)
{
    const struct etcd_presence *p = &((struct etcd_state *)ctx)->presence;

    if (p->on_cut_off)
        p->on_cut_off(p->ctx, why);
}

static void presence_on_change(void *ctx, const struct etcd3_reply *events)
{
    struct etcd_state *b = ctx;
    const struct etcd_presence *p = &b->presence;
    const size_t n = strlen(b->names.nodes);

    /* If the watch missed an event, the keep-alive times in the state still show it. */
    for (size_t i = 0; events && p->on_peer && i < events->event_count; i++) {
        const struct etcd3_event *ev = &events->events[i];

        if (!ev->deleted || !span_starts(ev->kv.key, b->names.nodes) ||
            ev->kv.key.n == n)
            continue;
        if (span_eq(ev->kv.key, span_str(p->path)))
            presence_put(b); /* It has expired: the cluster was away for too long. */
        else
            p->on_peer(p->ctx, span_of(ev->kv.key.p + n, ev->kv.key.n - n));
    }
}

static void presence_start(struct etcd_state *b)
{
    struct etcd_presence *p = &b->presence;
    const struct etcd_watch_opts others = { .key = span_str(b->names.nodes),
                                            .below = true,
                                            .only_ends = true,
                                            .on_change = presence_on_change,
                                            .ctx = b };
    const struct etcd_lease_opts lease = { .ttl_s = b->lease_ttl_s,
                                           .seed = uv_hrtime() ^
                                                   (uint64_t)uv_os_getpid() << 32,
                                           .on_granted = presence_on_granted,
                                           .on_cut_off = presence_on_cut_off,
                                           .ctx = b };

    if (!p->watch)
        (void)etcd_watch_start(b->client, &others, &p->watch, NULL);
    if (p->watch)
        (void)etcd_lease_start(b->client, &lease, &p->lease, NULL);
}

/* Without it the keep-alive times still show who has gone, but later. If we get another
 * name, the old key stays, under our lease: deleting it would tell the others that the
 * node of that name has ended. */
static void etcd_state_presence(struct rdzv_backend *base, const char *self,
                                rdzv_peer_cb cb, rdzv_cut_off_cb cut_off, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    struct etcd_presence *p = &b->presence;
    char *path = mem_printf("%s%s", b->names.nodes, self);

    p->on_peer = cb;
    p->on_cut_off = cut_off;
    p->ctx = ctx;
    if (!path)
        return;
    mem_free(p->path);
    p->path = path;
    if (p->lease)
        presence_put(b);
    else
        presence_start(b);
}

static uint64_t etcd_state_fence_due(const struct rdzv_backend *base)
{
    const struct etcd_state *b = CONTAINER_OF(base, const struct etcd_state, base);

    return b->presence.lease ? etcd_lease_fence_due(b->presence.lease) : MONO_NEVER;
}

/* ---- The rest ---- */

static int etcd_state_store(struct rdzv_backend *base, struct async_store **out,
                            struct muster_error *err)
{
    struct etcd_state *b = etcd_state_of(base);

    return store_etcd_open(&b->kv, b->names.dir, &b->lease_id, out, err);
}

static const char *etcd_state_where(const struct rdzv_backend *base)
{
    return etcd_client_where(CONTAINER_OF(base, struct etcd_state, base)->client);
}

static bool etcd_state_own_addr(const struct rdzv_backend *base, char *out, size_t size)
{
    const struct etcd_state *b = CONTAINER_OF(base, const struct etcd_state, base);
    const char *local = etcd_client_local(b->client);

    (void)snprintf(out, size, "%s", local);
    return local[0] != '\0';
}

static const char *etcd_state_last_error(const struct rdzv_backend *base)
{
    const struct etcd_state *b = CONTAINER_OF(base, struct etcd_state, base);
    const char *text = etcd_client_last_error(b->client);

    return text || !b->not_granted.code ? text : b->not_granted.text;
}

static void etcd_state_free(struct etcd_state *b)
{
    etcd_names_fini(&b->names);
    mem_free(b->presence.path);
    mem_free(b);
}

static void on_all_closed(void *ctx)
{
    struct etcd_state *b = ctx;

    b->on_gone(b->gone_ctx);
    etcd_state_free(b);
}

static void on_presence_gone(void *ctx)
{
    struct etcd_state *b = ctx;

    etcd_client_close(b->client, handle_set_left, &b->closing);
}

/* Our presence key is deleted if the cluster answers within PRESENCE_STOP_MS. */
static void etcd_state_close(struct rdzv_backend *base, rdzv_gone_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    struct etcd_presence *p = &b->presence;

    b->on_gone = cb;
    b->gone_ctx = ctx;
    b->on_open = NULL;
    b->on_changed = NULL;
    p->on_peer = NULL;
    p->on_cut_off = NULL;
    etcd_op_cancel(b->req);
    etcd_op_cancel(b->wait);
    etcd_op_cancel(p->put);
    etcd_watch_stop(b->watch);
    etcd_watch_stop(p->watch);
    etcd_lease_drop(b->lease); /* Others may still read what we wrote under it. */
    handle_set_begin(&b->closing, on_all_closed, b);
    handle_set_close(&b->closing, &b->defer_timer);
    handle_set_close(&b->closing, &p->again);
    handle_set_add(&b->closing); /* for the client */
    if (p->lease)
        etcd_lease_stop(p->lease, PRESENCE_STOP_MS, on_presence_gone, b);
    else
        on_presence_gone(b);
    handle_set_end(&b->closing);
}

#define OPS(which, presence_fn, fence_fn)                                              \
    {                                                                                  \
        .name = which, .open = etcd_state_open, .get = etcd_state_get,                 \
        .set = etcd_state_set, .watch = etcd_state_watch, .presence = presence_fn,     \
        .fence_due = fence_fn, .store = etcd_state_store, .where = etcd_state_where,   \
        .last_error = etcd_state_last_error, .own_addr = etcd_state_own_addr,          \
        .close = etcd_state_close,                                                     \
    }

static const struct rdzv_backend_ops v2_ops = OPS("etcd-v2", NULL, NULL);
static const struct rdzv_backend_ops v3_ops =
    OPS("etcd-v3", etcd_state_presence, etcd_state_fence_due);

static int etcd_state_new(uv_loop_t *loop, enum etcd_backend kind,
                          const struct rdzv_params *params, const struct log *log,
                          struct rdzv_backend **out, struct muster_error *err)
{
    struct etcd_state *b;
    struct etcd_conf conf;
    int rc;

    if (!params->run_id || !params->run_id[0])
        return err_set(err, MUSTER_EINVAL, "The run id must be a non-empty string.");
    rc = etcd_conf_read(&conf, kind, params, log, err);
    if (rc < 0)
        return rc;
    b = mem_calloc(1, sizeof *b);
    rc = b ? etcd_client_new(loop, &conf.client, &b->client, err) : err_nomem(err);
    if (rc == 0) {
        b->base =
            (struct rdzv_backend){ kind == ETCD_BACKEND_V2 ? &v2_ops : &v3_ops, loop };
        b->kv = (struct etcd_kv){ b->client, conf.client.api };
        b->read_ms = conf.read_timeout_ms;
        b->lease_ttl_s = conf.lease_ttl_s;
        rc = etcd_names_init(&b->names, b->kv.api, conf.prefix, params->run_id);
        if (rc < 0) {
            etcd_client_close(b->client, NULL, NULL);
            rc = err_nomem(err);
        }
    }
    etcd_conf_fini(&conf);
    if (rc < 0) {
        if (b)
            etcd_state_free(b);
        return rc;
    }
    (void)uv_timer_init(loop, &b->defer_timer); /* cannot fail */
    (void)uv_timer_init(loop, &b->presence.again);
    b->defer_timer.data = b;
    *out = &b->base;
    return 0;
}

int backend_etcd2_new(uv_loop_t *loop, const struct rdzv_params *params,
                      const struct log *log, struct rdzv_backend **out,
                      struct muster_error *err)
{
    return etcd_state_new(loop, ETCD_BACKEND_V2, params, log, out, err);
}

int backend_etcd3_new(uv_loop_t *loop, const struct rdzv_params *params,
                      const struct log *log, struct rdzv_backend **out,
                      struct muster_error *err)
{
    return etcd_state_new(loop, ETCD_BACKEND_V3, params, log, out, err);
}
