/* server_int.h - what the files of the store server share: server.c (the driver),
 * server_conn.c (bytes in and out of one connection), server_auth.c and server_lanes.c.
 * Its extension uses store/extension.h instead. */
#ifndef STORE_SERVER_INT_H
#define STORE_SERVER_INT_H

#include "net/listen.h"
#include "store/core/reserved.h"
#include "store/core/store.h"
#include "store/core/wire.h"
#include "store/extension.h"
#include "store/server.h"

/* One client. There may be many, mostly idle, so buffers exist only while something is
 * in them. */
struct conn {
    int fd;
    uint32_t peer; /* its number in the store */
    bool known;    /* has sent a whole request */
    bool timed;    /* in the list of deadlines */
    bool admitted; /* with a secret: it has proven itself, or is taken for a worker */
    bool worker_only; /* admitted without a proof: may do what a worker may, no more */
    bool notified;    /* a torchrun that has been told that it cannot join */
    bool encrypts;    /* encryption begins as soon as the answers are sent */
    bool dead;        /* closed; freed at the end of the turn */
    bool ended;       /* the peer will send no more: close when all is written */
    bool wants_write; /* epoll reports when there is room again */
    struct c10d_decoder decoder;
    struct buf *in;  /* owned; the beginning of a request, or NULL */
    struct buf *out; /* owned; what the peer has not yet taken, or NULL */
    struct extension_conn extension; /* what the extension knows of it */
    struct conn *prev, *next;        /* in `timed`, `leaving` or `gone` */
    struct conn_proof *proof;        /* owned; with a secret: see server_auth.c */
    struct tls *tls;                 /* owned; with encryption, once it is proven */
    uint64_t due_ms;                 /* in `timed`: closed then */
    size_t held;          /* bytes of its buffers, as counted in the server's */
    struct lanes *lanes;  /* owned; if it carries others: see server_lanes.c */
    struct conn *carrier; /* borrowed; the connection that carries it, or NULL */
    uint32_t lane, room;  /* its number there; bytes that may be sent to it */
};

struct conns {
    struct conn *first, *last; /* borrowed */
};

/* GET of STATS_KEY answers "requests N answers N bytes_in N bytes_out N connections N
 * keys N", counted since the server was opened, so that anybody can find out what a run
 * costs. Like all reserved keys it is not an entry of the store. */
#define STATS_KEY RESERVED_STATS

struct server_stats {
    uint64_t requests, answers, bytes_in, bytes_out;
    uint64_t writes;         /* requests that change keys other than reserved ones */
    uint64_t first_write_ms; /* see store_server_first_write_ms() */
};

struct store_server {
    uv_loop_t *loop;  /* borrowed */
    uv_poll_t poll;   /* on `epoll` */
    uv_timer_t timer; /* the first deadline of `timed`, or when to accept again */
    int closing;      /* handles still to be closed by libuv; 0: running */
    void (*closed)(void *ctx);
    void *closed_ctx;

    struct store_server_opts opts;
    int epoll, listener; /* owned */
    int listener6;       /* owned; ::1 beside 127.0.0.1, or -1 */
    bool *over;    /* borrowed; in store_server_run: set when the server is closed */
    unsigned naps; /* in store_server_run: very short sleeps in a row */
    bool may_wait_awake;  /* the clients may be on another processor */
    bool paused;          /* out of descriptors: does not accept */
    uint64_t complain_ms; /* when to log again that there are no descriptors */
    char address[ADDRESS_TEXT];
    uint16_t port;
    char own_host[64]; /* where this process reaches it */

    struct store *store;               /* owned */
    struct extension_state *extension; /* owned; NULL until its first message */
    struct store_fx fx;
    struct conn **conns; /* owned, as is each; by peer number */
    size_t conns_size, count;
    uint32_t *numbers; /* owned; a stack of free peer numbers, as large as conns */
    size_t free_numbers;
    size_t old_peers;     /* of PyTorch before 2.2, open now */
    struct conns timed;   /* by deadline: not yet known, or ended and slow to read */
    struct conns leaving; /* closed, but the engine has not been told yet */
    struct conns gone;    /* freed at the end of the turn */

    struct server_auth *auth; /* owned; NULL without a secret */
    struct conn *to_send;     /* borrowed; carriers that have something to send */
    bool in_turn; /* events are being handled; `to_send` is sent after them */
    struct log_rate refused; /* limits log lines about refused connections */
    struct server_stats stats;
    size_t held; /* bytes of unfinished requests and unread answers, of all */

