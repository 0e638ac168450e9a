/* etcd_parts.c - a v3 stream and a v3 lease of a simulated node: what etcd/watch.c
 * and etcd/lease.c do; see etcd.h. */
#include "base/mem.h"
#include "sim/etcd.h"

/* ---- A stream ---- */

static void open_stream(void *ctx);

static void reopen(struct sim_stream *w, bool failed)
{
    struct sim_client *c = w->client;
    uint64_t pause = 0;

    sim_http_cancel(w->call);
    w->call = NULL;
    if (failed) {
        if (c->current == w->at)
            c->current = (w->at + 1) % c->count;
        pause = etcd_pause_ms(&c->rng, w->state.tries++);
    }
    sim_timer_start(c->node, &w->timer, pause, open_stream, w);
}

static void on_silence(void *ctx)
{
    struct sim_stream *w = ctx;

    reopen(w, !w->state.created);
}

static bool on_line(void *ctx, struct span line)
{
    struct sim_stream *w = ctx;
    struct sim_node *n = w->client->node;
    const uint32_t boot = n->boot;
    struct etcd_stream_news news;
    const enum etcd_stream_next next = etcd_stream_line(&w->state, line, &news);

    sim_timer_start(n, &w->timer, ETCD_IDLE_MS, on_silence, w);
    if (next != ETCD_STREAM_ON)
        reopen(w, next == ETCD_STREAM_FAILED);
    if (news.events || news.missed)
        w->on_change(w->ctx, news.missed ? NULL : &news.reply);
    etcd3_reply_fini(&news.reply);
    return n->boot == boot && w->call;
}

static void on_end(void *ctx, int status, const struct etcd_http *http, bool sent,
                   const struct muster_error *err)
{
    struct sim_stream *w = ctx;

    (void)status;
    (void)http;
    (void)sent;
    (void)err;
    w->call = NULL;
    reopen(w, true);
}

static void open_stream(void *ctx)
{
    struct sim_stream *w = ctx;
    struct sim_client *c = w->client;
    struct etcd_msg m;

    etcd_msg_init(&m);
    w->at = c->current;
    sim_must(etcd_stream_encode(&w->state, &m));
    w->call = sim_http(c->node, w->at, &m, UINT64_MAX, on_end, on_line, w);
    sim_timer_start(c->node, &w->timer, ETCD_CREATE_MS, on_silence, w);
}

void sim_stream_start(struct sim_stream *w, struct sim_client *c, const char *key,
                      bool below, bool only_ends, int64_t start_revision,
                      void (*on_change)(void *ctx, const struct etcd3_reply *events),
                      void *ctx)
{
    struct buf end;

    *w = (struct sim_stream){ .client = c, .on_change = on_change, .ctx = ctx };
    buf_init(&end, SIZE_MAX);
    if (below)
        sim_must(etcd3_prefix_end(&end, span_str(key)));
    sim_must(etcd_stream_init(&w->state, span_str(key), buf_span(&end), only_ends,
                              start_revision));
    buf_fini(&end);
    sim_timer_start(c->node, &w->timer, 0, open_stream, w);
}

void sim_stream_stop(struct sim_stream *w)
{
    if (!w->client)
        return;
    sim_http_cancel(w->call);
    sim_timer_stop(&w->timer);
    etcd_stream_fini(&w->state);
}

/* ---- A lease ---- */

static void ask(void *ctx);

static void on_answer(void *ctx, int status, const struct etcd_answer *answer,
                      const struct muster_error *err)
{
    struct sim_lease *l = ctx;
    uint64_t pause;
    const enum lease_grant_told told =
        lease_grant_answer(&l->state, status, answer, &pause);

    (void)err;
    l->call = NULL;
    sim_timer_start(l->client->node, &l->timer, pause, ask, l);
    if (told == ETCD_GRANT_NEW)
        l->on_granted(l->ctx);
}

static void ask(void *ctx)
{
    struct sim_lease *l = ctx;
    const struct sim_ask_opts o = { .timeout_ms = lease_grant_timeout_ms(&l->state),
                                    .attempt_ms = lease_grant_attempt_ms(&l->state),
                                    .expect = ETCD3_EXPECT_LEASE };
    struct etcd_msg m;

    etcd_msg_init(&m);
    sim_must(lease_grant_encode(&l->state, &m));
    l->call = sim_ask(l->client, &m, &o, on_answer, l);
}

void sim_lease_start(struct sim_lease *l, struct sim_client *c, uint64_t ttl_s,
                     void (*on_granted)(void *ctx), void *ctx)
{
    *l = (struct sim_lease){ .client = c, .on_granted = on_granted, .ctx = ctx };
    lease_grant_init(&l->state, ttl_s, rng_u64(&c->rng));
    ask(l);
}

void sim_lease_check(struct sim_lease *l)
{
    if (!l->call)
        sim_timer_start(l->client->node, &l->timer, 0, ask, l);
}

void sim_lease_stop(struct sim_lease *l)
{
    if (!l->client)
        return;
    sim_ask_cancel(l->call);
    sim_timer_stop(&l->timer);
}
