/* guard_child.h - the guard process from inside: what its parts share. See guard.h. */
#ifndef PROCESS_GUARD_CHILD_H
#define PROCESS_GUARD_CHILD_H

#include <signal.h>

#include "base/buf.h"
#include "process/guard_wire.h"

/* A SPAWN or SERVICE with all that came along. */
struct spawn_request {
    struct guard_req req;
    int fd[GUARD_FDS]; /* in, out, err, result, extra; -1 if none came */
    char *bytes;       /* owned */
    char **strings;    /* owned: argv, NULL, envp, NULL */
};

#define SPAWN_REQUEST_INIT                                                             \
    {                                                                                  \
        .fd = { -1, -1, -1, -1, -1 }                                                   \
    }

struct guarded_worker {
    pid_t pid; /* 0: a service has been asked to fork it and has not answered */
    uint32_t id;
    bool group;      /* leads one */
    uint32_t ticket; /* of the request to the service; 0: not asked yet */
    int go; /* while pid is 0: write a byte to let it run; -1 before it is asked */
    struct spawn_request *request; /* owned, while pid is 0 */
};

/* Not part of an attempt: neither EMPTY nor KILL_ALL concern it or what it starts. */
struct guarded_service {
    pid_t pid;
    uint32_t id;
    int control;  /* for forks; -1: it does not fork workers */
    size_t asked; /* requests that it has not answered */
    bool full;    /* control takes no more requests now */
};

struct guard_child {
    int sock;
    pid_t keeper;           /* our parent */
    pid_t agent;            /* its parent: whose reader of stacks may look at workers */
    sigset_t while_waiting; /* the signals that are blocked then: all but SIGCHLD */
    guard_fn fn;
    void *fn_ctx;
    char *started;               /* owned: the program that was started last */
    char *tidy;                  /* owned: see guard_tidy(); NULL or "": nothing */
    struct guarded_worker *held; /* the workers that live or have been asked for */
    size_t count, size;
    struct guarded_service services[GUARD_SERVICES];
    size_t service_count;
    uint32_t tickets;          /* given so far */
    struct proc_list given_up; /* children that outlived SIGKILL, of attempts before */
    struct buf out;            /* replies yet to be sent */
    bool blocked;              /* the socket takes no more of them now */
    bool killing, ended;       /* the agent asked for it; it is gone */
    bool cancelled;            /* workers that had not begun: see whether it is empty */
    bool filled;               /* there have been children since the last EMPTY */
    bool leftovers_notified;
    uint64_t fence_ms;       /* when to look whether the agent is stopped; MONO_NEVER */
    uint32_t fence_after_ms; /* how long before that it was told */
};

/* guard_child.c */
void guard_child_reply(struct guard_child *k, const struct guard_reply *r);

/* guard_child_spawn.c. Reads wait for the rest of what has begun to come; false: the
 * agent is gone, or we are out of memory. */
bool spawn_request_read_header(int sock, struct spawn_request *p);
bool spawn_request_read_body(int sock, struct spawn_request *p);
void spawn_request_fini(struct spawn_request *p);

/* Starts the worker or the service that the request describes, and replies. A service
 * that shall fork the worker is asked; its answer comes later. While all are being
 * killed a new worker means that the agent waits no longer for those that will not die:
 * they are not workers any more. */
void guard_child_start(struct guard_child *k, struct spawn_request *p);
void guard_child_start_service(struct guard_child *k, struct spawn_request *p);

/* guard_child_services.c */
/* Asks the service for the workers that wait for it, a few at a time. */
void guard_child_ask(struct guard_child *k, struct guarded_service *s);
/* Answers of a service, as many as there are. */
void guard_child_hear(struct guard_child *k, struct guarded_service *s);
/* It is gone: what it has not forked is started the ordinary way. */
void guard_child_service_gone(struct guard_child *k, size_t at, int status);
/* The worker at held[at] will not be forked: it ends before it began. */
void guard_child_cancel(struct guard_child *k, size_t at, int sig);
struct guarded_service *guard_child_service(struct guard_child *k, uint32_t id);
bool guard_child_is_service(const struct guard_child *k, pid_t pid);

/* guard_child_spawn.c: by exec or fork of the guard; 0 and *pid, or an errno. */
int guard_child_spawn(struct guard_child *k, const struct spawn_request *p, pid_t *pid);

/* guard_child_kill.c */
void guard_child_signal(struct guard_child *k, uint32_t id, int sig);
void guard_child_pass_on(const struct guard_child *k, uint32_t id, int sig);
void guard_child_signal_leftovers(const struct guard_child *k, int sig);
/* SIGKILL to all below us, except services and what they have started. */
void guard_child_kill_below(const struct guard_child *k);

/* Gives up the children of this moment; whether there are no others now beside
 * services; and that one of them is gone after all. */
void guard_child_give_up(struct guard_child *k);
bool guard_child_is_empty(const struct guard_child *k);
void guard_child_forget(struct guard_child *k, pid_t pid);

/* Kills all that is left, services last, and exits. */
void guard_child_end(struct guard_child *k) __attribute__((noreturn));

#endif
