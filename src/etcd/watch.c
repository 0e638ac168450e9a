/* watch.c - see watch.h. A watch is an HTTP request whose answer does not end. Its
 * timer limits the silence of the stream while there is one; otherwise it runs for the
 * pause before the next stream. */
#include "etcd/watch.h"

#include "base/err.h"
#include "base/mem.h"
#include "etcd/client_int.h"

static void watch_open_stream(struct etcd_watch *w);

static void watch_on_pause_over(uv_timer_t *timer)
{
    watch_open_stream(timer->data);
}

/* The stream cannot be used any more: opens another one, after a failure at the next
 * endpoint. */
static void watch_reopen(struct etcd_watch *w, bool failed)
{
    uint64_t pause = 0;

    http_cancel(w->stream);
    w->stream = NULL;
    if (w->stopped)
        return;
    if (failed) {
        etcd_client_failed(w->client, w->at);
        pause = etcd_pause_ms(&w->client->rng, w->state.tries++);
    }
    (void)uv_timer_start(&w->timer, watch_on_pause_over, pause, 0);
}

static void watch_on_silence(uv_timer_t *timer)
{
    struct etcd_watch *w = timer->data;

    watch_reopen(w, !w->state.created);
}

static void watch_limit_silence(struct etcd_watch *w, uint64_t ms)
{
    (void)uv_timer_start(&w->timer, watch_on_silence, ms, 0);
}

/* From the loop, since the stream may be what has just failed. */
void etcd_watch_move(struct etcd_watch *w, size_t from)
{
    if (w->stream && w->at == from)
        watch_limit_silence(w, 0);
}

/* ---- Lines of the stream ---- */

static void log_went_back(const struct etcd_watch *w, int64_t from, int64_t to)
{
    log_line(w->client->log, LOG_WARN, AT_RENDEZVOUS,
             "etcd at %s: its revision went back from %lld to %lld (restored from a "
             "backup?): reading everything again",
             w->client->urls[w->at], (long long)from, (long long)to);
}

/* Handles one line; true if the stream goes on. on_change may stop the watch, and then
 * there is no stream any more. */
static bool watch_on_line(struct etcd_watch *w, struct span line)
{
    struct etcd_stream_news news;
    const enum etcd_stream_next next = etcd_stream_line(&w->state, line, &news);

    if (news.token)
        etcd_client_forget_token(w->client);
    if (news.went_back)
        log_went_back(w, news.went_back, news.reply.revision);
    if (next == ETCD_STREAM_FAILED)
        log_line(w->client->log, news.behind ? LOG_DEBUG : LOG_WARN, AT_RENDEZVOUS,
                 "etcd at %s, watch of %.*s: %s", w->client->urls[w->at],
                 (int)w->state.key.n, (const char *)w->state.key.p, news.err.text);
    if (next != ETCD_STREAM_ON)
        watch_reopen(w, next == ETCD_STREAM_FAILED);
    if (news.events || news.missed)
        w->on_change(w->ctx, news.missed ? NULL : &news.reply);
    etcd3_reply_fini(&news.reply);
    return w->stream != NULL;
}

static size_t watch_on_data(void *ctx, const struct http_answer *sofar)
{
    struct etcd_watch *w = ctx;
    struct span line;
    size_t used = 0;

    if (sofar->status != 200)
        return 0; /* watch_on_end() reports it. */
    watch_limit_silence(w, ETCD_IDLE_MS);
    while (etcd3_next_line(span_of(sofar->body.p + used, sofar->body.n - used),
                           &w->seen, &line)) {
        used += line.n + 1;
        if (!watch_on_line(w, line))
            break;
    }
    return used;
}

