/* proc.c - see proc.h. */
#include "process/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/file.h"
#include "muster/error.h"

/* --- starting ------------------------------------------------------------------- */

/* Without opendir(), which allocates: the memory may be the parent's. False if there is
 * no /proc here. */
static bool close_listed(unsigned first, unsigned last)
{
    char entries[2048] __attribute__((aligned(8)));
    const int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;

    if (dir < 0)
        return false;
    while ((n = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            const int fd = atoi(entry->d_name); /* 0 for "." and "..", as for 0 */
            const bool number = entry->d_name[0] != '.';

            at += entry->d_reclen;
            if (number && fd != dir && (unsigned)fd >= first && (unsigned)fd <= last)
                close(fd);
        }
    }
    close(dir);
    return n == 0;
}

void proc_close_range(unsigned first, unsigned last)
{
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
    if (close_listed(first, last)) /* A kernel before 5.9, or a sandbox. */
        return;
    const long limit = sysconf(_SC_OPEN_MAX);
    for (unsigned fd = first; fd <= last && fd < (limit > 0 ? limit : 1024); fd++)
        close((int)fd);
}

/* Puts fd[i] at i. The sources may themselves be 0, 1 or 2, so they are moved out of
 * the way first. */
static int place_fds(const int fd[3])
{
    int moved[3];

    for (int i = 0; i < 3; i++) {
        moved[i] = fcntl(fd[i], F_DUPFD, 10);
        if (moved[i] < 0)
            moved[i] = -1; /* A closed stdin stays closed, as with any shell. */
    }
    for (int i = 0; i < 3; i++) {
        if (moved[i] < 0) {
            close(i);
            continue;
        }
        if (dup2(moved[i], i) < 0)
            return errno;
        close(moved[i]);
    }
    return 0;
}

