/* os.h - the simulated machines of whole jobs: processes, clocks, sockets and memory
 * under the real drivers.
 *
 * The drivers are linked unchanged. Their calls to libuv go to uv_loop.c and
 * uv_stream.c, and their calls to the C library (sockets, clocks, names, random bytes)
 * to os_socket.c and os_calls.c, which the linker puts in its place (--wrap, see
 * meson.build). A process is a coroutine: it runs until it would wait, and nothing else
 * runs meanwhile, so the same seed always gives the same run. Everything here belongs
 * to one job and is freed by os_end(); only one job is played at a time. */
#ifndef SIM_OS_H
#define SIM_OS_H

#include <sys/socket.h>
#include <ucontext.h>
#include <uv.h>

#include "base/base.h"
#include "base/rng.h"
#include "muster/error.h"

#define OS_NEVER    UINT64_MAX
#define OS_FIRST_IP 0x0a000001u /* of the first machine; the others follow */
#define OS_FD_BASE  (1 << 20)   /* descriptors from here on are simulated */
#define OS_SECOND   UINT64_C(1000000)
#define OS_MS       UINT64_C(1000)
#define OS_WALL_US  1767323045000000ll /* the wall clocks when the job begins */

struct os_process;
struct os_socket;
struct os_block; /* memory of a process */

struct os_machine {
    char name[16];
    size_t index;
    uint32_t ip; /* 10.0.0.<index + 1>, in host order */
    bool up;
    uint64_t out_t, in_t; /* until when nothing leaves it, and nothing reaches it */
    int64_t wall_us;      /* how far its wall clock is ahead */
    uint64_t jumped_t;    /* when that last changed */
    uint64_t boot_us;     /* how long before the job its monotonic clock began */
    uint16_t next_port;
    struct os_socket *listeners;
};

enum os_state { OS_READY, OS_RUNNING, OS_WAITING, OS_ENDED };

struct os_process {
    struct os_process *next; /* in the list of all, oldest first */
    struct os_machine *machine;
    char name[32];
    int pid;
    enum os_state state;
    bool wake_sent;       /* an event that resumes it is to come */
    bool killed;          /* it ends as soon as it stops running */
    uint64_t stopped_t;   /* until when it is stopped by SIGSTOP */
    uint64_t wait_number; /* tells whether a timer belongs to the current wait */
    int exit_code;        /* or minus the signal that killed it */
    bool spared;          /* faults do not reset its connections */
    int (*main)(void *arg);
    void *arg;
    void (*ended)(void *ctx, struct os_process *p); /* may be NULL */
    void *ended_ctx;
    ucontext_t context;
    void *stack;
    uv_loop_t *loop; /* the one that it opened last; NULL: none */
    struct os_socket *sockets;
    struct rng rng; /* if the world is steady */
    struct os_block *memory;
    size_t blocks;         /* of memory that it has not freed */
    unsigned long asked;   /* allocations so far */
    unsigned long fail_at; /* which allocation fails; 0: none */
};

typedef void (*os_event_fn)(void *arg, uint64_t n);

struct os_event {
    uint64_t t, seq;
    os_event_fn fn;
    void *arg;
    uint64_t n;
};

struct os {
    struct rng rng;
    uint64_t t; /* microseconds since the job began */
    uint64_t seq;
    struct os_event *heap; /* owned; kept for the next job */
    size_t heap_count, heap_room;
    struct os_machine **machines; /* owned; kept for the next job */
    size_t machine_count, machine_room;
    uint64_t delay_us, jitter_us;
    size_t send_room; /* bytes that each socket sends before writes have to wait */
    bool any_cut;     /* reads return arbitrary pieces */
    bool slow_names;  /* now and then a name takes seconds to resolve */
    struct os_process *processes, *last_process, *current;
    int next_pid;
    struct os_socket *all_sockets;
    ucontext_t scheduler;
    bool
        steady; /* what one process draws, or sends, does not change the others' luck */
    bool loud;
    char fail[1024]; /* the first broken promise; empty: none */
};

extern struct os os;

/* A function that the linker puts in the place of the one with that name: see
 * meson.build. */
#define OS_INSTEAD_OF(name) __typeof__(name) __wrap_##name, __real_##name

/* ---- os_world.c: time, processes ---- */

