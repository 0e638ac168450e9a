/* http_loop.c - libcurl's sockets and its timeout on the loop; see http.c. */
#include "base/mem.h"
#include "net/http_int.h"

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

int http_on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *sock)
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

int http_on_timeout(CURLM *multi, long ms, void *ctx)
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
