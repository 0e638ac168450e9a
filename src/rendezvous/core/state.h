/* state.h - the state that all nodes of a run share, as data: torch's _RendezvousState.
 *
 * Each node that the state mentions is one struct participant, found by hash, that may
 * be in any of four lists. Lists keep their order, as Python's dicts do, so that what
 * was read is written back in the same order. Every operation on one node is O(1). A
 * participant lives for as long as it is in some list. A state can be moved by
 * assignment. */
#ifndef RENDEZVOUS_CORE_STATE_H
#define RENDEZVOUS_CORE_STATE_H

#include "base/base.h"
#include "base/map.h"

#define RDZV_MAX_ADDR 4096u

/* Rounds are counted from 0. A state that claims a higher round than this is
 * invalid. */
#define RDZV_MAX_ROUND INT32_MAX

/* A node's identity, the same for everybody; compared and ordered as the tuple. */
struct rdzv_node {
    struct span addr; /* UTF-8, at most RDZV_MAX_ADDR bytes; borrowed */
    int64_t pid, local_id;
};

/* A node's identity as bytes, for maps: pid and local_id, 8 bytes each, then addr.
 * Returns the part of key that is used. */
#define RDZV_KEY_HEAD 16u
#define RDZV_KEY_MAX  (RDZV_KEY_HEAD + RDZV_MAX_ADDR)
struct span rdzv_node_key(uint8_t *key, const struct rdzv_node *n);

int rdzv_node_cmp(const struct rdzv_node *a, const struct rdzv_node *b);

/* "<addr>_<pid>_<local_id>", as torch writes it; cut to the size given. */
const char *rdzv_node_text(const struct rdzv_node *n, char *text, size_t size);

/* Names for --rank-order, such as "00000007.node8". torch's state sorts by name, so the
 * number goes in front of the name there. Returns the name in `to`, or addr itself if
 * it already has a number or would become too long. rdzv_unordered_addr() returns the
 * name without the number. */
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
    struct rdzv_node node; /* its addr lies after this struct */
    struct participant *next[RDZV_LISTS],
        *prev[RDZV_LISTS];    /* borrowed from the state */
    unsigned in;              /* bit 1 << list for each list it is in */
    uint32_t memo;            /* for the pickle writer */
    uint32_t beat_at;         /* where the pickle's bytes have beat_us; 0: unknown */
    struct participant *twin; /* for rdzv_state_copy */
    int64_t rank;             /* while in PLACES */
    int64_t beat_us;          /* while in BEATS */
    /* ours, not shared: when we first saw beat_us, by our monotonic clock */
    uint64_t since_ms;
    bool warned; /* ours: we have warned of its clock */
    bool gone;   /* ours: known to have ended after it wrote beat_us */
};

struct rdzv_state {
    int64_t round;
    bool complete, closed;
    int64_t deadline_us;  /* of the last call, wall clock; WALL_NEVER: none */
    uint32_t deadline_at; /* like a participant's beat_at */
    struct {
        struct participant *first, *last; /* owned */
        size_t count;
    } list[RDZV_LISTS];
    struct map nodes;
};

void rdzv_state_init(struct rdzv_state *s); /* round 0, empty; cannot fail */
void rdzv_state_fini(struct rdzv_state *s); /* NULL and zeroed are fine */

/* Returns 0 with a copy in *to (which is initialised here), or MUSTER_ENOMEM. */
int rdzv_state_copy(struct rdzv_state *to, const struct rdzv_state *from);

struct participant *rdzv_state_find(const struct rdzv_state *s,
                                    const struct rdzv_node *n);

/* Adds the node at the end of the list, unless it is in it already, and returns its
 * participant. The rank and beat_us of a participant that was not in that list are 0.
 * NULL: out of memory. */
struct participant *rdzv_state_put(struct rdzv_state *s, const struct rdzv_node *n,
                                   enum rdzv_list list);

/* Takes m out of the list, if it is there. A participant that is in no list is
 * freed. */
void rdzv_state_drop(struct rdzv_state *s, struct participant *m, enum rdzv_list list);

/* Takes m out of every list and frees it. */
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