int proc_become(const struct proc_spec *spec, pid_t parent)
{
    if (spec->session && setsid() < 0)
        return errno;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    /* Where yama lets only ancestors look: see stacks/reader.h. */
    if (spec->tracer > 0)
        prctl(PR_SET_PTRACER, (unsigned long)spec->tracer, 0, 0, 0);
    if (getppid() != parent) /* It died before the line above. */
        kill(getpid(), SIGKILL);
    if (spec->cpus && sched_setaffinity(0, spec->cpus_size, spec->cpus) < 0)
        return errno;
    const int rc = place_fds(spec->fd);
    if (rc != 0)
        return rc;

    /* As Python's subprocess leaves them; what a caller ignores (nohup) stays so. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return 0;
}

/* The PATH of the worker's environment, or Python's default. */
static const char *worker_path(char *const *envp)
{
    for (size_t i = 0; envp[i]; i++)
        if (strncmp(envp[i], "PATH=", 5) == 0)
            return envp[i] + 5;
    return "/bin:/usr/bin";
}

/* All the paths to try for name, in order, NULL at the end; one block to free. */
static char **candidates(const char *name, char *const *envp)
{
    const bool direct = strchr(name, '/') != NULL;
    const char *path = direct ? "" : worker_path(envp);
    size_t count = 1;
    for (const char *p = path; *p; p++)
        count += *p == ':';
    const size_t each = strlen(name) + 2;
    char **out = mem_alloc((count + 1) * sizeof *out + strlen(path) + count * each);
    if (!out)
        return NULL;
    char *at = (char *)(out + count + 1);
    for (size_t i = 0; i < count; i++) {
        const size_t n = direct ? 0 : strcspn(path, ":");
        out[i] = at;
        memcpy(at, path, n);
        at += n;
        if (n > 0)
            *at++ = '/';
        memcpy(at, name, each - 1); /* and its end */
        at += each - 1;
        path += direct ? 0 : n + 1;
    }
    out[count] = NULL;
    return out;
}

/* Puts extra[i] at 3 + i, by way of numbers above all that may be in use for it. Those
 * that are not given are closed. */
static int place_extra(const int extra[3])
{
    int moved[3] = { -1, -1, -1 };

    for (int i = 0; i < 3; i++)
        if (extra[i] > 2 && (moved[i] = fcntl(extra[i], F_DUPFD, 10)) < 0)
            return errno;
    for (int i = 0; i < 3; i++)
        if (moved[i] < 0)
            close(3 + i);
        else if (dup2(moved[i], 3 + i) < 0)
            return errno;
    return 0;
}

/* In the child. After a vfork memory is the parent's: nothing is changed here. Returns
 * only if it failed: why. */
static int become_and_exec(const struct proc_spec *spec, char *const *paths,
                           pid_t parent)
{
    int saved = 0;
    int rc = proc_become(spec, parent);

    if (rc == 0)
        rc = place_extra(spec->extra);
    if (rc != 0)
        return rc;
    proc_close_range(6, ~0U);
    for (size_t i = 0; paths[i]; i++) {
        execve(paths[i], spec->argv, spec->envp);
        /* A file that cannot be run says more than one that is not there. */
        if (saved == 0 && errno != ENOENT && errno != ENOTDIR)
            saved = errno;
    }
    return saved ? saved : errno;
}

int proc_spawn(const struct proc_spec *spec, pid_t *pid)
{
    char **paths = candidates(spec->argv[0], spec->envp);
    if (!paths)
        return ENOMEM;

    /* Signals stay blocked until the child has let go of our memory: the caller (the
     * guard) keeps them all blocked anyway. */
    volatile int failure = 0;
    const pid_t parent = getpid();
    const pid_t child = vfork();

    if (child == 0) {
        failure = become_and_exec(spec, paths, parent);
        _exit(127);
    }
    const int rc = child < 0 ? errno : failure;
    mem_free(paths);
    if (rc == 0)
        *pid = child;
    return rc; /* A child that failed is reaped like any other. */
}

int proc_spawn_again(const struct proc_spec *spec, pid_t *pid)
{
    char **paths = candidates(spec->argv[0], spec->envp);
    if (!paths)
        return ENOMEM;

    /* Not fork(): libuv's atfork handler would close descriptors that have been
     * reused. */
    const pid_t parent = getpid();
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

    if (child == 0) {
        const int errnum = become_and_exec(spec, paths, parent);
        dprintf(STDERR_FILENO, "muster: [Errno %d] %s: '%s'\n", errnum,
                strerror(errnum), spec->argv[0]);
        _exit(127);
    }
    const int rc = child < 0 ? errno : 0;
    mem_free(paths);
    if (rc == 0)
        *pid = child;
    return rc;
}

/* --- trees ---------------------------------------------------------------------- */

void proc_list_fini(struct proc_list *l)
{
    mem_free(l->pids);
    *l = (struct proc_list){ 0 };
}

static int proc_list_add(struct proc_list *l, pid_t pid)
{
    pid_t *pids = mem_grow_to(l->pids, &l->size, l->count, sizeof *pids);

    if (!pids)
        return MUSTER_ENOMEM;
    l->pids = pids;
    l->pids[l->count++] = pid;
    return 0;
}

bool proc_read_stat(pid_t pid, struct proc_stat *out)
{
    char path[64], text[1024];

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const bool read = proc_stat_parse(file_text(path, text, sizeof text), out);
    out->command = span_of(NULL, 0);
    return read;
}

char proc_state(pid_t pid, pid_t *ppid)
{
    struct proc_stat s;

    if (!proc_read_stat(pid, &s))
        return 0;
    if (ppid)
        *ppid = (pid_t)s.parent;
    return s.state;
}

bool proc_catches(pid_t pid, int sig)
{
    char path[64], text[4096];

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return proc_status_signal(file_text(path, text, sizeof text), "SigCgt", sig);
}

bool proc_descends(pid_t pid, pid_t root)
{
    for (int depth = 0; pid > 1 && depth < 4096; depth++) {
        if (pid == root)
            return true;
        if (!proc_state(pid, &pid))
            return false;
    }
    return false;
}

/* Adds what one thread has forked: "12 34 ". */
static int add_children_file(const char *path, struct proc_list *l)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0; /* The thread is gone; its children are its siblings' now. */
    char text[4096];
    size_t have = 0;
    int rc = 0;
    for (;;) {
        const ssize_t n = read(fd, text + have, sizeof text - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
        text[have] = '\0';
        char *p = text;
        for (char *blank; rc == 0 && (blank = strchr(p, ' ')); p = blank + 1)
            rc = proc_list_add(l, (pid_t)strtol(p, NULL, 10));
        have -= (size_t)(p - text); /* A number cut in two waits for its rest. */
        memmove(text, p, have);
    }
    close(fd);
    return rc;
}

/* Without CONFIG_PROC_CHILDREN, every process is asked for its parent. */
static int children_by_scan(pid_t root, struct proc_list *l)
{
    DIR *dir = opendir("/proc");
    if (!dir)
        return MUSTER_EIO;
    int rc = proc_state(getpid(), NULL) ? 0 : MUSTER_EIO; /* an empty directory */
    for (struct dirent *e; rc == 0 && (e = readdir(dir));) {
        const long pid = strtol(e->d_name, NULL, 10);
        pid_t parent;
        if (pid > 0 && proc_state((pid_t)pid, &parent) && parent == root)
            rc = proc_list_add(l, (pid_t)pid);
    }
    closedir(dir);
    return rc;
}

#define PID_LIMIT 4194304 /* the kernel's */

/* The process id that was given out last, or the highest there can be. */
static pid_t newest_pid(void)
{
    const pid_t pid = vfork();

    if (pid == 0)
        _exit(0);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return pid > 0 ? pid : PID_LIMIT;
}

/* Where there is no /proc: waitid() tells for any number whether it is a child of ours.
 * They are younger than we are, but numbers begin again when they are used up. */
static int children_by_wait(struct proc_list *l)
{
    const pid_t own = getpid(), newest = newest_pid();
    const pid_t last = newest > own ? newest : PID_LIMIT;
    siginfo_t info;
    int rc = 0;

    for (pid_t pid = newest > own ? own + 1 : 2; rc == 0 && pid <= last; pid++)
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
            rc = proc_list_add(l, pid);
    return rc;
}

int proc_children(pid_t root, struct proc_list *l)
{
    char path[sizeof "/proc//task//children" + 40 + 256];

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getpid(),
             (int)getpid());
    if (access(path, R_OK) != 0) {
        const int rc = children_by_scan(root, l);

        return rc == MUSTER_EIO && root == getpid() ? children_by_wait(l) : rc;
    }
    snprintf(path, sizeof path, "/proc/%d/task", (int)root);
    DIR *dir = opendir(path);
    if (!dir)
        return 0; /* It is gone, and its children are gone or have another parent. */
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)root, e->d_name);
        rc = add_children_file(path, l);
    }
    closedir(dir);
    return rc;
}

int proc_descendants(pid_t root, struct proc_list *l)
{
    const size_t limit = l->count + 1000000; /* against parents that form a circle */
    size_t next = l->count;
    int rc = proc_children(root, l);

    for (; rc == 0 && next < l->count && l->count < limit; next++)
        rc = proc_children(l->pids[next], l);
    return rc;
}
