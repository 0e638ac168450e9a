/* server.c - the driver of the store: sockets and deadlines are here, decisions in
 * store/core/. See server.h.
 *
 *   epoll --> server_on_event --> server_conn.c --> server_request
 *                                                     |- server_auth.c   (a secret)
 *                                                     |- server_answers  (reserved
 * keys)
 *                                                     |- the extension   (keys of runs)
 *                                                     '- server_step --> store_step
 *             peers' outputs <-- server_perform <-- effects ---------------'
 *
 * Who calls: clients by their sockets; the extension (store/extension.h), which sends
 * by itself and sets keys; the owner, who opens, wipes and closes. All on one loop.
 *
 * A turn is one batch of events. Within it connections are closed, but neither taken
 * out of the engine nor freed: first the event is handled, then server_notify_left
 * tells the extension and the engine, which may wake others and close more; then
 * carriers send what has gathered; at the very end the memory goes, since a later event
 * of the batch may still point to it. A peer's number is free again once the engine has
 * been told.
 *
 * What a loss does: a connection that is gone leaves the engine (its waits end, an item
 * it was woken for goes to the next), and the extension learns of it if it belongs to a
 * run. Without descriptors connections wait in the backlog, and we try again when one
 * is closed, or in a second. Without memory the peer that asked is dropped and the
 * store is as it was; the server itself goes on.
 *
 * Rules, with their reasons:
 *   - server_step is the only caller of store_step for clients, server_perform the only
 *     switch over its effects, and neither calls the other's callers.
 *   - Deadlines all have the same length, so a list in the order of their begin is
 *     sorted, and one timer for its first is enough.
 *   - Connections are in an epoll set of our own, which libuv watches as one
 *     descriptor: uv handles would take most of the memory of 20,000 idle clients.
 *     store_server_run turns the two sets round and may stay awake for a moment, which
 *     saves a system call and a wake-up for each batch.
 *
 * Top to bottom: deadlines, feed and perform, what the sockets report, open and close,
 * statistics. The bytes of one connection are in server_conn.c. */
#include "store/server.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/server_int.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAUSE_MS 1000u /* without descriptors, until we try to accept again */

static void server_feed(struct store_server *s, const struct store_event *ev);

/* ---- deadlines, and peers that have left ---- */

/* Accepts connections, or leaves them in the backlog. */
static void server_listen(struct store_server *s, bool on)
{
    struct epoll_event ev = { .events = on ? EPOLLIN : 0, .data.ptr = s };

    s->paused = !on;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &ev);
    if (s->listener6 >= 0) {
        ev.data.ptr = &s->listener6;
        (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener6, &ev);
    }
}

static void server_arm(struct store_server *s);
static void server_notify_left(struct store_server *s);

static void server_on_timer(uv_timer_t *timer)
{
    struct store_server *s = CONTAINER_OF(timer, struct store_server, timer);
    const uint64_t now = uv_now(s->loop);
    struct conn *c;

    if (s->paused)
        server_listen(s, true);
    while ((c = s->timed.first) && c->due_ms <= now) {
        if (c->ended)
            conn_refuse(s, c, "it sends no more and does not take its answers");
        else if (!c->known && s->old_peers && (!s->auth || c->admitted))
            server_untime(s, c); /* PyTorch 2.0 opens connections that stay silent. */
        else
            conn_refuse(s, c, "at byte %llu: no whole request within %llu ms",
                        (unsigned long long)c->decoder.offset,
                        (unsigned long long)s->opts.request_ms);
    }
    server_notify_left(s);
    conns_free(&s->gone);
    server_arm(s);
}

/* Sets the timer for what is due next. */
static void server_arm(struct store_server *s)
{
    const uint64_t now = uv_now(s->loop);
    uint64_t after = MONO_NEVER;

    if (s->timed.first)
        after = ms_left(s->timed.first->due_ms, now);
    if (s->paused)
        after = MIN_OF(after, PAUSE_MS);
    if (after != MONO_NEVER)
        (void)uv_timer_start(&s->timer, server_on_timer, after, 0);
}

