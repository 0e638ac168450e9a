/* guard.c - the agent's side of the guard: see guard.h. */
#include "process/guard.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "process/guard_wire.h"

struct guard_service {
    struct guard_service *next;
    struct guard *guard;
    uint32_t id;
    const struct guard_service_events *events; /* borrowed; NULL: forgotten */
    void *ctx;                                 /* borrowed */
};

struct guard {
    int sock;
    pid_t keeper; /* it leads the process group of keeper and guard */
    bool lost, stopping, adopts, tidies;
    int unforked; /* errno; 0: there has been a guard */
    uv_poll_t poll;
    bool watched;
    uint8_t in[16 * sizeof(struct guard_reply)]; /* the last perhaps not whole */
    size_t in_size;
    const struct guard_events *events; /* borrowed */
    void *ctx;                         /* borrowed */
    struct guard_service *services;    /* owned list */
    uint32_t service_ids;              /* given so far */
    void (*stopped)(void *ctx);
    void *stopped_ctx;
};

int guard_fork_error(struct muster_error *err, int errnum)
{
    struct rlimit limit = { 0 };

    (void)getrlimit(RLIMIT_NPROC, &limit);
    if (errnum != EAGAIN)
        return err_set(err, MUSTER_EIO, "the guard process cannot be forked: %s",
                       strerror(errnum));
    return err_set(err, MUSTER_EIO,
                   "the guard process cannot be forked: %s\n"
                   "This user may have %llu processes and threads (ulimit -u), and the "
                   "control group may have a limit of its own (pids.max): one of them "
                   "is used up.",
                   strerror(errnum), (unsigned long long)limit.rlim_cur);
}

int guard_start(guard_fn fn, void *fn_ctx, struct guard **out, struct muster_error *err)
{
    int pair[2];
    struct guard *g = mem_calloc(1, sizeof *g);

    if (!g)
        return err_nomem(err);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        mem_free(g);
        return err_set(err, MUSTER_EIO, "no socket for the guard process: %s",
                       strerror(errno));
    }
    if (fn)
        fflush(NULL); /* otherwise each worker would print it again */
    g->keeper = fork();
    if (g->keeper == 0) {
        close(pair[0]); /* otherwise it would never notice our end */
        guard_main(pair[1], fn, fn_ctx);
    }
    const int errnum = errno;
    close(pair[1]);
    if (g->keeper < 0) {
        close(pair[0]);
        mem_free(g);
        return guard_fork_error(err, errnum);
    }
    g->sock = pair[0];
    *out = g;
    return 0;
}

int guard_adopt(struct guard *g)
{
    g->adopts = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;
    return g->adopts ? 0 : errno;
}

pid_t guard_root(const struct guard *g)
{
    return g->keeper;
}

/* It goes at once if it holds nothing; a worker stuck in the kernel is not waited for:
 * then false. */
static bool guard_wait_for(pid_t pid)
{
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0) {
        poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 2000);
        close(fd);
    }
    return waitpid(pid, NULL, fd >= 0 ? WNOHANG : 0) != 0;
}

/* --- reports of the guard --------------------------------------------------------- */

static struct guard_service **find_service(struct guard *g, uint32_t id)
{
    struct guard_service **at = &g->services;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void on_service_exited(struct guard *g, uint32_t id, int status, int errnum)
{
    struct guard_service **at = find_service(g, id), *s = *at;

