/* store_server.c - the driver of the store: sockets and deadlines outside, decisions in
 * store/. See store_server.h.
 *
 * Connections are in an epoll set of our own, which the uv loop watches as one
 * descriptor: a uv handle for each of 20,000 idle clients would be most of the memory
 * that they take. Reads top to bottom: what the loop tells us, feed, perform. The
 * beginning and the end are in store_open.c. */
#include "io/store_server.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/store_hosts.h"
#include "io/store_server_int.h"

#define ACCEPTS     1024   /* in one go, then the others have their turn */
#define PAUSE_MS    1000u  /* without descriptors, at most */
#define COMPLAIN_MS 60000u /* between two lines about that */

static void feed(struct store_server *s, const struct store_event *ev);
static void end_turn(struct store_server *s);

/* ---- what the loop tells us ---- */

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

static void listen_for(struct store_server *s, bool on)
{
    struct epoll_event ev = { .events = on ? EPOLLIN : 0, .data.ptr = s };

    s->paused = !on;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &ev);
}

static void arm(struct store_server *s);

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
    listen_for(s, false);
    arm(s);
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

/* What the sockets have to tell, waiting for that up to a time; true if the uv loop has
 * something to do as well. */
static bool serve_once(struct store_server *s, int timeout_ms)
{
    struct epoll_event events[256];
    bool loop_too = false;
    const int n = epoll_wait(s->epoll, events, (int)ARRAY_LEN(events), timeout_ms);

    if (timeout_ms)
        uv_update_time(s->loop);
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;

        if (events[i].data.ptr == s) {
            on_accept(s);
            continue;
        }
        if (events[i].data.ptr == s->loop) {
            loop_too = true;
            continue;
        }
        if (events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            conn_flush(s, c);
        if (events[i].events & (CONN_READS | EPOLLERR | EPOLLHUP))
            conn_read(s, c, events[i].events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP));
        if (s->leaving.first)
            end_turn(s);
    }
    while (s->gone.first) /* No event of this batch points to them any more. */
        mem_free(conns_take(&s->gone));
    return loop_too;
}

void server_on_events(uv_poll_t *poll, int status, int what)
{
    (void)status;
    (void)what;
    (void)serve_once(CONTAINER_OF(poll, struct store_server, poll), 0);
}

/* The sets are nested the other way round: the loop's descriptor is in ours, which
 * saves a system call for each batch. */
