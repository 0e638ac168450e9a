/* backend_c10d_open.c - the c10d backend's connection for the state: opening it, and
 * again when it broke. Who hosts is known by then (backend_c10d_host.c).
 *
 * Step by step: a connection, the sentinel under our key, and whether the server can
 * tell of changes and host. The sentinel is put again each time, since a host that was
 * restarted starts empty. */
#include "base/err.h"
#include "io/backend_c10d_int.h"
#include "store/reserved.h"

#define CAPS (&RESERVED_CAPS[1]) /* the client puts the slash */

static void on_lost_closed(void *ctx)
{
    c10d_release(ctx);
}

void c10d_drop(struct c10d *c, struct astore **s)
{
    if (!*s)
        return;
    c->refs++;
    astore_close(*s, on_lost_closed, c);
    *s = NULL;
}

/* torch's words first, for whoever searches for them; then what really happened. */
void c10d_describe(const struct c10d *c, const struct muster_error *err,
                   struct muster_error *out)
{
    err_copy(out, err);
    (void)err_wrap(out, "The connection to the C10d store has failed (%s, run id '%s')",
                   c->where, c->run_id);
    if (c->unbound.code)
        err_add(out, ". This machine was to host it, but: %.600s", c->unbound.text);
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
        c10d_drop(c, &c->state);
    else
        c->lost_by_ms = 0;
    if (cb) {
        c->on_open = NULL;
        if (status < 0)
            c10d_describe(c, err, &e);
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
        c10d_fail(c, c->later.err.code, &c->later.err);
}

void c10d_later(struct c10d *c, int code, const struct muster_error *err)
{
    if (err)
        err_copy(&c->later.err, err);
    c->later.err.code = code;
    (void)uv_timer_start(&c->later.timer, on_later, 0, 0);
}
