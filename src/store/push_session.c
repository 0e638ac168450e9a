/* push_session.c - see push_session.h. */
#include "store/push_session.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/connect.h"
#include "store/core/reserved.h"
#include "store/core/wire.h"

#define READ_ROOM 4096u

struct push_session {
    struct push_session_cbs cbs;
    void *ctx;
    size_t max;
    bool ask_runs;
    struct connector *connector; /* owned, while connecting */
    struct store_conn *conn;     /* owned, once connected */
    struct buf in;
    bool over;   /* down() was called, or is about to be */
    bool inside; /* a callback runs: close frees the session after it */
    bool closed; /* the owner closed it, perhaps from inside a callback */
};

/* One write under way. It may outlive the session. */
struct sending {
    uv_write_t write;
    struct buf bytes;
};

static void release(struct push_session *s)
{
    connect_free(s->connector);
    if (s->conn) {
        s->conn->tcp.data = NULL;
        store_conn_close(s->conn);
    }
    buf_fini(&s->in);
    mem_free(s);
}

/* Returns false if the session is gone. */
static bool leave_callback(struct push_session *s)
{
    s->inside = false;
    if (!s->closed)
        return true;
    release(s);
    return false;
}

static void down(struct push_session *s, const struct muster_error *err)
{
    if (s->over)
        return;
    s->over = true;
    if (s->conn)
        (void)uv_read_stop((uv_stream_t *)&s->conn->tcp);
    s->inside = true;
    s->cbs.down(s->ctx, err);
    (void)leave_callback(s);
}

static void broke(struct push_session *s, int uv)
{
    struct muster_error err;

    /* It is the network that says so, not the host. */
    const bool silent =
        uv == UV_ETIMEDOUT || uv == UV_EHOSTUNREACH || uv == UV_ENETUNREACH;

    (void)err_set(&err, silent ? MUSTER_ETIMEDOUT : MUSTER_EHANGUP,
                  "the connection to %s %s%s", s->conn->peer,
                  uv == UV_EOF ? "was closed by the host" : "broke: ",
                  uv == UV_EOF ? "" : uv_strerror(uv));
    down(s, &err);
}

/* Hands over the message at the front of the input. False: it is not complete, or the
 * session is over or gone. */
static bool take_one(struct push_session *s)
{
    const size_t have = buf_len(&s->in);
    struct muster_error err;
    uint64_t size;
    bool good;

    if (have < 8)
        return false;
    size = get_u64(buf_data(&s->in));
    if (size > s->max) {
        (void)err_set(&err, MUSTER_ENOTSTORE,
                      "%s sent a message of %llu bytes, expected at most %zu: is it a "
                      "muster store?",
                      s->conn->peer, (unsigned long long)size, s->max);
        down(s, &err);
        return false;
    }
    if (have - 8 < size)
        return false;
    s->inside = true;
    good = s->cbs.msg(s->ctx, span_of(buf_data(&s->in) + 8, (size_t)size), &err);
    if (!leave_callback(s))
        return false;
    if (!good) {
        (void)err_wrap(&err, "%s", s->conn->peer);
        down(s, &err);
        return false;
    }
    buf_consume(&s->in, 8 + (size_t)size);
    return !s->over;
}

static void session_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out)
{
    struct push_session *s = handle->data;
    uint8_t *room = s ? buf_room(&s->in, READ_ROOM) : NULL;

    (void)suggested;
    *out = uv_buf_init((char *)room, room ? READ_ROOM : 0);
}

static void session_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
    struct push_session *s = stream->data;

    (void)b;
    if (!s || n == 0)
        return;
    if (n < 0) {
        broke(s, (int)n);
        return;
    }
    buf_commit(&s->in, (size_t)n);
    while (take_one(s))
        ;
}

/* Node and host must each notice when the other is gone: if data stays unacknowledged
 * for so long, the connection counts as broken. */