void server_time(struct store_server *s, struct conn *c)
{
    if (c->timed)
        return;
    c->timed = true;
    c->due_ms = uv_now(s->loop) + s->opts.request_ms;
    conns_append(&s->timed, c);
    if (!uv_is_active((uv_handle_t *)&s->timer))
        server_arm(s); /* Otherwise it is armed for an earlier deadline already. */
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
    if (!s->auth || c->admitted)
        server_untime(s, c);
    if (c->decoder.dialect != C10D_DIALECT_C)
        s->old_peers++;
}

/* Tells the engine which peers have left, once the current event is handled. */
static void server_notify_left(struct store_server *s)
{
    struct conn *c;

    while ((c = conns_take(&s->leaving))) {
        s->conns[c->peer] = NULL;
        if (c->extension.run)
            s->opts.extension->left(s, c);
        server_feed(s, &(struct store_event){ .kind = STORE_LEFT, .peer = c->peer });
        s->numbers[s->free_numbers++] = c->peer;
        s->count--;
        if (c->known && c->decoder.dialect != C10D_DIALECT_C)
            s->old_peers--;
        conns_append(&s->gone, c);
        if (s->paused)
            server_listen(s, true);
    }
}

/* ---- server_feed and server_perform ---- */

void server_reply(struct store_server *s, struct conn *c, const struct c10d_reply *r)
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

static void server_perform(struct store_server *s)
{
    for (size_t i = 0; i < s->fx.count; i++) {
        const struct store_effect *e = &s->fx.items[i];
        struct conn *c = e->peer < s->conns_size ? s->conns[e->peer] : NULL;

        if (!c || c->dead)
            continue;
        switch (e->kind) {
        case STORE_REPLY:
            server_reply(s, c, &e->reply);
            break;
        case STORE_CLOSE:
            conn_refuse(s, c, "at byte %llu: %s", (unsigned long long)s->at, e->reason);
            break;
        }
    }
}

static int server_step(struct store_server *s, const struct store_event *ev)
{
    const int rc = store_step(s->store, ev, &s->fx);

    if (s->fx.count)
        server_perform(s);
    return rc;
}

static void server_feed(struct store_server *s, const struct store_event *ev)
{
    if (server_step(s, ev) < 0)
        log_line(s->opts.log, LOG_ERROR, AT_RENDEZVOUS, "store %s: out of memory",
                 s->address);
}

static bool stats_take(struct store_server *s, struct conn *c,
                       const struct c10d_request *req);

/* A request for a reserved key may be a question to the server itself, or a message to
 * a part of it. True if it was one; *rc is 0 or MUSTER_ENOMEM then. */
static bool server_answers(struct store_server *s, struct conn *c,
                           const struct c10d_request *req, int *rc)
{
    *rc = 0;
    if (server_auth_is_message(req)) {
        server_auth_refuse(s, c);
        return true;
    }
    return server_lanes_take(s, c, req) ||
           (s->opts.extension && s->opts.extension->take(s, c, req, rc)) ||
           stats_take(s, c, req);
}

int server_request(struct store_server *s, struct conn *c,
                   const struct c10d_request *req)
{
    const struct store_event ev = { .kind = STORE_REQUEST,
                                    .peer = c->peer,
                                    .request = req,
                                    .gives_up = c->decoder.dialect != C10D_DIALECT_C };
    const bool may_name_run = req->list.count || req->name.kind == RESERVED_IS_STATE ||
                              req->name.kind == RESERVED_IS_CHANGED;
    int rc;

    if (s->auth && !c->admitted ? server_auth_gate(s, c, req)
                                : c->worker_only && server_auth_worker_gate(s, c, req))
        return 0;
    if (reserved_is_question(req->name) && server_answers(s, c, req, &rc))
        return rc;
    if (!s->extension || !may_name_run)
        return server_step(s, &ev);
    s->opts.extension->before(s, req);
    rc = server_step(s, &ev);
    if (rc == 0)
        s->opts.extension->after(s, req);
    return rc;
}

