/* static.c - the static rendezvous, like torch's: every node knows its rank and where
 * rank 0 is. There are no rounds and no membership, and the agents' store is also the
 * workers' store.
 *
 * Nodes count themselves in by rendezvous/core/static_join.c. A next() that failed must
 * not leave a node counted twice: rank 0's server ends with it, as torch's does, and
 * the other nodes find out by their token whether they were counted. */
#include "base/err.h"
#include "base/mem.h"
#include "base/py/text.h"
#include "loop/clock.h"
#include "net/bind_address.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/core/static_join.h"
#include "rendezvous/handler_base.h"
#include "rendezvous/registry.h"
#include "rendezvous/secured.h"
#include "store/client.h"
#include "store/dialogue_driver.h"
#include "store/extension.h"
#include "store/server.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

struct static_handler {
    struct handler_base base; /* first: the handler as the agent sees it */
    const struct log *log;    /* borrowed */
    char *run_id;             /* owned */
    struct endpoint at;
    int64_t rank, world;
    uint64_t timeout_ms, by_ms;

    struct auth *auth;                /* a reference, or NULL */
    char *bind;                       /* owned; rdzv-conf bind, or empty */
    struct bind_address listen_at;    /* where our server listens */
    struct bind_lookup *binding;      /* owned while it runs */
    struct store_server *server;      /* owned; rank 0 */
    struct async_store *store;        /* owned */
    struct async_store *counter;      /* owned: the connection for the key init/ */
    struct async_store *prefixed;     /* owned */
    struct static_join join;          /* counts the nodes */
    struct dialogue_driver *counting; /* owned while it runs */
    enum { STATIC_OUT, STATIC_COUNTING, STATIC_READY } stage;
    bool ending;  /* our server is closing: we report a failure once its port is free */
    bool leaving; /* LIFE_LEFT is due once the join has failed */
    struct rdzv_round round;
    struct muster_error why; /* why the join failed; reported when the server is gone */
};

static const struct rdzv_handler_ops static_ops;
static const struct handler_impl static_impl;

static void static_end_server(struct static_handler *self);

static struct static_handler *static_of(const struct handler_base *s)
{
    return CONTAINER_OF(s, struct static_handler, base);
}

static void static_stop_counting(struct static_handler *self)
{
    dialogue_driver_close(self->counting);
    self->counting = NULL;
}

static void ignore_gone(void *ctx)
{
    (void)ctx;
}

static void static_drop(struct async_store **s)
{
    if (*s)
        async_store_close(*s, ignore_gone, NULL);
    *s = NULL;
}

static void static_left(struct static_handler *self)
{
    self->leaving = false;
    handler_feed_error(&self->base, LIFE_LEFT, NULL);
}

static void static_failed(struct static_handler *self)
{
    self->stage = STATIC_OUT;
    handler_feed_error(&self->base, LIFE_REFUSED, &self->why);
    if (self->leaving)
        static_left(self);
}

static void static_fail(struct static_handler *self, const struct muster_error *err)
{
    err_copy(&self->why, err);
    bind_address_cancel(self->binding);
    self->binding = NULL;
    static_stop_counting(self);
    static_drop(&self->counter);
    static_drop(&self->prefixed);
    static_drop(&self->store);
    static_end_server(self);
    if (!self->ending)
        static_failed(self);
}

static void static_delete_token(struct static_handler *self);

static void on_all_here(struct static_handler *self)
{
    static_stop_counting(self);
    static_drop(&self->counter);
    static_delete_token(self);
    self->round = (struct rdzv_round){ .rank = self->rank,
                                       .world_size = self->world,
                                       .store = self->prefixed,
                                       .master_addr = self->at.host,
                                       .master_port = (uint16_t)self->at.port };
    self->stage = STATIC_READY;
    handler_feed_error(&self->base, LIFE_JOINED, NULL);
}

/* ---- Counting in ---- */

/* The last calls on a dropped connection fail later, perhaps while another next() is
 * under way. */
static bool is_over(const struct static_handler *self, int status)
{
    return status == MUSTER_ECANCELED || handler_ends(&self->base);
}

static void static_on_counted(void *ctx, const struct dialogue_fx *fx)
{
    struct static_handler *self = ctx;
    struct muster_error err;

    if (fx->kind == DIALOGUE_DONE) {
        on_all_here(self);
        return;
    }
    err_copy(&err, &fx->err);
    if (err.code != MUSTER_ETIMEDOUT)
        (void)err_wrap(&err, "static rendezvous at %s:%d", self->at.host,
                       (int)self->at.port);
    static_fail(self, &err);
}

