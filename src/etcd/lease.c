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
    struct etcd_lease_opts opts;
    bool cut_off;  /* told for this lease */
    char why[400]; /* why the last keep-alive failed; or empty */
    etcd_lease_gone_cb on_gone;
    void *gone_ctx;
};

static void lease_ask(struct etcd_lease *l);

static void lease_on_timer(uv_timer_t *timer);

static void lease_arm(struct etcd_lease *l)
{
    if (!l->stopped)
        clock_arm(&l->timer, lease_on_timer,
                  MIN_OF(l->ask_ms,
                         l->opts.on_cut_off ? fence_due(&l->state.fence) : MONO_NEVER));
}

static void lease_wait_for(struct etcd_lease *l, uint64_t ms)
{
    l->ask_ms = clock_mono_ms() + ms;
    lease_arm(l);
}

static void lease_cut_off(struct etcd_lease *l, const char *what)
{
    char text[600];

    if (!l->opts.on_cut_off || l->cut_off)
        return;
    l->cut_off = true;
    (void)snprintf(text, sizeof text, "our lease at etcd (%s) %s%s%s",
                   etcd_client_where(l->client), what, l->why[0] ? ": " : "", l->why);
    l->opts.on_cut_off(l->opts.ctx, text);
}

static void lease_on_timer(uv_timer_t *timer)
{
    struct etcd_lease *l = timer->data;
    const uint64_t now = clock_mono_ms();

    if (now >= l->ask_ms)
        lease_ask(
            l); /* First: if we were stopped for a while, we ask before we judge. */
    if (fence_passed(&l->state.fence, now))
        lease_cut_off(l, "could not be kept alive in time");
    lease_arm(l);
}

/* Fails only if memory runs out. */
static int lease_request(struct etcd_lease *l, struct etcd_msg *m, uint64_t timeout_ms,
                         etcd_cb cb)
{
    const struct etcd_call_opts opts = { .timeout_ms = timeout_ms,
                                         .attempt_ms =
                                             lease_grant_attempt_ms(&l->state),
                                         .expect = ETCD3_EXPECT_LEASE };

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
    lease_wait_for(l, pause);
    switch (outcome) {
    case ETCD_GRANT_KEPT:
        return;
    case ETCD_GRANT_NEW:
        l->opts.on_granted(l->opts.ctx, l->state.id);
        return;
    case ETCD_GRANT_NONE:
        if (l->opts.on_failed)
            l->opts.on_failed(l->opts.ctx, err);
        return;
    case ETCD_GRANT_RAN_OUT:
        log_line(l->client->log, LOG_WARN, AT_RENDEZVOUS,
                 "our lease at etcd (%s) has run out: asking for another one",
                 etcd_client_where(l->client));
        lease_cut_off(l, "has run out");
        return;
    case ETCD_GRANT_LATE:
        (void)snprintf(l->why, sizeof l->why, "%.399s", err->text);
        log_line(l->client->log, LOG_WARN, AT_RENDEZVOUS,
                 "our lease could not be kept alive, trying again: %s", err->text);
        return;
    }
}

static void lease_ask(struct etcd_lease *l)
{
    const uint64_t ms = lease_grant_timeout_ms(&l->state);
    struct etcd_msg m;

    etcd_msg_init(&m);
    l->ask_ms = MONO_NEVER;
    lease_grant_sent(&l->state, clock_mono_ms());
    (void)lease_grant_encode(&l->state, &m);
    if (lease_request(l, &m, ms, lease_on_answer) < 0)
        lease_wait_for(l, 1000);
}

/* ---- Open and close ---- */

int etcd_lease_start(struct etcd_client *c, const struct etcd_lease_opts *opts,
                     struct etcd_lease **out, struct muster_error *err)
{
    struct etcd_lease *l = mem_calloc(1, sizeof *l);

    if (!l)
        return err_nomem(err);
    l->client = c;
    l->opts = *opts;
    (void)uv_timer_init(c->loop, &l->timer); /* cannot fail */
    l->timer.data = l;
    l->ask_ms = MONO_NEVER;
    lease_grant_init(&l->state, opts->ttl_s, opts->seed);
    etcd_client_hold(c);
    lease_ask(l);
    *out = l;
    return 0;
}

int64_t etcd_lease_id(const struct etcd_lease *l)
{
    return l->state.id;
}

uint64_t etcd_lease_fence_due(const struct etcd_lease *l)
{
    return fence_due(&l->state.fence);
}

void etcd_lease_check(struct etcd_lease *l)
{
    if (!l->call)
        lease_wait_for(l, 0);
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

static void lease_end(struct etcd_lease *l)
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
    lease_end(l);
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
    l->opts.on_cut_off = NULL;
    (void)uv_timer_stop(&l->timer);
    l->on_gone = cb;
    l->gone_ctx = ctx;
    etcd_msg_init(&m);
    if (id)
        (void)etcd3_encode_revoke(&m, id);
    if (!id || lease_request(l, &m, timeout_ms, on_revoked) < 0)
        lease_end(l);
}

void etcd_lease_drop(struct etcd_lease *l)
{
    if (!l)
        return;
    etcd_call_cancel(l->call);
    l->call = NULL;
    lease_end(l);
}
