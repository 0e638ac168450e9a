/* store_client_send.c - calls on their way out; see store_client_int.h. */
#include "io/store_client_int.h"

#include "base/err.h"
#include "base/mem.h"

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
        client_fail_call(c, call, &err);
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
