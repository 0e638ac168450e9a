/* secured.c - see secured.h. */
#include "rendezvous/secured.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/relay.h"
#include "store/client.h"

#define PROVE_MS 60000u /* how long reaching the workers' store may take */

struct secured {
    struct rdzv_handler base;
    struct rdzv_handler *inner; /* owned */
    struct auth *auth;          /* a reference */
    const struct trace *trace;  /* borrowed */
    rdzv_next_cb next_cb;       /* NULL: no next() under way */
    void *next_ctx;
    /* owned; for the round, the connection that proves this node */
    struct async_store *link;
    struct relay *relay; /* owned; with encryption, for the round */
    struct rdzv_round round;
    char served[1025];
    size_t refs; /* how many parts are still closing */
    bool destroying;
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

static struct secured *of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct secured, base);
}

static void release(void *ctx)
{
    struct secured *s = ctx;
    void (*cb)(void *) = s->gone_cb;
    void *gone = s->gone_ctx;

    if (--s->refs > 0 || !s->destroying)
        return;
    auth_unref(s->auth);
    mem_free(s);
    if (cb)
        cb(gone);
}

/* Closes the last round's connection to its workers' store. */
static void drop_round(struct secured *s)
{
    if (s->link) {
        s->refs++;
        async_store_close(s->link, release, s);
        s->link = NULL;
    }
    if (s->relay) {
        s->refs++;
        relay_close(s->relay, release, s);
        s->relay = NULL;
    }
}

static void end_next(struct secured *s, int status, const struct muster_error *err)
{
    const rdzv_next_cb cb = s->next_cb;

    s->next_cb = NULL;
    if (cb)
        cb(s->next_ctx, status, status == 0 ? &s->round : NULL, err);
}

static int open_relay(struct secured *s, struct muster_error *err)
{
    const struct relay_opts opts = { .host = s->served,
                                     .port = s->round.master_port,
                                     .auth = s->auth,
                                     .trace = s->trace };
    const int rc = relay_open(s->base.loop, &opts, &s->relay, err);

    if (rc < 0)
        return rc;
    s->round.served_addr = s->served;
    s->round.served_port = s->round.master_port;
    s->round.master_addr = "127.0.0.1";
    s->round.master_port = relay_port(s->relay);
    return 0;
}

static void secured_on_link(void *ctx, int status, const struct muster_error *err)
{
    struct secured *s = ctx;
    struct muster_error e;

    if (!s->next_cb || status == MUSTER_ECANCELED)
        return;
    if (status < 0) {
        err_copy(&e, err);
        (void)err_wrap(&e, "proving this node to the workers' store");
        end_next(s, e.code, &e);
        return;
    }
    if ((s->auth->settings.flags & AUTH_ENCRYPT) && open_relay(s, &e) < 0)
        end_next(s, e.code, &e);
    else
        end_next(s, 0, NULL);
}

static void secured_on_next(void *ctx, int status, const struct rdzv_round *round,
                            const struct muster_error *err)
{
    struct secured *s = ctx;
    struct muster_error e;
    int rc = 0;

    if (status < 0) {
        end_next(s, status, err);
        return;
    }
    s->round = *round;
    (void)snprintf(s->served, sizeof s->served, "%s", round->master_addr);
    if (!s->inner->ops->use_agent_store(s->inner)) {
        /* Worker 0 serves the store itself, and cannot prove anything. */
        if (s->auth->settings.flags & AUTH_ENCRYPT)
            rc = err_set(&e, MUSTER_ENOTSUP,
                         "--encrypt needs the agents' store, which "
                         "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 or the backend rules "
                         "out");
        end_next(s, rc, &e);
        return;
    }
    const struct store_client_opts opts = { .host = s->served,
                                            .port = round->master_port,
                                            .timeout_ms = PROVE_MS,
                                            .auth = s->auth,
                                            .trace = s->trace };
    if (store_client_open(s->base.loop, &opts, secured_on_link, s, &s->link, &e) < 0) {
        s->link = NULL;
        end_next(s, e.code, &e);
    }
}

/* ---- What the agent calls ---- */

static const char *backend(const struct rdzv_handler *h)
{
    return of(h)->inner->ops->backend(of(h)->inner);
}

static const char *run_id(const struct rdzv_handler *h)
{
    return of(h)->inner->ops->run_id(of(h)->inner);
}

static bool use_agent_store(const struct rdzv_handler *h)
{
    return of(h)->inner->ops->use_agent_store(of(h)->inner);
}

static void next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct secured *s = of(h);

    drop_round(s);
    s->next_cb = cb;
    s->next_ctx = ctx;
    s->inner->ops->next(s->inner, secured_on_next, s);
}

static void ignore_done(void *ctx, int status, const struct muster_error *err)
{
    (void)ctx;
    (void)status;
    (void)err;
}

static void secured_on_canceled(void *ctx)
{
    struct secured *s = ctx;
    struct muster_error err;

    (void)err_set(&err, MUSTER_ECANCELED, "joining the run was canceled");
    if (!s->destroying)
        end_next(s, err.code, &err);
    release(s);
}

static void cancel(struct rdzv_handler *h)
{
    struct secured *s = of(h);

    if (!s->next_cb || !s->link) {
        s->inner->ops->cancel(s->inner);
        return;
    }
    /* The round itself was joined: leave it, and report that once the connection is
     * closed. */
    s->inner->ops->leave(s->inner, ignore_done, NULL);
    s->refs++;
    async_store_close(s->link, secured_on_canceled, s);
    s->link = NULL;
}

