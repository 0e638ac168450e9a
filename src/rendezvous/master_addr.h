/* master_addr.h - the driver of rendezvous/core/master_addr.h: finds out where the
 * workers of a round find their store, and serves that store if this agent has to. */
#ifndef RENDEZVOUS_MASTER_ADDR_H
#define RENDEZVOUS_MASTER_ADDR_H

#include "base/log.h"
#include "rendezvous/core/cas_node.h"
#include "store/async_store.h"

struct auth;
struct rdzv_master;
struct store_server_stats;

struct rdzv_master_opts {
    const char *run_id;    /* copied */
    const char *addr;      /* our own, to be published; copied */
    const char *bind;      /* rdzv-conf bind, or empty; copied */
    struct auth *auth;     /* the job's secret, or NULL */
    bool many;             /* several nodes may come */
    bool share;            /* agents serve the workers' store */
    uint64_t timeout_ms;   /* how long it may take to learn the address */
    const struct log *log; /* borrowed, may be NULL */
};

struct rdzv_master_job {
    uint64_t round;
    int64_t rank;
    bool all_read; /* no node of the round remembers an address */
    bool alone;    /* there is no other node in it */
    bool wipe;     /* no worker of this round has started yet */
    bool told; /* the run passes the address on; to the others than rank 0: this one */
    const char *told_host; /* copied */
    uint16_t told_port;
    const struct rdzv_node *members; /* borrowed until the callback; in rank order */
    size_t count;
    struct async_store *store; /* without prefix; borrowed until the callback */
};

enum rdzv_master_end {
    RDZV_MASTER_KNOWN,  /* addr, borrowed until the next start or close, and port */
    RDZV_MASTER_REJOIN, /* the store was restarted and lost it: join the next round */
    RDZV_MASTER_FAILED, /* err */
};

typedef void (*rdzv_master_cb)(void *ctx, enum rdzv_master_end end, const char *addr,
                               uint16_t port, const struct muster_error *err);

int rdzv_master_new(uv_loop_t *loop, const struct rdzv_master_opts *opts,
                    struct rdzv_master **out, struct muster_error *err);

/* Changes our own address; only while nothing is under way. */
void rdzv_master_set_addr(struct rdzv_master *m, const char *addr);

/* One at a time. The callback comes from the loop, unless the job is cancelled before.
 * The workers' keys of earlier attempts are removed, or their server is closed. */
int rdzv_master_start(struct rdzv_master *m, const struct rdzv_master_job *job,
                      rdzv_master_cb cb, void *ctx, struct muster_error *err);
void rdzv_master_cancel(struct rdzv_master *m);

/* Opens the server of the next round ahead, if each round has one of its own and we
 * serve the current one. Its port, or 0. */
uint16_t rdzv_master_prepare(struct rdzv_master *m);

/* Whether a job is under way; *by_ms is its deadline. False for NULL. */
bool rdzv_master_waits(const struct rdzv_master *m, uint64_t *by_ms);

/* Whether this process serves the workers' store. False for NULL. */
bool rdzv_master_serves(const struct rdzv_master *m);

/* Adds to *to what the workers' stores that this process served have done in all rounds
 * so far, and what the current one holds. False if it serves none now, and for NULL. */
bool rdzv_master_stats(const struct rdzv_master *m, struct store_server_stats *to);

/* Writes to the store that this process serves: how many there were, and when the first
 * one since the last call came. */
uint64_t rdzv_master_writes(const struct rdzv_master *m);
uint64_t rdzv_master_first_write_ms(struct rdzv_master *m);

/* Ends the server, too. cb may be NULL. If m is NULL or has nothing to close, cb is
 * called at once. */
void rdzv_master_close(struct rdzv_master *m, void (*cb)(void *ctx), void *ctx);

#endif
