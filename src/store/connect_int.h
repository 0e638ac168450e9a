/* connect_int.h - one attempt to reach one address; shared by connect.c and
 * connect_attempt.c.
 */
#ifndef STORE_CONNECT_INT_H
#define STORE_CONNECT_INT_H

#include "store/connect.h"

struct attempt;

/* How an attempt ended: conn set (and the callee's), or carried: code 0, or a code and
 * a reason. The
 * attempt is gone by then. Never called from inside attempt_start. */
typedef void (*attempt_cb)(void *ctx, struct attempt *a, struct dial_conn *conn,
                           int code, const char *why);

/* How to make sure that it is a store: PING has an answer that nobody gives by chance;
 * PyTorch 2.2 to 2.4 has none, and hangs up on it, but can be asked for its number of
 * keys. */
enum greeting { GREET_PING, GREET_NUM_KEYS };

/* NULL with *code and *why if it fails at once. opts: auth, tls, tls_fd. */
struct attempt *attempt_start(uv_loop_t *loop, const struct sockaddr *addr,
                              enum greeting greeting, const struct dial_opts *opts,
                              uint32_t nonce, attempt_cb cb, void *ctx, int *code,
                              char *why, size_t why_size);

/* What it is waiting for, for the verdict when time is up. */
void attempt_standing(const struct attempt *a, char *why, size_t why_size);

/* Gives it up; no callback will come. */
void attempt_stop(struct attempt *a);

#endif
