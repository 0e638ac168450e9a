/* bare.c - `muster-bench bare`: the least that a server of `muster-bench crowd` can do,
 * and so the limit for any: accept, one read and one write for each request, no keys,
 * no checks, no deadlines. It answers VALIDATE, PING, ADD, WAIT and SET, for one key of
 * each kind, and believes every length it is told. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "net.h"

#define MANY 65536

static int waiting[MANY];
static size_t waiters;
static uint64_t sum;

static uint64_t u64_at(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return v;
}

static void wake_all(void)
{
    const uint8_t done = 0;

    for (size_t i = 0; i < waiters; i++)
        (void)send(waiting[i], &done, 1, MSG_NOSIGNAL);
    waiters = 0;
}

/* One request: what it takes, and its answer at the end of `out`. */
static size_t request(int fd, const uint8_t *p, uint8_t *out, size_t *n)
{
    size_t key;

    switch (p[0]) {
    case 0: /* VALIDATE */
        return 5;
    case 13: /* PING */
        memcpy(out + *n, p + 1, 4);
        *n += 4;
        return 5;
    case 4: /* ADD */
        sum += u64_at(p + 9 + u64_at(p + 1));
        memcpy(out + *n, &sum, 8);
        *n += 8;
        return 17 + u64_at(p + 1);
    case 6: /* WAIT */
        if (waiters < MANY)
            waiting[waiters++] = fd;
        return 17 + u64_at(p + 9);
    case 1: /* SET */
        key = u64_at(p + 1);
        wake_all();
        return 17 + key + u64_at(p + 9 + key);
    default:
        return SIZE_MAX;
    }
}

static void serve(int fd)
{
    static uint8_t in[4096], out[4096];
    const ssize_t got = recv(fd, in, sizeof in, 0);
    size_t n = 0, used = 0;

    if (got <= 0)
        (void)close(fd);
    while (got > 0 && used < (size_t)got) {
        const size_t took = request(fd, in + used, out, &n);

        if (took > (size_t)got - used)
            net_die("not a request of muster-bench crowd");
        used += took;
    }
    if (n && send(fd, out, n, MSG_NOSIGNAL) < 0)
        (void)close(fd);
}

static void take_all(int ep, int listener)
{
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET };

    for (int i = 0; i < 64; i++) {
        ev.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (ev.data.fd < 0)
            return;
        (void)epoll_ctl(ep, EPOLL_CTL_ADD, ev.data.fd, &ev);
    }
}

int bench_bare(int argc, char **argv)
{
    struct epoll_event events[256], ev = { .events = EPOLLIN };
    const int ep = epoll_create1(EPOLL_CLOEXEC);
    const int listener = net_serve();

    (void)argc;
    (void)argv;
    ev.data.fd = listener;
    (void)epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ev);
    for (;;) {
        const int n = epoll_wait(ep, events, 256, -1);

        if (n < 0 && errno != EINTR)
            net_die("epoll_wait");
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener)
                take_all(ep, listener);
            else
                serve(events[i].data.fd);
        }
    }
}
