/* etcd_watch.c - see etcd_watch.h. One HTTP request whose answer never ends; one timer,
 * which is the patience with the stream while there is one, and else the pause before
 * the next. */
#include "io/etcd_watch.h"

#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_client_int.h"

#define CREATE_MS 3000u  /* a living member answers a watch at once */
#define IDLE_MS   20000u /* a quiet stream may be a dead one: open another */

struct etcd_watch {
    struct etcd_client *client;
    struct span key, end; /* owned */
    int64_t next;         /* revision that we have not seen; 0: from now on */
    struct http_call *stream;
    size_t at, seen;
    unsigned tries;
    bool only_ends, created, stopped;
    uv_timer_t timer;
    etcd_watch_cb on_change;
    void *ctx;
};

static void open_stream(struct etcd_watch *w);

static void on_pause_over(uv_timer_t *timer)
{
    open_stream(timer->data);
}

/* The stream is of no use any more: another one, here or elsewhere. */
static void reopen(struct etcd_watch *w, bool failed)
{
    uint64_t pause = 0;

    http_cancel(w->stream);
    w->stream = NULL;
    if (w->stopped)
        return;
    if (failed) {
        etcd_client_failed(w->client, w->at);
        pause = etcd_client_pause(w->client, w->tries++);
    }
    (void)uv_timer_start(&w->timer, on_pause_over, pause, 0);
}

static void on_silence(uv_timer_t *timer)
{
    struct etcd_watch *w = timer->data;

    reopen(w, !w->created);
}

static void be_patient(struct etcd_watch *w, uint64_t ms)
{
    (void)uv_timer_start(&w->timer, on_silence, ms, 0);
}

/* ---- What the stream says ---- */

static void on_created(struct etcd_watch *w, const struct etcd3_reply *r)
{
    w->created = true;
    w->tries = 0;
    if (w->next > r->revision + 1) {
        /* The cluster was restored from a backup: what we saw has not happened. */
        trace(etcd_client_trace(w->client), TRACE_WARN,
              "etcd at %s: its revision went back from %lld to %lld (restored from a "
              "backup?): reading everything again",
              etcd_client_url(w->client, w->at), (long long)w->next - 1,
              (long long)r->revision);
        w->next = r->revision + 1;
        reopen(w, false);
        w->on_change(w->ctx, NULL);
        return;
    }
    if (w->next == 0)
        w->next = r->revision + 1;
}

static void on_message(struct etcd_watch *w, const struct etcd3_reply *r)
{
    if (r->created) {
        on_created(w, r);
        return;
    }
    if (r->canceled) {
        const bool compacted = r->compact_revision > 0;

        w->next = r->compact_revision;
        reopen(w, !compacted);
        if (compacted)
            w->on_change(w->ctx, NULL);
        return;
    }
    for (size_t i = 0; i < r->event_count; i++)
        w->next = MAX_OF(w->next, r->events[i].kv.mod_revision + 1);
    if (r->event_count)
        w->on_change(w->ctx, r);
}

/* One line: true if the stream goes on. */
static bool on_line(struct etcd_watch *w, struct span line)
{
    const struct etcd_http http = { 200, 0, line };
    struct muster_error err = { 0 };
    struct etcd3_reply r;
    int rc = etcd3_decode(&http, ETCD3_EXPECT_WATCH, &r, &err);

    if (rc == 0 && r.error) {
        if (r.error == ETCD3_UNAUTHENTICATED)
            etcd_client_forget_token(w->client);
        rc = etcd3_error(&r, &err);
        etcd3_reply_fini(&r);
    }
    if (rc < 0) {
        trace(etcd_client_trace(w->client), TRACE_WARN, "etcd at %s, watch of %.*s: %s",
              etcd_client_url(w->client, w->at), (int)w->key.n, (const char *)w->key.p,
              err.text);
        reopen(w, true);
        return false;
    }
    on_message(w, &r);
    etcd3_reply_fini(&r);
    return w->stream != NULL;
}

static size_t on_data(void *ctx, const struct http_answer *sofar)
{
    struct etcd_watch *w = ctx;
    struct span line;
    size_t used = 0;

    if (sofar->status != 200)
        return 0; /* on_end tells */
    be_patient(w, IDLE_MS);
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
    struct muster_error err = *why;
    struct etcd3_reply r;

    (void)sent;
    w->stream = NULL;
    if (status == 0) {
        const struct etcd_http in = { http->status, 0, http->body };

        err_set(&err, MUSTER_EHANGUP, "the stream ended");
        if (http->status != 200 &&
            etcd3_decode(&in, ETCD3_EXPECT_WATCH, &r, &err) == 0) {
            if (r.error == ETCD3_UNAUTHENTICATED)
                etcd_client_forget_token(w->client);
            (void)etcd3_error(&r, &err);
            etcd3_reply_fini(&r);
        }
    }
    trace(etcd_client_trace(w->client), TRACE_DEBUG, "etcd at %s, watch of %.*s: %s",
          etcd_client_url(w->client, w->at), (int)w->key.n, (const char *)w->key.p,
          err.text);
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
    w->created = false;
    w->seen = 0;
    rc = etcd3_encode_watch(&m, w->key, w->end, w->only_ends, w->next);
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
            .connect_ms = CREATE_MS,
            .timeout_ms = UINT64_MAX,
            .max_answer = ETCD_MAX_ANSWER,
        };
        rc = http_start(etcd_client_http(c), &req, on_end, on_data, w, &w->stream, err);
    }
    mem_free(url);
    etcd_msg_fini(&m);
    return rc;
}

/* Waits for the client's token, if one is needed: the calls beside us fetch it. */
static void open_stream(struct etcd_watch *w)
{
    struct muster_error err = { 0 };

    if (etcd_client_needs_token(w->client) || start(w, &err) < 0)
        (void)uv_timer_start(&w->timer, on_pause_over, 200, 0);
    else
        be_patient(w, CREATE_MS);
}

static void watch_free(struct etcd_watch *w)
{
    mem_free((uint8_t *)w->key.p);
    mem_free((uint8_t *)w->end.p);
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
    w->next = start_revision;
    w->only_ends = only_ends;
    w->on_change = on_change;
    w->ctx = ctx;
    w->key = span_of(mem_memdup(key.p, key.n), key.n);
    if (end.n)
        w->end = span_of(mem_memdup(end.p, end.n), end.n);
    if (!w->key.p || (end.n && !w->end.p) ||
        uv_timer_init(etcd_client_loop(c), &w->timer)) {
        watch_free(w);
        return err_nomem(err);
    }
    w->timer.data = w;
    etcd_client_hold(c);
    (void)uv_timer_start(&w->timer, on_pause_over, 0, 0);
    *out = w;
    return 0;
}

static void on_timer_closed(uv_handle_t *handle)
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
    http_cancel(w->stream);
    w->stream = NULL;
    uv_close((uv_handle_t *)&w->timer, on_timer_closed);
}
