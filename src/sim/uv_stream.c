/* uv_stream.c - libuv's TCP streams on simulated sockets; see uv_loop.c. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "sim/os.h"

/* A write whose callback has not come yet. */
struct uv_out {
    struct uv_out *next;
    uv_write_t *req;
    const uint8_t *p;
    size_t n; /* left */
    bool done;
    int status;
};

int uv_tcp_init(uv_loop_t *loop, uv_tcp_t *tcp)
{
    (void)uv_state_new(loop, tcp, UV_TCP);
    return 0;
}

int uv_tcp_connect(uv_connect_t *req, uv_tcp_t *tcp, const struct sockaddr *to,
                   uv_connect_cb cb)
{
    struct uv_state *s = uv_state_of(tcp);
    int e;

    if (s->closing || s->connect)
        return UV_EINVAL;
    if (!s->socket)
        (void)os_socket_new(to->sa_family, &s->socket);
    e = os_connect(s->socket, to);
    if (e)
        return -e;
    req->type = UV_CONNECT;
    req->handle = (uv_stream_t *)tcp;
    req->cb = cb;
    s->connect = req;
    return 0;
}

int uv_tcp_nodelay(uv_tcp_t *tcp, int enable)
{
    return 0;
}

int uv_tcp_keepalive(uv_tcp_t *tcp, int enable, unsigned delay)
{
    const struct uv_state *s = uv_state_of(tcp);

    if (s->socket)
        os_keepalive(s->socket, enable ? delay : 0);
    return 0;
}

int uv_fileno(const uv_handle_t *handle, uv_os_fd_t *fd)
{
    const struct uv_state *s = uv_state_of(handle);

    if (handle->type != UV_TCP || !s->socket || s->closing)
        return UV_EBADF;
    *fd = os_fd(s->socket);
    return 0;
}

static int name_of(const uv_tcp_t *tcp, bool peer, struct sockaddr *to, int *n)
{
    const struct uv_state *s = uv_state_of(tcp);
    socklen_t len = (socklen_t)*n;
    int e;

    if (!s->socket)
        return UV_EBADF;
    e = os_name(s->socket, peer, to, &len);
    *n = (int)len;
    return -e;
}

int uv_tcp_getsockname(const uv_tcp_t *tcp, struct sockaddr *to, int *n)
{
    return name_of(tcp, false, to, n);
}

int uv_tcp_getpeername(const uv_tcp_t *tcp, struct sockaddr *to, int *n)
{
    return name_of(tcp, true, to, n);
}

/* ---- reading ---- */

int uv_read_start(uv_stream_t *stream, uv_alloc_cb alloc, uv_read_cb cb)
{
    struct uv_state *s = uv_state_of(stream);

    if (s->closing)
        return UV_EINVAL;
    if (!s->socket || os_connected(s->socket) == 0)
        return UV_ENOTCONN;
    s->alloc = alloc;
    s->cb = (void *)(uintptr_t)cb;
    s->reading = true;
    return 0;
}

int uv_read_stop(uv_stream_t *stream)
{
    uv_state_of(stream)->reading = false;
    return 0;
}

static void read_some(struct uv_state *s)
{
    uv_stream_t *stream = (uv_stream_t *)s->handle;

    for (int i = 0; i < 32 && s->reading && !s->closing && os_readable(s->socket);
         i++) {
        const uv_read_cb cb = (uv_read_cb)(uintptr_t)s->cb;
        uv_buf_t buf = { .base = NULL, .len = 0 };
        ssize_t n;

        s->alloc(s->handle, 65536, &buf);
        if (!buf.base || !buf.len) {
            cb(stream, UV_ENOBUFS, &buf);
            return;
        }
        n = os_recv(s->socket, buf.base, buf.len);
        if (n == -EAGAIN) {
            cb(stream, 0, &buf);
            return;
        }
        if (n <= 0) {
            s->reading = false;
            s->read_ended = true;
            cb(stream, n == 0 ? UV_EOF : n, &buf);
            return;
        }
        cb(stream, n, &buf);
        if ((size_t)n < buf.len)
            return;
    }
}

