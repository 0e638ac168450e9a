/* client.c - a c10d store over TCP; see client.h.
 *
 *   client:  CONNECTING --> READY --> BROKEN      and from each of them CLOSED
 *
 *   a call:  queued --+--> asked      its answer is due
 *                     '--> unwritten  it has no answer: done once its bytes are written
 *
 * Calls are sent in the order in which they were made, and the server answers in that
 * order: the next bytes are for the first of `asked`. A blocking call is a WAIT, and
 * its request once that is answered; a server reads nothing behind a WAIT, so nothing
 * is sent behind it either (`blocked`).
 *
 * What a deadline does: the call calls back at once. If it was not sent, that is all.
 * Otherwise it stays in its list until its answer has been read and dropped, so that
 * later answers still match their calls; a wait is ended by CANCEL_WAIT, which may
 * cross the answer to the wait. A server that does not answer that either is given up.
 *
 * What a loss does: the client is BROKEN, every call fails with the reason, and so does
 * each later one. It never reconnects: what the server knew of us is lost, and only the
 * caller knows what that means. Out of memory on the way is such a loss
 * (MUSTER_ENOMEM): the stream may lack bytes. A call that cannot be made for want of
 * memory fails alone, since its size is the caller's.
 *
 * Rules, with their reasons:
 *   - Callbacks come from the loop only, never from inside a call: client_call queues
 *     and defers.
 *   - A callback may close the client. Whoever calls back looks at c->state afterwards.
 *   - Bytes that libuv writes are in a struct outgoing of their own: they may outlive
 *     the connection and the client.
 *   - Calls with an empty list are answered here: some of torch's servers crash on
 * them.
 *
 * Top to bottom: how calls end, deadlines, calls on their way out, answers on their way
 * in, open and close. */
#include "store/client.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/defer.h"
#include "loop/handle_set.h"
#include "store/call.h"
#include "store/connect.h"
#include "store/core/wire_keys.h"
#include <assert.h>
#include <stdio.h>

#define CALL_MAX      ((size_t)1 << 30) /* bytes of one request */
#define MAX_REPLY     ((size_t)1 << 30)
#define MAX_CALLS     ((size_t)1 << 17)
#define OUT_ENOUGH    ((size_t)1 << 20) /* unsent bytes at which calls stay queued */
#define READ_ROOM     ((size_t)16384)
#define CANCEL_MS     9000 /* for the answer to CANCEL_WAIT */
#define READ_FIRST_MS 1000 /* and a bit more, see cancel_unanswered() */

/* Bytes that the loop writes. They may outlive the client. */
struct outgoing {
    uv_write_t write;
    struct buf bytes;
    struct client *client; /* borrowed; NULL once the connection is dropped */
};

enum call_phase {
    CALL_QUEUED,    /* nothing is sent yet */
    CALL_WAITING,   /* WAIT or BARRIER is sent, and nothing may be sent behind it */
    CALL_CANCELING, /* its time is up, CANCEL_WAIT is sent */
    CALL_ASKED,     /* the request is sent */
};

/* A call with what goes over the wire for it. */
struct wire_call {
    struct call base; /* first */
    enum call_phase phase;
    bool waits;        /* the first request that it sends blocks */
    bool overdue;      /* CANCELING: its time was up once already */
    struct buf bytes;  /* not yet sent */
    size_t wait_bytes; /* of them, the WAIT in front of the request; 0: none */
    size_t expect;     /* MULTI_GET: values */
    uint64_t out_end;  /* without an answer: where it ends in the stream that we send */
    struct c10d_reply_decoder decoder;
};

enum client_state { CLIENT_CONNECTING, CLIENT_READY, CLIENT_BROKEN, CLIENT_CLOSED };

struct client {
    struct async_store base; /* first */
    enum client_state state;
    char *host; /* owned; opts.host points to it */
    struct store_client_opts opts;
    char name[ENDPOINT_TEXT + 8];
    struct connector *connector; /* owned, while connecting */
    struct store_conn *conn;     /* owned, while ready */
    char peer[ADDRESS_TEXT], local[IP_TEXT];
    bool runs;
    struct muster_error why; /* why it is broken */

