/* member_driver.c - see member_driver.h: callbacks, feed, perform, open and close. */
#include "rendezvous/member_driver.h"

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "rendezvous/core/request_queue.h"
#include "store/push_session.h"

#define DIAL_MS 5000u

struct member_driver {
    uv_loop_t *loop; /* borrowed */
    struct member *core;
    char *host;        /* owned */
    struct auth *auth; /* a reference, or NULL */
    uint16_t port;
    const struct trace *trace;
    struct push_session *session; /* owned, or NULL */
    struct push_session *silent;  /* owned: one that was hung up on; or NULL */
    uv_timer_t timer;             /* the core's deadline */
    uv_timer_t deferred;          /* takes up requests from the loop */
    struct request_queue requests;
    bool in_feed, closed;
    bool unjoined; /* a JOIN was cancelled before the core had it: report that */
    struct muster_error dial_err; /* why a connection attempt could not begin */
    rdzv_notify_cb cb;
    void *ctx;
    int handles;
    void (*gone)(void *ctx);
    void *gone_ctx;
};

static void member_feed(struct member_driver *d, struct member_event *ev);

/* ---- callbacks ---- */

/* The HELLO goes out before the host can see the end of the silent connection. */
static void on_up(void *ctx)
{
    struct member_driver *d = ctx;
    struct member_event ev = { .kind = MEMBER_UP };

    member_feed(d, &ev);
    push_session_close(d->silent);
    d->silent = NULL;
}

static bool on_msg(void *ctx, struct span bytes, struct muster_error *err)
{
    struct coord_msg m;
    struct member_event ev = { .kind = MEMBER_MSG, .msg = &m };

    if (coord_decode(bytes, &m, err) < 0)
        return false;
    member_feed(ctx, &ev);
    return true;
}

static void on_down(void *ctx, const struct muster_error *err)
{
    struct member_driver *d = ctx;
    struct member_event ev = { .kind = MEMBER_DOWN,
                               .code = err->code,
                               .text = err->text };

    push_session_close(d->session);
    d->session = NULL;
    member_feed(d, &ev);
}

static void member_on_timer(uv_timer_t *t)
{
    struct member_event ev = { .kind = MEMBER_TIMER };

    member_feed(t->data, &ev);
}

static void take_requests(struct member_driver *d)
{
    const struct rdzv_effect refused = { .kind = RDZV_FX_REFUSED,
                                         .code = MUSTER_ECANCELED,
                                         .text = "leaving" };
    struct member_event ev = { .kind = MEMBER_REQUEST };

    while (!d->closed) {
        if (d->unjoined) {
            d->unjoined = false;
            d->cb(d->ctx, &refused);
        } else if (request_take(&d->requests, &ev.request)) {
            member_feed(d, &ev);
        } else {
            return;
        }
    }
}

static void member_on_deferred(uv_timer_t *t)
{
    struct member_driver *d = t->data;
    struct member_event ev = { .kind = MEMBER_DOWN };

    if (d->dial_err.code) {
        ev.code = d->dial_err.code;
        ev.text = d->dial_err.text;
        d->dial_err.code = 0;
        member_feed(d, &ev);
    }
    take_requests(d);
}

/* ---- feed and perform ---- */

static void dial(struct member_driver *d)
{
    static const struct push_session_cbs cbs = { on_up, on_msg, on_down };
    const struct push_session_opts opts = { .host = d->host,
                                            .auth = d->auth,
                                            .port = d->port,
                                            .timeout_ms = DIAL_MS,
                                            .key = COORD_KEY,
                                            .max = COORD_MAX,
                                            .trace = d->trace };

    push_session_close(d->session);
    d->session = NULL;
    if (push_session_open(d->loop, &opts, &cbs, d, &d->session, &d->dial_err) < 0)
        (void)uv_timer_start(&d->deferred, member_on_deferred, 0, 0);
}

/* A message for which there is no memory is not sent. The host notices that we are
 * silent. */
static void send_msg(struct member_driver *d, const struct coord_msg *m)
{
    struct buf bytes;

    if (!d->session)
        return;
    buf_init(&bytes, COORD_MAX);
    if (coord_encode(&bytes, m) == 0)
        push_session_send(d->session, buf_span(&bytes));
    buf_fini(&bytes);
}

/* One that was not even welcomed is nothing to the host. */
static void hang_up(struct member_driver *d)
{
    if (!d->session || d->silent) {
        push_session_close(d->session);
    } else {
        d->silent = d->session;
        push_session_mute(d->silent);
    }
    d->session = NULL;
}

static void member_perform(struct member_driver *d, const struct member_effect *e)
{
    switch (e->kind) {
    case MEMBER_DIAL:
        dial(d);
        return;
    case MEMBER_HANG_UP:
        hang_up(d);
        return;
    case MEMBER_SEND:
        send_msg(d, &e->msg);
        return;
    case MEMBER_NOTIFY:
        d->cb(d->ctx, &e->notice);
        return;
    }
}

static void member_feed(struct member_driver *d, struct member_event *ev)
{
    struct member_fx fx;

    ev->now = clock_now();
    member_step(d->core, ev, &fx);
    d->in_feed = true;
    for (size_t i = 0; i < fx.count && !d->closed; i++)
        member_perform(d, &fx.at[i]);
    d->in_feed = false;
    if (d->closed)
        return;
    clock_arm(&d->timer, member_on_timer, member_deadline(d->core));
    if (d->requests.bits)
        (void)uv_timer_start(&d->deferred, member_on_deferred, 0, 0);
}

/* ---- what the owner calls ---- */

void member_driver_request(struct member_driver *d, enum rdzv_event_kind kind)
{
    d->unjoined |= request_put(&d->requests, kind);
    if (!d->in_feed)
        (void)uv_timer_start(&d->deferred, member_on_deferred, 0, 0);
}

const struct member *member_driver_core(const struct member_driver *d)
{
    return d->core;
}

int member_driver_open(uv_loop_t *loop, const struct member_config *cfg,
                       const char *host, uint16_t port, rdzv_notify_cb cb, void *ctx,
                       struct member_driver **out, struct muster_error *err)
{
    struct member_driver *d = mem_calloc(1, sizeof *d);
    int rc;

    if (!d)
        return err_nomem(err);
    d->host = mem_strdup(host);
    rc = d->host ? member_new(cfg, &d->core, err) : err_nomem(err);
    if (rc < 0) {
        mem_free(d->host);
        mem_free(d);
        return rc;
    }
    d->loop = loop;
    d->port = port;
    d->trace = cfg->trace;
    d->auth = auth_ref(cfg->auth);
    d->cb = cb;
    d->ctx = ctx;
    (void)uv_timer_init(loop, &d->timer);
    (void)uv_timer_init(loop, &d->deferred);
    d->timer.data = d->deferred.data = d;
    *out = d;
    return 0;
}

static void member_on_closed(uv_handle_t *h)
{
    struct member_driver *d = h->data;

    if (--d->handles)
        return;
    if (d->gone)
        d->gone(d->gone_ctx);
    member_free(d->core);
    auth_unref(d->auth);
    mem_free(d->host);
    mem_free(d);
}

void member_driver_close(struct member_driver *d, void (*gone)(void *ctx), void *ctx)
{
    d->closed = true;
    d->gone = gone;
    d->gone_ctx = ctx;
    push_session_close(d->session);
    push_session_close(d->silent);
    d->session = d->silent = NULL;
    d->handles = 2;
    uv_close((uv_handle_t *)&d->timer, member_on_closed);
    uv_close((uv_handle_t *)&d->deferred, member_on_closed);
}
