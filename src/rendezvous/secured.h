/* secured.h - what a handler does for a job with a secret once a round is joined: it
 * proves this node to the node that serves the workers' store, so that this machine's
 * workers are admitted there. With --encrypt it also opens the relay that their
 * connections go through. Part of handler_base.c, which every handler has. */
#ifndef RENDEZVOUS_SECURED_H
#define RENDEZVOUS_SECURED_H

#include "auth/core/auth.h"
#include "base/log.h"
#include "loop/handle_set.h"
#include "rendezvous/handler.h"

typedef void (*secured_cb)(void *ctx, const struct muster_error *err);

struct secured {
    struct auth *auth;        /* a reference; NULL: the job has no secret */
    const struct log *log;    /* borrowed */
    struct async_store *link; /* owned; for a round, the connection that proves us */
    struct relay *relay;      /* owned; with encryption, for a round */
    struct rdzv_round round;  /* as the agent is told of it */
    char served[1025];
    secured_cb cb; /* NULL: no proof is under way */
    void *ctx;
};

/* From now on rounds are proved. Until then, s is zeroed. */
void secured_init(struct secured *s, struct auth *auth, const struct log *log);

/* Proves this node for a round. agents_store: an agent serves the workers' store.
 * Returns 0 if cb comes later (err is NULL once s->round is complete), 1 if s->round is
 * complete at once, or the error. */
int secured_prove(struct secured *s, uv_loop_t *loop, const struct rdzv_round *round,
                  bool agents_store, secured_cb cb, void *ctx,
                  struct muster_error *err);

/* Ends the proof of the last round, under way or not; its callback never comes. */
void secured_drop(struct secured *s);

/* The same at the end of the handler, which waits for it and drops the reference. */
void secured_close(struct secured *s, struct handle_set *closing);

/* Logs a warning at the node that serves a job of several nodes, if the job has no
 * secret or also admits nodes that do not have it. auth may be NULL. */
void rdzv_log_secret(const struct log *t, const struct auth *auth);

#endif