    struct call_list queued, asked, unwritten;
    struct wire_call *blocked; /* the one of `asked` that nothing may follow, or NULL */
    size_t calls;
    struct buf in, out;
    struct outgoing *busy;  /* what the loop is writing, or NULL */
    uint64_t sent, written; /* bytes of the stream: put into `out`, and written */

    uv_timer_t timer;
    uint64_t armed_ms;     /* when it goes off; MONO_NEVER if it is not armed */
    struct defer next_run; /* calls client_run from the loop */
    store_open_cb open_cb; /* NULL once it has been called */
    void *open_ctx;
    struct handle_set handles; /* still to be closed */
};

static void client_run(struct client *c);

/* ---- how calls and connections end ---- */

static struct wire_call *wire_first(const struct call_list *list)
{
    return (struct wire_call *)list->first;
}

static struct wire_call *wire_take(struct call_list *list)
{
    return (struct wire_call *)call_list_take(list);
}

static void client_end(struct client *c, struct wire_call *call)
{
    c->calls--;
    buf_fini(&call->bytes);
    call_free(&call->base);
}

static void client_fail_call(struct client *c, struct wire_call *call,
                             const struct muster_error *why)
{
    c->calls--;
    buf_fini(&call->bytes);
    call_fail(&call->base, why);
}

static void client_fail_all(struct client *c, const struct muster_error *why)
{
    struct call_list *const lists[] = { &c->unwritten, &c->asked, &c->queued };
    struct wire_call *call;

    c->blocked = NULL;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        while ((call = wire_take(lists[i])))
            client_fail_call(c, call, why);
}

/* Closes the connection, or stops connecting. */
static void client_drop(struct client *c)
{
    connect_free(c->connector);
    c->connector = NULL;
    if (c->conn) {
        c->conn->tcp.data = NULL;
        store_conn_close(c->conn);
    }
    c->conn = NULL;
    if (c->busy)
        c->busy->client = NULL;
    c->busy = NULL;
}

/* The client does not reconnect: what the server knew of us is lost, and only the
 * caller knows what that means. The hint goes to the call whose answer was due next. */
static void lose_with(struct client *c, const struct muster_error *why,
                      const char *hint)
{
    struct muster_error hinted = *why;
    struct wire_call *first;

    if (c->state != CLIENT_READY)
        return;
    c->state = CLIENT_BROKEN;
    c->why = *why;
    client_drop(c);
    err_add(&hinted, "%s", hint);
    if ((first = wire_take(&c->asked)))
        client_fail_call(c, first, &hinted);
    client_fail_all(c, why);
}

static void client_lose(struct client *c, const struct muster_error *why)
{
    lose_with(c, why, "");
}

/* Torch's server can refuse a request only by closing the connection. */
static const char *hint_for(const struct call *call)
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

static void client_lose_uv(struct client *c, int uv)
{
    struct muster_error err;

    (void)err_set(&err, uv == UV_ENOMEM ? MUSTER_ENOMEM : MUSTER_EHANGUP,
                  "%s at %s: %s", c->name, c->peer,
                  uv == UV_EOF ? "Failed to recv, got 0 bytes. Connection was likely "
                                 "closed. Did the remote server shutdown or crash?"
                  : uv == UV_ECONNRESET ? "Connection reset by peer"
                  : uv == UV_EPIPE      ? "Broken pipe"
                                        : uv_strerror(uv));
    lose_with(c, &err, hint_for(c->asked.first));
}

/* ---- deadlines ----
 *
 * The timer goes off at the earliest deadline that was set, even if that call has
 * ended, and then checks all calls. Calls end far more often than they are late. */
static void client_on_time(uv_timer_t *timer);

static void client_arm(struct client *c, uint64_t due_ms)
{
    const uint64_t now = clock_mono_ms();

    if (due_ms >= c->armed_ms)
        return;
    c->armed_ms = due_ms;
    uv_update_time(c->base.loop);
    (void)uv_timer_start(&c->timer, client_on_time, ms_left(due_ms, now), 0);
}

static struct wire_call *first_due(struct client *c, uint64_t now,
                                   struct call_list **in)
{
    struct call_list *const lists[] = { &c->queued, &c->unwritten, &c->asked };

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (struct call *call = lists[i]->first; call; call = call->next)
            if (call->deadline_ms <= now) {
                *in = lists[i];
                return (struct wire_call *)call;
            }
    return NULL;
}

