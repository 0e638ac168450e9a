/* store_client_read.c - answers on their way in; see store_client_int.h. */
#include "base/err.h"
#include "base/mem.h"
#include "store/client_int.h"
#include "store/core/wire_keys.h"

/* LIST_KEYS: what other programs put there without our prefix is not shown. */
static int strip_list(const struct client *c, struct c10d_reply *reply,
                      struct buf *keys)
{
    size_t count;

    if (c->opts.raw_keys)
        return 0;
    if (c10d_strip_keys(keys, reply->list, span_str("/"), &count) < 0)
        return MUSTER_ENOMEM;
    reply->list = (struct c10d_list){ buf_span(keys), count };
    return 0;
}

static void answer(struct client *c, struct call *call, struct c10d_reply *reply)
{
    struct muster_error err = { 0 };
    struct buf keys;
    char what[160];

    buf_init(&keys, SIZE_MAX);
    if (reply->op == C10D_LIST_KEYS && strip_list(c, reply, &keys) < 0)
        (void)err_nomem(&err);
    if (reply->op == C10D_QUEUE_POP && reply->number == 0)
        (void)err_set(&err, MUSTER_EEMPTY, "queue is empty (store %s)", c->name);
    if (err.code) {
        call_text(call, what);
        (void)err_wrap(&err, "%s", what);
        client_tell(call, err.code, NULL, &err);
    } else {
        client_tell(call, 0, reply, NULL);
    }
    buf_fini(&keys);
}

static void reject(struct client *c, struct muster_error *err)
{
    (void)err_wrap(err, "%s at %s", c->name, c->peer);
    client_lose(c, err);
}

/* The wait was given up, and CANCEL_WAIT sent. It is answered by 01; a 00 before it is
 * the wait's own answer, which was under way. */
static int64_t take_cancelled(struct client *c, struct call *call)
{
    const uint8_t first = buf_data(&c->in)[0];
    struct muster_error err;

    if (first == 0 && call->decoder.op != C10D_CANCEL_WAIT) {
        c10d_reply_decoder_init(&call->decoder, C10D_CANCEL_WAIT, 0, MAX_REPLY);
        return 1;
    }
    if (first != 1) {
        (void)err_set(&err, MUSTER_EPROTO,
                      "CANCEL_WAIT was answered 0x%02x: wait_canceled response is "
                      "expected",
                      first);
        reject(c, &err);
        return err.code;
    }
    c->blocked = NULL;
    call_list_remove(&c->asked, call);
    client_end(c, call);
    return 1;
}

/* One answer off the input: how many bytes it took, or 0 or less if there is none. */
static int64_t take_answer(struct client *c)
{
    struct call *call = c->asked.first;
    struct c10d_reply reply;
    struct muster_error err;
    bool whole;
    int64_t used;

    if (!call) {
        (void)err_set(&err, MUSTER_EPROTO, "bytes came that nobody asked for");
        reject(c, &err);
        return MUSTER_EPROTO;
    }
    if (call->phase == CALL_CANCELING)
        return take_cancelled(c, call);
    used = c10d_decode_reply(&call->decoder, buf_data(&c->in), buf_len(&c->in), &reply,
                             &whole, &err);
    if (used < 0)
        reject(c, &err);
    if (used < 0 || !whole)
        return used < 0 ? used : 0;
    if (call->wait_bytes) {
        client_send_rest(c, call);
        return used;
    }
    if (c->blocked == call)
        c->blocked = NULL;
    call_list_remove(&c->asked, call);
    answer(c, call, &reply);
    client_end(c, call);
    return used;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct client *c = handle->data;
    uint8_t *room = c ? buf_room(&c->in, READ_ROOM) : NULL;

    (void)suggested;
    *buf = uv_buf_init((char *)room, room ? (unsigned)READ_ROOM : 0);
}

static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct client *c = stream->data;

    (void)buf;
    if (!c || nread == 0)
        return;
    if (nread < 0) {
        client_lose_uv(c, nread == UV_ENOBUFS ? UV_ENOMEM : (int)nread);
        return;
    }
    buf_commit(&c->in, (size_t)nread);
    while (c->state == CLIENT_READY && buf_len(&c->in)) {
        const int64_t used = take_answer(c);

        if (used <= 0)
            break;
        buf_consume(&c->in, (size_t)used);
    }
    if (c->state != CLIENT_READY)
        return;
    if (buf_len(&c->in) == 0 && c->in.size > 4 * READ_ROOM)
        buf_shrink(&c->in);
    client_run(c);
}

int client_start_reading(struct client *c)
{
    return uv_read_start((uv_stream_t *)&c->conn->tcp, on_alloc, on_read);
}

/* store_client_send.c - calls on their way out; see store_client_int.h. */
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
