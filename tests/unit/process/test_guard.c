/* test_guard.c - real processes under a real guard: start, signal, reap, and nobody
 * left behind whoever is killed. */
#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process/guard_wire.h"

struct seen {
    uv_loop_t *loop;
    int started, forked, refused, exited, leftovers, empty, lost, fenced;
    int errnum, last_status;
    pid_t pid;
    int stop_after; /* exits */
};

static void on_started(void *ctx, uint32_t id, pid_t pid, bool forked)
{
    struct seen *s = ctx;
    (void)id;
    s->forked += forked;
    s->started++;
    s->pid = pid;
}

static void on_refused(void *ctx, uint32_t id, int errnum)
{
    struct seen *s = ctx;
    (void)id;
    s->refused++;
    s->errnum = errnum;
    uv_stop(s->loop);
}

static void on_exited(void *ctx, uint32_t id, const struct guard_exit *how)
{
    struct seen *s = ctx;
    (void)id;
    s->exited++;
    s->last_status = how->status;
}

static void on_leftovers(void *ctx)
{
    struct seen *s = ctx;
    s->leftovers++;
    uv_stop(s->loop);
}

static void on_empty(void *ctx)
{
    struct seen *s = ctx;
    s->empty++;
    uv_stop(s->loop);
}

static void on_lost(void *ctx, int errnum)
{
    struct seen *s = ctx;
    s->lost++;
    s->errnum = errnum;
    uv_stop(s->loop);
}

static void on_fenced(void *ctx)
{
    struct seen *s = ctx;
    assert_int_equal(s->exited, 0); /* It is known before why they end. */
    s->fenced++;
}

static const struct guard_events events = {
    .on_started = on_started,
    .on_refused = on_refused,
    .on_exited = on_exited,
    .on_leftovers = on_leftovers,
    .on_empty = on_empty,
    .on_lost = on_lost,
    .on_fenced = on_fenced,
};

struct rig {
    uv_loop_t loop;
    struct guard *guard;
    struct seen seen;
};

static int answer(void *ctx, int result_fd)
{
    const char *text = getenv("RANK");
    (void)ctx;
    return write(result_fd, text, strlen(text)) > 0 ? 5 : 1;
}

static void open_rig_for(struct rig *r, guard_fn fn)
{
    struct muster_error err;
    memset(r, 0, sizeof *r);
    assert_int_equal(guard_start(fn, NULL, &r->guard, &err), 0);
    assert_int_equal(uv_loop_init(&r->loop), 0);
    r->seen.loop = &r->loop;
    assert_int_equal(guard_watch(r->guard, &r->loop, &events, &r->seen, &err), 0);
}

static void open_rig(struct rig *r)
{
    open_rig_for(r, answer);
}

static void close_rig(struct rig *r)
{
    guard_stop(r->guard, NULL, NULL);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
}

static void spawn(struct rig *r, uint32_t id, const char *text)
{
    char *argv[] = { (char *)"sh", (char *)"-c", (char *)(uintptr_t)text, NULL };
    char *envp[] = { (char *)"PATH=/nowhere:/bin:/usr/bin", NULL };
    const struct proc_spec spec = {
        .argv = argv, .envp = envp, .fd = { -1, -1, -1 }, .session = true
    };
    struct muster_error err;
    assert_int_equal(guard_spawn(r->guard, NULL, id, &spec, -1, &err), 0);
}

static void exit_codes(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    spawn(&r, 0, "exit 7");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.empty, 1);
    assert_int_equal(r.seen.exited, 1);
    assert_int_equal(WEXITSTATUS(r.seen.last_status), 7);

    for (uint32_t i = 0; i < 300; i++) /* more replies than a socket holds */
        spawn(&r, i, "exit 0");
    while (r.seen.exited < 301)
        uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.started, 301);
    close_rig(&r);
}

