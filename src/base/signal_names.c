/* signal_names.c - see signal_names.h. */
#include "base/signal_names.h"

#include <signal.h>

#include "base/nearest.h"

static const struct {
    const char *name;
    int number;
} signal_names[] = {
    { "SIGHUP", SIGHUP },   { "SIGINT", SIGINT },       { "SIGQUIT", SIGQUIT },
    { "SIGILL", SIGILL },   { "SIGTRAP", SIGTRAP },     { "SIGABRT", SIGABRT },
    { "SIGIOT", SIGIOT },   { "SIGBUS", SIGBUS },       { "SIGFPE", SIGFPE },
    { "SIGKILL", SIGKILL }, { "SIGUSR1", SIGUSR1 },     { "SIGSEGV", SIGSEGV },
    { "SIGUSR2", SIGUSR2 }, { "SIGPIPE", SIGPIPE },     { "SIGALRM", SIGALRM },
    { "SIGTERM", SIGTERM }, { "SIGSTKFLT", SIGSTKFLT }, { "SIGCHLD", SIGCHLD },
    { "SIGCONT", SIGCONT }, { "SIGSTOP", SIGSTOP },     { "SIGTSTP", SIGTSTP },
    { "SIGTTIN", SIGTTIN }, { "SIGTTOU", SIGTTOU },     { "SIGURG", SIGURG },
    { "SIGXCPU", SIGXCPU }, { "SIGXFSZ", SIGXFSZ },     { "SIGVTALRM", SIGVTALRM },
    { "SIGPROF", SIGPROF }, { "SIGWINCH", SIGWINCH },   { "SIGIO", SIGIO },
    { "SIGPOLL", SIGPOLL }, { "SIGPWR", SIGPWR },       { "SIGSYS", SIGSYS },
};

const char *signal_name(int sig)
{
    for (size_t i = 0; i < ARRAY_LEN(signal_names); i++)
        if (signal_names[i].number == sig)
            return signal_names[i].name;
    return "<N/A>";
}

int signal_number(struct span name)
{
    for (size_t i = 0; i < ARRAY_LEN(signal_names); i++)
        if (span_eq(span_str(signal_names[i].name), name))
            return signal_names[i].number;
    return 0;
}

const char *signal_nearest(struct span word)
{
    struct nearest near = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(signal_names); i++) {
        nearest_try(&near, word, signal_names[i].name);
        if (span_eq(word, span_str(signal_names[i].name + 3))) /* KILL */
            return signal_names[i].name;
    }
    return near.word;
}
