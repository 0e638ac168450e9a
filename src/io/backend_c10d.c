/* backend_c10d.c - the rendezvous state in a c10d store: one key, compared and set.
 *
 * Opens in steps: whose store is it (backend_c10d_host.c), a server if it is ours, a
 * connection, the sentinel under our key, and whether the server can tell of changes.
 * A connection that broke is opened again by the next get or set; the sentinel is then
 * put again too, since a host that was restarted starts empty. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/backend_c10d_int.h"

#define CAPS    "\001muster/caps"
#define CHANGED "\001muster/changed/"

static struct c10d *c10d_of(struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct c10d, base);
}

/* ---- Connecting ---- */

static void on_lost_closed(void *ctx)
{
    c10d_release(ctx);
}

static void drop(struct c10d *c, struct astore **s)
{
    if (!*s)
        return;
    c->refs++;
    astore_close(*s, on_lost_closed, c);
    *s = NULL;
}

/* torch's words first, for whoever searches for them; then what really happened. */
static void describe(const struct c10d *c, const struct muster_error *err,
                     struct muster_error *out)
{
    err_copy(out, err);
    (void)err_wrap(out, "The connection to the C10d store has failed (%s, run id '%s')",
                   c->where, c->run_id);
    if (out->code != MUSTER_ENOMEM)
        out->code = MUSTER_ECONN;
}

static void connected(struct c10d *c, int status, const struct muster_error *err)
{
    const rdzv_open_cb cb = c->on_open;

    struct muster_error e = { .code = 0 };

    c->connecting = false;
    c->up = status == 0;
    if (status < 0)
        drop(c, &c->state);
    else
        c->lost_by_ms = 0;
    if (cb) {
        c->on_open = NULL;
        if (status < 0)
            describe(c, err, &e);
        cb(c->open_ctx, e.code, status == 0 ? NULL : &e);
        return;
    }
    if (c->call.cb)
        c10d_call_go(c, status, err);
}

static void on_caps(void *ctx, int status, const struct c10d_reply *reply,
                    const struct muster_error *err)
{
    struct c10d *c = ctx;

    if (c->closing)
        return;
    c->can_watch =
        status == 0 && memmem(reply->value.p, reply->value.n, "changed", 7) != NULL;
    c->can_host =
        status == 0 && memmem(reply->value.p, reply->value.n, "hosted", 6) != NULL;
    connected(c, 0, err);
}

static void on_caps_there(void *ctx, int status, const struct c10d_reply *reply,
                          const struct muster_error *err)
{
    struct c10d *c = ctx;
    const struct c10d_request get = { .op = C10D_GET, .key = span_str(CAPS) };

    if (c->closing)
        return;
    c->can_watch = false;
    if (status == 0 && reply->number == 0 &&
        astore_call(c->state, &get, 0, c->read_ms, on_caps, c, NULL) == 0)
        return;
    connected(c, status, err);
}

static void on_primed(void *ctx, int status, const struct c10d_reply *reply,
                      const struct muster_error *err)
{
    struct c10d *c = ctx;
    const struct span caps = span_str(CAPS);
    struct muster_error why;

    (void)reply; /* Whoever was first: the sentinel, or a state, is there now. */
    if (c->closing)
        return;
    if (status < 0 || c->file || c->memory) {
        connected(c, status, err);
        return;
    }
    status = astore_check(c->state, &caps, 1, c->read_ms, on_caps_there, c, &why);
    if (status < 0)
        connected(c, status, &why);
}

static void prime(struct c10d *c)
{
    struct muster_error err;
    const int rc = astore_compare_set(c->state, span_str(c->key), span_of(NULL, 0),
                                      span_str(RDZV_C10D_SENTINEL), c->read_ms,
                                      on_primed, c, &err);

    if (rc < 0)
        connected(c, rc, &err);
}

static void on_connected(void *ctx, int status, const struct muster_error *err)
{
    struct c10d *c = ctx;

    if (c->closing)
        return;
    if (status < 0)
        connected(c, status, err);
    else
        prime(c);
}

