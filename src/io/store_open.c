/* store_open.c - the beginning and the end of a store server; see store_server.h. */
#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/store_hosts.h"
#include "io/store_server_int.h"

#define FIRST_BYTES_MS 30000u
#define MAX_BYTES      (256u << 20) /* of a request, and of unread answers */

void store_server_opts_init(struct store_server_opts *o)
{
    *o = (struct store_server_opts){ .fd = -1 };
}

static void set_defaults(struct store_server *s, const struct store_server_opts *opts)
{
    s->opts = *opts;
    s->opts.bind = NULL; /* Not needed any more, and not ours to keep. */
    if (!s->opts.first_bytes_ms)
        s->opts.first_bytes_ms = FIRST_BYTES_MS;
    if (!s->opts.max_input)
        s->opts.max_input = MAX_BYTES;
    if (!s->opts.max_output)
        s->opts.max_output = MAX_BYTES;
    while (!s->opts.seed)
        if (getrandom(&s->opts.seed, sizeof s->opts.seed, 0) < 0)
            s->opts.seed = (uint64_t)(uintptr_t)s ^ uv_hrtime();
}

static void release(struct store_server *s)
{
    if (s->epoll >= 0)
        (void)close(s->epoll);
    if (s->listener >= 0)
        (void)close(s->listener);
    hosts_free(s);
    store_free(s->store);
    store_fx_fini(&s->fx);
    buf_fini(&s->out);
    buf_fini(&s->one);
    mem_free(s->conns);
    mem_free(s->numbers);
    mem_free(s->shared);
    mem_free(s);
}

static int take_memory(struct store_server *s, struct muster_error *err)
{
    buf_init(&s->out, s->opts.max_output);
    buf_init(&s->one, s->opts.max_output);
    store_fx_init(&s->fx);
    s->shared = mem_alloc(SHARED_SIZE);
    s->store = store_new(s->opts.seed, s->opts.max_output);
    return s->shared && s->store ? 0 : err_nomem(err);
}

static int watch_listener(struct store_server *s, struct muster_error *err)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = s };
    int rc;

    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &ev) < 0)
        return err_set(err, MUSTER_EIO, "cannot watch sockets: %s", strerror(errno));
    rc = uv_poll_init(s->loop, &s->poll, s->epoll);
    if (rc < 0)
        return err_set(err, MUSTER_EIO, "cannot watch sockets: %s", uv_strerror(rc));
    return 0;
}

int store_server_open(uv_loop_t *loop, const struct store_server_opts *opts,
                      struct store_server **out, struct muster_error *err)
{
    const struct listen_opts lo = { opts->bind, opts->port, opts->fd, opts->backlog };
    struct store_server *s = mem_calloc(1, sizeof *s);
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof a;
    int rc;

    if (!s)
        return err_nomem(err);
    s->loop = loop;
    s->epoll = s->listener = -1;
    set_defaults(s, opts);
    rc = take_memory(s, err);
    if (rc == 0)
        rc = listen_open(&lo, &s->listener, err);
    if (rc == 0)
        rc = watch_listener(s, err);
    if (rc < 0) {
        if (s->listener == opts->fd)
            s->listener = -1; /* Still the caller's. */
        release(s);
        return rc;
    }
    (void)getsockname(s->listener, (struct sockaddr *)&a, &n);
    address_text((struct sockaddr *)&a, s->address);
    s->port = address_port(&a);
    (void)uv_timer_init(loop, &s->timer);
    (void)uv_poll_start(&s->poll, UV_READABLE, server_on_events);
    *out = s;
    return 0;
}

uint16_t store_server_port(const struct store_server *s)
{
    return s->port;
}

const char *store_server_address(const struct store_server *s)
{
    return s->address;
}

size_t store_server_connections(const struct store_server *s)
{
    return s->count;
}

static void on_closed(uv_handle_t *handle)
{
    struct store_server *s = handle->data;
    void (*closed)(void *) = s->closed;
    void *ctx = s->closed_ctx;

    if (--s->closing)
        return;
    release(s);
    if (closed)
        closed(ctx);
}

void store_server_close(struct store_server *s, void (*cb)(void *ctx), void *ctx)
{
    assert(!s->closing);
    s->closed = cb;
    s->closed_ctx = ctx;
    /* Nobody is woken by another's end here: they all end. */
    for (size_t i = 0; i < s->conns_size; i++) {
        if (s->conns[i])
            conn_close(s, s->conns[i]);
    }
    conns_free(&s->leaving);
    conns_free(&s->gone);
    s->closing = 2;
    if (s->over)
        *s->over = true;
    s->poll.data = s->timer.data = s;
    uv_close((uv_handle_t *)&s->poll, on_closed);
    uv_close((uv_handle_t *)&s->timer, on_closed);
    if (s->hosts) {
        s->closing++;
        hosts_close(s, on_closed);
    }
}

/* Enough for 20,000 clients and then some. Only root may raise the hard limit. */
void store_server_allow_many(void)
{
    struct rlimit old, new;

    if (getrlimit(RLIMIT_NOFILE, &old) < 0 || old.rlim_cur >= STORE_SERVER_MANY)
        return;
    new.rlim_cur = STORE_SERVER_MANY;
    new.rlim_max = MAX_OF(old.rlim_max, new.rlim_cur);
    if (setrlimit(RLIMIT_NOFILE, &new) == 0)
        return;
    new.rlim_cur = new.rlim_max = old.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &new);
}
