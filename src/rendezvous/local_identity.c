/* local_identity.c - see local_identity.h. Called from threads too. */
#include "rendezvous/local_identity.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/file.h"
#include "net/core/hosts_file.h"
#include "net/read_interfaces.h"

void rdzv_hostname(char *out, size_t size)
{
    if (gethostname(out, size) != 0 || !out[0])
        (void)snprintf(out, size, "localhost");
    out[size - 1] = '\0';
}

/* Two handlers of one process are two nodes, so the count is the process's. */
int64_t rdzv_next_local_id(void)
{
    static _Atomic int64_t ids;

    return atomic_fetch_add(&ids, 1);
}

/* Whether an address of the endpoint is ours. As in torch, 0.0.0.0 and :: are nobody's
 * address. */
static bool is_ours(struct rdzv_local *q, const struct sockaddr *sa, const char *says)
{
    char text[INET6_ADDRSTRLEN] = "?", name[INTERFACE_NAME];
    uint8_t ip[16];

    (void)inet_ntop(
        sa->sa_family,
        sa->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)sa)->sin_addr,
        text, sizeof text);
    if (ip_of_sockaddr(sa, ip) && ip_is_loopback(ip)) {
        (void)snprintf(q->why, sizeof q->why, "%s is a loopback address%s", text, says);
        return true;
    }
    if (interface_here(sa, name)) {
        (void)snprintf(q->why, sizeof q->why,
                       "%s belongs to this machine's interface %s%s", text, name, says);
        return true;
    }
    return false;
}

static bool numeric(struct rdzv_local *q)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
    const struct sockaddr *sa = NULL;

    if (inet_pton(AF_INET, q->host, &v4.sin_addr) == 1)
        sa = (const struct sockaddr *)&v4;
    else if (inet_pton(AF_INET6, q->host, &v6.sin6_addr) == 1)
        sa = (const struct sockaddr *)&v6;
    else
        return false;
    q->is_local = is_ours(q, sa, "");
    if (!q->is_local)
        (void)snprintf(q->why, sizeof q->why,
                       "none of this machine's interfaces has the address %.64s",
                       q->host);
    return true;
}

bool rdzv_local_quick(struct rdzv_local *q)
{
    char name[1025];

    q->is_local = false;
    q->why[0] = '\0';
    if (strcmp(q->host, "localhost") == 0) {
        q->is_local = true;
        (void)snprintf(q->why, sizeof q->why, "the endpoint is localhost");
        return true;
    }
    if (numeric(q))
        return true;
    rdzv_hostname(name, sizeof name);
    if (strcasecmp(q->host, name) == 0) {
        q->is_local = true;
        (void)snprintf(q->why, sizeof q->why, "%.128s is this machine's host name",
                       name);
        return true;
    }
    return false;
}

void rdzv_local_resolve(void *arg)
{
    struct rdzv_local *q = arg;
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(q->host, NULL, &hints, &list);
    char says[160];

    if (rc != 0) {
        (void)snprintf(q->why, sizeof q->why, "%.100s does not resolve (%s)", q->host,
                       gai_strerror(rc));
        return;
    }
    (void)snprintf(says, sizeof says, ", which %.100s resolves to", q->host);
    for (struct addrinfo *a = list; a && !q->is_local; a = a->ai_next)
        q->is_local = is_ours(q, a->ai_addr, says);
    if (!q->is_local)
        (void)snprintf(q->why, sizeof q->why,
                       "no address of %.100s belongs to this machine", q->host);
    freeaddrinfo(list);
}

/* Reads a file. Returns its length, or 0 if it cannot be read or does not fit. */
static size_t read_file(const char *path, char *to, size_t room)
{
    const ssize_t n = file_read(path, to, room);

    return n > 0 && (size_t)n < room - 1 ? (size_t)n : 0;
}

void rdzv_log_nameless(const struct log *t, const char *name, const char *addr)
{
    log_line(t, LOG_WARN, AT_ADVICE,
             "this machine's name '%s' does not resolve, so MASTER_ADDR is '%s' "
             "(--local-addr=ADDR changes that)",
             name, addr);
}

bool rdzv_fqdn_quick(struct rdzv_fqdn *f)
{
    /* Not on the stack: nothing else uses so much of it, and the pages would stay
     * resident. */
    struct {
        char order[4096], hosts[16384], name[sizeof f->name];
    } *room = mem_alloc(sizeof *room);

    f->resolves = false;
    if (!room)
        return false;
    const size_t order_n =
        read_file("/etc/nsswitch.conf", room->order, sizeof room->order);
    const size_t hosts_n =
        order_n ? read_file("/etc/hosts", room->hosts, sizeof room->hosts) : 0;

    rdzv_hostname(room->name, sizeof room->name);
    f->resolves =
        hosts_fqdn(span_of(room->order, order_n), span_of(room->hosts, hosts_n),
                   room->name, f->name, sizeof f->name);
    mem_free(room);
    return f->resolves;
}

/* The first of the canonical name and the aliases that has a dot. */
static void take_name(struct rdzv_fqdn *f, const struct hostent *he)
{
    const char *best = he->h_name;

    if (!strchr(best, '.')) {
        for (char **alias = he->h_aliases; alias && *alias; alias++) {
            if (strchr(*alias, '.')) {
                best = *alias;
                break;
            }
        }
    }
    if (*best)
        (void)snprintf(f->name, sizeof f->name, "%s", best);
}

void rdzv_fqdn_resolve(void *arg)
{
    struct rdzv_fqdn *f = arg;
    const struct addrinfo hints = { .ai_socktype = SOCK_DGRAM };
    struct addrinfo *list = NULL;
    struct hostent he, *found = NULL;
    char room[8192];
    int why;

    rdzv_hostname(f->name, sizeof f->name);
    f->resolves = getaddrinfo(f->name, NULL, &hints, &list) == 0 && list;
    if (!f->resolves)
        return;
    const struct sockaddr *sa = list->ai_addr;
    const void *addr =
        sa->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)sa)->sin_addr;

    if (gethostbyaddr_r(addr, sa->sa_family == AF_INET6 ? 16 : 4, sa->sa_family, &he,
                        room, sizeof room, &found, &why) == 0 &&
        found && found->h_name)
        take_name(f, found);
    freeaddrinfo(list);
}
