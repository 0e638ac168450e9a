/* rank_exchange.h - how the agents of a round agree on the ranks of their workers, and
 * how they wait for each other at the end: torch's keys and JSON, so that torchrun's
 * agents and ours can do it together. Pure; store/dialogue_driver.c runs both machines.
 */
#ifndef RENDEZVOUS_CORE_RANK_EXCHANGE_H
#define RENDEZVOUS_CORE_RANK_EXCHANGE_H

#include "base/buf.h"
#include "muster/error.h"
#include "store/core/dialogue.h"

#define RANKS_ROLE_KEY     "torchelastic/role_info/"      /* + agent rank */
#define RANKS_ASSIGNED_KEY "torchelastic/assigned_ranks/" /* + agent rank */
#define RANKS_MEMBERS_KEY  "torchelastic/agent/terminal_state/num_members"
#define RANKS_LAST_KEY     "torchelastic/agent/terminal_state/last_member"
#define RANKS_LAST_VALUE   "<val_ignored>"
#define RANKS_COUNTED_KEY                                                              \
    "torchelastic/agent/terminal_state/muster/" /* + agent rank                        \
                                                 */

/* What an agent tells of itself. */
struct role_info {
    char *role; /* owned */
    int64_t rank, local_world_size;
};

/* What an agent is told: of its first worker, and how many there are. */
struct rank_range {
    int64_t base_rank, world_size, base_role_rank, role_world_size;
};

/* {"role": "default", "rank": 0, "local_world_size": 1} as Python's json.dumps. */
int role_info_print(struct buf *out, const char *role, int64_t rank,
                    int64_t local_world_size);
/* MUSTER_EPROTO if the text is not that. */
int role_info_parse(struct role_info *r, struct span text, struct muster_error *err);
void role_info_fini(struct role_info *r);

/* [1, 3, 0, 2] */
int rank_range_print(struct buf *out, const struct rank_range *r);
int rank_range_parse(struct rank_range *r, struct span text, struct muster_error *err);

/* Walks the agents in rank order: out[i] is for infos[i], whose rank must be i. */
int ranks_assign(const struct role_info *infos, size_t count, struct rank_range *out,
                 struct muster_error *err);

/* Without a word to the others, if all nodes are alike (and when there is one node). */
struct rank_range ranks_identical(int64_t agent_rank, int64_t agents, int64_t nproc);

/* ---- the exchange ---- */

/* Whoever lost its connection and has not got its rank so long after is no longer
 * waited for: the store may be another one, which has never heard of the others. */
#define EXCHANGE_PATIENCE_MS 5000u

struct rank_exchange {
    struct store_dialogue dialogue; /* first */
    /* Set by the caller, texts borrowed: */
    const char *role;
    int64_t rank, world, nproc;
    uint64_t timeout_ms;
    bool can_rejoin; /* a new round costs less than the end of the job */
    /* The machine's own: */
    bool sharing;            /* rank 0: all have told, and are being told */
    struct rank_range range; /* the outcome */
};

/* Ends with DONE, FAILED or REJOIN. A dialogue_step. */
int rank_exchange_step(struct store_dialogue *t, const struct dialogue_event *ev,
                       struct dialogue_fx *fx);

/* ---- the exit barrier ---- */

#define BARRIER_MS 300000u /* torchrun's, fixed */

enum barrier_stage {
    BARRIER_COUNT,   /* we count ourselves in, and leave a mark that we have */
    BARRIER_LOOK,    /* the connection broke: is the mark there? */
    BARRIER_RECOUNT, /* it is: how many are there by now? */
    BARRIER_OPEN,    /* we were the last one: all may go */
    BARRIER_WAIT,
    BARRIER_MARKS, /* rank 0, now and then: has everybody left its mark? */
};

/* Where nobody else tells whether the others are still there, a store that stays away
 * for so long has gone with them. */
#define BARRIER_AWAY_MS 1000u

struct exit_barrier {
    struct store_dialogue dialogue; /* first */
    int64_t rank, world;            /* set by the caller, */
    bool gives_up;                  /* as is this: BARRIER_AWAY_MS counts */
    enum barrier_stage stage;
};

/* Ends with DONE or FAILED. A dialogue_step. */
int exit_barrier_step(struct store_dialogue *t, const struct dialogue_event *ev,
                      struct dialogue_fx *fx);

#endif
