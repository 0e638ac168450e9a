/* master_addr.h - the driver of rendezvous/core/master_addr.h: finds where the workers
 * of a round find their store, and serves it if that is this agent's part. */
#ifndef RENDEZVOUS_MASTER_ADDR_H
#define RENDEZVOUS_MASTER_ADDR_H

#include "base/trace.h"
#include "rendezvous/core/cas_node.h"
#include "store/async_store.h"

struct auth;
struct rdzv_master;
struct store_server_stats;

struct rdzv_master_opts {
    const char *run_id;        /* copied */
    const char *addr;          /* our own, to be announced; copied */
    const char *bind;          /* rdzv-conf bind, or empty; copied */
    struct auth *auth;         /* the job's secret, or NULL */
    bool many;                 /* several nodes may come */
    bool share;                /* agents serve the workers' store */
    uint64_t timeout_ms;       /* to learn the address */
    const struct trace *trace; /* borrowed, may be NULL */
};

struct rdzv_master_job {
    uint64_t round;
    int64_t rank;
    bool ours;                       /* no node of it remembers an address */
    bool alone;                      /* nor any other node */
    bool wipe;                       /* no worker of this round has started yet */
    const struct rdzv_node *members; /* borrowed until it is done; in rank order */
    size_t count;
    struct async_store *store; /* without prefix; borrowed until it is done */
};

enum rdzv_master_end {
    RDZV_MASTER_KNOWN,  /* addr and port; addr is borrowed until the next start or close
                         */
    RDZV_MASTER_REJOIN, /* the store came back without it: join the next round */
    RDZV_MASTER_FAILED, /* err */
};

typedef void (*rdzv_master_cb)(void *ctx, enum rdzv_master_end end, const char *addr,
                               uint16_t port, const struct muster_error *err);

int rdzv_master_new(uv_loop_t *loop, const struct rdzv_master_opts *opts,
                    struct rdzv_master **out, struct muster_error *err);

/* Another address of our own to announce; while nothing is under way. */
void rdzv_master_set_addr(struct rdzv_master *m, const char *addr);

/* One at a time. The callback comes from the loop, unless it is cancelled before. The
 * workers' keys of earlier attempts are forgotten, or their server goes. */
int rdzv_master_start(struct rdzv_master *m, const struct rdzv_master_job *job,
                      rdzv_master_cb cb, void *ctx, struct muster_error *err);
void rdzv_master_cancel(struct rdzv_master *m);

/* True while it is under way; *by_ms: until when. NULL m is not. */
bool rdzv_master_waits(const struct rdzv_master *m, uint64_t *by_ms);

/* Whether this process serves the workers' store. NULL m does not. */
bool rdzv_master_serves(const struct rdzv_master *m);

/* What the workers' stores that this process served have done in all rounds so far, and
 * what today's holds, added to *to; false: it serves none now. NULL m does not. */
bool rdzv_master_stats(const struct rdzv_master *m, struct store_server_stats *to);

/* To the store that this process serves; the latter since the last call. */
uint64_t rdzv_master_writes(const struct rdzv_master *m);
uint64_t rdzv_master_first_write_ms(struct rdzv_master *m);

/* Ends the server, too. cb may be NULL; NULL m calls cb at once, and so does one that
 * has nothing to close. */
void rdzv_master_close(struct rdzv_master *m, void (*cb)(void *ctx), void *ctx);

#endif