/* The server may have answered the wait already; take_cancelled handles that. */
static void send_cancel(struct client *c, struct wire_call *call)
{
    const struct c10d_request cancel = { .op = C10D_CANCEL_WAIT };
    struct muster_error err;

    if (c10d_encode_request(&c->out, &cancel, &err) < 0) {
        client_lose(c, &err);
        return;
    }
    c->sent++;
    call->phase = CALL_CANCELING;
    call->base.deadline_ms = clock_mono_ms() + CANCEL_MS;
}

static const char *held_up_by(const struct client *c, const struct wire_call *call)
{
    if (call->phase != CALL_QUEUED)
        return "";
    if (c->connector)
        return connect_last_failure(c->connector);
    return c->blocked ? "another call on this connection waits" : "";
}

/* The last deadline of the calls that wait for the connection; 0: there are none. */
static uint64_t wanted_until(const struct client *c)
{
    uint64_t until = 0;

    for (const struct call *call = c->queued.first; call; call = call->next)
        until = MAX_OF(until, call->deadline_ms);
    return until;
}

/* A server that does not answer CANCEL_WAIT may only be stopped for a while, so calls
 * in the queue keep the time that they were given. Once the queue is empty, the
 * connection is given up, since nothing can be asked on it. */
static void cancel_unanswered(struct client *c, struct wire_call *call)
{
    const uint64_t now = clock_mono_ms(), wanted_ms = wanted_until(c);
    struct muster_error err;

    if (!call->overdue || wanted_ms > now) {
        /* The loop may have been late, and the answer may be there to be read. */
        call->base.deadline_ms = call->overdue ? wanted_ms : now + READ_FIRST_MS;
        call->overdue = true;
        return;
    }
    (void)err_set(&err, MUSTER_EHANGUP,
                  "%s at %s: the connection was given up, since the server did not "
                  "answer CANCEL_WAIT for %d s: the server or the network hangs",
                  c->name, c->peer, (CANCEL_MS + READ_FIRST_MS) / 1000);
    client_lose(c, &err);
}

static void client_expire(struct client *c, struct wire_call *call,
                          struct call_list *in)
{
    const bool queued = call->phase == CALL_QUEUED;
    struct muster_error err;

    if (call->phase == CALL_CANCELING) {
        cancel_unanswered(c, call);
        return;
    }
    call_timed_out(&call->base, call->phase == CALL_WAITING ? "wait" : NULL,
                   held_up_by(c, call), &err);
    call->base.deadline_ms = MONO_NEVER;
    if (queued)
        call_list_remove(in, &call->base);
    call_notify(&call->base, err.code, NULL, &err);
    if (queued)
        client_end(c, call);
    else if (call->phase == CALL_WAITING && c->state == CLIENT_READY)
        send_cancel(c, call);
}

static void client_on_time(uv_timer_t *timer)
{
    struct client *c = timer->data;
    const uint64_t now = clock_mono_ms();
    struct call_list *const lists[] = { &c->queued, &c->unwritten, &c->asked };
    struct call_list *in;
    struct wire_call *call;

    c->armed_ms = MONO_NEVER;
    while (c->state != CLIENT_CLOSED && (call = first_due(c, now, &in)))
        client_expire(c, call, in);
    if (c->state == CLIENT_CLOSED)
        return;
    client_run(c);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        client_arm(c, call_list_first_due(lists[i]));
}

/* ---- calls on their way out ---- */

static void client_on_written(uv_write_t *write, int status)
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

/* Hands all bytes that are left to the loop. */
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
    rc = uv_write(&o->write, stream, &bytes, 1, client_on_written);
    if (rc < 0) {
        buf_fini(&o->bytes);
        mem_free(o);
        return rc;
    }
    c->busy = o;
    return 0;
}

static void client_flush(struct client *c)
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
static int send_part(struct client *c, struct wire_call *call, size_t n)
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

