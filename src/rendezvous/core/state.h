/* state.h - the state that all nodes of a run share, as data: torch's _RendezvousState.
 *
 * Each node that the state mentions is one struct participant, found by hash, that sits
 * in any of four lists. Lists keep their order, as Python's dicts do, so that what was
 * read is written back in the same order; every operation on one node is O(1).
 * A member lives for as long as it is in some list. A state can be moved by assignment.
 */
#ifndef RENDEZVOUS_CORE_STATE_H
#define RENDEZVOUS_CORE_STATE_H

#include "base/base.h"
#include "base/map.h"

#define RDZV_MAX_ADDR 4096u

/* Rounds are counted from 0; a run that says it has had more is not to be believed. */
#define RDZV_MAX_ROUND INT32_MAX

/* A node's identity, the same to everybody; compared and ordered as the tuple. */
struct rdzv_node {
    struct span addr; /* UTF-8, at most RDZV_MAX_ADDR bytes; borrowed */
    int64_t pid, local_id;
};

int rdzv_node_cmp(const struct rdzv_node *a, const struct rdzv_node *b);

/* "<addr>_<pid>_<local_id>", as torch writes it; cut to the size given. */
const char *rdzv_node_text(const struct rdzv_node *n, char *text, size_t size);

/* Names for --rank-order, "00000007.node8": torch's state sorts by name, so the number
 * goes before it there; 7 comes before 8, and node8 is who it is. Returns the name in
 * `to`, or addr itself if it has a number already or would become too long. */
#define RDZV_ORDERED_SIZE (RDZV_MAX_ADDR + 1)
struct span rdzv_ordered_addr(struct span addr, uint64_t order,
                              char to[RDZV_ORDERED_SIZE]);
struct span rdzv_unordered_addr(struct span addr);

enum rdzv_list {
    RDZV_PLACES, /* participants: with a rank */
    RDZV_WAITS,  /* wait_list */
    RDZV_SPARES, /* redundancy_list */
    RDZV_BEATS,  /* last_heartbeats: with a time */
    RDZV_LISTS
};

struct participant {
    struct map_link link;
    struct rdzv_node node; /* its addr lies behind this struct */
    struct participant *next[RDZV_LISTS],
        *prev[RDZV_LISTS]; /* borrowed from the state */
    unsigned in;           /* bit 1 << list for each list it is in */
    uint32_t memo;         /* scratch of the pickle writer */
    uint32_t beat_at;      /* of the pickle: where its bytes have beat_us; 0: unknown */
    struct participant *twin; /* scratch of rdzv_state_copy */
    int64_t rank;             /* while in PLACES */
    int64_t beat_us;          /* while in BEATS */
    /* ours, not shared: by our mono clock, first seen with beat_us */
    uint64_t since_ms;
    bool warned; /* ours: its clock was warned of */
    bool gone;   /* ours: known to have ended, since beat_us */
};

struct rdzv_state {
    int64_t round;
    bool complete, closed;
    int64_t deadline_us;  /* of the last call, wall clock; WALL_NEVER: none */
    uint32_t deadline_at; /* as a member's beat_at */
    struct {
        struct participant *first, *last; /* owned */
        size_t count;
    } list[RDZV_LISTS];
    struct map nodes;
};

void rdzv_state_init(struct rdzv_state *s); /* round 0, empty; cannot fail */
void rdzv_state_fini(struct rdzv_state *s); /* NULL and zeroed are fine */

/* 0 with a copy in *to (which is initialised here), or MUSTER_ENOMEM. */
int rdzv_state_copy(struct rdzv_state *to, const struct rdzv_state *from);

struct participant *rdzv_state_find(const struct rdzv_state *s,
                                    const struct rdzv_node *n);

/* The node's member, now also at the end of the list unless it was in it already; rank
 * and beat_us of a member that was not in that list are 0. NULL: out of memory. */
struct participant *rdzv_state_put(struct rdzv_state *s, const struct rdzv_node *n,
                                   enum rdzv_list list);

/* Takes m out of the list, if it is there. A member of no list is gone. */
void rdzv_state_drop(struct rdzv_state *s, struct participant *m, enum rdzv_list list);

/* Takes m out of every list: it is gone. */
void rdzv_state_forget(struct rdzv_state *s, struct participant *m);

static inline bool rdzv_in(const struct participant *m, enum rdzv_list list)
{
    return m && (m->in & 1u << list);
}

static inline size_t rdzv_count(const struct rdzv_state *s, enum rdzv_list list)
{
    return s->list[list].count;
}

/* for (m = rdzv_first(s, RDZV_PLACES); m; m = m->next[RDZV_PLACES]) */
static inline struct participant *rdzv_first(const struct rdzv_state *s,
                                             enum rdzv_list list)
{
    return s->list[list].first;
}

#endif
