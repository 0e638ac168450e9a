/* guard_main.c - the guard's side: parent of the workers, executioner of what is left.
 *
 * One loop over the agent's socket and SIGCHLD. It never blocks on a write, so the
 * agent may block on its own. All signals are blocked: only SIGKILL ends it early. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "io/guard_int.h"

struct held {
    pid_t pid;
    uint32_t id;
    bool group; /* leads one */
};

struct keeper {
    int sock, chld;
    guard_fn fn;
    void *fn_ctx;
    char *started;     /* owned: the program that was started last */
    struct held *held; /* the workers that live */
    size_t count, size;
    struct buf out;      /* replies that the socket would not take yet */
    bool killing, ended; /* the agent asked for it; it is gone */
    bool filled;         /* there have been children since the last EMPTY */
    bool leftovers_told;
};

#define KILL_AGAIN_MS 5
#define GIVE_UP_MS                                                                     \
    60000 /* Nothing but a process stuck in the kernel takes so long.                  \
           */

static int64_t wall_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

static void flush(struct keeper *k)
{
    while (buf_len(&k->out) > 0) {
        const ssize_t n = send(k->sock, buf_data(&k->out), buf_len(&k->out),
                               MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return; /* EAGAIN: poll tells when; anything else shows up in a read. */
        buf_consume(&k->out, (size_t)n);
    }
}

static void tell(struct keeper *k, const struct guard_reply *r)
{
    if (buf_append(&k->out, r, sizeof *r) < 0)
        k->ended = true; /* Deaf is as good as dead: end it all. */
    flush(k);
}

static void tell_note(struct keeper *k, enum guard_note note)
{
    tell(k, &(struct guard_reply){ .note = note });
}

/* --- killing -------------------------------------------------------------------- */

static bool is_worker(const struct keeper *k, pid_t pid)
{
    for (size_t i = 0; i < k->count; i++)
        if (k->held[i].pid == pid)
            return true;
    return false;
}

static void signal_list(const struct proc_list *l, int sig)
{
    for (size_t i = 0; i < l->count; i++)
        kill(l->pids[i], sig);
}

/* One that is only just being started leads no group yet: then it gets it alone, and it
 * waits there until the program is loaded. */
static void signal_worker(const struct held *w, int sig)
{
    if (!w->group || (kill(-w->pid, sig) < 0 && errno == ESRCH))
        kill(w->pid, sig);
}

static void kill_below(void)
{
    struct proc_list l = { 0 };
    proc_descendants(getpid(), &l); /* What it found before a failure counts too. */
    signal_list(&l, SIGKILL);
    proc_list_fini(&l);
}

static void signal_leftovers(struct keeper *k, int sig)
{
    struct proc_list top = { 0 };

    proc_children(getpid(), &top);
    for (size_t i = 0; i < top.count; i++) {
        if (is_worker(k, top.pids[i]))
            continue;
        struct proc_list below = { 0 };
        proc_descendants(top.pids[i], &below);
        kill(top.pids[i], sig);
        signal_list(&below, sig);
        proc_list_fini(&below);
    }
    proc_list_fini(&top);
}

bool guard_kill_strays(void)
{
    struct proc_list top = { 0 }, all = { 0 };
    const pid_t ours = getsid(0);
    bool found = false;

    proc_children(getpid(), &top);
    for (size_t i = 0; i < top.count; i++) {
        if (getsid(top.pids[i]) == ours || waitpid(top.pids[i], NULL, WNOHANG) > 0)
            continue; /* the caller's own; already dead */
        found = true;
        proc_descendants(top.pids[i], &all);
        kill(top.pids[i], SIGKILL);
    }
    signal_list(&all, SIGKILL);
    proc_list_fini(&all);
    proc_list_fini(&top);
    return found;
}

/* --- reaping -------------------------------------------------------------------- */

static void on_reaped(struct keeper *k, pid_t pid, int status, const struct rusage *ru)
{
    for (size_t i = 0; i < k->count; i++) {
        if (k->held[i].pid != pid)
            continue;
        const struct guard_reply r = { .note = GUARD_EXITED,
                                       .id = k->held[i].id,
                                       .value = status,
                                       .wall_us = wall_us(),
                                       .peak_kb = (uint64_t)ru->ru_maxrss };
        k->held[i] = k->held[--k->count];
        tell(k, &r);
        return;
    }
}

static void reap(struct keeper *k)
{
    struct rusage ru;
    int status;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG, &ru)) > 0)
        on_reaped(k, pid, status, &ru);
    if (k->count > 0 || !k->filled)
        return;
    if (pid < 0) {
        k->filled = k->killing = k->leftovers_told = false;
        tell_note(k, GUARD_EMPTY);
    } else if (!k->leftovers_told) {
        k->leftovers_told = true;
        tell_note(k, GUARD_HAS_LEFTOVERS);
    }
}

