/* worker_logs.c - see worker_logs.h. */
#include "logs/worker_logs.h"
#include "base/err.h"
#include "base/mem.h"
#include "logs/capture.h"
#include "logs/core/last_words.h"
#include "logs/core/prefix_lines.h"
#include "logs/directories.h"
#include "loop/remove_tree.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The directory of an attempt as it is now, whatever its name becomes. */
struct attempt_dir {
    int fd;
    size_t users; /* removals, and the logs while it is the current one */
};

struct logs {
    struct logs_opts opts;
    bool none;                  /* /dev/null */
    bool own_base;              /* nobody named it */
    char *base, *run, *attempt; /* owned; run: made at the first attempt */
    int filtered[2];            /* shared by all local ranks; -1 */
    struct tails *tails;        /* NULL until something is teed */
    struct captures *captures;  /* what goes to the console */
    int64_t began_at;           /* size of the file that stderr is; -1: none */
    struct attempt_dir *dir;    /* NULL until many workers end well */
    size_t removals;            /* not yet over */
    int64_t forgotten; /* last attempt not kept, or this node's first; -1: none */
    bool closed, tidy; /* as soon as they are */
    void (*drained)(void *ctx);
    void *drained_ctx;
};

#define MANY 16 /* workers whose directories are worth a thread's time */

/* <base>/<name>_<8 chars> */
static int unique_dir(char **out, const char *base, const char *name,
                      struct muster_error *err)
{
    const size_t n = strlen(base);
    const char *slash = n && base[n - 1] == '/' ? "" : "/";
    char *stem = mem_printf("%s%s%s_", base, slash, name);

    *out = stem ? log_dirs_unique(stem, err) : NULL;
    mem_free(stem);
    return *out ? 0 : err ? err->code : MUSTER_EIO;
}

int logs_open(const struct logs_opts *opts, struct logs **out, struct muster_error *err)
{
    struct logs *l = mem_calloc(1, sizeof *l);
    int rc = 0;

    if (!l)
        return err_nomem(err);
    *l = (struct logs){ .opts = *opts, .filtered = { -1, -1 }, .forgotten = -1 };
    *out = l;
    if (opts->dir && strcmp(opts->dir, "/dev/null") == 0) {
        l->none = true;
    } else if (opts->dir) {
        l->base = mem_strdup(opts->dir);
        rc = l->base ? log_dirs_make(l->base, err) : err_nomem(err);
    } else {
        l->own_base = true;
        rc = unique_dir(&l->base, log_dirs_temp(opts->envp), "torchelastic", err);
    }
    return rc == 0 ? captures_open(opts->loop, (size_t)opts->nproc, &l->captures, err)
                   : rc;
}

static int open_filtered(struct logs *l, int which, struct muster_error *err)
{
    const char *name = which ? "filtered_stderr.log" : "filtered_stdout.log";

    if (l->opts.needles[which]->count == 0)
        return 0;
    char *path = mem_printf("%s/%s", l->none ? "/dev/null" : l->attempt, name);
    if (!path)
        return err_nomem(err);
    l->filtered[which] = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const int rc =
        l->filtered[which] >= 0
            ? 0
            : log_dirs_error(err, "Duplicate filters need a log directory", path);
    mem_free(path);
    return rc;
}

static void close_filtered(struct logs *l)
{
    for (int i = 0; i < 2; i++) {
        if (l->filtered[i] >= 0)
            close(l->filtered[i]);
        l->filtered[i] = -1;
    }
}

/* Somebody who tidies up (systemd-tmpfiles, `rm -r`) may have taken it while the
 * workers ran; like torchrun, go on. In /tmp the name could be another user's by
 * now. */
static int make_run_dir_again(struct logs *l, struct muster_error *err)
{
    struct stat st;
    int rc = 0;

    if (stat(l->run, &st) == 0 || errno != ENOENT)
        return 0; /* Whatever is wrong with it, what comes next will tell. */
    log_line(
        l->opts.log, LOG_WARN, AT_LOGS,
        "the log directory %s has been removed while the job runs; it is made again",
        l->run);
    if (!l->own_base)
        rc = log_dirs_make(l->base, err);
    else if (mkdir(l->base, 0700) != 0 &&
             (errno != EEXIST || lstat(l->base, &st) != 0 || st.st_uid != geteuid()))
        rc = log_dirs_error(err, "The log directory cannot be made", l->base);
    if (rc == 0 && mkdir(l->run, 0700) != 0)
        rc = log_dirs_error(err, "The log directory cannot be made", l->run);
    return rc;
}

