/* config.h - what to launch, in full: the one structure that the command line and the C
 * API hand to the agent.
 *
 * Field for field it is what torchrun's LaunchConfig and entry point hold together.
 * Pure memory; one owner; all texts are owned by the config. */
#ifndef LAUNCH_CORE_CONFIG_H
#define LAUNCH_CORE_CONFIG_H

#include "base/base.h"
#include "base/text_list.h"
#include "logs/core/streams.h"
#include "muster/error.h"
#include "process/core/numa.h"
#include "rendezvous/core/params.h"

enum launch_entry {
    ENTRY_SCRIPT,   /* <python> -u <script> <args> */
    ENTRY_MODULE,   /* <python> -u -m <module> <args> */
    ENTRY_EXEC,     /* <script> <args> */
    ENTRY_RUN_PATH, /* runpy in a child interpreter, under torch's error recorder */
    ENTRY_FUNCTION, /* a C function of the caller, in a forked worker (C API) */
};

/* What --for names, in the order of the option's choices. */
enum framework {
    FOR_NONE,
    FOR_JAX,
    FOR_MPI,
    FOR_TF,
    FOR_HOROVOD,
    FOR_XGBOOST,
    FOR_VLLM,
    FOR_SGLANG,
};

enum hang_action { HANG_REPORT, HANG_RESTART, HANG_STOP };
#define HANG_ACTIONS 3u

const char *hang_action_name(enum hang_action action); /* "report" */

/* torchrun's, whatever --shutdown-timeout says. A time for saving that is longer than
 * this is not meant for workers that have lost one of them; --restart-grace may be. */
#define RESTART_GRACE_MOST_MS 30000u

#define LOG_ATTEMPTS 100 /* if neither --log-attempts nor --log-dir is given */

struct launch_config {
    /* Backend, endpoint as the user wrote it (static: made from the master's), run id
     * (never empty), number of nodes, options of --rdzv-conf (static: also "rank"). */
    struct rdzv_params rdzv;

    bool rdzv_serve; /* run part of the job's own etcd if this host is listed */

    int64_t
        nproc;  /* workers on this node; derive_config() checks last that it is > 0 */
    char *role; /* may be empty */
    int64_t max_restarts;
    char *policy;              /* of restarts, as policy_print has it; NULL: none */
    bool exit_by_cause;        /* --exit-codes=cause */
    char *notice, *on_notice;  /* NULL: not given */
    struct text_list notify;   /* URLs and commands */
    double monitor_interval_s; /* only checked: we do not poll */
    char *start_method;        /* spawn, fork, forkserver; any text from PET_ */
    char *event_handler;       /* null, console, ... */
    char *metrics_handler;     /* the same words */
    char *warm;                /* modules to import once; "" the usual; NULL: off */
    enum framework framework;  /* --for */
    struct text_list env;      /* --env: NAME=TEMPLATE, or NAME */
    char *net;                 /* --net: the workers' network; NULL: not given */
    char *status_http;         /* ADDR:PORT of the page; NULL: none */
    char *hang;                /* the TIME of --hang; NULL: off */
    uint64_t hang_ms;          /* the same; 0: off */
    enum hang_action hang_action;
    char *progress_file;        /* NULL: none */
    char *signals;              /* --signals-to-handle, unparsed */
    int64_t shutdown_timeout_s; /* flag, else variable, else 30; variable may be < 0 */
    uint64_t restart_grace_ms;  /* for the workers of an attempt that is over */

    char *log_dir;        /* NULL: not given */
    int64_t log_attempts; /* of which the directories are kept, and the first; 0: all */
    char *prefix_template; /* of teed lines; NULL or empty: the default */
    struct stream_map redirects, tee;
    struct rank_filter filter;
    struct text_list stdout_needles, stderr_needles; /* duplicate filters */

    bool on_failure_finish; /* --on-failure=finish: our workers run on */
    char *report;           /* --report; NULL: none */
    char *failure;          /* --failure: short, torch; NULL: by the terminal */

    bool set_omp; /* put OMP_NUM_THREADS=1 into the workers' environment */
    bool virtual_local_rank;
    enum numa_mode numa;

    enum launch_entry entry;
    char *title;           /* MUSTER_TITLE: what reports call it; NULL: the program */
    char *script;          /* script, module or executable */
    struct text_list args; /* of the script, before macros are replaced */
    bool local_rank_arg;   /* `muster launch`: --local-rank=<n> before the args */
    char *python;          /* the interpreter; NULL for ENTRY_EXEC and ENTRY_FUNCTION */
    bool python_is_custom; /* PYTHON_EXEC gave it: reports then carry its name */
};

/* All fields as torchrun has them without any flag. 0 or MUSTER_ENOMEM. */
int launch_config_init(struct launch_config *c, struct muster_error *err);
void launch_config_fini(struct launch_config *c); /* NULL and zeroed are fine */

#endif
