/* relay.c - see relay.h. All connections of the workers are lanes of one encrypted
 * connection (store/core/lanes.h), which is made when the first of them comes. So what
 * several workers send at a time is one record and one system call.
 *
 * The sockets are in an epoll set of our own, as the store's are. Workers are read
 * until OUT_MOST bytes wait for the encrypted connection. That connection is always
 * read, since its other end sends a worker no more than there is room for here.
 *
 * A worker that asks one thing after the other is back within microseconds, and so is
 * the answer. To sleep and wake up for each takes longer than everything else. So when
 * the last few sleeps were very short, the relay stays awake for a moment, as the store
 * itself does. */
#include "rendezvous/relay.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth/tls.h"
#include "base/err.h"
#include "base/mem.h"
#include "net/listen.h"
#include "net/peer_uid.h"
#include "store/connect.h"
#include "store/core/lanes.h"
#include "store/core/wire.h"

#define DIAL_MS  60000u /* to reach the store; as torch's client */
#define PIECE    65536u
#define PIECES   4        /* of one connection in a row, then others have their turn */
#define OUT_MOST 1048576u /* bytes that wait for the encrypted connection */
#define EVENTS   64
#define ACCEPTS  64    /* in a row, then others have their turn */
#define PAUSE_MS 1000u /* how long not to accept when out of descriptors, at most */

#define AWAKE_NS 50000u          /* how long to stay awake, when that pays */
#define NAP_NS   (3u * AWAKE_NS) /* a sleep this short was not worth it */
#define NAPS     4u              /* so many of them in a row: staying awake pays */
#define TURN_NS  1000000u        /* at most, then the rest of the agent has its turn */

/* The subject of an event: one of these two, or a lane's number. */
#define ON_LISTENER UINT64_MAX
#define ON_LINK     (UINT64_MAX - 1)

/* One connection of a worker. */
struct lane {
    int fd;         /* owned; -1 once the worker is gone */
    uint32_t taken; /* bytes that the worker took and that no ROOM has reported yet */
    bool open;      /* OPEN was sent */
    bool ended;     /* CLOSE was sent: no more comes from the worker */
    bool over;      /* the store has closed it; dropped once the worker has all bytes */
    bool waits;     /* the worker may have more bytes, to be read when there is room */
    struct buf in;  /* bytes that the worker has not taken yet */
};

struct relay {
    uv_loop_t *loop;
    char *host; /* owned */
    uint16_t port, own_port;
    struct auth *auth;
    const struct log *log;
    int listener, epoll;
    uv_poll_t poll;          /* on `epoll` */
    uv_timer_t pause;        /* until we accept again */
    int closing;             /* handles still to be closed by libuv */
    bool paused;             /* out of descriptors: we do not accept */
    struct log_rate refused; /* limits the log lines about refused connections */

    struct connector *connector; /* owned; while the encrypted connection is made */
    struct tls *tls;             /* owned; the encrypted connection, or NULL */
    int fd;                      /* its socket */
    bool choked;                 /* `out` is full, so workers are not read */
    struct buf out;              /* frames that wait for it */
    struct lanes_decoder decoder;
    uint8_t *piece; /* owned; room for what is read from it */

    struct lane **lanes; /* owned, as is each; by number */
    size_t size;

    bool may_wait_awake;
    unsigned naps;     /* very short sleeps in a row */
    uint64_t slept_ns; /* when the last sleep began */
    void (*closed)(void *ctx);
    void *ctx;
};

static void relay_watch(struct relay *r, int fd, uint64_t what, bool again)
{
    struct epoll_event ev = { .data.u64 = what,
                              .events = (uint32_t)(EPOLLIN | EPOLLOUT | EPOLLRDHUP) |
                                        (uint32_t)EPOLLET };

    (void)epoll_ctl(r->epoll, again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev);
}

static void listen_to(struct relay *r, bool on)
{
    struct epoll_event ev = { .data.u64 = ON_LISTENER, .events = on ? EPOLLIN : 0 };

    r->paused = !on;
    (void)epoll_ctl(r->epoll, EPOLL_CTL_MOD, r->listener, &ev);
}

