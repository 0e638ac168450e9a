/* http_int.h - what http.c, http_loop.c (sockets, timeouts) and http_error.c share. */
#ifndef NET_HTTP_INT_H
#define NET_HTTP_INT_H

#include "net/curl_dl.h"
#include "net/http.h"

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

/* http_loop.c: libcurl calls these to have a socket polled and to set its timeout. */
int http_on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *sock);
int http_on_timeout(CURLM *multi, long ms, void *ctx);

/* http.c: notifies the users of what libcurl has done; frees h once all is closed. */
void http_settle(struct http *h);
void http_maybe_closed(struct http *h);

/* http_error.c: turns libcurl's result for a transfer into one of our codes, and says
 * in err what to do about it. text is libcurl's own description and may be empty. */
int http_error(CURL *easy, CURLcode code, const char *text, const struct http_tls *tls,
               struct muster_error *err);

#endif
