/* client.h - a c10d store over TCP as a struct async_store: one connection.
 *
 * It connects as connect.h says, and limits the size of every reply. It works with our
 * server and with both of torch's. Requests are pipelined. While a WAIT or BARRIER is
 * pending, later calls are held back, since their answers could not be told apart: a
 * caller that needs both opens a second connection (clone). */
#ifndef STORE_CLIENT_H
#define STORE_CLIENT_H

#include "auth/core/auth.h"
#include "base/log.h"
#include "store/async_store.h"

struct store_conn;

struct store_client_opts {
    const char *host; /* name or numeric, without brackets; copied */
    uint16_t port;
    uint64_t timeout_ms;   /* to connect, with the handshake; like torch, retries with a
                              growing pause until then */
    bool once;             /* do not retry: report why the first round failed */
    bool ask_runs;         /* ask whether it hosts runs: store_client_runs() */
    bool lazy;             /* connect with the first call; open's cb never comes */
    bool raw_keys;         /* do not put "/" before keys */
    struct auth *auth;     /* the job's secret, or NULL */
    const struct log *log; /* borrowed, may be NULL */
};

/* Comes once: with status 0 when connected, else with a code as in connect.h. On
 * failure the store must still be closed. Calls may be made earlier: they wait for the
 * connection. */
typedef void (*store_open_cb)(void *ctx, int status, const struct muster_error *err);

int store_client_open(uv_loop_t *loop, const struct store_client_opts *opts,
                      store_open_cb cb, void *ctx, struct async_store **out,
                      struct muster_error *err);

/* The numeric address of our end; NULL before it is connected. */
const char *store_client_local(const struct async_store *s);

/* Whether it hosts runs, as it said when it was opened with ask_runs. */
bool store_client_runs(const struct async_store *s);

/* Takes the connection from a store without calls under way, which can only be closed
 * then. The caller owns it; NULL: there is none. */
struct store_conn *store_client_take(struct async_store *s);

#endif
