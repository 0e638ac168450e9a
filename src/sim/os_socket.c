/* os_socket.c - TCP between simulated machines, and epoll; see os.h.
 *
 * Bytes arrive late and in pieces, but in order. Nothing passes a link that is cut:
 * what was sent waits until the cut is over, and the sender gives up when TCP would
 * (its keep-alive and user timeout). A machine that has lost its power sends nothing;
 * whoever sends to it once it is back gets a reset, since it no longer knows the
 * connection. */
#include "sim/os.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define CONNECT_US (130 * OS_SECOND) /* until the kernel gives up connecting */
#define UNACKED_US (900 * OS_SECOND) /* until it gives up unacknowledged bytes */
#define RETRY_US   (1 * OS_SECOND)   /* between two SYNs */

enum kind { STREAM, LISTENER, EPOLL };

/* Bytes that are on their way or have arrived; n == 0: the end of the stream. */
struct segment {
    struct segment *next;
    uint64_t arrive_t;
    size_t n, taken;
    uint8_t bytes[];
};

struct queue {
    struct segment *first, *last;
};

/* One descriptor in one epoll set. */
struct item {
    struct item *next_hot, *next_of_socket;
    struct os_socket *set, *socket;
    uint64_t order;
    uint32_t events;
    epoll_data_t data;
    bool edge, removed;
    bool hot; /* something has happened since it was last found not to be ready */
};

struct os_socket {
    struct os_socket *next; /* in the list of all */
    struct os_socket *next_of_process;
    struct os_process *owner; /* NULL: nobody has accepted it yet */
    struct os_machine *machine;
    enum kind kind;
    int fd, family;
    uint32_t ip, peer_ip;
    uint16_t port, peer_port;
    bool closed;   /* by its process */
    bool vanished; /* its machine has lost its power */
    bool connecting, connected;
    int error; /* errno of the end of the connection */
    struct os_socket *peer;
    struct queue rx;
    bool rx_end, end_sent;
    struct queue tx; /* on the way to the peer */
    uint64_t last_arrive_t;
    bool pumping;
    size_t in_flight; /* not yet acknowledged */
    uint64_t unacked_t, heard_t;
    bool watching_acks;
    uint64_t user_timeout_us;
    bool keepalive, probing;
    uint64_t idle_us, between_us;
    unsigned probes, missed;
    struct os_socket *next_listener; /* of its machine */
    struct os_socket *accept_first, *accept_last, *accept_next;
    struct item *hot;      /* of an epoll set: what may be ready, the newest first */
    uint64_t items;        /* how many were ever added to it */
    struct item *watchers; /* the epoll sets that this socket is in */
};

static struct os_socket **table; /* by descriptor; kept for the next job */
static size_t table_count, table_room;

/* ---- small things ---- */

static struct os_socket *socket_new(struct os_machine *m, struct os_process *owner,
                                    int family)
{
    struct os_socket *s = os_alloc(sizeof *s);

    if (!os.all_sockets)
        table_count = 0;
    if (table_count == table_room) {
        table_room = table_room ? table_room * 2 : 256;
        table = realloc(table, table_room * sizeof *table);
        if (!table)
            abort();
    }
    s->fd = OS_FD_BASE + (int)table_count;
    table[table_count++] = s;
    s->next = os.all_sockets;
    os.all_sockets = s;
    s->owner = owner;
    s->machine = m;
    s->family = family;
    s->unacked_t = OS_NEVER;
    s->idle_us = 7200 * OS_SECOND;
    s->between_us = 75 * OS_SECOND;
    s->probes = 9;
    if (owner) {
        s->next_of_process = owner->sockets;
        owner->sockets = s;
    }
    return s;
}

/* NULL if the descriptor is not simulated. */
static struct os_socket *os_socket_of(int fd)
{
    const size_t i = (size_t)(fd - OS_FD_BASE);

    return fd >= OS_FD_BASE && i < table_count ? table[i] : NULL;
}

int os_fd(const struct os_socket *s)
{
    return s->fd;
}

