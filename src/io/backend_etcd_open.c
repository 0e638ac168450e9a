/* backend_etcd_open.c - the rendezvous state in etcd: open, who is there, close. See
 * backend_etcd.c. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/backend_etcd_int.h"
#include "io/etcd_conf.h"
#include "io/registry.h"
#include "io/store_etcd.h"

static void opened(struct etcd_state *b, int status, const struct muster_error *why)
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

/* Like torch's client, we learn the other members, to go on when this one is gone. */
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
    opened(b, status, err);
}

static int open_v2(struct etcd_state *b, struct muster_error *err)
{
    const struct etcd_call_opts opts = { .timeout_ms = b->read_ms,
                                         .key = span_str(b->names.key),
                                         .raw = true };
    struct etcd_msg m;

    etcd_msg_init(&m);
    if (etcd2_encode_machines(&m) < 0) {
        etcd_msg_fini(&m);
        return err_nomem(err);
    }
    return etcd_client_call(b->client, &m, &opts, on_machines, b, NULL, err);
}

static void on_granted(void *ctx, int64_t id)
{
    struct etcd_state *b = ctx;

    b->lease_id = id;
    opened(b, 0, NULL);
}

static void on_not_granted(void *ctx, const struct muster_error *err)
{
    struct etcd_state *b = ctx;

    /* A lease that has run out stays in lease_id: what is written under it fails, and
     * is written again under the next. Without one it would stay for ever. */
    b->not_granted = *err;
    if (!etcd_is_transient(err->code) || uv_now(b->base.loop) >= b->open_by_ms)
        opened(b, err->code, err);
}

static void on_late_failure(uv_timer_t *timer)
{
    struct etcd_state *b = timer->data;
    struct muster_error err = { 0 };

    err_nomem(&err);
    opened(b, MUSTER_ENOMEM, &err);
}

static void open_backend(struct rdzv_backend *base, rdzv_open_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    struct muster_error err = { 0 };
    int rc;

    b->on_open = cb;
    b->open_ctx = ctx;
    b->open_by_ms = uv_now(base->loop) + b->read_ms;
    if (b->kv.api == ETCD_V2)
        rc = open_v2(b, &err);
    else
        rc = etcd_lease_start(b->client, ETCD_RUN_TTL_S,
                              uv_hrtime() ^ (uint64_t)uv_os_getpid(), on_granted,
                              on_not_granted, b, &b->lease, &err);
    if (rc < 0)
        (void)uv_timer_start(&b->soon, on_late_failure, 0, 0);
}

/* ---- Who is there ---- */

static void on_peer_gone(void *ctx, struct span name)
{
    struct etcd_state *b = ctx;

    if (b->on_peer)
        b->on_peer(b->peer_ctx, name);
}

static void presence(struct rdzv_backend *base, const char *self, rdzv_peer_cb cb,
                     void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    int rc;

    b->on_peer = cb;
    b->peer_ctx = ctx;
    rc = b->here ? etcd_presence_rename(b->here, self)
                 : etcd_presence_start(&b->kv, b->names.nodes, self, b->lease_ttl_s,
                                       on_peer_gone, b, &b->here, NULL);
    (void)rc; /* Without it the heartbeats tell, later. */
}

/* ---- The rest ---- */

static int store(struct rdzv_backend *base, struct astore **out,
                 struct muster_error *err)
{
    struct etcd_state *b = etcd_state_of(base);

    return store_etcd_open(&b->kv, b->names.dir, &b->lease_id, out, err);
}

static const char *where(const struct rdzv_backend *base)
{
    return etcd_client_where(CONTAINER_OF(base, struct etcd_state, base)->client);
}

static bool own_addr(const struct rdzv_backend *base, char *out, size_t size)
{
    const struct etcd_state *b = CONTAINER_OF(base, const struct etcd_state, base);
    const char *local = etcd_client_local(b->client);

    (void)snprintf(out, size, "%s", local);
    return local[0] != '\0';
}

