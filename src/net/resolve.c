/* resolve.c - host names to addresses, off the loop; see resolve.h.
 *
 * The thread and the loop share a struct lookup under its lock; whoever lets go last
 * frees it. The thread may touch the loop's async handle only while `owner` is set. */
#include "net/resolve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>

#include "base/err.h"
#include "base/mem.h"

struct lookup {
    pthread_mutex_t lock;
    int refs;
    struct resolve *owner; /* borrowed; NULL once nobody waits */
    char *host;            /* owned */
    uint16_t port;
    int gai, sys; /* what getaddrinfo said, and errno */
    struct sockaddr_storage addrs[RESOLVE_MAX];
    size_t count;
};

struct resolve {
    uv_async_t async;
    struct lookup *shared; /* owned: one reference */
    resolve_cb cb;
    void *ctx; /* borrowed */
};

static void let_go(struct lookup *l)
{
    pthread_mutex_lock(&l->lock);
    const bool last = --l->refs == 0;
    pthread_mutex_unlock(&l->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&l->lock);
    mem_free(l->host);
    mem_free(l);
}

static void take_addresses(struct lookup *l, const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a && l->count < RESOLVE_MAX; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memcpy(&l->addrs[l->count], a->ai_addr, a->ai_addrlen);
        l->count++;
    }
}

static void *look_up(void *arg)
{
    struct lookup *l = arg;
    /* No AI_ADDRCONFIG: on a host without a network, localhost must still be found. */
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_NUMERICSERV };
    struct addrinfo *list = NULL;
    char service[8];

    (void)snprintf(service, sizeof service, "%u", l->port);
    const int gai = getaddrinfo(l->host, service, &hints, &list);
    const int sys = errno;

    pthread_mutex_lock(&l->lock);
    l->gai = gai;
    l->sys = sys;
    if (gai == 0)
        take_addresses(l, list);
    if (l->owner)
        (void)uv_async_send(&l->owner->async);
    pthread_mutex_unlock(&l->lock);
    if (list)
        freeaddrinfo(list);
    let_go(l);
    return NULL;
}

/* Signals are the loop's thread's business. */
static int start_thread(struct lookup *l)
{
    pthread_attr_t attr;
    sigset_t all, old;
    pthread_t thread;

    if (pthread_attr_init(&attr) != 0)
        return -1;
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    l->refs++;
    const int rc = pthread_create(&thread, &attr, look_up, l);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_attr_destroy(&attr);
    if (rc != 0)
        l->refs--; /* No thread: nobody else looks yet. */
    return rc == 0 ? 0 : -1;
}

static void resolve_on_closed(uv_handle_t *handle)
{
    struct resolve *r = handle->data;

    let_go(r->shared);
    mem_free(r);
}

static void detach(struct resolve *r)
{
    pthread_mutex_lock(&r->shared->lock);
    r->shared->owner = NULL;
    pthread_mutex_unlock(&r->shared->lock);
    uv_close((uv_handle_t *)&r->async, resolve_on_closed);
}

static void on_found(uv_async_t *async)
{
    struct resolve *r = async->data;
    struct lookup *l = r->shared;
    struct muster_error err = { 0 };

    detach(r); /* From here the thread is done with l, or there never was one. */
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
    r->cb(r->ctx, err.code, l->addrs, l->count, err.code ? &err : NULL);
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

/* Numeric addresses; and localhost, which RFC 6761 lets nobody else define, in both
 * families, whatever the hosts file lacks. */
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
    struct resolve *r = mem_calloc(1, sizeof *r);
    struct lookup *l = mem_calloc(1, sizeof *l);
    char *copy = mem_strdup(host);

    if (!r || !l || !copy || uv_async_init(loop, &r->async, on_found) < 0) {
        mem_free(r);
        mem_free(l);
        mem_free(copy);
        return err_nomem(err);
    }
    (void)pthread_mutex_init(&l->lock, NULL);
    l->refs = 1;
    l->owner = r;
    l->host = copy;
    l->port = port;
    r->async.data = r;
    r->shared = l;
    r->cb = cb;
    r->ctx = ctx;
    if (known_without_asking(l)) {
        (void)uv_async_send(&r->async);
    } else if (start_thread(l) < 0) {
        detach(r);
        return err_set(err, MUSTER_ENOMEM,
                       "no thread to resolve %s: the limit of processes is reached",
                       host);
    }
    *out = r;
    return 0;
}

void resolve_cancel(struct resolve *r)
{
    if (r)
        detach(r);
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
