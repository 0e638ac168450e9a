/* crowd.c - `muster-bench crowd MODE`: many clients of a c10d store at once.
 *
 *   join    connect, VALIDATE, PING, ADD; then all WAIT for what the last one sets
 *   wake    all WAIT for a key; from its SET to the last answer
 *   idle    connect and say hello, then stay until stdin ends
 *   fill    SET --count keys with values of --size bytes
 *   start   run the command behind `--`; from there to the first answer of its store */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "net.h"

static void add_wait(struct message *m, const char *key)
{
    message_u8(m, 6);
    message_u64(m, 1);
    message_bytes(m, key, strlen(key));
}

static void add_set(struct message *m, const char *key, const void *value, size_t n)
{
    message_u8(m, 1);
    message_bytes(m, key, strlen(key));
    message_bytes(m, value, n);
}

/* One that the server has not seen, however often it was asked before. */
static void new_key(char key[64], const char *what)
{
    (void)snprintf(key, 64, "/%s/%d/%llu", what, (int)getpid(),
                   (unsigned long long)net_ns());
}

/* Waits until each of the sockets in the set has said one byte. */
static void until_all_woken(int ep, size_t count)
{
    struct epoll_event events[512];

    while (count) {
        const int n = epoll_wait(ep, events, 512, 0);

        for (int i = 0; i < n; i++) {
            char byte;

            if (recv(events[i].data.fd, &byte, 1, 0) != 1 || byte != 0)
                net_die("a wait was not answered");
            count--;
        }
    }
}

static void watch(int ep, int fd)
{
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.fd = fd };

    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0)
        net_die("epoll_ctl");
}

/* What N ranks do at the start of a job, as fast as one process can ask: each step for
 * all clients before the next, so that the server always has work. */
static int join(const struct net_args *a)
{
    int *fds = calloc(a->count, sizeof *fds);
    const int ep = epoll_create1(EPOLL_CLOEXEC);
    const uint64_t start = net_ns(), cpu = net_cpu_ns(a->server);
    struct message hello = { .n = 0 }, add = { .n = 0 }, wait = { .n = 0 },
                   set = { .n = 0 };
    uint64_t connected, joined, answer, last = 0;
    char key[64];

    message_hello(&hello, 7);
    new_key(key, "joined");
    message_u8(&add, 4);
    message_bytes(&add, key, strlen(key));
    message_u64(&add, 1);
    new_key(key, "all");
    add_wait(&wait, key);
    add_set(&set, key, "1", 1);
    for (size_t i = 0; i < a->count; i++) {
        fds[i] = net_connect(a->port);
        net_send(fds[i], hello.bytes, hello.n);
    }
    for (size_t i = 0; i < a->count; i++)
        net_take_awake(fds[i], &answer, 4);
    connected = net_ns();
    for (size_t i = 0; i < a->count; i++)
        net_send(fds[i], add.bytes, add.n);
    for (size_t i = 0; i < a->count; i++) {
        net_take_awake(fds[i], &answer, 8);
        last = answer > last ? answer : last;
        net_send(fds[i], wait.bytes, wait.n);
        watch(ep, fds[i]);
    }
    joined = net_ns();
    if (last < a->count)
        net_die("the count is wrong");
    net_send(fds[a->count - 1], set.bytes, set.n);
    until_all_woken(ep, a->count);
    printf("{\"bench\": \"join\", \"clients\": %zu, \"seconds\": %.6f, "
           "\"connect_s\": %.6f, \"add_s\": %.6f, \"wake_s\": %.6f, "
           "\"server_cpu_s\": %.6f, \"own_cpu_s\": %.6f}\n",
           a->count, (double)(net_ns() - start) / 1e9,
           (double)(connected - start) / 1e9, (double)(joined - connected) / 1e9,
           (double)(net_ns() - joined) / 1e9,
           (double)(net_cpu_ns(a->server) - cpu) / 1e9,
           (double)net_cpu_ns(getpid()) / 1e9);
    return 0;
}

