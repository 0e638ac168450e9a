/* static.c - the static rendezvous, as torch's: everybody knows its rank and where rank
 * 0 is. No rounds, no membership; the agents' store is the workers' store, too.
 *
 * Nodes count themselves in by rendezvous/core/count_in.c. A next() that failed must
 * leave nobody counted twice: rank 0's server ends with it, as torch's does, and the
 * others know by their token whether they have counted. */
#include "base/err.h"
#include "base/mem.h"
#include "base/py/text.h"
#include "loop/clock.h"
#include "net/bind_address.h"
#include "rendezvous/coordinator_driver.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/count_in.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/handler.h"
#include "rendezvous/registry.h"
#include "rendezvous/secured.h"
#include "store/client.h"
#include "store/server.h"
#include "store/talk_driver.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

struct static_handler {
    struct rdzv_handler base;
    const struct trace *trace; /* borrowed */
    char *run_id;              /* owned */
    struct endpoint at;
    int64_t rank, world;
    uint64_t timeout_ms, by_ms;

    struct auth *auth;            /* a reference, or NULL */
    char *bind;                   /* owned; rdzv-conf bind, or empty */
    struct bind_address at_home;  /* where our server listens */
    struct bind_lookup *binding;  /* owned while it runs */
    struct store_server *server;  /* owned; rank 0 */
    struct async_store *store;    /* owned */
    struct async_store *counter;  /* owned: the connection for init/ */
    struct async_store *prefixed; /* owned */
    struct count_in count;        /* decides who is here */
    struct talk_driver *counting; /* owned while it runs */
    bool ready, destroying;
    bool ending; /* our server: its port is free again before anything is told */
    struct rdzv_round round;
    rdzv_next_cb next_cb;
    void *next_ctx;
    uv_timer_t deferred;
    struct muster_error why; /* of a failure that is told from the loop; code 0: none */
    struct {
        rdzv_done_cb cb;
        void *ctx;
    } done[3]; /* set_closed, leave, shutdown: told from the loop */
    size_t refs;
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

static const struct rdzv_handler_ops static_ops;

static void fixed_defer(struct static_handler *f); /* what there is to tell */
static void fixed_drop(struct static_handler *f, struct async_store **s);
static void fixed_end_server(struct static_handler *f);
static void fixed_release(struct static_handler *f);

static void fixed_stop_counting(struct static_handler *f)
{
    talk_driver_close(f->counting);
    f->counting = NULL;
}

static void fixed_fail(struct static_handler *f, const struct muster_error *err)
{
    err_copy(&f->why, err);
    fixed_stop_counting(f);
    fixed_drop(f, &f->counter);
    fixed_drop(f, &f->prefixed);
    fixed_drop(f, &f->store);
    fixed_end_server(f);
    fixed_defer(f);
}

static void all_here(struct static_handler *f)
{
    fixed_stop_counting(f);
    fixed_drop(f, &f->counter);
    f->round = (struct rdzv_round){ .rank = f->rank,
                                    .world_size = f->world,
                                    .store = f->prefixed,
                                    .master_addr = f->at.host,
                                    .master_port = (uint16_t)f->at.port };
    f->ready = true;
    fixed_defer(f);
}

/* ---- Counting in ---- */

/* A connection that was dropped tells its last calls so, perhaps only when another
 * next() is under way. */
static bool is_over(const struct static_handler *f, int status)
{
    return f->destroying || status == MUSTER_ECANCELED;
}

static void fixed_on_counted(void *ctx, const struct talk_fx *fx)
{
    struct static_handler *f = ctx;
    struct muster_error err;

    if (fx->kind == TALK_DONE) {
        all_here(f);
        return;
    }
    err_copy(&err, &fx->err);
    if (err.code != MUSTER_ETIMEDOUT)
        (void)err_wrap(&err, "static rendezvous at %s:%d", f->at.host, (int)f->at.port);
    fixed_fail(f, &err);
}

static void fixed_count(struct static_handler *f)
{
    struct muster_error err;

    talk_fini(&f->count.talk);
    talk_init(&f->count.talk);
    f->count.timeout_ms = f->timeout_ms;
    if (talk_driver_open(f->counter, &f->count.talk, count_in_step, fixed_on_counted, f,
                         &f->counting, &err) < 0)
        fixed_fail(f, &err);
}

static void no_reply(void *ctx, int status, const struct c10d_reply *reply,
                     const struct muster_error *err)
{
    (void)ctx; /* The key is of no use to anybody, and does no harm. */
    (void)status;
    (void)reply;
    (void)err;
}

/* We shall not count again. */
static void fixed_take_token(struct static_handler *f)
{
    const struct c10d_request req = { .op = C10D_DELETE_KEY,
                                      .key = span_str(f->count.token) };

    if (f->count.tried)
        (void)async_store_call(f->store, &req, ASTORE_RAW, 1000, no_reply, NULL, NULL);
    f->count.tried = false;
}

/* ---- Connecting ---- */

static void on_open(void *ctx, int status, const struct muster_error *err)
{
    struct static_handler *f = ctx;
    struct muster_error e;

    if (is_over(f, status))
        return;
    if (status == 0) {
        fixed_count(f);
        return;
    }
    err_copy(&e, err);
    if (status == MUSTER_ETIMEDOUT || status == MUSTER_EREFUSED)
        (void)err_wrap(&e,
                       "The client socket has timed out after %" PRIu64
                       "ms while trying to connect to (%s, %d)",
                       f->timeout_ms, f->at.host, (int)f->at.port);
    e.code = MUSTER_ECONN;
    fixed_fail(f, &e);
}

static void no_matter(void *ctx, int status, const struct muster_error *err)
{
    (void)ctx;
    (void)status;
    (void)err;
}

static int serve(struct static_handler *f, struct muster_error *err)
{
    struct store_server_opts opts;
    int rc;

    if (f->rank != 0 || f->server)
        return 0;
    store_server_opts_init(&opts);
    opts.tenant = &coordinator_tenant;
    opts.bind = bind_address_text(&f->at_home);
    opts.auth = f->auth;
    opts.port = (uint16_t)f->at.port;
    opts.trace = f->trace;
    rc = store_server_open(f->base.loop, &opts, &f->server, err);
    if (rc < 0) {
        (void)err_wrap(err,
                       "The server socket has failed to listen on any local network "
                       "address. port: %d",
                       (int)f->at.port);
        return rc;
    }
    f->at.port = store_server_port(f->server);
    bind_address_log(f->trace, "the static rendezvous", store_server_address(f->server),
                     &f->at_home);
    if (f->world > 1)
        rdzv_say_secret(f->trace, f->auth);
    return 0;
}

static void fixed_connect(struct static_handler *f)
{
    struct store_client_opts opts = {
        .host = f->at.host,
        .timeout_ms = f->timeout_ms,
        .auth = f->auth,
        .trace = f->trace,
    };
    struct muster_error err;
    int rc = serve(f, &err);

    f->count.here = 0;
    f->by_ms = clock_mono_ms() + f->timeout_ms;
    opts.port = (uint16_t)f->at.port;
    if (f->server)
        opts.host = store_server_own_host(f->server);
    if (rc == 0)
        rc = store_client_open(f->base.loop, &opts, no_matter, f, &f->store, &err);
    if (rc == 0)
        rc = async_store_prefix(f->store, f->run_id, false, &f->prefixed, &err);
    opts.raw_keys = true;
    if (rc == 0)
        rc = store_client_open(f->base.loop, &opts, on_open, f, &f->counter, &err);
    if (rc < 0)
        fixed_fail(f, &err);
}

static void fixed_on_bind_address(void *ctx, const struct bind_address *at)
{
    struct static_handler *f = ctx;

    f->binding = NULL;
    f->at_home = *at;
    fixed_connect(f);
}

static void fixed_begin(struct static_handler *f)
{
    const struct bind_ask ask = {
        .asked = f->bind, .host = f->at.host, .many = f->world > 1, .own_word = true
    };

    if (f->rank == 0 && !f->server)
        bind_address_find(f->base.loop, &ask, fixed_on_bind_address, f, &f->binding);
    else
        fixed_connect(f);
}

/* ---- Parameters ---- */

static int read_params(struct static_handler *f, const struct rdzv_params *p,
                       struct muster_error *err)
{
    int64_t seconds;
    uint64_t nonce;
    int rc;

