/* rank_order.h - --rank-order: what decides which node gets which rank in a dynamic
 * group of our nodes. torch sorts by host name, process and counter, which changes with
 * every start; users who place ranks by rack, or read logs by rank, want an order of
 * their own.
 *
 * Called between options_parse (and slurm_apply) and derive_config. Pure. */
#ifndef LAUNCH_CORE_RANK_ORDER_H
#define LAUNCH_CORE_RANK_ORDER_H

#include "launch/core/options.h"

struct rank_order_text {
    char conf[1024]; /* the options then borrow it */
};

/* Puts node_order=<number> into --rdzv-conf, as --rank-order says:
 *   node   nothing: torch's order
 *   given  --node-rank
 *   slurm  SLURM_NODEID
 *   index  JOB_COMPLETION_INDEX, else the number that HOSTNAME ends in after a hyphen,
 *          as in a Kubernetes StatefulSet
 * MUSTER_EINVAL with the remedy if that number is missing. */
int rank_order_apply(struct options *o, char *const *envp, struct rank_order_text *text,
                     struct muster_error *err);

#endif
