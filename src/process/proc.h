/* proc.h - starting one process, and finding all that descends from one.
 *
 * Used by the guard (guard.c), which is the parent of every worker. Nothing here knows
 * the loop; the functions are safe in a process that has just been forked. */
#ifndef PROCESS_PROC_H
#define PROCESS_PROC_H

#include <sys/types.h>

#include "base/base.h"
#include "process/core/proc_stat.h"

struct proc_spec {
    char *const *argv; /* borrowed; argv[0] without a slash is sought in envp's PATH */
    char *const *envp; /* borrowed */
    int fd[3];         /* what becomes 0, 1 and 2; proc_spawn closes all others */
    int extra[3];      /* what becomes 3, 4 and 5: more than 2, or none (0 or -1) */
    bool session;      /* lead a session of its own */
    pid_t tracer;      /* whose descendants may read its stacks; 0: nobody's */
    const void *cpus;  /* affinity mask as for sched_setaffinity, or NULL */
    size_t cpus_size;
};

/* Starts the process: default SIGPIPE and SIGXFSZ, no signal blocked, dies by SIGKILL
 * with its parent. Returns 0 and *pid, or the errno of what failed (mostly exec). */
int proc_spawn(const struct proc_spec *spec, pid_t *pid);

/* The same without waiting for the exec, which may then be on another CPU: for a
 * program that has been started before. If it fails after all, the child says so on its
 * stderr and exits with 127. */
int proc_spawn_again(const struct proc_spec *spec, pid_t *pid);

/* What the child of a plain fork does to be such a process without exec: session,
 * descriptors 0 to 2, signals. Returns 0 or an errno. */
int proc_become(const struct proc_spec *spec, pid_t parent);

/* Closes the descriptors from first to last, on any kernel (close_range() came with
 * Linux 5.9, and sandboxes deny what they do not know). */
void proc_close_range(unsigned first, unsigned last);

struct proc_list {
    pid_t *pids; /* owned */
    size_t count, size;
};

void proc_list_fini(struct proc_list *l);

/* All processes below root (not root itself), parents before their children. A tree
 * that changes meanwhile is seen as of some moment; callers repeat. Adds to l; returns
 * 0 or MUSTER_ENOMEM, MUSTER_EIO. */
int proc_descendants(pid_t root, struct proc_list *l);

/* Only the direct children of root. Works without /proc, too, for our own. */
int proc_children(pid_t root, struct proc_list *l);

/* Whether pid is root or descends from it, as of now. */
bool proc_descends(pid_t pid, pid_t root);

/* What /proc/PID/stat says, but for the name; false if there is no such process. */
bool proc_read_stat(pid_t pid, struct proc_stat *out);

/* 'R', 'S', 'D', 'Z' ... as /proc says; 0 if there is no such process. ppid may be
 * NULL. */
char proc_state(pid_t pid, pid_t *ppid);

/* Whether the process has a handler of its own for this signal. */
bool proc_catches(pid_t pid, int sig);

#endif
