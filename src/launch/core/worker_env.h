/* worker_env.h - what one worker is started with: environment, arguments, the prefix of
 * its teed lines, and the name that reports give it. Pure; torch's tables. */
#ifndef LAUNCH_CORE_WORKER_ENV_H
#define LAUNCH_CORE_WORKER_ENV_H

#include "base/buf.h"
#include "launch/core/config.h"

/* A worker's place in the group, and what only the running agent knows. */
struct worker_place {
    int64_t group_rank, group_world_size; /* of nodes */
    int64_t rank, world_size;
    int64_t local_rank;
    int64_t role_rank, role_world_size;
    const char *master_addr; /* borrowed, as are all texts here */
    int64_t master_port;
    const char *served_addr; /* with --encrypt: what master_addr leads to; or NULL */
    int64_t served_port;
    int64_t restart_count;
    bool use_agent_store;
    const char *error_file;  /* "" if there is no log directory */
    const char *timer_file;  /* NULL: no file timer */
    const char *notice_file; /* NULL: neither --notice nor --on-notice */
    const char *interface;   /* of the workers' network; NULL or "": theirs to find */
    const char *hostname;    /* of this machine */
    /* With --for, of all nodes in the order of their ranks: see framework.h. */
    const struct text_list *nodes;
};

/* The whole environment: the agent's (envp) with the worker's on top. MUSTER_EINVAL if
 * --virtual-local-rank finds fewer devices than workers. */
int worker_env(struct text_list *out, const struct launch_config *c,
               const struct worker_place *p, char *const *envp,
               struct muster_error *err);

/* The variables by which gloo, TensorPipe and, with --net, NCCL are told the interface.
 * Those that the user has set are left alone, even if they are empty. */
#define WORKER_NET_VARS 3
struct worker_net {
    struct {
        const char *name;
        char value[24];
    } vars[WORKER_NET_VARS];
    size_t count;
};
void worker_net(struct worker_net *out, const struct launch_config *c,
                const char *interface, char *const *envp);

/* argv, macros replaced. Not for ENTRY_FUNCTION. Without p->nodes, of p only local_rank
 * counts. */
int worker_argv(struct text_list *out, const struct launch_config *c,
                const struct worker_place *p, struct muster_error *err);

/* "train.py" in "train.py FAILED". Borrowed from the config, or a constant. */
const char *worker_report_name(const struct launch_config *c);

/* The program as log lines and events name it: "binary" of failed workers, and (its
 * last part) "entry_point" of events. Borrowed from the config, or a constant. */
const char *worker_binary(const struct launch_config *c);

#endif