    if (!conf_given(p, CONF_RANK))
        return err_set(err, MUSTER_EINVAL,
                       "rank is absent in RendezvousParameters."
                       "Try add --node-rank to the cmd request");
    if (py_strip(span_str(p->endpoint)).n == 0)
        return err_set(err, MUSTER_EINVAL,
                       "endpoint is absent in RendezvousParameters"
                       "Try add --master-port and --master-addr to the cmd request");
    rc = endpoint_parse(p->endpoint, -1, &f->at, err);
    if (rc == 0 && f->at.port == -1)
        rc = err_set(err, MUSTER_EINVAL,
                     "Port is absent in endpoint: %s. Try launching with --master-port",
                     p->endpoint);
    f->world = p->max_nodes;
    if (rc == 0)
        rc = conf_int(p, CONF_RANK, &f->rank, err);
    if (rc == 0)
        rc = conf_int(p, CONF_TIMEOUT, &seconds, err);
    if (rc < 0)
        return rc;
    if (f->rank < 0 || f->rank >= f->world)
        return err_set(err, MUSTER_EINVAL,
                       "the node rank %" PRId64 " is not one of the %" PRId64
                       " nodes' ranks, which count from 0; give --node-rank less than "
                       "--nnodes",
                       f->rank, f->world);
    f->timeout_ms = ms_of_seconds(seconds);
    if (uv_random(NULL, NULL, &nonce, sizeof nonce, 0, NULL) != 0)
        nonce = uv_hrtime();
    f->count.rank = f->rank;
    f->count.world = f->world;
    (void)snprintf(f->count.token, sizeof f->count.token,
                   COUNT_IN_KEY "%" PRId64 "/%016" PRIx64, f->rank, nonce);
    f->run_id = mem_strdup(p->run_id);
    f->auth = auth_ref(p->auth);
    f->bind = mem_strdup(conf_text(p, CONF_BIND));
    return f->run_id && f->bind ? 0 : err_nomem(err);
}

int rdzv_static_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                       const struct trace *trace, struct rdzv_handler **out,
                       struct muster_error *err)
{
    struct static_handler *f = mem_calloc(1, sizeof *f);
    int rc;

