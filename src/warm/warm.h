/* warm.h - --warm: one interpreter of this node that imports once, and from which the
 * workers of every attempt are forked. A service of the guard; see server.py for what
 * it does and core/warm_core.h for what becomes of it. Owned by the agent. */
#ifndef WARM_WARM_H
#define WARM_WARM_H

#include <uv.h>

#include "base/log.h"
#include "launch/core/config.h"
#include "process/guard.h"

struct warm;

struct warm_opts {
    uv_loop_t *loop;
    struct guard *guard;
    const struct launch_config *config; /* borrowed */
    char *const *envp;                  /* borrowed */
    const struct log *log;              /* borrowed */
};

/* Starts the interpreter. That it does not come up is told in a line; then workers are
 * started the ordinary way. */
int warm_open(const struct warm_opts *opts, struct warm **out,
              struct muster_error *err);

/* From which to fork: now, or with may_wait as soon as it is ready. NULL: start the
 * ordinary way. */
const struct guard_service *warm_service(const struct warm *w, bool may_wait);

/* A worker was asked for; it was started, forked or not. A server that is ready and
 * does not answer is ended, and what it was asked for is started the ordinary way. */
void warm_asked(struct warm *w);
void warm_answered(struct warm *w, bool forked);

/* Before the guard is stopped, which ends the interpreter. NULL is fine. */
void warm_close(struct warm *w);

#endif
