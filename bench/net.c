/* net.c - see net.h. */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void net_die(const char *what)
{
    fprintf(stderr, "muster-bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

void net_parse(int argc, char **argv, struct net_args *a)
{
    static const struct option options[] = {
        { "proto", required_argument, NULL, 'p' },
        { "op", required_argument, NULL, 'o' },
        { "port", required_argument, NULL, 'P' },
        { "count", required_argument, NULL, 'c' },
        { "size", required_argument, NULL, 's' },
        { "reply", required_argument, NULL, 'r' },
        { "seconds", required_argument, NULL, 't' },
        { "server", required_argument, NULL, 'S' },
        { "sleep", no_argument, NULL, 'z' },
        { NULL, 0, NULL, 0 },
    };

    *a = (struct net_args){ .mode = "",
                            .proto = "c10d",
                            .op = "add",
                            .count = 1,
                            .size = 64,
                            .reply = 8,
                            .seconds = 1 };
    for (int c; (c = getopt_long(argc, argv, "+", options, NULL)) != -1;) {
        if (c == 'p')
            a->proto = optarg;
        else if (c == 'o')
            a->op = optarg;
        else if (c == 'P')
            a->port = (uint16_t)atoi(optarg);
        else if (c == 'c')
            a->count = (size_t)atol(optarg);
        else if (c == 's')
            a->size = (size_t)atol(optarg);
        else if (c == 'r')
            a->reply = (size_t)atol(optarg);
        else if (c == 'S')
            a->server = atoi(optarg);
        else if (c == 'z')
            a->sleep = 1;
        else if (c == 't')
            a->seconds = atof(optarg);
        else
            exit(2);
    }
    a->rest = argv + optind;
}

uint64_t net_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t net_cpu_ns(int pid)
{
    struct timespec t = { 0, 0 };
    clockid_t clock;

    if (!pid)
        return 0;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        net_die("the server's CPU time");
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

int net_serve(void)
{
    struct sockaddr_in a = loopback(0);
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
              on = 1;

    net_allow_many();
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 || listen(fd, 1 << 20) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        net_die("listen");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    printf("listening on 127.0.0.1:%u\n", (unsigned)ntohs(a.sin_port));
    (void)fflush(stdout);
    return fd;
}

#define PER_ADDRESS 8192u

/* The kernel looks long for a free port when half of them are taken: a source address
 * of its own for every few thousand connections. */
int net_connect(uint16_t port)
{
    static unsigned count;
    const struct sockaddr_in a = loopback(port);
    struct sockaddr_in from = loopback(0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd < 0)
        net_die("socket");
    if (++count > PER_ADDRESS) {
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + count / PER_ADDRESS);
        (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&from, sizeof from) < 0)
            net_die("bind");
    }
    if (connect(fd, (const struct sockaddr *)&a, sizeof a) < 0)
        net_die("connect");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

void net_nonblock(int fd)
{
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void net_send(int fd, const void *p, size_t n)
{
    const char *at = p;

    while (n) {
        const ssize_t k = send(fd, at, n, MSG_NOSIGNAL);

        if (k < 0)
            net_die("send");
        at += k;
        n -= (size_t)k;
    }
}

static void take(int fd, void *p, size_t n, int flags)
{
    char *at = p;

    while (n) {
        const ssize_t k = recv(fd, at, n, flags);

        if (k < 0 && errno == EAGAIN)
            continue;
        if (k <= 0)
            net_die("the server closed a connection");
        at += k;
        n -= (size_t)k;
    }
}

void net_take(int fd, void *p, size_t n)
{
    take(fd, p, n, 0);
}

void net_take_awake(int fd, void *p, size_t n)
{
    take(fd, p, n, MSG_DONTWAIT);
}

void net_allow_many(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

void message_u8(struct message *m, uint8_t v)
{
    m->bytes[m->n++] = v;
}

void message_u64(struct message *m, uint64_t v)
{
    memcpy(m->bytes + m->n, &v, 8);
    m->n += 8;
}

void message_bytes(struct message *m, const void *p, size_t n)
{
    message_u64(m, n);
    memcpy(m->bytes + m->n, p, n);
    m->n += n;
}

void message_hello(struct message *m, uint32_t nonce)
{
    static const uint8_t validate[] = { 0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d };

    memcpy(m->bytes + m->n, validate, sizeof validate);
    memcpy(m->bytes + m->n + sizeof validate, &nonce, 4);
    m->n += sizeof validate + 4;
}
