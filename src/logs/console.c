/* console.c - see console.h. */
#include "logs/console.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct console *c = poll->data;

    (void)status;
    (void)events;
    console_flush(c);
    c->wanted = false;
    if (!console_full(c))
        c->on_ready(c->ctx);
    /* More output usually follows at once, so the poll goes on meanwhile. */
    if (!c->wanted && console_empty(c) && !uv_is_closing((uv_handle_t *)poll))
        uv_poll_stop(poll);
}

void console_open(struct console *c, uv_loop_t *loop, int fd,
                  void (*on_ready)(void *ctx), void *ctx)
{
    struct stat st;
    char path[32];

    *c = (struct console){ .fd = fd, .loop = loop, .on_ready = on_ready, .ctx = ctx };
    buf_init(&c->out, SIZE_MAX);
    if (fstat(fd, &st) < 0) {
        c->broken = errno;
        return;
    }
    c->socket = S_ISSOCK(st.st_mode);
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const int again = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (again >= 0) { /* It may not be ours to open: then we only poll it. */
            c->fd = again;
            c->own = true;
        }
    }
}

/* Regular files take everything; a shared descriptor that might block is asked first
 * and then given no more than a pipe takes at once. */
static ssize_t write_some(struct console *c)
{
    const struct span s = buf_span(&c->out);

    if (c->socket)
        return send(c->fd, s.p, s.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (c->own)
        return write(c->fd, s.p, s.n);
    struct pollfd p = { .fd = c->fd, .events = POLLOUT };
    if (poll(&p, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    struct stat st;
    const bool file = fstat(c->fd, &st) == 0 && S_ISREG(st.st_mode);
    return write(c->fd, s.p, file ? s.n : MIN_OF(s.n, 4096));
}

static void wait_for_room(struct console *c)
{
    if (!c->polled) {
        c->poll.data = c;
        if (uv_poll_init(c->loop, &c->poll, c->fd) != 0) {
            c->broken = EIO;
            buf_clear(&c->out);
            return;
        }
        c->polled = true;
    }
    if (!uv_is_active((uv_handle_t *)&c->poll))
        uv_poll_start(&c->poll, UV_WRITABLE, on_writable);
}

void console_want(struct console *c)
{
    c->wanted = true;
    wait_for_room(c);
}

void console_flush(struct console *c)
{
    if (c->broken)
        buf_clear(&c->out);
    while (buf_len(&c->out) > 0) {
        const ssize_t n = write_some(c);
        if (n >= 0) {
            buf_consume(&c->out, (size_t)n);
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN) {
            wait_for_room(c);
            return;
        }
        c->broken = errno;
        buf_clear(&c->out);
    }
    if (c->polled && !c->wanted)
        uv_poll_stop(&c->poll);
}

void console_close(struct console *c, struct handle_set *closing)
{
    if (c->polled)
        handle_set_close(closing, &c->poll);
    if (c->own)
        close(c->fd);
    buf_fini(&c->out);
}