static uint64_t delay(const struct os_machine *a, const struct os_machine *b)
{
    if (os.steady)
        return a == b ? 20 : os.delay_us;
    if (a == b)
        return 20 + rng_below(&os.rng, 30);
    return os.delay_us + (os.jitter_us ? rng_below(&os.rng, os.jitter_us) : 0);
}

/* When the link from a to b is open: now, later or never. */
static uint64_t open_t(const struct os_machine *a, const struct os_machine *b)
{
    return a == b ? os.t : MAX_OF(os.t, MAX_OF(a->out_t, b->in_t));
}

static bool is_open(const struct os_machine *a, const struct os_machine *b)
{
    return open_t(a, b) == os.t;
}

static void queue_add(struct queue *q, struct segment *s)
{
    if (q->last)
        q->last->next = s;
    else
        q->first = s;
    q->last = s;
}

static struct segment *queue_take(struct queue *q)
{
    struct segment *s = q->first;

    q->first = s->next;
    if (!q->first)
        q->last = NULL;
    s->next = NULL;
    return s;
}

/* A set may have thousands of descriptors, of which few are ready. */
static void item_heat(struct item *i)
{
    struct item **at = &i->set->hot;

    if (i->hot)
        return;
    while (*at && (*at)->order > i->order)
        at = &(*at)->next_hot;
    i->next_hot = *at;
    i->hot = true;
    *at = i;
}

/* The socket has changed: wakes whoever waits for it. */
static void socket_notify(struct os_socket *s)
{
    for (struct item *i = s->watchers; i; i = i->next_of_socket) {
        i->edge = true;
        item_heat(i);
        if (i->set->owner)
            os_wake(i->set->owner);
    }
    if (s->owner)
        os_wake(s->owner);
}

static bool alive(const struct os_socket *s)
{
    return s->connected && !s->closed && !s->vanished && s->error == 0;
}

static void die(struct os_socket *s, int error)
{
    if (s->closed || s->vanished || s->error)
        return;
    s->error = error;
    s->connecting = s->connected = false;
    socket_notify(s);
}

static void on_reset(void *arg, uint64_t n)
{
    die(arg, ECONNRESET);
}

/* Resets the socket, because the other end does not know the connection, or has closed
 * it with bytes unread. What was sent before still arrives first. */
static void send_reset(struct os_socket *to)
{
    const struct os_socket *from = to->peer;

    if (!from)
        os_at(os.t + delay(to->machine, to->machine), on_reset, to, 0);
    else if (from->machine->up && is_open(from->machine, to->machine))
        os_at(MAX_OF(os.t + delay(from->machine, to->machine), from->last_arrive_t),
              on_reset, to, 0);
}

/* ---- sending ---- */

static void on_ack(void *arg, uint64_t n)
{
    struct os_socket *s = arg;
    const uint64_t t = s->peer ? open_t(s->peer->machine, s->machine) : os.t;

    if (t != os.t) {
        os_at(t == OS_NEVER ? OS_NEVER : t + delay(s->peer->machine, s->machine),
              on_ack, s, n);
        return;
    }
    if (!alive(s))
        return;
    s->in_flight -= MIN_OF(s->in_flight, n);
    s->unacked_t = s->in_flight ? os.t : OS_NEVER;
    s->heard_t = os.t;
    socket_notify(s);
}

static void on_unacked(void *arg, uint64_t n)
{
    struct os_socket *s = arg;
    const uint64_t limit = s->user_timeout_us ? s->user_timeout_us : UNACKED_US;

    s->watching_acks = false;
    if (!alive(s) || s->unacked_t == OS_NEVER)
        return;
    if (os.t - s->unacked_t >= limit) {
        die(s, ETIMEDOUT);
        return;
    }
    s->watching_acks = true;
    os_at(s->unacked_t + limit, on_unacked, s, 0);
}

