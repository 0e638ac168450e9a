/* server_conn.c - bytes into and out of one connection of the store server.
 *
 * Requests are decoded where the kernel put them, in a buffer that all connections
 * share; only what is left of an incomplete one is kept. Replies of one read gather and
 * go out in one write. */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "auth/tls.h"
#include "base/list.h"
#include "base/mem.h"
#include "store/core/reserved.h"
#include "store/server_int.h"

#define READS 4 /* of one connection, before the others get their turn */

void conns_append(struct conns *list, struct conn *c)
{
    LIST_APPEND(list, c, prev, next);
}

void conns_remove(struct conns *list, struct conn *c)
{
    LIST_REMOVE(list, c, prev, next);
}

struct conn *conns_take(struct conns *list)
{
    struct conn *c = list->first;

    if (c)
        conns_remove(list, c);
    return c;
}

void conns_free(struct conns *list)
{
    while (list->first)
        mem_free(conns_take(list));
}

static void drop_buf(struct buf **b)
{
    buf_fini(*b);
    mem_free(*b);
    *b = NULL;
}

static struct buf *new_buf(size_t cap)
{
    struct buf *b = mem_alloc(sizeof *b);

    if (b)
        buf_init(b, cap);
    return b;
}

/* Updates the count of bytes that all connections hold. False: those without a proof
 * hold too much. */
static bool count_held(struct store_server *s, struct conn *c)
{
    const size_t now = (c->in ? buf_len(c->in) : 0) + (c->out ? buf_len(c->out) : 0);
    const size_t before = c->held;

    s->held = s->held - before + now;
    c->held = now;
    return !s->auth || server_auth_held(s, c, before);
}

/* A thousand connections that each hold little may together hold all memory: one that
 * needs more when too much is held already is closed. */
static bool holds_too_much(struct store_server *s, struct conn *c)
{
    if (!count_held(s, c)) {
        conn_refuse(s, c, "connections that have not proven themselves hold too much");
        return true;
    }
    if (s->held <= s->opts.max_held)
        return false;
    conn_refuse(s, c,
                "unfinished requests and unread answers of all connections take more "
                "than %zu MiB, %zu MiB of them for this one",
                s->opts.max_held >> 20, c->held >> 20);
    return true;
}

struct tenant_conn *conn_tenant(struct conn *c)
{
    return &c->tenant;
}

uint32_t conn_peer(const struct conn *c)
{
    return c->peer;
}

bool conn_closed(const struct conn *c)
{
    return c->dead;
}

bool conn_hung_up(const struct conn *c)
{
    return c->ended;
}

int conn_socket(const struct conn *c)
{
    return c->carrier ? c->carrier->fd : c->fd;
}

void conn_address(const struct conn *c, uint8_t ip[16])
{
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a;

    memset(ip, 0, 16);
    if (getpeername(conn_socket(c), (struct sockaddr *)&a, &n) < 0)
        return;
    if (a.ss_family == AF_INET6) {
        memcpy(ip, &((struct sockaddr_in6 *)&a)->sin6_addr, 16);
    } else if (a.ss_family == AF_INET) {
        ip[10] = ip[11] = 0xff;
        memcpy(ip + 12, &((struct sockaddr_in *)&a)->sin_addr, 4);
    }
}

