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
#include "rendezvous/registry.h"
#include "rendezvous/secured.h"
#include "rendezvous/shell.h"
#include "store/client.h"
#include "store/server.h"
#include "store/talk_driver.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

struct static_handler {
    struct rdzv_shell shell;   /* first: the handler as the agent sees it */
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
    enum { FIXED_OUT, FIXED_COUNTING, FIXED_READY } stage;
    bool ending;  /* our server: its port is free again before a failure is told */
    bool leaving; /* to be told once the join has failed */
    struct rdzv_round round;
    struct muster_error why; /* of the join that failed; told when the server is gone */
};

static const struct rdzv_handler_ops static_ops;
static const struct rdzv_engine static_engine;

static void fixed_end_server(struct static_handler *f);

static struct static_handler *fixed_of(const struct rdzv_shell *s)
{
    return CONTAINER_OF(s, struct static_handler, shell);
}

static void fixed_stop_counting(struct static_handler *f)
{
    talk_driver_close(f->counting);
    f->counting = NULL;
}

static void no_matter_gone(void *ctx)
{
    (void)ctx;
}

static void fixed_drop(struct async_store **s)
{
    if (*s)
        async_store_close(*s, no_matter_gone, NULL);
    *s = NULL;
}

static void fixed_left(struct static_handler *f)
{
    f->leaving = false;
    shell_feed_error(&f->shell, LIFE_LEFT, NULL);
}

static void fixed_failed(struct static_handler *f)
{
    f->stage = FIXED_OUT;
    shell_feed_error(&f->shell, LIFE_REFUSED, &f->why);
    if (f->leaving)
        fixed_left(f);
}

static void fixed_fail(struct static_handler *f, const struct muster_error *err)
{
    err_copy(&f->why, err);
    bind_address_cancel(f->binding);
    f->binding = NULL;
    fixed_stop_counting(f);
    fixed_drop(&f->counter);
    fixed_drop(&f->prefixed);
    fixed_drop(&f->store);
    fixed_end_server(f);
    if (!f->ending)
        fixed_failed(f);
}

static void fixed_take_token(struct static_handler *f);

static void all_here(struct static_handler *f)
{
    fixed_stop_counting(f);
    fixed_drop(&f->counter);
    fixed_take_token(f);
    f->round = (struct rdzv_round){ .rank = f->rank,
                                    .world_size = f->world,
                                    .store = f->prefixed,
                                    .master_addr = f->at.host,
                                    .master_port = (uint16_t)f->at.port };
    f->stage = FIXED_READY;
    shell_feed_error(&f->shell, LIFE_JOINED, NULL);
}

/* ---- Counting in ---- */

/* The last calls on a dropped connection fail later, perhaps only when another next()
 * is under way. */
static bool is_over(const struct static_handler *f, int status)
{
    return shell_ends(&f->shell) || status == MUSTER_ECANCELED;
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
    (void)ctx; /* The key is of no use any more, and does no harm. */
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
        (void)async_store_call(f->store, &req, ASYNC_STORE_RAW, 1000, no_reply, NULL,
                               NULL);
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
    rc = store_server_open(f->shell.base.loop, &opts, &f->server, err);
    if (rc < 0) {
        if (rc != MUSTER_EINUSE) /* That one has torch's words already. */
            (void)err_wrap(
                err,
                "The server socket has failed to listen on any local network "
                "address. port: %d",
                (int)f->at.port);
        return rc;
    }
    f->at.port = store_server_port(f->server);
    bind_address_log(f->trace, "the static rendezvous", store_server_address(f->server),
                     &f->at_home);
    if (f->world > 1)
        rdzv_log_secret(f->trace, f->auth);
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
        rc =
            store_client_open(f->shell.base.loop, &opts, no_matter, f, &f->store, &err);
    if (rc == 0)
        rc = async_store_prefix(f->store, f->run_id, false, &f->prefixed, &err);
    opts.raw_keys = true;
    if (rc == 0)
        rc =
            store_client_open(f->shell.base.loop, &opts, on_open, f, &f->counter, &err);
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
        bind_address_find(f->shell.base.loop, &ask, fixed_on_bind_address, f,
                          &f->binding);
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

static void fixed_free(struct static_handler *f)
{
    talk_fini(&f->count.talk);
    mem_free(f->run_id);
    mem_free(f->bind);
    auth_unref(f->auth);
    mem_free(f);
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
    f->trace = trace;
    rc = read_params(f, params, err);
    if (rc < 0) {
        fixed_free(f);
        return rc;
    }
    shell_init(&f->shell, loop, &static_ops, &static_engine);
    life_init(&f->shell.life, f->run_id, trace, 0, false);
    *out = &f->shell.base;
    return 0;
}

/* ---- What the lifecycle asks for ---- */

static void fixed_open(struct rdzv_shell *s)
{
    shell_feed_error(s, LIFE_OPENED, NULL);
}

/* The nodes of the first round are those of all others. */
static void fixed_join(struct rdzv_shell *s)
{
    struct static_handler *f = fixed_of(s);

    if (f->stage == FIXED_READY) {
        f->round.round++;
        shell_feed_error(s, LIFE_JOINED, NULL);
        return;
    }
    trace(f->trace, TRACE_INFO, "Creating TCPStore as the c10d::Store implementation");
    f->stage = FIXED_COUNTING;
    fixed_begin(f);
}

static void fixed_leave(struct rdzv_shell *s)
{
    struct static_handler *f = fixed_of(s);
    struct muster_error err;

    f->leaving = true;
    if (f->stage != FIXED_COUNTING) {
        fixed_left(f);
        return;
    }
    (void)err_set(&err, MUSTER_ECANCELED, "leaving");
    if (!f->ending)
        fixed_fail(f, &err);
}

static void fixed_close(struct rdzv_shell *s)
{
    shell_feed_error(s, LIFE_CLOSED, NULL);
}

static void fixed_find(struct rdzv_shell *s)
{
    shell_feed_error(s, LIFE_ADDRESS, NULL); /* Everybody was told it. */
}

static void fixed_drop_round(struct rdzv_shell *s)
{
    (void)s; /* There is but one. */
}

static const struct rdzv_round *fixed_round(const struct rdzv_shell *s)
{
    return &fixed_of(s)->round;
}

/* ---- What the agent asks ---- */

static struct static_handler *of_handler(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct static_handler, shell.base);
}

