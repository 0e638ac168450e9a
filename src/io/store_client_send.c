/* store_client_send.c - calls on their way out, and their ends; see store_client_int.h.
 */
#include "io/store_client_int.h"

#include "base/err.h"
#include "base/mem.h"

uint64_t client_mono_ms(void)
{
    return uv_hrtime() / 1000000;
}

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

static void fail_call(struct client *c, struct call *call,
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
            fail_call(c, call, why);
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
        fail_call(c, first, &hinted);
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

    (void)err_set(&err, MUSTER_EHANGUP, "%s at %s: %s", c->name, c->peer,
                  uv == UV_EOF ? "Failed to recv, got 0 bytes. Connection was likely "
                                 "closed. Did the remote server shutdown or crash?"
                  : uv == UV_ECONNRESET ? "Connection reset by peer"
                  : uv == UV_EPIPE      ? "Broken pipe"
                                        : uv_strerror(uv));
    lose_with(c, &err, refused_perhaps(c->asked.first));
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

static void expire(struct client *c, struct call *call, struct call_list *in)
{
    const bool queued = call->phase == CALL_QUEUED;
    struct muster_error err;

    if (call->phase == CALL_CANCELING && !call->overdue) {
        /* The loop may have rested for long, with the answer waiting to be read. */
        call->overdue = true;
        call->deadline_ms = client_mono_ms() + READ_FIRST_MS;
        return;
    }
    if (call->phase == CALL_CANCELING) {
        (void)err_set(&err, MUSTER_ETIMEDOUT,
                      "%s at %s: no answer to CANCEL_WAIT within %d ms", c->name,
                      c->peer, CANCEL_MS);
        client_lose(c, &err);
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

static void on_written(uv_write_t *write, int status)
{
    struct outgoing *o = CONTAINER_OF(write, struct outgoing, write);
    struct client *c = o->client;
    const size_t n = buf_len(&o->bytes);

    buf_fini(&o->bytes);
    mem_free(o);
    if (!c)
        return;
    c->busy = NULL;
    c->written += n;
    if (status < 0)
        client_lose_uv(c, status);
    else
        client_run(c);
}

/* Hands all that is left to the loop. */
static int write_later(struct client *c, uv_stream_t *stream)
{
    struct outgoing *o = mem_calloc(1, sizeof *o);
    uv_buf_t bytes;
    int rc;

    if (!o)
        return UV_ENOMEM;
    o->client = c;
    o->bytes = c->out;
    buf_init(&c->out, c->out.cap);
    bytes = uv_buf_init((char *)(uintptr_t)buf_data(&o->bytes),
                        (unsigned)buf_len(&o->bytes));
    rc = uv_write(&o->write, stream, &bytes, 1, on_written);
    if (rc < 0) {
        buf_fini(&o->bytes);
        mem_free(o);
        return rc;
    }
    c->busy = o;
    return 0;
}

static void flush(struct client *c)
{
    uv_stream_t *stream = (uv_stream_t *)&c->conn->tcp;
    int rc = 0;

    while (!c->busy && rc >= 0 && buf_len(&c->out)) {
        uv_buf_t bytes = uv_buf_init((char *)(uintptr_t)buf_data(&c->out),
                                     (unsigned)buf_len(&c->out));

        rc = uv_try_write(stream, &bytes, 1);
        if (rc > 0) {
            buf_consume(&c->out, (size_t)rc);
            c->written += (uint64_t)rc;
        } else if (rc == 0 || rc == UV_EAGAIN) {
            rc = write_later(c, stream);
        }
    }
    if (c->out.size > OUT_ENOUGH)
        buf_shrink(&c->out);
    if (rc < 0)
        client_lose_uv(c, rc);
}

/* Appends the first n of the call's bytes to the stream. */
static int send_part(struct client *c, struct call *call, size_t n)
{
    const int rc = buf_append(&c->out, buf_data(&call->bytes), n);

    if (rc < 0)
        return rc;
    buf_consume(&call->bytes, n);
    c->sent += n;
    call->out_end = c->sent;
    if (buf_len(&call->bytes) == 0)
        buf_fini(&call->bytes);
    return 0;
}

static void send_call(struct client *c, struct call *call)
{
    struct muster_error err;
    const size_t n = call->wait_bytes ? call->wait_bytes : buf_len(&call->bytes);
    const enum c10d_op op = call->wait_bytes ? C10D_WAIT : call->op;

    if (send_part(c, call, n) < 0) {
        (void)err_nomem(&err);
        fail_call(c, call, &err);
        return;
    }
    call->phase = call->waits ? CALL_WAITING : CALL_ASKED;
    if (call->waits)
        c->blocked = call;
    c10d_reply_decoder_init(&call->decoder, op, call->expect, MAX_REPLY);
    call_list_add(c10d_has_reply(op) ? &c->asked : &c->unwritten, call);
}

/* Its wait is over: now the request that it was for. */
void client_send_rest(struct client *c, struct call *call)
{
    c->blocked = NULL;
    call->waits = false;
    call->wait_bytes = 0;
    call_list_remove(&c->asked, call);
    send_call(c, call);
}

static bool is_local(const struct call *call)
{
    return buf_len(&call->bytes) == 0;
}

/* Everything that can be done now. Called from the loop only. */
void client_run(struct client *c)
{
    struct call *call;

    while (c->state == CLIENT_READY && !c->blocked && c->queued.first &&
           buf_len(&c->out) < OUT_ENOUGH) {
        call = call_list_take(&c->queued);
        if (!is_local(call)) {
            send_call(c, call);
            continue;
        }
        const struct c10d_reply nothing = { .op = call->op };
        client_tell(call, 0, &nothing, NULL);
        client_end(c, call);
    }
    if (c->state == CLIENT_READY)
        flush(c);
    while (c->state == CLIENT_READY && (call = c->unwritten.first) &&
           call->out_end <= c->written) {
        const struct c10d_reply nothing = { .op = call->op };

        (void)call_list_take(&c->unwritten);
        client_tell(call, 0, &nothing, NULL);
        client_end(c, call);
    }
    if (c->state == CLIENT_BROKEN)
        client_fail_all(c, &c->why);
}