/* Like torchrun's, a new round of the same attempt (nodes came or went) has its files
 * at the same place; those of the round before are not lost to it. */
static int next_attempt(struct logs *l, int64_t attempt, struct muster_error *err)
{
    char name[32], *moved = NULL;

    snprintf(name, sizeof name, "attempt_%" PRId64, attempt);
    mem_free(l->attempt);
    l->attempt = mem_printf("%s/%s", l->run, name);
    if (!l->attempt)
        return err_nomem(err);
    const int rc = log_dirs_renew(l->run, name, &moved, err);
    if (moved)
        log_line(l->opts.log, LOG_INFO, AT_LOGS,
                 "the logs of the round that is over are in %s", moved);
    mem_free(moved);
    return rc;
}

static void logs_finish(struct logs *l);

/* --- directories that are not kept ------------------------------------------------ */

/* In a thread of libuv's pool: on some file systems each removal waits for the disk,
 * which neither the loop nor the next attempt should do. */
struct removal {
    uv_work_t work;
    struct logs *l;
    struct attempt_dir *dir; /* the empty directory of its worker `from` goes; */
    char *run;               /* owned; without dir, the attempts from..to of this run */
    int64_t from, to;
};

static void dir_release(struct attempt_dir *d)
{
    if (!d || --d->users > 0)
        return;
    (void)close(d->fd);
    mem_free(d);
}

static void removal_work(uv_work_t *work)
{
    const struct removal *r = work->data;
    char name[32];

    if (r->dir) {
        snprintf(name, sizeof name, "%" PRId64, r->from);
        (void)unlinkat(r->dir->fd, name, AT_REMOVEDIR);
        return;
    }
    for (int64_t n = r->from; n <= r->to; n++) {
        snprintf(name, sizeof name, "attempt_%" PRId64, n);
        log_dirs_forget(r->run, name);
    }
}

static void removal_over(uv_work_t *work, int status)
{
    struct removal *r = work->data;
    struct logs *l = r->l;

    (void)status;
    dir_release(r->dir);
    mem_free(r->run);
    mem_free(r);
    if (--l->removals == 0 && l->closed)
        logs_finish(l);
}

/* Takes run over. False: nothing will be removed. */
static bool removal_start(struct logs *l, struct attempt_dir *dir, char *run,
                          int64_t from, int64_t to)
{
    struct removal *r = dir || run ? mem_calloc(1, sizeof *r) : NULL;

    if (r) {
        *r = (struct removal){
            .work.data = r, .l = l, .dir = dir, .run = run, .from = from, .to = to
        };
        if (uv_queue_work(l->opts.loop, &r->work, removal_work, removal_over) == 0) {
            l->removals++;
            if (dir)
                dir->users++;
            return true;
        }
    }
    mem_free(run);
    mem_free(r);
    return false;
}

/* Keeps the first attempt of this node and the last few, this one included. */
static void forget_old_attempts(struct logs *l, int64_t attempt)
{
    const int64_t to = attempt - l->opts.attempts;

    if (l->forgotten < 0)
        l->forgotten = attempt;
    if (l->opts.attempts > 0 && to > l->forgotten &&
        removal_start(l, NULL, mem_strdup(l->run), l->forgotten + 1, to))
        l->forgotten = to;
}

static void forget_dir(struct logs *l)
{
    dir_release(l->dir);
    l->dir = NULL;
}

static struct attempt_dir *open_dir(const char *path)
{
    struct attempt_dir *d = mem_calloc(1, sizeof *d);

    if (!d)
        return NULL;
    *d = (struct attempt_dir){ open(path, O_PATH | O_DIRECTORY | O_CLOEXEC), 1 };
    if (d->fd >= 0)
        return d;
    mem_free(d);
    return NULL;
}

