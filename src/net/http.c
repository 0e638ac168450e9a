/* http.c - see http.h. libcurl tells which sockets and which timeout it waits for, and
 * http_loop.c polls them. libcurl's callbacks only record what happened: users are
 * notified afterwards, in http_settle(), where they may start and cancel calls. */
#include "net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "net/http_int.h"

struct http_call {
    struct http_call *next, **prev_next;
    struct http *http;
    CURL *easy;
    struct curl_slist *headers;
    struct buf in; /* the answer, or what a stream's user has not yet taken */
    uint64_t etcd_index;
    bool fresh; /* there are bytes that on_data has not seen */
    http_done_cb on_done;
    http_data_cb on_data;
    void *ctx;
    char text[CURL_ERROR_SIZE];
};

/* ---- Notifying the users ---- */

/* Takes the call out of the list and away from libcurl. http_call_free must follow. */
static void call_detach(struct http_call *c)
{
    *c->prev_next = c->next;
    if (c->next)
        c->next->prev_next = c->prev_next;
    (void)curl_multi_remove_handle(c->http->multi, c->easy);
}

static void http_call_free(struct http_call *c)
{
    if (c->http->notifying == c)
        c->http->notifying = NULL;
    curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    buf_fini(&c->in);
    mem_free(c);
}

static void note_local(struct http_call *c)
{
    const char *ip = NULL;

    if (curl_easy_getinfo(c->easy, CURLINFO_LOCAL_IP, &ip) == CURLE_OK && ip && ip[0])
        (void)snprintf(c->http->local, sizeof c->http->local, "%s", ip);
}

static struct http_answer answer_of(struct http_call *c)
{
    struct http_answer a = { .etcd_index = c->etcd_index, .body = buf_span(&c->in) };

    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &a.status);
    return a;
}

static void notify_data(struct http_call *c)
{
    struct http *h = c->http;
    const struct http_answer a = answer_of(c);
    size_t used;

    c->fresh = false;
    h->notifying = c;
    used = c->on_data(c->ctx, &a);
    if (h->notifying) /* Otherwise the user canceled it, and it is gone. */
        buf_consume(&c->in, used);
    h->notifying = NULL;
}

static void notify_done(struct http_call *c, CURLcode code)
{
    struct muster_error err = { 0 };
    const struct http_answer a = answer_of(c);
    long sent = 0;
    int rc = 0;

    (void)curl_easy_getinfo(c->easy, CURLINFO_REQUEST_SIZE, &sent);
    if (code != CURLE_OK)
        rc = http_error(c->easy, code, c->text, &c->http->tls, &err);
    else
        note_local(c);
    call_detach(c); /* The user may close everything from inside the callback. */
    c->on_done(c->ctx, rc, rc < 0 ? NULL : &a, sent > 0, &err);
    http_call_free(c);
}

/* Callbacks may change the list, so the search starts again after each of them. */
void http_settle(struct http *h)
{
    CURLMsg *m;
    int left;

again:
    for (struct http_call *c = h->calls; c; c = c->next)
        if (c->fresh && c->on_data) {
            notify_data(c);
            goto again;
        }
    while (!h->closing && (m = curl_multi_info_read(h->multi, &left))) {
        struct http_call *c = NULL;
        const CURLcode code = m->data.result;

        if (m->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        notify_done(c, code);
        goto again;
    }
}

/* ---- libcurl's callbacks ---- */

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
    struct http_call *c = ctx;

    if (buf_append(&c->in, p, size * n) < 0)
        return 0;
    c->fresh = true;
    return size * n;
}

static size_t on_header(char *p, size_t size, size_t n, void *ctx)
{
    static const char name[] = "x-etcd-index:";
    struct http_call *c = ctx;

    n *= size;
    if (n > sizeof name && strncasecmp(p, name, sizeof name - 1) == 0) {
        char number[24] = "";

        (void)snprintf(number, sizeof number, "%.*s", (int)(n - sizeof name + 1),
                       p + sizeof name - 1);
        c->etcd_index = strtoull(number, NULL, 10);
    }
    return n;
}

/* ---- Requests ---- */

static bool add_header(struct http_call *c, const char *name, const char *value)
{
    char *line = mem_printf("%s: %s", name, value);
    struct curl_slist *more = line ? curl_slist_append(c->headers, line) : NULL;

    mem_free(line);
    if (more)
        c->headers = more;
    return more != NULL;
}

static long clamp_ms(uint64_t ms)
{
    return ms >= INT32_MAX ? 0 : MAX_OF((long)ms, 1);
}

static bool set_tls(CURL *e, const struct http_tls *t)
{
    CURLcode rc = CURLE_OK;

    if (t->ca_file)
        rc = curl_easy_setopt(e, CURLOPT_CAINFO, t->ca_file);
    if (rc == CURLE_OK && t->cert_file)
        rc = curl_easy_setopt(e, CURLOPT_SSLCERT, t->cert_file);
    if (rc == CURLE_OK && (t->key_file || t->cert_file))
        rc = curl_easy_setopt(e, CURLOPT_SSLKEY,
                              t->key_file ? t->key_file : t->cert_file);
    return rc == CURLE_OK;
}

