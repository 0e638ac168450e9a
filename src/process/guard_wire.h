/* guard_int.h - what agent and guard say to each other over their socket. Both ends are
 * the same program, so these are plain structs. */
#ifndef PROCESS_GUARD_WIRE_H
#define PROCESS_GUARD_WIRE_H

#include "process/guard.h"

enum guard_op { GUARD_SPAWN = 1, GUARD_SIGNAL, GUARD_LEFTOVERS, GUARD_KILL_ALL };

enum guard_flag {
    GUARD_SESSION = 1,
    GUARD_FN = 2,
    GUARD_CWD = 4,
    GUARD_IN = 8, /* descriptors that come along, in this order */
    GUARD_OUT = 16,
    GUARD_ERR = 32,
    GUARD_RESULT = 64,
};

/* A SPAWN is followed by len bytes: the affinity mask, then argv, envp and cwd as
 * strings, each with its NUL. */
struct guard_req {
    uint32_t op, id, flags, argc, envc, cpus_size;
    int32_t sig;
    uint32_t len;
};

enum guard_note {
    GUARD_STARTED = 1,
    GUARD_REFUSED,
    GUARD_EXITED,
    GUARD_HAS_LEFTOVERS,
    GUARD_EMPTY,
};

struct guard_reply {
    uint32_t note, id;
    int32_t value; /* pid, errno or wait status */
    uint32_t unused;
    int64_t wall_us;
    uint64_t peak_kb;
};

/* Does not return: the guard's life. */
void guard_main(int sock, pid_t agent, guard_fn fn, void *fn_ctx)
    __attribute__((noreturn));

/* SIGKILL to all below us that is not of our session; false when there is none. */
bool guard_kill_strays(void);

#endif
