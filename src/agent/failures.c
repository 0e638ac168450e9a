/* failures.c - failed workers: their error files, the line, the report, and the
 * agent's own error file for whoever started it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "agent/core/exit_cause.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/file.h"
#include "process/cgroup.h"

/* --- error files ------------------------------------------------------------------ */

/* A worker may have put anything there: only a regular file of sane size is read, and
 * opening it neither blocks nor follows a link. MUSTER_ENOENT: there is none. */
int agent_read_error_file(const char *path, struct buf *out, struct muster_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return err_set(err, errno == ENOENT ? MUSTER_ENOENT : MUSTER_EIO, "%s",
                       errno == ELOOP ? "it is a symbolic link" : strerror(errno));
    int rc = fstat(fd, &st) == 0 ? 0 : MUSTER_EIO;
    if (rc == 0 && !S_ISREG(st.st_mode))
        rc = err_set(err, MUSTER_ENOENT,
                     "it is not a regular file"); /* like torch, take it as missing */
    else if (rc == 0 && st.st_size > ERROR_FILE_MAX)
        rc = err_set(err, MUSTER_EFULL, "it has %" PRId64 " bytes; at most %u are read",
                     (int64_t)st.st_size, ERROR_FILE_MAX);
    while (rc == 0) {
        uint8_t *room = buf_room(out, 65536);
        const ssize_t n = room ? read(fd, room, 65536) : -1;
        if (n < 0)
            rc = err_set(err, MUSTER_EIO, "%s", strerror(errno));
        if (n <= 0)
            break;
        buf_commit(out, (size_t)n);
        if (buf_len(out) > ERROR_FILE_MAX)
            rc = err_set(err, MUSTER_EFULL, "it grows while it is read");
    }
    close(fd);
    return rc;
}

/* Fills in what the file says, if it says anything. A broken one is named in the log,
 * and the report goes on without it (torchrun would die here). */
static void take_error_file(struct agent *a, struct failure *f, const char *path)
{
    struct muster_error err = { 0 };
    struct buf bytes;

    if (!path || !path[0])
        return;
    buf_init(&bytes, SIZE_MAX);
    int rc = agent_read_error_file(path, &bytes, &err);
    if (rc == 0)
        rc = error_file_parse(&f->data, buf_span(&bytes), &err);
    buf_fini(&bytes);
    if (rc == 0) {
        f->time_s = f->data.time_s;
        f->error_file = mem_strdup(path);
    } else if (rc != MUSTER_ENOENT) {
        log_line(a->log, LOG_ERROR, AT_ERROR_FILE, "Failed to parse reply file: %s\n%s",
                 path, err.text);
    }
}

static void stamp_failure(struct failure *f)
{
    const time_t t = (time_t)f->time_s;
    struct tm tm;

    if (!localtime_r(&t, &tm) ||
        !strftime(f->when, sizeof f->when, "%Y-%m-%d_%H:%M:%S", &tm))
        snprintf(f->when, sizeof f->when, "%" PRId64, f->time_s);
}

/* --- failures --------------------------------------------------------------------- */

void agent_forget_failures(struct agent *a)
{
    for (size_t i = 0; i < a->failure_count; i++)
        failure_fini(&a->failures[i]);
    mem_free(a->failures);
    a->failures = NULL;
    a->failure_count = 0;
}

/* For torch's box: the exception and its place, the same on every node. */
static char *words_and_place(const struct record_entry *e)
{
    return mem_printf("%.*s%s%.*s", (int)e->text.n, (const char *)e->text.p,
                      e->place.n ? "\n    " : "", (int)e->place.n,
                      (const char *)e->place.p);
}

/* Without an error file, use what the worker wrote to stderr. */
static void take_own_words(struct agent *a, struct failure *f, int64_t i)
{
    struct record_entry e = { .at_us = a->workers[i].exited_us };
    struct failure_words words;

    if (f->code < 0 && !agent_was_failing(a, i))
        return; /* People search for torch's words about a signal, so keep them. */
    agent_describe(a, i, &words, &e);
    if (words.words.python)
        f->words = words_and_place(&e);
    f->time_s = e.at_us / 1000000;
    agent_words_fini(&words);
}

static bool worker_failed(const struct agent_worker *w)
{
    return w->exited && w->code != 0;
}

static void add_failure(struct agent *a, int64_t i)
{
    const struct agent_worker *w = &a->workers[i];
    struct failure *f = &a->failures[a->failure_count++];

    *f = (struct failure){
        .local_rank = i,
        .rank = a->range.base_rank + i,
        .pid = w->pid,
        .code = w->code,
        .signal_name = w->code < 0 ? signal_name(-w->code) : NULL,
        .time_s = w->exited_us / 1000000,
    };
    take_error_file(a, f, w->error_file);
    if (!f->error_file)
        take_own_words(a, f, i);
    stamp_failure(f);
}

