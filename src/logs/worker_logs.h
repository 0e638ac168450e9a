/* worker_logs.h - where the workers' output goes: torchrun's directories and files.
 *
 *     <log dir>/<run id>_<8 chars>/attempt_<n>/<local rank>/
 *         stdout.log stderr.log error.json
 *
 * One struct logs per agent. With --log-dir /dev/null there are no files at all. */
#ifndef LOGS_WORKER_LOGS_H
#define LOGS_WORKER_LOGS_H

#include "base/buf.h"
#include "base/log.h"
#include "base/text_list.h"
#include "logs/core/streams.h"
#include "logs/follow.h"

struct logs;

struct logs_opts { /* all is borrowed */
    uv_loop_t *loop;
    const struct log *log;
    char *const *envp;
    const char *dir; /* --log-dir; NULL: a new one under TMPDIR */
    const char *run_id, *role;
    int64_t nproc;
    int64_t attempts; /* of which the directories are kept, and the first; 0: all */
    const struct stream_map *redirects, *tee;
    const struct rank_filter *filter;
    const char *prefix_template;        /* of teed lines; NULL or empty: the default */
    const struct text_list *needles[2]; /* of stdout and stderr: duplicate filters */
};

/* Makes the base directory (the given one, or a new one under TMPDIR). To be closed
 * even after a failure. */
int logs_open(const struct logs_opts *opts, struct logs **out,
              struct muster_error *err);

/* Makes the directory of an attempt; what is there of it already moves to
 * earlier/attempt_<n>.<k>. */
int logs_attempt(struct logs *l, int64_t attempt, struct muster_error *err);

struct logs_worker {
    int out, err;     /* for the worker: -1: the console; else the caller closes it */
    char *error_file; /* owned by the caller; "" if there are no files */
};

/* The files of one worker of the current attempt. Teed ones are followed from now
 * on. */
int logs_worker(struct logs *l, int64_t local_rank, int64_t rank,
                struct logs_worker *out, struct muster_error *err);

/* The worker has ended well. Its directory goes at once if it is empty and nobody asked
 * for it: rmdir may wait for the disk, and now others compute meanwhile. */
void logs_worker_left(struct logs *l, int64_t local_rank);

/* The workers are gone: all they wrote is shown, then cb, never from within. */
void logs_drain(struct logs *l, void (*cb)(void *ctx), void *ctx);

/* The end of what a worker of the current attempt wrote to stderr: *whole if the bytes
 * are its alone, else others wrote there too. *path (owned by the caller) is its file,
 * or NULL. *traceback_us: wall clock of its last traceback, as far as known, or 0. Call
 * it after the worker is gone. */
void logs_tail(struct logs *l, int64_t local_rank, struct buf *out, bool *whole,
               char **path, int64_t *traceback_us);

/* Whether the file system of the logs has no room left. */
bool logs_full(const struct logs *l);
const char *logs_base(const struct logs *l);
/* The same if it is our own below TMPDIR; else NULL. */
const char *logs_temp(const struct logs *l);
/* The directory of this run in it; NULL: there is none. */
const char *logs_run(const struct logs *l);

/* tidy: remove what is empty and nobody asked for (a base directory of our own). */
void logs_close(struct logs *l, bool tidy);

#endif