void store_server_run(struct store_server *s)
{
    uv_loop_t *loop = s->loop;
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = loop };
    bool over = false;

    (void)uv_poll_stop(&s->poll);
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, uv_backend_fd(loop), &ev) < 0) {
        (void)uv_poll_start(&s->poll, UV_READABLE, server_on_events);
        (void)uv_run(loop, UV_RUN_DEFAULT);
        return;
    }
    s->over = &over; /* The server may be gone when the loop has had its turn. */
    (void)uv_run(loop, UV_RUN_NOWAIT);
    while (!over) {
        const int timeout_ms = uv_loop_alive(loop) ? uv_backend_timeout(loop) : -1;
        const bool loop_too = serve_once(s, timeout_ms);

        if (loop_too || uv_backend_timeout(loop) == 0)
            (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
}

static void on_timer(uv_timer_t *timer)
{
    struct store_server *s = CONTAINER_OF(timer, struct store_server, timer);
    const uint64_t now = uv_now(s->loop);
    struct conn *c;

    if (s->paused)
        listen_for(s, true);
    while ((c = s->timed.first) && c->due_ms <= now) {
        if (c->ended)
            conn_refuse(s, c, "it has ended and does not take its answers");
        else if (s->old_peers)
            server_untime(s, c); /* Clients of PyTorch 2.0 keep a silent connection. */
        else
            conn_refuse(s, c, "at byte %llu: no whole request within %llu ms",
                        (unsigned long long)c->decoder.offset,
                        (unsigned long long)s->opts.first_bytes_ms);
    }
    end_turn(s);
    while (s->gone.first)
        mem_free(conns_take(&s->gone));
    arm(s);
}

static void arm(struct store_server *s)
{
    const uint64_t now = uv_now(s->loop);
    uint64_t after = MONO_NEVER;

    if (s->timed.first)
        after = s->timed.first->due_ms > now ? s->timed.first->due_ms - now : 0;
    if (s->paused)
        after = MIN_OF(after, PAUSE_MS);
    if (after != MONO_NEVER)
        (void)uv_timer_start(&s->timer, on_timer, after, 0);
}

void server_time(struct store_server *s, struct conn *c)
{
    if (c->timed)
        return;
    c->timed = true;
    c->due_ms = uv_now(s->loop) + s->opts.first_bytes_ms;
    conns_append(&s->timed, c);
    if (!uv_is_active((uv_handle_t *)&s->timer))
        arm(s); /* Else it is armed for somebody older, and then looks again. */
}

void server_untime(struct store_server *s, struct conn *c)
{
    if (c->timed)
        conns_remove(&s->timed, c);
    c->timed = false;
}

void server_known(struct store_server *s, struct conn *c)
{
    c->known = true;
    server_untime(s, c);
    if (c->decoder.dialect != C10D_DIALECT_C)
        s->old_peers++;
}

/* The store hears who has left, as soon as the event at hand is dealt with. */
static void end_turn(struct store_server *s)
{
    struct conn *c;

    while ((c = conns_take(&s->leaving))) {
        s->conns[c->peer] = NULL;
        hosts_left(s, c);
        feed(s, &(struct store_event){ .kind = STORE_LEFT, .peer = c->peer });
        s->numbers[s->free_numbers++] = c->peer;
        s->count--;
        if (c->known && c->decoder.dialect != C10D_DIALECT_C)
            s->old_peers--;
        conns_append(&s->gone, c);
        if (s->paused)
            listen_for(s, true);
    }
}

/* ---- feed and perform ---- */

static void reply(struct store_server *s, struct conn *c, const struct c10d_reply *r)
{
    int rc;

    s->stats.answers++;
    if (c != s->serving) {
        buf_clear(&s->one);
        rc = c10d_encode_reply(&s->one, r);
        if (rc == 0)
            conn_send(s, c, buf_span(&s->one));
    } else {
        rc = c10d_encode_reply(&s->out, r);
    }
    if (rc == MUSTER_EFULL)
        conn_too_much(s, c);
    else if (rc < 0)
        conn_refuse(s, c, "out of memory");
}

static void perform(struct store_server *s)
{
    for (size_t i = 0; i < s->fx.count; i++) {
        const struct store_effect *e = &s->fx.items[i];
        struct conn *c = e->peer < s->conns_size ? s->conns[e->peer] : NULL;

        if (!c || c->dead)
            continue;
        switch (e->kind) {
        case STORE_REPLY:
            reply(s, c, &e->reply);
            break;
        case STORE_CLOSE:
            conn_refuse(s, c, "at byte %llu: %s", (unsigned long long)s->at, e->reason);
            break;
        }
    }
}

static int try_feed(struct store_server *s, const struct store_event *ev)
{
    const int rc = store_step(s->store, ev, &s->fx);

    if (rc == 0)
        perform(s);
    return rc;
}

static void feed(struct store_server *s, const struct store_event *ev)
{
    if (try_feed(s, ev) < 0)
        trace(s->opts.trace, TRACE_ERROR, "store %s: out of memory", s->address);
}

int server_request(struct store_server *s, struct conn *c,
                   const struct c10d_request *req)
{
    const struct store_event ev = { .kind = STORE_REQUEST,
                                    .peer = c->peer,
                                    .request = req,
                                    .gives_up = c->decoder.dialect != C10D_DIALECT_C };

    int rc;

    if (hosts_take(s, c, req, &rc))
        return rc;
    if (stats_take(s, c, req))
        return 0;
    if (!s->hosts)
        return try_feed(s, &ev);
    hosts_before(s, req);
    rc = try_feed(s, &ev);
    if (rc == 0)
        hosts_after(s, req);
    return rc;
}

void server_set(struct store_server *s, const struct c10d_request *set)
{
    feed(s, &(struct store_event){
                .kind = STORE_REQUEST, .peer = UINT32_MAX, .request = set });
}

void server_send(struct store_server *s, struct conn *c, struct span bytes)
{
    s->stats.answers++;
    if (c != s->serving)
        conn_send(s, c, bytes);
    else if (buf_append_span(&s->out, bytes) < 0)
        conn_refuse(s, c, "out of memory");
}

void server_end_turn(struct store_server *s)
{
    end_turn(s);
    while (s->gone.first)
        mem_free(conns_take(&s->gone));
}

void store_server_wipe(struct store_server *s)
{
    feed(s, &(struct store_event){ .kind = STORE_WIPE });
    end_turn(s);
}