static void refused(void **state)
{
    struct rig r;
    char *argv[] = { (char *)"./no-such-program", NULL }, *envp[] = { NULL };
    const struct proc_spec spec = { .argv = argv, .envp = envp, .fd = { -1, -1, -1 } };
    (void)state;
    open_rig(&r);
    assert_int_equal(guard_spawn(r.guard, NULL, 1, &spec, -1, NULL), 0);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.refused, 1);
    assert_int_equal(r.seen.errnum, ENOENT);
    argv[0] = (char *)"/etc/passwd";
    assert_int_equal(guard_spawn(r.guard, NULL, 1, &spec, -1, NULL), 0);
    while (r.seen.errnum == ENOENT) /* What follows the first one may come meanwhile. */
        uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.errnum, EACCES);
    close_rig(&r);
}

/* Its own session, no descriptor but three, all signals as they should be. */
static void attributes(void **state)
{
    struct rig r;
    (void)state;
    signal(SIGPIPE, SIG_IGN); /* as a careless parent leaves it */
    open_rig(&r);
    spawn(&r, 0,
          "set -- $(cat /proc/$$/stat); [ $1 = $5 ] && [ $1 = $6 ] || exit 1;"
          "for fd in 3 4 5 6 7 8; do [ -e /proc/$$/fd/$fd ] && exit 2; done;"
          /* Of what is ignored, SIGPIPE and SIGXFSZ are not inherited; the rest is. */
          "ign=$(sed -n 's/^SigIgn:.//p' /proc/self/status); ign=${ign#????????};"
          "[ $((0x$ign & 0x1001000)) = 0 ] || exit 3;"
          "grep -q 'SigBlk:\t0*$' /proc/self/status || exit 4; exit 9");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(WEXITSTATUS(r.seen.last_status), 9);
    close_rig(&r);
}

static void signals_and_leftovers(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    /* A daemon with a session of its own, which will not hear of SIGTERM. */
    spawn(&r, 4,
          "trap 'exit 3' TERM;"
          "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &); "
          "sleep 0.1; kill -TERM $$; sleep 5");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.exited, 1);
    assert_int_equal(r.seen.leftovers, 1);
    guard_signal_leftovers(r.guard, SIGTERM);
    guard_kill_all(r.guard);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.empty, 1);
    guard_kill_all(r.guard); /* nothing there: said at once */
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.empty, 2);

    spawn(&r, 5, "exec sleep 100");
    while (r.seen.started < 2)
        uv_run(&r.loop, UV_RUN_ONCE);
    guard_signal(r.guard, 5, SIGINT);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(WTERMSIG(r.seen.last_status), SIGINT);
    close_rig(&r);
}

static void wait_for_handler(pid_t pid, int sig)
{
    while (!proc_catches(pid, sig))
        nanosleep(&(struct timespec){ 0, 1000000L }, NULL);
}

/* What is passed on reaches the worker's own process, if that has a handler for it, and
 * nobody in its group, which the default action would end. */
static void passed_on(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    spawn(&r, 0, "exec sleep 100");
    while (r.seen.started < 1)
        uv_run(&r.loop, UV_RUN_ONCE);
    guard_pass_on(r.guard, 0, SIGUSR1);
    guard_pass_on(r.guard, 7, SIGUSR1); /* there is none */
    guard_signal(r.guard, 0, SIGTERM);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(WTERMSIG(r.seen.last_status), SIGTERM);

    spawn(&r, 0,
          "sleep 100 & trap 'kill -0 $! && exit 9; exit 1' USR1;"
          "while :; do wait; done");
    while (r.seen.started < 2)
        uv_run(&r.loop, UV_RUN_ONCE);
    wait_for_handler(r.seen.pid, SIGUSR1);
    guard_pass_on(r.guard, 0, SIGUSR2);
    guard_pass_on(r.guard, 0, SIGUSR1);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(WEXITSTATUS(r.seen.last_status), 9);
    close_rig(&r);
}

/* One that SIGKILL does not end (here: its debugger keeps the corpse) is given up by
 * whoever starts the next: that one is neither killed nor taken for the old one. */
