/* ask.h - what `muster status` and `muster top` share: finding the jobs on this machine
 * and asking their agents. */
#ifndef CMD_ASK_H
#define CMD_ASK_H

#include "stacks/core/sample.h"
#include "status/local_socket.h"

struct answers {
    struct local_call *calls; /* owned */
    size_t count;
};

/* A store elsewhere: HOST:PORT, or HOST:PORT/RUN_ID for one of its jobs. */
struct remote {
    char host[1025];
    uint16_t port;
    const char *run;        /* NULL: all of them; borrowed, as are the next two */
    const char *name;       /* as it was given */
    const char *token_file; /* for a job with a secret; NULL: MUSTER_TOKEN, or none */
};

/* False if the text is something else: the name of a job. remote.c, as the next two. */
bool remote_parse(const char *job, const char *token_file, struct remote *out);
int remote_status(const struct remote *r, struct answers *a, struct muster_error *err);
int remote_stacks(const struct remote *r, struct stack_sample *out,
                  struct muster_error *err);

/* Asks the agents of a job (a run id, or an agent's process number), or of all jobs of
 * this user if job is NULL, or a store elsewhere (HOST:PORT). MUSTER_ENOENT with a
 * sentence that says what there is instead; one agent that does not answer is no
 * failure if another one of the job does. token_file: see above. */
int answers_get(struct answers *a, const char *job, const char *token_file,
                const char *kind, struct muster_error *err);
/* Those of this machine alone. */
int answers_local(struct answers *a, const char *job, const char *kind,
                  struct muster_error *err);
void answers_fini(struct answers *a);

/* Several agents of a job may be here: whether this is the one whose answer to show. */
bool answers_is_first(const struct answers *a, size_t i);

#endif
