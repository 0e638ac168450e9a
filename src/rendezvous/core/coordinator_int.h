/* coordinator_int.h - what the files of the coordinator share: coordinator.c (messages,
 * losses, time), coordinator_nodes.c (nodes of ours), coordinator_seats.c (who sits
 * where) and coordinator_view.c (torchrun's side). */
#ifndef RENDEZVOUS_CORE_COORDINATOR_INT_H
#define RENDEZVOUS_CORE_COORDINATOR_INT_H

#include "base/map.h"
#include "rendezvous/core/coordinator.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/settings.h"
#include "rendezvous/core/state.h"

/* torchrun's nodes look once a second. */
#define SETTLE_MS 1200u

/* A node dials again at once when its connection breaks; on a bad day it takes longer.
 */
#define REDIAL_MS 1000u

/* Those who wait are told how many have come: at first soon, then seldom enough to cost
 * less than their heartbeats. */
#define GATHERED_FIRST_MS 1000u
#define GATHERED_MOST_MS  8000u

/* A node of ours: connected, or gone for less than its grace. */
struct node_session {
    struct map_link link;  /* by identity; the key's bytes lie behind the struct */
    struct rdzv_node node; /* addr borrowed from the key */
    struct node_session *prev, *next; /* in order of when we last heard of it */
    uint64_t heard_ms;
    uint64_t lost_by_ms; /* MONO_NEVER while connected */
    uint64_t grace_ms;
    uint64_t nonce;
    uint32_t peer;
    bool stays;      /* wants the next round, but keeps its place until settled_by_ms */
    bool request;    /* its JOIN has not been answered */
    bool spare;      /* was told that it is a spare */
    bool was_member; /* of any round */
    bool member;     /* was told JOINED for the round that is complete now */
    bool ends;       /* has said so: it does not come back */
    struct node_session *request_prev, *request_next; /* in order of asking */
    struct node_session *gone_prev, *gone_next;       /* in its grace */
    int64_t joins;                                    /* number of the last JOIN */
};

struct node_session_list {
    struct node_session *first, *last;
};

struct coordinator {
    char *run_id; /* owned */
    const struct trace *trace;
    struct rdzv_settings settings; /* those of the first node */
    struct buf settings_text;
    bool nnodes_logged; /* that a node with another --nnodes was turned away */
    struct rdzv_state state;
    struct participant *rank0; /* rank 0 of the complete round; borrowed from state */
    size_t world;              /* how many were told of that round */
    int64_t base_us; /* wall minus monotonic clock, as far as it goes forward */
    struct map node_sessions;
    struct node_session **by_peer; /* owned */
    size_t by_peer_size;
    struct participant **order; /* owned; room to rank all in, made before a step */
    size_t order_size;
    struct node_session_list heard; /* oldest first */
    struct node_session_list requests;
    struct node_session_list
        gone;           /* in their grace; the one that is lost first comes first */
    size_t torch_nodes; /* torchrun's nodes in the state */
    int64_t lead_us;    /* how far the furthest of their clocks is ahead of ours */
    uint64_t last_call_by_ms; /* of an incomplete round with enough nodes */
    uint64_t torch_due_ms;    /* when to look for silent torchrun nodes */
    uint64_t resume_by_ms;    /* a round that a restarted host found running */
    int64_t resume_world;
    bool all_read;            /* the address anew: nobody in the round remembers one */
    int64_t closed_round;     /* the one that the run ended in; -1: it has not */
    uint64_t settled_by_ms;   /* until then torchrun's nodes may not have looked */
    size_t staying;           /* node_sessions that stay until then */
    uint64_t gathered_due_ms; /* when those who wait are told how many have come */
    uint64_t gathered_pause_ms;    /* grows while a round is long in coming */
    uint64_t gathered_ms;          /* when they were told last, */
    size_t gathered;               /* and what */
    char names[RDZV_NAMES_SIZE];   /* of those who have come, */
    char missing[RDZV_NAMES_SIZE]; /* of those who were there before and are not, */
    char members[RDZV_NAMES_SIZE]; /* and of all in the round before */
    unsigned departures;           /* said in the log since the last round or message */
    unsigned losses;               /* of members of the round that is complete */
    uint64_t awaits_until_ms;      /* nodes whose connections broke: they dial again */
    bool touched;  /* anybody ever joined: else the view says "no state" */
    bool moved_on; /* a member of the complete round has left it for the next, */
    int64_t waiting_notified; /* as members know: 0, 1: somebody waits, MEMBER_WAITS */
    bool reseat;              /* somebody's seat may have to change */
    bool dirty;               /* the state changed since the view was encoded */
    uint64_t view_ms;
    struct buf view;
};

