/* store_tcp.c - opening a store over TCP: serve, connect, count the workers.
 *
 * It does as torch's TCPStore does: every store of a job adds one to "init/", and the
 * one that serves waits until all have. Where torch reads the number every 10 ms, we
 * wait on our own server for it to change. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/need.h"
#include "api/store_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "store/client.h"
#include "store/core/decimal.h"
#include "store/core/reserved.h"
#include "store/extension.h"

#define WORKERS_KEY "init/"

struct tcp_opening {
    struct blocking_loop_job job; /* first */
    const struct muster_store_options *options;
    struct home *home;
    struct async_store *client;
    int listen_fd; /* the server's copy of the caller's, or -1 */
    uint16_t port;
    uint64_t deadline_ms;
    int64_t joined;
    struct muster_store *out;
};

void muster_store_options_init(struct muster_store_options *o)
{
    if (!o)
        return;
    *o = (struct muster_store_options){ .timeout_ms = MUSTER_STORE_TIMEOUT_MS,
                                        .listen_fd = -1,
                                        .world_size = -1,
                                        .wait_for_workers = true };
}

static void tcp_fail(struct tcp_opening *o, const struct muster_error *err)
{
    store_undo(&o->job, o->client, err);
}

static void tcp_adopt(struct tcp_opening *o)
{
    struct muster_error err;

    if (store_adopt(o->home, o->client, NULL, o->options->timeout_ms, o->port, &o->out,
                    &err) < 0)
        tcp_fail(o, &err);
    else
        blocking_loop_done(&o->job, 0, NULL);
}

/* ---- counting the workers ---- */

static void read_count(struct tcp_opening *o);

static void too_late(struct tcp_opening *o)
{
    struct muster_error err;

    (void)err_set(&err, MUSTER_ETIMEDOUT,
                  "Timed out after %" PRIu64 " seconds waiting for clients. %" PRId64
                  "/%" PRId64 " clients joined: are all workers started, and can they "
                  "reach port %u of this host?",
                  (o->options->timeout_ms + 999) / 1000, o->joined,
                  o->options->world_size, o->port);
    tcp_fail(o, &err);
}

static void on_count_changed(void *ctx, int status, const struct c10d_reply *reply,
                             const struct muster_error *err)
{
    struct tcp_opening *o = ctx;

    (void)reply;
    if (status == MUSTER_ETIMEDOUT)
        too_late(o);
    else if (status < 0)
        tcp_fail(o, err);
    else
        read_count(o);
}

static void await_change(struct tcp_opening *o, struct span value)
{
    char key[sizeof RESERVED_CHANGED + 17 + sizeof WORKERS_KEY];
    struct muster_error err;
    struct buf list;
    struct c10d_request wait = { .op = C10D_WAIT };
    int rc;

    (void)snprintf(key, sizeof key, "%s%016" PRIx64 "/%s", RESERVED_CHANGED,
                   reserved_hash(value), WORKERS_KEY);
    buf_init(&list, SIZE_MAX);
    rc = c10d_list_add(&list, span_str(key));
    wait.list = (struct c10d_list){ buf_span(&list), 1 };
    rc = rc < 0 ? err_nomem(&err)
                : async_store_call(o->client, &wait, ASYNC_STORE_RAW,
                                   ms_left(o->deadline_ms, clock_mono_ms()),
                                   on_count_changed, o, &err);
    buf_fini(&list);
    if (rc < 0)
        tcp_fail(o, &err);
}

static void on_count(void *ctx, int status, const struct c10d_reply *reply,
                     const struct muster_error *why)
{
    struct tcp_opening *o = ctx;
    struct muster_error err;

    if (status < 0) {
        tcp_fail(o, why);
    } else if (!decimal_parse(reply->value, &o->joined)) {
        (void)err_set(&err, MUSTER_ESTATE,
                      "the store's count of workers is not a number");
        tcp_fail(o, &err);
    } else if (o->joined >= o->options->world_size) {
        tcp_adopt(o);
    } else if (ms_left(o->deadline_ms, clock_mono_ms()) == 0) {
        too_late(o);
    } else {
        await_change(o, reply->value);
    }
}

static void read_count(struct tcp_opening *o)
{
    const struct c10d_request get = { .op = C10D_GET, .key = span_str(WORKERS_KEY) };
    struct muster_error err;

    if (async_store_call(o->client, &get, ASYNC_STORE_RAW, o->options->timeout_ms,
                         on_count, o, &err) < 0)
        tcp_fail(o, &err);
}

static void on_counted_in(void *ctx, int status, const struct c10d_reply *reply,
                          const struct muster_error *err)
{
    struct tcp_opening *o = ctx;

    (void)reply;
    if (status < 0)
        tcp_fail(o, err);
    else if (o->options->serve)
        read_count(o);
    else
        tcp_adopt(o);
}

