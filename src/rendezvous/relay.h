/* relay.h - with --encrypt, connects a node's workers to their store on another
 * machine: they connect to a port of their own machine, unencrypted as torch does, and
 * the relay sends their bytes through an encrypted connection of their agent.
 *
 * It accepts connections of the agent's own user only. */
#ifndef RENDEZVOUS_RELAY_H
#define RENDEZVOUS_RELAY_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/log.h"

struct relay;

struct relay_opts {
    const char *host; /* of the workers' store; copied */
    uint16_t port;
    struct auth *auth;     /* with AUTH_ENCRYPT; referenced */
    const struct log *log; /* borrowed, may be NULL */
};

/* It listens on 127.0.0.1 when this returns. */
int relay_open(uv_loop_t *loop, const struct relay_opts *opts, struct relay **out,
               struct muster_error *err);
uint16_t relay_port(const struct relay *r);

/* Ends all connections. cb may be NULL; the caller must not use r any more. */
void relay_close(struct relay *r, void (*cb)(void *ctx), void *ctx);

#endif