static void static_count(struct static_handler *self)
{
    struct muster_error err;

    dialogue_fini(&self->join.dialogue);
    dialogue_init(&self->join.dialogue);
    self->join.timeout_ms = self->timeout_ms;
    if (dialogue_driver_open(self->counter, &self->join.dialogue, static_join_step,
                             static_on_counted, self, &self->counting, &err) < 0)
        static_fail(self, &err);
}

static void ignore_reply(void *ctx, int status, const struct c10d_reply *reply,
                         const struct muster_error *err)
{
    (void)ctx; /* If the key stays, it does no harm. */
    (void)status;
    (void)reply;
    (void)err;
}

/* Deletes our token, since we shall not count ourselves again. */
static void static_delete_token(struct static_handler *self)
{
    const struct c10d_request req = { .op = C10D_DELETE_KEY,
                                      .key = span_str(self->join.token) };

    if (self->join.tried)
        (void)async_store_call(self->store, &req, ASYNC_STORE_RAW, 1000, ignore_reply,
                               NULL, NULL);
    self->join.tried = false;
}

/* ---- Connecting ---- */

static void on_open(void *ctx, int status, const struct muster_error *err)
{
    struct static_handler *self = ctx;
    struct muster_error e;

    if (is_over(self, status))
        return;
    if (status == 0) {
        static_count(self);
        return;
    }
    err_copy(&e, err);
    if (status == MUSTER_ETIMEDOUT || status == MUSTER_EREFUSED)
        (void)err_wrap(&e,
                       "The client socket has timed out after %" PRIu64
                       "ms while trying to connect to (%s, %d)",
                       self->timeout_ms, self->at.host, (int)self->at.port);
    e.code = MUSTER_ECONN;
    static_fail(self, &e);
}

static void ignore_open(void *ctx, int status, const struct muster_error *err)
{
    (void)ctx;
    (void)status;
    (void)err;
}

static int serve(struct static_handler *self, struct muster_error *err)
{
    struct store_server_opts opts;
    int rc;

    if (self->rank != 0 || self->server)
        return 0;
    store_server_opts_init(&opts);
    opts.extension = &run_extension;
    opts.bind = bind_address_text(&self->listen_at);
    opts.auth = self->auth;
    opts.port = (uint16_t)self->at.port;
    opts.log = self->log;
    rc = store_server_open(self->base.handler.loop, &opts, &self->server, err);
    if (rc < 0) {
        if (rc != MUSTER_EINUSE) /* EINUSE has torch's words already. */
            (void)err_wrap(
                err,
                "The server socket has failed to listen on any local network "
                "address. port: %d",
                (int)self->at.port);
        return rc;
    }
    self->at.port = store_server_port(self->server);
    bind_address_log(self->log, "the static rendezvous",
                     store_server_address(self->server), &self->listen_at);
    if (self->world > 1)
        rdzv_log_secret(self->log, self->auth);
    return 0;
}

static void static_connect(struct static_handler *self)
{
    struct store_client_opts opts = {
        .host = self->at.host,
        .timeout_ms = self->timeout_ms,
        .auth = self->auth,
        .log = self->log,
    };
    struct muster_error err;
    int rc = serve(self, &err);

    self->join.here = 0;
    self->by_ms = clock_mono_ms() + self->timeout_ms;
    opts.port = (uint16_t)self->at.port;
    if (self->server)
        opts.host = store_server_own_host(self->server);
    if (rc == 0)
        rc = store_client_open(self->base.handler.loop, &opts, ignore_open, self,
                               &self->store, &err);
    if (rc == 0)
        rc =
            async_store_prefix(self->store, self->run_id, false, &self->prefixed, &err);
    opts.raw_keys = true;
    if (rc == 0)
        rc = store_client_open(self->base.handler.loop, &opts, on_open, self,
                               &self->counter, &err);
    if (rc < 0)
        static_fail(self, &err);
}

static void static_on_bind_address(void *ctx, const struct bind_address *at)
{
    struct static_handler *self = ctx;

    self->binding = NULL;
    self->listen_at = *at;
    static_connect(self);
}

static void find_address_and_connect(struct static_handler *self)
{
    const struct bind_ask ask = { .asked = self->bind,
                                  .host = self->at.host,
                                  .many = self->world > 1,
                                  .private_name = true };

    if (self->rank == 0 && !self->server)
        bind_address_find(self->base.handler.loop, &ask, static_on_bind_address, self,
                          &self->binding);
    else
        static_connect(self);
}

