/* guest.h - one node's part in a rendezvous that its host owns (rendezvous/core/coordinator.h): say what
 * we want over one connection, and believe what we are told.
 *
 * Pure. It takes the wishes and gives the outcomes of rdzv.h (JOIN, LEAVE, CLOSE;
 * JOINED, REFUSED, DONE, NEWS), so that the driver treats both alike. What always
 * holds:
 *
 *   - JOIN is answered by exactly one JOINED or REFUSED, LEAVE and CLOSE each by one
 *     DONE, at the latest at their deadline;
 *   - a connection that breaks is made again, at once and then with growing pauses, and
 *     whatever had no answer is said again: the host knows a repeated JOIN by its
 * number;
 *   - a host that stays away as long as a node may be silent is news (BACKEND), once.
 */
#ifndef RENDEZVOUS_CORE_MEMBER_H
#define RENDEZVOUS_CORE_MEMBER_H

#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/coordinator_wire.h"

struct rdzv_guest;

struct rdzv_guest_config {
    const char *run_id;    /* copied */
    struct rdzv_node self; /* copied */
    struct rdzv_settings settings;
    uint64_t nonce;    /* of this process */
    uint64_t grace_ms; /* how long the host shall wait for us to come back */
    uint64_t away_ms;  /* a join gives a host up that is away for so long; 0: never */
    enum hosted_order order;
    uint64_t order_key;
    const struct trace *trace; /* borrowed, may be NULL */
};

int rdzv_guest_new(const struct rdzv_guest_config *cfg, struct rdzv_guest **out,
                   struct muster_error *err);
void rdzv_guest_free(struct rdzv_guest *g); /* NULL is fine */

/* X(name): what happened, beside the wishes of rdzv.h. */
enum rdzv_guest_event_kind {
    RDZV_GUEST_WISH,  /* wish: RDZV_EV_JOIN, LEAVE or CLOSE */
    RDZV_GUEST_UP,    /* a connection is there; messages can be sent */
    RDZV_GUEST_DOWN,  /* it broke, or could not be made: code, text */
    RDZV_GUEST_MSG,   /* the host says msg */
    RDZV_GUEST_TIMER, /* rdzv_guest_deadline() has come */
};

struct rdzv_guest_event {
    enum rdzv_guest_event_kind kind;
    struct now now;
    enum rdzv_event_kind wish;
    const struct hosted_msg *msg; /* borrowed for the step */
    int code;
    const char *text;
};

enum rdzv_guest_effect_kind {
    RDZV_GUEST_DIAL, /* connect, once; answer with UP or DOWN */
    RDZV_GUEST_SEND, /* msg */
    RDZV_GUEST_TELL, /* told: JOINED, REFUSED, DONE or NEWS, as rdzv_step gives them */
};

struct rdzv_guest_effect {
    enum rdzv_guest_effect_kind kind;
    struct hosted_msg msg;   /* spans borrowed until the next step */
    struct rdzv_effect told; /* likewise */
};

#define RDZV_GUEST_FX_MAX 8

struct rdzv_guest_fx {
    struct rdzv_guest_effect at[RDZV_GUEST_FX_MAX];
    size_t count;
};

/* Cannot fail. */
void rdzv_guest_step(struct rdzv_guest *g, const struct rdzv_guest_event *ev,
                     struct rdzv_guest_fx *fx);

uint64_t rdzv_guest_deadline(const struct rdzv_guest *g); /* MONO_NEVER: none */

/* Last known. */
int64_t rdzv_guest_waiting(const struct rdzv_guest *g);
bool rdzv_guest_closed(const struct rdzv_guest *g);
bool rdzv_guest_up(const struct rdzv_guest *g);

/* How it stands with the JOIN under way, as last told; false: there is none. */
bool rdzv_guest_progress(const struct rdzv_guest *g, struct rdzv_progress *out);

/* Rank 0 of the round last JOINED; borrowed until the next one. */
struct rdzv_node rdzv_guest_zero(const struct rdzv_guest *g);

/* How many nodes of that round are torchrun's. */
int64_t rdzv_guest_strangers(const struct rdzv_guest *g);

#endif
