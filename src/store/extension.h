/* extension.h - what a store server offers to the part of us that lives in it beside
 * the keys, and what it asks of it. One server has at most one extension
 * (store_server_opts.extension). */
#ifndef STORE_EXTENSION_H
#define STORE_EXTENSION_H

#include "store/core/store.h"
#include "store/core/wire.h"
#include "store/server.h"

struct conn; /* a client of the server */
struct hosted;
struct extension_state; /* defined by the extension */

/* What lives in a store beside its keys, and learns of requests and lost connections:
 * the runs of our jobs. The store calls it through this table, so that it does not
 * depend on the rooms above it. */
struct store_extension {
    /* True if the request is a message to the extension. It has been handled then, and
     * *rc is 0 or MUSTER_ENOMEM. */
    bool (*take)(struct store_server *s, struct conn *c, const struct c10d_request *req,
                 int *rc);
    /* Around any other request, once the extension has a state. */
    void (*before)(struct store_server *s, const struct c10d_request *req);
    void (*after)(struct store_server *s, const struct c10d_request *req);
    void (*left)(struct store_server *s,
                 struct conn *c);                 /* a node's connection is gone */
    bool (*awaits)(const struct store_server *s); /* such a node may come back */
    /* Closes the timer; free() releases the rest once libuv has closed that. */
    void (*close)(struct store_server *s, uv_close_cb cb);
    void (*free)(struct store_server *s);
};

/* The extension of every store that may host a job. It is defined above us, in
 * job/run_driver.c, and declared here, so that whoever opens such a store need not know
 * that room. */
extern const struct store_extension run_extension;

/* What the extension knows of a connection. It is told when one is gone that has a run.
 */
struct extension_conn {
    struct hosted *run; /* borrowed; it belongs to a node of this run; or NULL */
    bool unjoined;      /* its node asks for a seat, and has not sent JOIN yet */
};

/* What the extension may use of the server. */
struct extension_host {
    uv_loop_t *loop;       /* borrowed, as all of these */
    const struct log *log; /* may be NULL */
    const char *address;   /* the server's, for messages */
    struct store *store;
    uint64_t seed; /* of hash maps */
};
struct extension_host server_extension_host(const struct store_server *s);

struct extension_state **
server_extension(struct store_server *s); /* NULL until it makes it */

struct conn *server_conn(struct store_server *s, uint32_t peer); /* open, or NULL */
struct extension_conn *conn_extension(struct conn *c);
uint32_t conn_peer(const struct conn *c);
bool conn_hung_up(const struct conn *c); /* the peer closed it in good order */
int conn_socket(const struct conn *c);   /* its own, or its carrier's */
/* The peer's address; an IPv4 one as ::ffff:a.b.c.d. All zero if it is gone. */
void conn_address(const struct conn *c, uint8_t ip[16]);
/* Closes c and logs why. */
void conn_refuse(struct store_server *s, struct conn *c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Performs a request of the server itself. */
void server_set(struct store_server *s, const struct c10d_request *set);
void server_send(struct store_server *s, struct conn *c, struct span bytes);
void server_reply(struct store_server *s, struct conn *c, const struct c10d_reply *r);
void server_end_turn(struct store_server *s); /* frees connections closed meanwhile */
/* Whether one more refused connection may be logged: nobody may fill the log. */
bool server_may_log(struct store_server *s);

#endif