void server_set(struct store_server *s, const struct c10d_request *set)
{
    server_feed(s, &(struct store_event){
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
    server_notify_left(s);
    conns_free(&s->gone);
}

struct extension_host server_extension_host(const struct store_server *s)
{
    return (struct extension_host){ s->loop, s->opts.log, s->address, s->store,
                                    s->opts.seed };
}

struct extension_state **server_extension(struct store_server *s)
{
    return &s->extension;
}

struct conn *server_conn(struct store_server *s, uint32_t peer)
{
    struct conn *c = peer < s->conns_size ? s->conns[peer] : NULL;

    return c && !c->dead ? c : NULL;
}

bool server_may_log(struct store_server *s)
{
    char who[ADDRESS_TEXT + 8];

    (void)snprintf(who, sizeof who, "store %s", s->address);
    return log_rate_allows(&s->refused, uv_now(s->loop), s->opts.log, who);
}

void store_server_wipe(struct store_server *s)
{
    server_feed(s, &(struct store_event){ .kind = STORE_WIPE });
    server_notify_left(s);
}

/* ---- what the sockets report ---- */
#define ACCEPTS     1024   /* at once, before connections get their turn */
#define EVENTS      256    /* at once */
#define COMPLAIN_MS 60000u /* between two log lines about missing descriptors */
#define AWAKE_NS    50000u /* to wait without going to sleep, when that pays */
#define NAP_NS      (2u * AWAKE_NS) /* a shorter sleep is not worth its cost */
#define NAPS        4u              /* such sleeps in a row: waiting awake pays */

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
    for (size_t i = size; i-- > s->conns_size;) { /* The lowest ends up on top. */
        s->conns[i] = NULL;
        s->numbers[s->free_numbers++] = (uint32_t)i;
    }
    s->conns_size = size;
    return 0;
}

struct conn *server_new_conn(struct store_server *s)
{
    return number_reserve(s) < 0 ? NULL : mem_calloc(1, sizeof(struct conn));
}

void server_take_conn(struct store_server *s, struct conn *c)
{
    c->peer = s->numbers[--s->free_numbers];
    c10d_decoder_init(&c->decoder);
    if (s->opts.dialect_a)
        c->decoder.old = C10D_DIALECT_A;
    s->conns[c->peer] = c;
    s->count++;
    server_time(s, c);
}

static int conn_new(struct store_server *s, int fd)
{
    struct epoll_event ev = { .events = (uint32_t)EPOLLET | CONN_READS };
    struct conn *c = server_new_conn(s);

    if (!c)
        return MUSTER_ENOMEM;
    ev.data.ptr = c;
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        mem_free(c);
        return MUSTER_ENOMEM;
    }
    c->fd = fd;
    server_take_conn(s, c);
    if (s->auth && !server_auth_came(s, c))
        conn_close(s, c);
    return 0;
}

/* There are no descriptors left: connections in the backlog wait until one is closed,
 * here or elsewhere in the process. */
static void server_pause_accepting(struct store_server *s, int e)
{
    const uint64_t now = uv_now(s->loop);

    if (now >= s->complain_ms) {
        log_line(
            s->opts.log, LOG_WARN, AT_RENDEZVOUS,
            "store %s: cannot accept more than %zu connections for now: %s; raise the "
            "limit of open files (ulimit -n)",
            s->address, s->count, strerror(e));
        s->complain_ms = now + COMPLAIN_MS;
    }
    server_listen(s, false);
    server_arm(s);
}

