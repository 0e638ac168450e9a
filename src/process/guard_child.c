/* guard_child.c - the guard's side: parent of the workers, executioner of what is left.
 *
 * One loop over the agent's socket, SIGCHLD and the services that fork workers. It
 * never blocks on a write, so the agent may block on its own. Replies go out together
 * when there is nothing else to do, so that the agent wakes up once for many. All
 * signals are blocked: only SIGKILL ends it early.
 *
 * SIGCHLD is let in while it waits and at no other time. That needs no descriptor, so
 * the end of a worker is seen even where signalfd is denied or descriptors run out. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "process/guard_child.h"
#include "process/proc.h"

#define KILL_AGAIN_MS 5
#define FLUSH_AT      2048 /* bytes of replies that do not wait for more to come */

static int64_t wall_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

static void guard_child_flush(struct guard_child *k)
{
    k->blocked = false;
    while (buf_len(&k->out) > 0) {
        const ssize_t n = send(k->sock, buf_data(&k->out), buf_len(&k->out),
                               MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            k->blocked = true; /* If the agent is gone, poll reports it. */
            return;
        }
        buf_consume(&k->out, (size_t)n);
    }
}

void guard_child_reply(struct guard_child *k, const struct guard_reply *r)
{
    if (buf_append(&k->out, r, sizeof *r) < 0)
        k->ended = true; /* Cannot report any more: shut down. */
}

static void reply_note(struct guard_child *k, enum guard_note note)
{
    guard_child_reply(k, &(struct guard_reply){ .note = note });
}

/* --- reaping -------------------------------------------------------------------- */

static void on_reaped(struct guard_child *k, pid_t pid, int status,
                      const struct rusage *ru)
{
    guard_child_forget(k, pid);
    for (size_t i = 0; i < k->service_count; i++) {
        if (k->services[i].pid != pid)
            continue;
        guard_child_service_gone(k, i, status);
        return;
    }
    for (size_t i = 0; i < k->count; i++) {
        if (k->held[i].pid != pid)
            continue;
        const struct guard_reply r = { .note = GUARD_EXITED,
                                       .id = k->held[i].id,
                                       .value = status,
                                       .wall_us = wall_us(),
                                       .peak_kb = (uint64_t)ru->ru_maxrss };
        k->held[i] = k->held[--k->count];
        guard_child_reply(k, &r);
        return;
    }
}

static void reap(struct guard_child *k)
{
    struct rusage ru;
    int status;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG, &ru)) > 0)
        on_reaped(k, pid, status, &ru);
    if (k->count > 0 || !k->filled)
        return;
    if (pid < 0 || guard_child_is_empty(k)) {
        k->filled = k->killing = k->leftovers_notified = false;
        reply_note(k, GUARD_EMPTY);
    } else if (!k->leftovers_notified) {
        k->leftovers_notified = true;
        reply_note(k, GUARD_HAS_LEFTOVERS);
    }
}

/* --- the loop ------------------------------------------------------------------- */

static void on_kill_all(struct guard_child *k)
{
    k->killing = k->filled;
    for (size_t i = k->count; i-- > 0;)
        if (k->held[i].pid == 0)
            guard_child_cancel(k, i, SIGKILL);
    if (!k->filled)
        reply_note(k, GUARD_EMPTY);
}

static uint64_t mono_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void on_fence_request(struct guard_child *k, uint32_t ms)
{
    k->fence_after_ms = ms;
    k->fence_ms = ms == UINT32_MAX ? MONO_NEVER : mono_ms() + ms;
}

/* The agent shows other nodes that this one lives, and has not done so for as long as
 * they wait. If it runs, it knows that and ends the workers itself. If it is stopped
 * ('T'), nobody else will. In the hands of a debugger ('t') it is left alone: whoever
 * looks at an agent must not lose the job by that. */
static void look_at_agent(struct guard_child *k)
{
    if (k->fence_ms == MONO_NEVER || mono_ms() < k->fence_ms)
        return;
    if (proc_state(k->agent, NULL) != 'T' || !k->filled) {
        on_fence_request(k, MAX_OF(k->fence_after_ms, 1000u));
        return;
    }
    k->fence_ms = MONO_NEVER;
    reply_note(k, GUARD_FENCED);
    on_kill_all(k);
}

