/* failure_cause.c - why a worker failed, for the record and the verdict: from its exit
 * status, from what it wrote, and from what the kernel says of its control group and
 * its core file. Called by failures.c and job.c. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "agent/core/exit_cause.h"
#include "base/escape.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/file.h"
#include "process/cgroup.h"
#include "process/kernel_log.h"

/* Where the kernel puts core files; named only if there is one. */
static void add_core_file(struct buf *out, int pid)
{
    char pattern[256], path[512], here[1024];
    const ssize_t n =
        file_read("/proc/sys/kernel/core_pattern", pattern, sizeof pattern);

    if (n <= 0)
        return;
    pattern[n - (pattern[n - 1] == '\n')] = '\0';
    if (pattern[0] == '|') { /* Only that program knows where it puts them. */
        (void)buf_printf(out, "; its core went to %.100s", pattern + 1);
        return;
    }
    for (int with_pid = 1; with_pid >= 0; with_pid--) {
        snprintf(path, sizeof path, with_pid ? "%.*s.%d" : "%.*s",
                 (int)strcspn(pattern, "%"), pattern, pid);
        if (access(path, F_OK) != 0)
            continue;
        const bool relative = path[0] != '/' && getcwd(here, sizeof here);
        (void)buf_printf(out, "; core: %s%s%s", relative ? here : "",
                         relative ? "/" : "", path);
        return;
    }
}

/* Which of our workers had the most memory, as far as the kernel has told. */
static int64_t largest_worker(const struct agent *a)
{
    int64_t best = 0;

    for (int64_t i = 1; i < a->config->nproc; i++)
        if (a->workers[i].peak_kb > a->workers[best].peak_kb)
            best = i;
    return best;
}

/* "1.2 GiB", or "96 MiB" */
static void put_memory(struct buf *out, int64_t bytes)
{
    if (bytes >= 1 << 30)
        (void)buf_printf(out, "%.1f GiB", (double)bytes / (1u << 30));
    else
        (void)buf_printf(out, "%.0f MiB", (double)bytes / (1u << 20));
}

static void put_figure(struct buf *out, const char *words, int64_t bytes)
{
    if (bytes <= 0)
        return;
    (void)buf_append_str(out, words);
    put_memory(out, bytes);
}

static void put_limit(struct buf *out)
{
    char group[256], clean[600];

    put_figure(out, ": the job's limit is ", cgroup_memory("", CGROUP_LIMIT));
    if (cgroup_name("", group, sizeof group))
        (void)buf_printf(out, " (cgroup %s)",
                         escape_text(clean, sizeof clean, span_str(group)));
    put_figure(out, ", its peak was ", cgroup_memory("", CGROUP_PEAK));
}

/* How many processes of this attempt the kernel has killed for memory; -1: unknown. */
static int64_t oom_kills(const struct agent *a)
{
    const int64_t now = cgroup_oom_kills("");

    return now >= 0 && a->oom_kills >= 0 ? now - a->oom_kills : -1;
}

static void describe_oom(struct agent *a, int64_t i, struct buf *out)
{
    const int64_t most = largest_worker(a),
                  held = (int64_t)a->workers[i].peak_kb * 1024;

    (void)buf_append_str(out, "killed by the kernel for memory");
    put_limit(out);
    put_figure(out, ", this rank held ", held);
    if (held <= 0 || a->config->nproc < 2)
        return;
    if (most == i) {
        (void)buf_printf(out, " (the most of %" PRId64 ")", a->config->nproc);
        return;
    }
    (void)buf_printf(out, " (rank %" PRId64 " held the most",
                     a->range.base_rank + most);
    put_figure(out, ", ", (int64_t)a->workers[most].peak_kb * 1024);
    (void)buf_append_str(out, ")");
}

static bool is_crash(int sig)
{
    return sig == SIGSEGV || sig == SIGBUS || sig == SIGILL || sig == SIGFPE ||
           sig == SIGABRT || sig == SIGTRAP || sig == SIGSYS;
}

/* The kernel logs which file's code it was in when a process dies of these. */
static void add_library(const struct agent *a, const struct agent_worker *w,
                        struct buf *out)
{
    const double alive_s = (double)(clock_mono_ms() - a->started_ms) / 1e3;
    const int sig = -w->code;
    char name[512];

    if ((sig == SIGSEGV || sig == SIGBUS || sig == SIGILL || sig == SIGFPE ||
         sig == SIGTRAP) &&
        kernel_log_crash(w->pid, alive_s, name, sizeof name))
        (void)buf_printf(out, " in %s", name);
}

