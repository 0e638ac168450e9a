/* walk_trace.c - notes what a process does, for bench/count walks: every function that
 * is entered and left, and all that it reads, writes and starts.
 *
 *   cc -shared -fPIC -O2 -D_GNU_SOURCE -o walk_trace.so walk_trace.c
 *
 * Built into a shared library that is preloaded into programs which were compiled with
 * -finstrument-functions. Each process writes WALK_DIR/PID.N.trace, an array of struct
 * step, and WALK_DIR/PID.N.maps, its memory map, by which addresses become names.
 * Children of fork() and of vfork() have files of their own, and so has a program after
 * exec(). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN __attribute__((no_instrument_function))

enum { MOST_STEPS = 1 << 22, MOST_PROCESSES = 64 };

enum step_kind { NOTHING, ENTERED, LEFT, READ, WRITTEN, STARTED, PAIRED };

struct step {
    uint64_t ns;    /* CLOCK_REALTIME */
    uint32_t kind;  /* 0 ends the array */
    uint32_t tid;   /* of the thread */
    uint64_t what;  /* ENTERED, LEFT: the function; READ, WRITTEN, PAIRED: the channel;
                       STARTED: the parent */
    uint64_t count; /* ENTERED: where it was called; READ, WRITTEN: bytes; PAIRED: the
                       other end's channel */
};

struct trace {
    pid_t pid;
    struct step *steps;
    atomic_uint count;
};

/* A child of vfork() shares this memory: it takes an entry of its own. */
static struct trace traces[MOST_PROCESSES];
static atomic_uint trace_count;

HIDDEN static void copy_maps(const char *stem)
{
    char path[512], bytes[4096];
    ssize_t got;
    int in = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

    (void)snprintf(path, sizeof path, "%s.maps", stem);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (in >= 0 && out >= 0 &&
           (got = syscall(SYS_read, in, bytes, sizeof bytes)) > 0)
        if (syscall(SYS_write, out, bytes, (size_t)got) != got)
            break;
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
}

HIDDEN static struct trace *trace_open(pid_t pid)
{
    const char *dir = getenv("WALK_DIR");
    char stem[400], path[512];
    void *at = MAP_FAILED;
    int fd = -1;

    if (!dir)
        return NULL;
    for (int n = 0; fd < 0 && n < 100; n++) {
        (void)snprintf(stem, sizeof stem, "%s/%d.%d", dir, (int)pid, n);
        (void)snprintf(path, sizeof path, "%s.trace", stem);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    if (fd >= 0 && ftruncate(fd, MOST_STEPS * sizeof(struct step)) == 0)
        at = mmap(NULL, MOST_STEPS * sizeof(struct step), PROT_READ | PROT_WRITE,
                  MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED)
        return NULL;
    unsigned n = atomic_fetch_add(&trace_count, 1);
    if (n >= MOST_PROCESSES)
        return NULL;
    copy_maps(stem);
    traces[n].steps = at;
    atomic_store(&traces[n].count, 0);
    traces[n].pid = pid;
    return &traces[n];
}

HIDDEN static void note(enum step_kind kind, uint64_t what, uint64_t count)
{
    pid_t pid = getpid();
    struct trace *t = NULL;
    struct timespec now;
    int kept = errno;
    unsigned n = atomic_load(&trace_count);

    for (unsigned i = n < MOST_PROCESSES ? n : MOST_PROCESSES; !t && i-- > 0;)
        if (traces[i].pid == pid)
            t = &traces[i];
    if (!t)
        t = trace_open(pid);
    unsigned i = t ? atomic_fetch_add(&t->count, 1) : MOST_STEPS;
    if (i < MOST_STEPS) {
        clock_gettime(CLOCK_REALTIME, &now);
        t->steps[i] =
            (struct step){ (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                           kind, (uint32_t)gettid(), what, count };
    }
    errno = kept;
}

HIDDEN void __cyg_profile_func_enter(void *function, void *caller);
HIDDEN void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller)
{
    note(ENTERED, (uint64_t)(uintptr_t)function, (uint64_t)(uintptr_t)caller);
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)caller;
    note(LEFT, (uint64_t)(uintptr_t)function, 0);
}