/* The worker that ended first, then the others by local rank: in this order torchrun
 * meets those that it has stopped itself. */
static void collect_failures(struct agent *a)
{
    const int64_t n = a->config->nproc;
    int64_t first = -1;

    agent_forget_failures(a);
    a->failures = mem_calloc((size_t)n, sizeof *a->failures);
    if (!a->failures)
        return;
    for (int64_t i = 0; i < n; i++)
        if (worker_failed(&a->workers[i]) &&
            (first < 0 || a->workers[i].order < a->workers[first].order))
            first = i;
    if (first >= 0)
        add_failure(a, first);
    for (int64_t i = 0; i < n; i++)
        if (worker_failed(&a->workers[i]) && i != first)
            add_failure(a, i);
}

/* How many the kernel has killed for want of memory; negative: not known. */
static int64_t log_oom(struct agent *a)
{
    const int64_t now = cgroup_oom_kills("");
    const int64_t killed = a->oom_kills >= 0 && now >= 0 ? now - a->oom_kills : -1;

    if (killed > 0)
        log_line(
            a->log, LOG_ERROR, AT_CAUSE,
            "out of memory: the kernel's OOM killer has killed %" PRId64
            " of the processes in this job's cgroup while the workers ran (oom_kill "
            "rose from %" PRId64 " to %" PRId64
            ")\nGive the job more memory, or let it use less.",
            killed, a->oom_kills, now);
    a->oom_kills = now;
    return killed;
}

/* The line about the restart has already told of this failure. */
static bool logged_with_restart(const struct agent *a, const struct failure *f)
{
    struct record_entry e;

    return record_find(session_record(a->job.session), RECORD_RESTART,
                       agent_job_round(a), &e) &&
           e.rank == f->rank && e.pid == f->pid;
}

/* Tells what the exit code alone does not tell a person. */
static void log_cause(struct agent *a, const struct failure *f, int64_t oom_kills)
{
    struct buf b;

    if (logged_with_restart(a, f))
        return;
    if (f->local_rank >= 0 && f->local_rank < a->config->nproc &&
        a->workers[f->local_rank].signalled_us && f->code == -a->core.stop_sig)
        return; /* We ended it ourselves because of --hang. */
    buf_init(&b, 1024);
    if (exit_cause_print(&b, f->code, f->signal_name, oom_kills) && buf_u8(&b, 0) == 0)
        log_line(a->log, LOG_ERROR, AT_CAUSE, "rank %" PRId64 " on %s (pid %d) %s",
                 f->rank, a->host, f->pid, (const char *)buf_data(&b));
    buf_fini(&b);
}

/* Python has said so itself, but perhaps into a file, and without the directory in
 * which it looked. */
static void log_script(struct agent *a, const struct failure *f)
{
    const struct launch_config *c = a->config;
    char here[1024];

    if (c->entry != ENTRY_SCRIPT || f->code != 2 || strchr(c->script, '$') ||
        access(c->script, R_OK) == 0)
        return;
    log_line(
        a->log, LOG_ERROR, AT_AGENT,
        "the script '%s' cannot be read: %s\nThe workers look for it from %s; it must "
        "be there on every node, and readable.",
        c->script, strerror(errno), getcwd(here, sizeof here) ? here : "here");
}

/* The worker that the verdict names, if it ran on another node: then this node prints
 * its box, too. */
static bool foreign_culprit(struct agent *a, struct failure *f, struct record_entry *v)
{
    if (!record_find(session_record(a->job.session), RECORD_VERDICT, -1, v) ||
        v->cause == CAUSE_SUCCEEDED || v->rank < 0 ||
        v->node == session_node(a->job.session))
        return false;
    *f = (struct failure){ .local_rank = v->local_rank,
                           .rank = v->rank,
                           .pid = (int)v->pid,
                           .code = (int)v->code,
                           .time_s = v->at_us / 1000000 };
    f->words = words_and_place(v);
    f->signal_name = f->code < 0 ? signal_name(-f->code) : NULL;
    stamp_failure(f);
    return true;
}

