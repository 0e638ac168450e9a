/* resolve.c - host names to addresses, off the loop; see resolve.h. blocking_call
 * starts and ends the thread; this file has what the thread does, and the lookups that
 * need none. */
#include "net/resolve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <strings.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/blocking_call.h"
#include "loop/defer.h"

/* What the thread works on: one allocation that changes hands. */
struct lookup {
    uint16_t port;
    int gai, sys; /* what getaddrinfo said, and errno */
    struct sockaddr_storage addrs[RESOLVE_MAX];
    size_t count;
    char host[];
};

struct resolve {
    struct defer defer;         /* for lookups that need no resolver */
    struct blocking_call *call; /* owned; NULL: no thread, or it has finished */
    struct lookup *known;       /* owned; NULL: a thread has it */
    resolve_cb cb;
    void *ctx; /* borrowed */
};

static void take_addresses(struct lookup *l, const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a && l->count < RESOLVE_MAX; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memcpy(&l->addrs[l->count], a->ai_addr, a->ai_addrlen);
        l->count++;
    }
}

static void resolve_look_up(void *arg)
{
    struct lookup *l = arg;
    /* No AI_ADDRCONFIG: on a host without a network, localhost must still be found. */
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_NUMERICSERV };
    struct addrinfo *list = NULL;
    char service[8];

    (void)snprintf(service, sizeof service, "%u", l->port);
    l->gai = getaddrinfo(l->host, service, &hints, &list);
    l->sys = errno;
    if (l->gai == 0)
        take_addresses(l, list);
    if (list)
        freeaddrinfo(list);
}

static void resolve_on_closed(uv_handle_t *handle)
{
    struct resolve *r = handle->data;

    mem_free(r->known);
    mem_free(r);
}

void resolve_cancel(struct resolve *r)
{
    if (!r)
        return;
    blocking_call_cancel(r->call);
    r->defer.idle.data = r;
    uv_close((uv_handle_t *)&r->defer.idle, resolve_on_closed);
}

static void resolve_finish(struct resolve *r, const struct lookup *l)
{
    struct muster_error err = { 0 };

    if (l->gai == EAI_MEMORY)
        (void)err_nomem(&err);
    else if (l->gai == EAI_SYSTEM)
        (void)err_set(&err, MUSTER_ERESOLVE, "the name %s does not resolve: %s",
                      l->host, strerror(l->sys));
    else if (l->gai != 0)
        (void)err_set(&err, MUSTER_ERESOLVE, "the name %s does not resolve: %s",
                      l->host, gai_strerror(l->gai));
    else if (l->count == 0)
        (void)err_set(&err, MUSTER_ERESOLVE, "the name %s has no address", l->host);
    resolve_cancel(r); /* It is freed only in the loop's next turn. */
    r->cb(r->ctx, err.code, l->addrs, l->count, err.code ? &err : NULL);
}

static void on_known(void *ctx)
{
    struct resolve *r = ctx;

    resolve_finish(r, r->known);
}

static void on_looked_up(void *ctx, void *data)
{
    struct resolve *r = ctx;

    r->call = NULL; /* blocking_call has freed it. */
    resolve_finish(r, data);
}

bool resolve_numeric(const char *host, uint16_t port, struct sockaddr_storage *out)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    *out = (struct sockaddr_storage){ 0 };
    if (uv_ip4_addr(host, port, &v4) == 0) {
        memcpy(out, &v4, sizeof v4);
        return true;
    }
    if (uv_ip6_addr(host, port, &v6) == 0) {
        memcpy(out, &v6, sizeof v6);
        return true;
    }
    return false;
}

/* Numeric addresses need no resolver. Neither does localhost: RFC 6761 reserves it, and
 * a hosts file may lack one of the two families. */
static bool known_without_asking(struct lookup *l)
{
    if (strcasecmp(l->host, "localhost") == 0) {
        (void)resolve_numeric("::1", l->port, &l->addrs[0]);
        (void)resolve_numeric("127.0.0.1", l->port, &l->addrs[1]);
        l->count = 2;
        return true;
    }
    l->count = resolve_numeric(l->host, l->port, &l->addrs[0]);
    return l->count > 0;
}

int resolve_start(uv_loop_t *loop, const char *host, uint16_t port, resolve_cb cb,
                  void *ctx, struct resolve **out, struct muster_error *err)
{
    const size_t size = strlen(host) + 1;
    struct resolve *r = mem_calloc(1, sizeof *r);
    struct lookup *l = mem_calloc(1, sizeof *l + size);
    int rc = 0;

    if (!r || !l) {
        mem_free(r);
        mem_free(l);
        return err_nomem(err);
    }
    memcpy(l->host, host, size);
    l->port = port;
    r->cb = cb;
    r->ctx = ctx;
    defer_init(&r->defer, loop, on_known, r);
    if (known_without_asking(l)) {
        r->known = l;
        defer_call(&r->defer);
    } else {
        rc = blocking_call_run(loop, resolve_look_up, l, MONO_NEVER, on_looked_up, r,
                               &r->call, err);
    }
    if (rc < 0) {
        r->known = l;
        resolve_cancel(r);
        return err_wrap(err, "resolving %s", host);
    }
    *out = r;
    return 0;
}

void address_text(const struct sockaddr *sa, char out[ADDRESS_TEXT])
{
    char ip[64] = "?";
    unsigned port = 0;
    bool v6 = false;

    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)sa;

        (void)uv_ip4_name(v4, ip, sizeof ip);
        port = ntohs(v4->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)sa;

        v6 = !IN6_IS_ADDR_V4MAPPED(&a->sin6_addr);
        if (v6)
            (void)uv_ip6_name(a, ip, sizeof ip);
        else
            (void)uv_inet_ntop(AF_INET, &a->sin6_addr.s6_addr[12], ip, sizeof ip);
        port = ntohs(a->sin6_port);
    }
    (void)snprintf(out, ADDRESS_TEXT, v6 ? "[%s]:%u" : "%s:%u", ip, port);
}

void endpoint_text(const char *host, uint16_t port, char out[ENDPOINT_TEXT])
{
    (void)snprintf(out, ENDPOINT_TEXT, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
                   port);
}
