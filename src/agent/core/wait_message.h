/* wait_message.h - the line that tells a person what the agent waits for: who is here,
 * who is missing, for how long, until when. Pure: the driver has the clocks and the
 * screen. */
#ifndef AGENT_CORE_WAIT_MESSAGE_H
#define AGENT_CORE_WAIT_MESSAGE_H

#include "agent/core/missing_ranks.h"
#include "base/buf.h"
#include "rendezvous/core/progress.h"

enum waiting_for {
    WAITING_FOR_ROUND, /* the rendezvous */
    WAITING_FOR_NODES, /* rank 0: until all nodes of the round have told of their
                          workers */
    WAITING_FOR_RANKS, /* the others: until rank 0 has given out ranks */
    WAITING_FOR_END,   /* the exit barrier: until the others are done, too */
};

/* Nodes that were in the last round and said goodbye, or were lost. */
struct gone_nodes {
    int64_t count;
    char last[256]; /* the name of the last one */
    bool lost;      /* that one, without a goodbye */
    uint64_t at_ms; /* when we heard of it */
};

struct waiting {
    enum waiting_for what;
    const struct rdzv_progress *progress; /* FOR_ROUND */
    const struct missing_ranks
        *ranks;           /* FOR_ROUND, FOR_NODES: who has come; NULL: not known */
    int64_t done, world;  /* FOR_END: nodes; done 0: not known */
    bool closed;          /* FOR_END: by a node that was not done */
    uint64_t by_ms;       /* all but FOR_ROUND, which has its own */
    const char *store;    /* where the rendezvous lives, as the user named it */
    const char *expected; /* names of all, in a list of rendezvous/core/progress.h; "":
                             not known */
    struct gone_nodes gone; /* FOR_ROUND */
    uint64_t since_ms, now_ms;
    int64_t wall_s; /* seconds since local midnight, now */
};

/* "stopping 2 workers, 30 s (Ctrl-C again kills them)": left_ms until they are killed,
 * MONO_NEVER: they are not; again: whether another Ctrl-C would kill them. */
int stopping_print(struct buf *b, int64_t workers, uint64_t left_ms, bool again);

/* Appends the line, without a newline. 0 or MUSTER_ENOMEM. */
int waiting_print(struct buf *b, const struct waiting *w);

/* All names of a Slurm host list ("gpu[03-05,7],x9"), in its order; empty if it is none
 * or has more than RDZV_NAMES_MAX. */
void waiting_slurm_names(const char *list, char *to);

#endif
