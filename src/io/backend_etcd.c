/* backend_etcd.c - the rendezvous state in etcd, for the dynamic handler: get, set and
 * watch. Open, presence and close are in backend_etcd_open.c, what is no I/O in
 * rdzv/etcd_state.c.
 *
 * etcd-v2: torch's keys and bytes, so that torchrun --rdzv-backend=etcd-v2 shares the
 * group. etcd-v3: ours. There everything a node writes hangs on a lease that the node
 * keeps alive while it lives: the state is written by all, so it stays while anybody
 * beats, and a few minutes after the last node has gone nothing of the run is left. */
#include "base/err.h"
#include "io/backend_etcd_int.h"

/* ---- Get and set ---- */

static void tell(struct etcd_state *b, struct rdzv_event *ev)
{
    const rdzv_state_cb cb = b->on_state;

    b->req = NULL;
    b->on_state = NULL;
    cb(b->state_ctx, ev);
}

static void fail(struct etcd_state *b, int code, const struct muster_error *why)
{
    struct muster_error err = *why;
    struct rdzv_event ev;

    if (code == MUSTER_ENOENT && b->lease)
        etcd_lease_check(b->lease);
    etcd_state_failed(&ev, code);
    err_wrap(&err, "The connection to etcd has failed");
    ev.text = err.text;
    tell(b, &ev);
}

static void on_soon(uv_timer_t *timer);
static void on_events(void *ctx, const struct etcd3_reply *events);

static void answer(struct etcd_state *b, bool write, bool won,
                   const struct etcd_held *held)
{
    char token[ETCD_TOKEN_SIZE];
    struct rdzv_event ev;

    etcd_state_event(&ev, write, won, held, token);
    etcd_seen_told(&b->seen, held);
    if (b->kv.api == ETCD_V3 &&
        !b->watch) /* if it fails, the next answer tries again */
        (void)etcd_watch_start(
            b->client, span_str(b->names.bell), (struct span){ NULL, 0 }, false,
            (int64_t)held->revision + 1, on_events, b, &b->watch, NULL);
    tell(b, &ev);
    if (b->on_changed && etcd_is_stale(&b->seen)) /* somebody was faster */
        (void)uv_timer_start(&b->soon, on_soon, 0, 0);
}

static void on_got(void *ctx, int status, const struct etcd_held *held,
                   const struct muster_error *err)
{
    if (status < 0)
        fail(ctx, status, err);
    else
        answer(ctx, false, false, held);
}

static void on_put(void *ctx, int status, const struct etcd_held *held,
                   const struct muster_error *err)
{
    if (status < 0 && status != MUSTER_EEXIST)
        fail(ctx, status, err);
    else
        answer(ctx, true, status == 0, held);
}

/* Told from the loop, like every other. */
static void unmade(struct etcd_state *b)
{
    b->unmade = true;
    (void)uv_timer_start(&b->soon, on_soon, 0, 0);
}

void etcd_state_get(struct rdzv_backend *base, uint64_t timeout_ms, rdzv_state_cb cb,
                    void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    const uint64_t ms = MIN_OF(timeout_ms, MIN_OF(b->read_ms, ETCD_REQUEST_MS));

    b->on_state = cb;
    b->state_ctx = ctx;
    if (etcd_kv_get(&b->kv, span_str(b->names.key), ms, on_got, b, &b->req, NULL) < 0)
        unmade(b);
}

void etcd_state_set(struct rdzv_backend *base, struct span value, bool has_token,
                    struct span token, bool quiet, uint64_t timeout_ms,
                    rdzv_state_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);
    const struct etcd_put put =
        etcd_state_put(&b->names, value, has_token, token, quiet, b->lease_id);
    const uint64_t ms = MIN_OF(timeout_ms, MIN_OF(b->read_ms, ETCD_REQUEST_MS));

    b->on_state = cb;
    b->state_ctx = ctx;
    if (etcd_kv_put(&b->kv, &put, ms, on_put, b, &b->req, NULL) < 0)
        unmade(b);
}

/* ---- Watching ---- */

static void start_wait(struct etcd_state *b);

static void changed(struct etcd_state *b)
{
    const rdzv_changed_cb cb = b->on_changed;

    b->on_changed = NULL;
    if (cb)
        cb(b->changed_ctx);
}

static void on_soon(uv_timer_t *timer)
{
    struct etcd_state *b = timer->data;
    struct muster_error err = { 0 };

    if (b->unmade) {
        b->unmade = false;
        fail(b, err_nomem(&err), &err);
    } else if (etcd_is_stale(&b->seen)) {
        changed(b);
    } else if (b->on_changed) {
        start_wait(b);
    }
}

static void on_waited(void *ctx, int status, const struct etcd_held *held,
                      const struct muster_error *err)
{
    struct etcd_state *b = ctx;

    (void)held;
    (void)err;
    b->wait = NULL;
    b->seen.resync = status == 0;
    if (status == 0)
        changed(b);
    else if (b->on_changed) /* etcd is away, and every read says so. */
        (void)uv_timer_start(&b->soon, on_soon, 1000, 0);
}

static void start_wait(struct etcd_state *b)
{
    if (b->kv.api != ETCD_V2)
        return; /* v3's watch runs all the time */
    etcd_op_cancel(b->wait);
    b->wait = NULL;
    if (etcd_kv_wait(&b->kv, span_str(b->names.key), b->seen.revision, UINT64_MAX,
                     on_waited, b, &b->wait, NULL) < 0)
        (void)uv_timer_start(&b->soon, on_soon, 1000, 0);
}

static void on_events(void *ctx, const struct etcd3_reply *events)
{
    struct etcd_state *b = ctx;

    etcd_seen_events(&b->seen, b->names.bell, events);
    if (!b->on_state && etcd_is_stale(&b->seen))
        changed(b);
}

bool etcd_state_watch(struct rdzv_backend *base, bool present, struct span value,
                      rdzv_changed_cb cb, void *ctx)
{
    struct etcd_state *b = etcd_state_of(base);

    (void)present; /* The driver watches what it has seen last: as of b->seen. */
    (void)value;
    b->on_changed = cb;
    b->changed_ctx = ctx;
    (void)uv_timer_stop(&b->soon);
    if (etcd_is_stale(&b->seen))
        (void)uv_timer_start(&b->soon, on_soon, 0, 0);
    else
        start_wait(b);
    return b->kv.api == ETCD_V2 || b->watch;
}