static const char *trouble(const struct rdzv_backend *base)
{
    const struct etcd_state *b = CONTAINER_OF(base, struct etcd_state, base);
    const char *text = etcd_client_trouble(b->client);

    return text || !b->not_granted.code ? text : b->not_granted.text;
}

static void state_free(struct etcd_state *b)
{
    etcd_names_fini(&b->names);
    mem_free(b);
}

static void maybe_gone(struct etcd_state *b)
{
    if (!b->soon_closed || !b->client_closed)
        return;
    b->on_gone(b->gone_ctx);
    state_free(b);
}

static void on_soon_closed(uv_handle_t *handle)
{
    struct etcd_state *b = handle->data;

    b->soon_closed = true;
    maybe_gone(b);
}

static void on_client_closed(void *ctx)
{
    struct etcd_state *b = ctx;

    b->client_closed = true;
    maybe_gone(b);
}

static void on_presence_gone(void *ctx)
{
    struct etcd_state *b = ctx;

    etcd_client_close(b->client, on_client_closed, b);
}

static void close_backend(struct rdzv_backend *base, rdzv_gone_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);

    b->on_gone = cb;
    b->gone_ctx = ctx;
    b->on_open = NULL;
    b->on_changed = NULL;
    etcd_op_cancel(b->req);
    etcd_op_cancel(b->wait);
    etcd_watch_stop(b->watch);
    b->on_peer = NULL;
    etcd_lease_drop(b->lease); /* Others may still read what we wrote. */
    if (b->here)
        etcd_presence_stop(b->here, on_presence_gone, b);
    else
        on_presence_gone(b);
    uv_close((uv_handle_t *)&b->soon, on_soon_closed);
}

#define OPS(which, here)                                                               \
    {                                                                                  \
        .name = which, .open = open_backend, .get = etcd_state_get,                    \
        .set = etcd_state_set, .watch = etcd_state_watch, .presence = here,            \
        .store = store, .where = where, .trouble = trouble, .own_addr = own_addr,      \
        .close = close_backend,                                                        \
    }

static const struct rdzv_backend_ops v2_ops = OPS("etcd-v2", NULL);
static const struct rdzv_backend_ops v3_ops = OPS("etcd-v3", presence);

static int state_new(uv_loop_t *loop, enum etcd_backend kind,
                     const struct rdzv_params *params, const struct trace *trace,
                     struct rdzv_backend **out, struct muster_error *err)
{
    struct etcd_state *b;
    struct etcd_conf conf;
    int rc;

    if (!params->run_id || !params->run_id[0])
        return err_set(err, MUSTER_EINVAL, "The run id must be a non-empty string.");
    rc = etcd_conf_read(&conf, kind, params, trace, err);
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
        if (rc < 0 || uv_timer_init(loop, &b->soon) < 0) {
            etcd_client_close(b->client, NULL, NULL);
            rc = err_nomem(err);
        }
    }
    etcd_conf_fini(&conf);
    if (rc < 0) {
        if (b)
            state_free(b);
        return rc;
    }
    b->soon.data = b;
    *out = &b->base;
    return 0;
}

static int create(enum etcd_backend kind, uv_loop_t *loop,
                  const struct rdzv_params *params, const struct trace *trace,
                  struct rdzv_handler **out, struct muster_error *err)
{
    struct rdzv_backend *b;
    const int rc = state_new(loop, kind, params, trace, &b, err);

    return rc < 0 ? rc : rdzv_dynamic_create(loop, params, trace, b, out, err);
}

int rdzv_etcd2_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                      const struct trace *trace, struct rdzv_handler **out,
                      struct muster_error *err)
{
    (void)ctx;
    return create(ETCD_BACKEND_V2, loop, params, trace, out, err);
}

int rdzv_etcd3_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                      const struct trace *trace, struct rdzv_handler **out,
                      struct muster_error *err)
{
    (void)ctx;
    return create(ETCD_BACKEND_V3, loop, params, trace, out, err);
}
