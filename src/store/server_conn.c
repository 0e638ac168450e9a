/* server_conn.c - bytes into and out of one connection of the store server.
 *
 * Life cycle of a connection:
 *
 *   accepted --first whole request--> known --end of stream--> ended --> closed -->
 * gone |            |                    |                        |
 *      '-- closed when request_ms pass without a whole request, or without a proof
 *
 *   accepted   server.c has numbered it; it has a deadline (server_time)
 *   known      its dialect is certain. A deadline runs only while a request is
 *              incomplete, since clients may be idle for days
 *   encrypts   its last plain answer is on its way; what follows is TLS, inside which
 *              the protocol starts again with VALIDATE (server_auth.c)
 *   lanes      it carries the connections of a node's workers (server_lanes.c)
 *   ended      the peer sends no more. Answers are still written, with a deadline
 *   dead       closed here; server.c tells the engine and the extension at the end of
 *              the event, and frees it after all events that may point to it
 *
 * The way in: conn_read, conn_on_bytes, conn_drain, server_request for each whole
 * request. Requests are decoded where the kernel put them, in a buffer that all
 * connections share; only the beginning of an incomplete one is kept in c->in. The way
 * out: replies to the connection being served gather in s->out and go with one write
 * when its bytes are used up; those to others (waits that ended) go at once. What a
 * socket does not take is kept in c->out until epoll reports room.
 *
 * What a loss does: a peer that hangs up, breaks the protocol, sends or leaves unread
 * more than the limits, or for whose request there is no memory, loses its connection
 * and its waits, and nothing else. Valid requests that came before the bad one are
 * answered first.
 *
 * Rules, with their reasons:
 *   - conn_close may come at any point below conn_drain. So it frees no memory of the
 *     connection but its buffers, and c->in only if no request in it is being served.
 *   - epoll reports an edge. Whoever stops reading before EAGAIN asks for another
 *     report (conn_watch), so that one peer that sends much holds up nobody.
 *   - Buffers exist only while something is in them: 20,000 clients are mostly idle.
 *   - All bytes held for peers are counted (max_held): each may be within its limits,
 *     and all of them together still too much. */
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

struct extension_conn *conn_extension(struct conn *c)
{
    return &c->extension;
}

uint32_t conn_peer(const struct conn *c)
{
    return c->peer;
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
    if (getpeername(conn_socket(c), (struct sockaddr *)&a, &n) == 0)
        (void)ip_of_sockaddr((struct sockaddr *)&a, ip);
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
    if (c != s->serving) /* Otherwise conn_on_bytes still uses the request in it. */
        drop_buf(&c->in);
    drop_buf(&c->out);
    s->held -= c->held;
    c->held = 0;
    conns_append(&s->leaving, c);
}

/* How much the socket took; 0 if it is full, -1 if the connection is broken. */
static ssize_t conn_write_some(struct store_server *s, struct conn *c,
                               struct span bytes)
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
        log_line(s->opts.log, LOG_WARN, AT_RENDEZVOUS,
                 "store %s: closed the connection of %s: %s", s->address, who, why);
    if (c == s->serving && !c->out) /* Answer the valid requests that came before. */
        (void)conn_write_some(s, c, buf_span(&s->out));
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
static void conn_keep_output(struct store_server *s, struct conn *c, struct span bytes)
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
        n = conn_write_some(s, c, bytes);
        if (n < 0) {
            conn_close(s, c);
            return;
        }
    }
    if ((size_t)n < bytes.n || (c->tls && tls_flush(c->tls) == 0))
        conn_keep_output(s, c, span_of(bytes.p + n, bytes.n - (size_t)n));
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
    n = conn_write_some(s, c, buf_span(c->out));
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

/* The requests by which a client may change a key. */
static const bool is_write[C10D_OP_COUNT] = {
    [C10D_SET] = true,       [C10D_COMPARE_SET] = true, [C10D_ADD] = true,
    [C10D_APPEND] = true,    [C10D_DELETE_KEY] = true,  [C10D_QUEUE_PUSH] = true,
    [C10D_MULTI_SET] = true,
};