static void one_that_will_not_die(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    spawn(&r, 0, "exec sleep 100");
    while (r.seen.started < 1)
        uv_run(&r.loop, UV_RUN_ONCE);
    const pid_t stuck = r.seen.pid;
    assert_int_equal(ptrace(PTRACE_SEIZE, stuck, NULL, NULL), 0);
    guard_kill_all(r.guard);
    siginfo_t dead; /* which its parent cannot see until we have looked */
    assert_int_equal(waitid(P_PID, (id_t)stuck, &dead, WEXITED | WNOWAIT | __WALL), 0);

    spawn(&r, 0, "sleep 0.2; exit 7");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.started, 2);
    assert_int_equal(r.seen.exited, 1);
    assert_int_equal(WEXITSTATUS(r.seen.last_status), 7);
    assert_int_equal(r.seen.empty, 1);
    assert_int_equal(r.seen.leftovers, 0);

    assert_int_equal(waitpid(stuck, NULL, __WALL), stuck);
    spawn(&r, 0, "exit 8");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(WEXITSTATUS(r.seen.last_status), 8);
    assert_int_equal(r.seen.exited, 2);
    assert_int_equal(r.seen.empty, 2);
    close_rig(&r);
}

static void functions(void **state)
{
    struct rig r;
    int result[2];
    char text[8] = "";
    char *envp[] = { (char *)"RANK=3", NULL };
    const struct proc_spec spec = { .envp = envp, .fd = { -1, -1, -1 } };
    (void)state;
    open_rig(&r);
    assert_int_equal(pipe2(result, O_CLOEXEC), 0);
    assert_int_equal(guard_spawn(r.guard, NULL, 1, &spec, result[1], NULL), 0);
    close(result[1]);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(WEXITSTATUS(r.seen.last_status), 5);
    assert_int_equal(read(result[0], text, sizeof text), 1);
    assert_string_equal(text, "3");
    close(result[0]);
    close_rig(&r);
}

/* --- services --------------------------------------------------------------------- */

struct service_seen {
    uv_loop_t *loop;
    pid_t pid;
    int exits, status, errnum;
};

static void on_service_started(void *ctx, pid_t pid)
{
    struct service_seen *s = ctx;
    s->pid = pid;
    uv_stop(s->loop);
}

static void on_service_exited(void *ctx, int status, int errnum)
{
    struct service_seen *s = ctx;
    s->exits++;
    s->status = status;
    s->errnum = errnum;
    uv_stop(s->loop);
}

static const struct guard_service_events service_events = {
    .on_started = on_service_started,
    .on_exited = on_service_exited,
};

/* "forks": this very program, as a service that forks workers (serve() below). */
static struct guard_service *start_service(struct rig *r, const char *what, int out,
                                           struct service_seen *seen)
{
    const bool forks = strncmp(what, "forks", 5) == 0;
    char *sh[] = { (char *)"sh", (char *)"-c", (char *)(uintptr_t)what, NULL };
    char *self[] = { (char *)"/proc/self/exe", (char *)(uintptr_t)what, NULL };
    char *envp[] = { (char *)"PATH=/bin:/usr/bin", NULL };
    const struct guard_service_spec spec = {
        .proc = { .argv = forks ? self : sh,
                  .envp = envp,
                  .fd = { -1, out, -1 },
                  .session = true },
        .fds = { -1, -1 },
        .forks = forks,
    };
    struct guard_service *s = NULL;

    *seen = (struct service_seen){ .loop = &r->loop };
    assert_int_equal(
        guard_service_start(r->guard, &spec, &service_events, seen, &s, NULL), 0);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    return s;
}

static void services_outlive_attempts(void **state)
{
    struct service_seen seen;
    struct rig r;
    (void)state;
    open_rig(&r);
    struct guard_service *s =
        start_service(&r, "sleep 100 & trap 'kill $!; exit 5' TERM; wait", -1, &seen);
    assert_true(seen.pid > 0);

    spawn(&r, 0, "exit 7");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.exited, 1);
    assert_int_equal(r.seen.empty, 1);
    spawn(&r, 0, "(setsid sleep 100 &); exit 0");
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.leftovers, 1);
    guard_signal_leftovers(r.guard, SIGTERM);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.empty, 2);
    guard_kill_all(r.guard);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.empty, 3);
    assert_int_equal(seen.exits, 0);
    assert_int_equal(kill(seen.pid, 0), 0);

    guard_service_signal(s, SIGTERM);
    while (seen.exits == 0)
        uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(seen.exits, 1);
    assert_int_equal(WEXITSTATUS(seen.status), 5);
    assert_int_equal(r.seen.empty, 3);
    close_rig(&r);
}

