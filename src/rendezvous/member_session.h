/* member_session.h - a node's line to the host of its rendezvous: one connection to a
 * store server of ours, on which both sides send messages
 * (rendezvous/core/coordinator_wire.h).
 *
 * Connects once; whoever holds it decides whether to try again. Callbacks never come
 * from inside a call, and none after close. */
#ifndef RENDEZVOUS_MEMBER_SESSION_H
#define RENDEZVOUS_MEMBER_SESSION_H

#include <uv.h>

#include "base/trace.h"
#include "rendezvous/core/coordinator_wire.h"

struct member_session;

struct member_session_cbs {
    void (*up)(void *ctx); /* connected and greeted: messages can be sent */
    void (*msg)(void *ctx, const struct coord_msg *m); /* borrowed for the call */
    /* Could not connect, or the connection broke, or the host talks nonsense. Once, and
     * nothing comes after it; to be closed still. */
    void (*down)(void *ctx, const struct muster_error *err);
};

/* host: name or numeric, copied. 0, or MUSTER_ENOMEM. */
int member_session_open(uv_loop_t *loop, const char *host, uint16_t port,
                        uint64_t timeout_ms, const struct trace *trace,
                        const struct member_session_cbs *cbs, void *ctx,
                        struct member_session **out, struct muster_error *err);

/* What cannot be sent ends in down(). */
void member_session_send(struct member_session *s, const struct coord_msg *m);

void member_session_close(struct member_session *s); /* NULL is fine; s is gone */

#endif