static bool set_up(struct http_call *c, const struct http_request *req)
{
    CURL *e = c->easy;
    bool ok = curl_easy_setopt(e, CURLOPT_URL, req->url) == CURLE_OK &&
              curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, req->method) == CURLE_OK;

    (void)curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    (void)curl_easy_setopt(e, CURLOPT_ERRORBUFFER, c->text);
    (void)curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L); /* no wait for a dead DNS */
    (void)curl_easy_setopt(e, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(e, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, clamp_ms(req->connect_ms));
    (void)curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, clamp_ms(req->timeout_ms));
    (void)curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    (void)curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(e, CURLOPT_HEADERDATA, c);
    if (req->type) {
        ok = ok && curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE,
                                    (curl_off_t)req->body.n) == CURLE_OK;
        ok = ok &&
             curl_easy_setopt(e, CURLOPT_COPYPOSTFIELDS,
                              req->body.n ? (const char *)req->body.p : "") == CURLE_OK;
        ok = ok && add_header(c, "Content-Type", req->type);
        ok = ok && add_header(c, "Expect", ""); /* no 100-continue round trip */
    }
    if (req->authorization)
        ok = ok && add_header(c, "Authorization", req->authorization);
    if (c->headers)
        ok = ok && curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers) == CURLE_OK;
    return ok && set_tls(e, &c->http->tls);
}

int http_start(struct http *h, const struct http_request *req, http_done_cb on_done,
               http_data_cb on_data, void *ctx, struct http_call **out,
               struct muster_error *err)
{
    struct http_call *c = mem_calloc(1, sizeof *c);

    if (!c)
        return err_nomem(err);
    c->http = h;
    c->on_done = on_done;
    c->on_data = on_data;
    c->ctx = ctx;
    buf_init(&c->in, req->max_answer);
    c->easy = curl_easy_init();
    if (!c->easy || !set_up(c, req)) {
        curl_easy_cleanup(c->easy);
        curl_slist_free_all(c->headers);
        mem_free(c);
        return err_nomem(err);
    }
    c->next = h->calls;
    if (c->next)
        c->next->prev_next = &c->next;
    c->prev_next = &h->calls;
    h->calls = c;
    (void)curl_multi_add_handle(h->multi, c->easy);
    *out = c;
    return 0;
}

void http_cancel(struct http_call *call)
{
    if (!call)
        return;
    call_detach(call);
    http_call_free(call);
}

/* ---- Open and close ---- */

static void http_free(struct http *h)
{
    mem_free((char *)h->tls.ca_file);
    mem_free((char *)h->tls.cert_file);
    mem_free((char *)h->tls.key_file);
    mem_free(h);
}

void http_maybe_closed(struct http *h)
{
    if (!h->timer_closed || h->polls)
        return;
    if (h->on_closed)
        h->on_closed(h->closed_ctx);
    http_free(h);
}

static void http_on_timer_closed(uv_handle_t *handle)
{
    struct http *h = handle->data;

    h->timer_closed = true;
    http_maybe_closed(h);
}

static bool copy_tls(struct http_tls *to, const struct http_tls *from)
{
    if (from->ca_file)
        to->ca_file = mem_strdup(from->ca_file);
    if (from->cert_file)
        to->cert_file = mem_strdup(from->cert_file);
    if (from->key_file)
        to->key_file = mem_strdup(from->key_file);
    return !from->ca_file == !to->ca_file && !from->cert_file == !to->cert_file &&
           !from->key_file == !to->key_file;
}

const char *http_local(const struct http *h)
{
    return h->local;
}

int http_new(uv_loop_t *loop, const struct http_tls *tls, struct http **out,
             struct muster_error *err)
{
    const int rc = curl_dl_load(err);
    if (rc != 0)
        return rc;
    struct http *h = mem_calloc(1, sizeof *h);

    if (!h)
        return err_nomem(err);
    h->loop = loop;
    h->multi = curl_multi_init(); /* also initialises libcurl if need be */
    if (!h->multi || !copy_tls(&h->tls, tls) || uv_timer_init(loop, &h->timer) < 0) {
        (void)curl_multi_cleanup(h->multi);
        http_free(h);
        return err_nomem(err);
    }
    h->timer.data = h;
    (void)curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, http_on_socket);
    (void)curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    (void)curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, http_on_timeout);
    (void)curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    *out = h;
    return 0;
}

void http_close(struct http *h, void (*cb)(void *ctx), void *ctx)
{
    h->closing = true;
    h->on_closed = cb;
    h->closed_ctx = ctx;
    while (h->calls)
        http_cancel(h->calls);
    (void)curl_multi_cleanup(
        h->multi); /* also closes idle connections, by http_on_socket */
    h->multi = NULL;
    uv_close((uv_handle_t *)&h->timer, http_on_timer_closed);
}
