/* keeper.h - the guard process from the inside: what its parts share. See guard.h. */
#ifndef PROCESS_GUARD_CHILD_H
#define PROCESS_GUARD_CHILD_H

#include "base/buf.h"
#include "process/guard_wire.h"

struct guarded_worker {
    pid_t pid;
    uint32_t id;
    bool group; /* leads one */
};

struct guard_child {
    int sock, chld;
    guard_fn fn;
    void *fn_ctx;
    char *started;               /* owned: the program that was started last */
    struct guarded_worker *held; /* the workers that live */
    size_t count, size;
    struct proc_list given_up; /* children that outlived SIGKILL, of attempts before */
    struct buf out;            /* replies yet to be sent */
    bool blocked;              /* the socket takes no more of them now */
    bool killing, ended;       /* the agent asked for it; it is gone */
    bool filled;               /* there have been children since the last EMPTY */
    bool leftovers_told;
};

/* A request with all that came along. */
struct spawn_request {
    struct guard_req req;
    int fd[4];      /* in, out, err, result; -1 if none came */
    char *bytes;    /* owned */
    char **strings; /* owned: argv, NULL, envp, NULL */
    const char *cwd;
};

#define PARCEL_INIT                                                                    \
    {                                                                                  \
        .fd = { -1, -1, -1, -1 }                                                       \
    }

/* guard_child_start.c. Reads wait for the rest of what has begun to come; false: the
 * agent is gone, or we are out of memory. */
bool parcel_read_header(int sock, struct spawn_request *p);
bool parcel_read_body(int sock, struct spawn_request *p);
void parcel_fini(struct spawn_request *p);

/* Starts the worker that the parcel describes: 0 and *pid, or an errno. While all are
 * being killed this means that the agent waits no longer for those that will not die:
 * they are no workers any more. */
int guard_child_start(struct guard_child *k, const struct spawn_request *p, pid_t *pid);

/* guard_child_kill.c */
void guard_child_signal(const struct guard_child *k, uint32_t id, int sig);
void guard_child_signal_leftovers(const struct guard_child *k, int sig);
void guard_child_kill_below(void);

/* Gives up the children of this moment; whether there are no others now; and that one
 * of them is gone after all. */
void guard_child_give_up(struct guard_child *k);
bool guard_child_only_given_up(const struct guard_child *k);
void guard_child_forget(struct guard_child *k, pid_t pid);

/* Kills all that is left and exits. */
void guard_child_end(void) __attribute__((noreturn));

#endif
