/* collect.c - stacks_collect() of reader.h. First /proc, which always works, then
 * Python's frames of the workers, then their native ones, then Python's frames of the
 * processes that they started: when the time is up, what came first is there. */
#include "stacks/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/file.h"
#include "process/proc.h"
#include "stacks/core/faulthandler.h"
#include "stacks/core/findings.h"
#include "stacks/core/procfs.h"
#include "stacks/core/pyspy.h"
#include "stacks/native.h"

#define AT_ONCE     4u /* py-spies side by side */
#define PYSPY_BYTES (512u * 1024u)
#define PYSPY_TRIES 3 /* of a process that changes while it is read */
#define MARGIN_MS   250u
#define ANSWER_MS   300u /* for a worker's own faulthandler */
#define AGAIN_MS    300u /* at least, between two accounts of what is known so far */
#define NO_HELPERS  "there was no time left for all processes that ranks have started"
#define NO_NATIVE   "there was no time left for its native frames"
#define PATH_BYTES  4352u

struct collect {
    const struct stacks_read_opts *opts;
    struct stack_sample sample, known;
    uint64_t by_ms; /* when we must have printed */
    char pyspy[PATH_BYTES];
    bool refused;  /* ptrace, for one process at least, */
    bool answered; /* and that one has told by itself where it is */
};

static const char *look_up(char *const *envp, const char *name)
{
    const size_t n = strlen(name);

    for (size_t i = 0; envp && envp[i]; i++)
        if (strncmp(envp[i], name, n) == 0 && envp[i][n] == '=')
            return envp[i] + n + 1;
    return NULL;
}

static bool time_is_up(const struct collect *c)
{
    return clock_mono_ms() >= c->by_ms;
}

/* --- /proc ------------------------------------------------------------------------ */

static struct span read_of(int64_t pid, const char *file, char *room, size_t size)
{
    char path[96];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    return file_text(path, room, size);
}

static void read_proc(struct collect *c, struct stack_process *p)
{
    struct arena *a = &c->sample.arena;
    char room[4096], file[64];

    if (!procfs_stat(a, p, read_of(p->pid, "stat", room, sizeof room))) {
        p->state = 'X';
        return;
    }
    snprintf(file, sizeof file, "task/%d/stat", (int)p->pid);
    (void)procfs_cpu(p, read_of(p->pid, file, room, sizeof room), sysconf(_SC_CLK_TCK));
    snprintf(file, sizeof file, "task/%d/status", (int)p->pid);
    (void)procfs_switches(p, read_of(p->pid, file, room, sizeof room));
    (void)procfs_wchan(a, p, read_of(p->pid, "wchan", room, sizeof room));
    (void)procfs_syscall(a, p, read_of(p->pid, "syscall", room, sizeof room));
}