static void a_service_that_does_not_exist(void **state)
{
    char *argv[] = { (char *)"/no/such/program", NULL }, *envp[] = { NULL };
    const struct guard_service_spec spec = {
        .proc = { .argv = argv, .envp = envp, .fd = { -1, -1, -1 } }, .fds = { -1, -1 }
    };
    struct guard_service *s;
    struct service_seen seen;
    struct rig r;
    (void)state;
    open_rig(&r);
    seen = (struct service_seen){ .loop = &r.loop };
    assert_int_equal(
        guard_service_start(r.guard, &spec, &service_events, &seen, &s, NULL), 0);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(seen.exits, 1);
    assert_int_equal(seen.errnum, ENOENT);
    close_rig(&r);
}

/* The service: forks what it is asked for, as children of the guard. Told "forks-not",
 * it refuses; "forks-dies": it ends when it is asked. */
static int serve(const char *how)
{
    const pid_t guard = getppid();
    struct guard_fork ask;
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 5)];
        struct cmsghdr align;
    } control;

    for (;;) {
        struct iovec iov = { &ask, sizeof ask };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes };
        int fds[5];
        char go;

        if (recvmsg(3, &m, 0) != sizeof ask)
            return 0;
        memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fds);
        if (strcmp(how, "forks-dies") == 0)
            return 1;
        struct guard_forked a = { ask.ticket, -1 };
        if (strcmp(how, "forks-not") != 0)
            a.pid = (int32_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL,
                                     NULL, NULL);
        if (a.pid == 0) {
            if (read(fds[1], &go, 1) != 1)
                _exit(99);
            _exit(getppid() == guard ? 42 : 43);
        }
        if (send(3, &a, sizeof a, 0) != sizeof a)
            return 2;
        for (int i = 0; i < 5; i++)
            close(fds[i]);
    }
}

static void spawn_from(struct rig *r, const struct guard_service *s, uint32_t id)
{
    char *argv[] = { (char *)"sh", (char *)"-c", (char *)"exit 7", NULL };
    char *envp[] = { (char *)"PATH=/bin:/usr/bin", NULL };
    const struct proc_spec spec = {
        .argv = argv, .envp = envp, .fd = { -1, -1, -1 }, .session = true
    };
    assert_int_equal(guard_spawn(r->guard, s, id, &spec, -1, NULL), 0);
}

/* Not until it is empty: the first may be gone before the next has begun. */
static void run_until_exited(struct rig *r, int count)
{
    while (r->seen.exited < count && !r->seen.lost)
        uv_run(&r->loop, UV_RUN_ONCE);
}

static void services_fork_workers(void **state)
{
    const struct {
        const char *how;
        int code, forked;
    } rows[] = { { "forks", 42, 20 }, { "forks-not", 7, 0 }, { "forks-dies", 7, 0 } };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct service_seen seen;
        struct rig r;
        open_rig(&r);
        struct guard_service *s = start_service(&r, rows[i].how, -1, &seen);
        for (uint32_t id = 0; id < 20; id++)
            spawn_from(&r, s, id);
        run_until_exited(&r, 20);
        assert_int_equal(r.seen.exited, 20);
        assert_int_equal(r.seen.started, 20);
        assert_int_equal(r.seen.refused, 0);
        assert_int_equal(r.seen.forked, rows[i].forked);
        assert_int_equal(WEXITSTATUS(r.seen.last_status), rows[i].code);
        close_rig(&r);
    }
}

/* More than its socket holds, of a service that is stopped: none of it is lost, whether
 * it goes on, is killed, or the workers are stopped before they were forked. */
