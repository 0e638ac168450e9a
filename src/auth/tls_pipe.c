/* tls_pipe.c - see tls_pipe.h. Each direction has room for one piece, and reads no more
 * until that piece is written. */
#include "auth/tls_pipe.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define PIECE  65536u
#define PIECES 8 /* moved in one direction before other handles get their turn */

struct piece {
    uint8_t bytes[PIECE];
    size_t from, to;
};

struct tls_pipe {
    uv_poll_t plain, encrypted;
    int plain_fd, encrypted_fd;
    int plain_for, encrypted_for; /* what the two wait for */
    struct tls *tls;
    struct piece out, in; /* plain to encrypted, and back */
    bool plain_ended, encrypted_ended;
    bool closing;
    int handles;
};

static void pipe_on_closed(uv_handle_t *h)
{
    struct tls_pipe *p = h->data;

    if (--p->handles)
        return;
    (void)close(p->plain_fd);
    (void)close(p->encrypted_fd);
    tls_end(p->tls);
    mem_free(p);
}

static void pipe_close(struct tls_pipe *p)
{
    if (p->closing)
        return;
    p->closing = true;
    p->handles = 2;
    uv_close((uv_handle_t *)&p->plain, pipe_on_closed);
    uv_close((uv_handle_t *)&p->encrypted, pipe_on_closed);
}

/* Moves one piece from the plain to the encrypted side. False: nothing moved. */
static bool move_out(struct tls_pipe *p, bool *broken)
{
    if (p->out.from == p->out.to && !p->plain_ended) {
        const ssize_t n = recv(p->plain_fd, p->out.bytes, PIECE, MSG_DONTWAIT);

        if (n < 0 && errno != EAGAIN && errno != EINTR)
            *broken = true;
        if (n == 0)
            p->plain_ended = true;
        p->out.from = 0;
        p->out.to = n > 0 ? (size_t)n : 0;
    }
    if (p->out.from == p->out.to)
        return false;
    const ssize_t n =
        tls_write(p->tls, p->out.bytes + p->out.from, p->out.to - p->out.from);
    if (n < 0)
        *broken = true;
    p->out.from += n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bool move_in(struct tls_pipe *p, bool *broken)
{
    if (p->in.from == p->in.to && !p->encrypted_ended) {
        const ssize_t n = tls_read(p->tls, p->in.bytes, PIECE);

        if (n < 0 && errno != EAGAIN && errno != EINTR)
            *broken = true;
        if (n == 0)
            p->encrypted_ended = true;
        p->in.from = 0;
        p->in.to = n > 0 ? (size_t)n : 0;
    }
    if (p->in.from == p->in.to)
        return false;
    const ssize_t n = send(p->plain_fd, p->in.bytes + p->in.from, p->in.to - p->in.from,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        *broken = true;
    p->in.from += n > 0 ? (size_t)n : 0;
    return n > 0;
}

static void pipe_on_poll(uv_poll_t *poll, int status, int what);

/* Each uv_poll_start is a system call, even for events that are watched already. */
static void poll_for(uv_poll_t *poll, int *now, int what)
{
    if (what == *now)
        return;
    *now = what;
    if (what)
        (void)uv_poll_start(poll, what, pipe_on_poll);
    else
        (void)uv_poll_stop(poll);
}

static void pipe_watch(struct tls_pipe *p, int flushed)
{
    const bool out_waits = p->out.from != p->out.to, in_waits = p->in.from != p->in.to;
    int plain =
        (out_waits || p->plain_ended ? 0 : UV_READABLE) | (in_waits ? UV_WRITABLE : 0);
    int encrypted = (in_waits || p->encrypted_ended ? 0 : UV_READABLE) |
                    (out_waits || flushed == 0 ? UV_WRITABLE : 0);

    poll_for(&p->plain, &p->plain_for, plain);
    poll_for(&p->encrypted, &p->encrypted_for, encrypted);
}

/* Moves bytes in the directions for which an event has come. */
static void pipe_pump(struct tls_pipe *p, bool out, bool in)
{
    bool broken = false;
    int flushed;

    for (int i = 0; !broken && (out || in); i++) {
        if (i >= PIECES && !(in && tls_pending(p->tls)))
            break;
        /* If a piece is not full, there is nothing more to read for now. */
        out = out && move_out(p, &broken) && p->out.to == PIECE;
        in = in && move_in(p, &broken) && tls_buffered(p->tls);
    }
    flushed = tls_flush(p->tls);
    if (broken || flushed < 0 ||
        (p->plain_ended && p->out.from == p->out.to && flushed > 0) ||
        (p->encrypted_ended && p->in.from == p->in.to))
        pipe_close(p);
    else
        pipe_watch(p, flushed);
}

static void pipe_on_poll(uv_poll_t *poll, int status, int what)
{
    struct tls_pipe *p = poll->data;

    if (p->closing)
        return;
    if (status < 0) {
        pipe_close(p);
        return;
    }
    pipe_pump(p, poll == &p->plain ? what & UV_READABLE : what & UV_WRITABLE,
              poll == &p->plain ? what & UV_WRITABLE : what & UV_READABLE);
}

int tls_pipe_open(uv_loop_t *loop, int plain_fd, int encrypted_fd, struct tls *tls,
                  struct muster_error *err)
{
    struct tls_pipe *p = mem_alloc(sizeof *p);

    if (!p)
        return err_nomem(err);
    memset(p, 0, offsetof(struct tls_pipe, out));
    p->out.from = p->out.to = p->in.from = p->in.to = 0;
    p->plain_ended = p->encrypted_ended = p->closing = false;
    p->plain_fd = plain_fd;
    p->encrypted_fd = encrypted_fd;
    p->tls = tls;
    if (uv_poll_init(loop, &p->plain, plain_fd) < 0) {
        mem_free(p);
        return err_nomem(err);
    }
    p->plain.data = p->encrypted.data = p;
    if (uv_poll_init(loop, &p->encrypted, encrypted_fd) < 0) {
        /* This cannot fail for our sockets. If it does, they stay the caller's, and
         * only the first handle is closed. */
        p->plain_fd = p->encrypted_fd = -1;
        p->tls = NULL;
        p->handles = 1;
        uv_close((uv_handle_t *)&p->plain, pipe_on_closed);
        return err_nomem(err);
    }
    pipe_pump(p, true, true);
    return 0;
}