static void relay_on_pause_over(uv_timer_t *timer)
{
    listen_to(timer->data, true);
}

/* We are out of descriptors. New connections wait until a worker leaves, or somebody
 * else in the process or on the machine closes one. */
static void pause_listening(struct relay *r)
{
    listen_to(r, false);
    (void)uv_timer_start(&r->pause, relay_on_pause_over, PAUSE_MS, 0);
}

/* ---- Lanes ---- */

/* A child that was just forked may still hold the socket. Then closing it here would
 * not take it out of the set. */
static void relay_unwatch(struct relay *r, int fd)
{
    (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, fd, NULL);
    (void)close(fd);
}

static void lane_hang_up(struct relay *r, struct lane *l)
{
    if (l->fd >= 0)
        relay_unwatch(r, l->fd);
    l->fd = -1;
}

static void drop_lane(struct relay *r, size_t i)
{
    struct lane *l = r->lanes[i];

    r->lanes[i] = NULL;
    lane_hang_up(r, l);
    buf_fini(&l->in);
    mem_free(l);
    if (r->paused)
        listen_to(r, true);
}

/* All workers see their connections closed. Those that connect again make a new one. */
static void drop_link(struct relay *r)
{
    connect_free(r->connector);
    r->connector = NULL;
    if (r->tls) {
        tls_end(r->tls);
        r->tls = NULL;
        relay_unwatch(r, r->fd);
    }
    buf_fini(&r->out);
    buf_init(&r->out, SIZE_MAX);
    r->choked = false;
    r->decoder = (struct lanes_decoder){ 0 };
    for (size_t i = 0; i < r->size; i++)
        if (r->lanes[i])
            drop_lane(r, i);
}

/* Returns false if the frame could not be queued: then the encrypted connection is
 * useless. */
static bool relay_put(struct relay *r, enum lane_kind kind, size_t i, size_t count)
{
    return lanes_put(&r->out, kind, (uint32_t)i, count) == 0;
}

static bool relay_open_lane(struct relay *r, size_t i)
{
    if (!relay_put(r, LANE_OPEN, i, 0))
        return false;
    r->lanes[i]->open = true;
    relay_watch(r, r->lanes[i]->fd, i, false); /* This reports earlier bytes, too. */
    return true;
}

/* No more will come from this worker. */
static bool relay_end_lane(struct relay *r, size_t i)
{
    r->lanes[i]->ended = true;
    return relay_put(r, LANE_CLOSE, i, 0);
}

/* Sends as many of the bytes as the worker takes now, and returns how many that
 * were. */
