/* group_driver.h - the agent at work: one node's workers from the first rendezvous to
 * the last exit. Blocks, on a loop of its own. Called by `muster run` and
 * muster_launch. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "launch/core/config.h"
#include "agent/core/agent_core.h"
#include "process/guard.h"
#include "logs/log.h"
#include "rendezvous/registry.h"

struct group_opts {
    const struct launch_config *config; /* borrowed, as is all below */
    char *const *envp;
    const struct registry *registry; /* NULL: the built-in backends */
    const struct notes *notes;
    guard_fn fn; /* ENTRY_FUNCTION: the worker's body */
    void *fn_ctx;
    bool handle_signals;    /* --signals-to-handle is obeyed */
    const char *error_file; /* the agent's own, for its parent; NULL: none */
    const char *event_file; /* JSON lines go here too; NULL: nowhere */
};

/* What a function worker of this node returned. */
struct group_answer {
    int64_t rank;   /* global */
    uint8_t *bytes; /* owned */
    size_t count;
};

struct group_result {
    int exit_code;
    enum group_why why;
    int signal;                   /* WHY_SIGNAL: which */
    struct muster_error error;    /* WHY_FATAL */
    char *report;                 /* owned; WHY_FAILURE: torch's block */
    struct group_answer *answers; /* owned; WHY_SUCCESS with functions */
    size_t answer_count;
};

/* 0 if the agent could run at all; how it went is in *out. */
int group_run(const struct group_opts *opts, struct group_result *out,
              struct muster_error *err);
void group_result_fini(struct group_result *r);

#endif