static void send_call(struct client *c, struct wire_call *call)
{
    struct muster_error err;
    const size_t n = call->wait_bytes ? call->wait_bytes : buf_len(&call->bytes);
    const enum c10d_op op = call->wait_bytes ? C10D_WAIT : call->base.op;

    if (send_part(c, call, n) < 0) {
        (void)err_nomem(&err);
        client_fail_call(c, call, &err);
        client_lose(c, &err);
        return;
    }
    call->phase = call->waits ? CALL_WAITING : CALL_ASKED;
    if (call->waits)
        c->blocked = call;
    c10d_reply_decoder_init(&call->decoder, op, call->expect, MAX_REPLY);
    call_list_add(c10d_has_reply(op) ? &c->asked : &c->unwritten, &call->base);
}

/* The wait before its request is over: sends the request itself. */
static void client_send_rest(struct client *c, struct wire_call *call)
{
    c->blocked = NULL;
    call->waits = false;
    call->wait_bytes = 0;
    call_list_remove(&c->asked, &call->base);
    send_call(c, call);
}

static bool is_local(const struct wire_call *call)
{
    return buf_len(&call->bytes) == 0;
}

static void client_answer_empty(struct client *c, struct wire_call *call)
{
    const struct c10d_reply nothing = { .op = call->base.op };

    call_notify(&call->base, 0, &nothing, NULL);
    client_end(c, call);
}

/* Does everything that can be done now. It is called from the loop only, since
 * callbacks come from inside it. */
static void client_run(struct client *c)
{
    struct wire_call *call;

    while (c->state == CLIENT_READY && !c->blocked && c->queued.first &&
           buf_len(&c->out) < OUT_ENOUGH) {
        call = wire_take(&c->queued);
        if (is_local(call))
            client_answer_empty(c, call);
        else
            send_call(c, call);
    }
    if (c->state == CLIENT_READY)
        client_flush(c);
    while (c->state == CLIENT_READY && (call = wire_first(&c->unwritten)) &&
           call->out_end <= c->written) {
        (void)call_list_take(&c->unwritten);
        client_answer_empty(c, call);
    }
    if (c->state == CLIENT_BROKEN)
        client_fail_all(c, &c->why);
}

/* ---- answers on their way in ---- */

/* LIST_KEYS: leaves out keys without our prefix, which other programs have set. */
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

static void client_answer(struct client *c, struct wire_call *call,
                          struct c10d_reply *reply)
{
    struct muster_error err = { 0 };
    struct buf keys;

    buf_init(&keys, SIZE_MAX);
    if (reply->op == C10D_LIST_KEYS && strip_list(c, reply, &keys) < 0)
        (void)err_nomem(&err);
    if (reply->op == C10D_QUEUE_POP && reply->number == 0)
        (void)err_set(&err, MUSTER_EEMPTY, "queue is empty (store %s)", c->name);
    if (err.code) {
        call_wrap(&call->base, &err);
        call_notify(&call->base, err.code, NULL, &err);
    } else {
        call_notify(&call->base, 0, reply, NULL);
    }
    buf_fini(&keys);
}

static void reject(struct client *c, struct muster_error *err)
{
    (void)err_wrap(err, "%s at %s", c->name, c->peer);
    client_lose(c, err);
}

/* The wait was given up and CANCEL_WAIT sent, which is answered by 01. A 00 before it
 * is the answer to the wait itself, which was already under way. */
static int64_t take_cancelled(struct client *c, struct wire_call *call)
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
    call_list_remove(&c->asked, &call->base);
    client_end(c, call);
    return 1;
}

/* Takes one answer from the input and returns how many bytes it took; 0 if it is not
 * complete, or a negative code if the connection is lost. */
static int64_t client_take_answer(struct client *c)
{
    struct wire_call *call = wire_first(&c->asked);
    struct c10d_reply reply;
    struct muster_error err;
    bool whole;
    int64_t used;

    if (!call) {
        (void)err_set(&err, MUSTER_EPROTO, "it sent bytes that answer no request");
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
    call_list_remove(&c->asked, &call->base);
    client_answer(c, call, &reply);
    client_end(c, call);
    return used;
}

static void client_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct client *c = handle->data;
    uint8_t *room = c ? buf_room(&c->in, READ_ROOM) : NULL;

    (void)suggested;
    *buf = uv_buf_init((char *)room, room ? (unsigned)READ_ROOM : 0);
}

static void client_on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
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
        const int64_t used = client_take_answer(c);

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

