/* backend.c - the blocking face of a state backend; see muster/backend.h.
 *
 * The backend belongs to its home, as the stores made from it borrow its connections:
 * it ends when the last of them is closed and the caller's handle is freed. It does one
 * get or set at a time, so requests wait in a queue, which is touched on the loop only.
 */
#include "muster/backend.h"

#include "api/need.h"
#include "api/params_int.h"
#include "api/store_int.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/state_backend.h"

struct request;

struct muster_backend {
    struct home *home;             /* counts us like one of its stores */
    uint64_t timeout_ms;           /* of stores that are made from it */
    struct request *first, **last; /* borrowed from callers; the first is under way */
};

struct request {
    struct blocking_loop_job job; /* first */
    struct muster_backend *b;
    const struct muster_params *params; /* open */
    struct buf value;                   /* set */
    const void *token;                  /* set; NULL: none */
    size_t token_size;
    bool write;
    struct muster_state state;  /* get and set: the result */
    struct async_store *made;   /* store */
    struct muster_store *store; /* likewise */
    struct muster_error err;
    bool last; /* free: nothing uses the home any more */
    struct request *next;
};

static struct rdzv_backend *inner(const struct muster_backend *b)
{
    return b->home->backend;
}

static int backend_call(struct muster_backend *b, struct request *r,
                        void (*begin)(struct blocking_loop_job *),
                        struct muster_error *err)
{
    r->job.begin = begin;
    r->b = b;
    return blocking_loop_call(b->home->calls, &r->job, err);
}

/* ---- Opening ---- */

static void begin_open(struct blocking_loop_job *job)
{
    struct request *r = (struct request *)job;
    struct home *home = r->b->home;
    const int rc = rdzv_backend_create(blocking_loop_loop(home->calls),
                                       &r->params->inner, &home->backend, &r->err);

    if (rc < 0)
        blocking_loop_done(job, rc, &r->err);
    else
        inner(r->b)->ops->open(inner(r->b), blocking_loop_done, job);
}

int muster_backend_open(const struct muster_params *params, struct muster_backend **out,
                        struct muster_error *err)
{
    struct request r = { .params = params };
    struct muster_backend *b;
    int64_t seconds = 60;
    int rc;

    if (need(params, "params", err) < 0 || need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    rc = conf_int(&params->inner, CONF_READ_TIMEOUT, &seconds, err);
    if (rc < 0)
        return rc;
    b = mem_calloc(1, sizeof *b);
    rc = b ? home_new(false, &b->home, err) : err_nomem(err);
    if (rc < 0) {
        mem_free(b);
        return rc;
    }
    b->home->stores = 1;
    b->timeout_ms = (uint64_t)MAX_OF(MIN_OF(seconds, 31536000), 1) * 1000;
    b->last = &b->first;
    rc = backend_call(b, &r, begin_open, err);
    if (rc < 0)
        muster_backend_free(b);
    else
        *out = b;
    return rc;
}

/* ---- Get and set ---- */

/* Decodes the stored text into memory that the caller will free. */
static int decode_state(struct muster_state *s, const struct rdzv_event *ev,
                        struct muster_error *err)
{
    uint8_t *bytes = mem_alloc(BASE64_DECODED(ev->value.n) + 1);
    void *token = mem_memdup(ev->token.p, ev->token.n);
    const int64_t n = bytes ? base64_decode(bytes, ev->value) : 0;

