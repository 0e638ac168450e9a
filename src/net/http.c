/* http.c - see http.h. libcurl tells which sockets and which timeout it waits for, and
 * we poll them. libcurl's callbacks only record what happened: users are notified
 * afterwards, in http_settle(), where they may start and cancel calls.
 *
 * From top to bottom: why a transfer failed, notifying the users, libcurl's callbacks,
 * requests, sockets and timeouts, open and close. */
#include "net/http.h"

#include <errno.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "net/curl_dl.h"

struct http {
    uv_loop_t *loop;
    CURLM *multi;
    uv_timer_t timer;
    struct http_tls tls; /* strings owned */
    char local[64];      /* our end of the last connection: an address */
    struct http_call *calls;
    struct http_call *notifying; /* its on_data runs; NULL once it is canceled */
    size_t polls;                /* uv handles not yet closed */
    bool closing, timer_closed;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

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

/* ---- Why a transfer failed ---- */

static bool says(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

/* What OpenSSL found wrong with the server's certificate. */
static int verify_error(CURL *easy, const char *text, const struct http_tls *tls,
                        struct muster_error *err)
{
    long result = X509_V_OK;

    (void)curl_easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &result);
    if (result == X509_V_ERR_CERT_HAS_EXPIRED)
        return err_set(err, MUSTER_EACCES,
                       "the server's certificate has expired: renew it, or set this "
                       "machine's clock right");
    if (result == X509_V_ERR_CERT_NOT_YET_VALID)
        return err_set(err, MUSTER_EACCES,
                       "the server's certificate is not valid yet: is this machine's "
                       "clock right?");
    if (result == X509_V_OK || result == X509_V_ERR_HOSTNAME_MISMATCH ||
        result == X509_V_ERR_IP_ADDRESS_MISMATCH || says(text, "subject name"))
        return err_set(err, MUSTER_EACCES,
                       "the server's certificate is for another name: use in the "
                       "endpoint a name or address that the certificate lists (%s)",
                       text);
    return err_set(err, MUSTER_EACCES,
                   "the server's certificate is not signed by %s (%s): give the CA of "
                   "the cluster as ca_cert (for the backend etcd: cacert)",
                   tls->ca_file ? tls->ca_file : "a CA of this system",
                   curl_dl_verify_text(result));
}

/* A handshake that fails before the certificate is verified, or right after. 0: it is
 * another error. */
static int tls_error(const char *text, const struct http_tls *tls,
                     struct muster_error *err)
{
    if (says(text, "SSL_ERROR_SYSCALL"))
        return err_set(
            err, MUSTER_ECONN,
            "the server hung up when TLS began (%s): if it speaks plain HTTP "
            "at this port, use protocol=http",
            text);
    if (says(text, "wrong version number") || says(text, "packet length too long"))
        return err_set(err, MUSTER_EACCES,
                       "the server does not speak TLS at this port: use protocol=http, "
                       "or the port of its https listener");
    if (says(text, "certificate required") || says(text, "bad certificate") ||
        says(text, "handshake failure"))
        return err_set(err, MUSTER_EACCES,
                       "the server asks for a client certificate%s (%s): give ssl_cert "
                       "and ssl_cert_key (for the backend etcd: cert and key), signed "
                       "by a CA that the server trusts",
                       tls->cert_file ? " and does not take ours" : "", text);
    if (says(text, "unknown ca") || says(text, "certificate expired") ||
        says(text, "certificate unknown"))
        return err_set(err, MUSTER_EACCES,
                       "the server refuses our client certificate %s (%s)",
                       tls->cert_file ? tls->cert_file : "(none)", text);
    return 0;
}

static int connect_error(CURL *easy, const char *text, struct muster_error *err)
{
    long os = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os);
    if (os == ECONNREFUSED)
        return err_set(
            err, MUSTER_EREFUSED,
            "connection refused: nothing listens there. Is etcd running, and "
            "is this its client port (2379 by default, 2380 is for peers)?");
    if (os == EHOSTUNREACH || os == ENETUNREACH)
        return err_set(err, MUSTER_EUNREACH, "no route to that address");
    return err_set(err, MUSTER_ECONN, "cannot connect (%s)", text);
}

/* A server with TLS 1.3 refuses a client's certificate only after the handshake, and
 * its reason may get lost when it closes the connection. */
static bool fresh_tls(CURL *easy)
{
    curl_off_t tls_us = 0;
    long made = 0, status = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_APPCONNECT_TIME_T, &tls_us);
    (void)curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &made);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return tls_us > 0 && made > 0 && status == 0;
}

static int other_error(CURL *easy, CURLcode code, const char *text,
                       const struct http_tls *tls, struct muster_error *err)
{
    switch ((int)code) {
    case CURLE_OUT_OF_MEMORY:
        return err_nomem(err);
    case CURLE_WRITE_ERROR:
        return err_set(err, MUSTER_EFULL, "the answer is larger than allowed");
    case CURLE_UNSUPPORTED_PROTOCOL: /* "Received HTTP/0.9 when not allowed" */
    case CURLE_WEIRD_SERVER_REPLY:
        return err_set(err, MUSTER_ENOTSTORE,
                       "what answers there does not speak HTTP: check host and port");
    case CURLE_GOT_NOTHING:
        return err_set(err, MUSTER_EHANGUP,
                       "the server hung up without an answer: if it wants TLS at this "
                       "port, use protocol=https");
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
        if (fresh_tls(easy))
            return err_set(
                err, MUSTER_EHANGUP,
                "the server hung up right after TLS was set up (%s): perhaps "
                "it asks for a client certificate and does not take ours "
                "(%s)",
                text, tls->cert_file ? tls->cert_file : "none given");
        return err_set(err, MUSTER_EHANGUP,
                       "the connection broke before the answer was whole (%s)", text);
    }
    return err_set(err, MUSTER_ECONN, "the request failed (%s)", text);
}

