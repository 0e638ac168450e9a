/* seat_round.h - what the host of a run tells a node of a round, beside its rank there
 * (job/core/session_core.h). */
#ifndef RENDEZVOUS_CORE_SEAT_ROUND_H
#define RENDEZVOUS_CORE_SEAT_ROUND_H

#include "rendezvous/core/rank_exchange.h"
#include "rendezvous/core/state.h"

struct seat_round {
    struct rdzv_node rank0;
    int64_t torch_nodes; /* how many of the nodes are torchrun's */
    bool all_ours;       /* none is: all read the workers' address anew in each round */
    /* The host gives out the ranks of the workers, and tells where their store is, once
     * rank 0 has said so. */
    bool ranked;
    const struct rank_range *ranks; /* of our workers; NULL: agents agree on them */
    const char *store_host;
    uint16_t store_port; /* 0: not told */
};

#endif