static void describe_signal(struct agent *a, int64_t i, struct buf *out,
                            struct record_entry *e)
{
    const struct agent_worker *w = &a->workers[i];
    const int sig = -w->code;
    const int64_t ooms = sig == SIGKILL ? oom_kills(a) : -1;
    struct buf means;

    e->cause = is_crash(sig) ? CAUSE_CRASH : CAUSE_SIGNAL;
    if (ooms > 0) {
        e->cause = CAUSE_MEMORY;
        describe_oom(a, i, out);
        return;
    }
    if (sig == SIGKILL) {
        (void)buf_printf(out, "killed by SIGKILL; the kernel does not tell by whom%s",
                         ooms == 0 ? " (no out-of-memory kill in this job's cgroup)"
                                   : "");
        return;
    }
    buf_init(&means, 512);
    (void)buf_printf(out, "%s %s", is_crash(sig) ? "crashed:" : "ended by",
                     signal_name(sig));
    add_library(a, w, out);
    if (exit_cause_means(&means, sig))
        (void)buf_printf(out, " (%.*s)", (int)buf_len(&means),
                         (const char *)buf_data(&means));
    buf_fini(&means);
    if (w->dumped)
        add_core_file(out, w->pid);
}

static void describe_code(int code, struct buf *out)
{
    (void)buf_printf(out, "exited with code %d", code);
    if (code == 127)
        (void)buf_append_str(out, ", with which a shell tells that it found no such "
                                  "command");
    else if (code == 126)
        (void)buf_append_str(out, ", with which a shell tells that a command cannot be "
                                  "executed");
    else if (code > 128 && code <= 128 + 64)
        (void)buf_printf(out, ", with which a shell tells that its command died of %s",
                         signal_name(code - 128));
}

/* Most often the module is installed for another Python, so name the one that was
 * used. */
static bool is_missing_module(struct span text)
{
    static const char head[] = "ModuleNotFoundError: ";

    return text.n > sizeof head && memcmp(text.p, head, sizeof head - 1) == 0;
}

static void take_words(const struct failure_words *f, struct record_entry *e)
{
    const struct last_words *w = &f->words;

    if (e->cause == CAUSE_EXCEPTION) /* The worker survived any other exception. */
        e->place = buf_span(&w->place);
    e->body = buf_span(&w->lines);
    if (f->path)
        e->path = span_str(f->path);
}

/* Takes out the indentation that torch's box has, as Python wrote the text. */
static void unindent_text(char *text)
{
    char *to = text;

    for (const char *p = text; *p; p++) {
        *to++ = *p;
        if (p[0] == '\n' && p[1] == ' ' && p[2] == ' ')
            p += 2;
    }
    *to = '\0';
}

/* What @record wrote is better than what went to stderr: Python gave it to us whole.
 * Its time is in whole seconds, so the exit's or the traceback's is the better one. */
static void take_error_words(struct agent *a, int64_t i, struct failure_words *f)
{
    const char *path = a->workers[i].error_file;
    struct error_file data = { 0 };
    struct last_words words;
    struct buf bytes;

    buf_init(&bytes, SIZE_MAX);
    if (path && path[0] && agent_read_error_file(path, &bytes, NULL) == 0 &&
        error_file_parse(&data, buf_span(&bytes), NULL) == 0 && data.text[0]) {
        unindent_text(data.text);
        last_words_read(&words, span_str(data.text), -1);
        if (!words.python) { /* a message without a traceback */
            const size_t n = strcspn(data.text, "\n");

            buf_clear(&words.text);
            (void)escape_append(&words.text, span_of(data.text, MIN_OF(n, 900)), 0);
            words.python = true;
        }
        if (buf_len(&f->words.lines)) {
            buf_fini(&words.lines);
            words.lines = f->words.lines;
            buf_init(&f->words.lines, 0);
        }
        last_words_fini(&f->words);
        f->words = words;
    }
    error_file_fini(&data);
    buf_fini(&bytes);
}

/* In a shared file nobody can tell which worker wrote these lines. */
static void label_shared(struct buf *lines)
{
    struct buf b;

    if (buf_len(lines) == 0)
        return;
    buf_init(&b, 12000);
    (void)buf_append_str(&b, LAST_WORDS_SHARED);
    (void)buf_append_span(&b, buf_span(lines));
    buf_fini(lines);
    *lines = b;
}

#define FAILING_US 1000000 /* from a traceback to the end of its process */