    struct conn *serving; /* its requests run now, and its replies gather in `out` */
    uint64_t at;          /* where in its stream the current request begins */
    struct buf out;
    struct buf one; /* a reply to another connection */
    uint8_t
        *shared; /* owned; bytes are read to here first; NULL until the first read */
};

#define SHARED_SIZE 65536u
#define CONN_READS  ((uint32_t)(EPOLLIN | EPOLLRDHUP))

/* NULL without memory; else a peer number is reserved for server_take_conn. */
struct conn *server_new_conn(struct store_server *s);
void server_take_conn(struct store_server *s, struct conn *c);
int server_request(struct store_server *s, struct conn *c,
                   const struct c10d_request *req);
void server_known(struct store_server *s, struct conn *c); /* its first request came */
void server_time(struct store_server *s, struct conn *c);  /* it gets a deadline */
void server_untime(struct store_server *s, struct conn *c);

/* server_auth.c: which connection may ask for what, if the job has a secret. */
int server_auth_open(struct store_server *s, struct muster_error *err);
void server_auth_free(struct store_server *s);
/* Counts a new connection; false: there is no memory. If there are too many connections
 * without a proof, the oldest one is closed. */
bool server_auth_came(struct store_server *s, struct conn *c);
void server_auth_left(struct store_server *s, struct conn *c);
/* Admits a connection that comes inside one that has proven itself. */
void server_auth_carried(struct store_server *s, struct conn *c);
/* A request of a connection that is not admitted. True: it has been handled. */
bool server_auth_gate(struct store_server *s, struct conn *c,
                      const struct c10d_request *req);
/* Refuses a handshake message to a server without a secret, or out of turn. */
void server_auth_refuse(struct store_server *s, struct conn *c);
/* Begins encryption: the answers are sent. rest is what the peer has sent behind its
 * proof. */
void server_auth_encrypt(struct store_server *s, struct conn *c, struct span rest);
/* Finds out which user's process the peer is, if that may matter. Call it before the
 * answers are sent, while the peer still waits for them. */
void server_auth_find_user(struct store_server *s, struct conn *c);
/* Admits a connection without a proof if it is that of a worker; else false. */
bool server_auth_admits_plain(struct store_server *s, struct conn *c);
/* A request of a connection that was admitted as a worker. True: it was for keys of the
 * agents, and has been handled. */
bool server_auth_worker_gate(struct store_server *s, struct conn *c,
                             const struct c10d_request *req);
/* c holds c->held bytes now and held `before` until now. False: connections without a
 * proof hold too many. */
bool server_auth_held(struct store_server *s, struct conn *c, size_t before);
size_t server_auth_admitted(const struct store_server *s); /* connections */
bool server_auth_is_message(const struct c10d_request *req);

#define UNPROVEN_INPUT 65536u /* bytes of a request before the proof */

/* server_lanes.c */
/* True if the request asks that c carry other connections; c does so from now on, or
 * was refused. */
bool server_lanes_take(struct store_server *s, struct conn *c,
                       const struct c10d_request *req);
void server_lanes_free(struct store_server *s, struct conn *c); /* closes all in it */
void server_lanes_bytes(struct store_server *s, struct conn *carrier,
                        struct span bytes);
void server_lanes_flush(struct store_server *s);
/* Like write_some, for a connection that is carried; -1: its carrier is gone. */
ssize_t server_lanes_write(struct store_server *s, struct conn *c, struct span bytes);
void server_lanes_closed(struct store_server *s, struct conn *c);

/* server_conn.c */
/* There is something to read, and, if hung_up, the end of the stream or an error. */
void conn_read(struct store_server *s, struct conn *c, bool hung_up);
void conn_flush(struct store_server *s, struct conn *c); /* there is room to write */
void conn_send(struct store_server *s, struct conn *c, struct span bytes);
/* Handles bytes that came from the peer. */
void conn_take(struct store_server *s, struct conn *c, struct span bytes);
/* The peer sends no more; c is closed when all its answers are written. */
void conn_end(struct store_server *s, struct conn *c);
/* Closes c at once. It is freed later, and so are the bytes of the request that is
 * being served. */
void conn_close(struct store_server *s, struct conn *c);
void conn_too_much(struct store_server *s,
                   struct conn *c); /* refuses it: unread answers */

void conns_append(struct conns *list, struct conn *c);
void conns_remove(struct conns *list, struct conn *c); /* for lists with prev */
struct conn *conns_take(struct conns *list);           /* the first, or NULL */
void conns_free(struct conns *list);                   /* each of them */

#endif