static void secured_on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    of(h)->inner->ops->on_news(of(h)->inner, cb, ctx);
}

static int64_t num_nodes_waiting(const struct rdzv_handler *h)
{
    return of(h)->inner->ops->num_nodes_waiting(of(h)->inner);
}

static bool is_closed(const struct rdzv_handler *h)
{
    return of(h)->inner->ops->is_closed(of(h)->inner);
}

static bool progress(const struct rdzv_handler *h, struct rdzv_progress *out)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->progress && inner->ops->progress(inner, out);
}

static struct async_store *gathers_at(const struct rdzv_handler *h)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->gathers_at ? inner->ops->gathers_at(inner) : NULL;
}

static bool store_at(const struct rdzv_handler *h, struct rdzv_store_at *out)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->store_at && inner->ops->store_at(inner, out);
}

static bool store_stats(const struct rdzv_handler *h, struct store_server_stats *out)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->store_stats && inner->ops->store_stats(inner, out);
}

static uint64_t fenced_at_ms(const struct rdzv_handler *h)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->fence_due ? inner->ops->fence_due(inner) : MONO_NEVER;
}

static bool node_gone(struct rdzv_handler *h, uint64_t round, int64_t rank)
{
    struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->node_gone && inner->ops->node_gone(inner, round, rank);
}

static bool own_addr(const struct rdzv_handler *h, char *out, size_t size)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->own_addr && inner->ops->own_addr(inner, out, size);
}

static void spares(const struct rdzv_handler *h, char *to)
{
    const struct rdzv_handler *inner = of(h)->inner;

    *to = '\0';
    if (inner->ops->spares)
        inner->ops->spares(inner, to);
}

static int64_t torch_nodes(const struct rdzv_handler *h)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->torch_nodes ? inner->ops->torch_nodes(inner) : 0;
}

static uint64_t worker_writes(const struct rdzv_handler *h)
{
    const struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->worker_writes ? inner->ops->worker_writes(inner) : 0;
}

static uint64_t first_write_ms(struct rdzv_handler *h)
{
    struct rdzv_handler *inner = of(h)->inner;

    return inner->ops->first_write_ms ? inner->ops->first_write_ms(inner) : 0;
}

static void set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    of(h)->inner->ops->set_closed(of(h)->inner, cb, ctx);
}

static void leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    of(h)->inner->ops->leave(of(h)->inner, cb, ctx);
}

static void shutdown_handler(struct rdzv_handler *h, bool close, rdzv_done_cb cb,
                             void *ctx)
{
    of(h)->inner->ops->shutdown(of(h)->inner, close, cb, ctx);
}

static void wipe_worker_store(struct rdzv_handler *h)
{
    of(h)->inner->ops->wipe_worker_store(of(h)->inner);
}

static void destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct secured *s = of(h);

    s->destroying = true;
    s->next_cb = NULL;
    s->gone_cb = cb;
    s->gone_ctx = ctx;
    s->refs++; /* the inner one */
    drop_round(s);
    s->inner->ops->destroy(s->inner, release, s);
}

static const struct rdzv_handler_ops secured_ops = {
    .backend = backend,
    .run_id = run_id,
    .use_agent_store = use_agent_store,
    .next = next,
    .cancel = cancel,
    .on_news = secured_on_news,
    .num_nodes_waiting = num_nodes_waiting,
    .is_closed = is_closed,
    .progress = progress,
    .gathers_at = gathers_at,
    .store_at = store_at,
    .store_stats = store_stats,
    .node_gone = node_gone,
    .fence_due = fenced_at_ms,
    .torch_nodes = torch_nodes,
    .spares = spares,
    .own_addr = own_addr,
    .worker_writes = worker_writes,
    .first_write_ms = first_write_ms,
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .destroy = destroy,
};

/* An operation that is added to handlers must be passed on here. */
_Static_assert(sizeof(struct rdzv_handler_ops) == 24 * sizeof(void (*)(void)),
               "secured_ops passes on all operations");

static void ignore(void *ctx)
{
    (void)ctx;
}

int secured_wrap(struct rdzv_handler *inner, struct auth *auth,
                 const struct trace *trace, struct rdzv_handler **out,
                 struct muster_error *err)
{
    struct secured *s = mem_calloc(1, sizeof *s);

    if (!s) {
        inner->ops->destroy(inner, ignore, NULL);
        return err_nomem(err);
    }
    s->base = (struct rdzv_handler){ &secured_ops, inner->loop, auth, inner->nonce };
    s->inner = inner;
    s->auth = auth_ref(auth);
    s->trace = trace;
    *out = &s->base;
    return 0;
}

void rdzv_log_secret(const struct trace *t, const struct auth *auth)
{
    if (!auth)
        trace(
            t, TRACE_ADVICE,
            "this job has no secret: whoever reaches its ports can join it and end it "
            "(openssl rand -hex 32 > FILE, then --token-file=FILE on all nodes)");
    else if (auth->optional)
        trace(t, TRACE_WARN,
              "--token-optional: nodes without the secret are admitted, so whoever "
              "reaches this job's ports can do what a node of torchrun can");
}