static void arrive(struct os_socket *s, struct segment *seg)
{
    struct os_socket *to = s->peer;

    if (!to->machine->up || to->connecting)
        return; /* It is lost, and not acknowledged. */
    if (to->vanished || to->closed || to->error || !to->connected) {
        if (seg->n)
            send_reset(s);
        return;
    }
    to->heard_t = os.t;
    if (seg->n) {
        queue_add(&to->rx, seg);
        os_at(os.t + delay(to->machine, s->machine), on_ack, s, seg->n);
    } else {
        to->rx_end = true;
    }
    socket_notify(to);
}

static void on_pump(void *arg, uint64_t n)
{
    struct os_socket *s = arg;

    s->pumping = false;
    while (s->tx.first) {
        const uint64_t t = open_t(s->machine, s->peer->machine);

        if (s->vanished || t == OS_NEVER)
            return;
        if (t > os.t || s->tx.first->arrive_t > os.t) {
            s->pumping = true;
            os_at(t > os.t ? t + delay(s->machine, s->peer->machine)
                           : s->tx.first->arrive_t,
                  on_pump, s, 0);
            return;
        }
        arrive(s, queue_take(&s->tx));
    }
}

static void socket_put(struct os_socket *s, const void *p, size_t n)
{
    struct segment *seg = os_alloc(sizeof *seg + n);

    if (n)
        memcpy(seg->bytes, p, n);
    seg->n = n;
    seg->arrive_t =
        MAX_OF(s->last_arrive_t, os.t + delay(s->machine, s->peer->machine));
    s->last_arrive_t = seg->arrive_t;
    queue_add(&s->tx, seg);
    if (!s->pumping) {
        s->pumping = true;
        os_at(seg->arrive_t, on_pump, s, 0);
    }
}

static size_t room_of(const struct os_socket *s)
{
    return os.send_room > s->in_flight ? os.send_room - s->in_flight : 0;
}

bool os_writable(const struct os_socket *s)
{
    return s->error || (s->connected && room_of(s));
}

ssize_t os_send(struct os_socket *s, const void *p, size_t n)
{
    if (s->error)
        return -(s->error == ECONNREFUSED ? EPIPE : s->error);
    if (!s->connected)
        return s->connecting ? -EAGAIN : -ENOTCONN;
    n = MIN_OF(n, room_of(s));
    if (n == 0)
        return -EAGAIN;
    socket_put(s, p, n);
    s->in_flight += n;
    if (s->unacked_t == OS_NEVER)
        s->unacked_t = os.t;
    if (!s->watching_acks) {
        s->watching_acks = true;
        os_at(os.t + (s->user_timeout_us ? s->user_timeout_us : UNACKED_US), on_unacked,
              s, 0);
    }
    return (ssize_t)n;
}

/* ---- receiving ---- */

bool os_readable(const struct os_socket *s)
{
    return s->rx.first || s->rx_end || s->error || s->accept_first;
}

ssize_t os_recv(struct os_socket *s, void *to, size_t n)
{
    size_t got = 0;

    while (s->rx.first && got < n) {
        struct segment *seg = s->rx.first;
        size_t take = MIN_OF(n - got, seg->n - seg->taken);

        if (os.any_cut && take > 1 && os_chance(8))
            take = 1 + (size_t)rng_below(&os.rng, take);
        memcpy((uint8_t *)to + got, seg->bytes + seg->taken, take);
        seg->taken += take;
        got += take;
        if (seg->taken == seg->n)
            (void)queue_take(&s->rx);
        else if (os.any_cut)
            break;
    }
    if (got) {
        if (s->rx.first)
            socket_notify(s); /* There is more to read. */
        return (ssize_t)got;
    }
    if (s->rx_end)
        return 0;
    return s->error ? -s->error : -EAGAIN;
}

/* ---- TCP keep-alive ---- */

