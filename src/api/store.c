/* store.c - opening and closing of stores for callers that block; see muster/store.h.
 * The operations are in store_ops.c, opening over TCP in store_tcp.c. */
#include "muster/store.h"

#include "api/need.h"
#include "api/store_int.h"
#include "base/err.h"
#include "base/mem.h"

int home_new(bool by_turns, struct home **out, struct muster_error *err)
{
    struct home *h = mem_calloc(1, sizeof *h);
    int rc = h ? blocking_loop_new(by_turns, &h->calls, err) : err_nomem(err);

    if (rc < 0) {
        mem_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

struct ending {
    struct blocking_loop_job job; /* first */
    struct home *home;
};

static void begin_server_closing(struct blocking_loop_job *job)
{
    store_server_close(((struct ending *)job)->home->server, blocking_loop_done_well,
                       job);
}

static void begin_backend_closing(struct blocking_loop_job *job)
{
    struct rdzv_backend *b = ((struct ending *)job)->home->backend;

    b->ops->close(b, blocking_loop_done_well, job);
}

void home_free(struct home *h)
{
    struct ending backend = { { .begin = begin_backend_closing }, h };
    struct ending server = { { .begin = begin_server_closing }, h };

    if (h->backend)
        (void)blocking_loop_call(h->calls, &backend.job, NULL);
    blocking_loop_free(h->calls);
    if (h->server)
        (void)blocking_loop_call(h->serving, &server.job, NULL);
    blocking_loop_free(h->serving);
    mem_free(h);
}

int store_adopt(struct home *h, struct async_store *a, struct shared *under,
                uint64_t timeout_ms, uint16_t port, struct muster_store **out,
                struct muster_error *err)
{
    struct muster_store *s = mem_calloc(1, sizeof *s);
    struct shared *shared = mem_calloc(1, sizeof *shared);
    char *name = mem_strdup(a->name);

    if (!s || !shared || !name) {
        mem_free(s);
        mem_free(shared);
        mem_free(name);
        return err_nomem(err);
    }
    *shared = (struct shared){ .async_store = a, .under = under, .refs = 1 };
    s->home = h;
    s->shared = shared;
    s->name = name;
    s->port = port;
    atomic_init(&s->timeout_ms, timeout_ms);
    h->stores++;
    *out = s;
    return 0;
}

/* ---- file, hash, views, clones: stores that open without waiting for a peer ---- */

struct opening {
    struct blocking_loop_job job; /* first */
    struct home *home;
    struct muster_store *from; /* views and clones */
    const char *text;          /* path or prefix */
    int64_t world_size;
    uint64_t timeout_ms;
    int (*make)(struct opening *o, struct async_store **out, struct muster_error *err);
    struct async_store *made;
    struct muster_error err;
    struct muster_store *out;
};

static void on_undone(void *ctx)
{
    struct blocking_loop_job *job = ctx;
    const struct muster_error err = job->err;

    blocking_loop_done(job, err.code, &err);
}

void store_undo(struct blocking_loop_job *job, struct async_store *a,
                const struct muster_error *err)
{
    job->err = *err;
    async_store_close(a, on_undone, job);
}

static void adopt(struct opening *o, struct shared *under)
{
    const uint16_t port = o->from ? o->from->port : 0;

    if (store_adopt(o->home, o->made, under, o->timeout_ms, port, &o->out, &o->err) <
        0) {
        store_undo(&o->job, o->made, &o->err);
        return;
    }
    if (under)
        under->refs++;
    blocking_loop_done(&o->job, 0, NULL);
}

static void on_usable(void *ctx, int status, const struct c10d_reply *reply,
                      const struct muster_error *err)
{
    struct opening *o = ctx;

    (void)reply;
    if (status == 0)
        adopt(o, NULL);
    else
        store_undo(&o->job, o->made, err);
}

/* A store is open once it has answered a check of no keys: then a clone's connection is
 * established, and a file store has added itself to the file's count. A view is open
 * if the store below it is. */
static void begin_opening(struct blocking_loop_job *job)
{
    const struct c10d_request none = { .op = C10D_CHECK };
    struct opening *o = (struct opening *)job;
    int rc = o->make(o, &o->made, &o->err);

    if (rc < 0) {
        blocking_loop_done(job, rc, &o->err);
        return;
    }
    if (o->from && o->text) {
        adopt(o, o->from->shared);
        return;
    }
    rc = async_store_call(o->made, &none, 0, o->timeout_ms, on_usable, o, &o->err);
    if (rc < 0)
        store_undo(job, o->made, &o->err);
}

static int open_here(struct opening *o, struct muster_store **out,
                     struct muster_error *err)
{
    int rc;

    o->job.begin = begin_opening;
    rc = blocking_loop_call(o->home->calls, &o->job, err);
    if (rc == 0)
        *out = o->out;
    return rc;
}

static int open_at_home(struct opening *o, struct muster_store **out,
                        struct muster_error *err)
{
    int rc = home_new(true, &o->home, err);

    if (rc < 0)
        return rc;
    rc = open_here(o, out, err);
    if (rc < 0)
        home_free(o->home);
    return rc;
}

static int make_file(struct opening *o, struct async_store **out,
                     struct muster_error *err)
{
    return store_file_open(blocking_loop_loop(o->home->calls), o->text, o->world_size,
                           out, err);
}

int muster_store_open_file(const char *path, int64_t world_size, uint64_t timeout_ms,
                           struct muster_store **out, struct muster_error *err)
{
    struct opening o = { .text = path,
                         .world_size = world_size,
                         .timeout_ms = timeout_ms,
                         .make = make_file };

    if (!path || !path[0])
        return err_set(err, MUSTER_EINVAL, "a file store needs the path of a file");
    if (need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    return open_at_home(&o, out, err);
}

static int make_hash(struct opening *o, struct async_store **out,
                     struct muster_error *err)
{
    return store_hash_open(blocking_loop_loop(o->home->calls), out, err);
}

int muster_store_open_hash(uint64_t timeout_ms, struct muster_store **out,
                           struct muster_error *err)
{
    struct opening o = { .timeout_ms = timeout_ms, .make = make_hash };

    if (need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    return open_at_home(&o, out, err);
}

static int make_view(struct opening *o, struct async_store **out,
                     struct muster_error *err)
{
    return async_store_prefix(o->from->shared->async_store, o->text, false, out, err);
}

int muster_store_open_prefix(struct muster_store *inner, const char *prefix,
                             struct muster_store **out, struct muster_error *err)
{
    struct opening o = { .from = inner,
                         .text = prefix,
                         .timeout_ms = muster_store_timeout(inner),
                         .make = make_view };

    if (need(inner, "inner", err) < 0 || need(prefix, "prefix", err) < 0 ||
        need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    o.home = inner->home;
    return open_here(&o, out, err);
}

static int make_clone(struct opening *o, struct async_store **out,
                      struct muster_error *err)
{
    struct async_store *a = o->from->shared->async_store;

    return a->ops->clone(a, out, err);
}

int muster_store_clone(struct muster_store *s, struct muster_store **out,
                       struct muster_error *err)
{
    struct opening o = { .from = s,
                         .timeout_ms = muster_store_timeout(s),
                         .make = make_clone };

    if (need(s, "store", err) < 0 || need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    o.home = s->home;
    return open_here(&o, out, err);
}

/* ---- closing ---- */

struct closing {
    struct blocking_loop_job job; /* first */
    struct muster_store *store;
    bool last; /* no store uses the home any more */
};

/* Closes the layers that the store used, from the top down, as far as no other store
 * uses them. */
static void close_layers(void *ctx)
{
    struct closing *c = ctx;
    struct shared *shared = c->store->shared;

    if (shared && --shared->refs == 0) {
        struct async_store *a = shared->async_store;

        c->store->shared = shared->under;
        mem_free(shared);
        async_store_close(a, close_layers, c);
        return;
    }
    c->last = --c->store->home->stores == 0;
    blocking_loop_done(&c->job, 0, NULL);
}

static void begin_closing(struct blocking_loop_job *job)
{
    close_layers(job);
}

void muster_store_close(struct muster_store *s)
{
    struct closing c = { .job = { .begin = begin_closing }, .store = s };

    if (!s)
        return;
    /* In a child of fork() it does nothing. */
    (void)blocking_loop_call(s->home->calls, &c.job, NULL);
    if (c.last)
        home_free(s->home);
    mem_free(s->name);
    mem_free(s);
}

/* ---- what needs no call on the loop ---- */

void muster_store_set_timeout(struct muster_store *s, uint64_t timeout_ms)
{
    if (s)
        atomic_store(&s->timeout_ms, timeout_ms);
}

uint64_t muster_store_timeout(const struct muster_store *s)
{
    return s ? atomic_load(&s->timeout_ms) : 0;
}

const char *muster_store_name(const struct muster_store *s)
{
    return s ? s->name : "";
}

uint16_t muster_store_port(const struct muster_store *s)
{
    return s ? s->port : 0;
}
