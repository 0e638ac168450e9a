/* listen.c - see listen.h. Never asks a resolver. */
#include "net/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "net/port_holder.h"

uint16_t address_port(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)(const void *)a)->sin_port);
    if (a->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)a)->sin6_port);
    return 0;
}

void address_of_peer(int fd, char out[ADDRESS_TEXT])
{
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a;

    (void)getpeername(fd, (struct sockaddr *)&a, &n);
    address_text((const struct sockaddr *)&a, out);
}

static socklen_t address_len(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                   : sizeof(struct sockaddr_in6);
}

/* "127.0.0.1", "::1", "[::1]", "fe80::1%eth0" */
static int parse_address(const char *text, uint16_t port, struct sockaddr_storage *out,
                         struct muster_error *err)
{
    const size_t n = strlen(text);
    char host[128];

    if (n > 2 && n < sizeof host && text[0] == '[' && text[n - 1] == ']') {
        (void)snprintf(host, sizeof host, "%.*s", (int)n - 2, text + 1);
        text = host;
    }
    if (resolve_numeric(strcmp(text, "localhost") == 0 ? "127.0.0.1" : text, port, out))
        return 0;
    return err_set(
        err, MUSTER_EINVAL,
        "cannot listen on \"%s\": that is not a numeric IPv4 or IPv6 address; "
        "give one of this machine's (see `ip address`)",
        text);
}

/* Torch's message comes first, so that a search for it finds the remedy. */
static int listen_failed(int e, const struct sockaddr_storage *a,
                         struct muster_error *err)
{
    char where[ADDRESS_TEXT], holder[512];

    address_text((const struct sockaddr *)a, where);
    switch (e) {
    case EADDRINUSE:
        if (port_holder(address_port(a), holder, sizeof holder))
            return err_set(
                err, MUSTER_EINUSE,
                "The server socket has failed to listen on any local network "
                "address. %s: address already in use (EADDRINUSE) by %s; choose "
                "another port (0 takes any free one), or stop that process",
                where, holder);
        return err_set(
            err, MUSTER_EINUSE,
            "The server socket has failed to listen on any local network "
            "address. %s: address already in use (EADDRINUSE); choose another "
            "port (0 takes any free one), or stop the process that has it "
            "(`ss -ltnp 'sport = :%u'` names it)",
            where, (unsigned)address_port(a));
    case EACCES:
        return err_set(err, MUSTER_EACCES,
                       "cannot listen on %s: permission denied; ports below 1024 are "
                       "for root, choose a higher one",
                       where);
    case EADDRNOTAVAIL:
        return err_set(err, MUSTER_EINVAL,
                       "cannot listen on %s: this machine has no such address (see "
                       "`ip address`)",
                       where);
    default:
        return err_set(err, MUSTER_EIO, "cannot listen on %s: %s", where, strerror(e));
    }
}

static int open_at(const struct sockaddr_storage *a, int backlog,
                   struct muster_error *err)
{
    const int fd =
        socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    const int on = 1, off = 0;
    int e;

    if (fd < 0)
        return listen_failed(errno, a, err);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (const struct sockaddr *)a, address_len(a)) == 0 &&
        listen(fd, backlog) == 0)
        return fd;
    e = errno;
    (void)close(fd);
    return listen_failed(e, a, err);
}

/* Falls back to IPv4, since IPv6 may be disabled in the kernel or in this namespace. */
static int open_anywhere(uint16_t port, int backlog, struct muster_error *err)
{
    struct sockaddr_storage a;
    int fd;

    (void)parse_address("::", port, &a, NULL);
    fd = open_at(&a, backlog, err);
    if (fd >= 0 || fd == MUSTER_EINUSE || fd == MUSTER_EACCES)
        return fd;
    (void)parse_address("0.0.0.0", port, &a, NULL);
    return open_at(&a, backlog, err);
}

static int take_over(const struct listen_opts *o, int backlog, struct muster_error *err)
{
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a, size = sizeof(int);
    int type = 0;

    if (getsockname(o->fd, (struct sockaddr *)&a, &n) < 0 ||
        getsockopt(o->fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
        return err_set(err, MUSTER_EINVAL, "listen fd %d: %s", o->fd, strerror(errno));
    if (type != SOCK_STREAM || address_port(&a) == 0)
        return err_set(err, MUSTER_EINVAL,
                       "listen fd %d is not a TCP socket bound to a port", o->fd);
    if (o->port && address_port(&a) != o->port)
        return err_set(err, MUSTER_EINVAL,
                       "listen fd %d is bound to port %u, expected to be bound to port "
                       "%u",
                       o->fd, (unsigned)address_port(&a), (unsigned)o->port);
    if (listen(o->fd, backlog) < 0)
        return listen_failed(errno, &a, err);
    (void)fcntl(o->fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(o->fd, F_SETFL, fcntl(o->fd, F_GETFL) | O_NONBLOCK);
    return o->fd;
}

/* Accepted sockets inherit these options. Keep-alive finds out about a machine that
 * lost its power, whose waits would otherwise stay for ever. */
static void set_options(int fd)
{
    const int on = 1, idle_s = 300, between_s = 30, probes = 4;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int listen_open(const struct listen_opts *o, int *fd, struct muster_error *err)
{
    const int backlog =
        o->backlog ? o->backlog : 1 << 30; /* The kernel reduces it to its maximum. */
    struct sockaddr_storage a;
    int rc;

    if (o->fd >= 0) {
        rc = take_over(o, backlog, err);
    } else if (!o->bind) {
        rc = open_anywhere(o->port, backlog, err);
    } else {
        rc = parse_address(o->bind, o->port, &a, err);
        if (rc == 0)
            rc = open_at(&a, backlog, err);
    }
    if (rc < 0)
        return rc;
    set_options(rc);
    *fd = rc;
    return 0;
}

int listen_free_port(uint16_t *port, struct muster_error *err)
{
    struct sockaddr_in sa = { .sin_family = AF_INET };
    socklen_t n = sizeof sa;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = 0;

    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, n) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &n) != 0)
        rc = err_set(err, MUSTER_EIO, "looking for a free port: %m");
    else
        *port = ntohs(sa.sin_port);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}
