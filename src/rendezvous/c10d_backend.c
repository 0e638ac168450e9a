/* c10d_backend.c - the rendezvous state in a c10d store: one key, which is compared and
 * set.
 *
 * It opens in steps: find out which process hosts the store, start the server if that
 * is us, and connect (c10d_backend_open.c). After the connection broke, the next get or
 * set opens it again. */
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/c10d_backend_int.h"
#include "store/core/reserved.h"
#include <inttypes.h>
#include <stdio.h>

static struct c10d *c10d_of(struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct c10d, base);
}

/* ---- Get and set ---- */

static void answer(struct c10d *c, const struct rdzv_event *ev)
{
    const rdzv_state_cb cb = c->call.cb;

    c->call.cb = NULL;
    cb(c->call.ctx, ev);
}

static bool is_broken(int code)
{
    return code != MUSTER_ETIMEDOUT && code != MUSTER_ENOMEM && code != MUSTER_EINVAL;
}

void c10d_fail(struct c10d *c, int code, const struct muster_error *err)
{
    struct rdzv_event ev = { .kind = RDZV_EV_FAILED };
    struct muster_error e;
    const uint64_t now = uv_now(c->base.loop);

    if (is_broken(code)) {
        c->up = false;
        c10d_drop(c, &c->state);
        if (c->lost_by_ms == 0)
            c->lost_by_ms = now + c->read_ms;
        ev.again = now < c->lost_by_ms && !c->server;
    }
    c10d_describe(c, err, &e);
    ev.code = e.code;
    ev.text = e.text;
    answer(c, &ev);
}

static void c10d_on_reply(void *ctx, int status, const struct c10d_reply *reply,
                          const struct muster_error *err)
{
    struct c10d *c = ctx;
    struct rdzv_event ev = { 0 };

    if (c->closing || !c->call.cb)
        return;
    if (status < 0) {
        c10d_fail(c, status, err);
        return;
    }
    rdzv_c10d_answer(&ev, c->call.write, buf_span(&c->call.expected),
                     buf_span(&c->call.sent), reply->value);
    answer(c, &ev);
}

void c10d_call_go(struct c10d *c, int status, const struct muster_error *err)
{
    struct muster_error why;

    if (status < 0) {
        c10d_fail(c, status, err);
        return;
    }
    status = c->call.write
                 ? async_store_compare_set(c->state, span_str(c->key),
                                           buf_span(&c->call.expected),
                                           buf_span(&c->call.sent), c->call.timeout_ms,
                                           c10d_on_reply, c, &why)
                 : async_store_get(c->state, span_str(c->key), c->call.timeout_ms,
                                   c10d_on_reply, c, &why);
    if (status < 0)
        c10d_defer(c, status, &why);
}

static void call(struct c10d *c, bool write, uint64_t timeout_ms, rdzv_state_cb cb,
                 void *ctx)
{
    static const struct muster_error none;

    assert(!c->call.cb && !c->on_open);
    c->call.write = write;
    c->call.timeout_ms = MIN_OF(timeout_ms, c->read_ms);
    c->call.cb = cb;
    c->call.ctx = ctx;
    if (c->up)
        c10d_call_go(c, 0, &none);
    else if (!c->connecting)
        c10d_connect(c);
}

static void get(struct rdzv_backend *b, uint64_t timeout_ms, rdzv_state_cb cb,
                void *ctx)
{
    call(c10d_of(b), false, timeout_ms, cb, ctx);
}

static void set(struct rdzv_backend *b, struct span value, bool has_token,
                struct span token, bool quiet, uint64_t timeout_ms, rdzv_state_cb cb,
                void *ctx)
{
    struct c10d *c = c10d_of(b);
    struct muster_error err;
    const struct span expected = has_token ? token : span_str(RDZV_C10D_SENTINEL);

    (void)quiet; /* The server reports every change to all watchers. */
    buf_clear(&c->call.sent);
    buf_clear(&c->call.expected);
    if (buf_append_span(&c->call.sent, value) < 0 ||
        buf_append_span(&c->call.expected, expected) < 0) {
        c->call.cb = cb;
        c->call.ctx = ctx;
        c10d_defer(c, err_nomem(&err), &err);
        return;
    }
    call(c, true, timeout_ms, cb, ctx);
}

/* ---- The rest ---- */

static int store(struct rdzv_backend *b, struct async_store **out,
                 struct muster_error *err)
{
    return c10d_open_store(c10d_of(b), false, NULL, NULL, out, err);
}

static const char *where(const struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct c10d, base)->where;
}

static bool host(const struct rdzv_backend *b, struct rdzv_host *out)
{
    const struct c10d *c = CONTAINER_OF(b, const struct c10d, base);

    *out = (struct rdzv_host){
        .host = c->server ? store_server_own_host(c->server)
                          : c->at.host, /* as in c10d_open_store() */
        .port = (uint16_t)c->at.port,
    };
    return c->can_host;
}

static struct store_conn *take_conn(struct rdzv_backend *b)
{
    struct c10d *c = c10d_of(b);
    struct store_conn *conn = c->state && !c->up ? store_client_take(c->state) : NULL;

    if (conn)
        c10d_drop(c, &c->state);
    return conn;
}

static const struct store_server *serves(const struct rdzv_backend *b)
{
    return CONTAINER_OF(b, const struct c10d, base)->server;
}

/* If we host, other nodes reach us as the endpoint says, otherwise at our end of the
 * connection. */
