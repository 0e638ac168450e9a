/* etcd_client.c - a node's requests to the cluster, tried at one member after the
 * other: what etcd/client.c does, on simulated HTTP; see etcd.h. */
#include <assert.h>
#include <stdio.h>

#include "base/mem.h"
#include "sim/etcd.h"

struct sim_ask {
    struct sim_client *client;
    struct etcd_msg msg;
    struct sim_ask_opts opts;
    struct etcd_retry state;
    uint64_t by_ms;
    struct sim_timer timer;
    struct sim_call *http;
    size_t at;
    sim_ask_done cb;
    void *ctx;
};

static void attempt(void *ctx);

void sim_ask_cancel(struct sim_ask *a)
{
    if (!a)
        return;
    sim_http_cancel(a->http);
    sim_timer_stop(&a->timer);
    etcd_msg_fini(&a->msg);
    mem_free(a);
}

static void finish(struct sim_ask *a, int status, const struct etcd_answer *answer,
                   const struct muster_error *err)
{
    const sim_ask_done cb = a->cb;
    void *const ctx = a->ctx;

    sim_ask_cancel(a);
    cb(ctx, status, answer, err);
}

static uint64_t left_ms(const struct sim_ask *a)
{
    const uint64_t now = sim_now(a->client->node).mono_ms;

    return a->by_ms > now ? a->by_ms - now : 0;
}

static void on_done(void *ctx, int status, const struct etcd_http *http, bool sent,
                    const struct muster_error *err)
{
    struct sim_ask *a = ctx;
    struct sim_client *c = a->client;
    const char where[] = { 'm', (char)('0' + a->at), '\0' };
    struct etcd_outcome o = { .status = status,
                              .sent = sent,
                              .why = err,
                              .endpoints = c->count,
                              .left_ms = left_ms(a),
                              .where = where };
    struct etcd_judged j;
    enum etcd_verdict verdict;

    a->http = NULL;
    if (http)
        o.http = *http;
    verdict = etcd_retry_judge(&a->state, &c->rng, &o, &j);
    if (j.failed && c->current == a->at)
        c->current = (a->at + 1) % c->count;
    if (verdict == ETCD_DONE)
        finish(a, j.status, j.answered ? &j.answer : NULL, &j.err);
    else
        sim_timer_start(c->node, &a->timer, j.pause_ms, attempt, a);
    etcd_judged_fini(&j);
}

static void attempt(void *ctx)
{
    struct sim_ask *a = ctx;
    struct sim_client *c = a->client;
    const uint64_t left = left_ms(a);
    struct muster_error err = { .code = MUSTER_ETIMEDOUT };
    struct etcd_msg m;
    uint64_t most;

    if (left == 0) {
        if (a->state.last.code)
            err = a->state.last; /* a is gone when it is told */
        finish(a, MUSTER_ETIMEDOUT, NULL, &err);
        return;
    }
    a->state.tries++;
    most = a->opts.attempt_ms ? a->opts.attempt_ms
                              : etcd_retry_patience_ms(&a->state, c->count);
    a->at = c->current;
    etcd_msg_init(&m);
    m.method = a->msg.method;
    sim_must(buf_append_span(&m.path, buf_span(&a->msg.path)));
    sim_must(buf_append_span(&m.body, buf_span(&a->msg.body)));
    a->http = sim_http(c->node, a->at, &m, MIN_OF(most, left), on_done, NULL, a);
}

struct sim_ask *sim_ask(struct sim_client *c, struct etcd_msg *m,
                        const struct sim_ask_opts *o, sim_ask_done cb, void *ctx)
{
    struct sim_ask *a = mem_calloc(1, sizeof *a);
    const uint64_t now = sim_now(c->node).mono_ms;

    assert(a);
    *a = (struct sim_ask){ .client = c, .msg = *m, .opts = *o, .cb = cb, .ctx = ctx };
    a->by_ms = o->timeout_ms > UINT64_MAX / 2 ? UINT64_MAX : now + o->timeout_ms;
    a->state = (struct etcd_retry){
        .api = c->api, .expect = o->expect, .once = o->once, .attempt_ms = c->attempt_ms
    };
    sim_timer_start(c->node, &a->timer, 0, attempt, a);
    return a;
}