static const char *backend(const struct rdzv_handler *h)
{
    (void)h;
    return "static";
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    (void)h;
    return true;
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
    const struct static_handler *f = of_handler(h);

    *out =
        (struct rdzv_progress){ .stage = f->count.here ? RDZV_AT_ROUND : RDZV_AT_STORE,
                                .here = f->count.here,
                                .min_nodes = f->world,
                                .max_nodes = f->world,
                                .by_ms = f->by_ms,
                                .start_by_ms = MONO_NEVER,
                                .dialled = true };
    if (f->count.here && f->world > 1) /* Usually the reason is that all nodes were
                                          started with the same options. */
        (void)snprintf(out->why, sizeof out->why,
                       "each node needs a --node-rank of its own; with "
                       "--rdzv-backend=c10d none does");
    return f->stage == FIXED_COUNTING;
}

static bool store_at(const struct rdzv_handler *h, const char **host, uint16_t *port,
                     bool *local, bool *alone)
{
    const struct static_handler *f = of_handler(h);

    *alone = f->world == 1;
    *local = f->server != NULL;
    *host = f->server ? "127.0.0.1" : f->at.host;
    *port = (uint16_t)f->at.port;
    return f->stage == FIXED_READY;
}

static bool store_stats(const struct rdzv_handler *h, struct store_server_stats *out)
{
    const struct static_handler *f = of_handler(h);

    *out = (struct store_server_stats){ 0 };
    store_server_stats_add(out, f->server);
    return f->server != NULL;
}

static struct async_store *gathers_at(const struct rdzv_handler *h)
{
    const struct static_handler *f = of_handler(h);

    return f->stage == FIXED_COUNTING && f->count.here ? f->prefixed : NULL;
}

/* With other nodes about, their agents' keys are in there, too. */
static void wipe_worker_store(struct rdzv_handler *h)
{
    struct static_handler *f = of_handler(h);

    if (f->server && f->world == 1)
        store_server_wipe(f->server);
}

static uint64_t worker_writes(const struct rdzv_handler *h)
{
    const struct static_handler *f = of_handler(h);
    struct store_server_stats stats = { 0 };

    if (f->server)
        store_server_stats(f->server, &stats);
    return stats.writes;
}

static uint64_t first_write_ms(struct rdzv_handler *h)
{
    const struct static_handler *f = of_handler(h);

    return f->server ? store_server_first_write_ms(f->server) : 0;
}

/* ---- The end ---- */

static void on_server_gone(void *ctx)
{
    struct static_handler *f = ctx;

    f->ending = false;
    if (shell_ends(&f->shell))
        handle_set_left(&f->shell.closing);
    else
        fixed_failed(f);
}

static void fixed_end_server(struct static_handler *f)
{
    if (!f->server)
        return;
    f->ending = true;
    store_server_close(f->server, on_server_gone, f);
    f->server = NULL;
}

static void close_store(struct static_handler *f, struct async_store **s)
{
    if (!*s)
        return;
    handle_set_add(&f->shell.closing);
    async_store_close(*s, handle_set_left, &f->shell.closing);
    *s = NULL;
}

static void fixed_destroy(struct rdzv_shell *s)
{
    struct static_handler *f = fixed_of(s);

    bind_address_cancel(f->binding);
    f->binding = NULL;
    fixed_stop_counting(f);
    close_store(f, &f->counter);
    close_store(f, &f->prefixed);
    close_store(f, &f->store);
    fixed_end_server(f);
    if (f->ending)
        handle_set_add(&s->closing);
}

static void fixed_release(struct rdzv_shell *s)
{
    const struct shell_gone gone = s->gone;

    fixed_free(fixed_of(s));
    gone.cb(gone.ctx);
}

static const struct rdzv_handler_ops static_ops = {
    RDZV_SHELL_OPS,
    .backend = backend,
    .use_agent_store = use_agent_store,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .gathers_at = gathers_at,
    .store_at = store_at,
    .store_stats = store_stats,
    .wipe_worker_store = wipe_worker_store,
    .worker_writes = worker_writes,
    .first_write_ms = first_write_ms,
};

static const struct rdzv_engine static_engine = {
    .open = fixed_open,
    .join = fixed_join,
    .leave = fixed_leave,
    .close = fixed_close,
    .find = fixed_find,
    .drop = fixed_drop_round,
    .round = fixed_round,
    .destroy = fixed_destroy,
    .release = fixed_release,
};
