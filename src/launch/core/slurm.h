/* slurm.h - reads a job step from Slurm's environment, and fills in the rendezvous of a
 * command line that has no flag for it: the nodes of the step form one group.
 *
 * Called between options_parse and derive_config. Pure: the environment is data. */
#ifndef LAUNCH_CORE_SLURM_H
#define LAUNCH_CORE_SLURM_H

#include "launch/core/options.h"

/* Texts that the options then borrow; lives as long as they do. */
struct slurm_texts {
    char nnodes[48], id[64], endpoint[300], conf[400];
};

/* Where a scheduler has put this node. */
struct rendezvous_place {
    const char *scheduler; /* for messages */
    int64_t nodes;         /* 0: it does not say */
    int64_t rank;
    char host[256]; /* of rank 0 */
    char id[64];
    int64_t port; /* 0: made from the id */
    bool munge;
};

/* Whether the user has left the rendezvous to us: no backend, endpoint, master address
 * or port, node rank, --standalone, and --nnodes absent or not 1. */
bool rendezvous_is_open(const struct options *o);

/* Fills in nnodes (the upper end of a range is the scheduler's), backend, endpoint, id
 * and the place of this node in the rank order. */
int rendezvous_fill(struct options *o, const struct rendezvous_place *p,
                    struct slurm_texts *texts, struct muster_error *err);

/* True if srun started us as one task of several and the user left the rendezvous to
 * us: no backend, endpoint, master address or port, node rank, --standalone, and
 * --nnodes absent or not 1. */
bool slurm_applies(const struct options *o, char *const *envp);

/* Fills in nnodes (the upper end of a range is the step's), backend, endpoint, id and
 * the place of this node in the rank order. MUSTER_EINVAL with the remedy if the step
 * does not fit: several tasks on a node, another number of nodes than --nnodes, or
 * variables that make no sense. */
int slurm_apply(struct options *o, char *const *envp, struct slurm_texts *texts,
                struct muster_error *err);

/* The first host of a Slurm host list ("gpu[03-05,7],x9" gives "gpu03"). 0, or
 * MUSTER_EINVAL if it is not a list or the name does not fit. */
int slurm_first_host(const char *list, char *to, size_t size);

#endif