static void watch_on_end(void *ctx, int status, const struct http_answer *http,
                         bool sent, const struct muster_error *why)
{
    struct etcd_watch *w = ctx;
    struct etcd_stream_news news = { .err = *why };

    (void)sent;
    w->stream = NULL;
    if (status == 0) {
        const struct etcd_http in = { http->status, 0, http->body };

        (void)etcd_stream_ended(&in, &news);
    }
    if (news.token)
        etcd_client_forget_token(w->client);
    log_line(w->client->log, LOG_DEBUG, AT_RENDEZVOUS, "etcd at %s, watch of %.*s: %s",
             w->client->urls[w->at], (int)w->state.key.n, (const char *)w->state.key.p,
             news.err.text);
    etcd3_reply_fini(&news.reply);
    watch_reopen(w, true);
}

/* ---- Open and close ---- */

static int watch_start_stream(struct etcd_watch *w, struct muster_error *err)
{
    struct etcd_client *c = w->client;
    struct etcd_msg m;
    char *url = NULL;
    int rc;

    etcd_msg_init(&m);
    w->at = c->current;
    w->seen = 0;
    rc = etcd_stream_encode(&w->state, &m);
    if (rc == 0)
        url = mem_printf("%s%s", c->urls[w->at], (const char *)buf_data(&m.path));
    if (rc == 0 && !url)
        rc = MUSTER_ENOMEM;
    if (rc == 0) {
        const struct http_request req = {
            .method = m.method,
            .url = url,
            .type = m.type,
            .body = buf_span(&m.body),
            .authorization = c->authorization,
            .connect_ms = ETCD_CREATE_MS,
            .timeout_ms = UINT64_MAX,
            .max_answer = ETCD_MAX_ANSWER,
        };
        rc = http_start(c->http, &req, watch_on_end, watch_on_data, w, &w->stream, err);
    }
    mem_free(url);
    etcd_msg_fini(&m);
    return rc;
}

/* Uses the client's token, if one is needed. We ask for a new one ourselves, as there
 * may be no call that would. */
static void watch_open_stream(struct etcd_watch *w)
{
    struct etcd_client *c = w->client;
    struct muster_error err = { 0 };
    const bool wanting = etcd_client_needs_token(c);

    if (wanting)
        etcd_client_get_token(c);
    if (wanting || watch_start_stream(w, &err) < 0)
        (void)uv_timer_start(&w->timer, watch_on_pause_over,
                             etcd_pause_ms(&c->rng, w->state.tries++), 0);
    else
        watch_limit_silence(w, ETCD_CREATE_MS);
}

int etcd_watch_start(struct etcd_client *c, const struct etcd_watch_opts *opts,
                     struct etcd_watch **out, struct muster_error *err)
{
    struct etcd_watch *w = mem_calloc(1, sizeof *w);
    struct buf end;

    buf_init(&end, SIZE_MAX);
    if (opts->below)
        (void)etcd3_prefix_end(&end, opts->key);
    if (!w || buf_error(&end) < 0 ||
        etcd_stream_init(&w->state, opts->key, buf_span(&end), opts->only_ends,
                         opts->start_revision) < 0) {
        buf_fini(&end);
        mem_free(w);
        return err_nomem(err);
    }
    buf_fini(&end);
    w->client = c;
    w->on_change = opts->on_change;
    w->ctx = opts->ctx;
    (void)uv_timer_init(c->loop, &w->timer); /* cannot fail */
    w->timer.data = w;
    etcd_client_hold(c);
    LIST_APPEND(&c->watches, w, prev, next);
    (void)uv_timer_start(&w->timer, watch_on_pause_over, 0, 0);
    *out = w;
    return 0;
}

static void watch_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_watch *w = handle->data;
    struct etcd_client *c = w->client;

    etcd_stream_fini(&w->state);
    mem_free(w);
    etcd_client_release(c);
}

void etcd_watch_stop(struct etcd_watch *w)
{
    if (!w || w->stopped)
        return;
    w->stopped = true;
    LIST_REMOVE(&w->client->watches, w, prev, next);
    http_cancel(w->stream);
    w->stream = NULL;
    uv_close((uv_handle_t *)&w->timer, watch_on_timer_closed);
}