    (void)ctx;
    if (!f)
        return err_nomem(err);
    f->base = (struct rdzv_handler){ &static_ops, loop };
    f->trace = trace;
    f->refs = 1;
    rc = read_params(f, params, err);
    if (rc < 0) {
        fixed_release(f);
        return rc;
    }
    (void)uv_timer_init(loop, &f->deferred);
    f->deferred.data = f;
    *out = &f->base;
    return 0;
}

/* ---- The handler as the agent sees it ---- */

static struct static_handler *fixed_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct static_handler, base);
}

static void static_on_deferred(uv_timer_t *t)
{
    struct static_handler *f = t->data;
    const rdzv_next_cb cb = f->next_cb;

    for (size_t i = 0; i < ARRAY_LEN(f->done); i++) {
        const rdzv_done_cb done = f->done[i].cb;

        f->done[i].cb = NULL;
        if (done)
            done(f->done[i].ctx, 0, NULL);
    }
    if (!cb || f->destroying || f->ending || (f->why.code == 0 && !f->ready))
        return;
    f->next_cb = NULL;
    if (f->why.code == 0)
        fixed_take_token(f);
    cb(f->next_ctx, f->why.code, f->why.code == 0 ? &f->round : NULL,
       f->why.code == 0 ? NULL : &f->why);
}

static void fixed_defer(struct static_handler *f)
{
    (void)uv_timer_start(&f->deferred, static_on_deferred, 0, 0);
}

/* ---- What the agent calls ---- */

static const char *backend(const struct rdzv_handler *h)
{
    (void)h;
    return "static";
}

static const char *run_id(const struct rdzv_handler *h)
{
    return fixed_of(h)->run_id;
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    (void)h;
    return true;
}

static void next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct static_handler *f = fixed_of(h);

    assert(!f->next_cb);
    f->next_cb = cb;
    f->next_ctx = ctx;
    f->why.code = 0;
    if (f->ready) {
        f->round.round++;
        fixed_defer(f);
    } else {
        trace(f->trace, TRACE_INFO,
              "Creating TCPStore as the c10d::Store implementation");
        fixed_begin(f);
    }
}

static void cancel(struct rdzv_handler *h)
{
    struct static_handler *f = fixed_of(h);
    struct muster_error err;

    if (!f->next_cb)
        return;
    f->ready = false;
    (void)err_set(&err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  f->run_id);
    fixed_fail(f, &err);
}

static void on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    (void)h;
    (void)cb; /* Nothing ever changes. */
    (void)ctx;
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    (void)h;
    return 0;
}

static bool is_closed(const struct rdzv_handler *h)
{
    (void)h;
    return false;
}

