/* master_addr.h - where the workers of a round find their store: MASTER_ADDR and
 * MASTER_PORT, agreed upon through the agents' store. Pure; rendezvous/master_addr.c
 * drives it.
 *
 * With the shared store (torch's default) an agent serves it for the workers; else
 * worker 0 does, and rank 0 only names a free port. torch's nodes remember the first
 * address they got and never look again, so ours keep an address alive as long as its
 * server's node is a member, and announce it in every round, for newcomers.
 *
 * Where all nodes are known to be ours, nobody remembers anything: then each round has
 * a server of its own. A worker of a node that was lost, which has not heard of it yet,
 * would meet the workers of the next round in the old one, and mislead them.
 *
 * Rank 0: the address of the last round if its server's node is still there and
 * answers; else its own server; published under the round's prefix. Others: what rank 0
 * publishes in this round. If nothing comes, rank 0 is torch's and relies on what it
 * published in an earlier round: the newest one that carries its name, if somebody
 * answers there. */
#ifndef RENDEZVOUS_CORE_MASTER_ADDR_H
#define RENDEZVOUS_CORE_MASTER_ADDR_H

#include "rendezvous/core/state.h"
#include "store/core/talk.h"

#define MASTER_HOST_MAX 1024u
#define MASTER_MAX_BACK 64u /* rounds that whoever seeks an address looks back */

struct master_address {
    char host[MASTER_HOST_MAX + 1]; /* empty: none */
    uint16_t port;
};

enum master_stage {
    MASTER_SERVING,    /* DO SERVE or FREE_PORT is under way */
    MASTER_PUBLISHING, /* what is known */
    MASTER_WAITING,    /* for what rank 0 publishes */
    MASTER_CHECKING,   /* whether an earlier round has an address, */
    MASTER_READING,    /* which one, */
    MASTER_PROBING,    /* and whether it answers: DO PROBE */
};

/* What a DO asks the driver for. */
enum master_do {
    MASTER_SERVE,     /* a store for the workers; ANSWER's number is its port */
    MASTER_FREE_PORT, /* a port that is free; likewise */
    MASTER_PROBE,     /* does a store answer at `found`? */
};

struct master_addr {
    struct talk talk; /* first */
    /* Fixed, set by the caller; texts borrowed: */
    const char *run_id;
    char addr[MASTER_HOST_MAX + 1]; /* our own, to be announced */
    bool share;                     /* agents serve the workers' store */
    uint64_t timeout_ms;
    /* From earlier rounds: */
    struct master_address known;          /* the outcome, too */
    char owner_addr[MASTER_HOST_MAX + 1]; /* rank 0 when it was announced; empty:
                                             unknown, or longer than that */
    int64_t owner_pid, owner_id;
    uint16_t served_port; /* 0: we do not serve */
    bool remembered;      /* nodes of torchrun may know an address of ours */
    /* This round: */
    uint64_t round;
    int64_t rank;
    bool ours; /* no node of torchrun is in it, nor one that remembers as they do */
    /* borrowed until it is over; in rank order, or rank 0 alone */
    const struct rdzv_node *members;
    size_t count;
    enum master_stage stage;
    uint64_t started_ms;
    uint64_t back;               /* the earlier round that is looked at */
    struct master_address found; /* there; being probed */
};

/* A new round: round, rank, ours, members and count are set by the caller before. */
void master_addr_reset(struct master_addr *m);

/* Whether a server of ours has to be another one in each round. */
bool master_addr_moves(const struct master_addr *m);

/* Ends with DONE (known), FAILED, or REJOIN: the store came back without what rank 0
 * had published. A talk_step. */
int master_addr_step(struct talk *t, const struct talk_event *ev, struct talk_fx *fx);

/* Adds to a c10d list the keys that rank 0 should delete once its own are published:
 * those of the latest round that nobody will look at any more, if there is one. torch
 * leaves them for ever; a job that restarts for weeks would fill the store. 0, or
 * MUSTER_ENOMEM. */
int master_addr_old_keys(const struct master_addr *m, struct buf *list);

#endif
