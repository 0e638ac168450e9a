/* agent.h - the agent at work: one node's workers from the first rendezvous
 * to the last exit. Blocks, on a loop of its own. Called by `muster run` and
 * muster_launch. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/core/agent_core.h"
#include "launch/core/config.h"
#include "logs/log_writer.h"
#include "muster/launch.h"
#include "process/guard.h"
#include "rendezvous/registry.h"

struct agent_opts {
    const struct launch_config *config; /* borrowed, as is all below */
    char *const *envp;
    const struct registry *registry; /* NULL: the built-in backends */
    const struct log_writer *log;
    guard_fn fn; /* ENTRY_FUNCTION: the worker's body */
    void *fn_ctx;
    bool handle_signals;    /* --signals-to-handle is obeyed */
    bool own_process;       /* all children of it are ours */
    bool reap_orphans;      /* we are the init of a container: every child is ours */
    const char *error_file; /* the agent's own, for its parent; NULL: none */
    bool story;             /* the result shall have it */
    /* The job has failed because of a worker: torch's block and our verdict, either may
     * be NULL. Comes before the agent says goodbye to the others, which may take a
     * while. May be NULL. */
    void (*on_failure)(void *ctx, const char *box, const char *verdict);
    void *ctx;
    int notify_fd; /* of notify_start(); 0 or less: nobody is told */
};

/* What a function worker of this node returned. */
struct worker_result {
    int64_t rank;   /* global */
    uint8_t *bytes; /* owned */
    size_t count;
};

struct agent_result {
    int exit_code;
    enum agent_core_why why;
    int signal;                     /* WHY_SIGNAL: which */
    struct muster_error error;      /* WHY_FATAL */
    char *failure_box;              /* owned; WHY_FAILURE: torch's block */
    char *verdict;                  /* owned; likewise: ours, a few lines */
    char *story;                    /* owned; if asked for: as --report has it */
    struct muster_failure *failure; /* owned, texts and all; likewise, if it failed */
    struct worker_result *results;  /* owned; WHY_SUCCESS with functions */
    size_t result_count;
};

/* 0 if the agent could run at all; how it went is in *out. */
int agent_run(const struct agent_opts *opts, struct agent_result *out,
              struct muster_error *err);
void agent_result_fini(struct agent_result *r);

#endif
