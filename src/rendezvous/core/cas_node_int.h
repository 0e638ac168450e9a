/* cas_node_int.h - what the files of a node's step machine share; see cas_node.h. */
#ifndef RENDEZVOUS_CORE_CAS_NODE_INT_H
#define RENDEZVOUS_CORE_CAS_NODE_INT_H

#include "base/buf.h"
#include "base/rng.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/decisions.h"

/* A peer whose fresh heartbeat is off by more than this is warned of. */
#define SKEW_US 2000000ll
/* A round that we joined keeps us for so long at least: torchrun's nodes look once a
 * second, and one that finds a member gone before it looked is given a smaller world.
 */
#define STAY_MS 1200u
/* Our heartbeats follow a peer's clock that is ahead by up to this; see liveness.c. */
#define LEAD_US 600000000ll

/* An answer that takes so long comes from a backend that was away. */
#define AWAY_MS 1000u

enum rdzv_mode { MODE_IDLE, MODE_JOINING, MODE_MEMBER };
enum rdzv_busy { BUSY_NOT, BUSY_READING, BUSY_WRITING };

struct rdzv_request {
    bool on;
    uint64_t by_ms;
};

/* The members of a round in rank order, addresses and all in one piece of memory. */
struct rdzv_roster {
    struct rdzv_node *nodes; /* owned */
    size_t count;
    int64_t round;
};

/* What one look at the state leads to. Made without changing anything, since memory may
 * run out on the way; committed as a whole. */
struct rdzv_plan {
    bool writes;
    struct rdzv_state next; /* owned if writes: what the store should hold */
    struct buf text;        /* owned: next, encoded */
    int64_t beat_us;        /* our heartbeat in next */
    bool seated;            /* next lists us somewhere */
    bool only_beat;         /* next has a heartbeat of ours, and is else as it was */
    bool quiet;             /* nobody need look at it for its own sake */
    /* Come true once next is in the store: */
    bool left_round; /* our place in the last round is handed back */
    bool renewed;    /* no spare any more: the time to join begins anew */
    /* True now, if nothing is to be written: */
    enum rdzv_action end; /* of the join: FINISH or a failure; SYNC: it goes on */
    int refused;          /* with end SYNC: a code of ours, text in why; or 0 */
    bool left, closed, seat_released; /* the requests that are fulfilled */
    struct rdzv_roster roster;        /* owned, with FINISH */
    struct muster_error why;
};

struct rdzv {
    /* Fixed. */
    char *run_id; /* owned */
    char *addr;   /* owned; self.addr points to it */
    struct rdzv_node self;
    char self_text[128];
    struct rdzv_settings settings;
    uint64_t poll_ms;
    const struct trace *trace; /* borrowed */

    /* What the backend last said. */
    struct rdzv_state seen; /* as it is there, the dead included */
    int64_t completed;      /* the round that a write of ours completed; -1: none */
    struct buf value;       /* its text; empty: nothing there */
    struct buf token;
    bool has_token;
    uint64_t read_ms;       /* when that was */
    uint64_t asked_ms;      /* when we first asked for what it has not said yet */
    uint64_t away_ms;       /* how long it kept us waiting for its last answer */
    int64_t call_us;        /* its last call, */
    uint64_t call_since_ms; /* and since when we know of this one */

    /* The request under way. */
    enum rdzv_busy busy;
    struct rdzv_plan doing; /* BUSY_WRITING: what was sent */

    /* What is wanted of us. */
    enum rdzv_mode mode;
    bool was_member;   /* has been in a round before */
    bool in_old_round; /* JOINING: our place in the last round is to be handed back */
    uint64_t join_by_ms;
    struct rdzv_request leave, close;
    struct rdzv_request
        release_seat; /* after a failed join, nobody waits for it: give our seat up */

    /* Our life sign. */
    bool ours;            /* the entry under our name is of our making */
    int64_t beat_us;      /* last sent */
    bool taken;           /* the store has the write that it came with, as we know, */
    bool unsure;          /* or may have it: its answer was lost */
    uint64_t beat_due_ms; /* next */

    uint64_t read_due_ms; /* next look at the state */
    bool can_watch;
    unsigned losses, failures; /* in a row */
    uint64_t sent_ms;          /* the write under way began, */
    uint64_t trip_ms;          /* and the last one took */
    uint64_t slot_ms;          /* the shortest one so far; 0: none yet */
    bool write_first; /* what is due at read_due_ms is a write: no need to read */
    struct rng rng;

    struct rdzv_roster roster; /* of the round last joined, */
    uint64_t stay_until_ms;    /* which we do not leave before this for the next one */
    size_t waiting_notified, lost_notified;
    bool moved_notified, deserted_notified, closed_notified, backend_notified;
    struct muster_error why; /* text of the effects of the last step */
    char news_text[256];
};

void rdzv_plan_fini(struct rdzv_plan *p);
void rdzv_roster_fini(struct rdzv_roster *r);

/* cas_node_plan.c: decides on a state that is fresh at `now`. 0 or MUSTER_ENOMEM. */
int rdzv_plan_make(const struct rdzv *r, const struct rdzv_state *s, struct now now,
                   struct rdzv_plan *out);

/* liveness.c */
bool rdzv_is_dead(const struct rdzv *r, const struct participant *m, uint64_t now_ms);
size_t rdzv_live(const struct rdzv *r, const struct rdzv_state *s, enum rdzv_list list,
                 uint64_t now_ms);
int64_t rdzv_beat_time(const struct rdzv *r, const struct rdzv_state *s,
                       int64_t wall_us);
/* When the next silent node must be taken for dead; MONO_NEVER if there is none. */
uint64_t rdzv_next_death(const struct rdzv *r, const struct rdzv_state *s);
/* A node of r->seen has a new heartbeat. */
void rdzv_beat_seen(struct rdzv *r, struct participant *m, int64_t beat_us,
                    struct now now);
/* Nothing has changed, but the backend may have been away: r->seen as of now. */
void rdzv_extend_for_outage(struct rdzv *r, uint64_t now_ms);
/* Carries what we know of its nodes over from the state before. */
void rdzv_observe(struct rdzv *r, struct rdzv_state *s, struct now now);

/* cas_node_news.c: tells a member what changed; returns false if it is not a member any
 * more. */
bool rdzv_notify(struct rdzv *r, struct now now, struct rdzv_fx *fx);

/* cas_node.c */
void rdzv_done(struct rdzv *r, struct rdzv_request *request, enum rdzv_event_kind kind,
               int code, const char *text, struct rdzv_fx *fx);
void rdzv_refuse(struct rdzv *r, struct now now, int code, struct rdzv_fx *fx);
void rdzv_end_join(struct rdzv *r, struct rdzv_plan *p, struct now now,
                   struct rdzv_fx *fx);

/* cas_node_sync.c */
int rdzv_on_state(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx);
int rdzv_on_wrote(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx);
void rdzv_on_failed(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx);
uint64_t rdzv_poll_ms(const struct rdzv *r);
void rdzv_commit(struct rdzv *r, struct rdzv_plan *p, struct now now,
                 struct rdzv_fx *fx); /* the plan was made on r->seen */
uint64_t rdzv_spacing_ms(const struct rdzv *r);

/* cas_node.c */
bool rdzv_wants(const struct rdzv *r); /* anything at all is to be done */
void rdzv_read_now(struct rdzv *r, struct rdzv_fx *fx);
struct rdzv_effect *rdzv_fx_add(struct rdzv_fx *fx, enum rdzv_effect_kind kind);

#endif