static void on_connected(void *ctx, int status, const struct muster_error *why)
{
    const struct c10d_request add = { .op = C10D_ADD,
                                      .key = span_str(WORKERS_KEY),
                                      .number = 1 };
    struct tcp_opening *o = ctx;
    struct muster_error err;

    if (status < 0)
        tcp_fail(o, why);
    else if (o->options->world_size < 0 || !o->options->wait_for_workers)
        tcp_adopt(o);
    else if (async_store_call(o->client, &add, ASYNC_STORE_RAW,
                              ms_left(o->deadline_ms, clock_mono_ms()), on_counted_in,
                              o, &err) < 0)
        tcp_fail(o, &err);
}

/* ---- serving and connecting ---- */

static void begin_serving(struct blocking_loop_job *job)
{
    struct tcp_opening *o = (struct tcp_opening *)job;
    struct store_server_opts server;
    struct muster_error err = { 0 };

    store_server_opts_init(&server);

    server.extension = &run_extension;
    server.bind = o->options->bind;
    server.port = o->options->port;
    server.fd = o->listen_fd;
    const int rc = store_server_open(blocking_loop_loop(o->home->serving), &server,
                                     &o->home->server, &err);
    if (rc == 0)
        o->port = store_server_port(o->home->server);
    else if (o->listen_fd >= 0)
        (void)close(o->listen_fd);
    blocking_loop_done(job, rc, &err);
}

/* The name by which this process connects to its own server. "[::1]" can be given as an
 * address to listen on, but is not a host name: the brackets are removed. */
static const char *own_host(const char *bind, char host[128])
{
    const size_t n = bind ? strlen(bind) : 0;

    if (n < 3 || n >= 128 || bind[0] != '[' || bind[n - 1] != ']')
        return bind ? bind : "127.0.0.1";
    (void)snprintf(host, 128, "%.*s", (int)n - 2, bind + 1);
    return host;
}

static void begin_connecting(struct blocking_loop_job *job)
{
    struct tcp_opening *o = (struct tcp_opening *)job;
    const struct muster_store_options *options = o->options;
    char host[128];
    const char *own = own_host(options->bind, host);
    const struct store_client_opts client = { .host =
                                                  options->host ? options->host : own,
                                              .port = o->port,
                                              .timeout_ms = options->timeout_ms };
    struct muster_error err;

    if (store_client_open(blocking_loop_loop(o->home->calls), &client, on_connected, o,
                          &o->client, &err) < 0)
        blocking_loop_done(job, err.code, &err);
}

/* The server closes the socket that it is given, also if opening the store fails. But
 * then the socket is still the caller's, so the server gets a copy. */
static int copy_listen_fd(struct tcp_opening *o, struct muster_error *err)
{
    const int fd = o->options->listen_fd;

    o->listen_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || o->listen_fd >= 0)
        return 0;
    return err_set(err, errno == EBADF ? MUSTER_EINVAL : MUSTER_EIO,
                   "cannot serve on listen_fd %d: %s", fd, strerror(errno));
}

static int tcp_open(struct tcp_opening *o, struct muster_error *err)
{
    int rc = 0;

    if (o->options->serve) {
        rc = blocking_loop_new(false, &o->home->serving, err);
        if (rc == 0)
            rc = copy_listen_fd(o, err);
        if (rc < 0)
            return rc;
        o->job.begin = begin_serving;
        rc = blocking_loop_call(o->home->serving, &o->job, err);
    }
    if (rc == 0) {
        o->job.begin = begin_connecting;
        rc = blocking_loop_call(o->home->calls, &o->job, err);
    }
    return rc;
}

static int check_options(const struct muster_store_options *o, struct muster_error *err)
{
    if (o->world_size == 0) /* torch checks this before the host, too. */
        return err_set(err, MUSTER_EINVAL, "TCPStore world size cannot be 0");
    if (!o->host && !o->serve)
        return err_set(err, MUSTER_EINVAL, "a TCP store needs the host of its server");
    if (o->port == 0 && !o->serve)
        return err_set(err, MUSTER_EINVAL, "a TCP store needs the port of its server");
    return 0;
}

int muster_store_open_tcp(const struct muster_store_options *options,
                          struct muster_store **out, struct muster_error *err)
{
    struct tcp_opening o = { .options = options };
    const uint64_t now = clock_mono_ms();
    int rc = need(options, "options", err);

    if (rc == 0)
        rc = need(out, "out", err);
    if (rc == 0)
        rc = check_options(options, err);

    if (rc == 0)
        rc = home_new(true, &o.home, err);
    if (rc < 0)
        return rc;
    o.port = options->port;
    o.deadline_ms =
        options->timeout_ms < MONO_NEVER - now ? now + options->timeout_ms : MONO_NEVER;
    rc = tcp_open(&o, err);
    if (rc < 0) {
        home_free(o.home);
        return rc;
    }
    if (options->serve && options->listen_fd >= 0)
        (void)close(options->listen_fd);
    *out = o.out;
    return 0;
}