    if (!s)
        return;
    *at = s->next;
    if (s->events)
        s->events->on_exited(s->ctx, status, errnum);
    mem_free(s);
}

static void on_service_started(struct guard *g, uint32_t id, pid_t pid)
{
    const struct guard_service *s = *find_service(g, id);

    if (s && s->events && s->events->on_started)
        s->events->on_started(s->ctx, pid);
}

static void deliver(struct guard *g, const struct guard_reply *r)
{
    const struct guard_exit how = { r->value, r->wall_us, r->peak_kb };

    switch ((enum guard_note)r->note) {
    case GUARD_STARTED:
        g->events->on_started(g->ctx, r->id, r->value, r->forked);
        break;
    case GUARD_REFUSED:
        g->events->on_refused(g->ctx, r->id, r->value);
        break;
    case GUARD_EXITED:
        g->events->on_exited(g->ctx, r->id, &how);
        break;
    case GUARD_HAS_LEFTOVERS:
        g->events->on_leftovers(g->ctx);
        break;
    case GUARD_EMPTY:
        g->events->on_empty(g->ctx);
        break;
    case GUARD_UNFORKED:
        g->unforked = r->value;
        break;
    case GUARD_SERVICE_STARTED:
        on_service_started(g, r->id, r->value);
        break;
    case GUARD_SERVICE_REFUSED:
        on_service_exited(g, r->id, 0, r->value);
        break;
    case GUARD_SERVICE_EXITED:
        on_service_exited(g, r->id, r->value, 0);
        break;
    case GUARD_FENCED:
        if (g->events->on_fenced)
            g->events->on_fenced(g->ctx);
        break;
    }
}

#define ADOPTED_AGAIN_MS 5
#define ADOPTED_MS       2000 /* Only what is stuck in the kernel takes longer. */

/* Kills what guard and keeper have left to us, until nothing comes any more. A keeper
 * that lives has got it all, and is at it. */
static void end_adopted(void)
{
    for (int ms = 0; ms < ADOPTED_MS; ms += ADOPTED_AGAIN_MS) {
        struct proc_list below = { 0 };
        pid_t pid;

        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            return;
        (void)proc_descendants(getpid(), &below); /* as far as it could see */
        for (size_t i = 0; i < below.count; i++)
            (void)kill(below.pids[i], SIGKILL);
        proc_list_fini(&below);
        (void)poll(NULL, 0, ADOPTED_AGAIN_MS);
    }
}

/* The guard was killed. Workers have died with it, and the keeper kills the rest. */
static void on_loss(struct guard *g)
{
    g->lost = true;
    uv_poll_stop(&g->poll);
    if (guard_wait_for(g->keeper) && g->adopts)
        end_adopted();
    g->events->on_lost(g->ctx, g->unforked);
}

static void deliver_whole(struct guard *g)
{
    struct guard_reply r;
    size_t at = 0;

    for (; !g->stopping && g->in_size - at >= sizeof r; at += sizeof r) {
        memcpy(&r, g->in + at, sizeof r);
        deliver(g, &r);
    }
    g->in_size -= at;
    memmove(g->in, g->in + at, g->in_size);
}

static void guard_on_readable(uv_poll_t *poll, int status, int events)
{
    struct guard *g = poll->data;
    (void)status;
    (void)events;

    /* What is delivered may have the guard stopped, and freed by the loop: not before
     * this returns. */
    while (!g->stopping) {
        const ssize_t n =
            recv(g->sock, g->in + g->in_size, sizeof g->in - g->in_size, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            on_loss(g);
            return;
        }
        g->in_size += (size_t)n;
        deliver_whole(g);
    }
}

int guard_watch(struct guard *g, uv_loop_t *loop, const struct guard_events *events,
                void *ctx, struct muster_error *err)
{
    g->events = events;
    g->ctx = ctx;
    g->poll.data = g;
    int rc = uv_poll_init(loop, &g->poll, g->sock);
    if (rc == 0) {
        g->watched = true;
        rc = uv_poll_start(&g->poll, UV_READABLE, guard_on_readable);
    }
    if (rc != 0)
        return err_set(err, MUSTER_EIO, "watching the guard: %s", uv_strerror(rc));
    return 0;
}

/* --- requests to the guard
 * ------------------------------------------------------------------ */

/* Waits for room: the guard never blocks on us, so this is short. */
static int send_all(struct guard *g, struct msghdr *m)
{
    while (m->msg_iovlen > 0) {
        ssize_t sent = sendmsg(g->sock, m, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            poll(&(struct pollfd){ .fd = g->sock, .events = POLLOUT }, 1, -1);
            continue;
        }
        if (sent < 0)
            return errno;
        m->msg_control = NULL; /* The descriptors ride on the first byte only. */
        m->msg_controllen = 0;
        for (; m->msg_iovlen > 0 && (size_t)sent >= m->msg_iov->iov_len;
             m->msg_iov++, m->msg_iovlen--)
            sent -= (ssize_t)m->msg_iov->iov_len;
        if (m->msg_iovlen > 0) {
            m->msg_iov->iov_base = (char *)m->msg_iov->iov_base + sent;
            m->msg_iov->iov_len -= (size_t)sent;
        }
    }
    return 0;
}

static int pack(const struct proc_spec *spec, struct guard_req *req, struct buf *b)
{
    int rc = 0;

    if (spec->cpus) {
        req->cpus_size = (uint32_t)spec->cpus_size;
        rc = buf_append(b, spec->cpus, spec->cpus_size);
    }
    for (char *const *s = spec->argv; rc == 0 && s && *s; s++, req->argc++)
        rc = buf_append(b, *s, strlen(*s) + 1);
    for (char *const *s = spec->envp; rc == 0 && s && *s; s++, req->envc++)
        rc = buf_append(b, *s, strlen(*s) + 1);
    req->len = (uint32_t)buf_len(b);
    return rc;
}

static int send_spawn(struct guard *g, struct guard_req *req, const struct buf *body,
                      const int fd[GUARD_FDS])
{
    static const uint32_t bits[] = { GUARD_IN, GUARD_OUT, GUARD_ERR, GUARD_RESULT,
                                     GUARD_EXTRA };
    union guard_control control;
    int list[GUARD_FDS];
    size_t count = 0;

    for (size_t i = 0; i < ARRAY_LEN(bits); i++) {
        if (fd[i] < 0)
            continue;
        req->flags |= bits[i];
        list[count++] = fd[i];
    }
    struct iovec iov[2] = { { req, sizeof *req },
                            { (void *)(uintptr_t)buf_data(body), buf_len(body) } };
    struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };
    guard_attach(&m, &control, list, count);
    return send_all(g, &m);
}