static void a_service_that_does_not_answer(void **state)
{
    const int count = 400;
    (void)state;

    for (int end = 0; end < 4; end++) {
        struct service_seen seen;
        struct rig r;
        open_rig(&r);
        struct guard_service *s = start_service(&r, "forks", -1, &seen);
        kill(seen.pid, SIGSTOP);
        for (uint32_t id = 0; id < (uint32_t)count; id++)
            spawn_from(&r, s, id);
        if (end == 0)
            kill(seen.pid, SIGCONT);
        if (end == 1)
            guard_service_signal(s, SIGKILL);
        for (uint32_t id = 0; end == 2 && id < (uint32_t)count; id++)
            guard_signal(r.guard, id, SIGTERM);
        if (end == 3)
            guard_kill_all(r.guard);
        run_until_exited(&r, count);
        assert_int_equal(r.seen.exited, count);
        assert_int_equal(r.seen.started, count);
        assert_int_equal(r.seen.forked, end == 0 ? count : 0);
        if (end < 2)
            assert_int_equal(WEXITSTATUS(r.seen.last_status), end == 0 ? 42 : 7);
        else
            assert_int_equal(WTERMSIG(r.seen.last_status),
                             end == 2 ? SIGTERM : SIGKILL);
        kill(seen.pid, SIGCONT);
        if (end == 2) { /* What it forks late ends by itself, and disturbs nobody. */
            spawn_from(&r, s, 1);
            run_until_exited(&r, count + 1);
            assert_int_equal(WEXITSTATUS(r.seen.last_status), 42);
        }
        close_rig(&r);
    }
}

/* Every process of the tree below holds the write end: end of file means all are gone.
 */
#define TREE                                                                           \
    "(setsid sh -c 'sleep 100 & trap \"\" TERM; echo up >&3; wait' 3>&1 >/dev/null "   \
    "&);"                                                                              \
    " sleep 100"

#define SOONER_MS 60000 /* than the sleeps are over */

static void gone_soon(int fd)
{
    char text[64];
    struct pollfd p = { .fd = fd, .events = POLLIN };
    for (;;) {
        assert_true(poll(&p, 1, SOONER_MS) > 0);
        if (read(fd, text, sizeof text) <= 0)
            return;
    }
}

static void spawn_tree(struct rig *r, int out)
{
    char *argv[] = { (char *)"/bin/sh", (char *)"-c", (char *)TREE, NULL };
    char *envp[] = { (char *)"PATH=/bin:/usr/bin", NULL };
    const struct proc_spec spec = {
        .argv = argv, .envp = envp, .fd = { -1, out, -1 }, .session = true
    };
    assert_int_equal(guard_spawn(r->guard, NULL, 0, &spec, -1, NULL), 0);
}

/* The guard itself: the only child of the keeper. */
static pid_t guard_process(const struct rig *r)
{
    struct proc_list below = { 0 };

    while (below.count == 0)
        assert_int_equal(proc_children(guard_root(r->guard), &below), 0);
    assert_int_equal(below.count, 1);
    const pid_t pid = below.pids[0];
    proc_list_fini(&below);
    return pid;
}

static pid_t keeper_process(const struct rig *r)
{
    return guard_root(r->guard);
}

/* Whichever of the two dies: the tree goes with it, and the agent is told. */
static void tree_goes_with(pid_t (*victim)(const struct rig *r))
{
    struct rig r;
    int fds[2];
    char text[4];

    open_rig(&r);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    spawn_tree(&r, fds[1]);
    close(fds[1]);
    assert_int_equal(read(fds[0], text, 3), 3);
    kill(victim(&r), SIGKILL);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.lost, 1);
    gone_soon(fds[0]);
    close(fds[0]);
    close_rig(&r);
}

static void guard_is_killed(void **state)
{
    (void)state;
    tree_goes_with(guard_process);
}

static void agent_is_killed(void **state)
{
    int fds[2];
    char text[4];
    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    const pid_t agent = fork();
    if (agent == 0) {
        struct rig r;
        open_rig(&r);
        spawn_tree(&r, fds[1]);
        close(fds[1]);
        uv_run(&r.loop, UV_RUN_DEFAULT);
        _exit(0);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], text, 3), 3);
    kill(agent, SIGKILL);
    gone_soon(fds[0]);
    waitpid(agent, NULL, 0);
    close(fds[0]);
}

static void keeper_is_killed(void **state)
{
    (void)state;
    tree_goes_with(keeper_process);
}