/* ---- Parameters ---- */

static int read_params(struct static_handler *self, const struct rdzv_params *p,
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
    rc = endpoint_parse(p->endpoint, -1, &self->at, err);
    if (rc == 0 && self->at.port == -1)
        rc = err_set(err, MUSTER_EINVAL,
                     "Port is absent in endpoint: %s. Try launching with --master-port",
                     p->endpoint);
    self->world = p->max_nodes;
    if (rc == 0)
        rc = conf_int(p, CONF_RANK, &self->rank, err);
    if (rc == 0)
        rc = conf_int(p, CONF_TIMEOUT, &seconds, err);
    if (rc < 0)
        return rc;
    if (self->rank < 0 || self->rank >= self->world)
        return err_set(err, MUSTER_EINVAL,
                       "the node rank %" PRId64 " is not one of the %" PRId64
                       " nodes' ranks, which count from 0; give --node-rank less than "
                       "--nnodes",
                       self->rank, self->world);
    self->timeout_ms = ms_of_seconds(seconds);
    if (uv_random(NULL, NULL, &nonce, sizeof nonce, 0, NULL) != 0)
        nonce = uv_hrtime();
    self->join.rank = self->rank;
    self->join.world = self->world;
    (void)snprintf(self->join.token, sizeof self->join.token,
                   STATIC_JOIN_KEY "%" PRId64 "/%016" PRIx64, self->rank, nonce);
    self->run_id = mem_strdup(p->run_id);
    self->auth = auth_ref(p->auth);
    self->bind = mem_strdup(conf_text(p, CONF_BIND));
    return self->run_id && self->bind ? 0 : err_nomem(err);
}

static void static_free(struct static_handler *self)
{
    dialogue_fini(&self->join.dialogue);
    mem_free(self->run_id);
    mem_free(self->bind);
    auth_unref(self->auth);
    mem_free(self);
}

int rdzv_static_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                       const struct log *log, struct rdzv_handler **out,
                       struct muster_error *err)
{
    struct static_handler *self = mem_calloc(1, sizeof *self);
    int rc;

    (void)ctx;
    if (!self)
        return err_nomem(err);
    self->log = log;
    rc = read_params(self, params, err);
    if (rc < 0) {
        static_free(self);
        return rc;
    }
    handler_base_init(&self->base, loop, &static_ops, &static_impl);
    life_init(&self->base.life, self->run_id, log, 0, false);
    *out = &self->base.handler;
    return 0;
}

/* ---- What the base asks for ---- */

static void static_open(struct handler_base *s)
{
    handler_feed_error(s, LIFE_OPENED, NULL);
}

/* Every round has the nodes of the first one. */
static void static_start_join(struct handler_base *s)
{
    struct static_handler *self = static_of(s);

    if (self->stage == STATIC_READY) {
        self->round.round++;
        handler_feed_error(s, LIFE_JOINED, NULL);
        return;
    }
    log_line(self->log, LOG_INFO, AT_RENDEZVOUS,
             "Creating TCPStore as the c10d::Store implementation");
    self->stage = STATIC_COUNTING;
    find_address_and_connect(self);
}

static void static_leave(struct handler_base *s)
{
    struct static_handler *self = static_of(s);
    struct muster_error err;

    self->leaving = true;
    if (self->stage != STATIC_COUNTING) {
        static_left(self);
        return;
    }
    (void)err_set(&err, MUSTER_ECANCELED, "leaving");
    if (!self->ending)
        static_fail(self, &err);
}

static void static_close(struct handler_base *s)
{
    handler_feed_error(s, LIFE_CLOSED, NULL);
}

static void static_find(struct handler_base *s)
{
    handler_feed_error(s, LIFE_ADDRESS, NULL); /* Every node was given it. */
}

static void static_drop_round(struct handler_base *s)
{
    (void)s; /* There is only one. */
}

static const struct rdzv_round *static_round(const struct handler_base *s)
{
    return &static_of(s)->round;
}

/* ---- What the agent asks ---- */

static struct static_handler *of_handler(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct static_handler, base.handler);
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

