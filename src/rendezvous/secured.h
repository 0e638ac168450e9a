/* secured.h - a rendezvous handler around another one, for jobs with a secret. Once a
 * round is joined, this node proves itself to the node that serves the workers' store,
 * so that this machine's workers are admitted there. With --encrypt it also opens the
 * relay that their connections go through. Everything else is passed on to the inner
 * handler. */
#ifndef RENDEZVOUS_SECURED_H
#define RENDEZVOUS_SECURED_H

#include "auth/core/auth.h"
#include "base/trace.h"
#include "rendezvous/handler.h"

/* Owns inner from now on, even if this fails. */
int secured_wrap(struct rdzv_handler *inner, struct auth *auth,
                 const struct trace *trace, struct rdzv_handler **out,
                 struct muster_error *err);

/* Logs a warning at the node that serves a job of several nodes, if the job has no
 * secret or also admits nodes that do not have it. auth may be NULL. */
void rdzv_log_secret(const struct trace *t, const struct auth *auth);

#endif
