/* connect_int.h - one attempt to reach one address: what connect.c and
 * connect_attempt.c share. */
#ifndef STORE_CONNECT_INT_H
#define STORE_CONNECT_INT_H

#include "store/connect.h"

struct attempt;

/* How an attempt ended: conn is set, and the callee owns it; or conn is NULL and code
 * 0, because the connection went to opts.tls; or there is a code and a reason. The
 * attempt is gone by then. Never called from inside attempt_start. */
typedef void (*attempt_cb)(void *ctx, struct attempt *a, struct store_conn *conn,
                           int code, const char *why);

/* How to make sure that it is a store. No other service gives the right answer to PING
 * by chance. PyTorch 2.2 to 2.4 does not know PING and closes the connection, but it
 * can be asked for its number of keys. */
enum greeting { GREET_PING, GREET_NUM_KEYS };

/* NULL with *code and *why if it fails at once. It uses opts' auth, tls and tls_fd. */
struct attempt *attempt_start(uv_loop_t *loop, const struct sockaddr *addr,
                              enum greeting greeting, const struct connect_opts *opts,
                              uint32_t nonce, attempt_cb cb, void *ctx, int *code,
                              char *why, size_t why_size);

/* Says what it is waiting for, for the error message when time is up. */
void attempt_status(const struct attempt *a, char *why, size_t why_size);

/* Gives it up; no callback will come. */
void attempt_stop(struct attempt *a);

#endif