/* A program of that name, or one that has the interpreter as a library. */
static bool is_python(int64_t pid)
{
    char path[64], exe[PATH_BYTES], line[PATH_BYTES];

    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    const ssize_t n = readlink(path, exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(exe, '/');
    if (slash && strncmp(slash, "/python", 7) == 0)
        return true;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, "/libpython3") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

/* --- who may look ----------------------------------------------------------------- */

/* An address that nobody has: EFAULT if we may read this process, else EPERM. */
static bool may_read(int64_t pid)
{
    char byte;
    const struct iovec to = { &byte, 1 }, of = { (void *)16, 1 };

    return process_vm_readv((pid_t)pid, &to, 1, &of, 1, 0) >= 0 ||
           (errno != EPERM && errno != ENOSYS);
}

static const char *why_refused(void)
{
    static char text[160];
    char room[4096];
    const struct span scope =
        file_text("/proc/sys/kernel/yama/ptrace_scope", room, sizeof room);

    if (scope.n > 0 && scope.p[0] != '0') {
        snprintf(text, sizeof text,
                 "ptrace is forbidden (kernel.yama.ptrace_scope is %c)",
                 (char)scope.p[0]);
        return text;
    }
    (void)file_read("/proc/self/status", room, sizeof room);
    if (strstr(room, "\nSeccomp:\t2"))
        return "ptrace is forbidden (by the container's seccomp filter, or for want "
               "of CAP_SYS_PTRACE)";
    return "ptrace is forbidden (the process is not dumpable, or another user's)";
}

/* --- py-spy ----------------------------------------------------------------------- */

static bool try_path(char *out, const char *dir, size_t n, const char *name)
{
    if (n == 0 || n + strlen(name) + 2 > PATH_BYTES)
        return false;
    snprintf(out, PATH_BYTES, "%.*s/%s", (int)n, dir, name);
    return access(out, X_OK) == 0;
}

static bool beside(char *out, const char *program)
{
    const char *slash = strrchr(program, '/');

    return slash && try_path(out, program, (size_t)(slash - program), "py-spy");
}

static bool beside_link(char *out, const char *link)
{
    char path[PATH_BYTES];
    const ssize_t n = readlink(link, path, sizeof path - 1);

    path[n > 0 ? n : 0] = '\0';
    return beside(out, path);
}

/* MUSTER_PY_SPY names it or says no; else PATH, else beside the worker's Python (as it
 * was called, which is that of a virtual environment, and as it is), else beside us. */
static bool find_pyspy(struct collect *c, int64_t pid)
{
    const char *given = look_up(c->opts->envp, "MUSTER_PY_SPY");
    const char *path = look_up(c->opts->envp, "PATH");
    char room[PATH_BYTES], link[64];

    if (given && *given) {
        snprintf(c->pyspy, sizeof c->pyspy, "%s", given);
        return access(given, X_OK) == 0;
    }
    for (; path && *path; path += strcspn(path, ":"), path += *path == ':')
        if (try_path(c->pyspy, path, strcspn(path, ":"), "py-spy"))
            return true;
    (void)read_of(pid, "cmdline", room, sizeof room);
    if (beside(c->pyspy, room))
        return true;
    snprintf(link, sizeof link, "/proc/%d/exe", (int)pid);
    return beside_link(c->pyspy, link) || beside_link(c->pyspy, "/proc/self/exe");
}

struct spy {
    struct stack_process *process; /* NULL: this place is free */
    pid_t pid;
    int out, err; /* -1 once they have ended */
    struct buf text, complaint;
    int tries;
};

/* Not by fork(): libuv's handler for it would close the pipes of this process, whose
 * numbers are those of its own that we closed. */
static bool spy_start(const struct collect *c, struct spy *s, struct stack_process *p)
{
    char number[32];
    char *const argv[] = { (char *)(uintptr_t)c->pyspy,
                           (char *)"dump",
                           (char *)"--nonblocking",
                           (char *)"--json",
                           (char *)"--pid",
                           number,
                           NULL };
    int out[2], err[2];

    if (pipe2(out, O_CLOEXEC) < 0)
        return false;
    if (pipe2(err, O_CLOEXEC) < 0) {
        close(out[0]);
        close(out[1]);
        return false;
    }
    snprintf(number, sizeof number, "%d", (int)p->pid);
    const struct proc_spec spec = { .argv = argv,
                                    .envp = c->opts->envp,
                                    .fd = { -1, out[1], err[1] } };
    const int rc = proc_spawn(&spec, &s->pid);
    close(out[1]);
    close(err[1]);
    s->tries++;
    if (rc != 0) {
        close(out[0]);
        close(err[0]);
        p->missing = "py-spy cannot be started";
        return false;
    }
    s->process = p;
    s->out = out[0];
    s->err = err[0];
    buf_init(&s->text, PYSPY_BYTES);
    buf_init(&s->complaint, 4096);
    return true;
}

static void spy_drain(int *fd, struct buf *into)
{
    char chunk[16384];
    const ssize_t n = read(*fd, chunk, sizeof chunk);

    if (n > 0) {
        (void)buf_append(into, chunk, (size_t)n); /* The rest of too much is dropped. */
        return;
    }
    close(*fd);
    *fd = -1;
}

/* py-spy's own words: its first line, without "Error: ". */
static void spy_complain(struct collect *c, struct spy *s)
{
    struct span text = buf_span(&s->complaint);
    struct span line = span_take_line(&text);

    if (line.n > 7 && span_starts(line, "Error: "))
        line = span_skip(line, 7);
    const char *copy = line.n == 0
                           ? "py-spy: no answer"
                           : arena_printf(&c->sample.arena, "py-spy: %.*s",
                                          (int)MIN_OF(line.n, (size_t)200), line.p);
    if (copy)
        s->process->missing = copy;
}

/* False: it is to be tried again. */
static bool spy_end(struct collect *c, struct spy *s)
{
    struct muster_error err;
    int status = 0;

    waitpid(s->pid, &status, 0);
    const bool good = status == 0 && pyspy_parse(&c->sample.arena, s->process,
                                                 buf_span(&s->text), &err) == 0;
    const bool again = !good && s->tries < PYSPY_TRIES && !time_is_up(c);
    if (!good && !again)
        spy_complain(c, s);
    buf_fini(&s->text);
    buf_fini(&s->complaint);
    return !again;
}

static void spies_poll(struct collect *c, struct spy *spies)
{
    struct pollfd fds[2 * AT_ONCE];
    const uint64_t now = clock_mono_ms();

    for (size_t i = 0; i < AT_ONCE; i++) {
        const bool on = spies[i].process != NULL;

        fds[2 * i] = (struct pollfd){ on ? spies[i].out : -1, POLLIN, 0 };
        fds[2 * i + 1] = (struct pollfd){ on ? spies[i].err : -1, POLLIN, 0 };
    }
    (void)poll(fds, ARRAY_LEN(fds), c->by_ms > now ? (int)(c->by_ms - now) : 0);
    for (size_t i = 0; i < AT_ONCE; i++) {
        struct spy *s = &spies[i];

        if (s->process && fds[2 * i].revents && s->out >= 0)
            spy_drain(&s->out, &s->text);
        if (s->process && fds[2 * i + 1].revents && s->err >= 0)
            spy_drain(&s->err, &s->complaint);
        if (!s->process || s->out >= 0 || s->err >= 0)
            continue;
        if (spy_end(c, s) || !spy_start(c, s, s->process)) {
            s->process = NULL;
            s->tries = 0;
        }
    }
}

/* Runs py-spy on all of the list, a few at a time. Those that are not done when the
 * time is up are killed, which is harmless since they only read memory. */
static void spy_on(struct collect *c, struct stack_process **list, size_t count)
{
    struct spy spies[AT_ONCE] = { 0 };
    size_t next = 0;

    for (;;) {
        size_t busy = 0;

        for (size_t i = 0; i < AT_ONCE; i++) {
            if (!spies[i].process && next < count && !time_is_up(c) &&
                !spy_start(c, &spies[i], list[next++]))
                spies[i].process = NULL;
            busy += spies[i].process != NULL;
        }
        if (busy == 0)
            break;
        spies_poll(c, spies);
        if (!time_is_up(c))
            continue;
        for (size_t i = 0; i < AT_ONCE; i++)
            if (spies[i].process) {
                kill(spies[i].pid, SIGKILL);
                spies[i].process->missing = "py-spy did not answer in time";
            }
        break;
    }
    for (; next < count; next++)
        list[next]->missing = "there was no time left to ask py-spy";
}

/* --- what a worker tells of itself ------------------------------------------------ */

/* Where ptrace is forbidden: a warm worker that finds it so has faulthandler print, on
 * a signal, into a file in memory (see print_stacks_when_asked in src/warm/server.py).
 * The signal is SIGURG, which does nothing to a process without a handler: should the
 * worker become another program in the moment between our look and the signal, no harm
 * is done. */
#define STACKS_FD 251 /* as in src/warm/server.py, and the name below, too */
#define FILE_NAME "/memfd:muster-stacks "
#define STEP_MS   1

static bool is_listening(int64_t pid)
{
    char file[64], room[4096];

    snprintf(file, sizeof file, "task/%d/status", (int)pid);
    return faulthandler_listens(read_of(pid, file, room, sizeof room), SIGURG);
}

/* The worker's file, or -1 if that number is something else by now. */
static int open_file(int64_t pid)
{
    char path[64], target[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, STACKS_FD);
    const ssize_t n = readlink(path, target, sizeof target);
    if (n < (ssize_t)strlen(FILE_NAME) ||
        strncmp(target, FILE_NAME, strlen(FILE_NAME)) != 0)
        return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

static bool signal_worker(int64_t pid)
{
    return syscall(SYS_tgkill, (int)pid, (int)pid, SIGURG) == 0;
}

/* Once the first answer begins the thread is asked again: the second begins when the
 * first is whole. */
static int wait_for_answer(int fd, int64_t pid, uint64_t by_ms, char *room, size_t size,
                           size_t *n)
{
    bool again = false;

    while (clock_mono_ms() < by_ms) {
        const ssize_t got = pread(fd, room, size, 0);

        *n = got > 0 ? (size_t)got : 0;
        if (faulthandler_whole(span_of(room, *n)) || *n == size)
            return 0;
        if (*n > 0 && !again)
            again = signal_worker(pid);
        nanosleep(&(struct timespec){ 0, STEP_MS * 1000000L }, NULL);
    }
    return MUSTER_ETIMEDOUT;
}

static int take_turns(int fd, uint64_t by_ms)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (clock_mono_ms() >= by_ms)
            return MUSTER_ETIMEDOUT;
        nanosleep(&(struct timespec){ 0, STEP_MS * 1000000L }, NULL);
    }
    return 0;
}

