/* client.c - see client.h. First come the endpoints and our credentials, then open and
 * close, then one request. */
#include "etcd/client.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "etcd/client_int.h"

/* ---- For calls and streams ---- */

void etcd_client_failed(struct etcd_client *c, size_t at)
{
    if (c->current == at)
        c->current = (at + 1) % c->count;
    if (c->current == at)
        return;
    for (struct etcd_watch *w = c->watches.first; w; w = w->next)
        etcd_watch_move(w, at);
}

bool etcd_client_needs_token(const struct etcd_client *c)
{
    return c->api == ETCD_V3 && c->user && !c->authorization;
}

void etcd_client_forget_token(struct etcd_client *c)
{
    mem_free(c->authorization);
    c->authorization = NULL;
}

uv_loop_t *etcd_client_loop(const struct etcd_client *c)
{
    return c->loop;
}

const char *etcd_client_where(const struct etcd_client *c)
{
    return c->where;
}

const char *etcd_client_local(const struct etcd_client *c)
{
    return http_local(c->http);
}

static void client_free(struct etcd_client *c)
{
    for (size_t i = 0; i < c->count; i++)
        mem_free(c->urls[i]);
    mem_free(c->urls);
    mem_free(c->where);
    mem_free(c->user);
    mem_free(c->password);
    mem_free(c->authorization);
    mem_free(c);
}

void etcd_client_hold(struct etcd_client *c)
{
    c->holds++;
}

void etcd_client_release(struct etcd_client *c)
{
    c->holds--;
    if (!c->closing || c->holds)
        return;
    if (c->on_closed)
        c->on_closed(c->closed_ctx);
    client_free(c);
}

/* ---- Open and close ---- */

int etcd_client_add(struct etcd_client *c, struct span url)
{
    char **urls;
    char *copy;

    while (url.n && url.p[url.n - 1] == '/')
        url.n--;
    for (size_t i = 0; i < c->count; i++)
        if (span_eq(span_str(c->urls[i]), url))
            return 0;
    urls = mem_realloc_array(c->urls, c->count + 1, sizeof *urls);
    if (!urls)
        return MUSTER_ENOMEM;
    c->urls = urls;
    copy = mem_strndup((const char *)url.p, url.n);
    if (!copy)
        return MUSTER_ENOMEM;
    c->urls[c->count++] = copy;
    return 0;
}

static int copy_opts(struct etcd_client *c, const struct etcd_client_opts *o)
{
    struct buf where;
    int rc = 0;

    buf_init(&where, SIZE_MAX);
    for (size_t i = 0; rc == 0 && i < o->count; i++) {
        rc = etcd_client_add(c, span_str(o->urls[i]));
        if (rc == 0)
            rc = buf_printf(&where, "%s%s", i ? "," : "", o->urls[i]);
    }
    if (rc == 0)
        c->where = mem_strndup((const char *)buf_data(&where), buf_len(&where));
    buf_fini(&where);
    if (o->user)
        c->user = mem_strdup(o->user);
    if (o->password)
        c->password = mem_strdup(o->password);
    return rc == 0 && c->where && !c->user == !o->user && !c->password == !o->password
               ? 0
               : MUSTER_ENOMEM;
}

/* v2 has no tokens: name and password are sent with each request. */
static int make_basic_auth(struct etcd_client *c)
{
    struct buf b;
    char *plain = mem_printf("%s:%s", c->user, c->password ? c->password : "");
    int rc = plain ? 0 : MUSTER_ENOMEM;

    buf_init(&b, SIZE_MAX);
    if (rc == 0)
        rc = base64_encode(&b, span_str(plain));
    if (rc == 0)
        c->authorization =
            mem_printf("Basic %.*s", (int)buf_len(&b), (const char *)buf_data(&b));
    buf_fini(&b);
    mem_free(plain);
    return c->authorization ? 0 : MUSTER_ENOMEM;
}

int etcd_client_new(uv_loop_t *loop, const struct etcd_client_opts *opts,
                    struct etcd_client **out, struct muster_error *err)
{
    struct etcd_client *c = mem_calloc(1, sizeof *c);
    int rc;

    if (!c)
        return err_nomem(err);
    c->loop = loop;
    c->api = opts->api;
    c->attempt_ms = opts->attempt_ms ? opts->attempt_ms : ETCD_ATTEMPT_MS;
    c->log = opts->log;
    rng_init(&c->rng, opts->seed);
    rc = copy_opts(c, opts);
    if (rc == 0 && c->api == ETCD_V2 && c->user)
        rc = make_basic_auth(c);
    if (rc < 0)
        err_nomem(err);
    else
        rc = http_new(loop, &opts->tls, &c->http, err);
    if (rc < 0) {
        client_free(c);
        return rc;
    }
    etcd_client_hold(c); /* for http */
    *out = c;
    return 0;
}

static void on_http_closed(void *ctx)
{
    etcd_client_release(ctx);
}

void etcd_client_close(struct etcd_client *c, void (*cb)(void *ctx), void *ctx)
{
    c->closing = true;
    c->on_closed = cb;
    c->closed_ctx = ctx;
    while (c->calls)
        etcd_call_cancel(c->calls);
    http_close(c->http, on_http_closed, c);
}

/* ---- one request ---- */

/* A call makes a try (http_start), lets etcd/core/retry.c judge the outcome, and is
 * done, or pauses and tries again, perhaps at another endpoint. */
#define CONNECT_MS 3000u
#define TOKEN_MS   10000u