static void server_on_accept(struct store_server *s, int listener)
{
    for (int i = 0; i < ACCEPTS; i++) {
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        const int e = errno;

        if (fd < 0 && (e == EINTR || e == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (e == EMFILE || e == ENFILE || e == ENOBUFS || e == ENOMEM)
                server_pause_accepting(s, e);
            return;
        }
        if (conn_new(s, fd) < 0) {
            (void)close(fd);
            log_line(s->opts.log, LOG_WARN, AT_RENDEZVOUS,
                     "store %s: refused a connection: out of memory", s->address);
            return;
        }
    }
}

static void server_on_event(struct store_server *s, struct conn *c, uint32_t what)
{
    if (what & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        conn_flush(s, c);
    if (what & (CONN_READS | EPOLLERR | EPOLLHUP))
        conn_read(s, c, what & (EPOLLRDHUP | EPOLLERR | EPOLLHUP));
    if (s->leaving.first)
        server_notify_left(s);
}

/* Handles the events. True if the uv loop has something to do as well. */
static bool server_serve(struct store_server *s, const struct epoll_event *events,
                         int n)
{
    bool loop_too = false;

    s->in_turn = true;
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == s)
            server_on_accept(s, s->listener);
        else if (events[i].data.ptr == &s->listener6)
            server_on_accept(s, s->listener6);
        else if (events[i].data.ptr == s->loop)
            loop_too = true;
        else
            server_on_event(s, events[i].data.ptr, events[i].events);
    }
    while (s->leaving.first || s->to_send) { /* Each may cause more of the other. */
        server_notify_left(s);
        server_lanes_flush(s);
    }
    s->in_turn = false;
    conns_free(&s->gone); /* All events that may point to them are handled. */
    return loop_too;
}

static void server_on_events(uv_poll_t *poll, int status, int what)
{
    struct store_server *s = CONTAINER_OF(poll, struct store_server, poll);
    struct epoll_event events[EVENTS];

    (void)status;
    (void)what;
    (void)server_serve(s, events, epoll_wait(s->epoll, events, EVENTS, 0));
}

static int server_wait_awake(struct store_server *s, struct epoll_event *events)
{
    const uint64_t until = uv_hrtime() + AWAKE_NS;
    int n;

    do
        n = epoll_wait(s->epoll, events, EVENTS, 0);
    while (n == 0 && uv_hrtime() < until);
    return n;
}

/* A client that sends one request after another is back within microseconds. Going to
 * sleep and waking up for each takes several times as long, and more processor time
 * than staying awake. So if the last few sleeps were very short, we stay awake for a
 * moment, and sleep again once that was in vain. */
static int server_wait(struct store_server *s, struct epoll_event *events,
                       int timeout_ms)
{
    uint64_t before;
    int n = 0;

    if (timeout_ms && s->naps >= NAPS) {
        n = server_wait_awake(s, events);
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

/* Here the sets are nested the other way round: the loop's descriptor is in our set,
 * which saves a system call for each batch. */
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
    s->over = &over; /* After a turn of the loop the server may be gone. */
    s->may_wait_awake = sysconf(_SC_NPROCESSORS_ONLN) > 1;
    (void)uv_run(loop, UV_RUN_NOWAIT);
    while (!over) {
        const int timeout_ms = uv_loop_alive(loop) ? uv_backend_timeout(loop) : -1;
        const int n = server_wait(s, events, timeout_ms);

        if (!server_serve(s, events, n) && uv_backend_timeout(loop) != 0)
            continue;
        (void)uv_run(loop, UV_RUN_NOWAIT);
        if (!over) /* Handles added in the first turn are polled from the second on. */
            (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
}

/* ---- open and close ---- */
#define REQUEST_MS 30000u
#define MAX_BYTES  (256u << 20)      /* of a request, and of unread answers */
#define MAX_HELD   ((size_t)1 << 30) /* of both, over all connections */

void store_server_opts_init(struct store_server_opts *o)
{
    *o = (struct store_server_opts){ .fd = -1 };
}

static void server_set_defaults(struct store_server *s,
                                const struct store_server_opts *opts)
{
    s->opts = *opts;
    s->opts.bind = NULL; /* It is the caller's, and not needed any more. */
    if (!s->opts.request_ms)
        s->opts.request_ms = REQUEST_MS;
    if (!s->opts.max_input)
        s->opts.max_input = MAX_BYTES;
    if (!s->opts.max_output)
        s->opts.max_output = MAX_BYTES;
    if (!s->opts.max_held)
        s->opts.max_held = MAX_HELD;
    while (!s->opts.seed)
        if (getrandom(&s->opts.seed, sizeof s->opts.seed, 0) < 0)
            s->opts.seed = (uint64_t)(uintptr_t)s ^ uv_hrtime();
}

static void server_release(struct store_server *s)
{
    if (s->epoll >= 0)
        (void)close(s->epoll);
    if (s->listener >= 0)
        (void)close(s->listener);
    if (s->listener6 >= 0)
        (void)close(s->listener6);
    if (s->extension)
        s->opts.extension->free(s);
    server_auth_free(s);
    store_free(s->store);
    store_fx_fini(&s->fx);
    buf_fini(&s->out);
    buf_fini(&s->one);
    mem_free(s->conns);
    mem_free(s->numbers);
    mem_free(s->shared);
    mem_free(s);
}

static int server_take_memory(struct store_server *s, struct muster_error *err)
{
    buf_init(&s->out, s->opts.max_output);
    buf_init(&s->one, s->opts.max_output);
    store_fx_init(&s->fx);
    s->store = store_new(s->opts.seed, s->opts.max_output);
    return s->store ? 0 : err_nomem(err);
}

static int server_watch_listener(struct store_server *s, struct muster_error *err)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = s };
    int rc;

    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &ev) < 0)
        return err_set(err, MUSTER_EIO, "cannot watch sockets: %s", strerror(errno));
    rc = uv_poll_init(s->loop, &s->poll, s->epoll);
    if (rc < 0)
        return err_set(err, MUSTER_EIO, "cannot watch sockets: %s", uv_strerror(rc));
    return 0;
}

