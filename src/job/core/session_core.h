/* session_core.h - a node's side of its session with a run (run.h): one connection,
 * made again when it breaks; say who we are and what we want, and believe what we are
 * told.
 *
 * Pure; the driver is job/session.c. For the rendezvous it takes the requests and gives
 * the outcomes of cas_node.h (JOIN, LEAVE, CLOSE; JOINED, REFUSED, DONE, NEWS), so that
 * its owner treats both alike. What always holds:
 *
 *   - JOIN is answered by exactly one JOINED or REFUSED, LEAVE and CLOSE each by one
 *     DONE, at the latest at their deadline;
 *   - a connection that breaks is made again, at once and then with growing pauses, and
 *     whatever had no answer is sent again: the run recognises a repeated JOIN by its
 *     number;
 *   - a connection on which the host does not answer is given up before the host gives
 *     this node up, and made again;
 *   - while we are in a round, BACKEND comes before the host can have let the others
 *     begin without us (fence.h), once for each time that it is away;
 *   - time in which this process did not run counts for nothing: it asks the host
 *     first, and if that does not answer, it was dropped (EVICTED). */
#ifndef JOB_CORE_SESSION_CORE_H
#define JOB_CORE_SESSION_CORE_H

#include "job/core/wire.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/fence.h"
#include "rendezvous/core/seat_round.h"

struct session_core;

struct session_config {
    const char *run_id;    /* copied */
    uint64_t nonce;        /* of this process */
    struct run_msg hello;  /* what HELLO says for the record; its texts are borrowed */
    bool seats;            /* we ask for seats; else the next five mean nothing */
    struct rdzv_node self; /* copied */
    /* a join fails once the host is unreachable for this long; 0: never */
    uint64_t away_ms;
    enum wire_order order;
    uint64_t rank_order_key;
    struct rdzv_settings settings; /* without seats: as rdzv_settings_init() has them */
    /* how long the host waits for us after our connection broke; MONO_NEVER: as it
     * thinks fit */
    uint64_t grace_ms;
    const struct log *log; /* borrowed, may be NULL */
};

int session_core_new(const struct session_config *cfg, struct session_core **out,
                     struct muster_error *err);
void session_core_free(struct session_core *me); /* NULL is fine */

/* What happened. */
enum session_event_kind {
    SESSION_EV_ATTACH,  /* the connection is wanted from now on */
    SESSION_EV_REQUEST, /* request: RDZV_EV_JOIN, LEAVE or CLOSE */
    SESSION_EV_UP,      /* the connection is made; messages can be sent */
    SESSION_EV_DOWN,    /* it broke, or could not be made: code, text */
    SESSION_EV_MSG,     /* the host says msg */
    SESSION_EV_TIMER,   /* session_core_deadline() has come */
};

struct session_event {
    enum session_event_kind kind;
    struct now now;
    enum rdzv_event_kind request;
    const struct run_msg *msg; /* borrowed for the step */
    int code;
    const char *text;
};

enum session_effect_kind {
    SESSION_FX_DIAL, /* connect, once; answer with UP or DOWN */
    /* Nothing of this connection counts any more, and no DOWN follows. It stays open
     * until the next one is up: the host would take its end for ours. */
    SESSION_FX_HANG_UP,
    SESSION_FX_WELCOMED, /* the run knows us, for the first time or again */
    SESSION_FX_SEND,     /* msg */
    SESSION_FX_NOTIFY,   /* tell the agent: JOINED, REFUSED, DONE or NEWS, as in
                            cas_node.h */
};

struct session_effect {
    enum session_effect_kind kind;
    struct run_msg msg;        /* spans borrowed until the next step */
    struct rdzv_effect notice; /* likewise */
};

#define SESSION_FX_MAX    8
#define SESSION_WHERE_MAX 1024u /* bytes of the address of the workers' store */

struct session_fx {
    struct session_effect at[SESSION_FX_MAX];
    size_t count;
};

/* Cannot fail. */
void session_core_step(struct session_core *me, const struct session_event *ev,
                       struct session_fx *fx);

uint64_t session_core_deadline(const struct session_core *me); /* MONO_NEVER: none */

/* Until when, by mono_ms, our last sign of life keeps the host from dropping us, with
 * some time to spare (fence.h). After that, the news comes. MONO_NEVER: it has come, or
 * we are in no round. */
uint64_t session_core_fence_due(const struct session_core *me);

/* What we were told of the round last JOINED; borrowed until the next one. */
const struct seat_round *session_core_round(const struct session_core *me);

/* What the next HELLO says for the record; the owner may change it. */
struct run_msg *session_core_hello(struct session_core *me);
bool session_core_welcomed(const struct session_core *me);

/* As we were last told. */
int64_t session_core_waiting(const struct session_core *me);
bool session_core_closed(const struct session_core *me);

/* How far the JOIN under way has come, as we were last told; false if there is none. */
bool session_core_progress(const struct session_core *me, struct rdzv_progress *out);

#endif