/* Where stderr is a file that all write to. */
static int64_t shared_size(void)
{
    struct stat st;

    return fstat(2, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : -1;
}

int logs_attempt(struct logs *l, int64_t attempt, struct muster_error *err)
{
    int rc = 0;

    close_filtered(l);
    forget_dir(l);
    captures_reset(l->captures);
    l->began_at = shared_size();
    if (!l->none) {
        rc = l->run ? make_run_dir_again(l, err)
                    : unique_dir(&l->run, l->base, l->opts.run_id, err);
        if (rc != 0)
            return rc;
        rc = next_attempt(l, attempt, err);
        if (rc != 0)
            return rc;
        forget_old_attempts(l, attempt);
    }
    rc = open_filtered(l, 0, err);
    return rc == 0 ? open_filtered(l, 1, err) : rc;
}

/* --- teed streams ----------------------------------------------------------------- */

static void on_error(void *ctx, const char *name, int errnum)
{
    const struct logs *l = ctx;

    log_line(l->opts.log, LOG_ERROR, AT_TAIL, "error in log tailer for %s. %s", name,
             errnum == EPIPE ? "BrokenPipeError" : strerror(errnum));
}

static void on_blind(void *ctx, unsigned every_ms, int errnum)
{
    const struct logs *l = ctx;

    log_line(
        l->opts.log, LOG_WARN, AT_LOGS,
        "inotify cannot be used (%s): log files are looked at every %u ms instead. "
        "All processes of a user share its limits, fs.inotify.max_user_instances and "
        "fs.inotify.max_user_watches: see sysctl.",
        strerror(errnum), every_ms);
}

/* From now on the console shows what the worker writes to path: which is 0 for its
 * stdout, 1 for its stderr. */
static int logs_follow(struct logs *l, const char *path, int which, int64_t local_rank,
                       int64_t rank, struct muster_error *err)
{
    const struct logs_opts *o = &l->opts;
    const struct text_list *needles = o->needles[which];
    const struct tails_opts opts = { l->opts.loop, on_error, on_blind, l };
    char name[300], hostname[256] = "";
    struct buf prefix;
    int rc = 0;

    (void)gethostname(hostname, sizeof hostname - 1);
    if (!l->tails)
        rc = tails_open(&opts, &l->tails, err);
    buf_init(&prefix, SIZE_MAX);
    if (rc == 0 && line_prefix(&prefix, o->prefix_template, o->role, rank, local_rank,
                               hostname) != 0)
        rc = err_nomem(err);
    snprintf(name, sizeof name, "%s%" PRId64, o->role, local_rank);
    if (rc == 0)
        rc = tails_add(l->tails,
                       &(struct tail_spec){ .path = path,
                                            .name = name,
                                            .prefix = buf_span(&prefix),
                                            .is_stderr = which == 1,
                                            .needles = needles->items,
                                            .needle_count = needles->count,
                                            .copy_fd = l->filtered[which] },
                       err);
    buf_fini(&prefix);
    return rc;
}

/* --- one worker ------------------------------------------------------------------- */

/* One stream: a file, the console (-1), or nowhere if the console does not show it. */
static int open_stream(struct logs *l, const char *dir, int which, int64_t local_rank,
                       int64_t rank, int *fd, struct muster_error *err)
{
    const struct logs_opts *o = &l->opts;
    const uint8_t bit = which ? STREAM_ERR : STREAM_OUT;
    const bool tee = stream_map_get(o->tee, local_rank) & bit;
    const bool to_file = tee || stream_map_get(o->redirects, local_rank) & bit;
    const bool shown = rank_filter_shows(o->filter, local_rank);

    *fd = -1;
    if (l->none || !to_file) {
        if (!shown)
            *fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        return 0;
    }
    char *path = mem_printf("%s/%s", dir, which ? "stderr.log" : "stdout.log");
    if (!path)
        return err_nomem(err);
    int rc = 0;
    *fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (*fd < 0)
        rc = log_dirs_error(err, "A worker's output cannot be redirected", path);
    if (rc == 0 && tee && shown)
        rc = logs_follow(l, path, which, local_rank, rank, err);
    mem_free(path);
    return rc;
}

int logs_worker(struct logs *l, int64_t local_rank, int64_t rank,
                struct logs_worker *out, struct muster_error *err)
{
    struct logs_worker w = { -1, -1, NULL };
    char *dir = NULL;
    int rc = 0;

    if (l->none) {
        w.error_file = mem_strdup("");
    } else {
        dir = mem_printf("%s/%" PRId64, l->attempt, local_rank);
        w.error_file = dir ? mem_printf("%s/error.json", dir) : NULL;
    }
    if (!w.error_file)
        rc = err_nomem(err);
    if (rc == 0 && dir && mkdir(dir, 0777) != 0)
        rc = log_dirs_error(err, "The log directory cannot be made", dir);
    if (rc == 0)
        rc = open_stream(l, dir, 0, local_rank, rank, &w.out, err);
    if (rc == 0)
        rc = open_stream(l, dir, 1, local_rank, rank, &w.err, err);
    mem_free(dir);
    if (rc == 0) {
        captures_worker(l->captures, (size_t)local_rank, &w.out, &w.err);
        *out = w;
        return 0;
    }
    if (w.out >= 0)
        close(w.out);
    mem_free(w.error_file);
    return rc;
}

/* --- the end ---------------------------------------------------------------------- */

void logs_worker_left(struct logs *l, int64_t local_rank)
{
    if (!l->own_base || !l->attempt)
        return;
    if (l->opts.nproc >= MANY && !l->dir)
        l->dir = open_dir(l->attempt);
    if (l->dir && removal_start(l, l->dir, NULL, local_rank, local_rank))
        return;
    char *dir = mem_printf("%s/%" PRId64, l->attempt, local_rank);
    if (dir)
        (void)rmdir(dir);
    mem_free(dir);
}

static void on_captured(void *ctx)
{
    struct logs *l = ctx;

    if (l->tails)
        tails_drain(l->tails, l->drained, l->drained_ctx);
    else
        l->drained(l->drained_ctx);
}

void logs_drain(struct logs *l, void (*cb)(void *ctx), void *ctx)
{
    l->drained = cb;
    l->drained_ctx = ctx;
    captures_drain(l->captures, on_captured, l);
}

/* The last bytes of a file, from `from` on at the earliest. */
static void read_tail(int fd, int64_t from, struct buf *out, int64_t *changed_us)
{
    struct stat st;
    uint8_t *room = buf_room(out, LAST_WORDS_BYTES);

    if (fd < 0 || !room || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    from = MAX_OF(from, st.st_size - (int64_t)LAST_WORDS_BYTES);
    const ssize_t n = pread(fd, room, LAST_WORDS_BYTES, from);
    if (n > 0)
        buf_commit(out, (size_t)n);
    *changed_us = st.st_mtim.tv_sec * 1000000LL + st.st_mtim.tv_nsec / 1000;
}

void logs_tail(struct logs *l, int64_t local_rank, struct buf *out, bool *whole,
               char **path, int64_t *traceback_us)
{
    const struct logs_opts *o = &l->opts;
    const uint8_t to_file =
        stream_map_get(o->tee, local_rank) | stream_map_get(o->redirects, local_rank);
    const struct span kept =
        captures_tail(l->captures, (size_t)local_rank, traceback_us);
    int fd = -1;

    *path = NULL;
    *whole = true;
    if (kept.n) {
        (void)buf_append_span(out, kept);
        return;
    }
    if (!l->none && (to_file & STREAM_ERR)) {
        *path = mem_printf("%s/%" PRId64 "/stderr.log", l->attempt, local_rank);
        fd = *path ? open(*path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
        read_tail(fd, 0, out, traceback_us);
    } else if (l->began_at >= 0) { /* All of us write there, perhaps append-only. */
        *whole = false;
        fd = open("/proc/self/fd/2", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        read_tail(fd, l->began_at, out, traceback_us);
    }
    if (fd >= 0)
        (void)close(fd);
    if (!last_words_has_traceback(buf_span(out)))
        *traceback_us = 0; /* When it last wrote says nothing then. */
}

bool logs_full(const struct logs *l)
{
    struct statvfs st;

    return !l->none && l->base && statvfs(l->base, &st) == 0 && st.f_bavail == 0;
}

const char *logs_base(const struct logs *l)
{
    return l->none ? "/dev/null" : l->base;
}

const char *logs_temp(const struct logs *l)
{
    return l->own_base ? l->base : NULL;
}

const char *logs_run(const struct logs *l)
{
    return l->none ? NULL : l->run;
}

static void logs_finish(struct logs *l)
{
    if (l->tidy && l->own_base && l->base &&
        !(l->attempt && rmdir(l->attempt) == 0 && rmdir(l->run) == 0 &&
          rmdir(l->base) == 0))
        (void)remove_empty_dirs(AT_FDCWD, l->base); /* There is more. */
    mem_free(l->base);
    mem_free(l->run);
    mem_free(l->attempt);
    mem_free(l);
}

void logs_close(struct logs *l, bool tidy)
{
    if (!l)
        return;
    l->closed = true;
    l->tidy = tidy;
    close_filtered(l);
    tails_close(l->tails);
    captures_close(l->captures);
    forget_dir(l);
    if (l->removals == 0)
        logs_finish(l);
}
