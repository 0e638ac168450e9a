/* bind_address.c - see bind_address.h. */
#include "net/bind_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/mem.h"
#include "loop/blocking_call.h"
#include "net/core/bind_rule.h"
#include "net/read_interfaces.h"

#define LOOKUP_MS 1000u /* a slower name service counts as unavailable */

struct bind_lookup {
    struct blocking_call *call; /* owned while it runs */
    struct bind_address ask;    /* the result if the resolver does not answer */
    bind_address_cb cb;
    void *ctx;
};

static bool is_loopback(const struct sockaddr *sa)
{
    uint8_t ip[16];

    return ip_of_sockaddr(sa, ip) && ip_is_loopback(ip);
}

bool address_on_this_machine(const struct sockaddr *sa)
{
    return is_loopback(sa) || interface_here(sa, NULL);
}

/* A link-local address is useless without its interface. */
static bool is_link_local(const struct sockaddr *sa)
{
    return sa->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(
               &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr);
}

static void bind_put_address(const struct sockaddr *sa, char *out, size_t size)
{
    if (getnameinfo(sa,
                    sa->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                             : sizeof(struct sockaddr_in6),
                    out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
}

/* Takes one address of the host into account. The first of ours that is not a loopback
 * address counts, but IPv4 before IPv6: a client that gets both tries both. */
static void weigh(struct bind_view *v, const struct sockaddr *sa, char *addr,
                  size_t size)
{
    if (is_loopback(sa)) {
        v->loopback = true;
        if (!v->found && !addr[0])
            bind_put_address(sa, addr, size);
        return;
    }
    if (is_link_local(sa) || !address_on_this_machine(sa) ||
        (v->found && sa->sa_family == AF_INET6))
        return;
    if (v->found && !strchr(addr, ':'))
        return;
    v->found = true;
    bind_put_address(sa, addr, size);
}

static void bind_conclude(struct bind_address *b, struct bind_view *v)
{
    const char *why;

    v->many = b->many;
    v->private_name = b->private_name;
    switch (bind_rule(v, &why)) {
    case BIND_FOUND:
        break;
    case BIND_LOOPBACK:
        if (!b->addr[0] || strcmp(b->addr, "127.0.0.1") == 0)
            (void)snprintf(b->addr, sizeof b->addr, BIND_LOCALHOST);
        break;
    case BIND_ALL:
        b->addr[0] = '\0';
        break;
    }
    (void)snprintf(b->why, sizeof b->why, "%s", why);
}

static bool find_without_resolver(struct bind_address *b)
{
    struct bind_view v = { .numeric = true };
    struct sockaddr_in v4 = { .sin_family = AF_INET };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };

    if (strcasecmp(b->host, "localhost") == 0 || !b->host[0])
        v.loopback = true;
    else if (inet_pton(AF_INET, b->host, &v4.sin_addr) == 1)
        weigh(&v, (const struct sockaddr *)&v4, b->addr, sizeof b->addr);
    else if (inet_pton(AF_INET6, b->host, &v6.sin6_addr) == 1)
        weigh(&v, (const struct sockaddr *)&v6, b->addr, sizeof b->addr);
    else
        return false;
    bind_conclude(b, &v);
    return true;
}

static void bind_resolve(void *arg)
{
    struct bind_address *b = arg;
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    struct bind_view v = { .many = b->many };

    if (getaddrinfo(b->host, NULL, &hints, &list) == 0) {
        for (const struct addrinfo *a = list; a; a = a->ai_next)
            if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
                weigh(&v, a->ai_addr, b->addr, sizeof b->addr);
        freeaddrinfo(list);
    }
    bind_conclude(b, &v);
}

static void bind_on_resolved(void *ctx, void *data)
{
    struct bind_lookup *l = ctx;
    const bind_address_cb cb = l->cb;
    void *cb_ctx = l->ctx;
    struct bind_address at = l->ask;

    if (data)
        at = *(const struct bind_address *)data;
    mem_free(l);
    cb(cb_ctx, &at);
}

void bind_address_find(uv_loop_t *loop, const struct bind_ask *ask, bind_address_cb cb,
                       void *ctx, struct bind_lookup **out)
{
    struct bind_address b = { .many = ask->many,
                              .private_name = ask->private_name ||
                                              getenv("KUBERNETES_SERVICE_HOST") };
    struct bind_lookup *l;
    struct bind_address *job;

    *out = NULL;
    (void)snprintf(b.host, sizeof b.host, "%s", ask->host);
    if (ask->asked && *ask->asked) {
        if (strcmp(ask->asked, "all") != 0)
            (void)snprintf(b.addr, sizeof b.addr, "%.63s", ask->asked);
        b.asked = true;
        (void)snprintf(b.why, sizeof b.why, "bind=%.100s asks for it", ask->asked);
        cb(ctx, &b);
        return;
    }
    if (find_without_resolver(&b)) {
        cb(ctx, &b);
        return;
    }
    (void)snprintf(b.why, sizeof b.why, "the resolver did not answer for %.100s",
                   b.host);
    l = mem_calloc(1, sizeof *l);
    job = mem_memdup(&b, sizeof b);
    if (l)
        *l = (struct bind_lookup){ .ask = b, .cb = cb, .ctx = ctx };
    if (!l || !job ||
        blocking_call_run(loop, bind_resolve, job, LOOKUP_MS, bind_on_resolved, l,
                          &l->call, NULL) < 0) {
        mem_free(l);
        mem_free(job);
        cb(ctx, &b);
        return;
    }
    *out = l;
}

void bind_address_cancel(struct bind_lookup *l)
{
    if (!l)
        return;
    blocking_call_cancel(l->call);
    mem_free(l);
}

const char *bind_address_text(const struct bind_address *at)
{
    return at->addr[0] ? at->addr : NULL;
}

void bind_address_log(const struct log *t, const char *what, const char *where,
                      const struct bind_address *at)
{
    if (!at->addr[0] && !at->asked)
        log_line(t, LOG_WARN, AT_ADVICE,
                 "%s listens on every address of this machine (%s): %s. "
                 "--rdzv-conf=bind=ADDR narrows it",
                 what, where, at->why);
    else
        log_line(t, LOG_INFO, AT_RENDEZVOUS, "%s listens on %s: %s", what, where,
                 at->why);
}
