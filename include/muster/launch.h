/* launch.h - starts the workers of this node and manages them to their end: torch's
 * elastic_launch. Rendezvous, ranks, restarts, logs and reports are those of
 * `muster run`; nodes of `muster run`, of torchrun and of this call form one group.
 *
 *     muster_launch_config_new(&config, &err);
 *     muster_launch_config_set(config, "nproc-per-node", "4", &err);
 *     muster_launch_config_set(config, "max-restarts", "3", &err);
 *     rc = muster_launch(config, &entry, &result, &err);
 *
 * The call blocks until this node's part of the job is over. It forks, so a program
 * with threads should make the call before it starts them, or use a command as entry.
 * If memory runs out, this node's part ends in good order: its workers are ended, the
 * other nodes are told, and the call returns MUSTER_ENOMEM. */
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

/* The defaults are those of `muster run` without flags: one node, one worker, c10d on a
 * free port. */
MUSTER_API int muster_launch_config_new(struct muster_launch_config **out,
                                        struct muster_error *err);
MUSTER_API void muster_launch_config_free(struct muster_launch_config *c);

/* Sets an option of `muster run` by its long name ("nnodes", "rdzv-endpoint",
 * "log-dir", "tee", ...), with the value that the command line would take; for flags
 * ("standalone") value is NULL. The last value of an option counts. Values are checked
 * by muster_launch. */
MUSTER_API int muster_launch_config_set(struct muster_launch_config *c,
                                        const char *name, const char *value,
                                        struct muster_error *err);

/* Sets a registry with the caller's own backends, which must outlive the launch. NULL
 * stands for the built-in ones. */
MUSTER_API void muster_launch_config_registry(struct muster_launch_config *c,
                                              const struct muster_registry *registry);

/* Makes the agent log to stderr as torchrun does, from this level on ("WARNING",
 * "INFO", ...). Without this call the library prints nothing. */
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

/* Runs in a forked process of its own, with the environment that a command would have.
 * Its return value is the exit code: 0 is success. The streams of stdio are flushed in
 * the caller before the first worker starts, and in the worker when the function
 * returns. The caller's atexit handlers do not run in workers. */
typedef int (*muster_worker_fn)(void *ctx, const struct muster_worker *w);

/* Called within a worker function: hands bytes to the caller of muster_launch, behind
 * those of earlier calls. Returns 0 or MUSTER_EIO. A worker may return 256 MiB; more
 * ends the launch with MUSTER_EFULL (write large results to a file). */
MUSTER_API int muster_worker_return(const struct muster_worker *w, const void *bytes,
                                    size_t size);

/* What the workers run. Exactly one of argv and fn is set. */
struct muster_entry {
    const char *const *argv; /* program and arguments, NULL at the end; ${local_rank} is
                                replaced in arguments */
    muster_worker_fn fn;
    void *ctx;        /* for fn */
    const char *name; /* of fn, in reports; may be NULL */
};

/* Returns 0 if every worker of this node succeeded, MUSTER_ECHILD if a worker failed
 * and no restart was left (the result has the report), MUSTER_ESIGNAL if a signal that
 * the agent handles ended it, or another code that says why the agent could not do its
 * work. *out is set in the first three cases; out may be NULL. */
MUSTER_API int muster_launch(const struct muster_launch_config *config,
                             const struct muster_entry *entry,
                             struct muster_launch_result **out,
                             struct muster_error *err);

/* The number of results, one for each worker of this node that ran a function and
 * succeeded; and the i-th result, in order of global rank. */
MUSTER_API size_t muster_launch_result_count(const struct muster_launch_result *r);
MUSTER_API int64_t muster_launch_result_rank(const struct muster_launch_result *r,
                                             size_t i);
MUSTER_API const void *muster_launch_result_bytes(const struct muster_launch_result *r,
                                                  size_t i, size_t *size);

/* The report of the failure in torch's form; "" if there was no failure. */
MUSTER_API const char *muster_launch_report(const struct muster_launch_result *r);

/* The verdict on the job in a few lines, the same on every node: which rank on which
 * host failed first, and why, in its own words. "" if there was no failure. */
MUSTER_API const char *muster_launch_verdict(const struct muster_launch_result *r);

/* The verdict as data about the worker or the node that was the cause. Texts are UTF-8
 * without control characters, "" if not known, and valid until the result is freed. */
struct muster_failure {
    const char *cause; /* "exception", "exit code", "signal", "crash", "out of memory",
                          "bad start", "lost node", "hang", ... */
    const char *text;  /* one line: the exception, or how it ended */
    const char *host;
    const char *place;      /* the last frame in the user's own code */
    const char *log;        /* its log file, on its host */
    const char *last_words; /* the last lines of its stderr */
    int64_t rank; /* -1: not a worker; the next three fields then mean nothing */
    int64_t local_rank, pid;
    int64_t exit_code; /* negative: the signal */
    int64_t time_us;   /* since 1970, by the clock of the job's coordinator */
    int64_t unsure_us; /* time_us may be wrong by this much */
    int64_t restarts;  /* how many were used */
    int64_t restarts_allowed;
};

/* Returns false, and leaves *out as it is, if there was no failure. */
MUSTER_API bool muster_launch_failure(const struct muster_launch_result *r,
                                      struct muster_failure *out);

/* The whole history of the job as JSON, as --report writes it
 * (docs/report.schema.json); "" if the agent failed before there was one. */
MUSTER_API const char *muster_launch_story(const struct muster_launch_result *r);
MUSTER_API void muster_launch_result_free(struct muster_launch_result *r);

#ifdef __cplusplus
}
#endif
#endif
