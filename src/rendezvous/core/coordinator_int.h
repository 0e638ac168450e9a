/* host_int.h - what the files of the host share: host.c (messages), host_hello.c (the
 * first of them), host_holders.c (nodes of ours), host_seats.c (who sits where),
 * host_time.c (loss, deadlines) and host_view.c (torchrun's side). */
#ifndef RENDEZVOUS_CORE_COORDINATOR_INT_H
#define RENDEZVOUS_CORE_COORDINATOR_INT_H

#include "base/map.h"
#include "rendezvous/core/coordinator.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/settings.h"
#include "rendezvous/core/state.h"

/* torchrun's nodes look once a second. */
#define HOST_SETTLE_MS 1200u

/* Those who wait are told how many have come: at first soon, then seldom enough to cost
 * less than their heartbeats. */
#define GATHERED_FIRST_MS 1000u
#define GATHERED_MOST_MS  8000u

/* A node of ours: connected, or gone for less than its grace. */
struct holder {
    struct map_link link;       /* by identity; the key's bytes lie behind the struct */
    struct rdzv_node node;      /* addr borrowed from the key */
    struct holder *prev, *next; /* in order of when we last heard of it */
    uint64_t heard_ms;
    uint64_t lost_by_ms; /* MONO_NEVER while connected */
    uint64_t grace_ms;
    uint64_t nonce;
    uint64_t order_key;
    enum hosted_order order;
    uint32_t peer;
    bool stays;  /* wants the next round, but keeps its place until settled_by_ms */
    bool wish;   /* its JOIN has not been answered */
    bool spare;  /* was told that it is a spare */
    bool member; /* was told JOINED for the round that is complete now */
    struct holder *wish_prev, *wish_next; /* in order of asking */
    struct holder *gone_prev, *gone_next; /* in its grace */
    int64_t joins;                        /* number of the last JOIN */
};

struct holder_list {
    struct holder *first, *last;
};

struct rdzv_host {
    char *run_id; /* owned */
    const struct trace *trace;
    struct rdzv_settings settings; /* those of the first node */
    struct buf settings_text;
    struct rdzv_state state;
    struct rdzv_member *zero; /* rank 0 of the complete round; borrowed from state */
    size_t world;             /* how many were told of that round */
    int64_t base_us; /* wall minus monotonic clock, as far as it goes forward */
    struct map holders;
    struct holder **by_peer; /* owned */
    size_t by_peer_size;
    struct holder_list heard; /* oldest first */
    struct holder_list wishes;
    struct holder_list gone; /* in their grace; who is lost first comes first */
    size_t strangers;        /* torchrun's nodes in the state */
    int64_t lead_us;         /* how far the furthest of their clocks is ahead of ours */
    uint64_t last_call_by_ms;  /* of an incomplete round with enough nodes */
    uint64_t strangers_due_ms; /* when to look for silent torchrun nodes */
    uint64_t resume_by_ms;     /* a round that a restarted host found running */
    int64_t resume_world;
    uint64_t settled_by_ms;        /* until then torchrun's nodes may not have looked */
    size_t staying;                /* holders that stay until then */
    uint64_t gathered_due_ms;      /* when those who wait are told how many have come */
    uint64_t gathered_pause_ms;    /* grows while a round is long in coming */
    uint64_t gathered_ms;          /* when they were told last, */
    size_t gathered;               /* and what */
    char names[RDZV_NAMES_SIZE];   /* of those who have come, */
    char missing[RDZV_NAMES_SIZE]; /* of those who were there before and are not, */
    char members[RDZV_NAMES_SIZE]; /* and of all in the round before */
    unsigned departures;           /* said in the log since the last round or message */
    unsigned losses;               /* of members of the round that is complete */
    bool touched;      /* anybody ever joined: else the view says "no state" */
    bool waiting_told; /* members know that somebody waits */
    bool reseat;       /* somebody's seat may have to change */
    bool dirty;        /* the state changed since the view was encoded */
    uint64_t view_ms;
    struct buf view;
};

/* host_holders.c */
struct holder *host_find(const struct rdzv_host *h, const struct rdzv_node *node);
struct holder *holder_of(const struct rdzv_host *h, uint32_t peer);
struct holder *holder_new(struct rdzv_host *h, const struct rdzv_node *node);
void holder_remove(struct rdzv_host *h, struct holder *w);
void holder_heard(struct rdzv_host *h, struct holder *w, struct now now); /* at first */
void holder_hear(struct rdzv_host *h, struct holder *w, struct now now);  /* again */
int host_reserve_peer(struct rdzv_host *h, uint32_t peer);
void host_wish_begin(struct rdzv_host *h, struct holder *w);
void host_wish_end(struct rdzv_host *h, struct holder *w);
void host_gone_begin(struct rdzv_host *h, struct holder *w, uint64_t by_ms);
void host_gone_end(struct rdzv_host *h, struct holder *w);

/* host_hello.c */
int host_hello(struct rdzv_host *h, const struct rdzv_host_event *ev,
               struct rdzv_host_fx *fx, struct muster_error *err);

/* host_time.c */
void host_gone(struct rdzv_host *h, const struct rdzv_host_event *ev,
               struct rdzv_host_fx *fx);
void host_timer(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now);

/* host.c */
void host_send(struct rdzv_host_fx *fx, const struct holder *to, struct hosted_msg msg);
void host_drop(struct rdzv_host_fx *fx, uint32_t peer); /* fx->text says why */
void host_refuse(struct rdzv_host *h, struct rdzv_host_fx *fx, struct holder *w,
                 int code, const char *text);
void host_close_run(struct rdzv_host *h, struct rdzv_host_fx *fx);

/* Whether nodes that poll have yet to look at the round that is complete: who leaves it
 * before they have would make the world that they see a smaller one. */
bool host_unsettled(const struct rdzv_host *h, const struct holder *w, struct now now);

/* host_seats.c: none can fail; fx has room for three effects a holder. */
void host_seat_one(struct rdzv_host *h, struct rdzv_host_fx *fx, struct holder *w,
                   struct now now);
void host_settle(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now);
void host_leave_place(struct rdzv_host *h, struct rdzv_member *m);
void host_tell_members(struct rdzv_host *h, struct rdzv_host_fx *fx,
                       struct hosted_msg msg);
void host_tell_waiting(struct rdzv_host *h, struct rdzv_host_fx *fx);
void host_tell_gathered(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now);
void host_tell_joined(struct rdzv_host *h, struct rdzv_host_fx *fx);
void host_call_last(struct rdzv_host *h, struct now now); /* if there are enough */
void host_complete_if_due(struct rdzv_host *h, struct rdzv_host_fx *fx, struct now now);

/* Tells w whether it is a spare, if it does not know: then its JOIN has no time limit.
 */
void host_tell_spare(struct rdzv_host *h, struct rdzv_host_fx *fx, struct holder *w);

/* Answers w's JOIN: the round is complete and w has a place in it. */
void host_tell_rank(struct rdzv_host *h, struct rdzv_host_fx *fx, struct holder *w);

/* Removes a node from the state and tells the running round: text says who and why. */
void host_lose(struct rdzv_host *h, struct rdzv_host_fx *fx, struct rdzv_member *m,
               enum trace_level level, const char *text);

/* host_view.c */
int64_t host_wall_us(struct rdzv_host *h, struct now now); /* what we tell torchrun's */
int host_seen(struct rdzv_host *h, const struct rdzv_host_event *ev,
              struct rdzv_host_fx *fx, struct muster_error *err);
void host_expire_strangers(struct rdzv_host *h, struct rdzv_host_fx *fx,
                           struct now now);

#endif
