/* store.c - stores for callers that want to block: their life; see muster/store.h. The
 * operations are in store_ops.c, opening over TCP in store_tcp.c. */
#include "muster/store.h"

#include "api/store_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "io/store_file.h"
#include "io/store_hash.h"

int home_new(struct home **out, struct muster_error *err)
{
    struct home *h = mem_calloc(1, sizeof *h);
    int rc = h ? bridge_new(&h->bridge, err) : err_nomem(err);

    if (rc < 0) {
        mem_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

void home_free(struct home *h)
{
    bridge_free(h->bridge);
    mem_free(h);
}

void home_close_server(struct home *h, void (*cb)(void *ctx), void *ctx)
{
    struct store_server *server = h->server;

    h->server = NULL;
    if (server)
        store_server_close(server, cb, ctx);
    else
        cb(ctx);
}

int store_settle(struct home *h, struct astore *a, struct shared *under,
                 uint64_t timeout_ms, uint16_t port, struct muster_store **out,
                 struct muster_error *err)
{
    struct muster_store *s = mem_calloc(1, sizeof *s);
    struct shared *shared = mem_calloc(1, sizeof *shared);
    char *name = mem_strdup(a->ops->name(a));

    if (!s || !shared || !name) {
        mem_free(s);
        mem_free(shared);
        mem_free(name);
        return err_nomem(err);
    }
    *shared = (struct shared){ .astore = a, .under = under, .refs = 1 };
    s->home = h;
    s->shared = shared;
    s->name = name;
    s->port = port;
    atomic_init(&s->timeout_ms, timeout_ms);
    h->stores++;
    *out = s;
    return 0;
}

/* ---- file, hash, views, clones: all that opens at once ---- */

struct opening {
    struct bridge_job job; /* first */
    struct home *home;
    struct muster_store *from; /* views and clones */
    const char *text;          /* path or prefix */
    int64_t world_size;
    uint64_t timeout_ms;
    int (*make)(struct opening *o, struct astore **out, struct muster_error *err);
    struct muster_store *out;
};

static void on_undone(void *ctx)
{
    struct opening *o = ctx;

    bridge_done(&o->job, o->job.err.code, &o->job.err);
}

static void begin_opening(struct bridge_job *job)
{
    struct opening *o = (struct opening *)job;
    struct shared *under = NULL;
    struct astore *a;
    struct muster_error err;

    if (o->make(o, &a, &err) < 0) {
        bridge_done(job, err.code, &err);
        return;
    }
    if (o->from && strcmp(a->ops->kind, "prefix") == 0 && o->text)
        under = o->from->shared;
    if (store_settle(o->home, a, under, o->timeout_ms, o->from ? o->from->port : 0,
                     &o->out, &err) < 0) {
        job->err = err;
        astore_close(a, on_undone, o);
        return;
    }
    if (under)
        under->refs++;
    bridge_done(job, 0, NULL);
}

static int open_here(struct opening *o, struct muster_store **out,
                     struct muster_error *err)
{
    int rc;

    o->job.begin = begin_opening;
    rc = bridge_call(o->home->bridge, &o->job);
    if (rc < 0)
        return err_copy(err, &o->job.err);
    *out = o->out;
    return 0;
}

static int open_at_home(struct opening *o, struct muster_store **out,
                        struct muster_error *err)
{
    int rc = home_new(&o->home, err);

    if (rc < 0)
        return rc;
    rc = open_here(o, out, err);
    if (rc < 0)
        home_free(o->home);
    return rc;
}

static int make_file(struct opening *o, struct astore **out, struct muster_error *err)
{
    return store_file_open(bridge_loop(o->home->bridge), o->text, o->world_size, out,
                           err);
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
    return open_at_home(&o, out, err);
}

static int make_hash(struct opening *o, struct astore **out, struct muster_error *err)
{
    return store_hash_open(bridge_loop(o->home->bridge), out, err);
}

int muster_store_open_hash(uint64_t timeout_ms, struct muster_store **out,
                           struct muster_error *err)
{
    struct opening o = { .timeout_ms = timeout_ms, .make = make_hash };

    return open_at_home(&o, out, err);
}

static int make_view(struct opening *o, struct astore **out, struct muster_error *err)
{
    return astore_prefix(o->from->shared->astore, o->text, false, out, err);
}

int muster_store_open_prefix(struct muster_store *inner, const char *prefix,
                             struct muster_store **out, struct muster_error *err)
{
    struct opening o = { .home = inner->home,
                         .from = inner,
                         .text = prefix,
                         .timeout_ms = muster_store_timeout(inner),
                         .make = make_view };

    return open_here(&o, out, err);
}

static int make_clone(struct opening *o, struct astore **out, struct muster_error *err)
{
    struct astore *a = o->from->shared->astore;

    return a->ops->clone(a, out, err);
}

int muster_store_clone(struct muster_store *s, struct muster_store **out,
                       struct muster_error *err)
{
    struct opening o = { .home = s->home,
                         .from = s,
                         .timeout_ms = muster_store_timeout(s),
                         .make = make_clone };

    return open_here(&o, out, err);
}

/* ---- closing ---- */

struct closing {
    struct bridge_job job; /* first */
    struct muster_store *store;
    bool last; /* nothing lives in its home any more */
};

static void on_server_closed(void *ctx)
{
    struct closing *c = ctx;

    bridge_done(&c->job, 0, NULL);
}

/* Lets go of what the store used, layer by layer, as far as nobody else uses it. */
static void let_go(void *ctx)
{
    struct closing *c = ctx;
    struct shared *shared = c->store->shared;

    if (shared && --shared->refs == 0) {
        struct astore *a = shared->astore;

        c->store->shared = shared->under;
        mem_free(shared);
        astore_close(a, let_go, c);
        return;
    }
    c->last = --c->store->home->stores == 0;
    if (c->last)
        home_close_server(c->store->home, on_server_closed, c);
    else
        bridge_done(&c->job, 0, NULL);
}

static void begin_closing(struct bridge_job *job)
{
    let_go(job);
}

void muster_store_close(struct muster_store *s)
{
    struct closing c = { .job = { .begin = begin_closing }, .store = s };

    if (!s)
        return;
    (void)bridge_call(s->home->bridge, &c.job);
    if (c.last)
        home_free(s->home);
    mem_free(s->name);
    mem_free(s);
}

/* ---- what is known without asking ---- */

void muster_store_set_timeout(struct muster_store *s, uint64_t timeout_ms)
{
    atomic_store(&s->timeout_ms, timeout_ms);
}

uint64_t muster_store_timeout(const struct muster_store *s)
{
    return atomic_load(&s->timeout_ms);
}

const char *muster_store_name(const struct muster_store *s)
{
    return s->name;
}

uint16_t muster_store_port(const struct muster_store *s)
{
    return s->port;
}