/* As `pkill -9 muster` does it: daemons of workers end all the same. */
static void agent_and_guard_are_killed(void **state)
{
    int fds[2], told[2];
    pid_t guard;
    char text[4];
    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    const pid_t agent = fork();
    if (agent == 0) {
        struct rig r;
        open_rig(&r);
        spawn_tree(&r, fds[1]);
        close(fds[1]);
        guard = guard_process(&r);
        (void)!write(told[1], &guard, sizeof guard);
        uv_run(&r.loop, UV_RUN_DEFAULT);
        _exit(0);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], text, 3), 3);
    assert_int_equal(read(told[0], &guard, sizeof guard), sizeof guard);
    kill(agent, SIGSTOP); /* It must not see the guard go, nor the guard it. */
    kill(guard, SIGKILL);
    kill(agent, SIGKILL);
    gone_soon(fds[0]);
    waitpid(agent, NULL, 0);
    close(fds[0]);
    close(told[0]);
    close(told[1]);
}

/* The agent may be a program with children of its own, and with several jobs. */
static void a_lost_guard_costs_nobody_else(void **state)
{
    struct rig a, b;
    int subreaper = -1;
    (void)state;
    const pid_t own = fork();
    if (own == 0) {
        setsid();
        pause();
        _exit(0);
    }
    open_rig(&a);
    open_rig(&b);
    spawn(&b, 0, "sleep 0.2");
    kill(guard_process(&a), SIGKILL);
    uv_run(&a.loop, UV_RUN_DEFAULT);
    assert_int_equal(a.seen.lost, 1);
    while (b.seen.exited < 1 && !b.seen.lost)
        uv_run(&b.loop, UV_RUN_ONCE);
    assert_int_equal(b.seen.lost, 0);
    assert_int_equal(kill(own, 0), 0);
    assert_int_equal(waitpid(own, NULL, WNOHANG), 0);
    close_rig(&a);
    close_rig(&b);
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
    assert_int_equal(subreaper, 0);
    kill(own, SIGKILL);
    waitpid(own, NULL, 0);
}

/* Somebody has stopped it; the job still ends when it is asked to. */
static void a_stopped_guard_obeys(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    spawn(&r, 0, "sleep 100");
    while (r.seen.started < 1)
        uv_run(&r.loop, UV_RUN_ONCE);
    kill(guard_process(&r), SIGSTOP);
    guard_signal(r.guard, 0, SIGTERM);
    while (r.seen.exited < 1)
        uv_run(&r.loop, UV_RUN_ONCE);
    kill(guard_process(&r), SIGSTOP);
    close_rig(&r);
}

static void a_service_goes_with_the_guard(void **state)
{
    struct service_seen seen;
    struct rig r;
    int fds[2];
    (void)state;
    open_rig(&r);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    start_service(&r, "(setsid sleep 100 &) ; sleep 100", fds[1], &seen);
    close(fds[1]);
    kill(guard_process(&r), SIGKILL);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(r.seen.lost, 1);
    gone_soon(fds[0]);
    close(fds[0]);
    close_rig(&r);
}

static void a_service_goes_with_the_agent(void **state)
{
    int fds[2];
    (void)state;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    const pid_t agent = fork();
    if (agent == 0) {
        struct service_seen seen;
        struct rig r;
        open_rig(&r);
        struct guard_service *s = start_service(&r, "forks", fds[1], &seen);
        close(fds[1]);
        kill(seen.pid, SIGSTOP);
        spawn_from(&r, s, 0);
        spawn(&r, 1, "sleep 100");
        while (r.seen.started < 1)
            uv_run(&r.loop, UV_RUN_ONCE);
        kill(getpid(), SIGKILL);
    }
    close(fds[1]);
    gone_soon(fds[0]);
    waitpid(agent, NULL, 0);
    close(fds[0]);
}

enum { FENCE_MS = 200 };

/* An agent with two workers that hold fd. It is stopped, or waits to be, after it has
 * told the guard for how long they may run without it. Returns 0 if all that follows is
 * as it should be. */
static pid_t start_fenced_agent(int fd, int ready, bool stops)
{
    const pid_t pid = fork();

    if (pid != 0)
        return pid;
    struct rig r;
    open_rig_for(&r, NULL); /* A guard for functions would hold fd, too. */
    spawn_tree(&r, fd);
    while (r.seen.started < 1)
        uv_run(&r.loop, UV_RUN_ONCE);
    guard_fence(r.guard, FENCE_MS);
    close(fd);
    if (write(ready, "!", 1) != 1)
        _exit(3);
    if (stops)
        raise(SIGSTOP);
    else
        pause();
    while (!r.seen.empty)
        uv_run(&r.loop, UV_RUN_ONCE);
    _exit(r.seen.fenced == 1 && r.seen.exited == 1 && r.seen.last_status == SIGKILL
              ? 0
              : 4);
}