static void on_signal_service(struct guard_child *k, uint32_t id, int sig)
{
    const struct guarded_service *s = guard_child_service(k, id);

    if (s)
        kill(s->pid, sig);
}

static void guard_child_on_request(struct guard_child *k)
{
    struct spawn_request p = SPAWN_REQUEST_INIT;

    if (!spawn_request_read_header(k->sock, &p)) {
        k->ended = true;
        return;
    }
    switch ((enum guard_op)p.req.op) {
    case GUARD_SPAWN:
    case GUARD_SERVICE:
        if (!spawn_request_read_body(k->sock, &p))
            k->ended = true;
        else if (p.req.op == GUARD_SPAWN)
            guard_child_start(k, &p);
        else
            guard_child_start_service(k, &p);
        break;
    case GUARD_SIGNAL:
        guard_child_signal(k, p.req.id, p.req.sig);
        break;
    case GUARD_PASS_ON:
        guard_child_pass_on(k, p.req.id, p.req.sig);
        break;
    case GUARD_LEFTOVERS:
        guard_child_signal_leftovers(k, p.req.sig);
        break;
    case GUARD_KILL_ALL:
        on_kill_all(k);
        break;
    case GUARD_SIGNAL_SERVICE:
        on_signal_service(k, p.req.id, p.req.sig);
        break;
    case GUARD_TIDY:
        mem_free(k->tidy);
        k->ended |= !spawn_request_read_body(k->sock, &p);
        k->tidy = k->ended ? NULL : mem_strdup(p.strings[0]);
        break;
    case GUARD_FENCE:
        on_fence_request(k, p.req.id);
        break;
    }
    spawn_request_fini(&p);
}

static volatile sig_atomic_t child_changed; /* or our parent, the keeper, is gone */

static void on_sigchld(int sig)
{
    (void)sig;
    child_changed = 1;
}

static void block_signals(void)
{
    sigset_t all;
    struct sigaction old;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int sig = 1; sig < NSIG; sig++) /* Handlers of ours must not run in a vfork. */
        if (sigaction(sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN &&
            old.sa_handler != SIG_DFL)
            signal(sig, SIG_DFL);
}

static void prepare(struct guard_child *k, pid_t keeper)
{
    /* Not SIG_IGN, which would eat the exit codes. */
    const struct sigaction chld = { .sa_handler = on_sigchld };

    prctl(PR_SET_NAME, "muster-guard", 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    sigaction(SIGCHLD, &chld, NULL);
    sigfillset(&k->while_waiting);
    sigdelset(&k->while_waiting, SIGCHLD);
    prctl(PR_SET_PDEATHSIG, SIGCHLD, 0, 0, 0);
    k->keeper = keeper;
    if (getppid() != keeper)
        k->ended = true;
}

/* Our command line is the agent's, byte for byte, until we change it: `pkill -9 -f`
 * would get both at once. */
static void rename_self(const char *name)
{
    const size_t length = strlen(name) + 1;
    char now[4096];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    size_t size = 0;
    ssize_t n;

    while (fd >= 0 && (n = read(fd, now, sizeof now)) > 0)
        size += (size_t)n;
    if (fd >= 0)
        close(fd);
    if (size <= length)
        return;
    memset(program_invocation_name, 0, size);
    memcpy(program_invocation_name, name, length);
}

static void close_others(int keep)
{
    if (keep > 3)
        proc_close_range(3, (unsigned)keep - 1);
    proc_close_range((unsigned)keep + 1, ~0U);
}

/* Services first, so that a worker is known before its exit is reaped. */
static void on_services(struct guard_child *k, const struct pollfd *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct guarded_service *s = &k->services[i];

        if (p[i].revents & POLLOUT)
            guard_child_ask(k, s);
        if (p[i].revents & (POLLIN | POLLHUP | POLLERR))
            guard_child_hear(k, s);
    }
}

/* Time is in milliseconds, -1 for ever. */
static int wait_for_news(const struct guard_child *k, struct pollfd *p, size_t n,
                         int ms)
{
    const struct timespec at_most = { ms / 1000, ms % 1000 * 1000000L };

    return ppoll(p, n, ms < 0 ? NULL : &at_most, &k->while_waiting);
}

