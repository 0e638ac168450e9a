/* dynamic_int.h - the dynamic handler, shared by dynamic.c (rounds and their stores)
 * and dynamic_open.c (parameters, our name, opening). */
#ifndef RENDEZVOUS_DYNAMIC_INT_H
#define RENDEZVOUS_DYNAMIC_INT_H

#include <assert.h>

#include "base/err.h"
#include "loop/blocking_call.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/request_queue.h"
#include "rendezvous/core/state.h"
#include "rendezvous/handler_base.h"
#include "rendezvous/local_identity.h"
#include "rendezvous/master_addr.h"
#include "rendezvous/seat_session.h"
#include "rendezvous/state_backend.h"

/* Our name among the nodes, and for the workers if we are rank 0. */
struct dynamic_name {
    char addr[1025];
    int64_t pid, local_id;
    char where[1025]; /* MASTER_ADDR */
    bool resolves;    /* this machine's own name resolves */
};

/* Looks for nodes that were started differently. Another node may have been given
 * another --rdzv-id, so a member that waits asks the store for other runs. Or it may
 * have been given another --nnodes: without a coordinator nobody refuses that, so the
 * node itself looks for it, by the same timer. */
struct other_runs {
    uint64_t at_ms;           /* when to ask again, or MONO_NEVER */
    uint64_t pause_ms;        /* the pause after that */
    char text[RDZV_WHY_SIZE]; /* the answer in words; empty: there is none */
};

/* The nodes of a round that we joined as a member, as far as the workers' address needs
 * them. */
struct hosted_nodes {
    /* owned; all of them, if some are torchrun's; else NULL */
    struct rdzv_node *members;
    struct rdzv_state *seen; /* owned; members borrows from it */
    bool awaited;            /* the round that we joined needs them */
    bool asked;              /* the state is being read for them ... */
    uint64_t asked_round;    /* ... since we joined this round */
};

struct dynamic_handler {
    struct handler_base base;     /* first: the handler as the agent sees it */
    struct rdzv_backend *backend; /* owned */
    struct rdzv_params params;    /* owned */
    struct rdzv_settings settings;
    const struct log *log;  /* borrowed */
    uint64_t read_ms;       /* rdzv-conf read_timeout */
    uint64_t open_by_ms;    /* when to give up reaching the backend */
    int hosted;             /* rdzv-conf hosted: 1, or 0 to do without a coordinator */
    int64_t grace_ms;       /* rdzv-conf loss_grace_ms */
    int64_t rank_order_key; /* rdzv-conf node_order; negative: none */
    bool share;             /* the workers' store is served by an agent */

    struct dynamic_name self;
    struct blocking_call *naming; /* owned while it runs */

    struct rdzv *core;       /* owned; once we have a name */
    struct session *session; /* borrowed; the agent's, or NULL */
    /* its seats are ours; used instead of the core if the store hosts runs */
    struct session *member;
    bool in_feed; /* a step of the core is under way, and requests wait */
    struct request_queue requests;
    int refused; /* the error of the join, which closing need not log again, or 0 */
    struct other_runs runs;
    bool settings_notified; /* we have logged that a node has other settings */

    struct rdzv_round round;
    struct hosted_nodes nodes;
    struct rdzv_master *master;   /* owned; finds the workers' address */
    struct async_store *store;    /* owned: the group's, without prefix */
    struct async_store *prefixed; /* owned: the round's view of it */
};

extern const struct rdzv_handler_ops dynamic_ops;
extern const struct handler_impl dynamic_impl;

static inline struct dynamic_handler *dynamic_of(const struct handler_base *s)
{
    return CONTAINER_OF(s, struct dynamic_handler, base);
}

/* Whether no other node can come: there is one node, and a free port that was never
 * published, as with --standalone. */
bool dynamic_is_alone(const struct dynamic_handler *d);

/* dynamic_open.c: finds our name and opens the backend; ends in LIFE_OPENED. */
void dynamic_open(struct handler_base *s);

/* Takes another local_id and makes a core with the new name, since another node has our
 * name. */
int dynamic_rename(struct dynamic_handler *d, struct muster_error *err);

/* Shows our presence to the other nodes through the backend, if it can do that. */
void dynamic_present(struct dynamic_handler *d);

/* Compares our settings with those of the node that came first, and logs a
 * difference. */
void dynamic_settings(struct dynamic_handler *d);

/* dynamic.c: makes us a member of the coordinator in the backend's store, which then
 * replaces the core. False if the store has none, or it is not to be used. */
bool dynamic_be_member(struct dynamic_handler *d);

/* The backend has found that another node has ended, or that the others may think so of
 * this one. */
void dynamic_peer_gone(void *ctx, struct span node);
void dynamic_cut_off(void *ctx, const char *why);

#endif