/* coordinator_nodes.c */
struct node_session *coordinator_find(const struct coordinator *h,
                                      const struct rdzv_node *node);
struct node_session *node_session_of(const struct coordinator *h, uint32_t peer);
struct node_session *node_session_new(struct coordinator *h,
                                      const struct rdzv_node *node);
void node_session_remove(struct coordinator *h, struct node_session *w);
void node_session_heard(struct coordinator *h, struct node_session *w,
                        struct now now); /* at first */
void node_session_hear(struct coordinator *h, struct node_session *w,
                       struct now now); /* again */
int coordinator_reserve_peer(struct coordinator *h, uint32_t peer);
int coordinator_reserve_order(struct coordinator *h, size_t count); /* coordinator.c */
void coordinator_request_begin(struct coordinator *h, struct node_session *w);
void coordinator_request_end(struct coordinator *h, struct node_session *w);
void coordinator_gone_begin(struct coordinator *h, struct node_session *w,
                            uint64_t by_ms);
void coordinator_gone_end(struct coordinator *h, struct node_session *w);

/* coordinator.c */
void coordinator_send(struct coordinator_fx *fx, const struct node_session *to,
                      struct coord_msg msg);
void coordinator_close_run(struct coordinator *h, struct coordinator_fx *fx);

/* coordinator_seats.c: none can fail; fx has room for six effects a node. */
void coordinator_seat_one(struct coordinator *h, struct coordinator_fx *fx,
                          struct node_session *w, struct now now);
void coordinator_settle(struct coordinator *h, struct coordinator_fx *fx,
                        struct now now);
/* It gives its place up by asking for the next round. */
void coordinator_move_on(struct coordinator *h, struct participant *m);
void coordinator_notify_members(struct coordinator *h, struct coordinator_fx *fx,
                                struct coord_msg msg);
void coordinator_forget_waiting(struct coordinator *h);
void coordinator_notify_gathered(struct coordinator *h, struct coordinator_fx *fx,
                                 struct now now);
void coordinator_notify_joined(struct coordinator *h, struct coordinator_fx *fx);
void coordinator_call_last(struct coordinator *h,
                           struct now now); /* if there are enough */

/* Tells w whether it is a spare, if it does not know: then its JOIN has no time limit.
 */
void coordinator_notify_spare(struct coordinator *h, struct coordinator_fx *fx,
                              struct node_session *w);

/* Answers w's JOIN: the round is complete and w has a place in it. */
void coordinator_notify_rank(struct coordinator *h, struct coordinator_fx *fx,
                             struct node_session *w);

/* Removes a node from the state and tells the running round: text says who and why. */
void coordinator_lose(struct coordinator *h, struct coordinator_fx *fx,
                      struct participant *m, enum trace_level level, const char *text);

/* coordinator_view.c */
int64_t coordinator_wall_us(struct coordinator *h,
                            struct now now); /* what we tell torchrun's */
int coordinator_seen(struct coordinator *h, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, struct muster_error *err);
void coordinator_expire_torch_nodes(struct coordinator *h, struct coordinator_fx *fx,
                                    struct now now);

#endif
