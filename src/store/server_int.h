/* server_int.h - what server.c (the driver) and server_conn.c (bytes in and out of one
 * connection) share; rendezvous/coordinator_driver.c reaches in, too. */
#ifndef STORE_SERVER_INT_H
#define STORE_SERVER_INT_H

#include "net/listen.h"
#include "store/core/reserved.h"
#include "store/core/store.h"
#include "store/core/wire.h"
#include "store/server.h"

struct conn;
struct coordinated_run;
struct coordinators;
struct job_hub;

/* What lives in a store beside its keys and is told of requests and lost connections:
 * the rendezvous of rendezvous/coordinator_driver.c. The store does not know it, so
 * that rendezvous may build on the store and not the other way round as well. */
struct store_tenant {
    /* True if the request is a message to the tenant; it has been dealt with then, and
     * *rc is 0 or MUSTER_ENOMEM. */
    bool (*take)(struct store_server *s, struct conn *c, const struct c10d_request *req,
                 int *rc);
    /* Around a request of anybody, once the tenant is there (store_server.hosts). */
    void (*before)(struct store_server *s, const struct c10d_request *req);
    void (*after)(struct store_server *s, const struct c10d_request *req);
    void (*left)(struct store_server *s, struct conn *c); /* its connection is gone */
    bool (*awaits)(const struct store_server *s); /* one of those is to come back */
    /* Ends the timer; everything else goes with free, once libuv has let go. */
    void (*close)(struct store_server *s, uv_close_cb cb);
    void (*free)(struct store_server *s);
};

/* One client. Most of them are idle most of the time, and there may be many: buffers
 * exist only while something is in them. */
struct conn {
    int fd;
    uint32_t peer;    /* its number in the store */
    bool known;       /* has sent a whole request */
    bool timed;       /* in the list of deadlines */
    bool admitted;    /* with a secret: proven, or of a proven member's machine */
    bool worker_only; /* admitted without a proof: a worker, and no more */
    bool notified;    /* it is torch's, and has been told that it cannot join */
    bool encrypts;    /* encryption begins as soon as the answers are out */
    bool joined;      /* a node that has sent JOIN; see coordinator_driver.c */
    bool dead;        /* closed; memory goes at the end of the turn */
    bool ended;       /* the peer will send no more: close when all is written */
    bool wants_write; /* epoll tells when there is room again */
    struct c10d_decoder decoder;
    struct buf *in;              /* owned; the beginning of a request, or NULL */
    struct buf *out;             /* owned; what the peer has not yet taken, or NULL */
    struct coordinated_run *run; /* borrowed; a node of this rendezvous, or NULL */
    struct job_hub *job;         /* borrowed; an agent of this job, or NULL */
    struct conn *prev, *next;    /* in `timed`, `leaving` or `gone` */
    struct conn_proof *proof;    /* owned; with a secret: see server_auth.c */
    struct tls *tls;             /* owned; with encryption, once it is proven */
    uint64_t due_ms;             /* in `timed`: closed then */
    size_t held;                 /* bytes of its buffers, as counted in the server's */
    struct lanes *lanes;         /* owned; if it carries others: see server_lanes.c */
    struct conn *carrier; /* borrowed; the one that carries it, which has no socket */
    uint32_t lane, room;  /* its number there; bytes that may be sent to it */
};

struct conns {
    struct conn *first, *last; /* borrowed */
};

/* What GET of STATS_KEY answers: "requests N answers N bytes_in N bytes_out N
 * connections N keys N", since the server was opened, for whoever wants to know what a
 * run costs. Like all reserved keys it is not an entry of the store. */
#define STATS_KEY RESERVED_STATS

struct server_stats {
    uint64_t requests, answers, bytes_in, bytes_out;
    uint64_t writes;         /* requests that change keys of the clients' own */
    uint64_t first_write_ms; /* since somebody asked; 0: none */
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
    unsigned naps; /* in store_server_run: sleeps in a row that were hardly any */
    bool may_wait_awake;  /* the clients may be on another processor */
    bool paused;          /* out of descriptors: does not accept */
    uint64_t complain_ms; /* when to speak again of being out of descriptors */
    char address[ADDRESS_TEXT];
    uint16_t port;
    char own_host[64]; /* where this process reaches it */

    struct store *store;        /* owned */
    struct coordinators *hosts; /* owned; NULL until a node of ours says HELLO */
    struct store_fx fx;
    struct conn **conns; /* owned, as is each; by peer number */
    size_t conns_size, count;
    uint32_t *numbers; /* owned; a stack of free peer numbers, as large as conns */
    size_t free_numbers;
    size_t old_peers;     /* of PyTorch before 2.2, open now */
    struct conns timed;   /* by deadline: not yet known, or ended and slow to read */
    struct conns leaving; /* closed, the store does not know yet */
    struct conns gone;    /* to be freed at the end of the turn */

    struct server_auth *auth;  /* owned; NULL without a secret */
    struct conn *talking;      /* borrowed; they carry others, and have to send */
    bool in_turn;              /* ... which is done when all events are dealt with */
    struct trace_rate refused; /* lines about them */
    struct server_stats stats;
    size_t held;     /* bytes of unfinished requests and unread answers, of all */
    size_t unjoined; /* nodes that have said HELLO and not yet JOIN */