static int client_start_reading(struct client *c)
{
    return uv_read_start((uv_stream_t *)&c->conn->tcp, client_on_alloc, client_on_read);
}

/* ---- open, call, close ---- */

/* Encodes the call: a WAIT in front if it has to wait for keys, then the request. */
static int client_encode(struct wire_call *call, const struct c10d_request *req,
                         struct muster_error *err)
{
    struct c10d_request wait = { .op = C10D_WAIT };
    struct buf one;
    int rc = 0;

    buf_init(&one, SIZE_MAX);
    if (call->waits && req->op != C10D_WAIT && req->op != C10D_BARRIER) {
        wait.list = req->list; /* MULTI_GET */
        if (req->op != C10D_MULTI_GET) {
            rc = c10d_list_add(&one, req->key);
            wait.list = (struct c10d_list){ buf_span(&one), 1 };
        }
        if (rc == 0)
            rc = c10d_encode_request(&call->bytes, &wait, err);
        else
            (void)err_nomem(err);
        call->wait_bytes = buf_len(&call->bytes);
    }
    if (rc == 0)
        rc = c10d_encode_request(&call->bytes, req, err);
    buf_fini(&one);
    return rc;
}

/* Calls with an empty list are not sent, since some of torch's servers crash on them:
 * they have no bytes, and client_run answers them. */
static int wire_call_new(struct client *c, const struct c10d_request *req,
                         unsigned flags, struct wire_call **out,
                         struct muster_error *err)
{
    const bool raw = c->opts.raw_keys || (flags & ASYNC_STORE_RAW);
    struct wire_call *call = mem_calloc(1, sizeof *call);
    struct c10d_prefixed full;
    int rc;

    if (!call)
        return err_nomem(err);
    call->base.store = &c->base;
    call->base.op = req->op;
    buf_init(&call->bytes, CALL_MAX);
    call->waits = req->op == C10D_WAIT || req->op == C10D_BARRIER ||
                  ((flags & ASYNC_STORE_BLOCK) && c10d_may_block(req->op));
    if (req->op == C10D_MULTI_GET)
        call->expect = req->list.count;
    rc = c10d_prefix_keys(&full, req, span_str(raw ? "" : "/"), err);
    /* Like torch, show the keys of waits as on the wire, that of a barrier as given. */
    c10d_keys_text(req->op == C10D_BARRIER || rc < 0 ? req : &full.req, call->base.keys,
                   sizeof call->base.keys);
    if (rc == 0 && (!c10d_has_list(req->op) || req->list.count))
        rc = client_encode(call, &full.req, err);
    c10d_prefixed_fini(&full);
    if (rc < 0) {
        buf_fini(&call->bytes);
        call_free(&call->base);
        return rc;
    }
    *out = call;
    return 0;
}

