/* load.c - `muster-bench load`: a closed loop. Each connection sends a request, waits
 * for the answer, notes how long that took and sends the next. One thread, epoll; the
 * same loop for every kind of server, so that they are compared by one measure. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "net.h"

#define KEY "/bench"

/* Latencies in buckets of 1/32 of a power of two: within 3 % of the truth. */
#define FINE 32
struct histogram {
    uint64_t counts[64 * FINE];
    uint64_t total;
};

static void note(struct histogram *h, uint64_t ns)
{
    const unsigned top = 63u - (unsigned)__builtin_clzll(ns | FINE);
    const unsigned sub = (unsigned)(ns >> (top - 5)) & (FINE - 1);

    h->counts[top * FINE + sub]++;
    h->total++;
}

static double quantile(const struct histogram *h, double q)
{
    uint64_t left = (uint64_t)((double)h->total * q);

    for (unsigned i = 0; i < 64 * FINE; i++) {
        if (h->counts[i] > left)
            return (double)((uint64_t)(FINE + i % FINE) << (i / FINE - 5)) / 1e3;
        left -= h->counts[i];
    }
    return 0;
}

struct kind {
    struct message request;
    size_t reply; /* its size; 0: ends with a line feed */
};

static void c10d_kind(const struct net_args *a, struct kind *k)
{
    if (strcmp(a->op, "add") == 0) {
        message_u8(&k->request, 4);
        message_bytes(&k->request, KEY "_n", sizeof KEY + 1);
        message_u64(&k->request, 1);
        k->reply = 8;
    } else if (strcmp(a->op, "get") == 0) {
        message_u8(&k->request, 3);
        message_bytes(&k->request, KEY, sizeof KEY - 1);
        k->reply = 8 + a->size;
    } else {
        message_u8(&k->request, 5);
        message_u64(&k->request, 1);
        message_bytes(&k->request, KEY, sizeof KEY - 1);
        k->reply = 1;
    }
}

static void resp_kind(const struct net_args *a, struct kind *k)
{
    static const char incr[] = "*2\r\n$4\r\nINCR\r\n$8\r\n" KEY "_n\r\n";
    static const char get[] = "*2\r\n$3\r\nGET\r\n$6\r\n" KEY "\r\n";
    static const char exists[] = "*2\r\n$6\r\nEXISTS\r\n$6\r\n" KEY "\r\n";
    const char *text = strcmp(a->op, "add") == 0   ? incr
                       : strcmp(a->op, "get") == 0 ? get
                                                   : exists;
    char head[32];

    k->request.n = strlen(text);
    memcpy(k->request.bytes, text, k->request.n);
    if (text == get)
        k->reply =
            (size_t)snprintf(head, sizeof head, "$%zu\r\n", a->size) + a->size + 2;
}

/* What the requests ask for must be there, and the server willing. */
static void prepare(const struct net_args *a, int fd)
{
    struct message m = { .n = 0 };
    uint8_t value[256] = "", answer[16];
    char text[512];

    if (strcmp(a->proto, "c10d") == 0) {
        message_hello(&m, 7);
        message_u8(&m, 1);
        message_bytes(&m, KEY, sizeof KEY - 1);
        message_bytes(&m, value, a->size);
        net_send(fd, m.bytes, m.n);
        net_take(fd, answer, 4);
    } else if (strcmp(a->proto, "resp") == 0) {
        const int n = snprintf(text, sizeof text,
                               "*3\r\n$3\r\nSET\r\n$6\r\n" KEY "\r\n$%zu\r\n%0*d\r\n",
                               a->size, (int)a->size, 1);
        net_send(fd, text, (size_t)n);
        net_take(fd, answer, 5);
    }
}

struct client {
    int fd;
    size_t have; /* bytes of the answer so far */
    uint64_t sent_ns;
};

static void ask(struct client *c, const struct kind *k)
{
    c->have = 0;
    c->sent_ns = net_ns();
    if (send(c->fd, k->request.bytes, k->request.n, MSG_NOSIGNAL) !=
        (ssize_t)k->request.n)
        net_die("send");
}

/* True if the answer is whole. */
static int take(struct client *c, const struct kind *k)
{
    char in[4096];
    const ssize_t n = recv(c->fd, in, sizeof in, 0);

    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0)
        net_die("the server closed a connection");
    c->have += (size_t)n;
    return k->reply ? c->have >= k->reply : in[n - 1] == '\n';
}

static void loop(const struct net_args *a, const struct kind *k, struct client *clients,
                 int ep, struct histogram *h, double *seconds, uint64_t *cpu_ns)
{
    const uint64_t warm = net_ns() + (uint64_t)(a->seconds * 1e9 / 4);
    const uint64_t end = warm + (uint64_t)(a->seconds * 1e9);
    uint64_t start = 0, now = 0;
    struct epoll_event events[512];

    for (size_t i = 0; i < a->count; i++)
        ask(&clients[i], k);
    while (now < end) {
        const int n = epoll_wait(ep, events, 512, a->sleep ? -1 : 0);

        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;

            if (!take(c, k))
                continue;
            now = net_ns();
            if (start)
                note(h, now - c->sent_ns);
            else if (now >= warm) {
                start = now;
                *cpu_ns = net_cpu_ns(a->server);
            }
            ask(c, k);
        }
    }
    *seconds = (double)(now - start) / 1e9;
    *cpu_ns = net_cpu_ns(a->server) - *cpu_ns;
}

int bench_load(int argc, char **argv)
{
    static struct histogram h;
    struct kind k = { .reply = 0 };
    struct net_args a;
    struct client *clients;
    double seconds = 0;
    uint64_t cpu_ns = 0;
    const int ep = epoll_create1(EPOLL_CLOEXEC);

    net_parse(argc, argv, &a);
    net_allow_many();
    if (strcmp(a.proto, "c10d") == 0) {
        c10d_kind(&a, &k);
    } else if (strcmp(a.proto, "resp") == 0) {
        resp_kind(&a, &k);
    } else {
        k.request.n = a.size;
        k.reply = a.reply;
    }
    clients = calloc(a.count, sizeof *clients);
    for (size_t i = 0; i < a.count; i++) {
        struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &clients[i] };

        clients[i].fd = net_connect(a.port);
        prepare(&a, clients[i].fd);
        net_nonblock(clients[i].fd);
        (void)epoll_ctl(ep, EPOLL_CTL_ADD, clients[i].fd, &ev);
    }
    loop(&a, &k, clients, ep, &h, &seconds, &cpu_ns);
    printf("{\"bench\": \"load\", \"proto\": \"%s\", \"op\": \"%s\", \"conns\": %zu, "
           "\"ops\": %llu, \"cpu_us\": %.3f, \"rate\": %.1f, \"p50_us\": %.2f, "
           "\"p99_us\": %.2f, "
           "\"request_bytes\": %zu, \"reply_bytes\": %zu}\n",
           a.proto, a.op, a.count, (unsigned long long)h.total,
           (double)cpu_ns / 1e3 / (double)h.total, (double)h.total / seconds,
           quantile(&h, 0.5), quantile(&h, 0.99), k.request.n, k.reply);
    return 0;
}
