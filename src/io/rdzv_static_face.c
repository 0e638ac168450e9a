/* rdzv_static_face.c - the static handler as the agent sees it: what it may ask for,
 * what it hears, and the end. What follows from it is rdzv_static.c's. */
#include <assert.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/rdzv_static_int.h"

static struct fixed *fixed_of(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct fixed, base);
}

static void on_soon(uv_timer_t *t)
{
    struct fixed *f = t->data;
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
        fixed_take_word(f);
    cb(f->next_ctx, f->why.code, f->why.code == 0 ? &f->round : NULL,
       f->why.code == 0 ? NULL : &f->why);
}

void fixed_soon(struct fixed *f)
{
    (void)uv_timer_start(&f->soon, on_soon, 0, 0);
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
    struct fixed *f = fixed_of(h);

    assert(!f->next_cb);
    f->next_cb = cb;
    f->next_ctx = ctx;
    f->why.code = 0;
    if (f->ready) {
        f->round.round++;
        fixed_soon(f);
    } else {
        trace(f->trace, TRACE_INFO,
              "Creating TCPStore as the c10d::Store implementation");
        fixed_begin(f);
    }
}

static void cancel(struct rdzv_handler *h)
{
    struct fixed *f = fixed_of(h);
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
    const struct fixed *f = fixed_of(h);

    *out = (struct rdzv_progress){ .stage = f->here ? RDZV_AT_ROUND : RDZV_AT_STORE,
                                   .here = f->here,
                                   .min_nodes = f->world,
                                   .max_nodes = f->world,
                                   .by_ms = f->by_ms,
                                   .start_by_ms = MONO_NEVER,
                                   .dialled = true };
    return f->next_cb && !f->ready;
}

static struct astore *gathers_at(const struct rdzv_handler *h)
{
    const struct fixed *f = fixed_of(h);

    return f->next_cb && !f->ready && f->here ? f->prefixed : NULL;
}

static void tell(struct rdzv_handler *h, size_t which, rdzv_done_cb cb, void *ctx)
{
    struct fixed *f = fixed_of(h);

    f->done[which].cb = cb;
    f->done[which].ctx = ctx;
    fixed_soon(f);
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
    struct fixed *f = fixed_of(h);

    if (f->server && f->world == 1)
        store_server_wipe(f->server);
}

/* ---- The end ---- */

void fixed_release(struct fixed *f)
{
    void (*cb)(void *) = f->gone_cb;
    void *ctx = f->gone_ctx;

    if (--f->refs > 0)
        return;
    mem_free(f->run_id);
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

void fixed_drop(struct fixed *f, struct astore **s)
{
    if (!*s)
        return;
    f->refs++;
    astore_close(*s, on_gone, f);
    *s = NULL;
}

static void on_server_gone(void *ctx)
{
    struct fixed *f = ctx;

    f->ending = false;
    if (!f->destroying)
        fixed_soon(f);
    fixed_release(f);
}

void fixed_end_server(struct fixed *f)
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
    struct fixed *f = fixed_of(h);

    f->destroying = true;
    f->next_cb = NULL;
    f->gone_cb = cb;
    f->gone_ctx = ctx;
    fixed_drop(f, &f->counter);
    fixed_drop(f, &f->prefixed);
    fixed_drop(f, &f->store);
    fixed_end_server(f);
    uv_close((uv_handle_t *)&f->soon, on_handle_gone);
}

const struct rdzv_handler_ops static_ops = {
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
    .set_closed = set_closed,
    .leave = leave,
    .shutdown = shutdown_handler,
    .wipe_worker_store = wipe_worker_store,
    .destroy = destroy,
};