static size_t send_to_worker(struct relay *r, struct lane *l, struct span bytes)
{
    ssize_t n;

    if (l->fd < 0)
        return bytes.n;
    do
        n = send(l->fd, bytes.p, bytes.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        return (size_t)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return 0;
    lane_hang_up(r, l); /* Whatever still comes for it is dropped. */
    return bytes.n;
}

/* The worker has taken n bytes: the store may send more, or the lane is finished. */
static bool worker_took(struct relay *r, size_t i, size_t n)
{
    struct lane *l = r->lanes[i];
    bool ok = true;

    l->taken += (uint32_t)n;
    if (l->over && buf_len(&l->in) == 0) {
        drop_lane(r, i);
        return true;
    }
    if (l->fd < 0 && !l->ended)
        ok = relay_end_lane(r, i);
    if (l->taken < LANES_WINDOW / 2 && l->fd >= 0)
        return ok;
    if (l->taken)
        ok = ok && relay_put(r, LANE_ROOM, i, l->taken);
    l->taken = 0;
    return ok;
}

static bool flush_worker(struct relay *r, size_t i)
{
    struct lane *l = r->lanes[i];
    size_t n;

    if (buf_len(&l->in) == 0)
        return true;
    n = send_to_worker(r, l, buf_span(&l->in));
    buf_consume(&l->in, n);
    if (buf_len(&l->in) == 0)
        buf_fini(&l->in);
    return worker_took(r, i, n);
}

/* Returns false if the encrypted connection is useless now. */
static bool hear_worker(struct relay *r, size_t i, bool hung_up)
{
    struct lane *l = r->lanes[i];

    for (int k = 0; !l->ended && l->fd >= 0; k++) {
        uint8_t *to;
        ssize_t n;

        if (buf_len(&r->out) >= OUT_MOST) {
            l->waits = r->choked = true;
            return true;
        }
        if (k >= PIECES) {
            relay_watch(r, l->fd, i, true);
            return true;
        }
        to = buf_room(&r->out, LANES_HEAD + PIECE);
        if (!to)
            return false;
        n = recv(l->fd, to + LANES_HEAD, PIECE, MSG_DONTWAIT);
        if (n > 0) {
            lanes_head(to, LANE_DATA, (uint32_t)i, (size_t)n);
            buf_commit(&r->out, LANES_HEAD + (size_t)n);
            if (n < (ssize_t)PIECE && !hung_up)
                return true;
        } else if (n == 0) {
            return relay_end_lane(r, i);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return true;
        } else if (errno != EINTR) {
            lane_hang_up(r, l);
            return relay_end_lane(r, i) && flush_worker(r, i);
        }
    }
    return true;
}

/* ---- The encrypted connection ---- */

static bool hear_frame(struct relay *r, const struct lane_frame *f)
{
    struct lane *l = f->lane < r->size ? r->lanes[f->lane] : NULL;
    size_t n = 0;

    if (!l || !l->open || l->over)
        return false;
    if (f->kind == LANE_CLOSE) {
        l->over = true;
        return worker_took(r, f->lane, 0);
    }
    if (f->kind != LANE_DATA)
        return false;
    if (buf_len(&l->in) == 0)
        n = send_to_worker(r, l, f->data);
    l->in.cap = LANES_WINDOW;
    if (n < f->data.n && buf_append(&l->in, f->data.p + n, f->data.n - n) < 0)
        return false;
    return worker_took(r, f->lane, n);
}

static bool hear_link(struct relay *r)
{
    for (int k = 0; k < PIECES || tls_pending(r->tls); k++) {
        const ssize_t n = tls_read(r->tls, r->piece, PIECE);
        struct span bytes = span_of(r->piece, n > 0 ? (size_t)n : 0);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        while (bytes.n) {
            struct muster_error err;
            struct lane_frame f;
            const int64_t used = lanes_decode(&r->decoder, bytes, &f, &err);

            if (used < 0 || (used > 0 && !hear_frame(r, &f)))
                return false;
            if (used == 0)
                break;
            bytes = span_of(bytes.p + used, bytes.n - (size_t)used);
        }
        if (!tls_buffered(r->tls))
            return true;
    }
    relay_watch(r, r->fd, ON_LINK, true);
    return true;
}

static bool flush_link(struct relay *r)
{
    if (buf_len(&r->out)) {
        const ssize_t n = tls_write(r->tls, buf_data(&r->out), buf_len(&r->out));

        if (n < 0)
            return false;
        buf_consume(&r->out, (size_t)n);
    }
    if (tls_flush(r->tls) < 0)
        return false;
    if (!r->choked || buf_len(&r->out) > OUT_MOST / 2)
        return true;
    r->choked = false;
    for (size_t i = 0; i < r->size; i++) {
        struct lane *l = r->lanes[i];

        if (l && l->waits && l->fd >= 0)
            relay_watch(r, l->fd, i, true);
        if (l)
            l->waits = false;
    }
    return true;
}

/* The connection is made, proven and encrypted, or it failed. */
static void relay_on_connected(void *ctx, struct store_conn *conn,
                               const struct muster_error *err)
{
    const struct c10d_request push = { .op = C10D_QUEUE_PUSH,
                                       .key = span_str(LANES_KEY),
                                       .value = span_str(LANES_VERSION) };
    static const uint8_t validate[] = { C10D_VALIDATE, 0xce, 0xf7, 0x85, 0x3c };
    struct relay *r = ctx;
    bool ok;

    if (conn) /* This never happens, since it is encrypted. */
        store_conn_close(conn);
    if (err) {
        log_line(r->log, LOG_WARN, AT_RENDEZVOUS, "the relay to the workers' store: %s",
                 err->text);
        drop_link(r); /* Workers see their connections closed, and try again. */
        return;
    }
    connect_free(r->connector);
    r->connector = NULL;
    ok = buf_append(&r->out, validate, sizeof validate) == 0 &&
         c10d_encode_request(&r->out, &push, NULL) == 0;
    for (size_t i = 0; ok && i < r->size; i++)
        ok = !r->lanes[i] || relay_open_lane(r, i);
    relay_watch(r, r->fd, ON_LINK, false);
    if (!ok || !hear_link(r) || !flush_link(r))
        drop_link(r);
}

static int relay_connect(struct relay *r)
{
    const struct connect_opts opts = { .host = r->host,
                                       .port = r->port,
                                       .timeout_ms = DIAL_MS,
                                       .auth = r->auth,
                                       .tls = &r->tls,
                                       .tls_fd = &r->fd,
                                       .log = r->log };
    struct muster_error err;
    const int rc =
        connect_start(r->loop, &opts, relay_on_connected, r, &r->connector, &err);

    if (rc < 0)
        r->connector = NULL;
    return rc;
}

/* ---- Workers that come ---- */

static bool add_lane(struct relay *r, int fd)
{
    struct lane *l = mem_calloc(1, sizeof *l);
    size_t i = 0;

    while (i < r->size && r->lanes[i])
        i++;
    if (l && i == r->size && i < LANES_MOST) {
        const size_t size = MIN_OF(MAX_OF(8u, 2 * i), LANES_MOST);
        struct lane **lanes = mem_realloc_array(r->lanes, size, sizeof *lanes);

        if (lanes) {
            memset(lanes + i, 0, (size - i) * sizeof *lanes);
            r->lanes = lanes;
            r->size = size;
        }
    }
    if (!l || i == r->size) {
        log_line(r->log, LOG_WARN, AT_RENDEZVOUS,
                 "turned a worker's connection to its store away: %s",
                 l ? "there are too many" : "out of memory");
        mem_free(l);
        (void)close(fd);
        return true;
    }
    *l = (struct lane){ .fd = fd };
    r->lanes[i] = l;
    if (r->tls)
        return relay_open_lane(r, i);
    return r->connector || relay_connect(r) == 0;
}

static bool is_own(struct relay *r, int fd)
{
    static const char who[] = "the relay to the workers' store";
    uid_t uid = 0;
    const enum peer_place place = peer_uid(fd, &uid);

    if (place == PEER_HERE && uid == geteuid())
        return true;
    if (!log_rate_allows(&r->refused, uv_now(r->loop), r->log, who))
        return false;
    if (place == PEER_HERE)
        log_line(r->log, LOG_WARN, AT_RENDEZVOUS,
                 "%s: refused a connection: it belongs to another user of this machine "
                 "(user number %u)",
                 who, (unsigned)uid);
    else
        log_line(
            r->log, LOG_WARN, AT_RENDEZVOUS,
            "%s: refused a connection: it was gone before the kernel could be asked "
            "whose it is",
            who);
    return false;
}

/* Returns false if the encrypted connection is useless now. Bounded, since a process
 * that connects again and again, only to be refused, must not keep the agent from
 * everything else. */
static bool take_workers(struct relay *r)
{
    bool ok = true;

    for (int k = 0; ok && k < ACCEPTS; k++) {
        const int fd = accept4(r->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                errno == ENOMEM)
                pause_listening(r);
            return true;
        }
        if (is_own(r, fd))
            ok = add_lane(r, fd);
        else
            (void)close(fd);
    }
    return ok;
}