/* --- starting ------------------------------------------------------------------- */

struct parcel {
    struct guard_req req;
    int fd[4];      /* in, out, err, result; -1 if none came */
    char *bytes;    /* owned */
    char **strings; /* owned: argv, NULL, envp, NULL */
    const char *cwd;
};

static void parcel_fini(struct parcel *p)
{
    for (int i = 0; i < 4; i++)
        if (p->fd[i] >= 0)
            close(p->fd[i]);
    mem_free(p->bytes);
    mem_free(p->strings);
}

static bool read_all(int fd, void *to, size_t n)
{
    char *p = to;
    while (n > 0) {
        const ssize_t got = recv(fd, p, n, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

/* The header and the descriptors that ride on it. */
static bool read_header(int sock, struct parcel *p)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 4)];
        struct cmsghdr align;
    } control;
    struct iovec iov = { &p->req, sizeof p->req };
    struct msghdr m = { .msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes };
    const ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);

    if (n <= 0)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        const unsigned bits[] = { GUARD_IN, GUARD_OUT, GUARD_ERR, GUARD_RESULT };
        const unsigned char *data = CMSG_DATA(c);
        for (size_t i = 0; i < ARRAY_LEN(bits); i++) {
            if (!(p->req.flags & bits[i]))
                continue;
            memcpy(&p->fd[i], data, sizeof(int));
            data += sizeof(int);
        }
    }
    return read_all(sock, (char *)&p->req + n, sizeof p->req - (size_t)n);
}

static bool read_body(int sock, struct parcel *p)
{
    const size_t count = (size_t)p->req.argc + p->req.envc + 2;

    p->bytes = mem_alloc((size_t)p->req.len + 1);
    p->strings = mem_calloc(count, sizeof *p->strings);
    if (!p->bytes || !p->strings || !read_all(sock, p->bytes, p->req.len))
        return false;
    p->bytes[p->req.len] = '\0';
    char *at = p->bytes + p->req.cpus_size;
    for (size_t i = 0; i < count; i++) {
        if (i == p->req.argc || i == count - 1)
            continue;
        p->strings[i] = at;
        at += strlen(at) + 1;
    }
    p->cwd = p->req.flags & GUARD_CWD ? at : NULL;
    return true;
}

static int fork_fn(struct keeper *k, const struct parcel *p,
                   const struct proc_spec *spec, pid_t *pid)
{
    const pid_t parent = getpid();
    const pid_t child = fork();

    if (child < 0)
        return errno;
    if (child > 0) {
        *pid = child;
        return 0;
    }
    close(k->sock);
    close(k->chld);
    clearenv();
    for (char **e = p->strings + p->req.argc + 1; *e; e++)
        putenv(*e);
    if (proc_become(spec, parent) != 0)
        _exit(127);
    exit(k->fn(k->fn_ctx, p->fd[3]));
}

static int start(struct keeper *k, const struct parcel *p, pid_t *pid)
{
    const struct proc_spec spec = {
        .argv = p->strings,
        .envp = p->strings + p->req.argc + 1,
        .cwd = p->cwd,
        .fd = { p->fd[0] >= 0 ? p->fd[0] : 0, p->fd[1] >= 0 ? p->fd[1] : 1,
                p->fd[2] >= 0 ? p->fd[2] : 2 },
        .session = p->req.flags & GUARD_SESSION,
        .cpus = p->req.cpus_size ? p->bytes : NULL,
        .cpus_size = p->req.cpus_size,
    };
    if (k->count == k->size) {
        const size_t size = k->size ? k->size * 2 : 16;
        struct held *held = mem_realloc_array(k->held, size, sizeof *held);
        if (!held)
            return ENOMEM;
        k->held = held;
        k->size = size;
    }
    const bool known =
        k->started && spec.argv[0] && strcmp(k->started, spec.argv[0]) == 0;
    int rc;
    if (p->req.flags & GUARD_FN)
        rc = fork_fn(k, p, &spec, pid);
    else
        rc = known ? proc_spawn_again(&spec, pid) : proc_spawn(&spec, pid);
    if (rc != 0)
        return rc;
    if (!known && spec.argv[0]) {
        mem_free(k->started);
        k->started = mem_strdup(spec.argv[0]);
    }
    k->held[k->count++] = (struct held){ *pid, p->req.id, spec.session };
    k->filled = true;
    k->leftovers_told = false;
    return 0;
}

