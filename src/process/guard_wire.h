/* guard_wire.h - what the agent, the guard and a service that forks workers send to
 * each other. All ends are started by the same program, so these are plain structs. */
#ifndef PROCESS_GUARD_WIRE_H
#define PROCESS_GUARD_WIRE_H

#include <sys/socket.h>

#include "process/guard.h"

enum guard_op {
    GUARD_SPAWN = 1,
    GUARD_SIGNAL,
    GUARD_PASS_ON,
    GUARD_LEFTOVERS,
    GUARD_KILL_ALL,
    GUARD_SERVICE,
    GUARD_SIGNAL_SERVICE,
    GUARD_TIDY,
    GUARD_FENCE, /* id: in how many milliseconds; UINT32_MAX: never */
};

enum guard_flag {
    GUARD_SESSION = 1,
    GUARD_FN = 2,
    GUARD_IN = 4, /* descriptors that come along, in this order */
    GUARD_OUT = 8,
    GUARD_ERR = 16,
    GUARD_RESULT = 32,
    GUARD_EXTRA = 64,
    GUARD_FORKS = 128, /* SERVICE: it gets a socket on which the guard asks for forks */
};

#define GUARD_FDS 5

/* Room for descriptors that go with a message. */
union guard_control {
    char bytes[CMSG_SPACE(sizeof(int) * GUARD_FDS)];
    struct cmsghdr align;
};

static inline void guard_attach(struct msghdr *m, union guard_control *room,
                                const int *fds, size_t count)
{
    *room = (union guard_control){ .bytes = { 0 } };
    if (count == 0)
        return;
    m->msg_control = room->bytes;
    m->msg_controllen = CMSG_SPACE(sizeof *fds * count);
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof *fds * count);
    memcpy(CMSG_DATA(c), fds, sizeof *fds * count);
}

/* A SPAWN or SERVICE is followed by len bytes: the affinity mask, then argv and envp
 * as strings, each with its NUL. A TIDY has a directory as argv; "": none any more. */
struct guard_req {
    uint32_t op, id, flags, argc, envc, cpus_size;
    int32_t sig;
    uint32_t service; /* SPAWN: the service that shall fork the worker; 0: none */
    uint32_t len;
};

enum guard_note {
    GUARD_STARTED = 1,
    GUARD_REFUSED,
    GUARD_EXITED,
    GUARD_HAS_LEFTOVERS,
    GUARD_EMPTY,
    GUARD_UNFORKED, /* of the keeper: there is no guard, and will be none */
    GUARD_SERVICE_STARTED,
    GUARD_SERVICE_REFUSED,
    GUARD_SERVICE_EXITED,
    GUARD_FENCED,
};

struct guard_reply {
    uint32_t note, id;
    int32_t value;   /* pid, errno or wait status */
    uint32_t forked; /* STARTED: by a service, not by exec */
    int64_t wall_us;
    uint64_t peak_kb;
};

/* From the guard to a service with GUARD_FORKS: fork a worker. Five descriptors come
 * along: a file with the body (as in a SPAWN), a pipe from which the worker reads one
 * byte before it goes on (end of file: nobody knows of it, exit), stdin, stdout and
 * stderr. src/warm/server.py reads this. */
struct guard_fork {
    uint32_t ticket, flags, argc, envc, cpus_size, unused;
    uint64_t len;
};

/* Its answer. */
struct guard_forked {
    uint32_t ticket;
    int32_t pid; /* a child of the guard; or negative: it will not be forked */
};

/* In a child of the agent. Does not return: the life of the keeper, and in a child of
 * its own that of the guard. */
void guard_main(int sock, guard_fn fn, void *fn_ctx) __attribute__((noreturn));

#endif