static bool own_addr(const struct rdzv_backend *b, char *out, size_t size)
{
    const struct c10d *c = CONTAINER_OF(b, const struct c10d, base);
    const char *local = c->local[0] ? c->local : NULL;
    char reached[IP_TEXT];

    if (c->server || c->memory) /* The others' way to us, or what they were told. */
        local = c->server && store_server_reached_at(c->server, reached) ? reached
                                                                         : c->at.host;
    if (local)
        (void)snprintf(out, size, "%s", local);
    return local != NULL;
}

static size_t other_connections(const struct rdzv_backend *b)
{
    const struct c10d *c = CONTAINER_OF(b, const struct c10d, base);
    const size_t own = (c->state ? 1u : 0u) + (c->watcher ? 1u : 0u);
    const size_t all = c->server ? store_server_connections(c->server) : 0;

    if (all > own)
        return all - own;
    return c->server && store_server_awaits(c->server) ? 1 : 0;
}

static void open_backend(struct rdzv_backend *b, rdzv_open_cb cb, void *ctx)
{
    struct c10d *c = c10d_of(b);

    c->on_open = cb;
    c->open_ctx = ctx;
    c10d_host_decide(c);
}

static void on_server_closed(void *ctx)
{
    c10d_release(ctx);
}

static void on_handle_closed(uv_handle_t *h)
{
    c10d_release(h->data);
}

static void close_backend(struct rdzv_backend *b, rdzv_gone_cb cb, void *ctx)
{
    struct c10d *c = c10d_of(b);

    assert(!c->closing);
    c->closing = true;
    c->on_gone = cb;
    c->gone_ctx = ctx;
    blocking_call_cancel(c->deciding);
    c->deciding = NULL;
    bind_address_cancel(c->binding);
    c->binding = NULL;
    c10d_drop(c, &c->state);
    c10d_drop(c, &c->watcher);
    c10d_drop(c, &c->memory);
    if (c->server) {
        c->refs++;
        store_server_close(c->server, on_server_closed, c);
        c->server = NULL;
    }
    /* The last references are those of the timers, which always exist. */
    uv_close((uv_handle_t *)&c->unbound_timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->deferred.timer, on_handle_closed);
}

void c10d_release(struct c10d *c)
{
    const rdzv_gone_cb cb = c->on_gone;
    void *ctx = c->gone_ctx;

    if (--c->refs > 0)
        return;
    buf_fini(&c->call.sent);
    buf_fini(&c->call.expected);
    mem_free(c->key);
    mem_free(c->run_id);
    mem_free(c->path);
    mem_free(c->bind);
    auth_unref(c->auth);
    mem_free(c);
    if (cb)
        cb(ctx);
}

static bool c10d_watch(struct rdzv_backend *b, bool present, struct span value,
                       rdzv_changed_cb cb, void *ctx);

const struct rdzv_backend_ops c10d_ops = {
    .name = "c10d",
    .open = open_backend,
    .get = get,
    .set = set,
    .watch = c10d_watch,
    .store = store,
    .where = where,
    .own_addr = own_addr,
    .other_connections = other_connections,
    .host = host,
    .take_conn = take_conn,
    .serves = serves,
    .close = close_backend,
};

/* ---- Waiting for the state to change, on a connection of its own, if the server is
 * ours (store/core/reserved.h) ---- */

static void c10d_backend_on_change(void *ctx, int status,
                                   const struct c10d_reply *reply,
                                   const struct muster_error *err);

/* Waits on the watcher's connection for the wanted value to be replaced. */
static bool watch_go(struct c10d *c)
{
    char key[8192 + 64];
    /* The client adds the first slash; one more ends the hash, and one begins every
     * key. */
    const int n = snprintf(key, sizeof key, "%s%016" PRIx64 "//%s",
                           &RESERVED_CHANGED[1], c->watch.wanted, c->key);

    if (n < 0 || (size_t)n >= sizeof key)
        return false;
    if (!c->watcher && c10d_open_store(c, true, NULL, c, &c->watcher, NULL) < 0)
        return false;
    if (async_store_wait(c->watcher, span_of(key, (size_t)n), UINT64_MAX,
                         c10d_backend_on_change, c, NULL) < 0) {
        c10d_drop(c, &c->watcher);
        return false;
    }
    c->watch.waited = c->watch.wanted;
    c->watch.waiting = true;
    return true;
}

static void c10d_backend_on_change(void *ctx, int status,
                                   const struct c10d_reply *reply,
                                   const struct muster_error *err)
{
    struct c10d *c = ctx;
    const rdzv_changed_cb cb = c->watch.cb;

    (void)reply;
    (void)err;
    c->watch.waiting = false;
    if (c->closing)
        return;
    if (status < 0) {
        /* Report this as a change: the next read will meet the broken connection,
         * too. */
        c->can_watch = false;
        c10d_drop(c, &c->watcher);
    } else if (cb && c->watch.waited != c->watch.wanted && watch_go(c)) {
        return; /* That was the previous watch; the new one is under way. */
    }
    c->watch.cb = NULL;
    if (cb)
        cb(c->watch.ctx);
}

/* See rdzv_backend_ops.watch. */
static bool c10d_watch(struct rdzv_backend *b, bool present, struct span value,
                       rdzv_changed_cb cb, void *ctx)
{
    struct c10d *c = CONTAINER_OF(b, struct c10d, base);

    if (c->memory)
        return true; /* No other process can change it. */
    if (!c->up || !c->can_watch)
        return false;
    c->watch.wanted = reserved_hash(present ? value : span_str(RDZV_C10D_SENTINEL));
    c->watch.cb = cb;
    c->watch.ctx = ctx;
    /* A wait for an older value ends by itself, since that value is no longer there. */
    if (c->watch.waiting || watch_go(c))
        return true;
    c->watch.cb = NULL;
    return false;
}