static void client_on_connected(void *ctx, struct store_conn *conn,
                                const struct muster_error *err)
{
    struct client *c = ctx;
    const store_open_cb cb = c->open_cb;

    connect_free(c->connector);
    c->connector = NULL;
    c->open_cb = NULL;
    c->conn = conn;
    if (conn) {
        c->state = CLIENT_READY;
        conn->tcp.data = c;
        memcpy(c->peer, conn->peer, sizeof c->peer);
        memcpy(c->local, conn->local, sizeof c->local);
        c->runs = conn->runs;
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

static void client_run_later(void *ctx)
{
    client_run(ctx);
}

static int client_connect(struct client *c, struct muster_error *err)
{
    const struct connect_opts target = { .host = c->host,
                                         .port = c->opts.port,
                                         .timeout_ms = c->opts.timeout_ms,
                                         .once = c->opts.once,
                                         .ask_runs = c->opts.ask_runs,
                                         .auth = c->opts.auth,
                                         .log = c->opts.log };

    return connect_start(c->base.loop, &target, client_on_connected, c, &c->connector,
                         err);
}

static int client_call(struct async_store *s, const struct c10d_request *req,
                       unsigned flags, uint64_t timeout_ms, async_store_cb cb,
                       void *ctx, struct muster_error *err)
{
    struct client *c = (struct client *)s;
    struct wire_call *call;

    if (c->calls >= MAX_CALLS)
        return err_set(err, MUSTER_EFULL, "%s: %zu calls are pending", c->name,
                       c->calls);
    int rc = wire_call_new(c, req, flags, &call, err);
    if (rc == 0 && c->state == CLIENT_CONNECTING && !c->connector) {
        rc = client_connect(c, err);
        if (rc < 0) {
            buf_fini(&call->bytes);
            call_free(&call->base);
        }
    }
    if (rc < 0)
        return rc;
    call_begin(&call->base, flags, timeout_ms, cb, ctx);
    c->calls++;
    call_list_add(&c->queued, &call->base);
    client_arm(c, call->base.deadline_ms);
    defer_call(&c->next_run);
    return 0;
}

static void client_on_closed(void *ctx)
{
    struct client *c = ctx;
    struct muster_error err;

    (void)err_set(&err, MUSTER_ECANCELED, "%s: the store was closed", c->name);
    client_fail_all(c, &err);
    if (c->open_cb)
        c->open_cb(c->open_ctx, err.code, &err);
    async_store_closed(&c->base);
    buf_fini(&c->in);
    buf_fini(&c->out);
    auth_unref(c->opts.auth);
    mem_free(c->host);
    mem_free(c);
}

static void client_close(struct async_store *s)
{
    struct client *c = (struct client *)s;

    assert(c->state != CLIENT_CLOSED);
    c->state = CLIENT_CLOSED;
    client_drop(c);
    handle_set_begin(&c->handles, client_on_closed, c);
    handle_set_close(&c->handles, &c->timer);
    handle_set_close(&c->handles, &c->next_run.idle);
    handle_set_end(&c->handles);
}

static int client_clone(struct async_store *s, struct async_store **out,
                        struct muster_error *err)
{
    struct client *c = (struct client *)s;

    return store_client_open(s->loop, &c->opts, NULL, NULL, out, err);
}

static const struct async_store_ops client_ops = {
    .kind = "tcp",
    .own_barrier = true,
    .call = client_call,
    .clone = client_clone,
    .close = client_close,
};

int store_client_open(uv_loop_t *loop, const struct store_client_opts *opts,
                      store_open_cb cb, void *ctx, struct async_store **out,
                      struct muster_error *err)
{
    struct client *c = mem_calloc(1, sizeof *c);
    char *host = mem_strdup(opts->host);

    if (!c || !host) {
        mem_free(c);
        mem_free(host);
        return err_nomem(err);
    }
    c->base = (struct async_store){ &client_ops, loop, c->name, .ordered = true };
    c->host = host;
    c->opts = *opts;
    c->opts.host = host;
    if (!opts->lazy && client_connect(c, err) < 0) {
        mem_free(c);
        mem_free(host);
        return MUSTER_ENOMEM;
    }
    c->opts.auth = auth_ref(opts->auth);
    (void)snprintf(c->name, sizeof c->name, "tcp://");
    endpoint_text(host, opts->port, c->name + 6);
    c->open_cb = cb;
    c->open_ctx = ctx;
    c->armed_ms = MONO_NEVER;
    buf_init(&c->in, MAX_REPLY + 2 * READ_ROOM);
    buf_init(&c->out, SIZE_MAX);
    (void)uv_timer_init(loop, &c->timer);
    defer_init(&c->next_run, loop, client_run_later, c);
    c->timer.data = c;
    *out = &c->base;
    return 0;
}

static const struct client *tcp_client(const struct async_store *s)
{
    assert(s->ops == &client_ops);
    return (const struct client *)s;
}

const char *store_client_local(const struct async_store *s)
{
    const struct client *c = tcp_client(s);

    return c->local[0] ? c->local : NULL;
}

bool store_client_runs(const struct async_store *s)
{
    return tcp_client(s)->runs;
}

struct store_conn *store_client_take(struct async_store *s)
{
    struct client *c = (struct client *)s;
    struct store_conn *conn = c->conn;

    assert(s->ops == &client_ops);
    if (c->state != CLIENT_READY || c->calls || c->busy)
        return NULL;
    (void)uv_read_stop((uv_stream_t *)&conn->tcp);
    conn->tcp.data = NULL;
    c->conn = NULL;
    c->state = CLIENT_BROKEN;
    (void)err_set(&c->why, MUSTER_ECONN, "%s: its connection was taken", c->name);
    return conn;
}