void c10d_connect(struct c10d *c)
{
    struct muster_error err;
    int rc;

    assert(!c->state && !c->connecting);
    c->connecting = true;
    /* The first time we may have come before the host; later it has been there. */
    rc = c10d_open_store(c, c->lost_by_ms != 0, on_connected, c, &c->state, &err);
    if (rc < 0)
        c10d_later(c, rc, &err);
    else if (c->file ||
             c->memory) /* Open at once; said from the loop, as sockets do. */
        c10d_later(c, 0, NULL);
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

static void fail(struct c10d *c, int code, const struct muster_error *err)
{
    struct rdzv_event ev = { .kind = RDZV_EV_FAILED };
    struct muster_error e;
    const uint64_t now = uv_now(c->base.loop);

    if (is_broken(code)) {
        c->up = false;
        drop(c, &c->state);
        if (c->lost_by_ms == 0)
            c->lost_by_ms = now + c->read_ms;
        ev.again = now < c->lost_by_ms && !c->server;
    }
    describe(c, err, &e);
    ev.code = e.code;
    ev.text = e.text;
    answer(c, &ev);
}

static void on_reply(void *ctx, int status, const struct c10d_reply *reply,
                     const struct muster_error *err)
{
    struct c10d *c = ctx;
    struct rdzv_event ev = { 0 };

    if (c->closing || !c->call.cb)
        return;
    if (status < 0) {
        fail(c, status, err);
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
        fail(c, status, err);
        return;
    }
    status = c->call.write ? astore_compare_set(c->state, span_str(c->key),
                                                buf_span(&c->call.expected),
                                                buf_span(&c->call.sent),
                                                c->call.timeout_ms, on_reply, c, &why)
                           : astore_get(c->state, span_str(c->key), c->call.timeout_ms,
                                        on_reply, c, &why);
    if (status < 0)
        c10d_later(c, status, &why);
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

    (void)quiet; /* whoever watches is told of every change */
    buf_clear(&c->call.sent);
    buf_clear(&c->call.expected);
    if (buf_append_span(&c->call.sent, value) < 0 ||
        buf_append_span(&c->call.expected, expected) < 0) {
        c->call.cb = cb;
        c->call.ctx = ctx;
        c10d_later(c, err_nomem(&err), &err);
        return;
    }
    call(c, true, timeout_ms, cb, ctx);
}

/* ---- Watching ---- */

static uint64_t fnv1a(struct span s)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < s.n; i++)
        h = (h ^ s.p[i]) * 0x100000001b3u;
    return h;
}

static void on_change(void *ctx, int status, const struct c10d_reply *reply,
                      const struct muster_error *err);

/* Waits on the watcher's connection for the wanted value to be replaced. */
static bool watch_go(struct c10d *c)
{
    char key[8192 + 64];
    struct span keys;
    const int n = snprintf(key, sizeof key, CHANGED "%016" PRIx64 "//%s",
                           c->watch.wanted, c->key);

    if (n < 0 || (size_t)n >= sizeof key)
        return false;
    /* One slash ends the hash, the other begins every key of a c10d client. */
    if (!c->watcher && c10d_open_store(c, true, NULL, c, &c->watcher, NULL) < 0)
        return false;
    keys = span_of(key, (size_t)n);
    if (astore_wait(c->watcher, &keys, 1, UINT64_MAX, on_change, c, NULL) < 0) {
        drop(c, &c->watcher);
        return false;
    }
    c->watch.waited = c->watch.wanted;
    c->watch.waiting = true;
    return true;
}

static void on_change(void *ctx, int status, const struct c10d_reply *reply,
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
        /* Say so as a change: whoever looks will meet the broken connection, too. */
        c->can_watch = false;
        drop(c, &c->watcher);
    } else if (cb && c->watch.waited != c->watch.wanted && watch_go(c)) {
        return; /* It was the watch before; this one is on its way. */
    }
    c->watch.cb = NULL;
    if (cb)
        cb(c->watch.ctx);
}

