/* connect.h - connects to a c10d store by its host name.
 *
 * Resolves the name, tries the addresses side by side (IPv6 first, the next one 250 ms
 * later or as soon as one fails), sends VALIDATE and PING as a greeting, and takes the
 * first connection that gives the right answer. A round without success is repeated
 * after a pause that grows, until the deadline. With a secret, both sides prove that
 * they hold it before the connection is handed over, and it is encrypted if the job
 * says so. */
#ifndef STORE_CONNECT_H
#define STORE_CONNECT_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/log.h"
#include "net/core/interfaces.h"
#include "net/resolve.h"

struct connect_opts {
    const char *host; /* copied */
    uint16_t port;
    uint64_t timeout_ms;
    bool once;     /* one round of attempts only */
    bool ask_runs; /* ask with the greeting whether it hosts runs: store_conn.runs */
    struct auth *auth; /* the job's secret, which both sides prove; or NULL */
    /* For callers that read and write an encrypted connection themselves: if not NULL,
     * its socket and encryption are put here before the callback comes, without conn
     * and without err. The caller owns both then; nothing has been sent inside yet. */
    struct tls **tls;
    int *tls_fd;
    const struct log *log; /* borrowed, may be NULL */
};

/* A connection that has answered the greeting. Its owner closes it with
 * store_conn_close. */
struct store_conn {
    uv_tcp_t tcp; /* first; .data is the owner's */
    char peer[ADDRESS_TEXT];
    char ip[IP_TEXT];    /* of the peer; "" if it cannot be dialled by that alone */
    char local[IP_TEXT]; /* our end */
    bool runs; /* with ask_runs: a store of ours that hosts runs (RESERVED_RUN) */
};

struct connector;

/* Comes once, from the loop. Either conn is set, and the callee owns it; or err has one
 * of MUSTER_EREFUSED, EUNREACH, ERESOLVE, ENOTSTORE, EHANGUP, ETIMEDOUT, ECONN, EACCES
 * and ENOMEM. */
typedef void (*connect_cb)(void *ctx, struct store_conn *conn,
                           const struct muster_error *err);

int connect_start(uv_loop_t *loop, const struct connect_opts *opts, connect_cb cb,
                  void *ctx, struct connector **out, struct muster_error *err);

/* Why the last round failed; "" if none has yet. */
const char *connect_last_failure(const struct connector *d);

/* Ends the attempt, before or after its callback, and frees d. NULL is fine. */
void connect_free(struct connector *d);

void store_conn_close(struct store_conn *conn);

#endif
