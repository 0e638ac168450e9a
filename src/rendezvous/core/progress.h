/* progress.h - what a node that waits for a round can tell a person: who has come, who
 * has not, and until when it waits. Pure; the drivers ask, the agent prints. */
#ifndef RENDEZVOUS_CORE_PROGRESS_H
#define RENDEZVOUS_CORE_PROGRESS_H

#include "rendezvous/core/state.h"

#define RDZV_NAMES_MAX  16u /* of larger groups only the number is told */
#define RDZV_NAMES_SIZE 512u
#define RDZV_WHY_SIZE   256u

enum rdzv_stage {
    RDZV_AT_STORE,   /* not reached yet */
    RDZV_AT_ROUND,   /* nodes gather for it */
    RDZV_AT_NEXT,    /* a round is at work without us; we wait for the next */
    RDZV_AT_SPARE,   /* all places are taken */
    RDZV_AT_ADDRESS, /* the round is complete; rank 0 is to tell the workers' address */
};

struct rdzv_progress {
    enum rdzv_stage stage;
    int64_t here; /* nodes with a place in the round that gathers */
    int64_t min_nodes, max_nodes;
    char names[RDZV_NAMES_SIZE];   /* "a, b": who they are; empty: not known */
    char missing[RDZV_NAMES_SIZE]; /* who was in the last round and is not here */
    uint64_t by_ms;          /* we give up then, by mono_ms; MONO_NEVER: we do not */
    uint64_t start_by_ms;    /* it starts without the rest then; MONO_NEVER: it waits */
    char why[RDZV_WHY_SIZE]; /* what is in the way; empty: nothing, or not known */
    bool dialled;            /* AT_STORE: whoever dials tells of it in a log, and why */
};

/* Says what is in the way. Part of it may come from outside: nothing in it will move a
 * cursor. */
void progress_why(struct rdzv_progress *p, const char *text);

/* Lists of names are texts of RDZV_NAMES_SIZE bytes: "a, b, c", or empty if there are
 * more than RDZV_NAMES_MAX or they do not fit. */

/* Adds a node's address: without the number that orders it among the nodes of a
 * scheduler, and with nothing in it that a terminal or a reader of lists could mistake.
 * False: the list is full, and empty now. */
bool names_add(char *list, struct span addr);

/* The nodes of a list of the state. */
void names_of(const struct rdzv_state *s, enum rdzv_list list, char *to);

/* Those in `all` who are not in `here`; a host that is in either twice counts twice.
 * "node1" and "node1.example.org" are one. */
void names_without(const char *all, const char *here, char *to);

/* A list from outside, put together again name by name. */
void names_copy(char *to, struct span list);

size_t names_count(const char *list);

/* What a store answers for RESERVED_GATHERED, put in words for a node that waits in
 * `run_id`: "this store also has the run 'b' (2 nodes): ..."; empty if that is the only
 * one. From outside, like the ids in it. */
void progress_other_runs(struct span answer, const char *run_id, char *to, size_t size);

#endif