/* ---- The loop ---- */

/* Does what there is to do now; returns false if there was nothing. */
static bool relay_turn(struct relay *r)
{
    struct epoll_event events[EVENTS];
    const int n = epoll_wait(r->epoll, events, EVENTS, 0);
    bool ok = true;

    for (int k = 0; ok && k < n; k++) {
        const uint64_t what = events[k].data.u64;
        const bool hung_up = events[k].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);

        if (what == ON_LISTENER)
            ok = take_workers(r);
        else if (what == ON_LINK)
            ok = !r->tls || hear_link(r);
        else if (what < r->size && r->lanes[what])
            ok = flush_worker(r, what) &&
                 (!r->lanes[what] || hear_worker(r, what, hung_up));
    }
    if (!ok || (r->tls && !flush_link(r)))
        drop_link(r);
    return n > 0;
}

/* Handles what comes within AWAKE_NS, and again what comes within AWAKE_NS after that,
 * until nothing comes or others must have their turn. */
static void relay_wait_awake(struct relay *r)
{
    const uint64_t end = uv_hrtime() + TURN_NS;
    uint64_t now = end - TURN_NS, until = now + AWAKE_NS;

    while (now < end) {
        const bool came = relay_turn(r);

        now = uv_hrtime();
        if (came) {
            until = now + AWAKE_NS;
        } else if (now >= until) {
            r->naps = 0;
            return;
        }
    }
}

