/* presence.c - see presence.h. */
#include "etcd/presence.h"

#include "base/err.h"
#include "base/mem.h"
#include "etcd/lease.h"
#include "etcd/watch.h"

#define PUT_MS  10000u
#define STOP_MS 1000u

struct etcd_presence {
    struct etcd_kv kv;
    char *dir, *path; /* owned; path: dir and our name */
    struct etcd_lease *lease;
    struct etcd_watch *watch;
    struct etcd_op *put;
    uv_timer_t timer; /* to put again */
    void (*on_gone)(void *ctx, struct span name);
    void (*on_cut_off)(void *ctx, const char *why);
    void *ctx;
    void (*on_stopped)(void *ctx);
    void *stopped_ctx;
};

static void presence_put(struct etcd_presence *p);

static void presence_on_put_again(uv_timer_t *timer)
{
    presence_put(timer->data);
}

static void presence_on_put(void *ctx, int status, const struct etcd_held *held,
                            const struct muster_error *err)
{
    struct etcd_presence *p = ctx;

    (void)held;
    (void)err; /* The reads and writes of the state report such an error. */
    p->put = NULL;
    if (status == MUSTER_ENOENT)
        etcd_lease_check(
            p->lease); /* It has run out: presence_on_granted() puts again. */
    else if (status < 0)
        (void)uv_timer_start(&p->timer, presence_on_put_again, 1000, 0);
}

static void presence_put(struct etcd_presence *p)
{
    const struct etcd_put put = { .path = span_str(p->path),
                                  .value = span_str("1"),
                                  .lease = etcd_lease_id(p->lease) };
    const struct etcd_kv_request req = { .kind = KV_OPERATION_PUT,
                                         .put = &put,
                                         .timeout_ms = PUT_MS };

    etcd_op_cancel(p->put);
    p->put = NULL;
    if (put.lease && etcd_kv_start(&p->kv, &req, presence_on_put, p, &p->put, NULL) < 0)
        (void)uv_timer_start(&p->timer, presence_on_put_again, 1000, 0);
}

static void presence_on_granted(void *ctx, int64_t id)
{
    (void)id;
    presence_put(ctx);
}

static void presence_on_cut_off(void *ctx, const char *why)
{
    const struct etcd_presence *p = ctx;

    p->on_cut_off(p->ctx, why);
}

uint64_t etcd_presence_fence_due(const struct etcd_presence *p)
{
    return etcd_lease_fence_due(p->lease);
}

static void presence_on_change(void *ctx, const struct etcd3_reply *events)
{
    struct etcd_presence *p = ctx;
    const size_t n = strlen(p->dir);

    /* If the watch missed an event, the keep-alive times in the state still show it. */
    for (size_t i = 0; events && i < events->event_count; i++) {
        const struct etcd3_event *ev = &events->events[i];

        if (!ev->deleted || ev->kv.key.n <= n || memcmp(ev->kv.key.p, p->dir, n) != 0)
            continue;
        if (span_eq(ev->kv.key, span_str(p->path)))
            presence_put(
                p); /* Our own key has expired: the cluster was unreachable too long. */
        else
            p->on_gone(p->ctx, span_of(ev->kv.key.p + n, ev->kv.key.n - n));
    }
}

/* ---- Open and close ---- */

static void presence_free(struct etcd_presence *p)
{
    mem_free(p->dir);
    mem_free(p->path);
    mem_free(p);
}

static void presence_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_presence *p = handle->data;
    void (*cb)(void *) = p->on_stopped;
    void *const ctx = p->stopped_ctx;

    presence_free(p);
    if (cb)
        cb(ctx);
}

static void presence_on_lease_gone(void *ctx)
{
    struct etcd_presence *p = ctx;

    uv_close((uv_handle_t *)&p->timer, presence_on_timer_closed);
}

void etcd_presence_stop(struct etcd_presence *p, void (*cb)(void *ctx), void *ctx)
{
    p->on_stopped = cb;
    p->stopped_ctx = ctx;
    etcd_op_cancel(p->put);
    etcd_watch_stop(p->watch);
    (void)uv_timer_stop(&p->timer);
    etcd_lease_stop(p->lease, STOP_MS, presence_on_lease_gone, p);
}

/* The old key stays, under our lease: deleting it would tell the others that the node
 * of that name has ended. */
int etcd_presence_rename(struct etcd_presence *p, const char *name)
{
    char *path = mem_printf("%s%s", p->dir, name);

    if (!path)
        return MUSTER_ENOMEM;
    mem_free(p->path);
    p->path = path;
    presence_put(p);
    return 0;
}

int etcd_presence_start(const struct etcd_kv *kv, const struct etcd_presence_opts *opts,
                        struct etcd_presence **out, struct muster_error *err)
{
    struct etcd_presence *p = mem_calloc(1, sizeof *p);
    const struct etcd_watch_opts others = { .key = span_str(opts->dir),
                                            .below = true,
                                            .only_ends = true,
                                            .on_change = presence_on_change,
                                            .ctx = p };
    const struct etcd_lease_opts lease = { .ttl_s = opts->ttl_s,
                                           .seed = uv_hrtime() ^
                                                   (uint64_t)uv_os_getpid() << 32,
                                           .on_granted = presence_on_granted,
                                           .on_cut_off = presence_on_cut_off,
                                           .ctx = p };
    int rc;

    if (!p)
        return err_nomem(err);
    p->kv = *kv;
    p->on_gone = opts->on_gone;
    p->on_cut_off = opts->on_cut_off;
    p->ctx = opts->ctx;
    p->dir = mem_strdup(opts->dir);
    p->path = mem_printf("%s%s", opts->dir, opts->name);
    rc = p->dir && p->path ? etcd_watch_start(kv->client, &others, &p->watch, err)
                           : err_nomem(err);
    if (rc == 0)
        rc = etcd_lease_start(kv->client, &lease, &p->lease, err);
    if (rc < 0) {
        etcd_watch_stop(p->watch);
        presence_free(p);
        return rc;
    }
    (void)uv_timer_init(etcd_client_loop(kv->client), &p->timer); /* cannot fail */
    p->timer.data = p;
    *out = p;
    return 0;
}
