/* etcd_lease.c - see etcd_lease.h. Three beats to a lease's life; each beat may be
 * tried at every endpoint before the next is due. */
#include "io/etcd_lease.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/etcd_client_int.h"

#define GRANT_MS 2000u /* then our user hears of it, and we try again */
#define PAUSE_MS 500u

struct etcd_lease {
    struct etcd_client *client;
    uint64_t ttl_ms;
    struct rng rng;
    int64_t id;             /* 0: none granted */
    int64_t asked;          /* the id of the grant under way */
    struct etcd_call *call; /* the one request under way */
    uv_timer_t timer;
    bool stopped;
    etcd_lease_cb on_granted;
    etcd_lease_failed_cb on_failed;
    void *ctx;
    etcd_lease_gone_cb on_gone;
    void *gone_ctx;
};

static void grant(struct etcd_lease *l);
static void beat(struct etcd_lease *l);

static void on_timer(uv_timer_t *timer)
{
    struct etcd_lease *l = timer->data;

    if (l->id)
        beat(l);
    else
        grant(l);
}

static void wait_for(struct etcd_lease *l, uint64_t ms)
{
    (void)uv_timer_start(&l->timer, on_timer, ms, 0);
}

/* rc of encoding, then the call; what fails here is memory. */
static int request(struct etcd_lease *l, int rc, struct etcd_msg *m,
                   uint64_t timeout_ms, etcd_cb cb)
{
    const struct etcd_call_opts opts = { .timeout_ms = timeout_ms,
                                         .attempt_ms =
                                             MIN_OF(MAX_OF(l->ttl_ms / 6, 500u), 3000u),
                                         .expect = ETCD3_EXPECT_LEASE };

    if (rc < 0) {
        etcd_msg_fini(m);
        return rc;
    }
    return etcd_client_call(l->client, m, &opts, cb, l, &l->call, NULL);
}

/* ---- Grant ---- */

static void granted(struct etcd_lease *l)
{
    l->id = l->asked;
    wait_for(l, l->ttl_ms / 3);
    l->on_granted(l->ctx, l->id);
}

static void on_grant(void *ctx, int status, const struct etcd_answer *answer,
                     const struct muster_error *err)
{
    struct etcd_lease *l = ctx;

    (void)answer;
    l->call = NULL;
    /* "already exists": the first try did reach a server. */
    if (status == 0 || status == MUSTER_EEXIST) {
        granted(l);
        return;
    }
    wait_for(l, PAUSE_MS);
    l->on_failed(l->ctx, err);
}

/* The id is ours to choose: then a repeated request makes no second lease. */
static void grant(struct etcd_lease *l)
{
    struct etcd_msg m;

    etcd_msg_init(&m);
    l->asked = (int64_t)(rng_u64(&l->rng) >> 1 | 1);
    if (request(l, etcd3_encode_grant(&m, l->asked, (int64_t)(l->ttl_ms / 1000)), &m,
                MIN_OF(l->ttl_ms, GRANT_MS), on_grant) < 0)
        wait_for(l, 1000);
}

/* ---- Beats ---- */

static void on_beat(void *ctx, int status, const struct etcd_answer *answer,
                    const struct muster_error *err)
{
    struct etcd_lease *l = ctx;

    l->call = NULL;
    if (status == 0 && answer->v3->lease_ttl <= 0) {
        trace(etcd_client_trace(l->client), TRACE_WARN,
              "our lease at %s has run out: asking for another",
              etcd_client_where(l->client));
        l->id = 0;
        grant(l);
        return;
    }
    if (status < 0) {
        trace(etcd_client_trace(l->client), TRACE_WARN, "keeping our lease: %s",
              err->text);
        wait_for(l, 200);
        return;
    }
    wait_for(l, l->ttl_ms / 3);
}

static void beat(struct etcd_lease *l)
{
    struct etcd_msg m;

    etcd_msg_init(&m);
    if (request(l, etcd3_encode_keepalive(&m, l->id), &m, l->ttl_ms / 2, on_beat) < 0)
        wait_for(l, 200);
}

/* ---- Open and close ---- */

int etcd_lease_start(struct etcd_client *c, uint64_t ttl_s, uint64_t seed,
                     etcd_lease_cb on_granted, etcd_lease_failed_cb on_failed,
                     void *ctx, struct etcd_lease **out, struct muster_error *err)
{
    struct etcd_lease *l = mem_calloc(1, sizeof *l);

    if (!l || uv_timer_init(etcd_client_loop(c), &l->timer) < 0) {
        mem_free(l);
        return err_nomem(err);
    }
    l->client = c;
    l->ttl_ms = ttl_s * 1000;
    l->on_granted = on_granted;
    l->on_failed = on_failed;
    l->ctx = ctx;
    l->timer.data = l;
    rng_init(&l->rng, seed);
    etcd_client_hold(c);
    grant(l);
    *out = l;
    return 0;
}

int64_t etcd_lease_id(const struct etcd_lease *l)
{
    return l->id;
}

void etcd_lease_check(struct etcd_lease *l)
{
    if (!l->call)
        wait_for(l, 0);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct etcd_lease *l = handle->data;
    struct etcd_client *c = l->client;

    if (l->on_gone)
        l->on_gone(l->gone_ctx);
    mem_free(l);
    etcd_client_release(c);
}

static void end(struct etcd_lease *l)
{
    if (!l->stopped)
        uv_close((uv_handle_t *)&l->timer, on_timer_closed);
    l->stopped = true;
}

static void on_revoked(void *ctx, int status, const struct etcd_answer *answer,
                       const struct muster_error *err)
{
    struct etcd_lease *l = ctx;

    (void)status; /* If it failed, the lease runs out by itself. */
    (void)answer;
    (void)err;
    l->call = NULL;
    end(l);
}

void etcd_lease_stop(struct etcd_lease *l, uint64_t timeout_ms, etcd_lease_gone_cb cb,
                     void *ctx)
{
    const int64_t id = l ? (l->id ? l->id : l->asked) : 0;
    struct etcd_msg m;

    if (!l)
        return;
    etcd_call_cancel(l->call);
    l->call = NULL;
    (void)uv_timer_stop(&l->timer);
    l->on_gone = cb;
    l->gone_ctx = ctx;
    etcd_msg_init(&m);
    if (request(l, etcd3_encode_revoke(&m, id), &m, timeout_ms, on_revoked) < 0)
        end(l);
}

void etcd_lease_drop(struct etcd_lease *l)
{
    if (!l)
        return;
    etcd_call_cancel(l->call);
    l->call = NULL;
    end(l);
}