/* Clients that resolve localhost try ::1 first. If there is no IPv6, or another process
 * has the port there, 127.0.0.1 is enough. */
static void listen_on_loopback6(struct store_server *s)
{
    const struct listen_opts lo = { "::1", s->port, -1, s->opts.backlog };
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &s->listener6 };

    if (listen_open(&lo, &s->listener6, NULL) < 0) {
        s->listener6 = -1;
    } else if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener6, &ev) < 0) {
        (void)close(s->listener6);
        s->listener6 = -1;
    }
}

static void put_own_host(const struct sockaddr_storage *a, char *out, size_t size)
{
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    const bool any = a->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)
                                              : v4->sin_addr.s_addr == INADDR_ANY;

    if (any || getnameinfo((const struct sockaddr *)a, sizeof *a, out, (socklen_t)size,
                           NULL, 0, NI_NUMERICHOST) != 0)
        (void)snprintf(out, size, "127.0.0.1");
}

int store_server_open(uv_loop_t *loop, const struct store_server_opts *opts,
                      struct store_server **out, struct muster_error *err)
{
    const struct listen_opts lo = { opts->bind, opts->port, opts->fd, opts->backlog };
    struct store_server *s = mem_calloc(1, sizeof *s);
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a;
    int rc;

    if (!s)
        return err_nomem(err);
    s->loop = loop;
    s->epoll = s->listener = s->listener6 = -1;
    server_set_defaults(s, opts);
    rc = server_take_memory(s, err);
    if (rc == 0)
        rc = server_auth_open(s, err);
    if (rc == 0)
        rc = listen_open(&lo, &s->listener, err);
    if (rc == 0)
        rc = server_watch_listener(s, err);
    if (rc < 0) {
        if (s->listener == opts->fd)
            s->listener = -1; /* It stays the caller's. */
        server_release(s);
        return rc;
    }
    (void)getsockname(s->listener, (struct sockaddr *)&a, &n);
    address_text((struct sockaddr *)&a, s->address);
    s->port = address_port(&a);
    put_own_host(&a, s->own_host, sizeof s->own_host);
    if (opts->fd < 0 && opts->bind && strcmp(opts->bind, "localhost") == 0)
        listen_on_loopback6(s);
    (void)uv_timer_init(loop, &s->timer);
    (void)uv_poll_start(&s->poll, UV_READABLE, server_on_events);
    *out = s;
    return 0;
}

uint16_t store_server_port(const struct store_server *s)
{
    return s->port;
}

const char *store_server_address(const struct store_server *s)
{
    return s->address;
}

const char *store_server_own_host(const struct store_server *s)
{
    return s->own_host;
}

bool store_server_reached_at(const struct store_server *s, char out[IP_TEXT])
{
    for (size_t i = 0; i < s->conns_size; i++) {
        const struct conn *c = s->conns[i];
        struct sockaddr_storage a = { 0 };
        socklen_t n = sizeof a;
        uint8_t ip[16];

        if (!c || c->carrier || getsockname(c->fd, (struct sockaddr *)&a, &n) < 0 ||
            !ip_of_sockaddr((struct sockaddr *)&a, ip) || ip_is_loopback(ip))
            continue;
        ip_text(ip, out);
        return true;
    }
    return false;
}

