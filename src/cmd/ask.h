/* ask.h - what `muster status`, `stacks` and `top` share: finding the jobs on this
 * machine, asking their agents, and the command line of such a question. */
#ifndef CMD_ASK_H
#define CMD_ASK_H

#include <getopt.h>

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
 * sentence that says what there is instead; one agent that does not answer is not a
 * failure if another one of the job does. token_file: see above. */
int answers_get(struct answers *a, const char *job, const char *token_file,
                const char *kind, struct muster_error *err);
/* Those of this machine alone. */
int answers_local(struct answers *a, const char *job, const char *kind,
                  struct muster_error *err);
void answers_fini(struct answers *a);

struct span answer_run_id(const struct local_call *c); /* empty: it has none */

/* Several agents of a job may be here: whether this is the one whose answer to show. */
bool answers_is_first(const struct answers *a, size_t i);

/* A command that asks a question about a job: muster NAME [JOB] [options]. */
struct ask_args {
    const char *job; /* NULL: not given */
    const char *token_file;
    bool json, help;
};

/* The end of its options; the letters of those before are its own. */
#define ASK_OPTIONS                                                                    \
    { "json", no_argument, NULL, 'j' },                                                \
        { "token-file", required_argument, NULL, 'T' },                                \
        { "help", no_argument, NULL, 'h' },                                            \
    {                                                                                  \
        NULL, 0, NULL, 0                                                               \
    }

struct ask_command {
    const char *prog; /* "muster status" */
    const char *help;
    const struct option *options;
    /* One of its own: its letter and value. args begins with a struct ask_args. */
    int (*option)(void *args, int letter, const char *value, struct muster_error *err);
    int (*answer)(void *args, struct muster_error *err);
};

/* Returns the exit code: 2 for a command line that is wrong. */
int ask_main(const struct ask_command *cmd, struct ask_args *args, int argc,
             char **argv);

#endif
