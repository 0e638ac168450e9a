/* progress.h - what a node that waits for a round can tell a person: which nodes have
 * come, which have not, and until when it waits. Pure; the drivers ask, the agent
 * prints. */
#ifndef RENDEZVOUS_CORE_PROGRESS_H
#define RENDEZVOUS_CORE_PROGRESS_H

#include "rendezvous/core/state.h"

#define RDZV_NAMES_MAX  16u /* for larger groups only the number is told */
#define RDZV_NAMES_SIZE 512u
#define RDZV_WHY_SIZE   256u

enum rdzv_stage {
    RDZV_AT_STORE,   /* the store is not reached yet */
    RDZV_AT_ROUND,   /* nodes gather for a round */
    RDZV_AT_NEXT,    /* a round runs without us; we wait for the next one */
    RDZV_AT_SPARE,   /* all places are taken */
    RDZV_AT_ADDRESS, /* the round is complete; rank 0 has yet to publish the workers'
                        address */
};

struct rdzv_progress {
    enum rdzv_stage stage;
    int64_t here; /* nodes with a place in the round that gathers */
    int64_t min_nodes, max_nodes;
    char names[RDZV_NAMES_SIZE];   /* their names, "a, b"; empty: not known */
    char missing[RDZV_NAMES_SIZE]; /* nodes of the last round that are not here */
    uint64_t by_ms; /* when we give up, by mono_ms; MONO_NEVER: we do not */
    /* when the round starts without the rest; MONO_NEVER: it waits */
    uint64_t start_by_ms;
    char why[RDZV_WHY_SIZE]; /* why it takes so long; empty: not known */
    bool dialled; /* AT_STORE: the connection attempts are logged already, with the
                     reason */
};

/* Sets `why`. Part of the text may come from outside, so control characters, which
 * could move a cursor, are replaced. */
void progress_why(struct rdzv_progress *p, const char *text);

/* Lists of names are texts of RDZV_NAMES_SIZE bytes: "a, b, c", or empty if there are
 * more than RDZV_NAMES_MAX or they do not fit. */

/* Adds a node's address, without the number that orders it among the nodes of a
 * scheduler, and without characters that a terminal or a reader of the list could
 * misread. Returns false if the list was full; the list is empty then. */
bool names_add(char *list, struct span addr);

/* The names of the nodes in a list of the state. */
void names_of(const struct rdzv_state *s, enum rdzv_list list, char *to);

/* The names in `all` that are not in `here`. A host that is listed twice counts twice.
 * "node1" and "node1.example.org" are the same host. */
void names_without(const char *all, const char *here, char *to);

/* Copies a list that comes from outside, checking it name by name. */
void names_copy(char *to, struct span list);

size_t names_count(const char *list);

/* Puts a store's answer to RESERVED_GATHERED into words for a node that waits in
 * `run_id`: "this store also has other runs: 'b' (2 nodes); ..."; empty if there is no
 * other run. The answer comes from outside, and so do the ids in it. */
void progress_other_runs(struct span answer, const char *run_id, char *to, size_t size);

#endif