/* Only rank 0 waits for others here, and by then it has its store. */
static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct static_handler *self = of_handler(h);

    *out = (struct rdzv_progress){ .stage =
                                       self->join.here ? RDZV_AT_ROUND : RDZV_AT_STORE,
                                   .here = self->join.here,
                                   .min_nodes = self->world,
                                   .max_nodes = self->world,
                                   .by_ms = self->by_ms,
                                   .start_by_ms = MONO_NEVER,
                                   .dialled = true };
    if (self->join.here && self->world > 1) /* Usually all nodes were started alike. */
        (void)snprintf(out->why, sizeof out->why,
                       "each node needs a --node-rank of its own, except with "
                       "--rdzv-backend=c10d");
    return self->stage == STATIC_COUNTING;
}

static bool store_at(const struct rdzv_handler *h, struct rdzv_store_at *out)
{
    const struct static_handler *self = of_handler(h);

    *out = (struct rdzv_store_at){
        .host = self->server ? store_server_own_host(self->server) : self->at.host,
        .port = (uint16_t)self->at.port,
        .local = self->server != NULL,
        .alone = self->world == 1,
    };
    return self->stage == STATIC_READY;
}

static bool store_stats(const struct rdzv_handler *h, struct store_server_stats *out)
{
    const struct static_handler *self = of_handler(h);

    *out = (struct store_server_stats){ 0 };
    store_server_stats_add(out, self->server);
    return self->server != NULL;
}

static struct async_store *gathers_at(const struct rdzv_handler *h)
{
    const struct static_handler *self = of_handler(h);

    return self->stage == STATIC_COUNTING && self->join.here ? self->prefixed : NULL;
}

/* With other nodes, their agents' keys are in the store, too. */
static void wipe_worker_store(struct rdzv_handler *h)
{
    struct static_handler *self = of_handler(h);

    if (self->server && self->world == 1)
        store_server_wipe(self->server);
}

static uint64_t worker_writes(const struct rdzv_handler *h)
{
    const struct static_handler *self = of_handler(h);
    struct store_server_stats stats = { 0 };

    if (self->server)
        store_server_stats(self->server, &stats);
    return stats.writes;
}

static uint64_t first_write_ms(struct rdzv_handler *h)
{
    const struct static_handler *self = of_handler(h);

    return self->server ? store_server_first_write_ms(self->server) : 0;
}

/* ---- The end ---- */

static void on_server_gone(void *ctx)
{
    struct static_handler *self = ctx;

    self->ending = false;
    if (handler_ends(&self->base))
        handle_set_left(&self->base.closing);
    else
        static_failed(self);
}

static void static_end_server(struct static_handler *self)
{
    if (!self->server)
        return;
    self->ending = true;
    store_server_close(self->server, on_server_gone, self);
    self->server = NULL;
}

static void close_store(struct static_handler *self, struct async_store **s)
{
    if (!*s)
        return;
    handle_set_add(&self->base.closing);
    async_store_close(*s, handle_set_left, &self->base.closing);
    *s = NULL;
}

static void static_destroy(struct handler_base *s)
{
    struct static_handler *self = static_of(s);

    bind_address_cancel(self->binding);
    self->binding = NULL;
    static_stop_counting(self);
    close_store(self, &self->counter);
    close_store(self, &self->prefixed);
    close_store(self, &self->store);
    static_end_server(self);
    if (self->ending)
        handle_set_add(&s->closing);
}

static void static_release(struct handler_base *s)
{
    const struct handler_gone gone = s->gone;

    static_free(static_of(s));
    gone.cb(gone.ctx);
}

static bool own_addr(const struct rdzv_handler *h, char *out, size_t size)
{
    const struct static_handler *self = of_handler(h);
    const char *local = self->store ? store_client_local(self->store) : NULL;
    char reached[IP_TEXT];

    if (self->server && store_server_reached_at(self->server, reached))
        local = reached;
    if (local)
        (void)snprintf(out, size, "%s", local);
    return local != NULL;
}

static const struct rdzv_handler_ops static_ops = {
    HANDLER_BASE_OPS,
    .backend = backend,
    .use_agent_store = use_agent_store,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .gathers_at = gathers_at,
    .store_at = store_at,
    .own_addr = own_addr,
    .store_stats = store_stats,
    .wipe_worker_store = wipe_worker_store,
    .worker_writes = worker_writes,
    .first_write_ms = first_write_ms,
};

static const struct handler_impl static_impl = {
    .open = static_open,
    .join = static_start_join,
    .leave = static_leave,
    .close = static_close,
    .find = static_find,
    .drop = static_drop_round,
    .round = static_round,
    .destroy = static_destroy,
    .release = static_release,
};
