/* exit_cause.c - see exit_cause.h. */
#include "agent/core/exit_cause.h"

#include <signal.h>

#include "base/base.h"

/* A shell's exit code for a command that died of signal n: + n. */
#define SHELL_BASE 128
#define SIGNAL_MAX 64

static const struct {
    int sig;
    const char *means;
} causes[] = {
    { SIGTERM, "somebody outside of this job asked it to end" },
    { SIGINT, "somebody outside of this job interrupted it" },
    { SIGHUP, "its terminal or session was closed" },
    { SIGQUIT, "somebody outside of this job asked it to quit" },
    { SIGSEGV, "a fault in native code; PYTHONFAULTHANDLER=1 shows where Python was, "
               "ulimit -c unlimited leaves a core file" },
    { SIGBUS, "memory backed by a file was not there: a full /dev/shm (df "
              "/dev/shm; in a container, give it more), or a file cut short" },
    { SIGABRT,
      "it gave up by itself: an assertion, a C++ exception that nobody caught, "
      "or a watchdog; its own last lines say which" },
    { SIGILL,
      "an instruction that this processor does not have: something was built for "
      "another one" },
    { SIGFPE, "an integer was divided by zero, or the like, in native code" },
    { SIGPIPE, "it wrote to a pipe or socket that nobody reads any more" },
    { SIGALRM, "a timer of its own ran out, and it had no handler for it" },
    { SIGSYS,
      "a system call that is forbidden here (a seccomp filter, as containers have)" },
    { SIGXCPU, "its limit of processor time is used up (ulimit -t)" },
    { SIGXFSZ, "a file grew over its limit (ulimit -f)" },
};

static const char *means(int sig, int64_t oom_kills)
{
    if (sig == SIGKILL && oom_kills == 0)
        return "somebody's kill -9, or the batch system; the kernel's OOM killer has "
               "not been at work in this job's cgroup";
    if (sig == SIGKILL)
        return "somebody's kill -9, the batch system, or the kernel for want of memory "
               "(dmesg shows it)";
    for (size_t i = 0; i < ARRAY_LEN(causes); i++)
        if (causes[i].sig == sig)
            return causes[i].means;
    return "it had no handler for that signal";
}

bool exit_cause_means(struct buf *out, int sig)
{
    for (size_t i = 0; i < ARRAY_LEN(causes); i++)
        if (causes[i].sig == sig)
            return buf_append_str(out, causes[i].means) == 0;
    return false;
}

bool exit_cause_print(struct buf *out, int code, const char *signal_name,
                      int64_t oom_kills)
{
    const bool shell = code > SHELL_BASE && code <= SHELL_BASE + SIGNAL_MAX;
    const int sig = shell ? code - SHELL_BASE : -code;

    if (sig <= 0 || (sig == SIGKILL && oom_kills > 0))
        return false;
    if (shell)
        return buf_printf(
                   out,
                   "ended with code %d, with which a shell tells that its command "
                   "died of signal %d: %s",
                   code, sig, means(sig, oom_kills)) == 0;
    return buf_printf(out, "died of signal %d (%s): %s", sig,
                      signal_name ? signal_name : "<N/A>", means(sig, oom_kills)) == 0;
}
