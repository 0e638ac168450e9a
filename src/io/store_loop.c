/* store_loop.c - what the sockets tell the store server: connections that come, bytes,
 * and the loops that wait for them. See store_server.h; what follows from it is in
 * store_conn.c and store_server.c.
 *
 * Connections are in an epoll set of our own, which the uv loop watches as one
 * descriptor: a uv handle for each of 20,000 idle clients would be most of the memory
 * that they take. */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/store_server_int.h"

#define ACCEPTS     1024   /* in one go, then the others have their turn */
#define EVENTS      256    /* likewise */
#define COMPLAIN_MS 60000u /* between two lines about being out of descriptors */
#define AWAKE_NS    50000u /* to wait without going to sleep, when that pays */
#define NAP_NS      (2u * AWAKE_NS) /* a sleep so short might as well not have been */
#define NAPS        4u              /* of them in a row: it pays */

static int number_reserve(struct store_server *s)
{
    const size_t size = s->conns_size ? s->conns_size * 2 : 64;
    struct conn **conns;
    uint32_t *numbers;

    if (s->free_numbers)
        return 0;
    conns = mem_realloc_array(s->conns, size, sizeof *conns);
    if (!conns)
        return MUSTER_ENOMEM;
    s->conns = conns;
    numbers = mem_realloc_array(s->numbers, size, sizeof *numbers);
    if (!numbers)
        return MUSTER_ENOMEM;
    s->numbers = numbers;
    for (size_t i = size; i-- > s->conns_size;) { /* The lowest is taken first. */
        s->conns[i] = NULL;
        s->numbers[s->free_numbers++] = (uint32_t)i;
    }
    s->conns_size = size;
    return 0;
}

static int conn_new(struct store_server *s, int fd)
{
    struct epoll_event ev = { .events = (uint32_t)EPOLLET | CONN_READS };
    struct conn *c;

    if (number_reserve(s) < 0)
        return MUSTER_ENOMEM;
    c = mem_calloc(1, sizeof *c);
    if (!c)
        return MUSTER_ENOMEM;
    ev.data.ptr = c;
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        mem_free(c);
        return MUSTER_ENOMEM;
    }
    c->fd = fd;
    c->peer = s->numbers[--s->free_numbers];
    c10d_decoder_init(&c->decoder);
    if (s->opts.dialect_a)
        c->decoder.old = C10D_DIALECT_A;
    s->conns[c->peer] = c;
    s->count++;
    server_time(s, c);
    return 0;
}

/* Out of descriptors: those in the backlog wait until somebody leaves, here or
 * elsewhere in the process. */
static void pause_accepting(struct store_server *s, int e)
{
    const uint64_t now = uv_now(s->loop);

    if (now >= s->complain_ms) {
        trace(
            s->opts.trace, TRACE_WARN,
            "store %s: cannot accept more than %zu connections for now: %s; raise the "
            "limit of open files (ulimit -n)",
            s->address, s->count, strerror(e));
        s->complain_ms = now + COMPLAIN_MS;
    }
    server_listen(s, false);
    server_arm(s);
}

static void on_accept(struct store_server *s)
{
    for (int i = 0; i < ACCEPTS; i++) {
        const int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        const int e = errno;

        if (fd < 0 && (e == EINTR || e == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (e == EMFILE || e == ENFILE || e == ENOBUFS || e == ENOMEM)
                pause_accepting(s, e);
            return;
        }
        if (conn_new(s, fd) < 0) {
            (void)close(fd);
            trace(s->opts.trace, TRACE_WARN,
                  "store %s: turned a connection away: out of memory", s->address);
            return;
        }
    }
}

static void on_event(struct store_server *s, struct conn *c, uint32_t what)
{
    if (what & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        conn_flush(s, c);
    if (what & (CONN_READS | EPOLLERR | EPOLLHUP))
        conn_read(s, c, what & (EPOLLRDHUP | EPOLLERR | EPOLLHUP));
    if (s->leaving.first)
        server_tell_left(s);
}

/* True if the uv loop has something to do as well. */
static bool serve(struct store_server *s, const struct epoll_event *events, int n)
{
    bool loop_too = false;

    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == s)
            on_accept(s);
        else if (events[i].data.ptr == s->loop)
            loop_too = true;
        else
            on_event(s, events[i].data.ptr, events[i].events);
    }
    conns_free(&s->gone); /* No event of this batch points to them any more. */
    return loop_too;
}

void server_on_events(uv_poll_t *poll, int status, int what)
{
    struct store_server *s = CONTAINER_OF(poll, struct store_server, poll);
    struct epoll_event events[EVENTS];

    (void)status;
    (void)what;
    (void)serve(s, events, epoll_wait(s->epoll, events, EVENTS, 0));
}

static int wait_awake(struct store_server *s, struct epoll_event *events)
{
    const uint64_t until = uv_hrtime() + AWAKE_NS;
    int n;

    do
        n = epoll_wait(s->epoll, events, EVENTS, 0);
    while (n == 0 && uv_hrtime() < until);
    return n;
}

/* A client that asks one thing after the other is back within microseconds. To be put
 * to sleep and woken up for each takes several times as long, and more processor time
 * than to stay awake. So, when the last few sleeps were hardly any, we stay awake for a
 * moment, and go back to sleeping as soon as that was for nothing. */
static int wait_for_events(struct store_server *s, struct epoll_event *events,
                           int timeout_ms)
{
    uint64_t before;
    int n = 0;

    if (timeout_ms && s->naps >= NAPS) {
        n = wait_awake(s, events);
        if (n == 0)
            s->naps = 0;
    }
    if (n == 0) {
        before = uv_hrtime();
        n = epoll_wait(s->epoll, events, EVENTS, timeout_ms);
        s->naps = s->may_wait_awake && uv_hrtime() - before < NAP_NS ? s->naps + 1 : 0;
    }
    if (timeout_ms)
        uv_update_time(s->loop);
    return n;
}

/* The sets are nested the other way round: the loop's descriptor is in ours, which
 * saves a system call for each batch. */
void store_server_run(struct store_server *s)
{
    uv_loop_t *loop = s->loop;
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = loop }, events[EVENTS];
    bool over = false;

    (void)uv_poll_stop(&s->poll);
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, uv_backend_fd(loop), &ev) < 0) {
        (void)uv_poll_start(&s->poll, UV_READABLE, server_on_events);
        (void)uv_run(loop, UV_RUN_DEFAULT);
        return;
    }
    s->over = &over; /* The server may be gone when the loop has had its turn. */
    s->may_wait_awake = sysconf(_SC_NPROCESSORS_ONLN) > 1;
    (void)uv_run(loop, UV_RUN_NOWAIT);
    while (!over) {
        const int timeout_ms = uv_loop_alive(loop) ? uv_backend_timeout(loop) : -1;
        const int n = wait_for_events(s, events, timeout_ms);

        if (serve(s, events, n) || uv_backend_timeout(loop) == 0)
            (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
}