void os_begin(uint64_t seed, bool loud);
void os_end(void); /* kills what is left */

void *os_alloc(size_t size); /* zeroed, until os_end() */
/* Likewise: a text; and the array with room for one item more than count. */
char *os_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void *os_grow(void *array, size_t count, size_t size);
void os_at(uint64_t t, os_event_fn fn, void *arg, uint64_t n);
bool os_run(uint64_t until_t);                  /* false: a promise was broken */
uint64_t os_random(uint64_t from, uint64_t to); /* from .. to - 1 */
bool os_chance(uint64_t one_in);

struct os_machine *os_machine_add(const char *name);
void os_machine_off(struct os_machine *m); /* its peers are not notified */
void os_machine_on(struct os_machine *m);

struct os_process *os_process_start(struct os_machine *m, const char *name,
                                    int (*main)(void *arg), void *arg);
/* Runs the handler of the process, if it has one; otherwise, and for SIGKILL, the
 * process ends. */
void os_signal(struct os_process *p, int sig);
void os_stop_until(struct os_process *p, uint64_t t);
void os_wake(struct os_process *p);

/* These two are for the process that runs. A wait also ends with os_wake(). */
void os_wait(uint64_t until_t);
void os_exit(int code) __attribute__((noreturn));

void os_log(const char *who, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Aborts if rc is an error: for calls that fail only if the simulator has no memory. */
void os_must(int rc);
void os_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- os_mem.c ---- */

void os_memory_free(struct os_process *p); /* frees what it has not freed itself */

/* ---- os_socket.c ---- */

int os_socket_new(int family, struct os_socket **out);          /* a descriptor */
int os_connect(struct os_socket *s, const struct sockaddr *to); /* 0 or an errno */
int os_fd(const struct os_socket *s);
/* 0: still connecting; 1: connected; or minus an errno. */
int os_connected(const struct os_socket *s);
bool os_readable(const struct os_socket
                     *s); /* bytes, the end, an error, or a connection to accept */
bool os_writable(const struct os_socket *s);
ssize_t os_recv(struct os_socket *s, void *to, size_t n);      /* or minus an errno */
ssize_t os_send(struct os_socket *s, const void *p, size_t n); /* or minus an errno */
void os_close(struct os_socket *s);
void os_sockets_close(struct os_process *p, bool power_lost);
void os_keepalive(struct os_socket *s, unsigned idle_s);
bool os_poll_ready(int fd, int events); /* UV_READABLE, UV_WRITABLE */
int os_name(const struct os_socket *s, bool peer, struct sockaddr *to, socklen_t *n);

/* Resets the open connections of a machine with others. With one_side only one end of
 * each learns it. Returns how many were reset. */
size_t os_reset(const struct os_machine *m, bool one_side);

/* ---- uv_loop.c, for uv_stream.c ---- */

struct uv_state { /* of a handle, whose u.reserved[0] points here */
    uv_handle_t *handle;
    struct uv_state *next; /* in its loop, oldest first */
    bool active, unreferenced, closing;
    uint64_t due_ms, repeat_ms, order; /* timers */
    void *cb;                          /* its type depends on the handle's */
    bool pending;                      /* async, signal */
    int fd, events;                    /* poll */
    int signum;
    bool oneshot;
    struct os_socket *socket; /* this and all below: tcp */
    uv_connect_t *connect;
    uv_alloc_cb alloc;
    bool reading, read_ended;
    struct uv_out *first_out, *last_out;
};

struct uv_state *uv_state_of(const void *handle);
struct uv_state *uv_state_new(uv_loop_t *loop, void *handle, uv_handle_type type);

/* uv_stream.c */
bool uv_tcp_has_work(const struct uv_state *s);
bool uv_tcp_wants_loop(const struct uv_state *s);
void uv_tcp_work(struct uv_state *s);
void uv_tcp_pending(struct uv_state *s); /* calls back for writes that are done */
bool uv_tcp_has_pending(const struct uv_state *s);
void uv_tcp_begin_close(struct uv_state *s);
void uv_tcp_end_close(struct uv_state *s);

/* uv_loop.c: passes a signal to the handler of the process; false if it has none. */
bool uv_take_signal(struct os_process *p, int sig);

#endif
