/* lease.c - see lease.h. etcd/core/lease.c decides what is sent when. */
#include "etcd/lease.h"

#include "base/err.h"
#include "base/mem.h"
#include "etcd/client_int.h"
#include "etcd/core/lease.h"
#include "loop/clock.h"
#include <stdio.h>

struct etcd_lease {
    struct etcd_client *client;
    struct lease_grant state;
    struct etcd_call *call; /* the one request under way */
    uv_timer_t timer;
    uint64_t
        ask_ms; /* when to send the next request; MONO_NEVER while one is under way */
    bool stopped;
    etcd_lease_cb on_granted;
    etcd_lease_failed_cb on_failed;
    etcd_lease_cut_off_cb on_cut_off; /* or NULL */
    bool cut_off;                     /* told for this lease */
    char why[400];                    /* why the last keep-alive failed; or empty */
    void *ctx;
    etcd_lease_gone_cb on_gone;
    void *gone_ctx;
};

static void ask(struct etcd_lease *l);

static void lease_on_timer(uv_timer_t *timer);

static void arm(struct etcd_lease *l)
{
    if (!l->stopped)
        clock_arm(
            &l->timer, lease_on_timer,
            MIN_OF(l->ask_ms, l->on_cut_off ? fence_due(&l->state.fence) : MONO_NEVER));
}

static void wait_for(struct etcd_lease *l, uint64_t ms)
{
    l->ask_ms = clock_mono_ms() + ms;
    arm(l);
}

static void cut_off(struct etcd_lease *l, const char *what)
{
    char text[600];

    if (!l->on_cut_off || l->cut_off)
        return;
    l->cut_off = true;
    (void)snprintf(text, sizeof text, "our lease at etcd (%s) %s%s%s",
                   etcd_client_where(l->client), what, l->why[0] ? ": " : "", l->why);
    l->on_cut_off(l->ctx, text);
}

static void lease_on_timer(uv_timer_t *timer)
{
    struct etcd_lease *l = timer->data;
    const uint64_t now = clock_mono_ms();

    if (now >= l->ask_ms)
        ask(l); /* First: if we were stopped for a while, we ask before we judge. */
    if (fence_passed(&l->state.fence, now))
        cut_off(l, "could not be kept alive in time");
    arm(l);
}

/* Sends the message unless rc says that encoding it failed. Fails only if memory runs
 * out. */
static int request(struct etcd_lease *l, int rc, struct etcd_msg *m,
                   uint64_t timeout_ms, etcd_cb cb)
{
    const struct etcd_call_opts opts = { .timeout_ms = timeout_ms,
                                         .attempt_ms =
                                             lease_grant_attempt_ms(&l->state),
                                         .expect = ETCD3_EXPECT_LEASE };

    if (rc < 0) {
        etcd_msg_fini(m);
        return rc;
    }
    return etcd_client_call(l->client, m, &opts, cb, l, &l->call, NULL);
}

static void lease_on_answer(void *ctx, int status, const struct etcd_answer *answer,
                            const struct muster_error *err)
{
    struct etcd_lease *l = ctx;
    uint64_t pause;
    const enum lease_grant_outcome outcome =
        lease_grant_answer(&l->state, status, answer, &pause);

    l->call = NULL;
    if (outcome == ETCD_GRANT_KEPT || outcome == ETCD_GRANT_NEW) {
        l->why[0] = '\0';
        l->cut_off = false;
    }
    wait_for(l, pause);
    switch (outcome) {
    case ETCD_GRANT_KEPT:
        return;
    case ETCD_GRANT_NEW:
        l->on_granted(l->ctx, l->state.id);
        return;
    case ETCD_GRANT_NONE:
        l->on_failed(l->ctx, err);
        return;
    case ETCD_GRANT_RAN_OUT:
        trace(etcd_client_trace(l->client), TRACE_WARN,
              "our lease at etcd (%s) has run out: asking for another one",
              etcd_client_where(l->client));
        cut_off(l, "has run out");
        return;
    case ETCD_GRANT_LATE:
        (void)snprintf(l->why, sizeof l->why, "%.399s", err->text);
        trace(etcd_client_trace(l->client), TRACE_WARN,
              "our lease could not be kept alive, trying again: %s", err->text);
        return;
    }
}

static void ask(struct etcd_lease *l)
{
    const uint64_t ms = lease_grant_timeout_ms(&l->state);
    struct etcd_msg m;

    etcd_msg_init(&m);
    l->ask_ms = MONO_NEVER;
    lease_grant_sent(&l->state, clock_mono_ms());
    if (request(l, lease_grant_encode(&l->state, &m), &m, ms, lease_on_answer) < 0)
        wait_for(l, 1000);
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
    l->on_granted = on_granted;
    l->on_failed = on_failed;
    l->ctx = ctx;
    l->timer.data = l;
    l->ask_ms = MONO_NEVER;
    lease_grant_init(&l->state, ttl_s, seed);
    etcd_client_hold(c);
    ask(l);
    *out = l;
    return 0;
}

int64_t etcd_lease_id(const struct etcd_lease *l)
{
    return l->state.id;
}

void etcd_lease_fence(struct etcd_lease *l, etcd_lease_cut_off_cb cb)
{
    l->on_cut_off = cb;
    arm(l);
}

uint64_t etcd_lease_fence_due(const struct etcd_lease *l)
{
    return fence_due(&l->state.fence);
}

void etcd_lease_check(struct etcd_lease *l)
{
    if (!l->call)
        wait_for(l, 0);
}

static void lease_on_timer_closed(uv_handle_t *handle)
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
        uv_close((uv_handle_t *)&l->timer, lease_on_timer_closed);
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
    const int64_t id = l ? (l->state.id ? l->state.id : l->state.asked) : 0;
    struct etcd_msg m;

    if (!l)
        return;
    etcd_call_cancel(l->call);
    l->call = NULL;
    l->on_cut_off = NULL;
    (void)uv_timer_stop(&l->timer);
    l->on_gone = cb;
    l->gone_ctx = ctx;
    etcd_msg_init(&m);
    if (!id || request(l, etcd3_encode_revoke(&m, id), &m, timeout_ms, on_revoked) < 0)
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
