/* rdzv_master_int.h - what the files of rdzv_master.h share: rdzv_master.c (begin, end,
 * what is decided), rdzv_master_keys.c (the keys of a round), rdzv_master_back.c (an
 * earlier round's server). */
#ifndef IO_RDZV_MASTER_INT_H
#define IO_RDZV_MASTER_INT_H

#include "io/rdzv_master.h"
#include "io/store_server.h"

struct master_address {
    char *host; /* owned, or NULL */
    uint16_t port;
};

struct rdzv_master {
    uv_loop_t *loop;
    uv_timer_t timer;
    char *run_id, *addr; /* owned */
    bool share;
    uint64_t timeout_ms;
    const struct trace *trace;
    size_t refs; /* the timer, and each thing that is closing */
    bool closing;
    void (*on_gone)(void *ctx);
    void *gone_ctx;

    struct store_server *server; /* owned; for the handler's life once it is there */
    struct master_address known; /* of the last round */
    char *owner_addr; /* owned: the node that was rank 0 when it was announced */
    int64_t owner_pid, owner_id;

    struct rdzv_master_job job;
    rdzv_master_cb cb; /* NULL: idle */
    void *ctx;
    unsigned turn; /* answers to an older job are ignored */
    uint64_t started_ms, by_ms;
    uint64_t back;               /* the earlier round that is being looked at, plus 1 */
    struct master_address found; /* there; being probed */
    struct astore *probe;        /* owned */
};

/* A callback's context that outlives the job it was made for. */
struct master_ask {
    struct rdzv_master *m;
    unsigned turn;
};

/* MASTER_ADDR and MASTER_PORT of a round. */
struct master_keys {
    char addr[8192], port[8192];
    struct span both[2]; /* point to the two above: not to be copied */
};

/* rdzv_master.c: how it ends, and the address that counts from now on. */
void master_finish(struct rdzv_master *m, int status, const struct muster_error *err);
void master_fail(struct rdzv_master *m, int code, const struct muster_error *err);
int master_take(struct rdzv_master *m, const char *host, uint16_t port);
void master_drop_probe(struct rdzv_master *m);
void master_release(struct rdzv_master *m);

/* rdzv_master_keys.c */
struct master_ask *master_ask_new(struct rdzv_master *m); /* NULL: out of memory */
void master_ask_free(struct master_ask *a);
void master_keys(const struct rdzv_master *m, uint64_t round, struct master_keys *out);
bool master_parse(const struct c10d_reply *reply, char host[1025], uint16_t *port);
void master_publish(struct rdzv_master *m); /* what is known */
void master_publish_own(struct rdzv_master *m);
void master_wait(struct rdzv_master *m); /* for what rank 0 publishes */

/* rdzv_master_back.c: begins at the round before m->back; then publishes or waits. */
void master_look_back(struct rdzv_master *m);
void master_probe(struct rdzv_master *m, const char *host, uint16_t port);

#endif