static void on_probe(void *arg, uint64_t n)
{
    struct os_socket *s = arg;
    const struct os_machine *there = s->peer ? s->peer->machine : NULL;
    bool reached;

    if (!alive(s) || !there || !s->keepalive) {
        s->probing = false;
        return;
    }
    if (os.t < s->heard_t + s->idle_us && !s->missed) {
        os_at(s->heard_t + s->idle_us, on_probe, s, 0);
        return;
    }
    reached = there->up && is_open(s->machine, there) && is_open(there, s->machine);
    if (reached && (s->peer->vanished || s->peer->error || !s->peer->connected)) {
        send_reset(s);
        s->probing = false;
        return;
    }
    if (reached) {
        s->missed = 0;
        s->heard_t = os.t;
        os_at(os.t + s->idle_us, on_probe, s, 0);
        return;
    }
    s->missed++;
    if (s->user_timeout_us ? os.t - s->heard_t >= s->user_timeout_us && s->missed > 1
                           : s->missed > s->probes) {
        s->probing = false;
        die(s, ETIMEDOUT);
        return;
    }
    os_at(os.t + s->between_us, on_probe, s, 0);
}

static void start_probes(struct os_socket *s)
{
    if (!s->keepalive || s->probing || !alive(s))
        return;
    s->probing = true;
    os_at(os.t + s->idle_us, on_probe, s, 0);
}

void os_keepalive(struct os_socket *s, unsigned idle_s)
{
    s->keepalive = idle_s > 0;
    s->idle_us = idle_s * OS_SECOND;
    start_probes(s);
}

/* ---- connecting ---- */

static struct os_machine *machine_at(const struct os_socket *s, uint32_t ip)
{
    if (ip >> 24 == 127)
        return s->machine;
    return ip - OS_FIRST_IP < os.machine_count ? os.machines[ip - OS_FIRST_IP] : NULL;
}

static struct os_socket *listener_at(const struct os_machine *m, uint16_t port)
{
    for (struct os_socket *s = m->listeners; s; s = s->next_listener)
        if (s->port == port && !s->closed && !s->vanished)
            return s;
    return NULL;
}

static uint16_t free_port(struct os_machine *m)
{
    do
        m->next_port = m->next_port >= 60000 ? 40000 : (uint16_t)(m->next_port + 1);
    while (listener_at(m, m->next_port));
    return m->next_port;
}

static void os_socket_on_refused(void *arg, uint64_t n)
{
    struct os_socket *s = arg;

    if (s->connecting)
        die(s, (int)n);
}

static void on_connected(void *arg, uint64_t n)
{
    struct os_socket *s = arg;

    if (s->closed || s->vanished) {
        send_reset(s->peer);
        return;
    }
    s->connecting = false;
    s->connected = true;
    s->heard_t = os.t;
    if (s->peer->error || (s->peer->vanished && !s->peer->closed))
        die(s, ECONNRESET);
    start_probes(s);
    socket_notify(s);
}

static void on_syn(void *arg, uint64_t give_up_t)
{
    struct os_socket *s = arg, *l, *child;
    struct os_machine *m;

    if (s->closed || s->vanished || !s->connecting)
        return;
    m = machine_at(s, s->peer_ip);
    if (!m || !m->up || !is_open(s->machine, m) || !is_open(m, s->machine)) {
        if (os.t >= give_up_t || (!m && os.t + CONNECT_US >= give_up_t + 3 * OS_SECOND))
            die(s, m ? ETIMEDOUT : EHOSTUNREACH);
        else
            os_at(os.t + RETRY_US, on_syn, s, give_up_t);
        return;
    }
    l = listener_at(m, s->peer_port);
    if (!l) {
        os_at(os.t + delay(m, s->machine), os_socket_on_refused, s, ECONNREFUSED);
        return;
    }
    child = socket_new(m, NULL, l->family);
    child->ip = s->peer_ip;
    child->port = s->peer_port;
    child->peer_ip = s->ip;
    child->peer_port = s->port;
    child->peer = s;
    child->connected = true;
    child->heard_t = os.t;
    child->keepalive = l->keepalive;
    child->idle_us = l->idle_us;
    child->between_us = l->between_us;
    child->probes = l->probes;
    child->user_timeout_us = l->user_timeout_us;
    start_probes(child);
    s->peer = child;
    if (l->accept_last)
        l->accept_last->accept_next = child;
    else
        l->accept_first = child;
    l->accept_last = child;
    socket_notify(l);
    os_at(os.t + delay(m, s->machine), on_connected, s, 0);
}

