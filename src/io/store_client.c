/* store_client.c - a c10d store over TCP: open, call, close; see store_client.h. */
#include "io/store_client.h"

#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/store_client_int.h"

static uint64_t after(uint64_t now, uint64_t ms)
{
    return ms < MONO_NEVER - now ? now + ms : MONO_NEVER;
}

static void on_dialled(void *ctx, struct dial_conn *conn,
                       const struct muster_error *err)
{
    struct client *c = ctx;
    const store_open_cb cb = c->open_cb;

    dial_free(c->dialer);
    c->dialer = NULL;
    c->open_cb = NULL;
    c->conn = conn;
    if (conn) {
        c->state = CLIENT_READY;
        conn->tcp.data = c;
        memcpy(c->peer, conn->peer, sizeof c->peer);
        memcpy(c->local, conn->local, sizeof c->local);
        (void)client_start_reading(c);
    } else {
        c->state = CLIENT_BROKEN;
        c->why = *err;
    }
    if (cb)
        cb(c->open_ctx, conn ? 0 : err->code, err);
    if (c->state != CLIENT_CLOSED)
        client_run(c);
}

static void on_kick(uv_idle_t *idle)
{
    (void)uv_idle_stop(idle);
    client_run(idle->data);
}

static int client_call(struct astore *s, const struct c10d_request *req, unsigned flags,
                       uint64_t timeout_ms, astore_cb cb, void *ctx,
                       struct muster_error *err)
{
    struct client *c = (struct client *)s;
    struct call *call;

    if (req->op == C10D_VALIDATE || req->op == C10D_PING || req->op == C10D_CANCEL_WAIT)
        return err_set(err, MUSTER_EINVAL, "%s is not for callers of a store",
                       c10d_op_name(req->op));
    if (c->calls >= MAX_CALLS)
        return err_set(err, MUSTER_EFULL, "%s: %zu calls are pending", c->name,
                       c->calls);
    const bool raw = c->opts.raw_keys || (flags & ASTORE_RAW);
    const int rc = call_new(req, raw ? "" : "/", flags, &call, err);
    if (rc < 0)
        return rc;
    call->cb = cb;
    call->ctx = ctx;
    call->timeout_ms = timeout_ms;
    call->deadline_ms = after(client_mono_ms(), timeout_ms);
    c->calls++;
    call_list_add(&c->queued, call);
    client_arm(c, call->deadline_ms);
    (void)uv_idle_start(&c->kick, on_kick);
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct client *c = handle->data;
    struct muster_error err;

    if (--c->handles)
        return;
    (void)err_set(&err, MUSTER_ECANCELED, "%s: the store was closed", c->name);
    client_fail_all(c, &err);
    if (c->open_cb)
        c->open_cb(c->open_ctx, err.code, &err);
    if (c->closed_cb)
        c->closed_cb(c->closed_ctx);
    buf_fini(&c->in);
    buf_fini(&c->out);
    mem_free(c->host);
    mem_free(c);
}

static void client_close(struct astore *s, astore_closed_cb cb, void *ctx)
{
    struct client *c = (struct client *)s;

    assert(c->state != CLIENT_CLOSED);
    c->state = CLIENT_CLOSED;
    c->closed_cb = cb;
    c->closed_ctx = ctx;
    client_drop(c);
    c->handles = 2;
    uv_close((uv_handle_t *)&c->timer, on_closed);
    uv_close((uv_handle_t *)&c->kick, on_closed);
}

static const char *client_name(const struct astore *s)
{
    return ((const struct client *)s)->name;
}

static int client_clone(struct astore *s, struct astore **out, struct muster_error *err)
{
    struct client *c = (struct client *)s;

    return store_client_open(s->loop, &c->opts, NULL, NULL, out, err);
}

static const struct astore_ops client_ops = {
    .kind = "tcp",
    .call = client_call,
    .clone = client_clone,
    .close = client_close,
    .name = client_name,
};

int store_client_open(uv_loop_t *loop, const struct store_client_opts *opts,
                      store_open_cb cb, void *ctx, struct astore **out,
                      struct muster_error *err)
{
    struct client *c = mem_calloc(1, sizeof *c);
    char *host = mem_strdup(opts->host);
    const struct dial_opts dial = { .host = opts->host,
                                    .port = opts->port,
                                    .timeout_ms = opts->timeout_ms,
                                    .once = opts->once,
                                    .trace = opts->trace };
    int rc;

    if (!c || !host)
        rc = err_nomem(err);
    else
        rc = dial_start(loop, &dial, on_dialled, c, &c->dialer, err);
    if (rc < 0) {
        mem_free(c);
        mem_free(host);
        return rc;
    }
    c->base = (struct astore){ &client_ops, loop };
    c->host = host;
    c->opts = *opts;
    c->opts.host = host;
    (void)snprintf(c->name, sizeof c->name, "tcp://");
    endpoint_text(host, opts->port, c->name + 6);
    c->open_cb = cb;
    c->open_ctx = ctx;
    c->armed_ms = MONO_NEVER;
    buf_init(&c->in, MAX_REPLY + 2 * READ_ROOM);
    buf_init(&c->out, SIZE_MAX);
    (void)uv_timer_init(loop, &c->timer);
    (void)uv_idle_init(loop, &c->kick);
    c->timer.data = c;
    c->kick.data = c;
    *out = &c->base;
    return 0;
}

static const struct client *tcp_client(const struct astore *s)
{
    assert(s->ops == &client_ops);
    return (const struct client *)s;
}

void store_client_on_loss(struct astore *s, store_open_cb cb, void *ctx)
{
    struct client *c = (struct client *)s;

    (void)tcp_client(s);
    c->loss_cb = cb;
    c->loss_ctx = ctx;
}

const char *store_client_peer(const struct astore *s)
{
    const struct client *c = tcp_client(s);

    return c->peer[0] ? c->peer : NULL;
}

const char *store_client_local(const struct astore *s)
{
    const struct client *c = tcp_client(s);

    return c->local[0] ? c->local : NULL;
}