/* Runs the requests at the front of the bytes; returns how many bytes they took. */
static size_t conn_drain(struct store_server *s, struct conn *c, struct span bytes)
{
    struct c10d_request req;
    struct muster_error err;
    size_t used = 0;

    while (!c->dead && !c->encrypts && !c->lanes && used < bytes.n) {
        s->at = c->decoder.offset;
        const int64_t took = c10d_decode_request(&c->decoder, bytes.p + used,
                                                 bytes.n - used, &req, &err);

        if (took < 0) {
            conn_refuse(s, c, "%s", err.text);
            break;
        }
        if (took == 0)
            break;
        if (!c->known)
            server_known(s, c);
        s->stats.requests++;
        if (is_write[req.op] && !reserved_is_question(req.name)) {
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

static void conn_keep_input(struct store_server *s, struct conn *c, struct span rest)
{
    c->in = new_buf(s->opts.max_input);
    if (!c->in || buf_append_span(c->in, rest) < 0)
        out_of_memory(s, c);
    else if (!holds_too_much(s, c))
        server_time(s, c);
}

/* Where to read to: the shared buffer, or behind the bytes that are kept. The longer a
 * request has become, the larger the pieces. */
static uint8_t *conn_read_room(struct store_server *s, struct conn *c, size_t *size)
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
static void conn_send_replies(struct store_server *s, struct conn *c)
{
    s->serving = NULL;
    if (buf_len(&s->out))
        conn_send(s, c, buf_span(&s->out));
    buf_clear(&s->out);
    if (s->out.size > 16u * SHARED_SIZE)
        buf_fini(&s->out);
}

/* What comes behind the requests goes to what c has become: a carrier of others, or
 * encrypted. If c->in has these bytes, it is freed last, even if c is closed by them.
 */
static void conn_on_other_protocol(struct store_server *s, struct conn *c,
                                   struct span rest)
{
    struct buf *in = c->in;

    c->in = NULL;
    (void)count_held(s, c);
    if (c->lanes)
        server_lanes_bytes(s, c, rest);
    else
        server_auth_encrypt(s, c, rest);
    drop_buf(&in);
}

/* n bytes have come: in the shared buffer at p, or, if the beginning of the request is
 * kept, behind that. */
static void conn_on_bytes(struct store_server *s, struct conn *c, const uint8_t *p,
                          size_t n)
{
    struct span bytes = span_of(p, n);
    size_t used;

    if (c->in) {
        buf_commit(c->in, n);
        if (holds_too_much(s, c))
            return;
        bytes = buf_span(c->in);
    }
    s->serving = c;
    used = conn_drain(s, c, bytes);
    if (s->auth)
        server_auth_find_user(s, c);
    conn_send_replies(s, c);
    if (c->dead) {
        drop_buf(&c->in); /* It may have been closed while it was served. */
    } else if (c->lanes || c->encrypts) {
        conn_on_other_protocol(s, c, span_skip(bytes, used));
    } else if (!c->in) {
        if (used < n)
            conn_keep_input(s, c, span_skip(bytes, used));
    } else if (used) { /* The rest is another request with its own deadline. */
        buf_consume(c->in, used);
        (void)count_held(s, c);
        if (!s->auth || c->admitted)
            server_untime(s, c);
        if (buf_len(c->in))
            server_time(s, c);
        else
            drop_buf(&c->in);
    }
}

void conn_take(struct store_server *s, struct conn *c, struct span bytes)
{
    while (!c->dead && !c->ended && bytes.n) {
        size_t size;
        uint8_t *to = c->in ? conn_read_room(s, c, &size) : NULL;

        if (c->in && !to)
            return;
        if (!to)
            size = bytes.n;
        size = MIN_OF(size, bytes.n);
        if (to)
            memcpy(to, bytes.p, size);
        conn_on_bytes(s, c, to ? to : bytes.p, size);
        bytes = span_of(bytes.p + size, bytes.n - size);
    }
}

/* One read; true if there may be more. */
static bool conn_read_once(struct store_server *s, struct conn *c, bool hung_up)
{
    size_t size;
    uint8_t *to = conn_read_room(s, c, &size);
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
            conn_on_bytes(s, c, to, (size_t)n);
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
        if (!conn_read_once(s, c, hung_up))
            return;
    }
}