static void wait_ready(int fd)
{
    char c;

    assert_int_equal(read(fd, &c, 1), 1);
}

/* SIGSTOP, Ctrl-Z: the other nodes begin without this one, so its workers go. */
static void a_stopped_agent_has_no_workers(void **state)
{
    int alive[2], ready[2], status;
    char c;

    (void)state;
    assert_int_equal(pipe(alive), 0);
    assert_int_equal(pipe(ready), 0);
    const pid_t agent = start_fenced_agent(alive[1], ready[1], true);
    close(alive[1]);
    wait_ready(ready[0]);
    assert_int_equal(waitpid(agent, &status, WUNTRACED), agent);
    assert_true(WIFSTOPPED(status));
    while (read(alive[0], &c, 1) > 0) /* until nobody holds it */
        ;
    kill(agent, SIGCONT);
    assert_int_equal(waitpid(agent, &status, 0), agent);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(alive[0]);
    close(ready[0]);
    close(ready[1]);
}

/* A debugger stops it, too, and whoever looks at an agent must not lose the job. */
static void a_debugged_agent_keeps_its_workers(void **state)
{
    int alive[2], ready[2], status;

    (void)state;
    assert_int_equal(pipe(alive), 0);
    assert_int_equal(pipe(ready), 0);
    const pid_t agent = start_fenced_agent(alive[1], ready[1], false);
    close(alive[1]);
    wait_ready(ready[0]);
    if (ptrace(PTRACE_SEIZE, agent, NULL, NULL) == 0) { /* else it is not allowed */
        assert_int_equal(ptrace(PTRACE_INTERRUPT, agent, NULL, NULL), 0);
        assert_int_equal(waitpid(agent, &status, 0), agent);
        assert_true(WIFSTOPPED(status));
        struct pollfd gone = { .fd = alive[0], .events = POLLIN };
        /* Twice that time, and once it will have looked: the tree says one line. */
        uint64_t until = uv_hrtime() + 1500000000u;
        while (uv_hrtime() < until) {
            char c[64];
            if (poll(&gone, 1, 100) > 0)
                assert_true(read(alive[0], c, sizeof c) > 0);
        }
    }
    kill(agent, SIGKILL);
    assert_int_equal(waitpid(agent, &status, 0), agent);
    close(alive[0]);
    close(ready[0]);
    close(ready[1]);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strncmp(argv[1], "forks", 5) == 0)
        return serve(argv[1]);

    /* Whoever runs the tests may ignore some, as a shell does for its background. */
    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_DFL);

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes),
        cmocka_unit_test(refused),
        cmocka_unit_test(attributes),
        cmocka_unit_test(signals_and_leftovers),
        cmocka_unit_test(passed_on),
        cmocka_unit_test(functions),
        cmocka_unit_test(guard_is_killed),
        cmocka_unit_test(keeper_is_killed),
        cmocka_unit_test(agent_and_guard_are_killed),
        cmocka_unit_test(a_lost_guard_costs_nobody_else),
        cmocka_unit_test(a_stopped_guard_obeys),
        cmocka_unit_test(a_stopped_agent_has_no_workers),
        cmocka_unit_test(a_debugged_agent_keeps_its_workers),
        cmocka_unit_test(agent_is_killed),
        cmocka_unit_test(one_that_will_not_die),
        cmocka_unit_test(services_outlive_attempts),
        cmocka_unit_test(a_service_that_does_not_exist),
        cmocka_unit_test(services_fork_workers),
        cmocka_unit_test(a_service_that_does_not_answer),
        cmocka_unit_test(a_service_goes_with_the_guard),
        cmocka_unit_test(a_service_goes_with_the_agent),
    };

    signal(SIGINT, SIG_DFL); /* A shell ignores both for what it runs in background. */
    signal(SIGQUIT, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