static void relay_on_poll(uv_poll_t *poll, int status, int what)
{
    struct relay *r = poll->data;

    (void)status;
    (void)what;
    (void)relay_turn(r);
    if (!r->may_wait_awake)
        return;
    r->naps = uv_hrtime() - r->slept_ns < NAP_NS ? r->naps + 1 : 0;
    if (r->naps >= NAPS)
        relay_wait_awake(r);
    r->slept_ns = uv_hrtime();
}

/* We may stay awake only if that leaves a processor to those that we wait for. */
static bool has_other_cpus(void)
{
    cpu_set_t own;

    return sched_getaffinity(0, sizeof own, &own) == 0 && CPU_COUNT(&own) > 1;
}

/* ---- Open and close ---- */

static void relay_free(struct relay *r)
{
    if (r->listener >= 0)
        (void)close(r->listener);
    if (r->epoll >= 0)
        (void)close(r->epoll);
    auth_unref(r->auth);
    mem_free(r->lanes);
    mem_free(r->piece);
    mem_free(r->host);
    mem_free(r);
}

int relay_open(uv_loop_t *loop, const struct relay_opts *opts, struct relay **out,
               struct muster_error *err)
{
    const struct listen_opts lo = { .bind = "127.0.0.1", .fd = -1 };
    struct epoll_event ev = { .data.u64 = ON_LISTENER, .events = EPOLLIN };
    struct relay *r = mem_calloc(1, sizeof *r);
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a;
    int rc;

    if (!r)
        return err_nomem(err);
    *r = (struct relay){ .loop = loop,
                         .port = opts->port,
                         .log = opts->log,
                         .auth = auth_ref(opts->auth),
                         .may_wait_awake = has_other_cpus(),
                         .listener = -1,
                         .epoll = epoll_create1(EPOLL_CLOEXEC) };
    buf_init(&r->out, SIZE_MAX);
    r->host = mem_strdup(opts->host);
    r->piece = mem_alloc(PIECE);
    rc = r->host && r->piece ? listen_open(&lo, &r->listener, err) : err_nomem(err);
    if (rc == 0 &&
        (r->epoll < 0 || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->listener, &ev) < 0 ||
         uv_poll_init(loop, &r->poll, r->epoll) < 0))
        rc = err_set(err, MUSTER_EIO, "cannot watch a socket");
    if (rc < 0) {
        relay_free(r);
        return rc;
    }
    (void)uv_timer_init(loop, &r->pause);
    r->poll.data = r->pause.data = r;
    (void)uv_poll_start(&r->poll, UV_READABLE, relay_on_poll);
    (void)getsockname(r->listener, (struct sockaddr *)&a, &n);
    r->own_port = address_port(&a);
    *out = r;
    return 0;
}

uint16_t relay_port(const struct relay *r)
{
    return r->own_port;
}

static void relay_on_closed(uv_handle_t *h)
{
    struct relay *r = h->data;
    void (*closed)(void *) = r->closed;
    void *ctx = r->ctx;

    if (--r->closing)
        return;
    relay_free(r);
    if (closed)
        closed(ctx);
}

void relay_close(struct relay *r, void (*cb)(void *ctx), void *ctx)
{
    r->closed = cb;
    r->ctx = ctx;
    drop_link(r);
    r->closing = 2;
    uv_close((uv_handle_t *)&r->poll, relay_on_closed);
    uv_close((uv_handle_t *)&r->pause, relay_on_closed);
}
