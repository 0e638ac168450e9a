/* foreign_backend.c - makes a caller's blocking backend (muster_backend_ops) one of
 * ours.
 *
 * Its functions run on libuv's thread pool, one at a time: open, then gets and sets,
 * and close when the last of them has returned. While a function runs, the fields that
 * it uses belong to the pool; the loop reads them only afterwards. */
#include "api/foreign.h"

#include <assert.h>
#include <stdlib.h>

#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/endpoint.h"
#include "store/client.h"

#define STORE_MS 60000u

enum work_kind { WORK_OPEN, WORK_GET, WORK_SET, WORK_CLOSE };

struct foreign_backend {
    struct rdzv_backend base;
    const struct foreign *f; /* borrowed from the registry */
    const struct log *log;
    struct rdzv_backend_ops ops; /* with the caller's name */
    struct muster_params params; /* owned copy */
    void *self;                  /* the caller's */
    bool opened, closing;
    struct endpoint store;

    uv_work_t work;
    bool busy;
    enum work_kind kind;
    struct buf value, token; /* of a set */
    bool has_token;
    struct muster_state state; /* the answer */
    int status;
    struct muster_error err;

    rdzv_open_cb on_open;
    rdzv_state_cb on_state;
    rdzv_gone_cb on_gone;
    void *ctx, *gone_ctx;
};

static struct foreign_backend *foreign_backend_of(const struct rdzv_backend *b)
{
    return CONTAINER_OF(b, struct foreign_backend, base);
}

static void foreign_run_work(uv_work_t *w)
{
    struct foreign_backend *fb = w->data;
    const struct muster_backend_ops *ops = fb->f->backend;

    fb->state = (struct muster_state){ 0 };
    fb->err.code = 0;
    fb->err.text[0] = '\0';
    switch (fb->kind) {
    case WORK_OPEN:
        fb->status = ops->open(fb->f->ctx, &fb->params, &fb->self, &fb->err);
        return;
    case WORK_GET:
        fb->status = ops->get_state(fb->self, &fb->state, &fb->err);
        return;
    case WORK_SET:
        fb->status = ops->set_state(fb->self, buf_data(&fb->value), buf_len(&fb->value),
                                    fb->has_token ? buf_data(&fb->token) : NULL,
                                    fb->has_token ? buf_len(&fb->token) : 0, &fb->state,
                                    &fb->err);
        return;
    case WORK_CLOSE:
        if (fb->opened)
            ops->close(fb->self);
        fb->status = 0;
        return;
    }
}

static void on_ran(uv_work_t *w, int status);

static void foreign_start(struct foreign_backend *fb, enum work_kind kind)
{
    assert(!fb->busy);
    fb->busy = true;
    fb->kind = kind;
    (void)uv_queue_work(fb->base.loop, &fb->work, foreign_run_work,
                        on_ran); /* cannot fail */
}

static void foreign_gone(struct foreign_backend *fb)
{
    const rdzv_gone_cb cb = fb->on_gone;
    void *ctx = fb->gone_ctx;

    buf_fini(&fb->value);
    buf_fini(&fb->token);
    params_fini(&fb->params.inner);
    mem_free(fb);
    cb(ctx);
}

static void foreign_opened(struct foreign_backend *fb)
{
    const char *store = fb->status == 0 ? fb->f->backend->store(fb->self) : NULL;
    int rc = fb->status;

    fb->opened = rc == 0;
    if (rc == 0 && !store)
        rc = err_set(&fb->err, MUSTER_EINVAL,
                     "the backend '%s' names no store for the group's keys",
                     fb->f->name);
    if (rc == 0)
        rc = endpoint_parse(store, RDZV_C10D_PORT, &fb->store, &fb->err);
    fb->on_open(fb->ctx, rc, rc == 0 ? NULL : &fb->err);
}

static void foreign_answered(struct foreign_backend *fb)
{
    const struct muster_state s = fb->state; /* The callback may start the next call. */
    const struct muster_error err = fb->err;
    struct rdzv_event ev = { .kind =
                                 fb->kind == WORK_SET ? RDZV_EV_WROTE : RDZV_EV_STATE };

    fb->state = (struct muster_state){ 0 };
    if (fb->status < 0) {
        ev = (struct rdzv_event){ .kind = RDZV_EV_FAILED,
                                  .code = fb->status,
                                  .text = err.text };
    } else {
        ev.present = s.bytes != NULL;
        ev.value = span_of(s.bytes, s.size);
        ev.token = span_of(s.token, s.token_size);
        ev.won = s.won != 0;
    }
    fb->on_state(fb->ctx, &ev);
    free(s.bytes); /* The caller's function allocated it with malloc. */
    free(s.token);
}