void agent_failed(struct agent *a)
{
    struct record_entry v;
    struct failure culprit;

    collect_failures(a);
    if (a->failure_count == 0)
        return;
    if (foreign_culprit(a, &culprit, &v)) { /* Ours were stopped because of it. */
        failure_fini(&culprit);
        return;
    }
    const struct failure *f = &a->failures[failure_root(a->failures, a->failure_count)];
    if (a->config->entry == ENTRY_RUN_PATH)
        log_line(a->log, agent_restart_level(a, LOG_ERROR), AT_FAILED_FN,
                 "failed (exitcode: %d) local_rank: %" PRId64
                 " (pid: %d) of fn: run_script_path (start_method: %s)",
                 f->code, f->local_rank, f->pid, a->config->start_method);
    else
        log_line(a->log, agent_restart_level(a, LOG_ERROR), AT_FAILED,
                 "failed (exitcode: %d) local_rank: %" PRId64
                 " (pid: %d) of binary: %s",
                 f->code, f->local_rank, f->pid, worker_binary(a->config));
    log_script(a, f);
    /* The kernel may also have killed a child of a worker, which then gave up. */
    log_cause(a, f, log_oom(a));
    if (logs_full(a->logs))
        log_line(
            a->log, LOG_ERROR, AT_CAUSE,
            "the file system of the log directory is full: %s\nWorkers may have failed "
            "because of it. Make room, or give another --log-dir.",
            logs_base(a->logs));
}

static char *print_failure_box(struct agent *a, const char *host,
                               const struct failure *list, size_t count)
{
    struct buf b;
    char *text = NULL;

    buf_init(&b, SIZE_MAX);
    if (buf_append_str(&b, "torch.distributed.elastic.multiprocessing.errors."
                           "ChildFailedError: ") == 0 &&
        report_print(&b, worker_report_name(a->config), host, list, count) == 0)
        text = mem_strndup((const char *)buf_data(&b), buf_len(&b));
    buf_fini(&b);
    return text;
}

char *agent_failure_box(struct agent *a)
{
    struct record_entry v;
    struct failure culprit;
    char *text = NULL, *host;

    if (!foreign_culprit(a, &culprit, &v))
        return a->failure_count
                   ? print_failure_box(a, a->host, a->failures, a->failure_count)
                   : NULL;
    host = mem_strndup((const char *)v.host.p, v.host.n);
    if (host)
        text = print_failure_box(a, host, &culprit, 1);
    mem_free(host);
    failure_fini(&culprit);
    return text;
}

/* --- for the agent's parent ------------------------------------------------------- */

static void write_error_file(struct agent *a, const char *path, const struct buf *b)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0 || !file_write_all(fd, buf_span(b)))
        log_line(a->log, LOG_WARN, AT_AGENT, "Unable to write error to file. %s: %s",
                 path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* The root cause's error file becomes ours, its exit code added. */
static void pass_error_file_on(struct agent *a, const struct failure *root)
{
    const char *path = a->opts.error_file;
    struct buf b, old;
    struct muster_error err;

    if (!path || !path[0]) {
        log_line(a->log, LOG_ERROR, AT_NO_PARENT_FILE,
                 "no error file defined for parent, to copy child error file (%s)",
                 root->error_file);
        return;
    }
    if (!root->data.object)
        log_line(
            a->log, LOG_WARN, AT_NEW_FORMAT,
            "child error file (%s) has a new message format. \nskipping error code "
            "override",
            root->error_file);
    buf_init(&b, SIZE_MAX);
    buf_init(&old, SIZE_MAX);
    if (agent_read_error_file(path, &old, &err) == 0) {
        log_line(a->log, LOG_WARN, AT_OVERWRITE,
                 "%s already exists and will be overwritten. Original contents:\n%.*s",
                 path, (int)MIN_OF(buf_len(&old), 65536), (const char *)buf_data(&old));
        unlink(path);
    }
    if (error_file_for_parent(&b, &root->data, root->code) == 0)
        write_error_file(a, path, &b);
    buf_fini(&b);
    buf_fini(&old);
}

static void write_own_error(struct agent *a, const char *message)
{
    struct buf b;

    if (!a->opts.error_file || !a->opts.error_file[0])
        return;
    buf_init(&b, SIZE_MAX);
    if (error_file_print(&b, message, message, (int64_t)time(NULL)) == 0)
        write_error_file(a, a->opts.error_file, &b);
    buf_fini(&b);
}

void agent_notify_parent(struct agent *a, enum agent_core_why why)
{
    char text[96];

    if (why == WHY_FAILURE && a->failure_count > 0) {
        const struct failure *root =
            &a->failures[failure_root(a->failures, a->failure_count)];
        if (root->error_file)
            pass_error_file_on(a, root);
    } else if (why == WHY_SIGNAL) {
        snprintf(text, sizeof text, "SignalException: Process %d got signal: %d",
                 (int)getpid(), a->core.signal);
        write_own_error(a, text);
    } else if (why == WHY_FATAL && a->fatal.code != MUSTER_EGRACEFUL) {
        write_own_error(a, a->fatal.text);
    }
}
