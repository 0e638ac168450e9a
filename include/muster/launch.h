/* launch.h - starts the workers of this node and sees them through: torch's
 * elastic_launch. Rendezvous, ranks, restarts, logs and reports are those of
 * `muster run`; nodes of `muster run`, of torchrun and of this call form one group.
 *
 *     muster_launch_config_new(&config, &err);
 *     muster_launch_config_set(config, "nproc-per-node", "4", &err);
 *     muster_launch_config_set(config, "max-restarts", "3", &err);
 *     rc = muster_launch(config, &entry, &result, &err);
 *
 * The call blocks until this node's part of the job is over. It forks: a program with
 * several threads should make it before it starts them, or use a command as entry. */
#ifndef MUSTER_LAUNCH_H
#define MUSTER_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/error.h>
#include <muster/registry.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_launch_config;
struct muster_launch_result;

/* Defaults are those of `muster run` without flags: one node, one worker, c10d on a
 * free port. */
MUSTER_API int muster_launch_config_new(struct muster_launch_config **out,
                                        struct muster_error *err);
MUSTER_API void muster_launch_config_free(struct muster_launch_config *c);

/* Any option of `muster run` by its long name ("nnodes", "rdzv-endpoint", "log-dir",
 * "tee", ...), its value as on the command line; for flags ("standalone") value is
 * NULL. The last value of an option counts. Values are checked by muster_launch. */
MUSTER_API int muster_launch_config_set(struct muster_launch_config *c,
                                        const char *name, const char *value,
                                        struct muster_error *err);

/* Backends of the caller's own; must outlive the launch. NULL: the built-in ones. */
MUSTER_API void muster_launch_config_registry(struct muster_launch_config *c,
                                              const struct muster_registry *registry);

/* Messages of the agent, as torchrun logs them: "WARNING", "INFO", ...; to stderr.
 * Without this call the library prints nothing. */
MUSTER_API int muster_launch_config_log(struct muster_launch_config *c,
                                        const char *level, struct muster_error *err);

/* A worker as a function sees it. */
struct muster_worker {
    int64_t rank, world_size;
    int64_t local_rank, local_world_size;
    int64_t group_rank, group_world_size; /* of nodes */
    int64_t role_rank, role_world_size;
    int64_t restart_count;
    const char *master_addr; /* of the workers' store */
    uint16_t master_port;
    int result_fd;
};

/* Runs in a process of its own, forked for it, with the environment that a command
 * would have. What it returns is the exit code: 0 is success. Streams of stdio are
 * flushed, in the caller before the first worker and in the worker when the function
 * returns; the caller's atexit handlers do not run in workers. */
typedef int (*muster_worker_fn)(void *ctx, const struct muster_worker *w);

/* Within such a function: bytes for the caller of muster_launch, appended to what was
 * given before. 0 or MUSTER_EIO. A worker may return 256 MiB; more ends the launch with
 * MUSTER_EFULL (large results belong in a file). */
MUSTER_API int muster_worker_return(const struct muster_worker *w, const void *bytes,
                                    size_t size);

/* Exactly one of argv and fn. */
struct muster_entry {
    const char *const *argv; /* program and arguments, NULL at the end; ${local_rank} is
                                replaced in arguments */
    muster_worker_fn fn;
    void *ctx;        /* for fn */
    const char *name; /* of fn, in reports; may be NULL */
};

/* 0: every worker of this node succeeded. MUSTER_ECHILD: one failed for good; the
 * report is in the result. MUSTER_ESIGNAL: a handled signal came. Any other code: the
 * agent could not do its work. *out (may be NULL) is set in the first three cases. */
MUSTER_API int muster_launch(const struct muster_launch_config *config,
                             const struct muster_entry *entry,
                             struct muster_launch_result **out,
                             struct muster_error *err);

/* How many results there are (one for each function worker of this node that
 * succeeded), and the i-th of them, in order of global rank. */
MUSTER_API size_t muster_launch_result_count(const struct muster_launch_result *r);
MUSTER_API int64_t muster_launch_result_rank(const struct muster_launch_result *r,
                                             size_t i);
MUSTER_API const void *muster_launch_result_bytes(const struct muster_launch_result *r,
                                                  size_t i, size_t *size);

/* torch's report of the failure, "" if there was none. */
MUSTER_API const char *muster_launch_report(const struct muster_launch_result *r);

/* The verdict on the job in a few lines, the same on every node: which rank on which
 * host failed first, and why, in its own words. "" if there was no failure. */
MUSTER_API const char *muster_launch_verdict(const struct muster_launch_result *r);

/* The same as facts, of the worker or the node that was the cause. Texts are UTF-8
 * without control characters, "" if not known, and valid until the result is freed. */
struct muster_failure {
    const char *cause; /* "exception", "exit code", "signal", "crash", "out of memory",
                          "bad start", "lost node", "hang", ... */
    const char *text;  /* one line: the exception, or how it ended */
    const char *host;
    const char *place;      /* the last frame in the user's own code */
    const char *log;        /* its log file, on its host */
    const char *last_words; /* the last lines of its stderr */
    int64_t rank;           /* -1: it was not a worker; the next three mean nothing */
    int64_t local_rank, pid;
    int64_t exit_code; /* negative: the signal */
    int64_t time_us;   /* since 1970, by the clock of the job's coordinator */
    int64_t unsure_us; /* it may be wrong by so much */
    int64_t restarts;  /* that were used, and */
    int64_t restarts_allowed;
};

/* false: there was no failure, and *out is not touched. */
MUSTER_API bool muster_launch_failure(const struct muster_launch_result *r,
                                      struct muster_failure *out);

/* The whole story of the job as JSON, as --report writes it (docs/report.schema.json);
 * "" if the agent did not get that far. */
MUSTER_API const char *muster_launch_story(const struct muster_launch_result *r);
MUSTER_API void muster_launch_result_free(struct muster_launch_result *r);

#ifdef __cplusplus
}
#endif
#endif
