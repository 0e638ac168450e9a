/* settings.h - what torch calls RendezvousSettings: local to each node, never in the
 * shared state, and to be alike on all of them. */
#ifndef RENDEZVOUS_CORE_SETTINGS_H
#define RENDEZVOUS_CORE_SETTINGS_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"
#include "rendezvous/core/params.h"

struct rdzv_settings {
    int64_t min_nodes, max_nodes;
    uint64_t join_ms;      /* join_timeout */
    uint64_t last_call_ms; /* last_call_timeout */
    /* last_call=always: wait it out in every round, as torch does. Else it is for the
     * first round, and for torch's nodes: those who were in a round before are known.
     */
    bool last_call_always;
    bool ours_only;        /* the backend has no nodes of torch's; not published */
    uint64_t close_ms;     /* close_timeout */
    uint64_t heartbeat_ms; /* heartbeat_timeout: one beat may take so long */
    /* cas_backoff_max_seconds: after a lost write wait at random for up to this long;
     * 0: as long as the number of rivals asks for. Never compared: a node's own affair.
     */
    uint64_t cas_backoff_ms;
    int64_t keep_alive_interval_s, keep_alive_max_attempt;
};

/* torch's defaults: 600 s, 30 s, 30 s, 5 s; a beat each 5 s, dead after 3 of them. */
void rdzv_settings_init(struct rdzv_settings *s, int64_t min_nodes, int64_t max_nodes);

/* keep_alive_interval and keep_alive_max_attempt, where they are given. */
int rdzv_settings_keep_alive(struct rdzv_settings *s, const struct rdzv_params *p,
                             struct muster_error *err);

/* Those, and all others that are given; MUSTER_EINVAL for what cannot be used. */
int rdzv_settings_read(struct rdzv_settings *s, const struct rdzv_params *p,
                       struct muster_error *err);

/* torch's checks and words: 1 <= min <= max, else MUSTER_EINVAL. */
int rdzv_settings_check(const struct rdzv_settings *s, struct muster_error *err);

/* A node is silent for too long after this: interval * max_attempt; 0 if negative. */
uint64_t rdzv_dead_after_ms(const struct rdzv_settings *s);
uint64_t rdzv_interval_ms(const struct rdzv_settings *s);

/* One line of text for a side key, so that nodes can compare: "min=2 max=4 ...". */
int rdzv_settings_print(const struct rdzv_settings *s, struct buf *out);

/* Reads such a line. 0, or MUSTER_EINVAL if a word is missing or out of range. */
int rdzv_settings_parse(struct span text, struct rdzv_settings *out,
                        struct muster_error *err);

/* Compares with the text that another node published. 0 if alike; MUSTER_EINVAL with
 * each difference named if not. Unknown words are ignored: a later version may add. */
int rdzv_settings_compare(const struct rdzv_settings *s, struct span theirs,
                          struct muster_error *err);

/* Whether the text has another --nnodes: with that no round can ever suit both. */
bool rdzv_settings_nnodes_differ(const struct rdzv_settings *s, struct span theirs);

#endif
