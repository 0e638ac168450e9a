/* relay.c - see relay.h. */
#include "rendezvous/relay.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth/tls_pipe.h"
#include "base/err.h"
#include "base/mem.h"
#include "net/listen.h"
#include "net/peer_uid.h"
#include "store/connect.h"

#define DIAL_MS 60000u /* a store that takes longer is not there; as torch's client */

/* One connection of a worker. */
struct carried {
    struct relay *relay;
    struct dialer *dialer; /* owned, until the pipe is there */
    int fd;                /* the worker's; the pipe's once that is there */
    struct tls_pipe *pipe; /* closes itself; NULL once it has */
    struct carried *prev, *next;
};

struct relay {
    uv_loop_t *loop;
    char *host; /* owned */
    uint16_t port, own_port;
    struct auth *auth;
    const struct trace *trace;
    int listener;
    uv_poll_t poll;
    struct carried *first;
    size_t refs; /* the poll handle, and each connection */
    bool closing;
    void (*closed)(void *ctx);
    void *ctx;
};

static void release(struct relay *r)
{
    void (*closed)(void *) = r->closed;
    void *ctx = r->ctx;

    if (--r->refs)
        return;
    auth_unref(r->auth);
    mem_free(r->host);
    mem_free(r);
    if (closed)
        closed(ctx);
}

static void forget(struct carried *c)
{
    struct relay *r = c->relay;

    if (c->prev)
        c->prev->next = c->next;
    else
        r->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    dial_free(c->dialer);
    if (c->fd >= 0)
        (void)close(c->fd);
    mem_free(c);
    release(r);
}

static void relay_on_carried(void *ctx)
{
    struct carried *c = ctx;

    c->pipe = NULL;
    forget(c);
}

/* The connection is there, proven and encrypted, and has become the pipe's: or not. */
static void relay_on_dialed(void *ctx, struct dial_conn *conn,
                            const struct muster_error *err)
{
    struct carried *c = ctx;

    if (conn) /* Never: it was to be carried. */
        dial_conn_close(conn);
    if (!err) {
        c->fd = -1;
        if (c->pipe)
            tls_pipe_stay_awake(c->pipe);
        return;
    }
    trace(c->relay->trace, TRACE_WARN, "a worker's way to its store: %s", err->text);
    forget(c); /* The worker sees its connection closed, and tries again. */
}

static void carry(struct relay *r, int fd)
{
    struct carried *c = mem_calloc(1, sizeof *c);
    struct muster_error err;

    if (!c) {
        (void)close(fd);
        return;
    }
    *c = (struct carried){ .relay = r, .fd = fd, .next = r->first };
    if (r->first)
        r->first->prev = c;
    r->first = c;
    r->refs++;
    const struct dial_opts opts = { .host = r->host,
                                    .port = r->port,
                                    .timeout_ms = DIAL_MS,
                                    .auth = r->auth,
                                    .carry = true,
                                    .carry_fd = fd,
                                    .carry_pipe = &c->pipe,
                                    .carry_closed = relay_on_carried,
                                    .carry_ctx = c,
                                    .trace = r->trace };
    if (dial_start(r->loop, &opts, relay_on_dialed, c, &c->dialer, &err) < 0) {
        c->dialer = NULL;
        forget(c);
    }
}

static void relay_on_accept(uv_poll_t *poll, int status, int what)
{
    struct relay *r = poll->data;
    uid_t uid;
    int fd;

    (void)status;
    (void)what;
    while ((fd = accept4(r->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (peer_uid(fd, &uid) == PEER_HERE && uid == geteuid()) {
            carry(r, fd);
            continue;
        }
        trace(r->trace, TRACE_WARN,
              "refused a connection to the workers' store: it belongs to another user "
              "of this machine");
        (void)close(fd);
    }
}

int relay_open(uv_loop_t *loop, const struct relay_opts *opts, struct relay **out,
               struct muster_error *err)
{
    const struct listen_opts lo = { .bind = "127.0.0.1", .fd = -1 };
    struct relay *r = mem_calloc(1, sizeof *r);
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a;
    int rc;

    if (!r)
        return err_nomem(err);
    *r = (struct relay){ .loop = loop,
                         .port = opts->port,
                         .trace = opts->trace,
                         .listener = -1,
                         .refs = 1 };
    r->host = mem_strdup(opts->host);
    rc = r->host ? listen_open(&lo, &r->listener, err) : err_nomem(err);
    if (rc == 0 && uv_poll_init(loop, &r->poll, r->listener) < 0) {
        (void)close(r->listener);
        rc = err_set(err, MUSTER_EIO, "cannot watch a socket");
    }
    if (rc < 0) {
        mem_free(r->host);
        mem_free(r);
        return rc;
    }
    r->auth = auth_ref(opts->auth);
    r->poll.data = r;
    (void)uv_poll_start(&r->poll, UV_READABLE, relay_on_accept);
    (void)getsockname(r->listener, (struct sockaddr *)&a, &n);
    r->own_port = address_port(&a);
    *out = r;
    return 0;
}

uint16_t relay_port(const struct relay *r)
{
    return r->own_port;
}

static void relay_on_poll_closed(uv_handle_t *h)
{
    struct relay *r = h->data;

    (void)close(r->listener);
    release(r);
}

void relay_close(struct relay *r, void (*cb)(void *ctx), void *ctx)
{
    struct carried *next;

    r->closing = true;
    r->closed = cb;
    r->ctx = ctx;
    for (struct carried *c = r->first; c; c = next) {
        next = c->next;
        if (c->pipe)
            tls_pipe_close(c->pipe);
        else
            forget(c);
    }
    uv_close((uv_handle_t *)&r->poll, relay_on_poll_closed);
}
