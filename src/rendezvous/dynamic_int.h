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
#include "rendezvous/local_identity.h"
#include "rendezvous/master_addr.h"
#include "rendezvous/member_driver.h"
#include "rendezvous/shell.h"
#include "rendezvous/state_backend.h"

/* Who we are to the other nodes, and to the workers if we are rank 0. */
struct dynamic_name {
    char addr[1025];
    int64_t pid, local_id;
    char where[1025]; /* MASTER_ADDR */
    bool resolves;    /* our own name does */
};

/* Another node may have been given another --rdzv-id: a member that waits asks for
 * other runs. Or another --nnodes: without a coordinator nobody refuses that, so the
 * node itself looks for it, by the same timer. */
struct other_runs {
    uint64_t at_ms;           /* when to ask again, or MONO_NEVER */
    uint64_t pause_ms;        /* until the time after that */
    char text[RDZV_WHY_SIZE]; /* the answer, in words; empty: none */
};

/* The nodes of a hosted round, as far as the workers' address needs them. */
struct hosted_nodes {
    struct rdzv_node rank0;    /* borrowed from the member */
    struct rdzv_node *members; /* owned; all, if torchrun's nodes are among them */
    struct rdzv_state *seen;   /* owned; members borrow from it */
};

struct dynamic_handler {
    struct rdzv_shell shell;      /* first: the handler as the agent sees it */
    struct rdzv_backend *backend; /* owned */
    struct rdzv_params params;    /* owned */
    struct rdzv_settings settings;
    const struct trace *trace; /* borrowed */
    uint64_t read_ms;          /* rdzv-conf read_timeout */
    uint64_t open_by_ms;       /* when to give up reaching the backend */
    int hosted;                /* rdzv-conf hosted: 1, or 0 to do without */
    int64_t grace_ms;          /* rdzv-conf loss_grace_ms */
    int64_t rank_order_key;    /* rdzv-conf node_order; negative: none */
    bool share;                /* the workers' store is served by an agent */

    struct dynamic_name self;
    struct blocking_call *naming; /* owned while it runs */

    struct rdzv *core;            /* owned; once we have a name */
    struct member_driver *member; /* owned; in the core's place if the store hosts */
    bool in_feed;                 /* of the core: requests wait until it is through */
    struct request_queue requests;
    int refused; /* a code of the join that the close need not tell again, or 0 */
    struct other_runs runs;
    bool settings_notified; /* that a node was started with others */

    struct rdzv_round round;
    struct hosted_nodes nodes;
    struct rdzv_master *master;   /* owned; finds the workers' address */
    struct async_store *store;    /* owned: the group's, without prefix */
    struct async_store *prefixed; /* owned: the round's view of it */
};

extern const struct rdzv_handler_ops dynamic_ops;
extern const struct rdzv_engine dynamic_engine;

static inline struct dynamic_handler *dynamic_of(const struct rdzv_shell *s)
{
    return CONTAINER_OF(s, struct dynamic_handler, shell);
}

/* One node, and a free port that was never announced, as of --standalone: no other node
 * can come. */
bool dynamic_is_alone(const struct dynamic_handler *d);

/* dynamic_open.c: finds our name and opens the backend; ends in LIFE_OPENED. */
void dynamic_open(struct rdzv_shell *s);

/* Takes another local_id and makes a core with the new name, since another node has our
 * name. */
int dynamic_rename(struct dynamic_handler *d, struct muster_error *err);

/* Shows us to the others by way of the backend, if it can. */
void dynamic_present(struct dynamic_handler *d);

/* Compares our settings with those of whoever came first, and says so in the log. */
void dynamic_settings(struct dynamic_handler *d);

/* dynamic.c: in the core's place, if the backend's store hosts. False: it does not, or
 * is not to. */
bool dynamic_be_member(struct dynamic_handler *d);

/* The backend has seen that another node has ended. */
void dynamic_peer_gone(void *ctx, struct span node);

#endif
