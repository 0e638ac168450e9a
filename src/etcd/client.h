/* client.h - requests to an etcd cluster, v2 or v3, on a uv loop.
 *
 * If a try at one endpoint fails, the next one is tried, with growing, random pauses,
 * until the call's deadline. Errors name the endpoint, the key and the remedy. A
 * callback is called on the loop's thread, never before the call has returned, and
 * exactly once unless the call is canceled or the client closed. */
#ifndef ETCD_CLIENT_H
#define ETCD_CLIENT_H

#include "base/log.h"
#include "etcd/core/kv_operation.h"
#include "net/http.h"

struct etcd_client;
struct etcd_call;

struct etcd_client_opts { /* all copied, but the log */
    enum etcd_api api;
    const char *const *urls; /* "http://10.0.0.1:2379", without a slash at the end */
    size_t count;
    struct http_tls tls;
    const char *user, *password; /* NULL: none. v3: tokens; v2: basic authentication */
    uint64_t attempt_ms;   /* for one try: see etcd_retry_patience_ms(); 0: 3000 */
    uint64_t seed;         /* of the random pauses */
    const struct log *log; /* borrowed, may be NULL */
};

int etcd_client_new(uv_loop_t *loop, const struct etcd_client_opts *opts,
                    struct etcd_client **out, struct muster_error *err);

/* Drops every call and stream without calling their callbacks, then calls cb and frees
 * c. */
void etcd_client_close(struct etcd_client *c, void (*cb)(void *ctx), void *ctx);

/* Adds an endpoint to fall back to, unless it is known: those that /v2/machines lists.
 */
int etcd_client_add(struct etcd_client *c, struct span url);

uv_loop_t *etcd_client_loop(const struct etcd_client *c);
const char *etcd_client_where(const struct etcd_client *c); /* "http://h1:2379,..." */

/* The address from which we connect, without port; empty before the first answer. */
const char *etcd_client_local(const struct etcd_client *c);

struct etcd_call_opts {
    struct span key; /* for messages; copied */
    uint64_t timeout_ms;
    uint64_t attempt_ms; /* 0: the client's */
    bool once; /* do not repeat it if it may have reached a server, as it is not
                  idempotent and the caller could not tell whether it was done twice */
    bool raw;  /* the answer is not JSON: pass on the body of status 200 as it is */
    enum etcd3_expect expect;
};

/* status 0: done. Negative with an answer: etcd refused (v2: see answer->v2->error).
 * Negative without an answer: there was none, or not one of etcd's. */
typedef void (*etcd_cb)(void *ctx, int status, const struct etcd_answer *answer,
                        const struct muster_error *err);

/* Takes over msg's content, also on failure, which is MUSTER_ENOMEM: here, or while msg
 * was encoded. out may be NULL. */
int etcd_client_call(struct etcd_client *c, struct etcd_msg *msg,
                     const struct etcd_call_opts *opts, etcd_cb cb, void *ctx,
                     struct etcd_call **out, struct muster_error *err);
void etcd_call_cancel(struct etcd_call *call); /* NULL is fine */

/* Why the last try of a call that is still under way failed; NULL if none has. */
const char *etcd_client_last_error(const struct etcd_client *c);

#endif