/* Only rank 0 waits for others here; they are in its store by the time it waits. */
static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct static_handler *f = fixed_of(h);

    *out =
        (struct rdzv_progress){ .stage = f->count.here ? RDZV_AT_ROUND : RDZV_AT_STORE,
                                .here = f->count.here,
                                .min_nodes = f->world,
                                .max_nodes = f->world,
                                .by_ms = f->by_ms,
                                .start_by_ms = MONO_NEVER,
                                .dialled = true };
    if (f->count.here && f->world > 1) /* Most often all nodes were started alike. */
        (void)snprintf(out->why, sizeof out->why,
                       "each node needs a --node-rank of its own; with "
                       "--rdzv-backend=c10d none does");
    return f->next_cb && !f->ready;
}

static bool store_at(const struct rdzv_handler *h, const char **host, uint16_t *port,
                     bool *local, bool *alone)
{
    const struct static_handler *f = fixed_of(h);

    *alone = f->world == 1;
    *local = f->server != NULL;
    *host = f->server ? "127.0.0.1" : f->at.host;
    *port = (uint16_t)f->at.port;
    return f->ready;
}

static const struct store_server *served_store(const struct rdzv_handler *h)
{
    return fixed_of(h)->server;
}

static struct async_store *gathers_at(const struct rdzv_handler *h)
{
    const struct static_handler *f = fixed_of(h);

    return f->next_cb && !f->ready && f->count.here ? f->prefixed : NULL;
}

static void tell(struct rdzv_handler *h, size_t which, rdzv_done_cb cb, void *ctx)
{
    struct static_handler *f = fixed_of(h);

    f->done[which].cb = cb;
    f->done[which].ctx = ctx;
    fixed_defer(f);
}

static void set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    tell(h, 0, cb, ctx);
}

static void leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    cancel(h);
    tell(h, 1, cb, ctx);
}

static void shutdown_handler(struct rdzv_handler *h, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    (void)close;
    cancel(h);
    tell(h, 2, cb, ctx);
}

/* With other nodes about, their agents' keys are in there, too. */
static void wipe_worker_store(struct rdzv_handler *h)
{
    struct static_handler *f = fixed_of(h);

    if (f->server && f->world == 1)
        store_server_wipe(f->server);
}

static uint64_t worker_writes(const struct rdzv_handler *h)
{
    const struct static_handler *f = fixed_of(h);
    struct store_server_stats stats = { 0 };

    if (f->server)
        store_server_stats(f->server, &stats);
    return stats.writes;
}

static uint64_t first_write_ms(struct rdzv_handler *h)
{
    const struct static_handler *f = fixed_of(h);

    return f->server ? store_server_first_write_ms(f->server) : 0;
}

/* ---- The end ---- */

static void fixed_release(struct static_handler *f)
{
    void (*cb)(void *) = f->gone_cb;
    void *ctx = f->gone_ctx;

    if (--f->refs > 0)
        return;
    talk_fini(&f->count.talk);
    mem_free(f->run_id);
    mem_free(f->bind);
    auth_unref(f->auth);
    mem_free(f);
    if (cb)
        cb(ctx);
}

static void on_gone(void *ctx)
{
    fixed_release(ctx);
}

static void on_handle_gone(uv_handle_t *h)
{
    fixed_release(h->data);
}

static void fixed_drop(struct static_handler *f, struct async_store **s)
{
    if (!*s)
        return;
    f->refs++;
    async_store_close(*s, on_gone, f);
    *s = NULL;
}

static void on_server_gone(void *ctx)
{
    struct static_handler *f = ctx;

    f->ending = false;
    if (!f->destroying)
        fixed_defer(f);
    fixed_release(f);
}

static void fixed_end_server(struct static_handler *f)
{
    if (!f->server)
        return;
    f->refs++;
    f->ending = true;
    store_server_close(f->server, on_server_gone, f);
    f->server = NULL;
}

static void destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct static_handler *f = fixed_of(h);

    f->destroying = true;
    f->next_cb = NULL;
    f->gone_cb = cb;
    f->gone_ctx = ctx;
    bind_address_cancel(f->binding);
    fixed_stop_counting(f);
    fixed_drop(f, &f->counter);
    fixed_drop(f, &f->prefixed);
    fixed_drop(f, &f->store);
    fixed_end_server(f);
    uv_close((uv_handle_t *)&f->deferred, on_handle_gone);
}

static const struct rdzv_handler_ops static_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .gathers_at = gathers_at,
    .store_at = store_at,
    .served_store = served_store,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .worker_writes = worker_writes,
    .first_write_ms = first_write_ms,
    .destroy = destroy,
};