static void on_ran(uv_work_t *w, int status)
{
    struct foreign_backend *fb = w->data;

    (void)status;
    fb->busy = false;
    if (fb->kind == WORK_CLOSE) {
        foreign_gone(fb);
    } else if (fb->closing) {
        fb->opened = fb->opened || (fb->kind == WORK_OPEN && fb->status == 0);
        free(fb->state.bytes);
        free(fb->state.token);
        foreign_start(fb, WORK_CLOSE);
    } else if (fb->kind == WORK_OPEN) {
        foreign_opened(fb);
    } else {
        foreign_answered(fb);
    }
}

static void open_backend(struct rdzv_backend *b, rdzv_open_cb cb, void *ctx)
{
    struct foreign_backend *fb = foreign_backend_of(b);

    fb->on_open = cb;
    fb->ctx = ctx;
    foreign_start(fb, WORK_OPEN);
}

static void foreign_get(struct rdzv_backend *b, uint64_t timeout_ms, rdzv_state_cb cb,
                        void *ctx)
{
    struct foreign_backend *fb = foreign_backend_of(b);

    (void)timeout_ms; /* The caller's function cannot be interrupted. */
    fb->on_state = cb;
    fb->ctx = ctx;
    foreign_start(fb, WORK_GET);
}

static void foreign_set(struct rdzv_backend *b, struct span value, bool has_token,
                        struct span token, bool quiet, uint64_t timeout_ms,
                        rdzv_state_cb cb, void *ctx)
{
    struct foreign_backend *fb = foreign_backend_of(b);

    (void)quiet; /* The caller's function has no quiet way to write. */
    (void)timeout_ms;
    fb->on_state = cb;
    fb->ctx = ctx;
    buf_clear(&fb->value);
    buf_clear(&fb->token);
    fb->has_token = has_token;
    /* Without memory for the value nothing can be written. A read instead looks like a
     * write that another node has won. */
    if (buf_append_span(&fb->value, value) < 0 ||
        buf_append_span(&fb->token, token) < 0)
        foreign_start(fb, WORK_GET);
    else
        foreign_start(fb, WORK_SET);
}

/* If the connection fails, the store's operations say so. */
static void ignore_opened(void *ctx, int status, const struct muster_error *err)
{
    (void)ctx;
    (void)status;
    (void)err;
}

static int foreign_store(struct rdzv_backend *b, struct async_store **out,
                         struct muster_error *err)
{
    struct foreign_backend *fb = foreign_backend_of(b);
    const struct store_client_opts opts = { .host = fb->store.host,
                                            .port = (uint16_t)fb->store.port,
                                            .timeout_ms = STORE_MS,
                                            .log = fb->log };

    return store_client_open(fb->base.loop, &opts, ignore_opened, NULL, out, err);
}

static const char *foreign_where(const struct rdzv_backend *b)
{
    return foreign_backend_of(b)->f->name;
}

static void close_backend(struct rdzv_backend *b, rdzv_gone_cb cb, void *ctx)
{
    struct foreign_backend *fb = foreign_backend_of(b);

    fb->closing = true;
    fb->on_gone = cb;
    fb->gone_ctx = ctx;
    if (!fb->busy)
        foreign_start(fb, WORK_CLOSE);
}

int foreign_create(void *ctx, uv_loop_t *loop, const struct rdzv_params *params,
                   const struct log *log, struct rdzv_handler **out,
                   struct muster_error *err)
{
    struct foreign_backend *fb = mem_calloc(1, sizeof *fb);
    int rc = fb ? params_copy(&fb->params.inner, params, err) : err_nomem(err);

    if (rc < 0) {
        mem_free(fb);
        return rc;
    }
    fb->f = ctx;
    fb->ops = (struct rdzv_backend_ops){
        .name = fb->f->name,
        .open = open_backend,
        .get = foreign_get,
        .set = foreign_set,
        .store = foreign_store,
        .where = foreign_where,
        .close = close_backend,
    };
    fb->base = (struct rdzv_backend){ &fb->ops, loop };
    fb->log = log;
    fb->work.data = fb;
    buf_init(&fb->value, SIZE_MAX);
    buf_init(&fb->token, SIZE_MAX);
    return rdzv_dynamic_create(loop, params, log, &fb->base, out, err);
}
