/* echo.c - `muster-bench echo`: the least that a server can do, and so the limit for
 * any: for each request of --size bytes an answer of --reply bytes, nothing in between.
 * One thread, epoll, one read and one write for each. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "net.h"

static void serve(int fd, const struct net_args *a)
{
    static char in[65536], out[4096];
    const ssize_t n = recv(fd, in, sizeof in, 0);

    if (n <= 0 || (size_t)n % a->size) {
        (void)close(fd); /* Closed loops send whole requests, one at a time. */
        return;
    }
    if (send(fd, out, (size_t)n / a->size * a->reply, MSG_NOSIGNAL) < 0)
        (void)close(fd);
}

int bench_echo(int argc, char **argv)
{
    struct epoll_event events[512], ev = { .events = EPOLLIN };
    const int ep = epoll_create1(EPOLL_CLOEXEC);
    struct net_args a;
    int listener;

    net_parse(argc, argv, &a);
    listener = net_serve();
    ev.data.fd = listener;
    (void)epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ev);
    for (;;) {
        const int n = epoll_wait(ep, events, 512, -1);

        if (n < 0 && errno != EINTR)
            net_die("epoll_wait");
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd != listener) {
                serve(events[i].data.fd, &a);
                continue;
            }
            ev.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (ev.data.fd >= 0)
                (void)epoll_ctl(ep, EPOLL_CTL_ADD, ev.data.fd, &ev);
        }
    }
}
