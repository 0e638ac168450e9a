/* procfs.c - see procfs.h. The kernel writes these, but the name of a command is the
 * process's own choice: it may hold anything, newlines and parentheses included. */
#include "stacks/core/procfs.h"

#include <sys/syscall.h>

#include "process/core/proc_stat.h"

/* The system calls in which a worker may hang; others are told by number. */
static const struct {
    int64_t number;
    const char *name;
} calls[] = {
#ifdef SYS_accept
    { SYS_accept, "accept" },
#endif
    { SYS_accept4, "accept4" },
    { SYS_clock_nanosleep, "clock_nanosleep" },
    { SYS_clone, "clone" },
    { SYS_connect, "connect" },
#ifdef SYS_epoll_wait
    { SYS_epoll_wait, "epoll_wait" },
#endif
    { SYS_epoll_pwait, "epoll_pwait" },
    { SYS_fcntl, "fcntl" },
    { SYS_fdatasync, "fdatasync" },
    { SYS_flock, "flock" },
    { SYS_fsync, "fsync" },
    { SYS_futex, "futex" },
    { SYS_ioctl, "ioctl" },
    { SYS_nanosleep, "nanosleep" },
#ifdef SYS_open
    { SYS_open, "open" },
#endif
    { SYS_openat, "openat" },
#ifdef SYS_pause
    { SYS_pause, "pause" },
#endif
#ifdef SYS_poll
    { SYS_poll, "poll" },
#endif
    { SYS_ppoll, "ppoll" },
    { SYS_pread64, "pread" },
    { SYS_pselect6, "pselect" },
    { SYS_pwrite64, "pwrite" },
    { SYS_read, "read" },
    { SYS_readv, "readv" },
    { SYS_recvfrom, "recvfrom" },
    { SYS_recvmsg, "recvmsg" },
#ifdef SYS_select
    { SYS_select, "select" },
#endif
    { SYS_semtimedop, "semtimedop" },
    { SYS_sendmsg, "sendmsg" },
    { SYS_sendto, "sendto" },
#ifdef SYS_vfork
    { SYS_vfork, "vfork" },
#endif
    { SYS_wait4, "wait4" },
    { SYS_waitid, "waitid" },
    { SYS_write, "write" },
    { SYS_writev, "writev" },
};

bool procfs_stat(struct arena *a, struct stack_process *p, struct span text)
{
    struct proc_stat s;

    if (!proc_stat_parse(text, &s) || !strchr("RSDTtZXI", s.state) ||
        s.parent > INT32_MAX)
        return false;
    const char *command =
        arena_text(a, span_of(s.command.p, MIN_OF(s.command.n, (size_t)64)));
    if (!command)
        return false;
    p->state = s.state;
    p->command = command;
    p->parent = (int64_t)s.parent;
    return true;
}

bool procfs_cpu(struct stack_process *p, struct span text, long ticks_per_s)
{
    struct proc_stat s;

    if (!proc_stat_parse(text, &s) || !s.timed || ticks_per_s <= 0 ||
        s.ticks > UINT64_MAX / 2000)
        return false;
    p->cpu_ms = s.ticks * 1000 / (uint64_t)ticks_per_s;
    return true;
}

bool procfs_switches(struct stack_process *p, struct span text)
{
    struct span rest = span_after(text, "\nvoluntary_ctxt_switches:"), word;
    uint64_t own;

    if (!span_take_word(&rest, " \t", &word) || !span_take_number(&word, &own) ||
        own > INT64_MAX / 2)
        return false;
    p->switches = own;
    return true;
}

static struct span first_word(struct span text)
{
    size_t n = 0;

    while (n < text.n && text.p[n] > ' ' && text.p[n] < 127 && n < 64)
        n++;
    return span_of(text.p, n);
}

bool procfs_wchan(struct arena *a, struct stack_process *p, struct span text)
{
    const struct span word = first_word(text);

    if (word.n == 0 || span_eq(word, span_str("0")))
        return true;
    const char *copy = arena_text(a, word);
    if (copy)
        p->wchan = copy;
    return copy != NULL;
}

bool procfs_syscall(struct arena *a, struct stack_process *p, struct span text)
{
    uint64_t n;

    if (!span_take_number(&text, &n)) /* "running", or -1 outside of any */
        return true;
    for (size_t i = 0; i < ARRAY_LEN(calls); i++)
        if ((uint64_t)calls[i].number == n) {
            p->syscall = calls[i].name;
            return true;
        }
    const char *name = arena_printf(a, "system call %llu", (unsigned long long)n);
    if (name)
        p->syscall = name;
    return name != NULL;
}
