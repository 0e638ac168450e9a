/* guard_child_services.c - services, and workers that a service forks for the guard.
 *
 * Such a worker is a child of the guard like any other (clone with CLONE_PARENT). It
 * waits for a byte on its "go" pipe, which the guard writes once it has entered the
 * pid: so nothing ever runs that the guard does not know, whoever is killed in between.
 * Whatever the service cannot or will not fork is started by exec instead, from the
 * request that was kept for that. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/file.h"
#include "process/guard_child.h"

/* Each request holds five descriptors in flight, of which a user may have as many as
 * files. */
#define ASKED_MAX 32

struct guarded_service *guard_child_service(struct guard_child *k, uint32_t id)
{
    for (size_t i = 0; i < k->service_count; i++)
        if (k->services[i].id == id)
            return &k->services[i];
    return NULL;
}

bool guard_child_is_service(const struct guard_child *k, pid_t pid)
{
    for (size_t i = 0; i < k->service_count; i++)
        if (k->services[i].pid == pid)
            return true;
    return false;
}

/* --- asking ----------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* 0, or the errno for which the service was not asked. */
static int ask_for(const struct guarded_service *s, struct guarded_worker *w,
                   uint32_t ticket)
{
    const struct spawn_request *p = w->request;
    struct guard_fork ask = { .ticket = ticket,
                              .flags = p->req.flags,
                              .argc = p->req.argc,
                              .envc = p->req.envc,
                              .cpus_size = p->req.cpus_size,
                              .len = p->req.len };
    union guard_control control;
    int body = memfd_create("worker", MFD_CLOEXEC), go[2] = { -1, -1 };
    int rc = 0;

    if (body < 0 || pipe2(go, O_CLOEXEC) < 0 ||
        !file_write_all(body, span_of(p->bytes, p->req.len))) {
        rc = errno;
    } else {
        const int fds[5] = { body, go[0], p->fd[0] >= 0 ? p->fd[0] : 0,
                             p->fd[1] >= 0 ? p->fd[1] : 1,
                             p->fd[2] >= 0 ? p->fd[2] : 2 };
        struct iovec iov = { &ask, sizeof ask };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

        guard_attach(&m, &control, fds, ARRAY_LEN(fds));
        if (sendmsg(s->control, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            rc = errno;
    }
    close_fd(&body);
    close_fd(&go[0]);
    if (rc == 0)
        w->go = go[1];
    else
        close_fd(&go[1]);
    return rc;
}

/* The service will not do it: by exec. An error is the answer to the agent then. */
static void start_ordinary(struct guard_child *k, size_t at)
{
    struct guarded_worker *w = &k->held[at];
    struct spawn_request *p = w->request;
    pid_t pid = 0;

    close_fd(&w->go);
    w->request = NULL;
    const int rc = guard_child_spawn(k, p, &pid);
    guard_child_reply(k,
                      &(struct guard_reply){ .note = rc ? GUARD_REFUSED : GUARD_STARTED,
                                             .id = w->id,
                                             .value = rc ? rc : pid });
    w->pid = pid;
    if (rc != 0)
        *w = k->held[--k->count];
    spawn_request_fini(p);
    mem_free(p);
}

void guard_child_ask(struct guard_child *k, struct guarded_service *s)
{
    s->full = false;
    for (size_t i = 0; i < k->count && !s->full && s->asked < ASKED_MAX;) {
        struct guarded_worker *w = &k->held[i];
        const size_t before = k->count;

        if (w->pid == 0 && w->ticket == 0 && w->request->req.service == s->id) {
            const uint32_t ticket = ++k->tickets;
            const int rc = ask_for(s, w, ticket);

            w->ticket = rc == 0 ? ticket : 0;
            s->asked += rc == 0;
            s->full = rc == EAGAIN;
            if (rc != 0 && rc != EAGAIN)
                start_ordinary(k, i);
        }
        i += k->count == before; /* otherwise another worker has this place now */
    }
}

/* --- answers ---------------------------------------------------------------------- */

static void on_forked(struct guard_child *k, size_t at, pid_t pid)
{
    struct guarded_worker *w = &k->held[at];
    siginfo_t info = { 0 };

    /* Not a child of ours: it was killed and reaped before we heard of it. */
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
        guard_child_cancel(k, at, SIGKILL);
        return;
    }
    w->pid = pid;
    guard_child_reply(
        k, &(struct guard_reply){
               .note = GUARD_STARTED, .id = w->id, .value = pid, .forked = 1 });
    (void)!write(w->go, "", 1); /* If it is dead already, it will be reaped. */
    close_fd(&w->go);
    spawn_request_fini(w->request);
    mem_free(w->request);
    w->request = NULL;
}

static void guard_child_services_on_answer(struct guard_child *k,
                                           struct guarded_service *s,
                                           const struct guard_forked *a)
{
    s->asked -= s->asked > 0;
    for (size_t i = 0; i < k->count; i++) {
        const struct guarded_worker *w = &k->held[i];
        if (w->pid != 0 || w->ticket == 0 || w->ticket != a->ticket ||
            w->request->req.service != s->id)
            continue;
        if (a->pid > 0)
            on_forked(k, i, a->pid);
        else
            start_ordinary(k, i);
        return;
    }
    /* It was cancelled meanwhile. Its pipe is closed, so it exits. */
}

/* False: it has closed its end, or talks nonsense. */
static bool take_answers(struct guard_child *k, struct guarded_service *s)
{
    struct guard_forked a;
    ssize_t n;

    while ((n = recv(s->control, &a, sizeof a, MSG_DONTWAIT)) == (ssize_t)sizeof a)
        guard_child_services_on_answer(k, s, &a);
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

void guard_child_hear(struct guard_child *k, struct guarded_service *s)
{
    if (!take_answers(k, s)) {
        kill(s->pid, SIGKILL); /* It cannot fork any more. */
        close_fd(&s->control);
    } else if (!s->full) {
        guard_child_ask(k, s);
    }
}

/* --- the end ---------------------------------------------------------------------- */

void guard_child_cancel(struct guard_child *k, size_t at, int sig)
{
    struct guarded_worker *w = &k->held[at];
    const uint32_t id = w->id;

    close_fd(&w->go);
    spawn_request_fini(w->request);
    mem_free(w->request);
    *w = k->held[--k->count];
    k->cancelled = true;
    guard_child_reply(k, &(struct guard_reply){ .note = GUARD_STARTED, .id = id });
    guard_child_reply(
        k, &(struct guard_reply){ .note = GUARD_EXITED, .id = id, .value = sig });
}

void guard_child_service_gone(struct guard_child *k, size_t at, int status)
{
    struct guarded_service s = k->services[at];

    if (s.control >= 0)
        (void)take_answers(k, &s); /* what it had done before it died */
    k->services[at] = k->services[--k->service_count];
    close_fd(&s.control);
    guard_child_reply(k, &(struct guard_reply){ .note = GUARD_SERVICE_EXITED,
                                                .id = s.id,
                                                .value = status });
    for (size_t i = 0; i < k->count;) {
        const size_t before = k->count;
        const struct guarded_worker *w = &k->held[i];

        if (w->pid == 0 && w->request->req.service == s.id)
            start_ordinary(k, i);
        i += k->count == before;
    }
}
