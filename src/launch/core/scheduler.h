/* scheduler.h - reads from the environment which nodes a scheduler has started
 * together, and fills in the rendezvous of a command line that has no flag for it.
 * Slurm has its own file (slurm.h); here are PBS, LSF, Flux, SkyPilot, AWS Batch and
 * Indexed Jobs of Kubernetes.
 *
 * Called between options_parse and derive_config. Pure: all that is outside comes in.
 */
#ifndef LAUNCH_CORE_SCHEDULER_H
#define LAUNCH_CORE_SCHEDULER_H

#include "launch/core/slurm.h"

#define SCHEDULER_FILE_MOST (1u << 20)

struct scheduler_input {
    char *const *envp;
    const char *hostname; /* of this machine, with its domain if that is known */
    /* The text of PBS_NODEFILE, or of what `flux hostlist` prints: scheduler_asks()
     * says which is wanted. NULL: it cannot be had. */
    const char *hosts;
};

enum scheduler_wants {
    SCHEDULER_NONE, /* there is none, or the user has chosen a rendezvous */
    SCHEDULER_ENV,  /* the environment is enough */
    SCHEDULER_PBS_FILE,
    SCHEDULER_FLUX_HOSTS,
};

/* What scheduler_apply() needs beside the environment. */
enum scheduler_wants scheduler_asks(const struct options *o, char *const *envp);

/* Fills in the options if a scheduler's environment is found and the user has left the
 * rendezvous to us; otherwise changes nothing. MUSTER_EINVAL, in a sentence, if it
 * contradicts itself or the command line. */
int scheduler_apply(struct options *o, const struct scheduler_input *in,
                    struct slurm_texts *texts, struct muster_error *err);

#endif
