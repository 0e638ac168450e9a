/* coordinator_int.h - what the files of the coordinator share: coordinator.c (messages,
 * losses, time), coordinator_nodes.c (nodes of ours), coordinator_seats.c (which node
 * has which seat) and coordinator_view.c (torchrun's nodes). */
#ifndef JOB_CORE_COORDINATOR_INT_H
#define JOB_CORE_COORDINATOR_INT_H

#include "base/map.h"
#include "job/core/coordinator.h"
#include "job/core/sessions.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/settings.h"
#include "rendezvous/core/state.h"

/* A completed round settles for this long, since torchrun's nodes look once a
 * second. */
#define SETTLE_MS 1200u

/* A node whose connection breaks dials again at once, but that may take this long. */
#define REDIAL_MS 1000u

/* Waiting nodes are told how many have come: soon at first, then seldom enough to cost
 * less than their heartbeats. */
#define GATHERED_FIRST_MS 1000u
#define GATHERED_MOST_MS  8000u

/* A node of ours that is connected, or that may still come back. */
struct node_session {
    struct map_link link;    /* by identity; the key's bytes lie after the struct */
    struct rdzv_node node;   /* addr borrowed from the key */
    struct session *session; /* borrowed; its connections */
    struct node_session *prev, *next; /* in `all` */
    bool stays;      /* wants the next round, but keeps its place until settled_by_ms */
    bool request;    /* its JOIN has not been answered */
    bool spare;      /* was told that it is a spare */
    bool was_member; /* of any round */
    bool member;     /* was told JOINED for the round that is complete now */
    bool ends;       /* it said LEAVE or CLOSE: it does not come back */
    struct node_session *request_prev, *request_next; /* in order of asking */
    int64_t joins;                                    /* number of the last JOIN */
};

struct node_session_list {
    struct node_session *first, *last;
};

struct coordinator {
    char *run_id; /* owned */
    const struct trace *trace;
    struct rdzv_settings settings; /* of the first node that came */
    struct buf settings_text;
    /* we logged that a node with another --nnodes was turned away */
    bool nnodes_logged;
    struct rdzv_state state;
    struct participant *rank0; /* rank 0 of the complete round; borrowed from state */
    size_t world;    /* the number of nodes in that round when it was complete */
    int64_t base_us; /* wall clock minus monotonic clock; follows it forward only */
    struct sessions *sessions; /* borrowed; who is connected, and who is lost */
    struct map node_sessions;
    /* owned; room to sort all nodes in, reserved before a step */
    struct participant **order;
    size_t order_size;
    struct node_session_list all;
    struct node_session_list requests;
    size_t torch_nodes;       /* torchrun's nodes in the state */
    int64_t lead_us;          /* how far their fastest clock is ahead of ours */
    uint64_t last_call_by_ms; /* of an open round that has enough nodes */
    uint64_t torch_due_ms;    /* when to look for silent torchrun nodes */
    uint64_t resume_by_ms;    /* until when nodes of a running round may come back to a
                                 restarted host */
    int64_t resume_world;
    /* every node of the round reads the workers' address in each round */
    bool all_read;
    int64_t closed_round; /* the round in which the run was closed; -1: it is open */
    /* until then torchrun's nodes may not have seen the round */
    uint64_t settled_by_ms;
    size_t staying;                /* how many sessions stay until then */
    uint64_t gathered_due_ms;      /* when to tell waiting nodes how many have come */
    uint64_t gathered_pause_ms;    /* grows while a round takes long to gather */
    uint64_t gathered_ms;          /* when they were last told, */
    size_t gathered;               /* and the number they were told */
    char names[RDZV_NAMES_SIZE];   /* of the nodes that have come */
    char missing[RDZV_NAMES_SIZE]; /* of nodes of the last round that have not come */
    char members[RDZV_NAMES_SIZE]; /* of all nodes of the last round */
    unsigned departures;      /* departures logged since the last round completed */
    unsigned losses;          /* lost nodes of the complete round */
    uint64_t awaits_until_ms; /* see coordinator_awaits_until_ms() */
    bool touched;             /* there is a state; else the view says "no state" */
    bool moved_on; /* a node of the complete round has left it for the next */
    int64_t waiting_notified; /* what the members were told: 0, 1 (a node waits) or
                                 COORD_MEMBER_WAITS */
    bool reseat;              /* other nodes' seats may have to change */
    bool dirty;               /* the state changed since the view was encoded */
    uint64_t view_ms;
    struct buf view;
};

/* coordinator_nodes.c */
struct node_session *coordinator_find(const struct coordinator *c,
                                      const struct rdzv_node *node);
struct node_session *node_session_of(const struct coordinator *c, uint32_t peer);
/* NULL: out of memory. */
struct node_session *node_session_new(struct coordinator *c,
                                      const struct rdzv_node *node, struct session *s);
void node_session_remove(struct coordinator *c, struct node_session *session);
int coordinator_reserve_order(struct coordinator *c, size_t count); /* coordinator.c */
void coordinator_request_begin(struct coordinator *c, struct node_session *session);
void coordinator_request_end(struct coordinator *c, struct node_session *session);

/* coordinator.c */
void coordinator_send(struct coordinator_fx *fx, const struct node_session *to,
                      struct coord_msg msg);
void coordinator_close_run(struct coordinator *c, struct coordinator_fx *fx);

/* coordinator_seats.c: none of these can fail; fx has room for six effects a node. */
void coordinator_seat_one(struct coordinator *c, struct coordinator_fx *fx,
                          struct node_session *session, struct now now);
void coordinator_settle(struct coordinator *c, struct coordinator_fx *fx,
                        struct now now);
/* The node gives its place up because it asks for the next round. */
void coordinator_move_on(struct coordinator *c, struct participant *m);
void coordinator_notify_members(struct coordinator *c, struct coordinator_fx *fx,
                                struct coord_msg msg);
void coordinator_forget_waiting(struct coordinator *c);
void coordinator_notify_gathered(struct coordinator *c, struct coordinator_fx *fx,
                                 struct now now);
void coordinator_notify_joined(struct coordinator *c, struct coordinator_fx *fx);
void coordinator_begin_last_call(struct coordinator *c,
                                 struct now now); /* if there are enough */

/* Tells a node that it is a spare, or no longer one, if it does not know yet: the JOIN
 * of a spare has no time limit. */
void coordinator_notify_spare(struct coordinator *c, struct coordinator_fx *fx,
                              struct node_session *session);

/* Answers a JOIN: the round is complete, and the node has a place in it. */
void coordinator_notify_rank(struct coordinator *c, struct coordinator_fx *fx,
                             struct node_session *session);

/* Removes a node from the state and tells the nodes of the running round; text says
 * which node, and why. */
void coordinator_lose(struct coordinator *c, struct coordinator_fx *fx,
                      struct participant *m, enum trace_level level, const char *text);

/* coordinator_view.c */
int64_t
coordinator_wall_us(struct coordinator *c,
                    struct now now); /* the time that torchrun's nodes are told */
int coordinator_seen(struct coordinator *c, const struct coordinator_event *ev,
                     struct coordinator_fx *fx, struct muster_error *err);
void coordinator_expire_torch_nodes(struct coordinator *c, struct coordinator_fx *fx,
                                    struct now now);

#endif