/* Asks the main thread of p where it is, and waits until by_ms for its answer.
 * MUSTER_ENOTSUP: it has no such handler, and got no signal; MUSTER_ETIMEDOUT: it did
 * not answer; MUSTER_ENOMEM, MUSTER_EEMPTY. */
static int faulthandler_read(struct arena *a, struct stack_process *p, uint64_t by_ms,
                             struct muster_error *err)
{
    char room[32768];
    size_t n = 0;
    const int fd = open_file(p->pid);

    if (fd < 0)
        return err_set(err, MUSTER_ENOTSUP, "it has no handler that prints its stack");
    int rc = take_turns(fd, by_ms);
    if (rc == 0 && !is_listening(p->pid)) {
        close(fd);
        return err_set(err, MUSTER_ENOTSUP, "it has no handler that prints its stack");
    }
    if (rc == 0)
        rc = ftruncate(fd, 0) == 0 && signal_worker(p->pid) ? 0 : MUSTER_ENOTSUP;
    if (rc == 0)
        rc = wait_for_answer(fd, p->pid, by_ms, room, sizeof room, &n);
    close(fd);
    if (rc != 0)
        return err_set(err, rc, "its faulthandler does not answer");
    return faulthandler_parse(a, p, span_of(room, n), err);
}

/* For processes that we may not read. A stopped one would answer only when it is
 * continued. */