static bool address_of(const struct sockaddr *a, uint32_t *ip, uint16_t *port)
{
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;

        *ip = ntohl(v4->sin_addr.s_addr);
        *port = ntohs(v4->sin_port);
        return true;
    }
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)a;
        const uint8_t *b = v6->sin6_addr.s6_addr;

        *port = ntohs(v6->sin6_port);
        *ip = 0;
        if (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr))
            *ip = 0x7f000001u;
        else if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
            *ip = (uint32_t)b[12] << 24 | (uint32_t)b[13] << 16 | (uint32_t)b[14] << 8 |
                  b[15];
        return *ip != 0 || IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
    }
    return false;
}

int os_connect(struct os_socket *s, const struct sockaddr *to)
{
    const struct os_machine *m;

    if (!address_of(to, &s->peer_ip, &s->peer_port))
        return ENETUNREACH;
    s->connecting = true;
    s->ip = s->peer_ip >> 24 == 127 ? 0x7f000001u : s->machine->ip;
    s->port = free_port(s->machine);
    m = machine_at(s, s->peer_ip);
    os_at(os.t + delay(s->machine, m ? m : s->machine), on_syn, s, os.t + CONNECT_US);
    return 0;
}

int os_connected(const struct os_socket *s)
{
    return s->error ? -s->error : s->connected ? 1 : 0;
}

int os_socket_new(int family, struct os_socket **out)
{
    *out = socket_new(os.current->machine, os.current, family);
    return (*out)->fd;
}

/* ---- closing ---- */

static void forget_items(struct os_socket *s)
{
    for (struct item *i = s->watchers; i; i = i->next_of_socket)
        i->removed = true;
    s->watchers = NULL;
}

void os_close(struct os_socket *s)
{
    struct os_process *p = s->owner;

    if (s->closed || s->vanished)
        return;
    s->closed = true;
    forget_items(s);
    s->owner = NULL;
    for (struct os_socket **at = p ? &p->sockets : NULL; at && *at;
         at = &(*at)->next_of_process)
        if (*at == s) {
            *at = s->next_of_process;
            break;
        }
    for (struct os_socket *c = s->accept_first; c; c = c->accept_next)
        if (!c->closed && !c->owner) {
            c->closed = true;
            send_reset(c->peer);
        }
    if (!s->connected || s->error || !s->peer)
        return;
    if (s->rx.first)
        send_reset(s->peer); /* The other end must learn that bytes were not read. */
    else if (!s->end_sent)
        socket_put(s, NULL, 0);
    s->end_sent = true;
}

void os_sockets_close(struct os_process *p, bool power_lost)
{
    while (p->sockets) {
        struct os_socket *s = p->sockets;

        if (power_lost) {
            p->sockets = s->next_of_process;
            forget_items(s);
            s->owner = NULL;
            s->vanished = true;
            for (struct os_socket *c = s->accept_first; c; c = c->accept_next)
                c->vanished = true;
        } else {
            os_close(s);
        }
    }
}

/* ---- faults ---- */

size_t os_reset(const struct os_machine *m, bool one_side)
{
    size_t count = 0;

    for (struct os_socket *s = os.all_sockets; s; s = s->next) {
        if (!alive(s) || !s->peer || s->machine == s->peer->machine ||
            s->port < s->peer_port || (s->machine != m && s->peer->machine != m))
            continue;
        if ((s->owner && s->owner->spared) ||
            (s->peer->owner && s->peer->owner->spared))
            continue;
        count++;
        if (!one_side || os_chance(2)) {
            os_at(os.t + delay(s->machine, s->machine), on_reset, s, 0);
            if (one_side)
                continue;
        }
        os_at(os.t + delay(s->machine, s->machine), on_reset, s->peer, 0);
    }
    return count;
}