bool agent_was_failing(struct agent *a, int64_t i)
{
    const struct agent_worker *w = &a->workers[i];
    struct buf tail;
    int64_t traceback_us = 0;
    bool whole, uncaught;
    char *path;

    if (!w->signalled_us || w->code != -a->core.stop_sig)
        return false;
    if (w->error_file && w->error_file[0] && access(w->error_file, F_OK) == 0)
        return true;
    buf_init(&tail, SIZE_MAX);
    logs_tail(a->logs, i, &tail, &whole, &path, &traceback_us);
    uncaught = last_words_has_uncaught(buf_span(&tail), a->range.base_rank + i);
    buf_fini(&tail);
    mem_free(path);
    /* An older one that torch has not marked was caught, or it would have ended long
     * ago. */
    return uncaught || (whole && traceback_us > w->signalled_us - FAILING_US);
}

/* What elastic_launch runs is a Python, too, though we were not told so. */
static bool runs_python(const struct agent *a)
{
    const char *binary = worker_binary(a->config);
    const char *slash = strrchr(binary, '/');

    return a->config->python || strncmp(slash ? slash + 1 : binary, "python", 6) == 0;
}

void agent_describe(struct agent *a, int64_t i, struct failure_words *f,
                    struct record_entry *e)
{
    const struct agent_worker *w = &a->workers[i];
    const bool failing = agent_was_failing(a, i);
    struct buf tail;
    int64_t traceback_us;
    bool whole;

    *f = (struct failure_words){ 0 };
    buf_init(&f->text, 2048);
    buf_init(&tail, SIZE_MAX);
    logs_tail(a->logs, i, &tail, &whole, &f->path, &traceback_us);
    last_words_read(&f->words, buf_span(&tail), whole ? -1 : a->range.base_rank + i);
    if (!whole && a->config->nproc > 1)
        label_shared(&f->words.lines);
    buf_fini(&tail);
    /* One that we ended is never the first: its traceback may have been caught. */
    if (!failing && traceback_us > a->started_us && traceback_us < e->at_us)
        e->at_us = traceback_us;
    take_error_words(a, i, f);
    if (w->left_early && !w->aborted) {
        e->cause = CAUSE_EXIT;
        (void)buf_append_str(
            &f->text, "exited with code 0 without MPI_Finalize, and the other ranks "
                      "may wait for it for ever; call MPI_Finalize before it ends, or "
                      "MPI_Abort if it has failed");
    } else if (f->words.python && (is_crash(-w->code) || failing)) {
        /* It raised an exception, and then its own threads crashed while Python shut
         * down, or we ended it. */
        e->cause = CAUSE_EXCEPTION;
        (void)buf_append_span(&f->text, buf_span(&f->words.text));
        if (w->code != -SIGABRT && is_crash(-w->code))
            (void)buf_printf(&f->text, " (and then %s)", signal_name(-w->code));
    } else if (w->code == -SIGABRT && f->words.unwound && runs_python(a)) {
        e->cause = CAUSE_CRASH;
        (void)buf_append_str(
            &f->text, "ended its script and then aborted while torch shut down "
                      "(SIGABRT); if the script does not call "
                      "torch.distributed.destroy_process_group() at its end, add that; "
                      "if it does, end it with os._exit(0)");
    } else if (w->code == -SIGABRT && f->words.aborts) {
        e->cause = CAUSE_CRASH;
        (void)buf_printf(&f->text, "crashed: %.*s (SIGABRT)",
                         (int)buf_len(&f->words.text),
                         (const char *)buf_data(&f->words.text));
        if (w->dumped)
            add_core_file(&f->text, w->pid);
    } else if (w->code < 0) {
        describe_signal(a, i, &f->text, e);
    } else if (buf_len(&f->words.text)) {
        e->cause = f->words.python ? CAUSE_EXCEPTION : CAUSE_EXIT;
        (void)buf_append_span(&f->text, buf_span(&f->words.text));
        if (!f->words.python)
            (void)buf_printf(&f->text, " (exit code %d)", w->code);
        else if (is_missing_module(buf_span(&f->words.text)))
            (void)buf_printf(&f->text, " in %s", worker_binary(a->config));
    } else {
        e->cause = CAUSE_EXIT;
        describe_code(w->code, &f->text);
        if (buf_len(&f->words.lines) == 0)
            (void)buf_append_str(&f->text, " without a word on stderr");
    }
    if (w->code != -SIGKILL && oom_kills(a) > 0) { /* for example a data loader */
        (void)buf_append_str(&f->text, "; the kernel killed a process of the job on "
                                       "this node for memory");
        put_limit(&f->text);
    }
    /* Its last words may be lost, and it may have failed of it. */
    if (logs_full(a->logs))
        (void)buf_printf(&f->text,
                         "; the file system of its log directory is full: %s (make "
                         "room, or give another --log-dir)",
                         logs_base(a->logs));
    e->text = buf_span(&f->text);
    take_words(f, e);
}

void agent_words_fini(struct failure_words *f)
{
    last_words_fini(&f->words);
    buf_fini(&f->text);
    mem_free(f->path);
}