static void ask_process(struct collect *c, struct stack_process *p)
{
    const uint64_t by_ms = MIN_OF(c->by_ms, clock_mono_ms() + ANSWER_MS);

    p->missing = why_refused();
    if (p->state != 'S' && p->state != 'R')
        return;
    const int rc = faulthandler_read(&c->sample.arena, p, by_ms, NULL);
    c->sample.held = c->sample.held || rc != MUSTER_ENOTSUP;
    if (rc != 0)
        return;
    c->answered = true;
    p->missing = "";
}

static int note_refused(struct collect *c)
{
    char text[400];

    if (!c->answered)
        return stack_sample_note(&c->sample, why_refused());
    snprintf(text, sizeof text,
             "%s: Python frames come from the workers' own faulthandler, which shows "
             "main threads only; there are no native frames",
             why_refused());
    return stack_sample_note(&c->sample, text);
}

/* --- what is known already -------------------------------------------------------- */

/* Asleep then and now, and it has not gone to sleep again: it has not run. */
static bool has_not_run(const struct stack_process *p, const struct stack_process *then)
{
    return p->pid == then->pid && p->parent == then->parent &&
           p->state == then->state && strchr("SDT", p->state) && p->switches > 0 &&
           p->switches == then->switches;
}

/* Takes the frames from an earlier reading. False if they may have changed. */
static bool recall(struct collect *c, struct stack_process *p)
{
    for (size_t i = 0; i < c->known.count; i++)
        for (size_t k = 0; k < c->known.ranks[i].process_count; k++) {
            const struct stack_process *then = &c->known.ranks[i].processes[k];
            const struct stack_thread *t = stack_main_thread(then);

            if (!has_not_run(p, then) || !t || t->python_count == 0)
                continue;
            p->threads = then->threads;
            p->thread_count = then->thread_count;
            for (size_t n = 0; n < p->thread_count; n++)
                p->threads[n].native_count = 0;
            p->missing = "";
            return true;
        }
    return false;
}