    if (!bytes || !token || n < 0) {
        mem_free(bytes);
        mem_free(token);
        return n < 0 ? err_set(err, MUSTER_ESTATE,
                               "The state object is corrupt: it is not base64.")
                     : err_nomem(err);
    }
    *s = (struct muster_state){ .bytes = bytes,
                                .size = (size_t)n,
                                .token = token,
                                .token_size = ev->token.n,
                                .won = ev->won };
    return 0;
}

static void start_request(struct request *r);

static void on_state(void *ctx, const struct rdzv_event *ev)
{
    struct request *r = ctx;
    struct muster_backend *b = r->b;
    int rc = 0;

    if (ev->kind == RDZV_EV_FAILED)
        rc = err_set(&r->err, ev->code, "%s", ev->text);
    else if (ev->present)
        rc = decode_state(&r->state, ev, &r->err);
    b->first = r->next;
    if (!b->first)
        b->last = &b->first;
    blocking_loop_done(&r->job, rc, &r->err); /* After this r is its caller's. */
    if (b->first)
        start_request(b->first);
}

static void start_request(struct request *r)
{
    struct rdzv_backend *b = inner(r->b);

    if (r->write)
        b->ops->set(b, buf_span(&r->value), r->token != NULL,
                    span_of(r->token, r->token_size), false, UINT64_MAX, on_state, r);
    else
        b->ops->get(b, UINT64_MAX, on_state, r);
}

static void begin_state(struct blocking_loop_job *job)
{
    struct request *r = (struct request *)job;
    const bool idle = !r->b->first;

    *r->b->last = r;
    r->b->last = &r->next;
    if (idle)
        start_request(r);
}

static int ask_state(struct muster_backend *b, struct request *r,
                     struct muster_state *out, struct muster_error *err)
{
    const int rc = backend_call(b, r, begin_state, err);

    if (rc == 0)
        *out = r->state;
    return rc;
}

int muster_backend_get_state(struct muster_backend *b, struct muster_state *out,
                             struct muster_error *err)
{
    struct request r = { .write = false };

    if (need(b, "backend", err) < 0 || need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    return ask_state(b, &r, out, err);
}

int muster_backend_set_state(struct muster_backend *b, const void *bytes, size_t size,
                             const void *token, size_t token_size,
                             struct muster_state *out, struct muster_error *err)
{
    struct request r = { .write = true, .token = token, .token_size = token_size };
    int rc;

    if (need(b, "backend", err) < 0 || need_bytes(bytes, size, "bytes", err) < 0 ||
        need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    if (size == 0)
        return err_set(err, MUSTER_EINVAL, "a state has at least one byte");
    buf_init(&r.value, SIZE_MAX);
    rc = base64_encode(&r.value, span_of(bytes, size)) < 0 ? err_nomem(err)
                                                           : ask_state(b, &r, out, err);
    buf_fini(&r.value);
    return rc;
}

void muster_state_free(struct muster_state *s)
{
    if (!s)
        return;
    mem_free(s->bytes);
    mem_free(s->token);
    *s = (struct muster_state){ 0 };
}

/* ---- A store ---- */

static void begin_store(struct blocking_loop_job *job)
{
    struct request *r = (struct request *)job;
    struct muster_backend *b = r->b;
    int rc = inner(b)->ops->store(inner(b), &r->made, &r->err);

    if (rc == 0) {
        rc = store_adopt(b->home, r->made, NULL, b->timeout_ms, 0, &r->store, &r->err);
        if (rc < 0) {
            store_undo(job, r->made, &r->err);
            return;
        }
    }
    blocking_loop_done(job, rc, &r->err);
}

int muster_backend_store(struct muster_backend *b, struct muster_store **out,
                         struct muster_error *err)
{
    struct request r = { .made = NULL };
    int rc;

    if (need(b, "backend", err) < 0 || need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    rc = backend_call(b, &r, begin_store, err);
    if (rc == 0)
        *out = r.store;
    return rc;
}

/* ---- The end ---- */

static void begin_free(struct blocking_loop_job *job)
{
    struct request *r = (struct request *)job;

    r->last = --r->b->home->stores == 0;
    blocking_loop_done(job, 0, NULL);
}

void muster_backend_free(struct muster_backend *b)
{
    struct request r = { .last = false };

    if (!b)
        return;
    (void)backend_call(b, &r, begin_free,
                       NULL); /* In a child of fork() it does nothing. */
    if (r.last)
        home_free(b->home);
    mem_free(b);
}
