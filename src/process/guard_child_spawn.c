/* guard_child_spawn.c - the guard as parent: reads what is to be started, and starts
 * it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "process/guard_child.h"

void spawn_request_fini(struct spawn_request *p)
{
    for (int i = 0; i < GUARD_FDS; i++)
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
bool spawn_request_read_header(int sock, struct spawn_request *p)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * GUARD_FDS)];
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
        const unsigned bits[] = { GUARD_IN, GUARD_OUT, GUARD_ERR, GUARD_RESULT,
                                  GUARD_EXTRA };
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

bool spawn_request_read_body(int sock, struct spawn_request *p)
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
    return true;
}

static int fork_fn(struct guard_child *k, const struct spawn_request *p,
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
    signal(SIGCHLD, SIG_DFL);
    clearenv();
    for (char **e = p->strings + p->req.argc + 1; *e; e++)
        putenv(*e);
    if (proc_become(spec, parent) != 0)
        _exit(127);
    const int code = k->fn(k->fn_ctx, p->fd[3]);
    fflush(NULL);
    _exit(code); /* Do not run the caller's exit handlers. */
}

static struct proc_spec spec_of(const struct guard_child *k,
                                const struct spawn_request *p)
{
    return (struct proc_spec){
        .argv = p->strings,
        .envp = p->strings + p->req.argc + 1,
        .fd = { p->fd[0] >= 0 ? p->fd[0] : 0, p->fd[1] >= 0 ? p->fd[1] : 1,
                p->fd[2] >= 0 ? p->fd[2] : 2 },
        .extra = { p->req.op == GUARD_SPAWN ? p->fd[3] : -1, -1, -1 },
        .session = p->req.flags & GUARD_SESSION,
        .tracer = k->agent,
        .cpus = p->req.cpus_size ? p->bytes : NULL,
        .cpus_size = p->req.cpus_size,
    };
}

int guard_child_spawn(struct guard_child *k, const struct spawn_request *p, pid_t *pid)
{
    const struct proc_spec spec = spec_of(k, p);
    const bool known =
        k->started && spec.argv[0] && strcmp(k->started, spec.argv[0]) == 0;
    int rc;

    if (p->req.flags & GUARD_FN)
        rc = fork_fn(k, p, &spec, pid);
    else
        rc = known ? proc_spawn_again(&spec, pid) : proc_spawn(&spec, pid);
    if (rc == 0 && !known && spec.argv[0]) {
        mem_free(k->started);
        k->started = mem_strdup(spec.argv[0]);
    }
    return rc;
}

static bool reserve_held(struct guard_child *k)
{
    struct guarded_worker *held =
        mem_grow_to(k->held, &k->size, k->count, sizeof *held);

    if (held)
        k->held = held;
    return held != NULL;
}

/* Keeps the request until the service has answered. */
static bool start_by_service(struct guard_child *k, struct spawn_request *p)
{
    struct guarded_service *s = guard_child_service(k, p->req.service);
    struct spawn_request *kept;

    if (!s || s->control < 0 || !(kept = mem_alloc(sizeof *kept)))
        return false;
    *kept = *p;
    *p = (struct spawn_request)SPAWN_REQUEST_INIT;
    k->held[k->count++] = (struct guarded_worker){
        .id = kept->req.id,
        .group = kept->req.flags & GUARD_SESSION,
        .go = -1,
        .request = kept,
    };
    if (!s->full)
        guard_child_ask(k, s);
    return true;
}

void guard_child_start(struct guard_child *k, struct spawn_request *p)
{
    pid_t pid = 0;
    int rc = ENOMEM;

    if (k->killing)
        guard_child_give_up(k);
    if (reserve_held(k)) {
        k->filled = true;
        k->leftovers_notified = false;
        if (start_by_service(k, p))
            return;
        rc = guard_child_spawn(k, p, &pid);
    }
    if (rc == 0)
        k->held[k->count++] = (struct guarded_worker){
            .pid = pid,
            .id = p->req.id,
            .group = p->req.flags & GUARD_SESSION,
            .go = -1,
        };
    guard_child_reply(k,
                      &(struct guard_reply){ .note = rc ? GUARD_REFUSED : GUARD_STARTED,
                                             .id = p->req.id,
                                             .value = rc ? rc : pid });
}

void guard_child_start_service(struct guard_child *k, struct spawn_request *p)
{
    struct proc_spec spec = spec_of(k, p);
    int control[2] = { -1, -1 };
    pid_t pid = 0;
    int rc = k->service_count < GUARD_SERVICES ? 0 : EAGAIN;

    if (rc == 0 && p->req.flags & GUARD_FORKS &&
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
        rc = errno;
    spec.extra[0] = control[1];
    spec.extra[1] = p->fd[3];
    spec.extra[2] = p->fd[4];
    if (rc == 0)
        rc = proc_spawn(&spec, &pid);
    if (control[1] >= 0)
        close(control[1]);
    if (rc != 0 && control[0] >= 0)
        close(control[0]);
    if (rc == 0)
        k->services[k->service_count++] = (struct guarded_service){
            .pid = pid, .id = p->req.id, .control = control[0]
        };
    guard_child_reply(k, &(struct guard_reply){ .note = rc ? GUARD_SERVICE_REFUSED
                                                           : GUARD_SERVICE_STARTED,
                                                .id = p->req.id,
                                                .value = rc ? rc : pid });
}