static bool watch(struct rdzv_backend *b, bool present, struct span value,
                  rdzv_changed_cb cb, void *ctx)
{
    struct c10d *c = c10d_of(b);

    if (c->memory)
        return true; /* Only we ourselves change it. */
    if (!c->up || !c->can_watch)
        return false;
    c->watch.wanted = fnv1a(present ? value : span_str(RDZV_C10D_SENTINEL));
    c->watch.cb = cb;
    c->watch.ctx = ctx;
    /* A wait for an older value ends by itself, as that value is no longer there. */
    if (c->watch.waiting || watch_go(c))
        return true;
    c->watch.cb = NULL;
    return false;
}

/* ---- The rest ---- */

static int store(struct rdzv_backend *b, struct astore **out, struct muster_error *err)
{
    return c10d_open_store(c10d_of(b), false, NULL, NULL, out, err);
}

static const char *where(const struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct c10d, base)->where;
}

static bool host(const struct rdzv_backend *b, const char **at, uint16_t *port)
{
    const struct c10d *c = CONTAINER_OF(b, const struct c10d, base);

    *at = c->server ? "127.0.0.1" : c->at.host; /* as c10d_open_store */
    *port = (uint16_t)c->at.port;
    return c->can_host;
}

/* A host is reached as the endpoint says; others as their end of the connection. */
static bool own_addr(const struct rdzv_backend *b, char *out, size_t size)
{
    const struct c10d *c = CONTAINER_OF(b, const struct c10d, base);
    const bool client = c->state && !c->file && !c->memory;
    const char *local = client ? store_client_local(c->state) : NULL;
    const char *colon = local ? strrchr(local, ':') : NULL;

    if (c->server || c->memory) {
        (void)snprintf(out, size, "%s", c->at.host);
        return true;
    }
    if (!colon)
        return false;
    if (local[0] == '[' && colon > local + 1) { /* "[fd77::1]:29400" */
        local++;
        colon--;
    }
    (void)snprintf(out, size, "%.*s", (int)(colon - local), local);
    return true;
}

static size_t guests(const struct rdzv_backend *b)
{
    const struct c10d *c = CONTAINER_OF(b, const struct c10d, base);
    const size_t own = (c->state ? 1u : 0u) + (c->watcher ? 1u : 0u);
    const size_t all = c->server ? store_server_connections(c->server) : 0;

    return all > own ? all - own : 0;
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
    offload_cancel(c->deciding);
    c->deciding = NULL;
    drop(c, &c->state);
    drop(c, &c->watcher);
    drop(c, &c->memory);
    if (c->server) {
        c->refs++;
        store_server_close(c->server, on_server_closed, c);
        c->server = NULL;
    }
    /* The last reference: the timer's, which is there always. */
    uv_close((uv_handle_t *)&c->later.timer, on_handle_closed);
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
    mem_free(c);
    if (cb)
        cb(ctx);
}

/* An error found inside a call is told from the loop. */
static void on_later(uv_timer_t *t)
{
    struct c10d *c = t->data;

    if (c->closing)
        return;
    if (c->connecting && c->later.err.code == 0)
        prime(c);
    else if (c->connecting || c->on_open)
        connected(c, c->later.err.code, &c->later.err);
    else if (c->call.cb)
        fail(c, c->later.err.code, &c->later.err);
}

void c10d_later(struct c10d *c, int code, const struct muster_error *err)
{
    if (err)
        err_copy(&c->later.err, err);
    c->later.err.code = code;
    (void)uv_timer_start(&c->later.timer, on_later, 0, 0);
}

const struct rdzv_backend_ops c10d_ops = {
    .name = "c10d",
    .open = open_backend,
    .get = get,
    .set = set,
    .watch = watch,
    .store = store,
    .where = where,
    .own_addr = own_addr,
    .guests = guests,
    .host = host,
    .close = close_backend,
};
