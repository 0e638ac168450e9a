/* settings.h - what torch calls RendezvousSettings: local to each node and never in the
 * shared state, but meant to be the same on all nodes. */
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
    /* last_call=always: every round waits for the whole last call, as in torch.
     * Otherwise only the first round does, and those with torch's nodes: nodes that
     * were in a round before are known, so nobody needs to wait for others. */
    bool last_call_always;
    bool ours_only;        /* no node of torch's can use the backend; not published */
    uint64_t close_ms;     /* close_timeout */
    uint64_t heartbeat_ms; /* heartbeat_timeout: how long one heartbeat may take */
    /* cas_backoff_max_seconds: after a lost write wait for a random time up to this; 0:
     * it depends on the number of rivals. Not compared, since it matters to this node
     * alone. */
    uint64_t cas_backoff_ms;
    int64_t keep_alive_interval_s, keep_alive_max_attempt;
};

/* torch's defaults: 600 s, 30 s, 30 s, 5 s; a heartbeat every 5 s, dead after 3 of
 * them. */
void rdzv_settings_init(struct rdzv_settings *s, int64_t min_nodes, int64_t max_nodes);

/* Reads keep_alive_interval and keep_alive_max_attempt, if they are given. */
int rdzv_settings_keep_alive(struct rdzv_settings *s, const struct rdzv_params *p,
                             struct muster_error *err);

/* Reads those and all others that are given; MUSTER_EINVAL for a value that cannot be
 * used. */
int rdzv_settings_read(struct rdzv_settings *s, const struct rdzv_params *p,
                       struct muster_error *err);

/* Checks 1 <= min <= max, else MUSTER_EINVAL in torch's words. */
int rdzv_settings_check(const struct rdzv_settings *s, struct muster_error *err);

/* A node that is silent for longer counts as dead: interval * max_attempt; 0 if
 * negative. */
uint64_t rdzv_dead_after_ms(const struct rdzv_settings *s);
uint64_t rdzv_interval_ms(const struct rdzv_settings *s);

/* The same between a host and a node of ours: a heartbeat is a few bytes there, so that
 * it comes every 5 s however seldom the shared state is to be written, and a node that
 * falls silent is known as early. */
uint64_t rdzv_session_dead_after_ms(const struct rdzv_settings *s);
uint64_t rdzv_session_interval_ms(const struct rdzv_settings *s);

/* One line of text for a side key, so that nodes can compare: "min=2 max=4 ...". */
int rdzv_settings_print(const struct rdzv_settings *s, struct buf *out);

/* Reads such a line. Returns 0, or MUSTER_EINVAL if a word is missing or out of
 * range. */
int rdzv_settings_parse(struct span text, struct rdzv_settings *out,
                        struct muster_error *err);

/* Compares with the text that another node published. Returns 0 if they are the same,
 * else MUSTER_EINVAL with each difference named. Unknown words are ignored, so that a
 * later version may add some. */
int rdzv_settings_compare(const struct rdzv_settings *s, struct span theirs,
                          struct muster_error *err);

/* Whether the text has another --nnodes: then no round can ever suit both nodes. */
bool rdzv_settings_nnodes_differ(const struct rdzv_settings *s, struct span theirs);

#endif