static int guard_request(struct guard *g, struct guard_req *req,
                         const struct proc_spec *spec, const int extra[2],
                         struct muster_error *err)
{
    const int fd[GUARD_FDS] = { spec->fd[0], spec->fd[1], spec->fd[2], extra[0],
                                extra[1] };
    struct buf body;

    buf_init(&body, 1u << 30);
    if (spec->session)
        req->flags |= GUARD_SESSION;
    if (!spec->argv)
        req->flags |= GUARD_FN;
    int rc = pack(spec, req, &body);
    if (rc == 0) {
        const int errnum = send_spawn(g, req, &body, fd);
        if (errnum != 0)
            rc = err_set(err, MUSTER_EIO, "asking the guard for a process: %s",
                         strerror(errnum));
    } else if (rc == MUSTER_ENOMEM) {
        err_nomem(err);
    } else {
        err_set(err, rc, "a worker's arguments and environment are too large");
    }
    buf_fini(&body);
    return rc;
}

int guard_spawn(struct guard *g, const struct guard_service *from, uint32_t id,
                const struct proc_spec *spec, int result_fd, struct muster_error *err)
{
    struct guard_req req = { .op = GUARD_SPAWN,
                             .id = id,
                             .service = from ? from->id : 0 };

    return guard_request(g, &req, spec, (const int[]){ result_fd, -1 }, err);
}

