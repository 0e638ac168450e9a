/* ask.h - what `muster status` and `muster top` share: finding the jobs on this machine
 * and asking their agents. */
#ifndef CMD_ASK_H
#define CMD_ASK_H

#include "status/local_socket.h"

struct answers {
    struct local_call *calls; /* owned */
    size_t count;
};

/* Asks the agents of a job (a run id, or an agent's process number), or of all jobs of
 * this user if job is NULL, or a store elsewhere (HOST:PORT). MUSTER_ENOENT with a
 * sentence that says what there is instead; one agent that does not answer is no
 * failure if another one of the job does. */
int answers_get(struct answers *a, const char *job, const char *kind,
                struct muster_error *err);
/* The same of a store elsewhere: remote.c. */
int remote_get(struct answers *a, const char *host, uint16_t port, const char *name,
               struct muster_error *err);
void answers_fini(struct answers *a);

/* Several agents of a job may be here: whether this is the one whose answer to show. */
bool answers_is_first(const struct answers *a, size_t i);

#endif