/* How long there is nothing to do, in milliseconds; -1 for ever. */
static int idle_ms(const struct guard_child *k)
{
    const uint64_t now = k->fence_ms == MONO_NEVER ? 0 : mono_ms();

    if (k->killing)
        return KILL_AGAIN_MS;
    if (k->fence_ms == MONO_NEVER)
        return -1;
    return k->fence_ms <= now ? 0 : (int)MIN_OF(k->fence_ms - now, (uint64_t)INT_MAX);
}

static void turn(struct guard_child *k)
{
    const bool pending = buf_len(&k->out) > 0;
    const size_t services = k->service_count;
    struct pollfd p[1 + GUARD_SERVICES] = {
        { .fd = k->sock, .events = (short)(POLLIN | (k->blocked ? POLLOUT : 0)) },
    };

    for (size_t i = 0; i < services; i++)
        p[1 + i] = (struct pollfd){
            .fd = k->services[i].control,
            .events = (short)(POLLIN | (k->services[i].full ? POLLOUT : 0)),
        };
    if (k->killing)
        guard_child_kill_below(k);
    const int n =
        wait_for_news(k, p, 1 + services, pending && !k->blocked ? 0 : idle_ms(k));
    if (n < 0 && errno != EINTR) {
        k->ended = true;
        return;
    }
    if (n < 0)
        for (size_t i = 0; i <= services; i++)
            p[i].revents = 0;
    on_services(k, p + 1, services);
    /* An interrupted wait is news by itself: under a tool that runs handlers later, the
     * thread sanitizer for one, child_changed is not set yet. */
    if (n < 0 || child_changed || k->killing || k->cancelled) {
        child_changed = 0;
        k->cancelled = false;
        reap(k);
        k->ended |= getppid() != k->keeper;
    }
    if (!(p[0].revents & POLLIN)) /* else a later time may just be coming */
        look_at_agent(k);
    if (!(p[0].revents & POLLIN) || buf_len(&k->out) >= FLUSH_AT)
        guard_child_flush(k);
    if (p[0].revents & (POLLIN | POLLHUP | POLLERR))
        guard_child_on_request(k);
}

static void guard_run(int sock, pid_t agent, pid_t keeper, guard_fn fn, void *fn_ctx)
{
    struct guard_child k = {
        .sock = sock, .agent = agent, .fn = fn, .fn_ctx = fn_ctx, .fence_ms = MONO_NEVER
    };

    buf_init(&k.out, 16u << 20);
    /* A function finds the descriptors it knew, as after any fork; and libuv's handler
     * for forks would close strange ones if its own were gone. */
    if (!fn) {
        close_others(sock);
        rename_self("muster-guard");
    }
    prepare(&k, keeper);
    while (!k.ended)
        turn(&k);
    guard_child_end(&k);
}

/* The keeper: a process that only waits for the guard to end, and then kills what that
 * has left. Its name is not muster's, so that whoever kills everything of that name at
 * once does not get it. It holds no descriptor: nobody waits for it by accident. */
void guard_main(int sock, guard_fn fn, void *fn_ctx)
{
    const pid_t agent = getppid(), keeper = getpid();

    setsid(); /* A signal to the agent's whole process group must not reach us. */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    block_signals();
    signal(SIGCHLD, SIG_DFL);
    const pid_t guard = fork();
    if (guard == 0)
        guard_run(sock, agent, keeper, fn, fn_ctx);
    if (guard < 0) {
        const struct guard_reply why = { .note = GUARD_UNFORKED, .value = errno };

        (void)!send(sock, &why, sizeof why, MSG_NOSIGNAL);
    }
    proc_close_range(0, ~0U);
    if (!fn) /* A program that embeds us may have a title that is not argv. */
        rename_self("job-guard");
    prctl(PR_SET_NAME, "job-guard", 0, 0, 0);
    if (guard > 0)
        while (waitpid(guard, NULL, 0) < 0 && errno == EINTR)
            ;
    guard_child_end(&(struct guard_child){ 0 });
}