static void on_spawn(struct keeper *k, struct parcel *p)
{
    pid_t pid = 0;

    if (!read_body(k->sock, p)) {
        k->ended = true;
        return;
    }
    const int rc = start(k, p, &pid);
    tell(k, &(struct guard_reply){ .note = rc ? GUARD_REFUSED : GUARD_STARTED,
                                   .id = p->req.id,
                                   .value = rc ? rc : pid });
}

/* --- the loop ------------------------------------------------------------------- */

static void on_request(struct keeper *k)
{
    struct parcel p = { .fd = { -1, -1, -1, -1 } };

    if (!read_header(k->sock, &p)) {
        k->ended = true;
        return;
    }
    switch ((enum guard_op)p.req.op) {
    case GUARD_SPAWN:
        on_spawn(k, &p);
        break;
    case GUARD_SIGNAL:
        for (size_t i = 0; i < k->count; i++)
            if (k->held[i].id == p.req.id)
                signal_worker(&k->held[i], p.req.sig);
        break;
    case GUARD_LEFTOVERS:
        signal_leftovers(k, p.req.sig);
        break;
    case GUARD_KILL_ALL:
        k->killing = k->filled;
        if (!k->filled)
            tell_note(k, GUARD_EMPTY);
        break;
    }
    parcel_fini(&p);
}

static void end(void) __attribute__((noreturn));
static void end(void)
{
    const int tries = GIVE_UP_MS / KILL_AGAIN_MS;

    for (int i = 0; i < tries; i++) {
        kill_below();
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            break;
        nanosleep(&(struct timespec){ 0, i < 20 ? 500000L : KILL_AGAIN_MS * 1000000L },
                  NULL);
    }
    _exit(0);
}

static void prepare(struct keeper *k)
{
    sigset_t all, chld;
    struct sigaction old;

    setsid(); /* Whoever kills the agent's whole process group does not get us. */
    prctl(PR_SET_NAME, "muster-guard");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int sig = 1; sig < NSIG; sig++) /* Handlers of ours must not run in a vfork. */
        if (sigaction(sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            signal(sig, SIG_DFL);
    signal(SIGCHLD, SIG_DFL); /* Ignored, it would eat the exit codes. */
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    k->chld = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Our command line is the agent's, byte for byte, until we change it: `pkill -9 -f`
 * would get both at once, and the daemons of workers would survive. */
static void rename_self(void)
{
    static const char name[] = "muster-guard";
    char now[4096];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    size_t size = 0;
    ssize_t n;

    while (fd >= 0 && (n = read(fd, now, sizeof now)) > 0)
        size += (size_t)n;
    if (fd >= 0)
        close(fd);
    if (size <= sizeof name)
        return;
    memset(program_invocation_name, 0, size);
    memcpy(program_invocation_name, name, sizeof name);
}

static void close_others(int keep)
{
    if (keep > 3)
        close_range(3, (unsigned)keep - 1, 0);
    close_range((unsigned)keep + 1, ~0U, 0);
}

void guard_main(int sock, pid_t agent, guard_fn fn, void *fn_ctx)
{
    struct keeper k = { .sock = sock, .fn = fn, .fn_ctx = fn_ctx };

    buf_init(&k.out, 16u << 20);
    /* A function finds the descriptors it knew, as after any fork; and libuv's handler
     * for forks would close strange ones if its own were gone. */
    if (!fn) {
        close_others(sock);
        rename_self();
    }
    prepare(&k);
    if (getppid() != agent)
        k.ended = true;
    while (!k.ended) {
        struct pollfd p[2] = {
            { .fd = sock, .events = (short)(POLLIN | (buf_len(&k.out) ? POLLOUT : 0)) },
            { .fd = k.chld, .events = POLLIN },
        };
        if (k.killing)
            kill_below();
        if (poll(p, 2, k.killing ? KILL_AGAIN_MS : -1) < 0 && errno != EINTR)
            break;
        if (p[1].revents) {
            struct signalfd_siginfo si;
            while (read(k.chld, &si, sizeof si) > 0)
                ;
        }
        if (p[1].revents || k.killing)
            reap(&k);
        if (p[0].revents & POLLOUT)
            flush(&k);
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR))
            on_request(&k);
    }
    end();
}
