/* http.h - HTTP requests on a uv loop, by libcurl's multi interface. It needs no thread
 * of ours, and libcurl resolves names off the loop. One struct http keeps connections
 * alive between requests. Proxies from the environment are not used: torch's etcd
 * client ignores them too, and a rendezvous is inside the cluster.
 *
 * Callbacks come on the loop's thread, never from inside http_start. */
#ifndef NET_HTTP_H
#define NET_HTTP_H

#include <uv.h>

#include "base/base.h"
#include "muster/error.h"

struct http;
struct http_call;

struct http_tls {          /* all files PEM, all copied, each may be NULL */
    const char *ca_file;   /* NULL: the system's */
    const char *cert_file; /* may hold the key as well */
    const char *key_file;
};

struct http_request {
    const char *method, *url;
    const char *type;          /* of the body; NULL: none */
    struct span body;          /* copied */
    const char *authorization; /* value of that header, or NULL */
    uint64_t connect_ms;       /* resolving, connecting and TLS */
    uint64_t timeout_ms;       /* for all of it; UINT64_MAX: until the caller cancels */
    size_t max_answer;
};

struct http_answer {
    long status;
    uint64_t etcd_index; /* X-Etcd-Index, 0 if absent */
    struct span body;    /* borrowed for the callback */
};

/* Comes once, and the call is gone by then. status is 0 for an answer of any HTTP
 * status. Otherwise it is a negative code, err says what to do, and `sent` whether the
 * request may have reached the server. */
typedef void (*http_done_cb)(void *ctx, int status, const struct http_answer *answer,
                             bool sent, const struct muster_error *err);

/* For streams: reads from the front of what has come so far and returns how many bytes
 * it has used. */
typedef size_t (*http_data_cb)(void *ctx, const struct http_answer *sofar);

int http_new(uv_loop_t *loop, const struct http_tls *tls, struct http **out,
             struct muster_error *err);

/* The address of our end of the last connection, without port; empty before the first
 * one. Valid until h is closed. */
const char *http_local(const struct http *h);

/* If on_data is NULL, the whole body comes with on_done. */
int http_start(struct http *h, const struct http_request *req, http_done_cb on_done,
               http_data_cb on_data, void *ctx, struct http_call **out,
               struct muster_error *err);

void http_cancel(struct http_call *call); /* on_done does not come; NULL is fine */

/* Cancels everything, then calls cb; h is gone by then. */
void http_close(struct http *h, void (*cb)(void *ctx), void *ctx);

#endif
