/* push_session.h - a connection to the runs in our store server, on which both sides
 * send messages. Ours are values of QUEUE_PUSH to RESERVED_RUN; each of the server's
 * follows a u64 length.
 *
 * It connects once; the owner decides whether to try again. Callbacks never come from
 * inside a call, and none comes after close. */
#ifndef STORE_PUSH_SESSION_H
#define STORE_PUSH_SESSION_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/base.h"
#include "base/log.h"
#include "muster/error.h"

struct push_session;

struct push_session_cbs {
    void (*up)(void *ctx); /* connected: messages can be sent; not with opts.conn */
    /* One whole message, borrowed for the call. False, with the reason, if it is not
     * valid; then down() follows. */
    bool (*msg)(void *ctx, struct span bytes, struct muster_error *err);
    /* It could not connect, or the connection broke, or the server sent an invalid
     * message. Comes once, as the last callback; the session must still be closed. */
    void (*down)(void *ctx, const struct muster_error *err);
};

struct push_session_opts {
    const char *host; /* name or numeric, copied */
    uint16_t port;
    uint64_t timeout_ms;
    /* A connection that is there already, instead of the four above: it is up at once,
     * and belongs to the session, unless that cannot be opened. Or NULL. */
    struct store_conn *conn;
    bool ask_runs; /* it may be torch's store: down() comes with MUSTER_ENOTSUP then */
    struct auth *auth;     /* the job's secret, or NULL */
    size_t max;            /* bytes of one message, either way */
    const struct log *log; /* borrowed, may be NULL */
};

/* 0, or MUSTER_ENOMEM. */
int push_session_open(uv_loop_t *loop, const struct push_session_opts *opts,
                      const struct push_session_cbs *cbs, void *ctx,
                      struct push_session **out, struct muster_error *err);

/* False: there was no memory for it. What else keeps it from being sent ends in down().
 */
bool push_session_send(struct push_session *s, struct span message);

/* The numeric address of the server, once it is up; "" if a name is needed. */
const char *push_session_ip(const struct push_session *s);

/* No callback comes any more, but the connection stays open until it is closed, so that
 * the server does not notice yet. */
void push_session_mute(struct push_session *s);

void push_session_close(struct push_session *s); /* NULL is fine; s is gone */

#endif
