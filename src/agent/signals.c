/* group_signals.c - the signals of --signals-to-handle, from the first start of workers
 * on. Before it they keep their default action, as with torchrun. */
#include <ctype.h>
#include <errno.h>
#include <signal.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "logs/torch_locations.h"

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

const char *agent_signal_name(int sig)
{
    for (size_t i = 0; i < ARRAY_LEN(signal_names); i++)
        if (signal_names[i].number == sig)
            return signal_names[i].name;
    return "<N/A>";
}

static int number_of(struct span name)
{
    for (size_t i = 0; i < ARRAY_LEN(signal_names); i++)
        if (span_eq(span_str(signal_names[i].name), name))
            return signal_names[i].number;
    return 0;
}

static void on_signal(uv_signal_t *handle, int sig)
{
    struct agent *a = handle->data;

    agent_post(a, GROUP_EV_SIGNAL, 0, sig);
    agent_pump(a);
}

static void handle_one(struct agent *a, int sig)
{
    struct sigaction old;

    /* Whoever started us with it ignored (nohup) meant it. */
    if (sigaction(sig, NULL, &old) == 0 && old.sa_handler == SIG_IGN)
        return;
    for (size_t i = 0; i < a->signal_count; i++)
        if (a->signals[i].signum == sig)
            return;
    if (a->signal_count == AGENT_SIGNALS_MAX)
        return;
    uv_signal_t *s = &a->signals[a->signal_count];
    if (uv_signal_init(&a->loop, s) != 0)
        return;
    s->data = a;
    a->signal_count++;
    uv_signal_start(s, on_signal, sig);
    uv_unref((uv_handle_t *)s);
}

int agent_signals_on(struct agent *a, struct muster_error *err)
{
    if (a->signals_on || !a->opts.handle_signals)
        return 0;
    a->signals_on = true;
    const char *p = a->config->signals;
    for (;;) {
        size_t n = strcspn(p, ",");
        struct span name = span_of(p, n);
        while (name.n && isspace(name.p[0]))
            name = span_of(name.p + 1, name.n - 1);
        while (name.n && isspace(name.p[name.n - 1]))
            name.n--;
        const int sig = number_of(name);
        if (sig == SIGKILL || sig == SIGSTOP)
            return err_set(err, MUSTER_EINVAL,
                           "[Errno 22] Invalid argument\n--signals-to-handle names "
                           "%s, which nobody can handle.",
                           agent_signal_name(sig));
        if (sig == 0) {
            note(a->opts.notes, NOTE_WARN, AT_SIGNAL_UNKNOWN,
                 "Failed to register signal handler for %.*s", (int)name.n,
                 (const char *)name.p);
        } else {
            handle_one(a, sig);
        }
        if (!p[n])
            return 0;
        p += n + 1;
    }
}

void agent_signals_off(struct agent *a)
{
    for (size_t i = 0; i < a->signal_count; i++)
        uv_close((uv_handle_t *)&a->signals[i], NULL);
    a->signal_count = 0;
}
