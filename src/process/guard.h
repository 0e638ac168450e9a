/* guard.h - the process that holds the workers, so that nothing outlives the agent.
 *
 *     agent (the pid a user sees) -- keeper -- guard -- worker 0 -- whatever it starts
 *                                                    \- worker 1
 *
 * The guard is forked before there is a loop, and the parent of every worker; guard and
 * keeper are both subreapers. So a process that a worker left behind, daemons of their
 * own session included, becomes a child of the guard. If the agent goes, however it
 * goes, its end of the socket closes: the guard kills everything below it and ends. If
 * the guard is killed, alone or together with the agent, the workers get SIGKILL by
 * PDEATHSIG, and the rest falls to the keeper, which does the same. If the keeper is
 * killed the guard does it. If both are killed together the rest falls to the agent
 * after guard_adopt(), that is in `muster run`: elsewhere the agent adopts nobody, as
 * it may be a program with children of its own, and with several jobs. Services (below)
 * are children of the guard too. If the agent is stopped, the workers run on, unless
 * guard_fence() says until when.
 *
 * The agent asks over the socket, the guard starts, signals, reaps and reports. Calls
 * below do not wait for the guard's answer; callbacks come from the loop. */
#ifndef PROCESS_GUARD_H
#define PROCESS_GUARD_H

#include <sys/types.h>
#include <uv.h>

#include "muster/error.h"
#include "process/proc.h"

struct guard;

struct guard_exit {
    int status;      /* as from waitpid */
    int64_t wall_us; /* when it was reaped */
    uint64_t peak_kb;
};

struct guard_events {
    /* pid 0: it was signalled before a service had forked it; its exit follows. */
    void (*on_started)(void *ctx, uint32_t id, pid_t pid, bool forked);
    void (*on_refused)(void *ctx, uint32_t id, int errnum); /* exec failed */
    void (*on_exited)(void *ctx, uint32_t id, const struct guard_exit *how);
    /* Every worker exited, but left processes behind. */
    void (*on_leftovers)(void *ctx);
    void (*on_empty)(void *ctx); /* neither workers nor their descendants are left */
    /* The guard died; all it held was killed. errnum: it could not even be forked. */
    void (*on_lost)(void *ctx, int errnum);
    /* We were stopped past guard_fence()'s time, and the workers were killed; their
     * exits follow. May be NULL. */
    void (*on_fenced)(void *ctx);
};

/* The body of a worker that is a function: runs in a fork of the guard. result_fd is
 * for its result; what it returns is the exit code. */
typedef int (*guard_fn)(void *ctx, int result_fd);

/* Forks the guard. fn (may be NULL) is what guard_spawn runs when asked for function
 * workers. Call it early: the guard is as large as the caller is now. */
int guard_start(guard_fn fn, void *fn_ctx, struct guard **out,
                struct muster_error *err);

/* All children of this process are the guard's or ours: what a guard leaves that is
 * killed together with its keeper is adopted, and ended. Returns 0, or the errno of a
 * sandbox in which nobody can adopt: the guard cannot either. */
int guard_adopt(struct guard *g);

/* What a user can do about a guard that could not be forked; returns MUSTER_EIO. */
int guard_fork_error(struct muster_error *err, int errnum);

/* From now on events come on this loop. */
int guard_watch(struct guard *g, uv_loop_t *loop, const struct guard_events *events,
                void *ctx, struct muster_error *err);

#define GUARD_SERVICES 8

/* A process that is not part of an attempt: it is left out of on_empty, on_leftovers
 * and guard_kill_all, with all that it starts, and ended last when the guard ends. It
 * dies with the guard and with the agent as workers do. */
struct guard_service;

struct guard_service_events {
    void (*on_started)(void *ctx, pid_t pid);
    /* Once, last: errnum is not 0 if exec failed, else status is waitpid's. Not called
     * when the guard is lost: see on_lost. The service is freed on return. */
    void (*on_exited)(void *ctx, int status, int errnum);
};

struct guard_service_spec {
    struct proc_spec proc;
    int fds[2]; /* become 4 and 5; -1: none. The caller closes its own. */
    bool forks; /* it forks workers: 3 is its socket to the guard, see guard_wire.h */
};

int guard_service_start(struct guard *g, const struct guard_service_spec *spec,
                        const struct guard_service_events *events, void *ctx,
                        struct guard_service **out, struct muster_error *err);
void guard_service_signal(struct guard_service *s, int sig);

/* No more calls from it; it lives on until it is signalled or the guard ends. */
void guard_service_forget(struct guard_service *s);

/* Starts worker id (unique among the living). After guard_kill_all, before on_empty:
 * those that have not died are given up and not reported any more. spec's fds are
 * ours: -1 stands for what the guard has inherited. With argv NULL: fn, whose result
 * goes to result_fd. With from (which may be NULL), that service forks the worker;
 * should it fail or refuse, the worker is executed as usual. on_started tells which. */
int guard_spawn(struct guard *g, const struct guard_service *from, uint32_t id,
                const struct proc_spec *spec, int result_fd, struct muster_error *err);

/* To the process group that worker id leads, unless it has exited. */
void guard_signal(struct guard *g, uint32_t id, int sig);

/* To the process of worker id alone, and only if it has a handler for it: the default
 * action would end it, or what it has started. */
void guard_pass_on(struct guard *g, uint32_t id, int sig);

/* To what exited workers have left behind. */
void guard_signal_leftovers(struct guard *g, int sig);

/* SIGKILL to all, again and again until on_empty. */
void guard_kill_all(struct guard *g);

/* If the agent is killed, the guard removes this directory and those in it at its end,
 * as far as they are empty. */
void guard_tidy(struct guard *g, const char *dir);

/* From ms from now on, the workers may not run while this process is stopped (SIGSTOP,
 * Ctrl-Z): other nodes may have begun without them. Not so while a debugger holds it.
 * Each call replaces the one before; UINT64_MAX: they may. The guard does not look
 * before that time. */
void guard_fence(struct guard *g, uint64_t ms);

/* The process that everything it holds descends from: the keeper. */
pid_t guard_root(const struct guard *g);

/* Has the guard begin to end, and all it holds; guard_stop waits for it. In between no
 * other call is of use. NULL is fine. */
void guard_dismiss(struct guard *g);

/* Ends the guard and all it holds, waits for it, and frees g; then cb, if not NULL. */
void guard_stop(struct guard *g, void (*cb)(void *ctx), void *ctx);

#endif
