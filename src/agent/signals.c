/* signals.c - the signals of --signals-to-handle, from the first start of workers on.
 * Before it they keep their default action, as with torchrun. SIGUSR1 and SIGUSR2, if
 * they are not among them, are passed on to the workers and end nothing: batch systems
 * send them to say that the time is nearly up. What the program had asked for is as it
 * was when the launch is over. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "loop/file.h"

/* Who sent the last signal. libuv does not tell, so our handler looks before libuv's
 * own is called. One for the whole process, as signals are. */
static struct {
    void (*next)(int sig); /* libuv's */
    volatile sig_atomic_t pid, uid, code;
} sender;

static void note_sender(int sig, siginfo_t *info, void *context)
{
    (void)context;
    sender.pid = (sig_atomic_t)info->si_pid;
    sender.uid = (sig_atomic_t)info->si_uid;
    sender.code = (sig_atomic_t)info->si_code;
    sender.next(sig);
}

static void watch_sender(int sig)
{
    struct sigaction act;

    if (sigaction(sig, NULL, &act) < 0 || act.sa_flags & SA_SIGINFO)
        return;
    sender.next = act.sa_handler;
    act.sa_sigaction = note_sender;
    act.sa_flags |= SA_SIGINFO;
    (void)sigaction(sig, &act, NULL);
}