/* --- all of it -------------------------------------------------------------------- */

static int add_target(struct collect *c, const struct stacks_target *t)
{
    struct proc_list below = { 0 };

    if (c->opts->depth == STACKS_FULL)
        (void)proc_descendants(t->pid, &below);
    const size_t count = MIN_OF(below.count + 1, (size_t)STACK_PROCESSES_MAX);
    struct stack_rank *r = stack_sample_add(&c->sample, count);
    if (r) {
        r->rank = t->rank;
        r->local_rank = t->local_rank;
        r->processes[0].pid = t->pid;
        for (size_t i = 1; i < count; i++)
            r->processes[i].pid = below.pids[i - 1];
        for (size_t i = 0; i < count; i++)
            read_proc(c, &r->processes[i]);
    }
    proc_list_fini(&below);
    return r ? 0 : MUSTER_ENOMEM;
}

static bool is_there(const struct stack_process *p)
{
    return p->state && p->state != 'Z' && p->state != 'X';
}

/* The Python processes that we may read: the workers, or what they have started. Others
 * are asked. */
static size_t list_python(struct collect *c, bool helpers, struct stack_process **list)
{
    size_t n = 0;

    for (size_t i = 0; i < c->sample.count; i++) {
        struct stack_rank *r = &c->sample.ranks[i];

        for (size_t k = helpers; k < (helpers ? r->process_count : 1); k++) {
            struct stack_process *p = &r->processes[k];

            if (!is_there(p))
                continue;
            if (!may_read(p->pid)) {
                c->refused = true;
                ask_process(c, p);
            } else if (is_python(p->pid) &&
                       (c->opts->depth == STACKS_FULL || !recall(c, p))) {
                list[n++] = p;
            }
        }
    }
    return n;
}

