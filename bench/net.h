/* net.h - what the parts of muster-bench share: sockets, clocks, options. A benchmark
 * that cannot do its work ends with a message: half a figure is none. */
#ifndef BENCH_NET_H
#define BENCH_NET_H

#include <stddef.h>
#include <stdint.h>

struct net_args {
    const char *mode;  /* first word */
    const char *proto; /* --proto c10d, resp, echo */
    const char *op;    /* --op add, get, check */
    uint16_t port;     /* --port */
    size_t count;      /* --count: connections, clients, keys */
    size_t size;       /* --size: of values, of messages */
    size_t reply;      /* --reply: bytes of an answer */
    double seconds;    /* --seconds */
    int server;        /* --server: process whose CPU time is measured, or 0 */
    int sleep;         /* --sleep: while there is nothing to read */
    char **rest;       /* behind -- */
};

void net_parse(int argc, char **argv, struct net_args *a);
void net_die(const char *what) __attribute__((noreturn));

uint64_t net_ns(void);
uint64_t net_cpu_ns(int pid); /* user and system, all threads; 0 if pid is 0 */
int net_serve(void);          /* listens on a free port, TCP_NODELAY, and says where */
int net_connect(uint16_t port); /* blocking, TCP_NODELAY, to 127.0.0.1 */
void net_nonblock(int fd);
void net_send(int fd, const void *p, size_t n); /* all of it; fd blocks */
void net_take(int fd, void *p, size_t n);
void net_take_awake(int fd, void *p, size_t n); /* the server is on another core */
void net_allow_many(void);

/* A c10d request, by hand: the generator shares no code with the server. */
struct message {
    uint8_t bytes[512];
    size_t n;
};
void message_u8(struct message *m, uint8_t v);
void message_u64(struct message *m, uint64_t v);
void message_bytes(struct message *m, const void *p, size_t n); /* with its length */
void message_hello(struct message *m, uint32_t nonce);          /* VALIDATE, PING */

#endif