/* ---- epoll ---- */

static uint32_t ready(const struct item *i)
{
    const struct os_socket *s = i->socket;
    uint32_t is = 0;

    if (i->removed)
        return 0;
    if (os_readable(s))
        is |= EPOLLIN;
    if (s->rx_end)
        is |= EPOLLRDHUP;
    if (s->kind == STREAM && os_writable(s))
        is |= EPOLLOUT;
    if (s->error)
        is |= EPOLLERR | EPOLLHUP;
    is &= i->events | EPOLLERR | EPOLLHUP;
    return (i->events & (uint32_t)EPOLLET) && !i->edge ? 0 : is;
}

static bool set_ready(const struct os_socket *set)
{
    for (const struct item *i = set->hot; i; i = i->next_hot)
        if (ready(i))
            return true;
    return false;
}

OS_INSTEAD_OF(epoll_create1);
OS_INSTEAD_OF(epoll_ctl);
OS_INSTEAD_OF(epoll_wait);

int __wrap_epoll_create1(int flags)
{
    struct os_socket *s;

    (void)os_socket_new(AF_INET, &s);
    s->kind = EPOLL;
    return s->fd;
}

int __wrap_epoll_ctl(int set, int op, int fd, struct epoll_event *ev)
{
    struct os_socket *e = os_socket_of(set), *s = os_socket_of(fd);
    struct item *i;

    assert(e && s);
    for (i = s->watchers; i; i = i->next_of_socket)
        if (i->set == e && !i->removed)
            break;
    if (op == EPOLL_CTL_ADD) {
        assert(!i);
        i = os_alloc(sizeof *i);
        i->set = e;
        i->socket = s;
        i->order = e->items++;
        i->next_of_socket = s->watchers;
        s->watchers = i;
    } else if (!i) {
        errno = ENOENT;
        return -1;
    }
    if (op == EPOLL_CTL_DEL) {
        i->removed = true;
        return 0;
    }
    i->events = ev->events;
    i->data = ev->data;
    i->edge = true;
    item_heat(i);
    if (ready(i) && e->owner)
        os_wake(e->owner);
    return 0;
}

int __wrap_epoll_wait(int set, struct epoll_event *to, int max, int timeout)
{
    struct os_socket *e = os_socket_of(set);
    struct item **at = &e->hot;
    int n = 0;

    assert(timeout == 0); /* Only uv_run() waits. */
    while (*at && n < max) {
        struct item *i = *at;
        const uint32_t is = ready(i);

        if (!is) {
            *at = i->next_hot;
            i->hot = false;
            continue;
        }
        to[n++] = (struct epoll_event){ .events = is, .data = i->data };
        i->edge = false;
        at = &i->next_hot;
    }
    return n;
}

/* ---- the C library's calls ---- */

OS_INSTEAD_OF(close);
OS_INSTEAD_OF(socket);
OS_INSTEAD_OF(bind);
OS_INSTEAD_OF(listen);
OS_INSTEAD_OF(accept4);
OS_INSTEAD_OF(recv);
OS_INSTEAD_OF(send);
OS_INSTEAD_OF(setsockopt);
OS_INSTEAD_OF(getsockopt);
OS_INSTEAD_OF(getsockname);
OS_INSTEAD_OF(getpeername);

int __wrap_close(int fd)
{
    struct os_socket *s = os_socket_of(fd);

    if (!s)
        return __real_close(fd);
    os_close(s);
    return 0;
}

int __wrap_socket(int family, int type, int protocol)
{
    struct os_socket *s;

    return os_socket_new(family, &s);
}