static int wake(const struct net_args *a)
{
    const int ep = epoll_create1(EPOLL_CLOEXEC), setter = net_connect(a->port);
    struct message hello = { .n = 0 }, wait = { .n = 0 }, set = { .n = 0 };
    char key[64];
    uint64_t start, cpu, own;
    uint32_t answer;

    new_key(key, "wake");
    message_hello(&hello, 7);
    add_wait(&wait, key);
    /* A PING behind the WAIT: when it is answered, the wait is on. */
    static const uint8_t ping[] = { 0x0d, 1, 2, 3, 4 };
    add_set(&set, key, "1", 1);
    net_send(setter, hello.bytes, hello.n);
    net_take_awake(setter, &answer, 4);
    for (size_t i = 0; i < a->count; i++) {
        const int fd = net_connect(a->port);

        net_send(fd, hello.bytes, hello.n);
        net_take_awake(fd, &answer, 4);
        net_send(fd, wait.bytes, wait.n);
        net_send(fd, ping, sizeof ping);
        net_take_awake(fd, &answer, 4);
        watch(ep, fd);
    }
    start = net_ns();
    cpu = net_cpu_ns(a->server);
    own = net_cpu_ns(getpid());
    net_send(setter, set.bytes, set.n);
    until_all_woken(ep, a->count);
    printf("{\"bench\": \"wake\", \"clients\": %zu, \"seconds\": %.6f, "
           "\"server_cpu_s\": %.6f, \"own_cpu_s\": %.6f}\n",
           a->count, (double)(net_ns() - start) / 1e9,
           (double)(net_cpu_ns(a->server) - cpu) / 1e9,
           (double)(net_cpu_ns(getpid()) - own) / 1e9);
    return 0;
}

static int idle(const struct net_args *a)
{
    struct message hello = { .n = 0 };
    uint32_t answer;
    char line[8];

    message_hello(&hello, 7);
    for (size_t i = 0; i < a->count; i++) {
        const int fd = net_connect(a->port);

        net_send(fd, hello.bytes, hello.n);
        net_take(fd, &answer, 4);
    }
    printf("ready\n");
    (void)fflush(stdout);
    while (read(STDIN_FILENO, line, sizeof line) > 0)
        ;
    return 0;
}

static int fill(const struct net_args *a)
{
    const int fd = net_connect(a->port);
    struct message m = { .n = 0 };
    uint8_t value[256];
    uint64_t answer;
    char key[32];

    if (a->size > sizeof value)
        return 2;
    memset(value, 'v', sizeof value);
    message_hello(&m, 7);
    net_send(fd, m.bytes, m.n);
    net_take(fd, &answer, 4);
    for (size_t i = 0; i < a->count; i++) {
        m.n = 0;
        (void)snprintf(key, sizeof key, "/key/%07zu", i);
        add_set(&m, key, value, a->size);
        net_send(fd, m.bytes, m.n);
    }
    m.n = 0;
    message_u8(&m, 7);
    net_send(fd, m.bytes, m.n);
    net_take(fd, &answer, 8);
    printf("{\"bench\": \"fill\", \"keys\": %llu}\n", (unsigned long long)answer);
    return answer < a->count;
}

/* Reads "listening on ...:PORT" from the child. */
static uint16_t announced(int fd)
{
    char line[256], *colon;
    size_t n = 0;

    while (n < sizeof line - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    colon = strrchr(line, ':');
    if (!colon)
        net_die("the server did not say where it listens");
    return (uint16_t)atoi(colon + 1);
}

static int start(const struct net_args *a)
{
    struct message hello = { .n = 0 };
    const uint64_t begin = net_ns();
    uint32_t answer;
    uint64_t end;
    int pipes[2], fd, status;
    pid_t pid;

    if (pipe(pipes) < 0 || (pid = fork()) < 0)
        net_die("fork");
    if (pid == 0) {
        (void)dup2(pipes[1], STDOUT_FILENO);
        (void)close(pipes[0]);
        (void)execvp(a->rest[0], a->rest);
        _exit(127);
    }
    (void)close(pipes[1]);
    message_hello(&hello, 7);
    fd = net_connect(announced(pipes[0]));
    net_send(fd, hello.bytes, hello.n);
    net_take(fd, &answer, 4);
    end = net_ns();
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &status, 0);
    printf("{\"bench\": \"start\", \"seconds\": %.6f}\n", (double)(end - begin) / 1e9);
    return 0;
}

int bench_crowd(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct net_args *a);
    } modes[] = {
        { "join", join }, { "wake", wake },   { "idle", idle },
        { "fill", fill }, { "start", start },
    };
    struct net_args a;

    if (argc > 1) {
        net_parse(argc - 1, argv + 1, &a);
        net_allow_many();
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
            if (strcmp(argv[1], modes[i].name) == 0)
                return modes[i].run(&a);
        }
    }
    fputs("usage: muster-bench crowd join|wake|idle|fill|start [options]\n", stderr);
    return 2;
}
