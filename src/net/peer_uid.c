/* peer_uid.c - see peer_uid.h. */
#include "net/peer_uid.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "base/err.h"

struct ends {
    int family;
    struct inet_diag_sockid id; /* as the peer's socket has it: its own end is src */
};

static bool is_loopback(const struct ends *e)
{
    static const uint32_t one[] = { 0, 0, 0 };

    if (e->family == AF_INET)
        return (ntohl(e->id.idiag_src[0]) >> 24) == 127;
    return memcmp(e->id.idiag_src, one, sizeof one) == 0 &&
           ntohl(e->id.idiag_src[3]) == 1;
}

/* An IPv4 client of an IPv6 socket is known by its IPv4 address. */
static void put_end(const struct sockaddr_storage *a, int *family, __be16 *port,
                    __be32 out[4])
{
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;

    memset(out, 0, 16);
    *family = a->ss_family;
    if (a->ss_family == AF_INET) {
        out[0] = v4->sin_addr.s_addr;
        *port = v4->sin_port;
        return;
    }
    *port = v6->sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        *family = AF_INET;
        memcpy(out, &v6->sin6_addr.s6_addr[12], 4);
    } else {
        memcpy(out, &v6->sin6_addr, 16);
    }
}

static int find_ends(int fd, struct ends *e)
{
    struct sockaddr_storage ours, theirs;
    socklen_t n = sizeof ours, m = sizeof theirs;

    memset(e, 0, sizeof *e);
    if (getsockname(fd, (struct sockaddr *)&ours, &n) < 0 ||
        getpeername(fd, (struct sockaddr *)&theirs, &m) < 0)
        return -1;
    if (theirs.ss_family != AF_INET && theirs.ss_family != AF_INET6)
        return -1;
    put_end(&ours, &e->family, &e->id.idiag_dport, e->id.idiag_dst);
    put_end(&theirs, &e->family, &e->id.idiag_sport, e->id.idiag_src);
    e->id.idiag_cookie[0] = e->id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    return 0;
}

static int ask_kernel(int nl, const struct ends *e, uid_t *uid)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 req;
    } ask = {
        .head = { sizeof ask, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0 },
        .req = { .sdiag_family = (uint8_t)e->family,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = UINT32_MAX,
                 .id = e->id },
    };
    union {
        struct nlmsghdr head;
        char bytes[4096];
    } got;
    const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };

    if (sendto(nl, &ask, sizeof ask, 0, (const struct sockaddr *)&kernel,
               sizeof kernel) < 0)
        return -1;
    const ssize_t n = recv(nl, &got, sizeof got, 0);
    if (n < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ||
        got.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return -1;
    *uid = ((const struct inet_diag_msg *)NLMSG_DATA(&got.head))->idiag_uid;
    return 0;
}

int peer_uid(int fd, uid_t *uid, struct muster_error *err)
{
    const struct timeval limit = { .tv_sec = 1 }; /* The kernel answers at once. */
    struct ends e;
    int rc;

    if (find_ends(fd, &e) < 0)
        return err_set(err, MUSTER_EIO, "the peer of a connection: %s",
                       strerror(errno));
    if (!is_loopback(&e))
        return err_set(err, MUSTER_ENOTSUP, "the peer is on another machine");
    const int nl = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (nl < 0)
        return err_set(err, MUSTER_EIO, "sock_diag: %s", strerror(errno));
    (void)setsockopt(nl, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    rc = ask_kernel(nl, &e, uid);
    (void)close(nl);
    return rc < 0 ? err_set(err, MUSTER_EIO, "the kernel does not tell who the peer is")
                  : 0;
}
