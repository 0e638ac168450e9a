/* os.h - the machines that whole jobs are played on: processes, clocks, sockets and
 * memory, all simulated, under the real drivers.
 *
 * The drivers are linked unchanged. What they ask of libuv is answered by uv_loop.c and
 * uv_stream.c, what they ask of the C library (sockets, clocks, names, random bytes) by
 * os_socket.c and os_calls.c, which the linker puts in its place (--wrap, see
 * meson.build). A process is a coroutine: it runs until it would wait, and nothing else
 * runs meanwhile, so one seed gives one run. Everything here belongs to one job and
 * goes with os_end(); only one job is played at a time. */
#ifndef SIM_OS_H
#define SIM_OS_H

#include <sys/socket.h>
#include <ucontext.h>
#include <uv.h>

#include "base/base.h"
#include "base/rng.h"

#define OS_NEVER    UINT64_MAX
#define OS_MACHINES 12
#define OS_FD_BASE  (1 << 20) /* descriptors from here on are simulated */
#define OS_SECOND   UINT64_C(1000000)
#define OS_MS       UINT64_C(1000)

struct os_process;
struct os_socket;
struct os_block; /* memory of a process */

struct os_machine {
    char name[16];
    size_t index;
    uint32_t ip; /* 10.0.0.<index + 1>, in host order */
    bool up;
    int64_t wall_us;  /* its wall clock is ahead by so much */
    uint64_t boot_us; /* its monotonic clock began so long before the job */
    uint16_t next_port;
};

enum os_state { OS_READY, OS_RUNNING, OS_WAITING, OS_ENDED };

struct os_process {
    struct os_process *next; /* all of the job, oldest first */
    struct os_machine *machine;
    char name[32];
    int pid;
    enum os_state state;
    bool wake_sent;       /* a run is on its way */
    bool killed;          /* it ends as soon as it does not run */
    uint64_t stopped_t;   /* SIGSTOP until then */
    uint64_t wait_number; /* which wait a timer belongs to */
    int exit_code;        /* minus the signal that killed it */
    bool spared;          /* its connections are not reset */
    int (*main)(void *arg);
    void *arg;
    void (*ended)(void *ctx, struct os_process *p); /* may be NULL */
    void *ended_ctx;
    ucontext_t context;
    void *stack;
    uv_loop_t *loop; /* the last that it opened; NULL: none */
    struct os_socket *sockets;
    struct os_block *memory;
    size_t blocks;                /* how many of them */
    unsigned long asked, fail_at; /* allocations; the one that fails, 0: none */
};

typedef void (*os_event_fn)(void *arg, uint64_t n);

struct os_event {
    uint64_t t, seq;
    os_event_fn fn;
    void *arg;
    uint64_t n;
};

struct os {
    uint64_t seed;
    struct rng rng;
    uint64_t t; /* microseconds since the job began */
    uint64_t seq, steps;
    struct os_event *heap; /* owned; kept from job to job */
    size_t heap_count, heap_room;
    struct os_machine machines[OS_MACHINES];
    size_t machine_count;
    uint64_t down_t[OS_MACHINES][OS_MACHINES]; /* from, to: nothing passes until then */
    uint64_t delay_us, jitter_us;
    size_t send_room; /* of each socket: writes beyond it wait */
    bool any_cut;     /* reads give arbitrary pieces */
    bool slow_names;  /* now and then a name takes seconds to resolve */
    struct os_process *processes, *last_process, *current;
    int next_pid;
    struct os_socket *all_sockets;
    ucontext_t scheduler;
    bool loud;
    char fail[1024]; /* the first broken promise; empty: none */
};

extern struct os os;

/* ---- os_world.c: time, processes ---- */

void os_begin(uint64_t seed, bool loud);
void os_end(void); /* kills what is left */

void *os_alloc(size_t size); /* zeroed, until os_end() */
void os_at(uint64_t t, os_event_fn fn, void *arg, uint64_t n);
bool os_run(uint64_t until_t);                  /* false: a promise was broken */
uint64_t os_random(uint64_t from, uint64_t to); /* from .. to - 1 */
bool os_chance(uint64_t one_in);

struct os_machine *os_machine_add(const char *name);
void os_machine_off(struct os_machine *m); /* without a word to anybody */
void os_machine_on(struct os_machine *m);

struct os_process *os_process_start(struct os_machine *m, const char *name,
                                    int (*main)(void *arg), void *arg);
/* SIGKILL, SIGSTOP until resumed, or what the process has a handler for; else it ends
 * of it. */
void os_signal(struct os_process *p, int sig);
void os_stop_until(struct os_process *p, uint64_t t);
void os_wake(struct os_process *p);
void os_wait(uint64_t until_t); /* by the process that runs; also ends by os_wake() */
void os_exit(int code) __attribute__((noreturn)); /* the process that runs */

void os_log(const char *who, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void os_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- os_mem.c ---- */

void os_memory_free(struct os_process *p); /* all that it has not freed itself */

/* ---- os_socket.c ---- */

int os_socket_new(int family, struct os_socket **out);          /* a descriptor */
int os_connect(struct os_socket *s, const struct sockaddr *to); /* 0 or an errno */
int os_fd(const struct os_socket *s);
/* How a connection stands: 0 under way, 1 there, or minus an errno. */
int os_connected(const struct os_socket *s);
bool os_readable(const struct os_socket *s); /* bytes, the end, an error, a caller */
bool os_writable(const struct os_socket *s);
ssize_t os_recv(struct os_socket *s, void *to, size_t n);      /* or minus an errno */
ssize_t os_send(struct os_socket *s, const void *p, size_t n); /* or minus an errno */
void os_close(struct os_socket *s);
void os_sockets_close(struct os_process *p, bool power_lost);
void os_keepalive(struct os_socket *s, unsigned idle_s);
bool os_poll_ready(int fd, int events); /* UV_READABLE, UV_WRITABLE */
int os_name(const struct os_socket *s, bool peer, struct sockaddr *to, socklen_t *n);

/* Faults. */
void os_cut(size_t from, size_t to, uint64_t until_t); /* one way */
/* Resets open connections between two machines (any: OS_MACHINES); one_side: only one
 * end of each learns it. Returns how many. */
size_t os_reset(size_t a, size_t b, bool one_side);

/* ---- uv_loop.c, for uv_stream.c ---- */

struct uv_state { /* of a handle; behind its u.reserved[0] */
    uv_handle_t *handle;
    struct uv_state *next; /* of the loop, oldest first */
    bool active, unreferenced, closing;
    uint64_t due_ms, repeat_ms, order; /* timers */
    void *cb;                          /* of the kind that the handle is of */
    bool pending;                      /* async, signal */
    int fd, events;                    /* poll */
    int signum;
    bool oneshot;
    struct os_socket *socket; /* tcp, from here on */
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
void uv_tcp_pending(struct uv_state *s); /* callbacks of what ended at once */
bool uv_tcp_has_pending(const struct uv_state *s);
void uv_tcp_begin_close(struct uv_state *s);
void uv_tcp_end_close(struct uv_state *s);

/* uv_loop.c: a signal that the process has a handler for; false: it has none. */
bool uv_take_signal(struct os_process *p, int sig);

#endif
