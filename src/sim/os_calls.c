/* os_calls.c - the C library's functions that the drivers call, other than sockets.
 * They answer for the process that runs, and its machine. There are no threads here:
 * the work of blocking_call.h runs on the loop, after a while. See os.h. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/blocking_call.h"
#include "rendezvous/local_identity.h"
#include "sim/os.h"

OS_INSTEAD_OF(clock_gettime);
OS_INSTEAD_OF(time);
OS_INSTEAD_OF(getpid);
OS_INSTEAD_OF(getenv);
OS_INSTEAD_OF(gethostname);
OS_INSTEAD_OF(getaddrinfo);
OS_INSTEAD_OF(freeaddrinfo);
OS_INSTEAD_OF(getifaddrs);
OS_INSTEAD_OF(freeifaddrs);
OS_INSTEAD_OF(gethostbyaddr_r);
OS_INSTEAD_OF(getrandom);
OS_INSTEAD_OF(open64);
OS_INSTEAD_OF(sigaction);
OS_INSTEAD_OF(kill);
OS_INSTEAD_OF(abort);
OS_INSTEAD_OF(__assert_fail);
OS_INSTEAD_OF(rdzv_next_local_id);

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    uv_timeval64_t wall;

    if (!os.current)
        return __real_clock_gettime(id, ts);
    if (id == CLOCK_REALTIME) {
        (void)uv_gettimeofday(&wall);
        *ts = (struct timespec){ wall.tv_sec, wall.tv_usec * 1000 };
    } else {
        *ts = (struct timespec){ (time_t)(uv_hrtime() / 1000000000u),
                                 (long)(uv_hrtime() % 1000000000u) };
    }
    return 0;
}

time_t __wrap_time(time_t *to)
{
    struct timespec ts;

    (void)__wrap_clock_gettime(CLOCK_REALTIME, &ts);
    if (to)
        *to = ts.tv_sec;
    return ts.tv_sec;
}

pid_t __wrap_getpid(void)
{
    return os.current ? os.current->pid : __real_getpid();
}

char *__wrap_getenv(const char *name)
{
    return os.current ? NULL : __real_getenv(name);
}

int __wrap_gethostname(char *to, size_t n)
{
    (void)snprintf(to, n, "%s", os.current->machine->name);
    return 0;
}

/* ---- names ---- */

struct answer {
    struct addrinfo info;
    struct sockaddr_in addr;
};

static const struct os_machine *machine_named(const char *name)
{
    for (size_t i = 0; i < os.machine_count; i++)
        if (strcmp(os.machines[i]->name, name) == 0)
            return os.machines[i];
    return NULL;
}

int __wrap_getaddrinfo(const char *node, const char *service,
                       const struct addrinfo *hints, struct addrinfo **out)
{
    const struct os_machine *m = machine_named(node);
    struct answer *a = os_alloc(sizeof *a);

    if (!m && inet_pton(AF_INET, node, &a->addr.sin_addr) != 1)
        return EAI_NONAME;
    if (m)
        a->addr.sin_addr.s_addr = htonl(m->ip);
    a->addr.sin_family = AF_INET;
    a->addr.sin_port = htons((uint16_t)(service ? strtoul(service, NULL, 10) : 0));
    a->info = (struct addrinfo){ .ai_family = AF_INET,
                                 .ai_socktype = hints ? hints->ai_socktype : 0,
                                 .ai_addrlen = sizeof a->addr,
                                 .ai_addr = (struct sockaddr *)&a->addr };
    *out = &a->info;
    return 0;
}

void __wrap_freeaddrinfo(struct addrinfo *list)
{
}

int __wrap_getifaddrs(struct ifaddrs **out)
{
    struct ifaddrs *i = os_alloc(sizeof *i);
    struct sockaddr_in *a = os_alloc(sizeof *a);
    static char name[] = "eth0";

    a->sin_family = AF_INET;
    a->sin_addr.s_addr = htonl(os.current->machine->ip);
    i->ifa_name = name;
    i->ifa_addr = (struct sockaddr *)a;
    *out = i;
    return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *list)
{
}

