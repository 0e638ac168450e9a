/* seats_int.h - what the files of the coordinator share: coordinator.c (messages,
 * losses, time), seats_nodes.c (nodes of ours), seats_seats.c (which node
 * has which seat) and seats_view.c (torchrun's nodes). */
#ifndef JOB_CORE_SEATS_INT_H
#define JOB_CORE_SEATS_INT_H

#include "base/map.h"
#include "job/core/seats.h"
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
struct seat_node {
    struct map_link link;        /* by identity; the key's bytes lie after the struct */
    struct rdzv_node node;       /* addr borrowed from the key */
    struct run_session *session; /* borrowed; its connections */
    struct seat_node *prev, *next; /* in `all` */
    bool stays;      /* wants the next round, but keeps its place until settled_by_ms */
    bool request;    /* its JOIN has not been answered */
    bool spare;      /* was told that it is a spare */
    bool was_member; /* of any round */
    bool member;     /* was told JOINED for the round that is complete now */
    bool ends;       /* it said LEAVE or CLOSE: it does not come back */
    struct seat_node *request_prev, *request_next; /* in order of asking */
    int64_t joins;                                 /* number of the last JOIN */
    int64_t nproc;           /* how many workers it has; 0: its agent does not say */
    char *role;              /* owned; theirs */
    struct rank_range ranks; /* theirs in the complete round; a world of 0: not known */
};

struct seat_node_list {
    struct seat_node *first, *last;
};

/* Where the workers of a round find their store: rank 0 says it, and the others are
 * told when they are told their ranks. */
struct seat_store {
    const struct seat_node *by; /* borrowed; NULL: nobody has said it */
    int64_t round, port;
    char *host; /* owned */
};

struct seats {
    char *run_id; /* owned */
    const struct log *log;
    struct rdzv_settings settings; /* of the first node that came */
    struct buf settings_text;
    /* we logged that a node with another --nnodes was turned away */
    bool nnodes_logged;
    struct rdzv_state state;
    struct participant *rank0; /* rank 0 of the complete round; borrowed from state */
    size_t world;    /* the number of nodes in that round when it was complete */
    int64_t base_us; /* wall clock minus monotonic clock; follows it forward only */
    struct sessions *sessions; /* borrowed; who is connected, and who is lost */
    struct map nodes;
    /* owned; room to sort all nodes in, reserved before a step */
    struct participant **order;
    size_t order_size;
    struct seat_node_list all;
    struct seat_node_list requests;
    size_t torch_nodes;       /* torchrun's nodes in the state */
    int64_t lead_us;          /* how far their fastest clock is ahead of ours */
    uint64_t last_call_by_ms; /* of an open round that has enough nodes */
    uint64_t torch_due_ms;    /* when to look for silent torchrun nodes */
    uint64_t resume_by_ms;    /* until when nodes of a running round may come back to a
                                 restarted host */
    int64_t resume_world;
    /* no node of the round is torchrun's */
    bool all_ours;
    bool ranked; /* nor torch's agent: the run gives out the workers' ranks */
    /* Seated, not yet started: rank 0 alone knows that the round is complete, and the
     * others are told once it has said where the workers' store is. If one of them goes
     * before that, there is no such round for the rest. */
    bool held;
    void (*on_round)(void *ctx, int64_t round); /* may be NULL */
    void *on_round_ctx;
    struct seat_store stores[2]; /* of this round and of the next, by round % 2 */
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
    uint64_t awaits_until_ms; /* see seats_awaits_until_ms() */
    bool touched;             /* there is a state; else the view says "no state" */
    bool moved_on; /* a node of the complete round has left it for the next */
    int64_t waiting_notified; /* what the members were told: 0, 1 (a node waits) or
                                 WIRE_MEMBER_WAITS */
    bool reseat;              /* other nodes' seats may have to change */
    bool dirty;               /* the state changed since the view was encoded */
    uint64_t view_ms;
    struct buf view;
};

/* seats_nodes.c */
struct seat_node *seats_find(const struct seats *c, const struct rdzv_node *node);
/* NULL: out of memory. */
struct seat_node *seat_node_new(struct seats *c, const struct rdzv_node *node,
                                struct run_session *s);
void seat_node_remove(struct seats *c, struct seat_node *node);
int seats_reserve_order(struct seats *c, size_t count); /* coordinator.c */
void seats_request_begin(struct seats *c, struct seat_node *node);
void seats_request_end(struct seats *c, struct seat_node *node);

/* coordinator.c */
void seats_send(struct run_fx *fx, const struct seat_node *to, struct run_msg msg);
void seats_news(struct run_fx *fx, const struct seat_node *to, enum wire_news what,
                int64_t count, const char *text);
void seats_close_run(struct seats *c, struct run_fx *fx);

/* seats_seats.c */
void seats_seat_one(struct seats *c, struct run_fx *fx, struct seat_node *node,
                    struct now now);
void seats_settle(struct seats *c, struct run_fx *fx, struct now now);
/* The node gives its place up because it asks for the next round. */
void seats_move_on(struct seats *c, struct participant *m);
void seats_notify_members(struct seats *c, struct run_fx *fx, enum wire_news what,
                          int64_t count, const char *text);
void seats_forget_waiting(struct seats *c);
void seats_notify_gathered(struct seats *c, struct run_fx *fx, struct now now);
void seats_notify_joined(struct seats *c, struct run_fx *fx);
/* The node says where it serves the workers' store. 0, or MUSTER_ENOMEM. */
int seats_store(struct seats *c, struct run_fx *fx, struct seat_node *node,
                const struct run_msg *m, struct now now);
void seats_begin_last_call(struct seats *c, struct now now); /* if there are enough */

/* Tells a node that it is a spare, or no longer one, if it does not know yet: the JOIN
 * of a spare has no time limit. */
void seats_notify_spare(struct seats *c, struct run_fx *fx, struct seat_node *node);

/* Answers a JOIN: the round is complete, and the node has a place in it. */
void seats_notify_rank(struct seats *c, struct run_fx *fx, struct seat_node *node);

/* Removes a node from the state and tells the nodes of the running round; text says
 * which node, and why. */
void seats_lose(struct seats *c, struct run_fx *fx, struct participant *m,
                enum log_level level, enum log_place place, const char *text);

/* seats_view.c */
int64_t seats_wall_us(struct seats *c,
                      struct now now); /* the time that torchrun's nodes are told */
void seats_expire_torch_nodes(struct seats *c, struct run_fx *fx, struct now now);

#endif
