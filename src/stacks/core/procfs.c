/* procfs.c - see procfs.h. The kernel writes these, but the name of a command is the
 * process's own choice: it may hold anything, newlines and parentheses included. */
#include "stacks/core/procfs.h"

#include <sys/syscall.h>

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

/* A decimal number at *at, blanks before it skipped; *at is then behind it. */
static bool number(struct span text, size_t *at, uint64_t *out)
{
    size_t i = *at;
    uint64_t n = 0;

    while (i < text.n && (text.p[i] == ' ' || text.p[i] == '\t'))
        i++;
    const size_t first = i;
    for (; i < text.n && text.p[i] >= '0' && text.p[i] <= '9'; i++)
        if (__builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (uint64_t)(text.p[i] - '0'), &n))
            return false;
    if (i == first)
        return false;
    *at = i;
    *out = n;
    return true;
}

/* Behind the command's last parenthesis, or 0. */
static size_t behind_command(struct span text, size_t *open)
{
    size_t last = 0;
    const uint8_t *first = text.n ? memchr(text.p, '(', text.n) : NULL;

    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] == ')')
            last = i + 1;
    if (!first || last < (size_t)(first - text.p) + 2)
        return 0;
    *open = (size_t)(first - text.p) + 1;
    return last;
}

bool procfs_stat(struct arena *a, struct stack_process *p, struct span text)
{
    size_t open = 0, at = behind_command(text, &open);
    uint64_t parent;

    if (at == 0 || at + 2 >= text.n || !strchr("RSDTtZXI", text.p[at + 1]) ||
        text.p[at + 1] == '\0')
        return false;
    const char state = (char)text.p[at + 1];
    const char *command =
        arena_text(a, span_of(text.p + open, MIN_OF(at - 1 - open, (size_t)64)));
    at += 2;
    if (!command || !number(text, &at, &parent) || parent > INT32_MAX)
        return false;
    p->state = state;
    p->command = command;
    p->parent = (int64_t)parent;
    return true;
}

/* Fields 14 and 15; what lies between may be negative, so it is skipped by its blanks.
 */
bool procfs_cpu(struct stack_process *p, struct span text, long ticks_per_s)
{
    size_t open = 0, at = behind_command(text, &open);
    uint64_t user, system;

    if (at == 0 || ticks_per_s <= 0)
        return false;
    for (int blanks = 0; blanks < 12; at++) {
        if (at >= text.n)
            return false;
        blanks += text.p[at] == ' ';
    }
    if (!number(text, &at, &user) || !number(text, &at, &system) ||
        user > UINT64_MAX / 4000 || system > UINT64_MAX / 4000)
        return false;
    p->cpu_ms = (user + system) * 1000 / (uint64_t)ticks_per_s;
    return true;
}

static bool field(struct span text, const char *name, uint64_t *out)
{
    const uint8_t *found = text.n ? memmem(text.p, text.n, name, strlen(name)) : NULL;
    size_t at = found ? (size_t)(found - text.p) + strlen(name) : 0;

    return found && number(text, &at, out);
}

bool procfs_switches(struct stack_process *p, struct span text)
{
    uint64_t own;

    if (!field(text, "\nvoluntary_ctxt_switches:", &own) || own > INT64_MAX / 2)
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
    size_t at = 0;

    if (!number(text, &at, &n)) /* "running", or -1 outside of any */
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
