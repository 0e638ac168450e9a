/* cas_node_int.h - what the files of a node's step machine share; see cas_node.h. */
#ifndef RENDEZVOUS_CORE_CAS_NODE_INT_H
#define RENDEZVOUS_CORE_CAS_NODE_INT_H

#include "base/buf.h"
#include "base/rng.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/decisions.h"

/* We warn of a peer whose fresh heartbeat differs from our clock by more than this. */
#define SKEW_US 2000000ll
/* We stay in a round that we joined for at least this long. torchrun's nodes look once
 * a second, and one that looked after we had left would get a smaller world. */
#define STAY_MS 1200u
/* If a peer's clock is ahead of ours by up to this, our heartbeats follow it; see
 * liveness.c. */
#define LEAD_US 600000000ll

/* A backend that takes this long to answer was unreachable in between. */
#define AWAY_MS 1000u

enum rdzv_mode { MODE_IDLE, MODE_JOINING, MODE_MEMBER };
enum rdzv_busy { BUSY_NOT, BUSY_READING, BUSY_WRITING };

struct rdzv_request {
    bool on;
    uint64_t by_ms;
};

/* The participants of a round in rank order. The nodes and their addresses are one
 * allocation. */
struct rdzv_roster {
    struct rdzv_node *nodes; /* owned */
    size_t count;
    int64_t round;
};

/* What we do about one state that we read. Making a plan changes nothing else; a
 * finished plan is committed as a whole, at once or after a pause. */
struct rdzv_plan {
    bool writes;
    struct rdzv_state next; /* owned if writes: what the store should hold */
    struct buf text;        /* owned: next, encoded */
    int64_t beat_us;        /* our heartbeat in next */
    bool seated;            /* next lists us somewhere */
    bool only_beat; /* next differs from the state before in our heartbeat alone */
    bool quiet;     /* no other node needs to read it soon; see is_quiet() */
    /* These take effect once next is in the store: */
    bool left_round; /* our place in the last round is given up */
    bool renewed;    /* we stop being a spare, and join_timeout begins again */
    /* These hold at once if nothing is to be written: */
    enum rdzv_action end; /* how the join ends: FINISH or a failure; SYNC: it goes on */
    int refused; /* with end SYNC: 0, or an error code of ours whose text is in why */
    bool left, closed, seat_released; /* the requests that are fulfilled */
    struct rdzv_roster roster;        /* owned, with FINISH */
    struct muster_error why;
};

struct rdzv {
    bool no_memory; /* it has run out: every step says so */

    /* Fixed. */
    char *run_id; /* owned */
    char *addr;   /* owned; self.addr points to it */
    struct rdzv_node self;
    char self_text[128];
    struct rdzv_settings settings;
    uint64_t poll_ms;
    const struct log *log; /* borrowed */

    /* What the backend last said. */
    struct rdzv_state seen; /* as stored, including nodes that we take for dead */
    int64_t completed;      /* the round that a write of ours completed; -1: none */
    struct buf value;       /* the text of `seen`; empty: the store has none */
    struct buf token;
    bool has_token;
    uint64_t read_ms;       /* when we last read or wrote it */
    uint64_t asked_ms;      /* when we first sent the unanswered request */
    uint64_t away_ms;       /* how long it took to answer our last request */
    int64_t call_us;        /* the end of the last call in `seen` */
    uint64_t call_since_ms; /* when we first saw that value */

    /* The request under way. */
    enum rdzv_busy busy;
    struct rdzv_plan sent; /* BUSY_WRITING: what was sent */

    /* What the agent wants of us. */
    enum rdzv_mode mode;
    bool was_member;   /* has been in a round before */
    bool in_old_round; /* JOINING: we have yet to give up our place in the last round */
    uint64_t join_by_ms;
    struct rdzv_request leave, close;
    struct rdzv_request release_seat; /* give our seat up after a failed join; the agent
                                         does not wait for this */

    /* Our heartbeat. */
    bool entry_is_ours; /* this process wrote the entry under our name */
    int64_t beat_us;    /* last sent */
    bool write_taken;   /* the store is known to have the write that carried beat_us */
    bool write_unsure;  /* the store may have that write: its answer was lost */
    uint64_t beat_due_ms; /* when to send the next one */
    struct fence fence;

    uint64_t read_due_ms; /* when to read the state again */
    bool can_watch;
    unsigned losses, failures;  /* in a row */
    uint64_t sent_ms;           /* when the write under way was sent */
    uint64_t write_took_ms;     /* how long the last write took */
    uint64_t quickest_write_ms; /* how long the quickest write took; 0: none yet */
    bool write_first;           /* at read_due_ms write without reading first */
    struct rng rng;

    struct rdzv_roster roster; /* of the round that we joined last */
    uint64_t stay_until_ms;    /* we do not leave that round earlier for the next one */
    size_t waiting_notified, lost_notified;
    bool moved_notified, deserted_notified, closed_notified, backend_notified;
    struct muster_error why; /* text of the effects of the last step */
    char news_text[512];
};

void rdzv_plan_fini(struct rdzv_plan *p);
void rdzv_roster_fini(struct rdzv_roster *r);

/* cas_node_plan.c: decides what to do about a state that is fresh at `now`. Returns 0
 * or MUSTER_ENOMEM. */
int rdzv_plan_make(const struct rdzv *r, const struct rdzv_state *s, struct now now,
                   struct rdzv_plan *out);

/* liveness.c */
bool rdzv_is_dead(const struct rdzv *r, const struct participant *m, uint64_t now_ms);
size_t rdzv_count_live(const struct rdzv *r, const struct rdzv_state *s,
                       enum rdzv_list list, uint64_t now_ms);
int64_t rdzv_beat_time(const struct rdzv *r, const struct rdzv_state *s,
                       int64_t wall_us);
/* When the next node counts as dead if it stays silent; MONO_NEVER if there is none. */
uint64_t rdzv_next_death(const struct rdzv *r, const struct rdzv_state *s);
/* Records a new heartbeat of a node of r->seen. */
void rdzv_beat_seen(struct rdzv *r, struct participant *m, int64_t beat_us,
                    struct now now);
/* The state is unchanged, but the backend may have been away: gives the nodes of
 * r->seen more time. */
void rdzv_extend_for_outage(struct rdzv *r, uint64_t now_ms);
/* Carries over from r->seen what we know of the nodes that s lists. */
void rdzv_observe(struct rdzv *r, struct rdzv_state *s, struct now now);

/* cas_node_news.c: tells the agent what changed in its round. Returns false if this
 * node is no longer in that round. */
bool rdzv_notify(struct rdzv *r, struct now now, struct rdzv_fx *fx);
/* was_absent: because this process did not run for too long. */
void rdzv_notify_cut_off(struct rdzv *r, bool was_absent, struct rdzv_fx *fx);

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
                 struct rdzv_fx *fx); /* p was made from r->seen */
uint64_t rdzv_spacing_ms(const struct rdzv *r);

/* cas_node.c */
bool rdzv_has_work(const struct rdzv *r); /* whether anything is left to be done */
void rdzv_read_now(struct rdzv *r, struct rdzv_fx *fx);
struct rdzv_effect *rdzv_fx_add(struct rdzv_fx *fx, enum rdzv_effect_kind kind);

#endif
