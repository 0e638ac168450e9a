/* etcd_call.c - one request to an etcd cluster: a little machine that tries
 * (http_start), looks at what came (on_done), and is done, or pauses and tries again
 * elsewhere. */
#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_client_int.h"

#define CONNECT_MS 3000u

static void attempt(struct etcd_call *call);

/* ---- The end of a call ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct etcd_call *call = handle->data;
    struct etcd_client *c = call->client;

    etcd_msg_fini(&call->msg);
    mem_free(call->key);
    mem_free(call);
    etcd_client_release(c);
}

void etcd_call_cancel(struct etcd_call *call)
{
    if (!call)
        return;
    http_cancel(call->http);
    call->http = NULL;
    *call->prev_next = call->next;
    if (call->next)
        call->next->prev_next = call->prev_next;
    uv_close((uv_handle_t *)&call->timer, on_timer_closed);
}

static void finish(struct etcd_call *call, int status, const struct etcd_answer *answer,
                   const struct muster_error *err)
{
    const etcd_cb cb = call->cb;
    void *const ctx = call->ctx;

    etcd_call_cancel(call); /* The memory stays until the loop's next turn. */
    cb(ctx, status, answer, err);
}

static void wrap(const struct etcd_call *call, struct muster_error *err)
{
    err_wrap(err, call->key ? "etcd at %s, key %s" : "etcd at %s",
             call->client->urls[call->at], call->key);
}

/* ---- After a try ---- */

static uint64_t left_ms(const struct etcd_call *call)
{
    const uint64_t now = uv_now(call->client->loop);

    if (call->by_ms == UINT64_MAX)
        return UINT64_MAX;
    return call->by_ms > now ? call->by_ms - now : 0;
}

static void on_again(uv_timer_t *timer)
{
    attempt(timer->data);
}

/* Whether another try might do better: not if every endpoint has said for good why. */
static bool hopeless(const struct etcd_call *call, int code)
{
    switch (code) {
    case MUSTER_EACCES:
    case MUSTER_EINVAL:
    case MUSTER_ENOTSUP:
    case MUSTER_ENOTSTORE:
        return call->tries >= call->client->count;
    case MUSTER_ENOMEM:
        return true;
    }
    return false;
}

/* The try failed for lack of a server: elsewhere, after a pause, or not at all. */
static void try_again(struct etcd_call *call, bool sent)
{
    struct etcd_client *c = call->client;
    const uint64_t left = left_ms(call);
    /* The other endpoints get their turn at once; only a whole round is a pause. */
    uint64_t pause = call->tries % c->count == 0
                         ? etcd_client_pause(c, call->tries / (unsigned)c->count)
                         : 0;

    etcd_client_failed(c, call->at);
    trace(c->trace, TRACE_DEBUG, "%s (try %u)", call->last.text, call->tries);
    if (hopeless(call, call->last.code) || (sent && call->opts.once)) {
        finish(call, call->last.code, NULL, &call->last);
        return;
    }
    if (left == 0) {
        err_add(&call->last, " (gave up after %u tries)", call->tries);
        finish(call,
               call->last.code == MUSTER_ENOMEM ? MUSTER_ENOMEM : MUSTER_ETIMEDOUT,
               NULL, &call->last);
        return;
    }
    (void)uv_timer_start(&call->timer, on_again, MIN_OF(pause, left), 0);
}

/* Whether etcd itself says that another try may do better. */
static bool unavailable(int code)
{
    return code == MUSTER_ECONN;
}

static void on_reply(struct etcd_call *call, int code, const struct etcd_answer *answer,
                     struct muster_error *err)
{
    struct etcd_client *c = call->client;

    if (code == 0) {
        finish(call, 0, answer, err);
        return;
    }
    if (answer->v3 && answer->v3->error == ETCD3_UNAUTHENTICATED && c->user &&
        !call->reauthed && call->opts.expect != ETCD3_EXPECT_TOKEN) {
        call->reauthed = true; /* The token has run out, or the server has restarted. */
        etcd_client_forget_token(c);
        (void)uv_timer_start(&call->timer, on_again, 0, 0);
        return;
    }
    wrap(call, err);
    if (unavailable(code)) {
        call->last = *err;
        try_again(call, true);
        return;
    }
    finish(call, code, answer, err);
}

static void on_done(void *ctx, int status, const struct http_answer *http, bool sent,
                    const struct muster_error *why)
{
    struct etcd_call *call = ctx;
    struct muster_error err = { 0 };
    struct etcd2_reply v2 = { .error = 0 };
    struct etcd3_reply v3 = { .error = 0 };
    struct etcd_answer answer = { .v2 = NULL };

    call->http = NULL;
    if (status == 0) {
        const struct etcd_http in = { http->status, http->etcd_index, http->body };

        if (call->opts.raw && in.status == 200) {
            answer.body = in.body;
            finish(call, 0, &answer, &err);
            return;
        }
        status = call->client->api == ETCD_V2
                     ? etcd2_decode(&in, &v2, &err)
                     : etcd3_decode(&in, call->opts.expect, &v3, &err);
        /* A gateway in between answers 5xx with a page while the server is away. */
        if (status < 0 && in.status >= 500)
            err.code = MUSTER_ECONN;
    } else {
        err = *why;
    }
    if (status < 0) {
        wrap(call, &err);
        /* A try that our deadline cut short says less than the one before. */
        if (err.code != MUSTER_ETIMEDOUT || !call->last.code)
            call->last = err;
        try_again(call, sent);
        return;
    }
    if (call->client->api == ETCD_V2) {
        answer.v2 = &v2;
        status = v2.error ? etcd2_error(&v2, &err) : 0;
    } else {
        answer.v3 = &v3;
        status = v3.error ? etcd3_error(&v3, &err) : 0;
    }
    on_reply(call, status, &answer, &err);
    etcd2_reply_fini(&v2);
    etcd3_reply_fini(&v3);
}

