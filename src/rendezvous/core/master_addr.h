/* master_addr.h - where the workers of a round find their store: MASTER_ADDR and
 * MASTER_PORT, agreed upon through the agents' store. Pure; rendezvous/master_addr.c
 * drives it.
 *
 * With the shared store (torch's default) an agent serves the workers' store; otherwise
 * worker 0 does, and rank 0 only names a free port. torch's nodes remember the first
 * address that they got and never look again. So our nodes keep an address in use for
 * as long as the node that serves it is in the round, and publish it again in every
 * round, for newcomers.
 *
 * Where all nodes are known to be ours, none of them remembers an address, and each
 * round has a server of its own. On the old server, a worker of a lost node that has
 * not noticed yet would meet the workers of the next round and mislead them.
 *
 * Rank 0 takes the address of the last round if the node that serves it is still there
 * and answers, else its own server, and publishes it under the round's prefix. The
 * others take what rank 0 publishes in this round. If it publishes nothing, rank 0 is
 * torch's and relies on what it published in an earlier round; then they take the
 * newest one that carries its name, if a store answers there. */
#ifndef RENDEZVOUS_CORE_MASTER_ADDR_H
#define RENDEZVOUS_CORE_MASTER_ADDR_H

#include "rendezvous/core/state.h"
#include "store/core/dialogue.h"

#define MASTER_HOST_MAX 1024u
#define MASTER_MAX_BACK 64u /* how many rounds to look back for an address */

struct master_address {
    char host[MASTER_HOST_MAX + 1]; /* empty: none */
    uint16_t port;
};

enum master_stage {
    MASTER_SERVING,    /* a DO of SERVE or FREE_PORT is under way */
    MASTER_PUBLISHING, /* rank 0 publishes `known` */
    MASTER_WAITING,    /* for what rank 0 publishes in this round */
    MASTER_CHECKING,   /* whether an earlier round has an address */
    MASTER_READING,    /* which address that is */
    MASTER_PROBING,    /* whether a store answers there: a DO of PROBE */
};

/* What a DO asks the driver for. */
enum master_do {
    MASTER_SERVE,     /* a store for the workers; ANSWER's number is its port */
    MASTER_FREE_PORT, /* a free port; ANSWER's number is the port */
    MASTER_PROBE,     /* does a store answer at `found`? */
};

struct master_addr {
    struct store_dialogue dialogue; /* first */
    /* Fixed, set by the caller; texts borrowed: */
    const char *run_id;
    char addr[MASTER_HOST_MAX + 1]; /* our own, to be published */
    bool share;                     /* agents serve the workers' store */
    uint64_t timeout_ms;
    /* From earlier rounds: */
    struct master_address known;          /* and the outcome of this round */
    char owner_addr[MASTER_HOST_MAX + 1]; /* rank 0 when `known` was published; empty:
                                             unknown or too long */
    int64_t owner_pid, owner_id;
    uint16_t served_port; /* 0: we do not serve */
    bool remembered;      /* torchrun's nodes may remember an address of ours */
    /* This round: */
    uint64_t round;
    int64_t rank;
    bool all_read; /* no node in it remembers addresses, as torchrun's do */
    /* The run passes the address on: nothing is published or read. Rank 0 serves, and
     * the others have been told it. */
    bool told;
    struct master_address told_at;
    /* borrowed until the machine ends; in rank order, or rank 0 alone */
    const struct rdzv_node *members;
    size_t count;
    enum master_stage stage;
    uint64_t started_ms;
    uint64_t back;               /* the earlier round that we look at */
    struct master_address found; /* the address found there, which is being probed */
};

/* Begins a new round. The caller sets what is about this round before. */
void master_addr_reset(struct master_addr *m);

/* Whether each round needs a new server. */
bool master_addr_moves(const struct master_addr *m);

/* Ends with DONE (known), FAILED, or REJOIN if the store was restarted and lost what
 * rank 0 had published. A dialogue_step. */
int master_addr_step(struct store_dialogue *t, const struct dialogue_event *ev,
                     struct dialogue_fx *fx);

/* Adds to a c10d list the keys that rank 0 should delete once its own are published:
 * those of the latest round that nobody will look at any more, if there is one. torch
 * never deletes them; a job that restarts for weeks would fill the store. Returns 0 or
 * MUSTER_ENOMEM. */
int master_addr_old_keys(const struct master_addr *m, struct buf *list);

#endif