/* ---- writing ---- */

static void flush(struct uv_state *s)
{
    for (struct uv_out *o = s->first_out; o; o = o->next) {
        while (!o->done && o->n) {
            const ssize_t n = os_send(s->socket, o->p, o->n);

            if (n == -EAGAIN)
                return;
            if (n < 0) {
                o->done = true;
                o->status = (int)n;
                break;
            }
            o->p += n;
            o->n -= (size_t)n;
        }
        o->done = true;
    }
}

int uv_write(uv_write_t *req, uv_stream_t *stream, const uv_buf_t bufs[],
             unsigned count, uv_write_cb cb)
{
    struct uv_state *s = uv_state_of(stream);

    if (!s->socket || s->closing)
        return UV_EBADF;
    req->type = UV_WRITE;
    req->handle = stream;
    req->cb = cb;
    for (unsigned i = 0; i < count; i++) {
        struct uv_out *o = os_alloc(sizeof *o);

        o->p = (const uint8_t *)bufs[i].base;
        o->n = bufs[i].len;
        o->req = i + 1 == count ? req : NULL;
        if (s->last_out)
            s->last_out->next = o;
        else
            s->first_out = o;
        s->last_out = o;
    }
    flush(s);
    return 0;
}

int uv_try_write(uv_stream_t *stream, const uv_buf_t bufs[], unsigned count)
{
    struct uv_state *s = uv_state_of(stream);
    ssize_t n;

    if (!s->socket || s->closing)
        return UV_EBADF;
    if (s->first_out || s->connect || count == 0)
        return UV_EAGAIN;
    n = os_send(s->socket, bufs[0].base, bufs[0].len);
    return (int)n;
}

/* ---- for the loop ---- */

bool uv_tcp_has_pending(const struct uv_state *s)
{
    return s->first_out && s->first_out->done;
}

void uv_tcp_pending(struct uv_state *s)
{
    while (s->first_out && s->first_out->done) {
        struct uv_out *o = s->first_out;

        s->first_out = o->next;
        if (!s->first_out)
            s->last_out = NULL;
        if (o->req && o->req->cb)
            o->req->cb(o->req, o->status);
    }
}

bool uv_tcp_wants_loop(const struct uv_state *s)
{
    return s->reading || s->connect || s->first_out;
}

bool uv_tcp_has_work(const struct uv_state *s)
{
    if (!s->socket || s->closing)
        return false;
    if (s->connect)
        return os_connected(s->socket) != 0;
    return (s->reading && os_readable(s->socket)) ||
           (s->first_out && !s->first_out->done && os_writable(s->socket));
}

void uv_tcp_work(struct uv_state *s)
{
    if (!s->socket)
        return;
    if (s->connect && os_connected(s->socket) != 0) {
        uv_connect_t *req = s->connect;
        const int how = os_connected(s->socket);

        s->connect = NULL;
        req->cb(req, how < 0 ? how : 0);
        return;
    }
    if (s->first_out && !s->closing)
        flush(s);
    if (s->reading && !s->closing)
        read_some(s);
    if (!s->closing)
        uv_tcp_pending(s);
}

void uv_tcp_begin_close(struct uv_state *s)
{
    s->reading = false;
    if (s->socket)
        os_close(s->socket);
}

void uv_tcp_end_close(struct uv_state *s)
{
    if (s->connect) {
        uv_connect_t *req = s->connect;

        s->connect = NULL;
        req->cb(req, UV_ECANCELED);
    }
    for (struct uv_out *o = s->first_out; o; o = o->next)
        if (!o->done) {
            o->done = true;
            o->status = UV_ECANCELED;
        }
    uv_tcp_pending(s);
}
