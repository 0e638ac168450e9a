/* signals.c - the signals of --signals-to-handle, from the first start of workers on.
 * Before it they keep their default action, as with torchrun. What the program had
 * asked for is as it was when the launch is over. */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

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
    a->signals_before[a->signal_count++] = old;
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

/* What others have left behind in this container comes to us when it ends. The keeper
 * is waited for elsewhere; once it has ended, so has the job. */
static void on_sigchld(uv_signal_t *handle, int sig)
{
    const struct agent *a = handle->data;
    siginfo_t who = { 0 };

    (void)sig;
    while (waitid(P_ALL, 0, &who, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           who.si_pid != 0 && who.si_pid != guard_root(a->guard))
        (void)waitpid(who.si_pid, NULL, WNOHANG);
}

void agent_reap_orphans(struct agent *a)
{
    if (!a->opts.reap_orphans || uv_signal_init(&a->loop, &a->chld) != 0)
        return;
    a->chld.data = a;
    uv_unref((uv_handle_t *)&a->chld);
    (void)uv_signal_start(&a->chld, on_sigchld, SIGCHLD);
    on_sigchld(&a->chld, SIGCHLD); /* of those that ended before */
}

void agent_signals_off(struct agent *a)
{
    if (a->chld.data)
        uv_close((uv_handle_t *)&a->chld, NULL);
    sigset_t ours, before;

    /* libuv leaves the default action behind, which must not meet a signal. */
    sigemptyset(&ours);
    for (size_t i = 0; i < a->signal_count; i++)
        sigaddset(&ours, a->signals[i].signum);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    for (size_t i = 0; i < a->signal_count; i++) {
        const int sig = a->signals[i].signum;

        uv_close((uv_handle_t *)&a->signals[i], NULL);
        if (sig)
            sigaction(sig, &a->signals_before[i], NULL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    a->signal_count = 0;
}

/* What would end us for a console that goes, or for a file that has reached its limit:
 * both are errors of the write. Several launches may overlap, on threads of one
 * program; the last one restores what the first one found. */
static const int quiet_signals[] = { SIGPIPE, SIGXFSZ };
static pthread_mutex_t quiet_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before_quiet[ARRAY_LEN(quiet_signals)];
static unsigned quiet_users;

void agent_signals_quiet(void)
{
    const struct sigaction ignore = { .sa_handler = SIG_IGN };

    pthread_mutex_lock(&quiet_lock);
    for (size_t i = 0; quiet_users == 0 && i < ARRAY_LEN(quiet_signals); i++)
        sigaction(quiet_signals[i], &ignore, &before_quiet[i]);
    quiet_users++;
    pthread_mutex_unlock(&quiet_lock);
}

void agent_signals_unquiet(void)
{
    pthread_mutex_lock(&quiet_lock);
    quiet_users--;
    for (size_t i = 0; quiet_users == 0 && i < ARRAY_LEN(quiet_signals); i++)
        sigaction(quiet_signals[i], &before_quiet[i], NULL);
    pthread_mutex_unlock(&quiet_lock);
}