/* "SIGTERM from pid 712 (slurmstepd, root)" */
static void describe_sender(char *to, size_t room, int sig)
{
    char path[32], comm[64], clean[80];
    const int pid = (int)sender.pid, uid = (int)sender.uid;
    const int n = snprintf(to, room, "%s", signal_name(sig));
    ssize_t got;

    to += n;
    room -= (size_t)n;
    if (sender.code == SI_KERNEL || pid == 0) {
        (void)snprintf(to, room,
                       sig == SIGINT ? " from the terminal" : " from the kernel");
        return;
    }
    (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
    got = file_read(path, comm, sizeof comm);
    got = got > 0 && comm[got - 1] == '\n' ? got - 1 : got;
    (void)escape_text(clean, sizeof clean, span_of(comm, got > 0 ? (size_t)got : 0));
    (void)snprintf(to, room,
                   uid == 0 ? " from pid %d (%s, root)" : " from pid %d (%s, user %d)",
                   pid, clean[0] ? clean : "gone", uid);
}

static void signals_on_signal(uv_signal_t *handle, int sig)
{
    static const char stopped[] = "stopped by ";
    struct agent *a = handle->data;

    memcpy(a->stopped_by, stopped, sizeof stopped);
    describe_sender(a->stopped_by + sizeof stopped - 1,
                    sizeof a->stopped_by - sizeof stopped, sig);
    log_line(a->log, LOG_WARN, AT_AGENT, "%s", a->stopped_by);
    agent_post(a, AGENT_EV_SIGNAL, 0, sig);
    agent_pump(a);
}

static void signals_on_notice(uv_signal_t *handle, int sig)
{
    struct agent *a = handle->data;
    char from[256];

    describe_sender(from, sizeof from, sig);
    if (!agent_notice_signal(a, sig, from))
        signals_on_signal(handle, sig);
}

/* The guard looks again, as only it knows that the pid is still the worker's. */
static void signals_on_passed(uv_signal_t *handle, int sig)
{
    struct agent *a = handle->data;
    char from[256];
    struct buf ranks;
    size_t count = 0;

    describe_sender(from, sizeof from, sig);
    buf_init(&ranks, 512);
    for (int64_t i = 0; i < a->config->nproc; i++) {
        const struct agent_worker *w = &a->workers[i];

        if (w->pid == 0 || w->exited || !proc_catches(w->pid, sig))
            continue;
        guard_pass_on(a->guard, (uint32_t)i, sig);
        (void)buf_printf(&ranks, "%s%" PRId64, count++ ? ", " : "",
                         a->range.base_rank + i);
    }
    if (count > 0)
        log_line(a->log, LOG_WARN, AT_AGENT, "%s: passed on to rank%s %.*s", from,
                 count > 1 ? "s" : "", (int)buf_len(&ranks),
                 (const char *)buf_data(&ranks));
    else
        log_line(a->log, LOG_WARN, AT_AGENT,
                 "%s: not passed on, as no worker of this node has a handler for it",
                 from);
    buf_fini(&ranks);
}

struct handled_signal {
    uv_signal_t handle; /* first */
    struct sigaction before;
    struct handled_signal *next;
};

struct agent_signals {
    struct handled_signal *list; /* owned */
    bool on;
    uv_signal_t chld; /* with reap_orphans */
};

static void handle_one(struct agent *a, int sig, uv_signal_cb cb)
{
    struct sigaction old = { 0 };

    /* It was ignored when we were started (nohup), so it stays ignored. What is passed
     * on may also have a handler of the program that we are part of. */
    if (sigaction(sig, NULL, &old) == 0 &&
        (old.sa_handler == SIG_IGN ||
         (cb == signals_on_passed && old.sa_handler != SIG_DFL)))
        return;
    for (const struct handled_signal *s = a->signals->list; s; s = s->next)
        if (s->handle.signum == sig)
            return;
    struct handled_signal *s = mem_calloc(1, sizeof *s);
    if (!s || uv_signal_init(&a->loop, &s->handle) != 0) {
        mem_free(s);
        return;
    }
    s->handle.data = a;
    s->before = old;
    s->next = a->signals->list;
    a->signals->list = s;
    uv_signal_start(&s->handle, cb, sig);
    watch_sender(sig);
    uv_unref((uv_handle_t *)&s->handle);
}

/* The next name of --signals-to-handle; *p is NULL behind the last. */
static struct span next_signal_name(const char **p)
{
    const size_t n = strcspn(*p, ",");
    struct span name = span_of(*p, n);

    while (name.n && isspace(name.p[0]))
        name = span_of(name.p + 1, name.n - 1);
    while (name.n && isspace(name.p[name.n - 1]))
        name.n--;
    *p = (*p)[n] ? *p + n + 1 : NULL;
    return name;
}

static bool is_handled_signal(const struct agent *a, int sig)
{
    bool listed = false;

    for (const char *p = a->config->signals; p && !listed;)
        listed = signal_number(next_signal_name(&p)) == sig;
    return listed;
}

int agent_signals_on(struct agent *a, struct muster_error *err)
{
    if (a->signals->on || !a->opts.handle_signals)
        return 0;
    a->signals->on = true;
    for (const char *p = a->config->signals; p;) {
        const struct span name = next_signal_name(&p);
        const int sig = signal_number(name);

        if (sig == SIGKILL || sig == SIGSTOP)
            return err_set(err, MUSTER_EINVAL,
                           "[Errno 22] Invalid argument\n--signals-to-handle names "
                           "%s, which nobody can handle.",
                           signal_name(sig));
        if (sig == 0)
            log_line(a->log, LOG_WARN, AT_SIGNAL_UNKNOWN,
                     "Failed to register signal handler for %.*s", (int)name.n,
                     (const char *)name.p);
        else
            handle_one(a, sig, signals_on_signal);
    }
    return 0;
}

/* As the init of a container we are the parent of every orphan, and reap it when it
 * ends. The keeper is waited for elsewhere; once it has ended, so has the job. */
static void signals_on_child(uv_signal_t *handle, int sig)
{
    const struct agent *a = handle->data;
    siginfo_t who = { 0 };

    (void)sig;
    while (waitid(P_ALL, 0, &who, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           who.si_pid != 0 && who.si_pid != guard_root(a->guard))
        (void)waitpid(who.si_pid, NULL, WNOHANG);
}

/* If asked to, from now on. */
static void reap_orphans(struct agent *a)
{
    if (!a->opts.reap_orphans || uv_signal_init(&a->loop, &a->signals->chld) != 0)
        return;
    a->signals->chld.data = a;
    uv_unref((uv_handle_t *)&a->signals->chld);
    (void)uv_signal_start(&a->signals->chld, signals_on_child, SIGCHLD);
    signals_on_child(&a->signals->chld, SIGCHLD); /* of those that ended before */
}

int agent_signals_open(struct agent *a, struct muster_error *err)
{
    static const int passed[] = { SIGUSR1, SIGUSR2 };

    a->signals = mem_calloc(1, sizeof *a->signals);
    if (!a->signals)
        return err_nomem(err);
    reap_orphans(a);
    for (size_t i = 0; a->opts.handle_signals && agent_notice_next_signal(a, i); i++)
        handle_one(a, agent_notice_next_signal(a, i), signals_on_notice);
    for (size_t i = 0; a->opts.handle_signals && i < ARRAY_LEN(passed); i++)
        if (!is_handled_signal(a, passed[i]))
            handle_one(a, passed[i], signals_on_passed);
    return 0;
}

static void on_signal_closed(uv_handle_t *handle)
{
    mem_free(handle);
}

void agent_signals_off(struct agent *a)
{
    sigset_t ours, before;

    if (!a->signals)
        return;
    if (a->signals->chld.data)
        uv_close((uv_handle_t *)&a->signals->chld, NULL);

    /* libuv restores the default action; a signal must not arrive while that holds. */
    sigemptyset(&ours);
    for (const struct handled_signal *s = a->signals->list; s; s = s->next)
        sigaddset(&ours, s->handle.signum);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    while (a->signals->list) {
        struct handled_signal *s = a->signals->list;
        const int sig = s->handle.signum;

        a->signals->list = s->next;
        uv_close((uv_handle_t *)&s->handle, on_signal_closed);
        if (sig)
            sigaction(sig, &s->before, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Ignores the signals that would end us when the console goes away or a file reaches
 * its limit: the write fails with an error all the same. Several launches may overlap
 * on threads of one program; the last one restores what the first one found. */
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
