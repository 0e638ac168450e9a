/* client_int.h - what client.c shares with the streams and leases on it, watch.c and
 * lease.c. */
#ifndef ETCD_CLIENT_INT_H
#define ETCD_CLIENT_INT_H

#include "base/list.h"
#include "base/rng.h"
#include "etcd/client.h"
#include "etcd/core/retry.h"
#include "etcd/core/watch_stream.h"
#include "etcd/watch.h"

/* Tells that this endpoint has failed: from now on the next one is used, unless another
 * call has moved on already. Watches at it move, too: a stream from a member whose
 * cable is pulled is just silent, and calls notice that long before it does. */
void etcd_client_failed(struct etcd_client *c, size_t at);

/* watch.c: opens the watch's stream anew, soon, if it is at this endpoint. */
void etcd_watch_move(struct etcd_watch *w, size_t from);

bool etcd_client_needs_token(const struct etcd_client *c);
void etcd_client_get_token(struct etcd_client *c); /* unless one is on its way */
void etcd_client_forget_token(struct etcd_client *c);

/* A stream holds the client: when that closes, it waits until the stream has ended. */
void etcd_client_hold(struct etcd_client *c);
void etcd_client_release(struct etcd_client *c);

struct etcd_watch {
    struct etcd_watch *prev, *next; /* in the client's list */
    struct etcd_client *client;
    struct etcd_stream state;
    struct http_call *stream;
    size_t at, seen;
    bool stopped;
    uv_timer_t timer;
    etcd_watch_cb on_change;
    void *ctx;
};

struct etcd_client {
    uv_loop_t *loop;
    enum etcd_api api;
    struct http *http;
    char **urls;           /* owned, and so is each */
    size_t count, current; /* current: the endpoint in use */
    char *where;           /* owned */
    uint64_t attempt_ms;
    char *user, *password; /* owned, or NULL */
    /* owned: v2's header, or v3's token; NULL: not needed, or not known yet */
    char *authorization;
    struct etcd_call *auth; /* under way */
    struct rng rng;
    const struct log *log;
    struct etcd_call *calls;
    struct {
        struct etcd_watch *first, *last;
    } watches;
    size_t holds; /* one for each call whose timer is not closed, each stream, http */
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

struct etcd_call {
    struct etcd_call *next, **prev_next;
    struct etcd_client *client;
    struct etcd_msg msg; /* owned */
    char *key;           /* owned */
    struct etcd_call_opts opts;
    uint64_t by_ms; /* uv_now; UINT64_MAX: never */
    uv_timer_t timer;
    struct http_call *http; /* while a try is under way */
    size_t at;              /* endpoint of the try */
    struct etcd_retry state;
    bool wants_token;
    etcd_cb cb;
    void *ctx;
};

#endif
