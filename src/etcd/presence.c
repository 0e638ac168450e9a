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
    etcd_gone_cb cb;
    etcd_cut_off_cb cut_off;
    void *ctx;
    void (*on_stopped)(void *ctx);
    void *stopped_ctx;
};

static void put(struct etcd_presence *p);

static void on_put_again(uv_timer_t *timer)
{
    put(timer->data);
}

static void presence_on_put(void *ctx, int status, const struct etcd_held *held,
                            const struct muster_error *err)
{
    struct etcd_presence *p = ctx;

    (void)held;
    (void)err; /* The reads and writes of the state report such an error. */
    p->put = NULL;
    if (status == MUSTER_ENOENT)
        etcd_lease_check(p->lease); /* It has run out: on_granted() puts again. */
    else if (status < 0)
        (void)uv_timer_start(&p->timer, on_put_again, 1000, 0);
}

static void put(struct etcd_presence *p)
{
    const struct etcd_put put = { .path = span_str(p->path),
                                  .value = span_str("1"),
                                  .lease = etcd_lease_id(p->lease) };

    etcd_op_cancel(p->put);
    p->put = NULL;
    if (put.lease &&
        etcd_kv_put(&p->kv, &put, PUT_MS, presence_on_put, p, &p->put, NULL) < 0)
        (void)uv_timer_start(&p->timer, on_put_again, 1000, 0);
}

static void on_granted(void *ctx, int64_t id)
{
    (void)id;
    put(ctx);
}

static void on_not_granted(void *ctx, const struct muster_error *err)
{
    (void)ctx;
    (void)err;
}

static void presence_on_cut_off(void *ctx, const char *why)
{
    struct etcd_presence *p = ctx;

    p->cut_off(p->ctx, why);
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
            put(p); /* Our own key has expired: the cluster was unreachable too long. */
        else
            p->cb(p->ctx, span_of(ev->kv.key.p + n, ev->kv.key.n - n));
    }
}

static int watch(struct etcd_presence *p, struct muster_error *err)
{
    struct buf end;
    int rc;

    buf_init(&end, SIZE_MAX);
    rc = etcd3_prefix_end(&end, span_str(p->dir));
    if (rc == 0)
        rc = etcd_watch_start(p->kv.client, span_str(p->dir), buf_span(&end), true, 0,
                              presence_on_change, p, &p->watch, err);
    else
        err_nomem(err);
    buf_fini(&end);
    return rc;
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

static void on_lease_gone(void *ctx)
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
    etcd_lease_stop(p->lease, STOP_MS, on_lease_gone, p);
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
    put(p);
    return 0;
}

int etcd_presence_start(const struct etcd_kv *kv, const char *dir, const char *name,
                        uint64_t ttl_s, etcd_gone_cb cb, etcd_cut_off_cb cut_off,
                        void *ctx, struct etcd_presence **out, struct muster_error *err)
{
    struct etcd_presence *p = mem_calloc(1, sizeof *p);
    int rc;

    if (!p)
        return err_nomem(err);
    p->kv = *kv;
    p->cb = cb;
    p->cut_off = cut_off;
    p->ctx = ctx;
    p->dir = mem_strdup(dir);
    p->path = mem_printf("%s%s", dir, name);
    rc = p->dir && p->path ? watch(p, err) : err_nomem(err);
    if (rc == 0)
        rc = etcd_lease_start(kv->client, ttl_s,
                              uv_hrtime() ^ (uint64_t)uv_os_getpid() << 32, on_granted,
                              on_not_granted, p, &p->lease, err);
    if (rc < 0) {
        etcd_watch_stop(p->watch);
        presence_free(p);
        return rc;
    }
    etcd_lease_fence(p->lease, presence_on_cut_off);
    (void)uv_timer_init(etcd_client_loop(kv->client), &p->timer); /* cannot fail */
    p->timer.data = p;
    *out = p;
    return 0;
}