/* Watches for what the connection's state needs. */
static void conn_watch(struct store_server *s, struct conn *c)
{
    struct epoll_event ev = { .data.ptr = c };

    ev.events =
        (c->ended ? 0u : (uint32_t)EPOLLIN) | (c->out ? (uint32_t)EPOLLOUT : 0u);
    if (!c->carrier)
        (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

void conn_close(struct store_server *s, struct conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    server_untime(s, c);
    if (s->auth)
        server_auth_left(s, c);
    if (c->carrier)
        server_lanes_closed(s, c);
    server_lanes_free(s, c);
    /* Remove it explicitly: if a child that was just forked still holds the socket,
     * closing it does not take it out of the set. */
    if (c->fd >= 0) {
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        (void)close(c->fd);
    }
    if (c != s->serving) /* Otherwise on_bytes still uses the request in it. */
        drop_buf(&c->in);
    drop_buf(&c->out);
    s->held -= c->held;
    c->held = 0;
    conns_append(&s->leaving, c);
}

/* How much the socket took; 0 if it is full, -1 if the connection is broken. */
static ssize_t write_some(struct store_server *s, struct conn *c, struct span bytes)
{
    ssize_t n;

    if (c->carrier)
        return server_lanes_write(s, c, bytes);
    do
        n = c->tls ? tls_write(c->tls, bytes.p, bytes.n)
                   : send(c->fd, bytes.p, bytes.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n > 0)
        s->stats.bytes_out += (uint64_t)n;
    return n;
}

void conn_refuse(struct store_server *s, struct conn *c, const char *fmt, ...)
{
    char who[ADDRESS_TEXT], why[512];
    va_list ap;

    if (c->dead)
        return;
    address_of_peer(conn_socket(c), who);
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if ((s->auth && c->admitted && !c->worker_only) || server_may_log(s))
        trace(s->opts.trace, TRACE_WARN, "store %s: closed the connection of %s: %s",
              s->address, who, why);
    if (c == s->serving && !c->out) /* Answer the valid requests that came before. */
        (void)write_some(s, c, buf_span(&s->out));
    conn_close(s, c);
}

void conn_too_much(struct store_server *s, struct conn *c)
{
    conn_refuse(s, c, "it leaves its answers unread: more than %zu bytes wait",
                s->opts.max_output);
}

static void out_of_memory(struct store_server *s, struct conn *c)
{
    conn_refuse(s, c, "out of memory");
}

/* Keeps what the socket did not take. */
static void keep_output(struct store_server *s, struct conn *c, struct span bytes)
{
    int rc = MUSTER_ENOMEM;

    if (!c->out)
        c->out = new_buf(s->opts.max_output);
    if (c->out)
        rc = buf_append_span(c->out, bytes);
    if (rc == MUSTER_EFULL)
        conn_too_much(s, c);
    else if (rc < 0)
        out_of_memory(s, c);
    else if (!holds_too_much(s, c) && !c->wants_write) {
        c->wants_write = true;
        conn_watch(s, c);
    }
}

void conn_send(struct store_server *s, struct conn *c, struct span bytes)
{
    ssize_t n = 0;

    if (c->dead || bytes.n == 0)
        return;
    if (!c->out) {
        n = write_some(s, c, bytes);
        if (n < 0) {
            conn_close(s, c);
            return;
        }
    }
    if ((size_t)n < bytes.n || (c->tls && tls_flush(c->tls) == 0))
        keep_output(s, c, span_of(bytes.p + n, bytes.n - (size_t)n));
}

void conn_flush(struct store_server *s, struct conn *c)
{
    ssize_t n;

    if (c->dead || !c->out)
        return;
    if (c->tls && buf_len(c->out) == 0) { /* Only encrypted bytes wait. */
        const int flushed = tls_flush(c->tls);

        if (flushed < 0)
            conn_close(s, c);
        if (flushed <= 0)
            return;
    }
    n = write_some(s, c, buf_span(c->out));
    if (n < 0) {
        conn_close(s, c);
        return;
    }
    buf_consume(c->out, (size_t)n);
    (void)count_held(s, c);
    if (buf_len(c->out) || (c->tls && tls_flush(c->tls) == 0))
        return;
    drop_buf(&c->out);
    c->wants_write = false;
    if (c->ended)
        conn_close(s, c);
    else
        conn_watch(s, c);
}

/* Whether a client changes a key that is not reserved. */
static bool is_write(const struct c10d_request *req)
{
    const size_t prefix = sizeof RESERVED_PREFIX - 1;

    switch (req->op) {
    case C10D_SET:
    case C10D_COMPARE_SET:
    case C10D_ADD:
    case C10D_APPEND:
    case C10D_DELETE_KEY:
    case C10D_QUEUE_PUSH:
        return req->key.n < prefix || memcmp(req->key.p, RESERVED_PREFIX, prefix) != 0;
    case C10D_MULTI_SET:
        return true;
    default:
        return false; /* reads, waits and the greeting */
    }
}

/* Runs the requests at the front of the bytes; returns how many bytes they took. */
static size_t drain(struct store_server *s, struct conn *c, const uint8_t *p, size_t n)
{
    struct c10d_request req;
    struct muster_error err;
    size_t used = 0;

    while (!c->dead && !c->encrypts && !c->lanes && used < n) {
        s->at = c->decoder.offset;
        const int64_t took =
            c10d_decode_request(&c->decoder, p + used, n - used, &req, &err);

        if (took < 0) {
            conn_refuse(s, c, "%s", err.text);
            break;
        }
        if (took == 0)
            break;
        if (!c->known)
            server_known(s, c);
        s->stats.requests++;
        if (is_write(&req)) {
            s->stats.writes++;
            if (s->stats.first_write_ms == 0)
                s->stats.first_write_ms = uv_now(s->loop);
        }
        if (server_request(s, c, &req) < 0)
            out_of_memory(s, c);
        used += (size_t)took;
    }
    return used;
}

void conn_end(struct store_server *s, struct conn *c)
{
    if (!c->out) {
        conn_close(s, c);
        return;
    }
    c->ended = true;
    server_time(s, c);
    conn_watch(s, c);
}

static void keep_input(struct store_server *s, struct conn *c, struct span rest)
{
    if (c->dead || rest.n == 0)
        return;
    c->in = new_buf(s->opts.max_input);
    if (!c->in || buf_append_span(c->in, rest) < 0)
        out_of_memory(s, c);
    else if (!holds_too_much(s, c))
        server_time(s, c);
}

/* Where to read to: the shared buffer, or behind the bytes that are kept. The longer a
 * request has become, the larger the pieces. */
static uint8_t *read_room(struct store_server *s, struct conn *c, size_t *size)
{
    size_t max = s->opts.max_input;
    uint8_t *to;

    *size = SHARED_SIZE;
    if (!c->in) {
        if (!s->shared && !(s->shared = mem_alloc(SHARED_SIZE)))
            out_of_memory(s, c);
        return s->shared;
    }
    /* The first request of a worker may be large: find out whether it is one. */
    if (s->auth && !c->admitted &&
        (buf_len(c->in) < UNPROVEN_INPUT || !server_auth_admits_plain(s, c)))
        max = 2 * UNPROVEN_INPUT;
    *size = MAX_OF(*size, MIN_OF(buf_len(c->in), 16u * SHARED_SIZE));
    *size = MIN_OF(*size, max - buf_len(c->in));
    to = *size ? buf_room(c->in, *size) : NULL;
    if (*size == 0)
        conn_refuse(s, c, "at byte %llu: its request has more than %zu bytes",
                    (unsigned long long)c->decoder.offset, max);
    else if (!to)
        out_of_memory(s, c);
    return to;
}

/* The requests of this read are served: sends all answers in one write. */
static void send_replies(struct store_server *s, struct conn *c)
{
    s->serving = NULL;
    conn_send(s, c, buf_span(&s->out));
    buf_clear(&s->out);
    if (s->out.size > 16u * SHARED_SIZE)
        buf_fini(&s->out);
}

static void on_bytes(struct store_server *s, struct conn *c, const uint8_t *p, size_t n)
{
    size_t used;

    s->serving = c;
    if (!c->in) {
        used = drain(s, c, p, n);
        server_auth_find_user(s, c);
        send_replies(s, c);
        if (c->lanes)
            server_lanes_bytes(s, c, span_of(p + used, n - used));
        else if (!server_auth_encrypt(s, c, span_of(p + used, n - used)))
            keep_input(s, c, span_of(p + used, n - used));
        return;
    }
    buf_commit(c->in, n);
    if (holds_too_much(s, c)) {
        s->serving = NULL;
        drop_buf(&c->in);
        return;
    }
    used = drain(s, c, buf_data(c->in), buf_len(c->in));
    server_auth_find_user(s, c);
    send_replies(s, c); /* This may close c and free c->in. */
    if (c->lanes) {     /* Keep the bytes until all are handled, even if c is closed. */
        struct buf *rest = c->in;

        c->in = NULL;
        (void)count_held(s, c);
        buf_consume(rest, used);
        server_lanes_bytes(s, c, buf_span(rest));
        drop_buf(&rest);
        return;
    }
    if (!c->dead &&
        server_auth_encrypt(s, c,
                            span_of(buf_data(c->in) + used, buf_len(c->in) - used)) &&
        !c->dead)
        used = buf_len(c->in);
    if (!c->dead && used) { /* The rest is another request with its own deadline. */
        buf_consume(c->in, used);
        (void)count_held(s, c);
        if (!s->auth || c->admitted)
            server_untime(s, c);
        if (buf_len(c->in))
            server_time(s, c);
    }
    if (c->dead || buf_len(c->in) == 0)
        drop_buf(&c->in);
}

void conn_take(struct store_server *s, struct conn *c, struct span bytes)
{
    while (!c->dead && !c->ended && bytes.n) {
        size_t size;
        uint8_t *to = c->in ? read_room(s, c, &size) : NULL;

        if (c->in && !to)
            return;
        if (!to)
            size = bytes.n;
        size = MIN_OF(size, bytes.n);
        if (to)
            memcpy(to, bytes.p, size);
        on_bytes(s, c, to ? to : bytes.p, size);
        bytes = span_of(bytes.p + size, bytes.n - size);
    }
}

/* One read; true if there may be more. */
static bool read_once(struct store_server *s, struct conn *c, bool hung_up)
{
    size_t size;
    uint8_t *to = read_room(s, c, &size);
    ssize_t n;

    if (!to)
        return false;
    do
        n = c->tls ? tls_read(c->tls, to, size) : recv(c->fd, to, size, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        s->stats.bytes_in += (uint64_t)n;
        if (c->lanes)
            server_lanes_bytes(s, c, span_of(to, (size_t)n));
        else
            on_bytes(s, c, to, (size_t)n);
        return (size_t)n == size || hung_up || (c->tls && tls_buffered(c->tls));
    }
    if (n == 0)
        conn_end(s, c);
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        conn_close(s, c);
    return false;
}

/* The kernel reports once that bytes came, not again while they wait. So if a peer
 * sends much, we read up to a limit and ask for another report. A short read has taken
 * all bytes, unless the end of the stream follows them. */
void conn_read(struct store_server *s, struct conn *c, bool hung_up)
{
    for (int i = 0; !c->dead && !c->ended; i++) {
        if (i >= READS && !(c->tls && tls_pending(c->tls))) {
            conn_watch(s, c);
            return;
        }
        if (!read_once(s, c, hung_up))
            return;
    }
}
