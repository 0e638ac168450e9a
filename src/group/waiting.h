/* waiting.h - the line that tells a person what the agent waits for: who is here, who
 * is missing, for how long, until when. Pure: the driver has the clocks and the screen.
 */
#ifndef GROUP_WAITING_H
#define GROUP_WAITING_H

#include "base/buf.h"
#include "rdzv/progress.h"

struct waiting {
    const struct rdzv_progress *progress;
    const char *store; /* where the rendezvous lives, as the user named it */
    const char
        *expected; /* names of all, in a list of rdzv/progress.h; "": not known */
    uint64_t since_ms, now_ms;
    int64_t wall_s; /* seconds since local midnight, now */
};

/* Appends the line, without a newline. 0 or MUSTER_ENOMEM. */
int waiting_print(struct buf *b, const struct waiting *w);

/* All names of a Slurm host list ("gpu[03-05,7],x9"), in its order; empty if it is none
 * or has more than RDZV_NAMES_MAX. */
void waiting_slurm_names(const char *list, char *to);

#endif