int guard_service_start(struct guard *g, const struct guard_service_spec *spec,
                        const struct guard_service_events *events, void *ctx,
                        struct guard_service **out, struct muster_error *err)
{
    struct guard_service *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->guard = g;
    s->id = ++g->service_ids;
    s->events = events;
    s->ctx = ctx;
    struct guard_req req = { .op = GUARD_SERVICE,
                             .id = s->id,
                             .flags = spec->forks ? GUARD_FORKS : 0 };
    const int rc = guard_request(g, &req, &spec->proc, spec->fds, err);
    if (rc != 0) {
        mem_free(s);
        return rc;
    }
    s->next = g->services;
    g->services = s;
    *out = s;
    return 0;
}

void guard_service_forget(struct guard_service *s)
{
    if (s)
        s->events = NULL;
}

/* Somebody may have stopped the guard (SIGSTOP); it must still end when asked to. */
static void wake(const struct guard *g)
{
    (void)kill(-g->keeper, SIGCONT);
}

static void guard_ask(struct guard *g, enum guard_op op, uint32_t id, int sig)
{
    struct guard_req req = { .op = op, .id = id, .sig = sig };
    struct iovec iov = { &req, sizeof req };

    if (g->lost)
        return;
    if (op != GUARD_FENCE) /* which asks for nothing now */
        wake(g);
    send_all(g, &(struct msghdr){ .msg_iov = &iov, .msg_iovlen = 1 });
}

void guard_signal(struct guard *g, uint32_t id, int sig)
{
    guard_ask(g, GUARD_SIGNAL, id, sig);
}

void guard_pass_on(struct guard *g, uint32_t id, int sig)
{
    guard_ask(g, GUARD_PASS_ON, id, sig);
}

/* Not a word if it fails: an empty directory stays, then. */
void guard_tidy(struct guard *g, const char *dir)
{
    char *const argv[] = { (char *)(uintptr_t)dir, NULL }, *const envp[] = { NULL };
    const struct proc_spec spec = { .argv = argv, .envp = envp, .fd = { -1, -1, -1 } };

    g->tidies = true;
    if (!g->lost)
        (void)guard_request(g, &(struct guard_req){ .op = GUARD_TIDY }, &spec,
                            (const int[]){ -1, -1 }, NULL);
}

void guard_service_signal(struct guard_service *s, int sig)
{
    guard_ask(s->guard, GUARD_SIGNAL_SERVICE, s->id, sig);
}

void guard_signal_leftovers(struct guard *g, int sig)
{
    guard_ask(g, GUARD_LEFTOVERS, 0, sig);
}

void guard_fence(struct guard *g, uint64_t ms)
{
    guard_ask(g, GUARD_FENCE, (uint32_t)MIN_OF(ms, UINT32_MAX), 0);
}

void guard_kill_all(struct guard *g)
{
    guard_ask(g, GUARD_KILL_ALL, 0, SIGKILL);
}

/* --- the end ---------------------------------------------------------------------- */

static void guard_finish(struct guard *g)
{
    void (*cb)(void *) = g->stopped;
    void *ctx = g->stopped_ctx;

    for (struct guard_service *s = g->services, *next; s; s = next) {
        next = s->next;
        mem_free(s);
    }
    mem_free(g);
    if (cb)
        cb(ctx);
}

static void on_poll_closed(uv_handle_t *h)
{
    guard_finish(h->data);
}

void guard_dismiss(struct guard *g)
{
    if (!g || g->stopping)
        return;
    g->stopping = true;
    if (g->watched)
        uv_poll_stop(&g->poll);
    if (g->tidies) /* The agent does so itself. */
        guard_tidy(g, "");
    shutdown(g->sock, SHUT_RDWR);
    if (!g->lost)
        wake(g);
}

void guard_stop(struct guard *g, void (*cb)(void *ctx), void *ctx)
{
    if (!g) {
        if (cb)
            cb(ctx);
        return;
    }
    guard_dismiss(g);
    g->stopped = cb;
    g->stopped_ctx = ctx;
    if (!g->lost)
        (void)guard_wait_for(g->keeper);
    if (g->watched)
        uv_close((uv_handle_t *)&g->poll, on_poll_closed);
    close(g->sock);
    if (!g->watched)
        guard_finish(g);
}
