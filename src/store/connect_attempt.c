/* connect_attempt.c - connect to one address and greet; see connect_int.h.
 *
 * The greeting is one write: torch's libuv server closes a connection whose VALIDATE
 * comes in pieces. */
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/mem.h"
#include "store/connect_int.h"
#include "store/core/wire.h"

struct attempt {
    struct dial_conn conn; /* first: it becomes the caller's */
    uv_connect_t connect;
    uv_write_t write;
    attempt_cb cb; /* NULL once it is over */
    void *ctx;     /* borrowed */
    bool connected;
    enum greeting greeting;
    uint32_t nonce;
    uint8_t hello[10];
    uint8_t answer[16]; /* room to see that more comes than was asked for */
    size_t got;
};

static void attempt_on_closed(uv_handle_t *handle)
{
    mem_free(CONTAINER_OF(handle, struct attempt, conn.tcp));
}

void dial_conn_close(struct dial_conn *conn)
{
    if (!uv_is_closing((uv_handle_t *)&conn->tcp))
        uv_close((uv_handle_t *)&conn->tcp, attempt_on_closed);
}

void attempt_stop(struct attempt *a)
{
    a->cb = NULL;
    dial_conn_close(&a->conn);
}

static int code_of(int uv)
{
    switch (uv) {
    case UV_ECONNREFUSED:
        return MUSTER_EREFUSED;
    case UV_ENETUNREACH:
    case UV_EHOSTUNREACH:
    case UV_ENETDOWN:
    case UV_EADDRNOTAVAIL:
    case UV_EAFNOSUPPORT:
    case UV_EINVAL: /* a link-local address without its interface */
        return MUSTER_EUNREACH;
    case UV_ETIMEDOUT:
        return MUSTER_ETIMEDOUT;
    case UV_ENOMEM:
        return MUSTER_ENOMEM;
    default:
        return MUSTER_ECONN;
    }
}

static void fail(struct attempt *a, int code, const char *why)
{
    const attempt_cb cb = a->cb;

    attempt_stop(a);
    cb(a->ctx, a, NULL, code, why);
}

static void fail_uv(struct attempt *a, const char *doing, int uv)
{
    char why[200];

    (void)snprintf(why, sizeof why, "%s: %s%s", a->conn.peer, doing, uv_strerror(uv));
    fail(a, code_of(uv), why);
}

/* A peer that vanished without a word is noticed within a minute. */
static void tune(struct attempt *a)
{
    const unsigned unacked_ms = 60000;
    const int every_s = 10, probes = 3;
    uv_os_fd_t fd;

    (void)uv_tcp_nodelay(&a->conn.tcp, 1);
    (void)uv_tcp_keepalive(&a->conn.tcp, 1, 30);
    if (uv_fileno((uv_handle_t *)&a->conn.tcp, &fd) < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

static void succeed(struct attempt *a)
{
    const attempt_cb cb = a->cb;
    struct sockaddr_storage local = { 0 };
    int len = sizeof local;

    (void)uv_read_stop((uv_stream_t *)&a->conn.tcp);
    if (uv_tcp_getsockname(&a->conn.tcp, (struct sockaddr *)&local, &len) == 0)
        address_text((struct sockaddr *)&local, a->conn.local);
    a->cb = NULL;
    a->conn.tcp.data = NULL;
    cb(a->ctx, a, &a->conn, 0, NULL);
}

/* A store's number of keys, or somebody else's eight bytes? */
static bool is_num_keys(const struct attempt *a)
{
    return a->greeting == GREET_NUM_KEYS && a->got == 8 &&
           get_u64(a->answer) < (UINT64_C(1) << 32);
}

/* The peer's answer is in, or something else in its place. */
static void judge(struct attempt *a)
{
    char why[300];
    const uint32_t got = get_u32(a->answer);
    const bool right = a->greeting == GREET_PING && got == a->nonce;

    if (is_num_keys(a) || (right && a->got == 4)) {
        succeed(a);
        return;
    }
    if (right)
        (void)snprintf(why, sizeof why, "%s: more came than PING asked for",
                       a->conn.peer);
    else if (memcmp(a->answer, "HTTP", 4) == 0)
        (void)snprintf(why, sizeof why, "%s: a web server answers there", a->conn.peer);
    else if (a->greeting == GREET_NUM_KEYS)
        (void)snprintf(why, sizeof why, "%s: what answers there is no store",
                       a->conn.peer);
    else
        (void)snprintf(why, sizeof why,
                       "%s: Ping failed, invalid value returned from server. "
                       "Expected: %" PRIu32 ", Got: %" PRIu32,
                       a->conn.peer, a->nonce, got);
    fail(a, MUSTER_ENOTSTORE, why);
}

static void attempt_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct attempt *a = handle->data;

    (void)suggested;
    *buf =
        uv_buf_init((char *)a->answer + a->got, (unsigned)(sizeof a->answer - a->got));
}

static void attempt_on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct attempt *a = stream->data;
    char why[200];

    (void)buf;
    if (!a->cb)
        return;
    if (nread > 0) {
        a->got += (size_t)nread;
        if (a->got >= (a->greeting == GREET_PING ? 4 : 8))
            judge(a);
        return;
    }
    if (nread == 0)
        return;
    (void)snprintf(why, sizeof why,
                   "%s: accepted the connection and closed it without an answer: %s",
                   a->conn.peer,
                   nread == UV_EOF ? "end of file" : uv_strerror((int)nread));
    fail(a, MUSTER_EHANGUP, why);
}

