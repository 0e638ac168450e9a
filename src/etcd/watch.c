/* watch.c - see watch.h. A watch is an HTTP request whose answer does not end. Its
 * timer limits the silence of the stream while there is one; otherwise it runs for the
 * pause before the next stream. */
#include "etcd/watch.h"

#include "base/err.h"
#include "base/mem.h"
#include "etcd/client_int.h"

static void open_stream(struct etcd_watch *w);

static void on_pause_over(uv_timer_t *timer)
{
    open_stream(timer->data);
}

/* The stream cannot be used any more: opens another one, after a failure at the next
 * endpoint. */
static void reopen(struct etcd_watch *w, bool failed)
{
    uint64_t pause = 0;

    http_cancel(w->stream);
    w->stream = NULL;
    if (w->stopped)
        return;
    if (failed) {
        etcd_client_failed(w->client, w->at);
        pause = etcd_client_pause(w->client, w->state.tries++);
    }
    (void)uv_timer_start(&w->timer, on_pause_over, pause, 0);
}

static void on_silence(uv_timer_t *timer)
{
    struct etcd_watch *w = timer->data;

    reopen(w, !w->state.created);
}

static void limit_silence(struct etcd_watch *w, uint64_t ms)
{
    (void)uv_timer_start(&w->timer, on_silence, ms, 0);
}

/* From the loop, since the stream may be what has just failed. */
void etcd_watch_move(struct etcd_watch *w, size_t from)
{
    if (w->stream && w->at == from)
        limit_silence(w, 0);
}

/* ---- Lines of the stream ---- */

static void log_went_back(const struct etcd_watch *w, int64_t from, int64_t to)
{
    trace(etcd_client_trace(w->client), TRACE_WARN,
          "etcd at %s: its revision went back from %lld to %lld (restored from a "
          "backup?): reading everything again",
          etcd_client_url(w->client, w->at), (long long)from, (long long)to);
}

/* Handles one line; true if the stream goes on. on_change may stop the watch, and then
 * there is no stream any more. */
static bool on_line(struct etcd_watch *w, struct span line)
{
    struct etcd_stream_news news;
    const enum etcd_stream_next next = etcd_stream_line(&w->state, line, &news);

    if (news.token)
        etcd_client_forget_token(w->client);
    if (news.went_back)
        log_went_back(w, news.went_back, news.reply.revision);
    if (next == ETCD_STREAM_FAILED)
        trace(etcd_client_trace(w->client), news.behind ? TRACE_DEBUG : TRACE_WARN,
              "etcd at %s, watch of %.*s: %s", etcd_client_url(w->client, w->at),
              (int)w->state.key.n, (const char *)w->state.key.p, news.err.text);
    if (next != ETCD_STREAM_ON)
        reopen(w, next == ETCD_STREAM_FAILED);
    if (news.events || news.missed)
        w->on_change(w->ctx, news.missed ? NULL : &news.reply);
    etcd3_reply_fini(&news.reply);
    return w->stream != NULL;
}

static size_t on_data(void *ctx, const struct http_answer *sofar)
{
    struct etcd_watch *w = ctx;
    struct span line;
    size_t used = 0;

    if (sofar->status != 200)
        return 0; /* on_end() reports it. */
    limit_silence(w, ETCD_IDLE_MS);
    while (etcd3_next_line(span_of(sofar->body.p + used, sofar->body.n - used),
                           &w->seen, &line)) {
        used += line.n + 1;
        if (!on_line(w, line))
            break;
    }
    return used;
}

static void on_end(void *ctx, int status, const struct http_answer *http, bool sent,
                   const struct muster_error *why)
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
    trace(etcd_client_trace(w->client), TRACE_DEBUG, "etcd at %s, watch of %.*s: %s",
          etcd_client_url(w->client, w->at), (int)w->state.key.n,
          (const char *)w->state.key.p, news.err.text);
    etcd3_reply_fini(&news.reply);
    reopen(w, true);
}

/* ---- Open and close ---- */

static int start(struct etcd_watch *w, struct muster_error *err)
{
    struct etcd_client *c = w->client;
    struct etcd_msg m;
    char *url = NULL;
    int rc;

    etcd_msg_init(&m);
    w->at = etcd_client_current(c);
    w->seen = 0;
    rc = etcd_stream_encode(&w->state, &m);
    if (rc == 0)
        url = mem_printf("%s%s", etcd_client_url(c, w->at),
                         (const char *)buf_data(&m.path));
    if (rc == 0 && !url)
        rc = MUSTER_ENOMEM;
    if (rc == 0) {
        const struct http_request req = {
            .method = m.method,
            .url = url,
            .type = m.type,
            .body = buf_span(&m.body),
            .authorization = etcd_client_authorization(c),
            .connect_ms = ETCD_CREATE_MS,
            .timeout_ms = UINT64_MAX,
            .max_answer = ETCD_MAX_ANSWER,
        };
        rc = http_start(etcd_client_http(c), &req, on_end, on_data, w, &w->stream, err);
    }
    mem_free(url);
    etcd_msg_fini(&m);
    return rc;
}

/* Uses the client's token, if one is needed. We ask for a new one ourselves, as there
 * may be no call that would. */
static void open_stream(struct etcd_watch *w)
{
    struct etcd_client *c = w->client;
    struct muster_error err = { 0 };
    const bool wanting = etcd_client_needs_token(c);

    if (wanting)
        etcd_client_get_token(c);
    if (wanting || start(w, &err) < 0)
        (void)uv_timer_start(&w->timer, on_pause_over,
                             etcd_client_pause(c, w->state.tries++), 0);
    else
        limit_silence(w, ETCD_CREATE_MS);
}

static void watch_free(struct etcd_watch *w)
{
    etcd_stream_fini(&w->state);
    mem_free(w);
}

int etcd_watch_start(struct etcd_client *c, struct span key, struct span end,
                     bool only_ends, int64_t start_revision, etcd_watch_cb on_change,
                     void *ctx, struct etcd_watch **out, struct muster_error *err)
{
    struct etcd_watch *w = mem_calloc(1, sizeof *w);

    if (!w)
        return err_nomem(err);
    w->client = c;
    w->on_change = on_change;
    w->ctx = ctx;
    if (etcd_stream_init(&w->state, key, end, only_ends, start_revision) < 0 ||
        uv_timer_init(etcd_client_loop(c), &w->timer) < 0) {
        watch_free(w);
        return err_nomem(err);
    }
    w->timer.data = w;
    etcd_client_hold(c);
    LIST_APPEND(&c->watches, w, prev, next);
    (void)uv_timer_start(&w->timer, on_pause_over, 0, 0);
    *out = w;
    return 0;
}

static void watch_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_watch *w = handle->data;
    struct etcd_client *c = w->client;

    watch_free(w);
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