int __wrap_gethostbyaddr_r(const void *addr, socklen_t len, int type,
                           struct hostent *ret, char *buf, size_t n,
                           struct hostent **out, int *why)
{
    static char *none[] = { NULL };
    uint32_t ip;

    memcpy(&ip, addr, sizeof ip);
    *why = HOST_NOT_FOUND;
    for (size_t i = 0; i < os.machine_count; i++)
        if (os.machines[i]->ip == ntohl(ip)) {
            (void)snprintf(buf, n, "%s", os.machines[i]->name);
            *ret = (struct hostent){ .h_name = buf, .h_aliases = none };
            *out = ret;
            return 0;
        }
    *out = NULL;
    return 0;
}

/* ---- the rest ---- */

ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
    (void)uv_random(NULL, NULL, to, n, 0, NULL);
    return (ssize_t)n;
}

/* Simulated processes have no files. */
int __wrap_open64(const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode;

    if (os.current) {
        errno = ENOENT;
        return -1;
    }
    va_start(ap, flags);
    mode = va_arg(ap, mode_t);
    va_end(ap);
    return __real_open64(path, flags, mode);
}

int __wrap_sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
    if (old)
        *old = (struct sigaction){ .sa_handler = SIG_DFL };
    return 0;
}

int __wrap_kill(pid_t pid, int sig)
{
    for (struct os_process *p = os.processes; p; p = p->next)
        if (p->pid == pid && p->state != OS_ENDED) {
            if (sig)
                os_signal(p, sig);
            return 0;
        }
    errno = ESRCH;
    return -1;
}

void __wrap_abort(void)
{
    if (!os.current)
        __real_abort();
    os_log(os.current->name, "aborts");
    os_exit(-SIGABRT);
}

void __wrap___assert_fail(const char *what, const char *file, unsigned line,
                          const char *function)
{
    if (!os.current) {
        fprintf(stderr, "%s:%u: %s: %s\n", file, line, function, what);
        __real_abort();
    }
    os_fail("%s: the assertion %s does not hold (%s:%u, %s)", os.current->name, what,
            file, line, function);
    os_exit(-SIGABRT);
}

/* Each simulated process has one node, so it gets the number that a real one would. */
int64_t __wrap_rdzv_next_local_id(void)
{
    return 0;
}

/* ---- blocking_call.h ---- */

struct blocking_call {
    uv_timer_t timer;
    blocking_call_work work;
    void *data; /* owned */
    bool late;
    blocking_call_done done;
    void *ctx;
};

static void call_on_closed(uv_handle_t *h)
{
    struct blocking_call *o = h->data;

    mem_free(o->data);
    mem_free(o);
}

void blocking_call_cancel(struct blocking_call *o)
{
    if (o)
        uv_close((uv_handle_t *)&o->timer, call_on_closed);
}

static void call_on_timer(uv_timer_t *timer)
{
    struct blocking_call *o = timer->data;
    void *data = o->late ? NULL : o->data;

    if (data) {
        o->work(data);
        o->data = NULL;
    }
    blocking_call_cancel(o);
    o->done(o->ctx, data);
    mem_free(data);
}

int blocking_call_run(uv_loop_t *loop, blocking_call_work work, void *data,
                      uint64_t timeout_ms, blocking_call_done done, void *ctx,
                      struct blocking_call **out, struct muster_error *err)
{
    struct blocking_call *o = mem_calloc(1, sizeof *o);
    const bool slow = os_chance(20) && os.slow_names;
    const uint64_t ms = slow ? os_random(100, 3000) : os_random(0, 5);

    if (!o)
        return err_nomem(err);
    *o = (struct blocking_call){
        .work = work, .data = data, .late = ms >= timeout_ms, .done = done, .ctx = ctx
    };
    (void)uv_timer_init(loop, &o->timer);
    o->timer.data = o;
    (void)uv_timer_start(&o->timer, call_on_timer, MIN_OF(ms, timeout_ms), 0);
    *out = o;
    return 0;
}
