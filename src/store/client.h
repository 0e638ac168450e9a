/* client.h - a c10d store over TCP as a struct async_store: one connection.
 *
 * Resolves once per attempt, off the loop, with a deadline; tries IPv6 and IPv4 side by
 * side; sends VALIDATE in one piece and PING, and bounds every read. Works with our
 * server and with torch's two. Requests are pipelined; while a WAIT or BARRIER is
 * pending, later calls are held back, since their answers could not be told apart: who
 * needs both opens two connections (clone). */
#ifndef STORE_CLIENT_H
#define STORE_CLIENT_H

#include "auth/core/auth.h"
#include "base/trace.h"
#include "store/async_store.h"

struct store_client_opts {
    const char *host; /* name or numeric, without brackets; copied */
    uint16_t port;
    uint64_t timeout_ms; /* to connect, handshake included; retried with backoff while
                            refused or unresolvable, as torch does */
    bool once;           /* do not retry: report the first round of failures */
    bool raw_keys;       /* do not put "/" before keys */
    struct auth *auth;   /* the job's secret, or NULL */
    const struct trace *trace; /* borrowed, may be NULL */
};

/* cb(ctx, status, err) comes once: connected, or why not (MUSTER_EREFUSED, EUNREACH,
 * ERESOLVE, ENOTSTORE, EHANGUP, ETIMEDOUT). On failure *out is still to be closed.
 * Calls may be made before it: they wait for the connection. */
typedef void (*store_open_cb)(void *ctx, int status, const struct muster_error *err);

int store_client_open(uv_loop_t *loop, const struct store_client_opts *opts,
                      store_open_cb cb, void *ctx, struct async_store **out,
                      struct muster_error *err);

/* Numeric address and port of our end, once connected: "10.0.0.1:29400",
 * "[::1]:29400". NULL before. */
const char *store_client_local(const struct async_store *s);

#endif