static void etcd_call_attempt(struct etcd_call *call);

/* ---- The end of a call ---- */

static void client_on_timer_closed(uv_handle_t *handle)
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
    uv_close((uv_handle_t *)&call->timer, client_on_timer_closed);
}

static void etcd_call_finish(struct etcd_call *call, int status,
                             const struct etcd_answer *answer,
                             const struct muster_error *err)
{
    const etcd_cb cb = call->cb;
    void *const ctx = call->ctx;

    etcd_call_cancel(call); /* The memory stays until the loop's next turn. */
    cb(ctx, status, answer, err);
}

/* ---- After a try ---- */

static void on_again(uv_timer_t *timer)
{
    etcd_call_attempt(timer->data);
}

static void client_on_done(void *ctx, int status, const struct http_answer *http,
                           bool sent, const struct muster_error *why)
{
    struct etcd_call *call = ctx;
    struct etcd_client *c = call->client;
    struct etcd_outcome o = { .status = status,
                              .sent = sent,
                              .why = why,
                              .endpoints = c->count,
                              .left_ms =
                                  ms_left(call->by_ms, uv_now(call->client->loop)),
                              .where = c->urls[call->at],
                              .key = call->key };
    struct etcd_judged j;
    enum etcd_verdict verdict;

    call->http = NULL;
    if (status == 0)
        o.http = (struct etcd_http){ http->status, http->etcd_index, http->body };
    verdict = etcd_retry_judge(&call->state, &c->rng, &o, &j);
    if (j.failed) {
        etcd_client_failed(c, call->at);
        log_line(c->log, LOG_DEBUG, AT_RENDEZVOUS, "%s (try %u)", call->state.last.text,
                 call->state.tries);
    }
    switch (verdict) {
    case ETCD_DONE:
        etcd_call_finish(call, j.status, j.answered ? &j.answer : NULL, &j.err);
        break;
    case ETCD_REAUTH:
        etcd_client_forget_token(c);
        (void)uv_timer_start(&call->timer, on_again, 0, 0);
        break;
    case ETCD_AGAIN:
        (void)uv_timer_start(&call->timer, on_again, j.pause_ms, 0);
        break;
    }
    etcd_judged_fini(&j);
}

const char *etcd_client_last_error(const struct etcd_client *c)
{
    for (const struct etcd_call *call = c->calls; call; call = call->next)
        if (call->state.last.code)
            return call->state.last.text;
    return NULL;
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
            call->state.last = *err;
        if (status < 0 && status != MUSTER_ETIMEDOUT) {
            /* Start over at the first: the callback may have canceled the next. */
            etcd_call_finish(call, status, NULL, err);
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

    if (c->auth)
        return 0;
    etcd_msg_init(&m);
    (void)etcd3_encode_auth(&m, span_str(c->user),
                            span_str(c->password ? c->password : ""));
    return etcd_client_call(c, &m, &opts, on_token, c, &c->auth, err);
}

void etcd_client_get_token(struct etcd_client *c)
{
    /* If memory runs out, the streams that wait for the token ask again. */
    (void)get_token(c, TOKEN_MS, NULL);
}

/* ---- A try ---- */

static int start(struct etcd_call *call, uint64_t left, struct muster_error *err)
{
    struct etcd_client *c = call->client;
    const uint64_t most = call->opts.attempt_ms
                              ? call->opts.attempt_ms
                              : etcd_retry_patience_ms(&call->state, c->count);
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
    rc = http_start(c->http, &req, client_on_done, NULL, call, &call->http, err);
    mem_free(url);
    return rc;
}

static void etcd_call_attempt(struct etcd_call *call)
{
    struct etcd_client *c = call->client;
    const uint64_t left = ms_left(call->by_ms, uv_now(call->client->loop));
    struct muster_error err = { 0 };
    int rc;

    if (left == 0) {
        if (!call->state.last.code)
            err_set(&call->state.last, MUSTER_ETIMEDOUT, "etcd at %s: no time left",
                    c->urls[c->current]);
        etcd_call_finish(call, MUSTER_ETIMEDOUT, NULL, &call->state.last);
        return;
    }
    if (etcd_client_needs_token(c) && call->opts.expect != ETCD3_EXPECT_TOKEN) {
        call->wants_token = true;
        rc = get_token(c, left, &err);
    } else {
        call->state.tries++;
        rc = start(call, left, &err);
    }
    if (rc < 0)
        etcd_call_finish(call, rc, NULL, &err);
}

int etcd_client_call(struct etcd_client *c, struct etcd_msg *msg,
                     const struct etcd_call_opts *opts, etcd_cb cb, void *ctx,
                     struct etcd_call **out, struct muster_error *err)
{
    struct etcd_call *call = mem_calloc(1, sizeof *call);

    if (call && opts->key.n)
        call->key = mem_strndup((const char *)opts->key.p, opts->key.n);
    if (!call || (opts->key.n && !call->key) || etcd_msg_error(msg) < 0) {
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
    call->state = (struct etcd_retry){ .api = c->api,
                                       .expect = opts->expect,
                                       .once = opts->once,
                                       .raw = opts->raw,
                                       .user = c->user != NULL,
                                       .attempt_ms = c->attempt_ms };
    call->by_ms = opts->timeout_ms > UINT64_MAX / 2
                      ? UINT64_MAX
                      : uv_now(c->loop) + opts->timeout_ms;
    call->cb = cb;
    call->ctx = ctx;
    (void)uv_timer_init(c->loop, &call->timer); /* cannot fail */
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
