/* cas_node.h - one node's part in a rendezvous whose state lives in a store that is not
 * ours: read, decide, compare-and-set, as torch's DynamicRendezvousHandler does.
 *
 * Pure: the driver (rendezvous/dynamic.c) performs the effects on any backend that can
 * get a value with a token and replace it if the token still holds: c10d, file, etcd v2
 * and v3. The simulator does the same for simulated nodes. What always holds:
 *
 *   - at most one READ_STATE or WRITE_STATE is under way, and exactly one event answers
 *     it: STATE, WROTE or FAILED;
 *   - JOIN is answered by exactly one JOINED or REFUSED, LEAVE and CLOSE each by one
 *     DONE, at the latest at their deadline plus RDZV_ROLLBACK_MS, whatever the backend
 *     does, as long as TIMER events come when rdzv_deadline() says so;
 *   - all members of a round that get a JOINED get the same world, and its ranks are
 *     0 .. world - 1, each once;
 *   - after JOINED, heartbeats and news go on until LEAVE or the next JOIN.
 *
 * Clocks: our own deadlines, our heartbeats and the silence of peers are measured by
 * mono_ms alone. Wall-clock time goes into the state for torchrun's nodes to compare,
 * and we read it for two more things: to warn of skew, and to judge an entry under our
 * own name, which was written on this machine. */
#ifndef RENDEZVOUS_CORE_CAS_NODE_H
#define RENDEZVOUS_CORE_CAS_NODE_H

#include "base/base.h"
#include "base/log.h"
#include "muster/error.h"
#include "rendezvous/core/decisions.h"
#include "rendezvous/core/fence.h"
#include "rendezvous/core/news.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/settings.h"
#include "rendezvous/core/state.h"

struct rdzv;

struct rdzv_config {
    const char *run_id;    /* copied; for messages */
    struct rdzv_node self; /* copied */
    struct rdzv_settings settings;
    uint64_t poll_ms; /* pause between reads while changes are not reported; 0: 1000 */
    uint64_t seed;    /* for the random pauses after a lost write */
    const struct log *log; /* borrowed, may be NULL */
};

int rdzv_new(const struct rdzv_config *cfg, struct rdzv **out,
             struct muster_error *err);
void rdzv_free(struct rdzv *r); /* NULL is fine */

/* X(name): what happened. */
#define RDZV_EVENTS(X)                                                                 \
    /* What the agent wants. */                                                        \
    X(JOIN)  /* take part in the next round; a member leaves its round first */        \
    X(LEAVE) /* give our seat up, stop beating; a JOIN under way ends: ECANCELED */    \
    X(CLOSE) /* close the run id for everybody; we go on beating */                    \
    /* From the backend. */                                                            \
    X(STATE)   /* answers READ_STATE */                                                \
    X(WROTE)   /* answers WRITE_STATE */                                               \
    X(FAILED)  /* answers either: code and text; see below */                          \
    X(CHANGED) /* the state may differ from the one in the last WATCH */               \
    X(GONE)    /* the backend knows that the node called `value` has ended */          \
    X(TIMER)   /* rdzv_deadline() has come */

enum rdzv_event_kind {
#define RDZV_EVENT_ENUM(name) RDZV_EV_##name,
    RDZV_EVENTS(RDZV_EVENT_ENUM)
#undef RDZV_EVENT_ENUM
};

struct rdzv_event {
    enum rdzv_event_kind kind;
    struct now now;
    /* STATE, and WROTE with won == false: what the backend holds now. If `present` is
     * false, it holds nothing (c10d: the sentinel). WROTE with won == true: only the
     * token counts (c10d: the value that was written). value is the text as stored
     * (base64). */
    bool present;
    struct span value;
    struct span token; /* opaque; handed back in WRITE_STATE. c10d: the value itself */
    bool won;
    /* FAILED: a MUSTER_E code and the reason. With `again` the request may be repeated
     * after a pause: the driver is reconnecting, or the answer was lost. A write whose
     * answer was lost may have happened or not, so we read again before we decide.
     * Without `again`, a JOIN, LEAVE or CLOSE under way ends with this error. */
    int code;
    const char *text; /* borrowed for the call */
    bool again;
};

