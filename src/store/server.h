/* server.h - a c10d store for real PyTorch clients, on a uv loop.
 *
 * It owns the engine (store/core/store.c) and the connections. It never asks a resolver
 * for a peer's name. */
#ifndef STORE_SERVER_H
#define STORE_SERVER_H

#include <uv.h>

#include "auth/core/auth.h"
#include "base/base.h"
#include "base/log.h"
#include "muster/error.h"
#include "net/core/interfaces.h"

struct store_server;
struct store_extension;

struct store_server_opts {
    const char *bind;    /* numeric address; "localhost": 127.0.0.1 and ::1; NULL: every
                            address, IPv6 and IPv4 */
    uint16_t port;       /* 0: any free one */
    int fd;              /* an already bound or listening socket, or -1; owned once open
                            has succeeded */
    int backlog;         /* 0: the system's maximum */
    uint64_t request_ms; /* for a connection's first request, and for each request from
                            its first byte to its last; 0: default */
    size_t max_input, max_output; /* per connection; 0: defaults */
    size_t max_held;       /* bytes of unfinished requests and unread answers of all
                              connections; 0: default */
    uint64_t seed;         /* of the hash map; 0: random */
    bool dialect_a;        /* take old clients for PyTorch <= 2.0 rather than 2.1 */
    const struct log *log; /* borrowed, may be NULL */
    struct auth *auth;     /* the job's secret, or NULL: anybody is served */
    /* What lives in this store beside its keys, or NULL. Borrowed, a constant. */
    const struct store_extension *extension;
};

void store_server_opts_init(struct store_server_opts *o);

/* The server is bound and listening on return. Errors: MUSTER_EINUSE, EACCES, EINVAL,
 * EIO. */
int store_server_open(uv_loop_t *loop, const struct store_server_opts *opts,
                      struct store_server **out, struct muster_error *err);

uint16_t store_server_port(const struct store_server *s);
const char *store_server_address(const struct store_server *s); /* "[::]:29400" */
/* Where a client in this process reaches it: "127.0.0.1", or the address that it is
 * bound to. */
const char *store_server_own_host(const struct store_server *s);
/* The address of this machine by which one of its clients came, unless all came by
 * loopback addresses. */
bool store_server_reached_at(const struct store_server *s, char out[IP_TEXT]);
/* How many there are; with a secret, only those that are admitted. */
size_t store_server_connections(const struct store_server *s);
/* Whether a node whose connection broke a moment ago may still come back. */
bool store_server_awaits(const struct store_server *s);

/* What the store has done since it was opened, and what it holds now. */
struct store_server_stats {
    uint64_t requests, answers, bytes_in, bytes_out;
    uint64_t writes; /* requests that change keys other than reserved ones */
    size_t connections, keys;
};
void store_server_stats(const struct store_server *s, struct store_server_stats *out);
/* Adds the statistics of s; NULL has none. */
void store_server_stats_add(struct store_server_stats *to,
                            const struct store_server *s);

/* When the first write since the last call came, in loop time; 0: there was none. */
uint64_t store_server_first_write_ms(struct store_server *s);

/* Forgets every key and queue, as before a new attempt of the workers. Connections
 * stay; waits that are pending stay. */
void store_server_wipe(struct store_server *s);

/* Runs the loop until the server is closed and its callback was called. It is a little
 * faster than uv_run, for a program whose loop has little else to do. */
void store_server_run(struct store_server *s);

/* Raises this process's limit of open files as far as it may, up to STORE_SERVER_MANY.
 * Children inherit the limit, so only a process that does little but serve a store
 * should do this. */
#define STORE_SERVER_MANY 65536u
void store_server_allow_many(void);

/* Closes every connection, then calls cb (may be NULL); s is gone by then. */
void store_server_close(struct store_server *s, void (*cb)(void *ctx), void *ctx);

#endif