int __wrap_bind(int fd, const struct sockaddr *a, socklen_t n)
{
    struct os_socket *s = os_socket_of(fd);
    uint16_t port;

    if (!address_of(a, &s->ip, &port)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    if (s->ip && machine_at(s, s->ip) != s->machine) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    if (port && listener_at(s->machine, port)) {
        errno = EADDRINUSE;
        return -1;
    }
    s->port = port ? port : free_port(s->machine);
    return 0;
}

int __wrap_listen(int fd, int backlog)
{
    struct os_socket *s = os_socket_of(fd);

    s->kind = LISTENER;
    s->next_listener = s->machine->listeners;
    s->machine->listeners = s;
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags)
{
    struct os_socket *l = os_socket_of(fd), *s = l->accept_first;

    if (!s) {
        errno = EAGAIN;
        return -1;
    }
    l->accept_first = s->accept_next;
    if (!l->accept_first)
        l->accept_last = NULL;
    s->owner = l->owner;
    s->next_of_process = s->owner->sockets;
    s->owner->sockets = s;
    return s->fd;
}

static ssize_t result(ssize_t rc)
{
    if (rc >= 0)
        return rc;
    errno = (int)-rc;
    return -1;
}

ssize_t __wrap_recv(int fd, void *to, size_t n, int flags)
{
    return result(os_recv(os_socket_of(fd), to, n));
}

ssize_t __wrap_send(int fd, const void *p, size_t n, int flags)
{
    return result(os_send(os_socket_of(fd), p, n));
}

int __wrap_setsockopt(int fd, int level, int name, const void *v, socklen_t n)
{
    struct os_socket *s = os_socket_of(fd);
    const int value = n >= sizeof(int) ? *(const int *)v : 0;

    if (!s)
        return 0;
    if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT)
        s->user_timeout_us = (uint64_t)value * OS_MS;
    else if (level == IPPROTO_TCP && name == TCP_KEEPIDLE)
        s->idle_us = (uint64_t)value * OS_SECOND;
    else if (level == IPPROTO_TCP && name == TCP_KEEPINTVL)
        s->between_us = (uint64_t)value * OS_SECOND;
    else if (level == IPPROTO_TCP && name == TCP_KEEPCNT)
        s->probes = (unsigned)value;
    else if (level == SOL_SOCKET && name == SO_KEEPALIVE)
        s->keepalive = value != 0;
    start_probes(s);
    return 0;
}

int __wrap_getsockopt(int fd, int level, int name, void *v, socklen_t *n)
{
    if (name == SO_TYPE && *n >= sizeof(int))
        *(int *)v = SOCK_STREAM;
    else
        memset(v, 0, *n);
    return 0;
}

int os_name(const struct os_socket *s, bool peer, struct sockaddr *to, socklen_t *n)
{
    const uint32_t ip = peer ? s->peer_ip : s->ip;
    const uint16_t port = peer ? s->peer_port : s->port;
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };

    if (peer && s->peer_port == 0)
        return ENOTCONN;
    v4.sin_addr.s_addr = htonl(ip);
    if (ip) {
        v6.sin6_addr.s6_addr[10] = v6.sin6_addr.s6_addr[11] = 0xff;
        memcpy(&v6.sin6_addr.s6_addr[12], &v4.sin_addr, 4);
    }
    if (s->family == AF_INET6) {
        memcpy(to, &v6, MIN_OF(sizeof v6, (size_t)*n));
        *n = sizeof v6;
    } else {
        memcpy(to, &v4, MIN_OF(sizeof v4, (size_t)*n));
        *n = sizeof v4;
    }
    return 0;
}

int __wrap_getsockname(int fd, struct sockaddr *a, socklen_t *n)
{
    return (int)result(-os_name(os_socket_of(fd), false, a, n));
}

int __wrap_getpeername(int fd, struct sockaddr *a, socklen_t *n)
{
    return (int)result(-os_name(os_socket_of(fd), true, a, n));
}

bool os_poll_ready(int fd, int events)
{
    const struct os_socket *s = os_socket_of(fd);

    if (!s)
        return false;
    if (s->kind == EPOLL)
        return (events & UV_READABLE) && set_ready(s);
    return ((events & UV_READABLE) && os_readable(s)) ||
           ((events & UV_WRITABLE) && os_writable(s));
}
