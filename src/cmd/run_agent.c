/* run_agent.c - the agent as a command: runs it, and words its end as torchrun does. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cmd/run.h"
#include "io/group_driver.h"

extern char **environ;

int run_agent(const char *prog, const struct launch_config *c,
              const struct notes *notes, const char *error_file, int *exit_code,
              struct muster_error *err)
{
    const struct group_opts opts = {
        .config = c,
        .envp = environ,
        .notes = notes,
        .handle_signals = true,
        .error_file = error_file,
    };
    struct group_result r;

    prctl(PR_SET_NAME, "pt_elastic"); /* People find torchrun's agents by this name. */
    const int rc = group_run(&opts, &r, err);
    if (rc != 0)
        return rc;
    switch (r.why) {
    case WHY_FAILURE:
        fputs(r.report ? r.report : "", stderr);
        break;
    case WHY_SIGNAL:
        fprintf(stderr,
                "torch.distributed.elastic.multiprocessing.api.SignalException: "
                "Process %d got signal: %d\n",
                (int)getpid(), r.signal);
        break;
    case WHY_FATAL:
        cmd_error(prog, &r.error);
        break;
    case WHY_NONE:
    case WHY_SUCCESS:
    case WHY_MEMBERSHIP:
    case WHY_STUCK:
        break;
    }
    *exit_code = r.exit_code;
    group_result_fini(&r);
    return 0;
}