/* X(name): what to do, in order. */
#define RDZV_EFFECTS(X)                                                                \
    X(READ_STATE)                                                                      \
    X(WRITE_STATE) /* value, under token; no token: create only if nothing is there */ \
    X(WATCH)       /* send CHANGED once the backend's value differs from `value`; */   \
                   /* replaces the last WATCH; backends that cannot watch ignore it */ \
    X(JOINED)      /* round, rank, world; rdzv_participants() has all nodes */         \
    X(REFUSED)     /* the JOIN failed: code, text */                                   \
    X(DONE)        /* LEAVE or CLOSE (`request`) ended: code 0, or code and text */    \
    X(NEWS)        /* news, count (WAITING: how many), text */

enum rdzv_effect_kind {
#define RDZV_EFFECT_ENUM(name) RDZV_FX_##name,
    RDZV_EFFECTS(RDZV_EFFECT_ENUM)
#undef RDZV_EFFECT_ENUM
};

/* All spans and texts are borrowed until the next step. */
struct rdzv_effect {
    enum rdzv_effect_kind kind;
    struct span value; /* WRITE_STATE, WATCH: empty with `present` false means none */
    bool present;
    struct span token; /* WRITE_STATE */
    bool has_token;
    bool quiet;                   /* WRITE_STATE: watchers need not be told */
    int64_t round, rank, world;   /* JOINED */
    enum rdzv_event_kind request; /* DONE: RDZV_EV_LEAVE or RDZV_EV_CLOSE */
    enum rdzv_news news;
    int64_t count;
    int code; /* REFUSED: ECLOSED, EGRACEFUL (a spare that was not needed), ETIMEDOUT,
                 ESTATE, EEXIST (our identity is alive elsewhere), ECANCELED, or
                 FAILED's; DONE */
    const char *text;
};

#define RDZV_FX_MAX 12

struct rdzv_fx {
    struct rdzv_effect at[RDZV_FX_MAX];
    size_t count;
};

/* Returns 0 with the effects in fx (cleared first), or MUSTER_ENOMEM, with none. After
 * that every step returns it, and r can only be freed. */
int rdzv_step(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx);

/* When to send TIMER, by mono_ms; MONO_NEVER if nothing is due. */
uint64_t rdzv_deadline(const struct rdzv *r);

/* Whether CHANGED will come for each WATCH (our store: yes; torchrun's: no). Without it
 * we poll. May be called at any time, e.g. when the driver has connected. */
void rdzv_can_watch(struct rdzv *r, bool yes);

/* As of the last state that we read. */
int64_t rdzv_waiting(const struct rdzv *r); /* num_nodes_waiting() */
bool rdzv_closed(const struct rdzv *r);

/* Until when, by mono_ms, our last heartbeat keeps the others from dropping us, with
 * some time to spare (fence.h). After that, a member of a round gets the news CUT_OFF;
 * MONO_NEVER if it has had it, or there is no heartbeat yet. */
uint64_t rdzv_fence_due(const struct rdzv *r);

/* The round that was last JOINED, even while a join of the next one is under way; 0 if
 * there was none yet. */
uint64_t rdzv_last_round(const struct rdzv *r);

/* Whether, as far as we know, the participant with that rank in the round that was last
 * JOINED still has its place there, and is not this node. */
bool rdzv_still_placed(const struct rdzv *r, size_t rank);

/* How far the JOIN under way has come, as of the last state that we read; false if
 * there is none. */
bool rdzv_progress(const struct rdzv *r, struct rdzv_progress *out);

/* The names of the spares that the state lists, as of the last state that we read and
 * without this node: a list as in progress.h, of the first RDZV_NAMES_MAX of them. */
void rdzv_spares(const struct rdzv *r, char *to);

/* The participants of the round that was last JOINED, in rank order; borrowed until the
 * next JOINED. Rank 0 decides on the workers' address. */
const struct rdzv_node *rdzv_participants(const struct rdzv *r, size_t *count);

/* ---- The part of the c10d backend that does no I/O, for driver and simulator ---- */

/* "torch.rendezvous.<run_id>", and the value that stands for "no state". */
#define RDZV_C10D_PREFIX   "torch.rendezvous."
#define RDZV_C10D_SENTINEL "Y2FuaW1hZGFt"

/* Turns the answer of a GET or COMPARE_SET into STATE or WROTE: sets kind, present,
 * value, token, won. `sent` is the desired value of the COMPARE_SET and `expected` what
 * it expected; both empty for a GET. All spans stay borrowed from the arguments. */
void rdzv_c10d_answer(struct rdzv_event *ev, bool write, struct span expected,
                      struct span sent, struct span answer);

#endif
