/* secured.h - a rendezvous handler around another one, for jobs with a secret: when a
 * round is there, this node proves itself to whoever serves the workers' store, so that
 * this machine's workers are admitted there; with --encrypt it also opens the relay
 * that their connections go through. Everything else is handed on. */
#ifndef RENDEZVOUS_SECURED_H
#define RENDEZVOUS_SECURED_H

#include "auth/core/auth.h"
#include "base/trace.h"
#include "rendezvous/handler.h"

/* Takes inner over, also if it fails. */
int secured_wrap(struct rdzv_handler *inner, struct auth *auth,
                 const struct trace *trace, struct rdzv_handler **out,
                 struct muster_error *err);

/* One line of whoever serves a job of several nodes, if it has no secret or admits
 * those who do not hold it. auth may be NULL. */
void rdzv_log_secret(const struct trace *t, const struct auth *auth);

#endif