/* If the peer is gone, the read that is under way says so, and says why. */
static void attempt_on_written(uv_write_t *write, int status)
{
    (void)write;
    (void)status;
}

static void greet(struct attempt *a)
{
    const bool ping = a->greeting == GREET_PING;
    uv_buf_t buf = uv_buf_init((char *)a->hello, ping ? 10 : 6);
    int rc;

    a->hello[0] = C10D_VALIDATE;
    put_u32(a->hello + 1, C10D_MAGIC);
    a->hello[5] = ping ? C10D_PING : C10D_GETNUMKEYS;
    put_u32(a->hello + 6, a->nonce);
    rc = uv_read_start((uv_stream_t *)&a->conn.tcp, attempt_on_alloc, attempt_on_read);
    if (rc == 0)
        rc = uv_write(&a->write, (uv_stream_t *)&a->conn.tcp, &buf, 1,
                      attempt_on_written);
    if (rc < 0)
        fail_uv(a, "greeting: ", rc);
}

/* Where nobody listens on a port that our own end happens to get, TCP connects us to
 * ourselves. */
static bool is_self(const struct attempt *a)
{
    struct sockaddr_storage local = { 0 }, peer = { 0 };
    int local_len = sizeof local, peer_len = sizeof peer;

    return uv_tcp_getsockname(&a->conn.tcp, (struct sockaddr *)&local, &local_len) ==
               0 &&
           uv_tcp_getpeername(&a->conn.tcp, (struct sockaddr *)&peer, &peer_len) == 0 &&
           local_len == peer_len && memcmp(&local, &peer, (size_t)local_len) == 0;
}

static void attempt_on_connect(uv_connect_t *connect, int status)
{
    struct attempt *a = CONTAINER_OF(connect, struct attempt, connect);

    if (!a->cb)
        return;
    if (status < 0) {
        fail_uv(a, "", status);
        return;
    }
    if (is_self(a)) {
        fail_uv(a, "", UV_ECONNREFUSED);
        return;
    }
    a->connected = true;
    tune(a);
    greet(a);
}

struct attempt *attempt_start(uv_loop_t *loop, const struct sockaddr *addr,
                              enum greeting greeting, uint32_t nonce, attempt_cb cb,
                              void *ctx, int *code, char *why, size_t why_size)
{
    struct attempt *a = mem_calloc(1, sizeof *a);
    int rc;

    if (!a) {
        *code = MUSTER_ENOMEM;
        (void)snprintf(why, why_size, "out of memory");
        return NULL;
    }
    a->cb = cb;
    a->ctx = ctx;
    a->greeting = greeting;
    a->nonce = nonce;
    address_text(addr, a->conn.peer);
    rc = uv_tcp_init(loop, &a->conn.tcp);
    if (rc < 0) {
        mem_free(a);
        *code = MUSTER_ENOMEM;
        (void)snprintf(why, why_size, "%s", uv_strerror(rc));
        return NULL;
    }
    a->conn.tcp.data = a;
    rc = uv_tcp_connect(&a->connect, &a->conn.tcp, addr, attempt_on_connect);
    if (rc < 0) {
        *code = code_of(rc);
        (void)snprintf(why, why_size, "%s: %s", a->conn.peer, uv_strerror(rc));
        attempt_stop(a);
        return NULL;
    }
    return a;
}

void attempt_standing(const struct attempt *a, char *why, size_t why_size)
{
    (void)snprintf(why, why_size, "%s: %s", a->conn.peer,
                   a->connected ? "accepted the connection and does not answer"
                                : "no answer to the connection request");
}