static void watch_socket(uv_tcp_t *tcp)
{
    const unsigned unacked_ms = 15000;
    uv_os_fd_t fd;

    (void)uv_tcp_nodelay(tcp, 1);
    (void)uv_tcp_keepalive(tcp, 1, 5);
    if (uv_fileno((uv_handle_t *)tcp, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms,
                         sizeof unacked_ms);
}

static int use_conn(struct push_session *s, struct store_conn *conn)
{
    s->conn = conn;
    conn->tcp.data = s;
    watch_socket(&conn->tcp);
    return uv_read_start((uv_stream_t *)&conn->tcp, session_on_alloc, session_on_read);
}

static void session_on_connected(void *ctx, struct store_conn *conn,
                                 const struct muster_error *err)
{
    struct push_session *s = ctx;
    struct muster_error torch;
    int rc;

    if (conn && s->ask_runs && !conn->runs) {
        (void)err_set(&torch, MUSTER_ENOTSUP, "the store at %s hosts no runs",
                      conn->peer);
        store_conn_close(conn);
        conn = NULL;
        err = &torch;
    }
    if (!conn) {
        down(s, err);
        return;
    }
    rc = use_conn(s, conn);
    if (rc < 0) {
        broke(s, rc);
        return;
    }
    s->inside = true;
    s->cbs.up(s->ctx);
    (void)leave_callback(s);
}

static void session_on_sent(uv_write_t *write, int status)
{
    struct sending *out = CONTAINER_OF(write, struct sending, write);
    struct push_session *s = write->handle->data; /* NULL once the session is closed. */

    buf_fini(&out->bytes);
    mem_free(out);
    if (status < 0 && s)
        broke(s, status);
}

bool push_session_send(struct push_session *s, struct span message)
{
    const struct c10d_request push = { .op = C10D_QUEUE_PUSH,
                                       .key = span_str(RESERVED_RUN),
                                       .value = message };
    struct sending *out;
    uv_buf_t b;

    if (s->over || !s->conn)
        return true; /* It goes with the connection. */
    out = mem_calloc(1, sizeof *out);
    if (!out)
        return false;
    buf_init(&out->bytes, SIZE_MAX);
    b = uv_buf_init(NULL, 0);
    if (c10d_encode_request(&out->bytes, &push, NULL) == 0)
        b = uv_buf_init((char *)out->bytes.mem + out->bytes.head,
                        (unsigned)buf_len(&out->bytes));
    if (b.len == 0 || uv_write(&out->write, (uv_stream_t *)&s->conn->tcp, &b, 1,
                               session_on_sent) < 0) {
        buf_fini(&out->bytes);
        mem_free(out);
        return false;
    }
    return true;
}

int push_session_open(uv_loop_t *loop, const struct push_session_opts *opts,
                      const struct push_session_cbs *cbs, void *ctx,
                      struct push_session **out, struct muster_error *err)
{
    const struct connect_opts target = { .host = opts->host,
                                         .port = opts->port,
                                         .timeout_ms = opts->timeout_ms,
                                         .once = true,
                                         .ask_runs = opts->ask_runs,
                                         .auth = opts->auth,
                                         .log = opts->log };
    struct push_session *s = mem_calloc(1, sizeof *s);
    int rc;

    if (!s)
        return err_nomem(err);
    s->cbs = *cbs;
    s->ctx = ctx;
    s->max = opts->max;
    s->ask_runs = opts->ask_runs;
    buf_init(&s->in, 4 * (opts->max + READ_ROOM));
    if (opts->conn)
        rc = use_conn(s, opts->conn) < 0 ? err_nomem(err) : 0;
    else
        rc = connect_start(loop, &target, session_on_connected, s, &s->connector, err);
    if (rc < 0) {
        s->connector = NULL;
        s->conn = NULL;
        release(s);
        return rc;
    }
    *out = s;
    return 0;
}

const char *push_session_ip(const struct push_session *s)
{
    return s->conn->ip;
}

void push_session_mute(struct push_session *s)
{
    s->over = true;
    connect_free(s->connector);
    s->connector = NULL;
    if (s->conn)
        (void)uv_read_stop((uv_stream_t *)&s->conn->tcp);
}

void push_session_close(struct push_session *s)
{
    if (!s)
        return;
    s->closed = s->over = true;
    if (!s->inside)
        release(s);
}
