/* guest_int.h - what the files of a guest share: guest.c (wishes, outcomes),
 * guest_link.c (the connection), guest_hear.c (what the host says) and guest_time.c. */
#ifndef RDZV_GUEST_INT_H
#define RDZV_GUEST_INT_H

#include "rdzv/guest.h"
#include "rdzv/state.h"

/* Between two attempts to reach the host, growing from the first to the second. */
#define GUEST_FIRST_PAUSE_MS 20u
#define GUEST_MAX_PAUSE_MS   1000u

enum link_state {
    LINK_NONE,    /* nobody wants anything yet */
    LINK_DIALING, /* DIAL is under way */
    LINK_UP,      /* HELLO is sent */
    LINK_HELD,    /* and WELCOME has come */
    LINK_PAUSED,  /* until redial_ms */
};

struct wish_state {
    bool on;
    uint64_t by_ms;
};

struct rdzv_guest {
    char *run_id;        /* owned */
    char *addr;          /* owned; cfg.self.addr points to it */
    struct buf settings; /* as printed */
    struct rdzv_guest_config cfg;
    enum link_state link;
    uint64_t redial_ms, pause_ms;
    uint64_t beat_ms; /* when the next ALIVE is due */
    uint64_t away_ms; /* since when the host is away; MONO_NEVER: it is here */
    bool away_told;
    int64_t joins;
    struct wish_state join, leave, close;
    int64_t lefts_due; /* LEAVEs said on this connection without an answer yet */
    bool owed;         /* a LEAVE that the host has not had: it may hold our place */
    bool member;
    int64_t round, rank, world;
    int64_t waiting;
    int64_t gathered;              /* have a place in the round that we wait for, */
    char names[RDZV_NAMES_SIZE];   /* who they are, */
    char missing[RDZV_NAMES_SIZE]; /* who was there before and is not now, */
    uint64_t start_by_ms;          /* and when it starts without them */
    bool closed;
    char zero[RDZV_MAX_ADDR + 1]; /* rank 0 */
    int64_t zero_pid, zero_local_id;
    int64_t strangers;
    char text[1200];
};

/* guest.c: effects */
void guest_send(struct rdzv_guest_fx *fx, struct hosted_msg msg);
void guest_tell(struct rdzv_guest_fx *fx, struct rdzv_effect told);
void guest_news(struct rdzv_guest *g, struct rdzv_guest_fx *fx, enum rdzv_news news,
                int code, struct span text);
/* The wish, if it is on, is over. */
void guest_done(struct rdzv_guest_fx *fx, struct wish_state *w,
                enum rdzv_event_kind wish, int code, const char *text);
void guest_refused(struct rdzv_guest *g, struct rdzv_guest_fx *fx, int code,
                   struct span text); /* likewise for a JOIN */

/* guest_link.c */
bool guest_held(const struct rdzv_guest *g); /* the host knows us */
void guest_dial(struct rdzv_guest *g, struct rdzv_guest_fx *fx);
void guest_goodbye(struct rdzv_guest *g, struct rdzv_guest_fx *fx); /* soon, if away */
void guest_say_again(struct rdzv_guest *g, struct rdzv_guest_fx *fx);
void guest_up(struct rdzv_guest *g, struct rdzv_guest_fx *fx, struct now now);
void guest_down(struct rdzv_guest *g, const struct rdzv_guest_event *ev);

/* guest_hear.c */
void guest_hear(struct rdzv_guest *g, const struct rdzv_guest_event *ev,
                struct rdzv_guest_fx *fx);

/* guest_time.c */
void guest_timer(struct rdzv_guest *g, struct rdzv_guest_fx *fx, struct now now);

#endif