HIDDEN __attribute__((constructor)) static void started(void)
{
    note(STARTED, (uint64_t)getppid(), 0);
}

/* Whether a socket of this machine has a name, and then the process at its other end.
 */
HIDDEN static pid_t named_peer(int fd)
{
    struct sockaddr_storage name;
    socklen_t here = sizeof name, there = sizeof name;
    struct ucred peer;
    socklen_t n = sizeof peer;

    if (getsockname(fd, (struct sockaddr *)&name, &here) < 0 ||
        getpeername(fd, (struct sockaddr *)&name, &there) < 0)
        return 0;
    if (here <= sizeof(sa_family_t) && there <= sizeof(sa_family_t))
        return 0;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 ? peer.pid : 0;
}

/* One way of a channel. TCP: the ports of sender and receiver; named sockets of this
 * machine: their pids; pipes: the inode, which both ends share; pairs of sockets: the
 * inode of the end, and PAIRED says which two belong together. */
HIDDEN static uint64_t channel_of(int fd, bool sends)
{
    struct stat st;
    struct sockaddr_in6 here, there;
    socklen_t a = sizeof here, b = sizeof there;

    if (fstat(fd, &st) < 0 || S_ISREG(st.st_mode) || S_ISCHR(st.st_mode))
        return 0;
    if (S_ISSOCK(st.st_mode) && getsockname(fd, (struct sockaddr *)&here, &a) == 0 &&
        (here.sin6_family == AF_INET || here.sin6_family == AF_INET6)) {
        if (getpeername(fd, (struct sockaddr *)&there, &b) < 0)
            return 0;
        uint64_t from = ntohs(sends ? here.sin6_port : there.sin6_port);
        uint64_t to = ntohs(sends ? there.sin6_port : here.sin6_port);
        return (uint64_t)1 << 62 | from << 16 | to;
    }
    pid_t peer = S_ISSOCK(st.st_mode) ? named_peer(fd) : 0;
    if (peer > 0) {
        uint64_t from = (uint64_t)(sends ? getpid() : peer);
        uint64_t to = (uint64_t)(sends ? peer : getpid());
        return (uint64_t)1 << 59 | from << 24 | to;
    }
    return S_ISSOCK(st.st_mode) ? (uint64_t)1 << 61 | (uint64_t)sends << 60 | st.st_ino
                                : (uint64_t)st.st_ino;
}

HIDDEN static ssize_t moved(int fd, enum step_kind kind, ssize_t count)
{
    if (kind != NOTHING && count > 0) {
        int kept = errno;
        uint64_t channel = channel_of(fd, kind == WRITTEN);
        if (channel)
            note(kind, channel, (uint64_t)count);
        errno = kept;
    }
    return count;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define CALL(type, name, params, kind, ...)                                            \
    HIDDEN type name params                                                            \
    {                                                                                  \
        static __typeof__(&name) real;                                                 \
        if (!real)                                                                     \
            real = REAL(name);                                                         \
        return moved(fd, kind, real(__VA_ARGS__));                                     \
    }

CALL(ssize_t, read, (int fd, void *at, size_t n), READ, fd, at, n)
CALL(ssize_t, readv, (int fd, const struct iovec *v, int n), READ, fd, v, n)
CALL(ssize_t, recv, (int fd, void *at, size_t n, int flags),
     flags &MSG_PEEK ? NOTHING : READ, fd, at, n, flags)
CALL(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), READ, fd, m, flags)
CALL(ssize_t, write, (int fd, const void *at, size_t n), WRITTEN, fd, at, n)
CALL(ssize_t, writev, (int fd, const struct iovec *v, int n), WRITTEN, fd, v, n)
CALL(ssize_t, send, (int fd, const void *at, size_t n, int flags), WRITTEN, fd, at, n,
     flags)
CALL(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), WRITTEN, fd, m,
     flags)

HIDDEN int socketpair(int domain, int type, int protocol, int fds[2])
{
    static __typeof__(&socketpair) real;

    if (!real)
        real = REAL(socketpair);
    int rc = real(domain, type, protocol, fds);
    if (rc == 0)
        note(PAIRED, channel_of(fds[0], true), channel_of(fds[1], true));
    return rc;
}
