/* connect.h - from a host name to a greeted connection to a c10d store.
 *
 * Resolves, tries the addresses side by side (IPv6 first, the next one 250 ms later or
 * as soon as one fails), greets with VALIDATE and PING, and takes the first that
 * answers rightly: a socket that accepts and then says nothing wins nothing. A round
 * without success is repeated after a pause that grows, until the deadline. With a
 * secret, both sides have proven that they hold it before the connection is handed
 * over, and it is encrypted if that was agreed on. */
#ifndef STORE_CONNECT_H
#define STORE_CONNECT_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/trace.h"
#include "net/resolve.h"

struct dial_opts {
    const char *host; /* copied */
    uint16_t port;
    uint64_t timeout_ms;
    bool once;         /* one round of attempts, then its verdict */
    struct auth *auth; /* the job's secret, which both sides prove; or NULL */
    /* An encrypted connection for somebody who reads and writes it himself: if not
     * NULL, its socket and encryption are put here before the callback comes without
     * conn and without err. They are the caller's then; nothing has been said inside
     * yet. */
    struct tls **tls;
    int *tls_fd;
    const struct trace *trace; /* borrowed, may be NULL */
};

/* A connection that has answered the greeting. Whoever gets it closes it with
 * dial_conn_close. */
struct dial_conn {
    uv_tcp_t tcp; /* first; .data is the owner's */
    char peer[ADDRESS_TEXT], local[ADDRESS_TEXT];
};

struct dialer;

/* conn, now the callee's; or NULL, a code and err: MUSTER_EREFUSED, EUNREACH, ERESOLVE,
 * ENOTSTORE, EHANGUP, ETIMEDOUT, ECONN, EACCES, ENOMEM. Comes once, from the loop. */
typedef void (*dial_cb)(void *ctx, struct dial_conn *conn,
                        const struct muster_error *err);

int dial_start(uv_loop_t *loop, const struct dial_opts *opts, dial_cb cb, void *ctx,
               struct dialer **out, struct muster_error *err);

/* Why the last round failed; "" if none has yet. */
const char *dial_last_failure(const struct dialer *d);

/* Ends it, before or after its callback; d is gone for the caller. NULL is fine. */
void dial_free(struct dialer *d);

void dial_conn_close(struct dial_conn *conn);

#endif