    struct conn *serving; /* whose requests run now: its replies gather in `out` */
    uint64_t at;          /* where in its stream the request at hand begins */
    struct buf out;
    struct buf one;  /* a reply to somebody else */
    uint8_t *shared; /* owned; what is read lands here first; NULL: nothing was */
};

#define SHARED_SIZE 65536u
#define CONN_READS  ((uint32_t)(EPOLLIN | EPOLLRDHUP))

/* NULL without memory; else there is a number for it, until server_take_conn. */
struct conn *server_new_conn(struct store_server *s);
void server_take_conn(struct store_server *s, struct conn *c);
int server_request(struct store_server *s, struct conn *c,
                   const struct c10d_request *req);
void server_known(struct store_server *s, struct conn *c); /* its first request is in */
void server_time(struct store_server *s, struct conn *c);  /* it gets a deadline */
void server_untime(struct store_server *s, struct conn *c);

void server_set(struct store_server *s, const struct c10d_request *set); /* by us */
void server_send(struct store_server *s, struct conn *c, struct span bytes);
void server_end_turn(struct store_server *s); /* those closed meanwhile leave */
/* About one more that is refused: strangers must not fill the log. */
bool server_may_log(struct store_server *s);

/* server_auth.c: who may ask for what, if the job has a secret. */
int server_auth_open(struct store_server *s, struct muster_error *err);
void server_auth_free(struct store_server *s);
/* Counts a new connection; false: its address has too many that are not proven. */
bool server_auth_came(struct store_server *s, struct conn *c);
void server_auth_left(struct store_server *s, struct conn *c);
/* It comes inside a connection that has proven itself. */
void server_auth_carried(struct store_server *s, struct conn *c);
/* A request of a connection that is not admitted. True: it has been dealt with. */
bool server_auth_gate(struct store_server *s, struct conn *c,
                      const struct c10d_request *req);
/* A message of the handshake to a server without a secret, or out of turn. */
void server_auth_refuse(struct store_server *s, struct conn *c);
/* After the answers are out: encryption begins, if it was agreed on. rest: what the
 * peer has sent behind its proof. True if it was taken, or the connection is closed. */
bool server_auth_encrypt(struct store_server *s, struct conn *c, struct span rest);
/* The requests at hand are served, and the peer still waits for its answers. */
void server_auth_look(struct store_server *s, struct conn *c);
/* Whether a connection that has not proven anything is admitted all the same; it is
 * from then on. */
bool server_auth_admits_plain(struct store_server *s, struct conn *c);
/* A request of a connection that was admitted without a proof. True: it asked for
 * something of the agents', and has been dealt with. */
bool server_auth_is_closed(struct store_server *s, struct conn *c,
                           const struct c10d_request *req);
/* c holds c->held bytes now, `before` until now. False: strangers hold too many. */
bool server_auth_held(struct store_server *s, struct conn *c, size_t before);
size_t server_auth_admitted(const struct store_server *s); /* connections */
bool server_auth_is_message(const struct c10d_request *req);

#define UNPROVEN_INPUT 65536u /* bytes of a request before the proof */

/* server_lanes.c */
/* True if the request makes it a connection that carries others, or was refused. */
bool server_lanes_take(struct store_server *s, struct conn *c,
                       const struct c10d_request *req);
void server_lanes_free(struct store_server *s, struct conn *c); /* and all in it */
void server_lanes_bytes(struct store_server *s, struct conn *carrier,
                        struct span bytes);
void server_lanes_flush(struct store_server *s);
/* As write_some, for one that is carried; -1: its carrier is gone. */
ssize_t server_lanes_write(struct store_server *s, struct conn *c, struct span bytes);
void server_lanes_closed(struct store_server *s, struct conn *c);

/* server_conn.c */
/* There is something to read; hung_up: and the end of the stream, or an error. */
void conn_read(struct store_server *s, struct conn *c, bool hung_up);
void conn_flush(struct store_server *s, struct conn *c); /* there is room to write */
void conn_send(struct store_server *s, struct conn *c, struct span bytes);
void conn_take(struct store_server *s, struct conn *c, struct span bytes); /* they came
                                                                            */
/* The peer sends no more; when all that it asked for is out, it is closed. */
void conn_end(struct store_server *s, struct conn *c);
/* At once; c is freed later, and so are the bytes of a request that it is just served.
 */
void conn_close(struct store_server *s, struct conn *c);
/* With one line for whoever looks after the machine. */
void conn_refuse(struct store_server *s, struct conn *c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void conn_too_much(struct store_server *s, struct conn *c); /* leaves too much unread */

int conn_socket(const struct conn *c); /* its own, or that of the one that carries it */
/* The peer's address; an IPv4 one as ::ffff:a.b.c.d. All zero if it is gone. */
void conn_address(const struct conn *c, uint8_t ip[16]);

void conns_append(struct conns *list, struct conn *c);
void conns_remove(struct conns *list, struct conn *c); /* for lists with prev */
struct conn *conns_take(struct conns *list);           /* the first, or NULL */
void conns_free(struct conns *list);                   /* each of them */

#endif
