/* ask.h - what `muster status`, `stacks` and `top` share: finding the jobs on this
 * machine, asking their agents, and parsing the command line. */
#ifndef CMD_ASK_H
#define CMD_ASK_H

#include <getopt.h>

#include "stacks/core/sample.h"
#include "status/core/job_status.h"
#include "status/local_socket.h"

/* What an agent or a store has told of a job. */
struct told {
    struct job_known known; /* the status borrows from it */
    struct job_status status;
};

struct answer {
    struct local_name name;    /* of the agent; pid 0: a store on any machine */
    struct told *told;         /* owned; NULL: see error */
    struct muster_error error; /* MUSTER_ETIMEDOUT: the agent did not answer */
};

struct answers {
    struct answer *list; /* owned */
    size_t count;
};

/* A store on any machine: HOST:PORT, or HOST:PORT/RUN_ID for one of its jobs. */
struct remote {
    char host[1025];
    uint16_t port;
    const char *run;        /* NULL: all of them; borrowed, as are the next two */
    const char *name;       /* as it was given */
    const char *token_file; /* for a job with a secret; NULL: MUSTER_TOKEN, or none */
};

/* These three are in remote.c. remote_parse returns false if the text has another form:
 * then it is the name of a job. */
bool remote_parse(const char *job, const char *token_file, struct remote *out);
int remote_status(const struct remote *r, struct answers *a, struct muster_error *err);
int remote_stacks(const struct remote *r, uint64_t wait_ms, struct stack_sample *out,
                  struct muster_error *err);

/* Asks the agents of a job (a run id, or an agent's process number), or of all jobs of
 * this user if job is NULL, or a store (HOST:PORT). MUSTER_ENOENT if there is no such
 * job; the error then says what there is instead. If an agent does not answer, that is
 * not a failure as long as another agent of the job does. token_file: see above. */
int answers_get(struct answers *a, const char *job, const char *token_file,
                struct muster_error *err);
/* Asks agents on this machine only. */
int answers_local(struct answers *a, const char *job, struct muster_error *err);
void answers_fini(struct answers *a);

/* Takes what was told, as job_input_encode() wrote it. MUSTER_EPROTO, MUSTER_ENOMEM. */
int answer_take(struct answer *a, struct span bytes, struct muster_error *err);

/* Several agents of a job may be on this machine: the status of the i-th answer if it
 * is the one to show for its job, else NULL. */
const struct job_status *answers_shown(const struct answers *a, size_t i);

/* A command that asks a question about a job: muster NAME [JOB] [options]. */
struct ask_args {
    const char *job; /* NULL: not given */
    const char *token_file;
    bool json, help;
};

/* The options that all such commands have, and the end of the table. A command lists
 * its own options before these, with letters of its own. */
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
    /* Takes one of the command's own options. args begins with a struct ask_args. */
    int (*option)(void *args, int letter, const char *value, struct muster_error *err);
    int (*answer)(void *args, struct muster_error *err);
};

/* Returns the exit code: 2 for a command line that is wrong. */
int ask_main(const struct ask_command *cmd, struct ask_args *args, int argc,
             char **argv);

#endif