/* ---- A token first ---- */

static void on_token(void *ctx, int status, const struct etcd_answer *answer,
                     const struct muster_error *err)
{
    struct etcd_client *c = ctx;

    c->auth = NULL;
    if (status == 0)
        c->authorization =
            mem_strndup((const char *)answer->v3->token.p, answer->v3->token.n);
    for (struct etcd_call *call = c->calls, *next; call; call = next) {
        next = call->next;
        if (!call->wants_token)
            continue;
        call->wants_token = false;
        if (status < 0)
            call->last = *err;
        if (status < 0 && status != MUSTER_ETIMEDOUT) {
            /* One by one: a callback may cancel the next. */
            finish(call, status, NULL, err);
            next = c->closing ? NULL : c->calls;
            continue;
        }
        (void)uv_timer_start(&call->timer, on_again, 0, 0);
    }
}

static int get_token(struct etcd_client *c, uint64_t timeout_ms,
                     struct muster_error *err)
{
    const struct etcd_call_opts opts = { .timeout_ms = timeout_ms,
                                         .expect = ETCD3_EXPECT_TOKEN };
    struct etcd_msg m;
    int rc;

    if (c->auth)
        return 0;
    etcd_msg_init(&m);
    rc = etcd3_encode_auth(&m, span_str(c->user),
                           span_str(c->password ? c->password : ""));
    if (rc < 0) {
        etcd_msg_fini(&m);
        return err_nomem(err);
    }
    return etcd_client_call(c, &m, &opts, on_token, c, &c->auth, err);
}

/* ---- A try ---- */

static int start(struct etcd_call *call, uint64_t left, struct muster_error *err)
{
    struct etcd_client *c = call->client;
    const uint64_t most = call->opts.attempt_ms ? call->opts.attempt_ms
                          : c->count > 1        ? c->attempt_ms
                                                : UINT64_MAX;
    char *url;
    int rc;

    call->at = c->current;
    url =
        mem_printf("%s%s", c->urls[call->at], (const char *)buf_data(&call->msg.path));
    if (!url)
        return err_nomem(err);
    const struct http_request req = {
        .method = call->msg.method,
        .url = url,
        .type = call->msg.type,
        .body = buf_span(&call->msg.body),
        .authorization =
            call->opts.expect == ETCD3_EXPECT_TOKEN ? NULL : c->authorization,
        .connect_ms = MIN_OF(CONNECT_MS, left),
        .timeout_ms = MIN_OF(most, left),
        .max_answer = ETCD_MAX_ANSWER,
    };
    rc = http_start(c->http, &req, on_done, NULL, call, &call->http, err);
    mem_free(url);
    return rc;
}

static void attempt(struct etcd_call *call)
{
    struct etcd_client *c = call->client;
    const uint64_t left = left_ms(call);
    struct muster_error err = { 0 };
    int rc;

    if (left == 0) {
        if (!call->last.code)
            err_set(&call->last, MUSTER_ETIMEDOUT, "etcd at %s: no time left",
                    c->urls[c->current]);
        finish(call, MUSTER_ETIMEDOUT, NULL, &call->last);
        return;
    }
    if (etcd_client_needs_token(c) && call->opts.expect != ETCD3_EXPECT_TOKEN) {
        call->wants_token = true;
        rc = get_token(c, left, &err);
    } else {
        call->tries++;
        rc = start(call, left, &err);
    }
    if (rc < 0)
        finish(call, rc, NULL, &err);
}

int etcd_client_call(struct etcd_client *c, struct etcd_msg *msg,
                     const struct etcd_call_opts *opts, etcd_cb cb, void *ctx,
                     struct etcd_call **out, struct muster_error *err)
{
    struct etcd_call *call = mem_calloc(1, sizeof *call);

    if (call && opts->key.n)
        call->key = mem_strndup((const char *)opts->key.p, opts->key.n);
    if (!call || (opts->key.n && !call->key) ||
        uv_timer_init(c->loop, &call->timer) < 0) {
        if (call)
            mem_free(call->key);
        mem_free(call);
        etcd_msg_fini(msg);
        return err_nomem(err);
    }
    call->client = c;
    call->msg = *msg;
    call->opts = *opts;
    call->opts.key = (struct span){ NULL, 0 };
    call->by_ms = opts->timeout_ms > UINT64_MAX / 2
                      ? UINT64_MAX
                      : uv_now(c->loop) + opts->timeout_ms;
    call->cb = cb;
    call->ctx = ctx;
    call->timer.data = call;
    call->next = c->calls;
    if (call->next)
        call->next->prev_next = &call->next;
    call->prev_next = &c->calls;
    c->calls = call;
    etcd_client_hold(c);
    (void)uv_timer_start(&call->timer, on_again, 0, 0);
    if (out)
        *out = call;
    return 0;
}