/* Turns libcurl's result for a transfer into one of our codes, and says in err what to
 * do about it. text is libcurl's own description and may be empty. */
static int http_error(CURL *easy, CURLcode code, const char *text,
                      const struct http_tls *tls, struct muster_error *err)
{
    int rc;

    if (!text[0])
        text = curl_easy_strerror(code);
    switch ((int)code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return err_set(err, MUSTER_ERESOLVE, "the host name does not resolve (%s)",
                       text);
    case CURLE_COULDNT_CONNECT:
        return connect_error(easy, text, err);
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(err, MUSTER_ETIMEDOUT, "no answer in time (%s)", text);
    case CURLE_PEER_FAILED_VERIFICATION:
        return verify_error(easy, text, tls, err);
    case CURLE_SSL_CACERT_BADFILE:
        return err_set(err, MUSTER_EINVAL, "the CA file %s cannot be read (%s)",
                       tls->ca_file ? tls->ca_file : "of the system", text);
    case CURLE_SSL_CERTPROBLEM:
        return err_set(err, MUSTER_EINVAL,
                       "the client certificate %s and its key %s cannot be used (%s): "
                       "both are PEM files, and the key must belong to the certificate",
                       tls->cert_file ? tls->cert_file : "(none)",
                       tls->key_file ? tls->key_file : "(in the same file)", text);
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        rc = tls_error(text, tls, err);
        if (rc < 0)
            return rc;
    }
    return other_error(easy, code, text, tls, err);
}

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
static void http_settle(struct http *h)
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

/* ---- Sockets and timeouts ---- */

static void http_free(struct http *h)
{
    mem_free((char *)h->tls.ca_file);
    mem_free((char *)h->tls.cert_file);
    mem_free((char *)h->tls.key_file);
    mem_free(h);
}

static void http_maybe_closed(struct http *h)
{
    if (!h->timer_closed || h->polls)
        return;
    if (h->on_closed)
        h->on_closed(h->closed_ctx);
    http_free(h);
}

struct sock {
    struct http *http;
    uv_poll_t poll;
    curl_socket_t fd;
    int events;  /* what libcurl waits for */
    bool failed; /* libuv has reported an error once */
};

static void on_poll_closed(uv_handle_t *handle)
{
    struct sock *s = handle->data;
    struct http *h = s->http;

    mem_free(s);
    h->polls--;
    http_maybe_closed(h);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct sock *s = poll->data;
    struct http *h = s->http;
    int flags = 0, running;

    if (events & UV_READABLE)
        flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        flags |= CURL_CSELECT_OUT;
    /* A server that closed the connection may have sent the reason before: let libcurl
     * read it before we report an error. libuv stops polling after an error. */
    if (status < 0)
        flags = s->failed ? CURL_CSELECT_ERR : CURL_CSELECT_IN;
    (void)curl_multi_socket_action(h->multi, s->fd, flags, &running);
    if (status < 0 && !uv_is_closing((uv_handle_t *)&s->poll)) {
        s->failed = true;
        (void)uv_poll_start(&s->poll, s->events, on_poll);
    }
    http_settle(h);
}

static struct sock *sock_new(struct http *h, curl_socket_t fd)
{
    struct sock *s = mem_calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->http = h;
    s->fd = fd;
    s->poll.data = s;
    if (uv_poll_init_socket(h->loop, &s->poll, fd) < 0) {
        mem_free(s);
        return NULL;
    }
    h->polls++;
    (void)curl_multi_assign(h->multi, fd, s);
    return s;
}

static int http_on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *sock)
{
    struct http *h = ctx;
    struct sock *s = sock;
    int events = 0;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (s) {
            (void)uv_poll_stop(&s->poll);
            uv_close((uv_handle_t *)&s->poll, on_poll_closed);
            (void)curl_multi_assign(h->multi, fd, NULL);
        }
        return 0;
    }
    if (!s)
        s = sock_new(h, fd);
    if (!s)
        return -1; /* libcurl then fails the transfers with an internal error. */
    if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
        events |= UV_READABLE;
    if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
        events |= UV_WRITABLE;
    s->events = events;
    return uv_poll_start(&s->poll, events, on_poll) < 0 ? -1 : 0;
}

static void http_on_timer(uv_timer_t *timer)
{
    struct http *h = timer->data;
    int running;

    (void)curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    http_settle(h);
}

static int http_on_timeout(CURLM *multi, long ms, void *ctx)
{
    struct http *h = ctx;

    (void)multi;
    if (h->closing)
        return 0;
    if (ms < 0)
        return uv_timer_stop(&h->timer) < 0 ? -1 : 0;
    /* The loop's time may be stale: it is from the start of this turn. */
    uv_update_time(h->loop);
    return uv_timer_start(&h->timer, http_on_timer, (uint64_t)ms, 0) < 0 ? -1 : 0;
}

/* ---- Open and close ---- */

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