static int read_python(struct collect *c, bool helpers)
{
    struct stack_process **list =
        arena_alloc(&c->sample.arena, c->sample.count * STACK_PROCESSES_MAX,
                    sizeof(struct stack_process *));
    const size_t count = list ? list_python(c, helpers, list) : 0;

    if (!list)
        return MUSTER_ENOMEM;
    if (count == 0)
        return 0;
    if (find_pyspy(c, list[0]->pid)) {
        spy_on(c, list, count);
        for (size_t i = 0; i < count; i++)
            if (*list[i]->missing)
                (void)recall(c, list[i]);
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        list[i]->missing = "no py-spy";
    return stack_sample_note(
        &c->sample,
        "no Python frames: py-spy is neither in PATH nor beside the workers' Python; "
        "`pip install py-spy` installs it");
}

static int put_sample(const struct collect *c, void (*put)(void *ctx, struct span line),
                      void *ctx)
{
    struct buf b;

    buf_init(&b, STACK_NODE_BYTES);
    int rc =
        stack_sample_print_within(&b, &c->sample, c->opts->node, STACK_NODE_BYTES - 1);
    if (rc == 0)
        rc = buf_u8(&b, '\n');
    if (rc == 0)
        put(ctx, buf_span(&b));
    buf_fini(&b);
    return rc;
}

/* Puts out what is known so far, with a note that is not for the end. */
static int put_so_far(struct collect *c, const char *without,
                      void (*put)(void *ctx, struct span line), void *ctx)
{
    const size_t notes = c->sample.note_count;
    int rc = stack_sample_note(&c->sample, without);

    if (rc == 0)
        rc = put_sample(c, put, ctx);
    c->sample.note_count = notes;
    return rc;
}

/* Native frames of the workers are read unless that cannot be: whoever is
 * uninterruptible cannot be held. */
static bool wants_native(const struct stack_process *p)
{
    return is_there(p) && p->state != 'D' && may_read(p->pid);
}

/* Says of all ranks from the first on that their native frames were not read, or takes
 * that back. */
static void mark_native(struct collect *c, size_t first, bool missing)
{
    for (size_t i = first; i < c->sample.count; i++) {
        struct stack_process *p = &c->sample.ranks[i].processes[0];

        if (!missing && strcmp(p->missing, NO_NATIVE) == 0)
            p->missing = "";
        else if (missing && !*p->missing && wants_native(p))
            p->missing = NO_NATIVE;
    }
}

/* The main thread, and the one that holds the interpreter's lock against it. */
static int read_threads(struct collect *c, struct stack_process *p,
                        struct muster_error *err)
{
    const int rc = native_read(&c->sample.arena, p, 0, err);
    const struct stack_thread *holder = rc == 0 ? stack_gil_holder(p) : NULL;

    if (holder && holder->id > 0) /* Without its frames the Python ones must do. */
        (void)native_read(&c->sample.arena, p, (size_t)(holder - p->threads), NULL);
    return rc;
}

static int read_native(struct collect *c, void (*put)(void *ctx, struct span line),
                       void *ctx)
{
    const uint64_t again_ms = MAX_OF(AGAIN_MS, c->opts->timeout_ms / 4);
    uint64_t put_ms = clock_mono_ms();

    for (size_t i = 0; i < c->sample.count; i++) {
        struct stack_process *p = &c->sample.ranks[i].processes[0];
        struct muster_error err;

        if (!wants_native(p))
            continue;
        if (time_is_up(c))
            return stack_sample_note(&c->sample, "there was no time left for all "
                                                 "native frames");
        const int rc = read_threads(c, p, &err);
        if (rc == MUSTER_ENOMEM)
            return rc;
        if (rc == MUSTER_ENOTSUP) {
            char text[300];

            mark_native(c, i, false);
            snprintf(text, sizeof text, "no native frames: %.250s", err.text);
            return stack_sample_note(&c->sample, text);
        }
        if (strcmp(p->missing, NO_NATIVE) == 0)
            p->missing = rc == 0 ? ""
                                 : arena_printf(&c->sample.arena,
                                                "its native frames: %.200s", err.text);
        if (!p->missing)
            return MUSTER_ENOMEM;
        if (clock_mono_ms() - put_ms < again_ms)
            continue;
        put_ms = clock_mono_ms(); /* The machine is slow: there may be no time for
                                     another one. */
        if (put_so_far(c, "there was no time left for all native frames", put, ctx))
            return MUSTER_ENOMEM;
    }
    return 0;
}

/* Whoever runs out of time has what was put out last. */
static int put_all(struct collect *c, void (*put)(void *ctx, struct span line),
                   void *ctx)
{
    mark_native(c, 0, true);
    int rc = put_so_far(c, "there was no time left for native frames", put, ctx);
    if (rc == 0)
        rc = read_native(c, put, ctx);
    if (rc == 0)
        rc = put_so_far(c, NO_HELPERS, put, ctx);
    const bool refused = c->refused;
    if (rc == 0)
        rc = read_python(c, true);
    for (size_t i = 0; i < c->sample.count; i++)
        for (size_t k = 1; k < c->sample.ranks[i].process_count; k++)
            stack_shorten_idle(&c->sample.ranks[i].processes[k]);
    if (rc == 0 && c->refused && !refused)
        rc = note_refused(c);
    if (rc == 0 && time_is_up(c))
        rc = stack_sample_note(&c->sample, NO_HELPERS);
    return rc ? rc : put_sample(c, put, ctx);
}

int stacks_collect(const struct stacks_read_opts *opts,
                   void (*put)(void *ctx, struct span line), void *ctx)
{
    struct collect c = { .opts = opts };
    int rc = 0;

    c.by_ms =
        clock_mono_ms() + opts->timeout_ms - MIN_OF(MARGIN_MS, opts->timeout_ms / 2);
    if (opts->known.n > 0)
        (void)stack_sample_parse(&c.known, opts->known, NULL);
    for (size_t i = 0; rc == 0 && i < opts->count; i++)
        rc = add_target(&c, &opts->targets[i]);
    if (rc == 0)
        rc = read_python(&c, false);
    if (rc == 0 && c.refused)
        rc = note_refused(&c);
    if (rc == 0 && opts->depth == STACKS_QUICK)
        rc = put_sample(&c, put, ctx);
    if (rc == 0 && opts->depth == STACKS_FULL)
        rc = put_all(&c, put, ctx);
    stack_sample_fini(&c.sample);
    stack_sample_fini(&c.known);
    return rc;
}
