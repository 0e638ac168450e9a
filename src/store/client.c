/* store_client.c - a c10d store over TCP: open, call, close; see store_client.h. */
#include "store/client.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/client_int.h"
#include <assert.h>
#include <stdio.h>

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

static int client_call(struct async_store *s, const struct c10d_request *req,
                       unsigned flags, uint64_t timeout_ms, async_store_cb cb,
                       void *ctx, struct muster_error *err)
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

static void client_close(struct async_store *s, async_store_closed_cb cb, void *ctx)
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

static const char *client_name(const struct async_store *s)
{
    return ((const struct client *)s)->name;
}

static int client_clone(struct async_store *s, struct async_store **out,
                        struct muster_error *err)
{
    struct client *c = (struct client *)s;

    return store_client_open(s->loop, &c->opts, NULL, NULL, out, err);
}

static const struct async_store_ops client_ops = {
    .kind = "tcp",
    .call = client_call,
    .clone = client_clone,
    .close = client_close,
    .name = client_name,
};

int store_client_open(uv_loop_t *loop, const struct store_client_opts *opts,
                      store_open_cb cb, void *ctx, struct async_store **out,
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
    c->base = (struct async_store){ &client_ops, loop };
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

static const struct client *tcp_client(const struct async_store *s)
{
    assert(s->ops == &client_ops);
    return (const struct client *)s;
}

void store_client_on_loss(struct async_store *s, store_open_cb cb, void *ctx)
{
    struct client *c = (struct client *)s;

    (void)tcp_client(s);
    c->loss_cb = cb;
    c->loss_ctx = ctx;
}

const char *store_client_peer(const struct async_store *s)
{
    const struct client *c = tcp_client(s);

    return c->peer[0] ? c->peer : NULL;
}

const char *store_client_local(const struct async_store *s)
{
    const struct client *c = tcp_client(s);

    return c->local[0] ? c->local : NULL;
}

/* store_client_end.c - how calls end, and connections; see store_client_int.h. */
void client_tell(struct call *call, int status, const struct c10d_reply *reply,
                 const struct muster_error *err)
{
    if (call->orphan)
        return;
    call->orphan = true;
    call->cb(call->ctx, status, reply, err);
}

void client_end(struct client *c, struct call *call)
{
    c->calls--;
    call_free(call);
}

void client_fail_call(struct client *c, struct call *call,
                      const struct muster_error *why)
{
    struct muster_error err = *why;
    char what[160];

    call_text(call, what);
    (void)err_wrap(&err, "%s", what);
    client_tell(call, err.code, NULL, &err);
    client_end(c, call);
}

void client_fail_all(struct client *c, const struct muster_error *why)
{
    struct call_list *const lists[] = { &c->unwritten, &c->asked, &c->queued };
    struct call *call;

    c->blocked = NULL;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        while ((call = call_list_take(lists[i])))
            client_fail_call(c, call, why);
}

void client_drop(struct client *c)
{
    dial_free(c->dialer);
    c->dialer = NULL;
    if (c->conn) {
        c->conn->tcp.data = NULL;
        dial_conn_close(c->conn);
    }
    c->conn = NULL;
    if (c->busy)
        c->busy->client = NULL;
    c->busy = NULL;
}

/* Connections are not made anew: what the server knew of us, waits and all, is gone,
 * and only the caller knows what that means. hint is for the call that it was about to
 * answer. */
static void lose_with(struct client *c, const struct muster_error *why,
                      const char *hint)
{
    struct muster_error hinted = *why;
    struct call *first;

    if (c->state != CLIENT_READY)
        return;
    c->state = CLIENT_BROKEN;
    c->why = *why;
    client_drop(c);
    err_add(&hinted, "%s", hint);
    if ((first = call_list_take(&c->asked)))
        client_fail_call(c, first, &hinted);
    client_fail_all(c, why);
    if (c->loss_cb && c->state == CLIENT_BROKEN)
        c->loss_cb(c->loss_ctx, why->code, why);
}

void client_lose(struct client *c, const struct muster_error *why)
{
    lose_with(c, why, "");
}

/* A server of torch has no other way to say no than to hang up. */
static const char *refused_perhaps(const struct call *call)
{
    if (!call)
        return "";
    switch ((int)call->op) {
    case C10D_QUEUE_PUSH:
    case C10D_QUEUE_POP:
    case C10D_QUEUE_LEN:
        return " (torch's store has queues only with use_libuv=True)";
    case C10D_ADD:
    case C10D_BARRIER:
        return " (it hangs up if the key's value is not a number)";
    case C10D_GET:
    case C10D_MULTI_GET:
        return " (with use_libuv=False it hangs up if the key is missing)";
    default:
        return "";
    }
}

void client_lose_uv(struct client *c, int uv)
{
    struct muster_error err;

    (void)err_set(&err, uv == UV_ENOMEM ? MUSTER_ENOMEM : MUSTER_EHANGUP,
                  "%s at %s: %s", c->name, c->peer,
                  uv == UV_EOF ? "Failed to recv, got 0 bytes. Connection was likely "
                                 "closed. Did the remote server shutdown or crash?"
                  : uv == UV_ECONNRESET ? "Connection reset by peer"
                  : uv == UV_EPIPE      ? "Broken pipe"
                                        : uv_strerror(uv));
    lose_with(c, &err, refused_perhaps(c->asked.first));
}

/* store_client_time.c - deadlines of calls; see store_client_int.h.
 *
 * The timer goes off at the earliest deadline that was ever set, and looks at all of
 * them: calls come and go far more often than they are late. */
uint64_t client_mono_ms(void)
{
    return uv_hrtime() / 1000000;
}

static void on_time(uv_timer_t *timer);

void client_arm(struct client *c, uint64_t due_ms)
{
    const uint64_t now = client_mono_ms();

    if (due_ms >= c->armed_ms)
        return;
    c->armed_ms = due_ms;
    uv_update_time(c->base.loop);
    (void)uv_timer_start(&c->timer, on_time, due_ms > now ? due_ms - now : 0, 0);
}

static struct call *first_due(struct client *c, uint64_t now, struct call_list **in)
{
    struct call_list *const lists[] = { &c->queued, &c->unwritten, &c->asked };

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (struct call *call = lists[i]->first; call; call = call->next)
            if (call->deadline_ms <= now) {
                *in = lists[i];
                return call;
            }
    return NULL;
}

/* The server may have answered the wait already; take_cancelled sorts that out. */
static void send_cancel(struct client *c, struct call *call)
{
    const struct c10d_request cancel = { .op = C10D_CANCEL_WAIT };
    struct muster_error err;

    if (c10d_encode_request(&c->out, &cancel, &err) < 0) {
        client_lose(c, &err);
        return;
    }
    c->sent++;
    call->phase = CALL_CANCELING;
    call->deadline_ms = client_mono_ms() + CANCEL_MS;
}

static const char *held_up_by(const struct client *c, const struct call *call)
{
    if (call->phase != CALL_QUEUED)
        return "";
    if (c->dialer)
        return dial_last_failure(c->dialer);
    return c->blocked ? "another call on this connection waits" : "";
}

/* Until when somebody waits for the connection to be free again; 0: nobody does. */
static uint64_t wanted_until(const struct client *c)
{
    uint64_t until = 0;

    for (const struct call *call = c->queued.first; call; call = call->next)
        until = MAX_OF(until, call->deadline_ms);
    return until;
}

/* A server that does not answer CANCEL_WAIT may be stopped for a while: those in the
 * queue have the time that they were given. With nobody left there is no use in a
 * connection on which nothing can be asked. */
static void cancel_unanswered(struct client *c, struct call *call)
{
    const uint64_t now = client_mono_ms(), wanted_ms = wanted_until(c);
    struct muster_error err;

    if (!call->overdue || wanted_ms > now) {
        /* The loop may have rested for long, with the answer waiting to be read. */
        call->deadline_ms = call->overdue ? wanted_ms : now + READ_FIRST_MS;
        call->overdue = true;
        return;
    }
    (void)err_set(&err, MUSTER_EHANGUP,
                  "%s at %s: the connection was given up, since the server did not "
                  "answer CANCEL_WAIT for %d s: it hangs, or the network does",
                  c->name, c->peer, (CANCEL_MS + READ_FIRST_MS) / 1000);
    client_lose(c, &err);
}

static void expire(struct client *c, struct call *call, struct call_list *in)
{
    const bool queued = call->phase == CALL_QUEUED;
    struct muster_error err;

    if (call->phase == CALL_CANCELING) {
        cancel_unanswered(c, call);
        return;
    }
    call_timed_out(call, c->name, held_up_by(c, call), &err);
    call->deadline_ms = MONO_NEVER;
    if (queued)
        call_list_remove(in, call);
    client_tell(call, err.code, NULL, &err);
    if (queued)
        client_end(c, call);
    else if (call->phase == CALL_WAITING && c->state == CLIENT_READY)
        send_cancel(c, call);
}

static void on_time(uv_timer_t *timer)
{
    struct client *c = timer->data;
    const uint64_t now = client_mono_ms();
    struct call_list *const lists[] = { &c->queued, &c->unwritten, &c->asked };
    struct call_list *in;
    struct call *call;

    c->armed_ms = MONO_NEVER;
    while (c->state != CLIENT_CLOSED && (call = first_due(c, now, &in)))
        expire(c, call, in);
    if (c->state == CLIENT_CLOSED)
        return;
    client_run(c);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (call = lists[i]->first; call; call = call->next)
            client_arm(c, call->deadline_ms);
}