size_t store_server_connections(const struct store_server *s)
{
    return s->auth ? server_auth_admitted(s) : s->count;
}

bool store_server_awaits(const struct store_server *s)
{
    return s->extension && s->opts.extension->awaits(s);
}

static void server_on_closed(uv_handle_t *handle)
{
    struct store_server *s = handle->data;
    void (*closed)(void *) = s->closed;
    void *ctx = s->closed_ctx;

    if (--s->closing)
        return;
    server_release(s);
    if (closed)
        closed(ctx);
}

void store_server_close(struct store_server *s, void (*cb)(void *ctx), void *ctx)
{
    assert(!s->closing);
    s->closed = cb;
    s->closed_ctx = ctx;
    s->closing = 2;
    /* The engine need not be told of each: all connections are closed. */
    for (size_t i = 0; i < s->conns_size; i++) {
        if (s->conns[i])
            conn_close(s, s->conns[i]);
    }
    conns_free(&s->leaving);
    conns_free(&s->gone);
    if (s->over)
        *s->over = true;
    s->poll.data = s->timer.data = s;
    uv_close((uv_handle_t *)&s->poll, server_on_closed);
    uv_close((uv_handle_t *)&s->timer, server_on_closed);
    if (s->extension) {
        s->closing++;
        s->opts.extension->close(s, server_on_closed);
    }
}

/* The limit is enough for 20,000 clients. Only root may raise the hard limit. */
void store_server_allow_many(void)
{
    struct rlimit old, new;

    if (getrlimit(RLIMIT_NOFILE, &old) < 0 || old.rlim_cur >= STORE_SERVER_MANY)
        return;
    new.rlim_cur = STORE_SERVER_MANY;
    new.rlim_max = MAX_OF(old.rlim_max, new.rlim_cur);
    if (setrlimit(RLIMIT_NOFILE, &new) == 0)
        return;
    new.rlim_cur = new.rlim_max = old.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &new);
}

/* ---- statistics ---- */
void store_server_stats(const struct store_server *s, struct store_server_stats *out)
{
    *out = (struct store_server_stats){
        .requests = s->stats.requests,
        .answers = s->stats.answers,
        .bytes_in = s->stats.bytes_in,
        .bytes_out = s->stats.bytes_out,
        .writes = s->stats.writes,
        .connections = s->count,
        .keys = store_key_count(s->store),
    };
}

void store_server_stats_add(struct store_server_stats *to, const struct store_server *s)
{
    struct store_server_stats more = { 0 };

    if (s)
        store_server_stats(s, &more);
    to->requests += more.requests;
    to->answers += more.answers;
    to->bytes_in += more.bytes_in;
    to->bytes_out += more.bytes_out;
    to->writes += more.writes;
    to->connections += more.connections;
    to->keys += more.keys;
}

uint64_t store_server_first_write_ms(struct store_server *s)
{
    const uint64_t ms = s->stats.first_write_ms;

    s->stats.first_write_ms = 0;
    return ms;
}

/* True if the request asks for the statistics, and has been answered. */
static bool stats_take(struct store_server *s, struct conn *c,
                       const struct c10d_request *req)
{
    const struct server_stats *is = &s->stats;
    struct buf text;

    if (req->op != C10D_GET || !span_eq(req->key, span_str(STATS_KEY)))
        return false;
    buf_init(&text, 256);
    if (buf_printf(&text,
                   "requests %" PRIu64 " answers %" PRIu64 " bytes_in %" PRIu64
                   " bytes_out %" PRIu64 " connections %zu keys %zu",
                   is->requests, is->answers, is->bytes_in, is->bytes_out, s->count,
                   store_key_count(s->store)) < 0)
        buf_clear(&text);
    server_reply(s, c,
                 &(struct c10d_reply){ .op = C10D_GET, .value = buf_span(&text) });
    buf_fini(&text);
    return true;
}
