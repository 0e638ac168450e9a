/* peer_uid.c - see peer_uid.h. The peer's socket is the one that has our two ends
 * swapped. The kernel is asked for it by sock_diag, or, where that is not built in, it
 * is looked up in /proc/net/tcp. */
#include "net/peer_uid.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ends {
    int family; /* AF_INET where both are IPv4, mapped or not */
    uint8_t peer[16], own[16];
    uint16_t peer_port, own_port; /* in network order */
};

static void take_end(const struct sockaddr_storage *a, uint8_t ip[16], uint16_t *port)
{
    memset(ip, 0, 16);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;

        memcpy(ip, &v4->sin_addr, 4);
        *port = v4->sin_port;
        return;
    }
    const struct sockaddr_in6 *v6 = (const void *)a;

    *port = v6->sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        memcpy(ip, &v6->sin6_addr.s6_addr[12], 4);
    else
        memcpy(ip, &v6->sin6_addr, 16);
}

static bool find_ends(int fd, struct ends *e)
{
    struct sockaddr_storage peer, own;
    socklen_t n = sizeof peer, m = sizeof own;

    if (getpeername(fd, (struct sockaddr *)&peer, &n) < 0 ||
        getsockname(fd, (struct sockaddr *)&own, &m) < 0 ||
        (peer.ss_family != AF_INET && peer.ss_family != AF_INET6))
        return false;
    e->family = peer.ss_family;
    if (peer.ss_family == AF_INET6 &&
        IN6_IS_ADDR_V4MAPPED(&((struct sockaddr_in6 *)&peer)->sin6_addr))
        e->family = AF_INET;
    take_end(&peer, e->peer, &e->peer_port);
    take_end(&own, e->own, &e->own_port);
    return true;
}

/* False if the kernel does not tell; *place is PEER_UNKNOWN then. */
static bool ask_kernel(const struct ends *e, enum peer_place *place, uid_t *uid)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 req;
    } ask = {
        .head = { .nlmsg_len = sizeof ask,
                  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                  .nlmsg_flags = NLM_F_REQUEST },
        .req = { .sdiag_family = (uint8_t)e->family,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = ~0u },
    };
    union {
        struct nlmsghdr head;
        uint8_t bytes[4096];
    } answer;
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    const struct timeval limit = { .tv_sec = 1 }; /* The kernel answers at once. */
    ssize_t n = -1;

    *place = PEER_UNKNOWN;
    if (fd < 0)
        return false;
    memcpy(ask.req.id.idiag_src, e->peer, 16);
    memcpy(ask.req.id.idiag_dst, e->own, 16);
    ask.req.id.idiag_sport = e->peer_port;
    ask.req.id.idiag_dport = e->own_port;
    ask.req.id.idiag_cookie[0] = ask.req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (send(fd, &ask, sizeof ask, 0) == (ssize_t)sizeof ask)
        n = recv(fd, &answer, sizeof answer, 0);
    (void)close(fd);
    if (n < (ssize_t)sizeof(struct nlmsghdr))
        return false;
    if (answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY &&
        n >= (ssize_t)(NLMSG_HDRLEN + sizeof(struct inet_diag_msg))) {
        const struct inet_diag_msg *m = NLMSG_DATA(&answer.head);

        *uid = m->idiag_uid;
        /* A socket that its process has closed has no owner any more, and the kernel
         * reports uid 0 for it: taken at its word, anybody could pass for root. */
        *place = m->idiag_inode ? PEER_HERE : PEER_UNKNOWN;
        return true;
    }
    if (answer.head.nlmsg_type == NLMSG_ERROR &&
        n >= (ssize_t)(NLMSG_HDRLEN + sizeof(struct nlmsgerr))) {
        /* A kernel without tcp_diag reports ENOENT, too: see kernel_answers. */
        const int why = -((struct nlmsgerr *)NLMSG_DATA(&answer.head))->error;

        *place = why == ENOENT ? PEER_ELSEWHERE : PEER_UNKNOWN;
        return why == ENOENT;
    }
    return false;
}

/* An end as /proc/net/tcp shows it: 32-bit words in the machine's order, in hex. */
static void proc_text(const struct ends *e, const uint8_t ip[16], uint16_t port,
                      bool wide, char out[48])
{
    uint8_t mapped[16] = { [10] = 0xff, [11] = 0xff };
    uint32_t w[4];

    if (e->family == AF_INET && wide) {
        memcpy(mapped + 12, ip, 4);
        ip = mapped;
    }
    memcpy(w, ip, 16);
    if (wide)
        (void)snprintf(out, 48, "%08X%08X%08X%08X:%04X", w[0], w[1], w[2], w[3],
                       ntohs(port));
    else
        (void)snprintf(out, 48, "%08X:%04X", w[0], ntohs(port));
}

static enum peer_place peer_look_up(const char *path, const struct ends *e, bool wide,
                                    uid_t *uid)
{
    char line[512], peer[48], own[48], from[48], to[48];
    enum peer_place place = PEER_ELSEWHERE;
    FILE *f = fopen(path, "re");
    unsigned long inode;
    unsigned who;

    if (!f)
        return PEER_UNKNOWN;
    proc_text(e, e->peer, e->peer_port, wide, peer);
    proc_text(e, e->own, e->own_port, wide, own);
    while (place == PEER_ELSEWHERE && fgets(line, sizeof line, f))
        if (sscanf(line, "%*s %47s %47s %*s %*s %*s %*s %u %*s %lu", from, to, &who,
                   &inode) == 4 &&
            strcmp(from, peer) == 0 && strcmp(to, own) == 0) {
            *uid = who;
            place = inode ? PEER_HERE : PEER_UNKNOWN;
        }
    (void)fclose(f);
    return place;
}

/* A kernel without tcp_diag finds no socket at all. To tell, ask for our own end, which
 * certainly exists. A kernel that found it once does not have to be asked again. */
static bool kernel_answers(const struct ends *e)
{
    static bool answers;
    struct ends own = *e;
    enum peer_place place;
    uid_t uid;

    if (__atomic_load_n(&answers, __ATOMIC_RELAXED))
        return true;
    memcpy(own.peer, e->own, 16);
    memcpy(own.own, e->peer, 16);
    own.peer_port = e->own_port;
    own.own_port = e->peer_port;
    if (!ask_kernel(&own, &place, &uid) || place != PEER_HERE)
        return false;
    __atomic_store_n(&answers, true, __ATOMIC_RELAXED);
    return true;
}

static enum peer_place find_owner(const struct ends *e, uid_t *uid)
{
    enum peer_place place;

    /* The files come last: they list all sockets of the machine, which may be slow. */
    if (ask_kernel(e, &place, uid) && (place != PEER_ELSEWHERE || kernel_answers(e)))
        return place;
    place = peer_look_up("/proc/net/tcp6", e, true, uid);
    if (place == PEER_ELSEWHERE && e->family == AF_INET)
        place = peer_look_up("/proc/net/tcp", e, false, uid);
    return place;
}

enum peer_place peer_uid(int fd, uid_t *uid)
{
    struct ends e;
    enum peer_place place;

    if (!find_ends(fd, &e))
        return PEER_UNKNOWN;
    place = find_owner(&e, uid);
    /* The peer may also be missing because it was here and has reset the connection
     * meanwhile; then our own end is not connected any more. */
    return place == PEER_ELSEWHERE && !find_ends(fd, &e) ? PEER_UNKNOWN : place;
}
