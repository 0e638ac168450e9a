/* member.h - one node's part in a rendezvous that its host owns
 * (job/core/coordinator.h): say what we want over one connection, and believe
 * what we are told.
 *
 * Pure. It takes the requests and gives the outcomes of cas_node.h (JOIN, LEAVE, CLOSE;
 * JOINED, REFUSED, DONE, NEWS), so that the driver treats both alike. What always
 * holds:
 *
 *   - JOIN is answered by exactly one JOINED or REFUSED, LEAVE and CLOSE each by one
 *     DONE, at the latest at their deadline;
 *   - a connection that breaks is made again, at once and then with growing pauses, and
 *     whatever had no answer is sent again: the host recognises a repeated JOIN by its
 *     number;
 *   - a connection on which the host does not answer is given up before the host gives
 *     this node up, and made again;
 *   - while we are in a round, BACKEND comes before the host can have let the others
 *     begin without us (fence.h), once for each time that it is away;
 *   - time in which this process did not run counts for nothing: it asks the host
 * first, and if that does not answer, it was dropped (EVICTED). */
#ifndef RENDEZVOUS_CORE_MEMBER_H
#define RENDEZVOUS_CORE_MEMBER_H

#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/coordinator_wire.h"
#include "rendezvous/core/fence.h"

struct member;

struct member_config {
    const char *run_id;    /* copied */
    struct rdzv_node self; /* copied */
    struct rdzv_settings settings;
    uint64_t nonce;    /* of this process */
    uint64_t grace_ms; /* how long the host waits for us after our connection broke */
    /* a join fails once the host is unreachable for this long; 0: never */
    uint64_t away_ms;
    enum coord_order order;
    uint64_t rank_order_key;
    struct auth *auth; /* the job's secret, for the driver; or NULL */
    bool echoes; /* the host answers each ALIVE, so silence means that it is gone */
    const struct trace *trace; /* borrowed, may be NULL */
};

int member_new(const struct member_config *cfg, struct member **out,
               struct muster_error *err);
void member_free(struct member *me); /* NULL is fine */

/* What happened. */
enum member_event_kind {
    MEMBER_REQUEST, /* request: RDZV_EV_JOIN, LEAVE or CLOSE */
    MEMBER_UP,      /* the connection is made; messages can be sent */
    MEMBER_DOWN,    /* it broke, or could not be made: code, text */
    MEMBER_MSG,     /* the host says msg */
    MEMBER_TIMER,   /* member_deadline() has come */
};

struct member_event {
    enum member_event_kind kind;
    struct now now;
    enum rdzv_event_kind request;
    const struct coord_msg *msg; /* borrowed for the step */
    int code;
    const char *text;
};

enum member_effect_kind {
    MEMBER_DIAL, /* connect, once; answer with UP or DOWN */
    /* Nothing of this connection counts any more, and no DOWN follows. It stays open
     * until the next one is up: the host would take its end for ours. */
    MEMBER_HANG_UP,
    MEMBER_SEND,   /* msg */
    MEMBER_NOTIFY, /* tell the agent: JOINED, REFUSED, DONE or NEWS, as in cas_node.h */
};

struct member_effect {
    enum member_effect_kind kind;
    struct coord_msg msg;      /* spans borrowed until the next step */
    struct rdzv_effect notice; /* likewise */
};

#define MEMBER_FX_MAX 8

struct member_fx {
    struct member_effect at[MEMBER_FX_MAX];
    size_t count;
};

/* Cannot fail. */
void member_step(struct member *me, const struct member_event *ev,
                 struct member_fx *fx);

uint64_t member_deadline(const struct member *me); /* MONO_NEVER: none */

/* Until when, by mono_ms, our last sign of life keeps the host from dropping us, with
 * some time to spare (fence.h). After that, the news comes. MONO_NEVER: it has come, or
 * we are in no round. */
uint64_t member_fence_due(const struct member *me);

/* As we were last told. */
int64_t member_waiting(const struct member *me);
bool member_closed(const struct member *me);

/* How far the JOIN under way has come, as we were last told; false if there is none. */
bool member_progress(const struct member *me, struct rdzv_progress *out);

/* Rank 0 of the round last JOINED; borrowed until the next one. */
struct rdzv_node member_rank0(const struct member *me);

/* How many nodes of that round are torchrun's. */
int64_t member_torch_nodes(const struct member *me);
/* Whether every node of that round reads the workers' address anew instead of
 * remembering an earlier one. */
bool member_all_read(const struct member *me);

#endif
