/* machine_int.h - what machine.c and machine_phases.c (which step follows which answer,
 * and the steps) share. */
#ifndef ETCD_LEGACY_CORE_MACHINE_INT_H
#define ETCD_LEGACY_CORE_MACHINE_INT_H

#include "base/rng.h"
#include "etcd/legacy/core/document.h"
#include "etcd/legacy/core/machine.h"

#define LEGACY_COALESCE_MS 200u /* of changes: mostly more than one node moves */

/* X(name): which answer, or which pause, we are waiting for. */
#define LEGACY_PHASES(X)                                                               \
    X(IDLE)                                                                            \
    X(MAKE_PREFIX) /* the tree, once a handler */                                      \
    X(MAKE_RUN)                                                                        \
    X(MAKE_RDZV)                                                                       \
    X(MAKE_COUNTER)                                                                    \
    X(CREATE) /* init: a new version, or what is there */                              \
    X(COUNTER_GET)                                                                     \
    X(COUNTER_PUT)                                                                     \
    X(MAKE_VERSION)                                                                    \
    X(PUBLISH)                                                                         \
    X(LOOK)                                                                            \
    X(LOOK_WAIT)                                                                       \
    X(JOIN_DELAY)                                                                      \
    X(JOIN_GET)                                                                        \
    X(JOIN_PUT)                                                                        \
    X(CALL_GET) /* last call: ours to hold open, and to end */                         \
    X(CALL_KEEP)                                                                       \
    X(CALL_WAIT)                                                                       \
    X(CALL_FREEZE)                                                                     \
    X(CALL_DELAY)                                                                      \
    X(PEERS_GET)                                                                       \
    X(PEERS_WAIT)                                                                      \
    X(CONFIRM_DELAY)                                                                   \
    X(CONFIRM_GET)                                                                     \
    X(CONFIRM_KEY)                                                                     \
    X(CONFIRM_PUT)                                                                     \
    X(FINAL_GET)                                                                       \
    X(FINAL_WAIT)                                                                      \
    X(ANNOUNCE_DELAY) /* a version is running: wait for its end */                     \
    X(ANNOUNCE_GET)                                                                    \
    X(ANNOUNCE_PUT)                                                                    \
    X(FREE_GET)                                                                        \
    X(FREE_LIST)                                                                       \
    X(FREE_DELETE)                                                                     \
    X(FREE_WAIT)                                                                       \
    X(RETRY)                                                                           \
    X(MEMBER_GET) /* in a running version: news */                                     \
    X(MEMBER_LIST)                                                                     \
    X(MEMBER_WAIT)                                                                     \
    X(MEMBER_DELAY)                                                                    \
    X(CLOSE_GET)                                                                       \
    X(CLOSE_PUT)                                                                       \
    X(CLOSE_NEW)                                                                       \
    X(CLOSE_DELAY)

enum legacy_phase {
#define LEGACY_PHASE_ENUM(name) LEGACY_PH_##name,
    LEGACY_PHASES(LEGACY_PHASE_ENUM)
#undef LEGACY_PHASE_ENUM
};

struct legacy {
    int64_t min_nodes, max_nodes;
    uint64_t timeout_ms, last_call_ms;
    struct rng rng;
    const struct log *log;
    char *prefix, *run, *rdzv, *active, *counter; /* owned: paths */
    char *run_id;                                 /* owned */

    bool no_memory; /* ran out: nothing is done any more */
    enum legacy_phase phase;
    bool made;                     /* the tree is there */
    bool joining;                  /* a JOIN is to be answered */
    bool member;                   /* of a running version: news are wanted */
    bool close;                    /* a CLOSE is to be answered */
    bool requested;                /* a request is under way */
    bool polling;                  /* and it is a wait */
    const struct legacy_event *ev; /* that is dealt with; borrowed for the step */
    struct now now;                /* of it */
    uint64_t due_ms, join_by_ms, call_by_ms;

    uint64_t version; /* ours, or the one we try to join */
    int64_t rank;
    struct legacy_doc doc; /* as read last, or as we are about to write it */
    struct buf text;       /* of the document as read: what a swap compares with */
    struct buf put;        /* of the document to write */
    struct buf path;       /* scratch: of the request */
    struct buf rank_path;  /* of our keep-alive */
    uint64_t index;        /* of the server, when that was read */
    int64_t waiting, notified_waiting;
    bool closed, notified_lost, notified_closed;
    bool reached; /* etcd has answered the last request that it should have */
    bool seen;    /* a document, since the JOIN */
    uint64_t seen_version, call_since_ms; /* that enough have come; MONO_NEVER */
    char reason[1020];
};

/* machine.c: effects, and going from phase to phase. */
void legacy_emit(struct legacy_fx *fx, const struct legacy_effect *e);
void legacy_request(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                    const struct etcd2_request *req);
void legacy_get(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase);
void legacy_swap(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                 uint64_t ttl_s); /* l->text to l->doc */
void legacy_wait(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                 bool all, uint64_t most_ms);
void legacy_list(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase);
void legacy_pause(struct legacy *l, enum legacy_phase phase, uint64_t ms);
void legacy_delay(struct legacy *l, enum legacy_phase phase); /* 0 to 0.1 s */
void legacy_again(struct legacy *l, struct legacy_fx *fx);    /* at once */
void legacy_later(struct legacy *l, const char *why);         /* in a second */
void legacy_refuse(struct legacy *l, struct legacy_fx *fx, int code, const char *text);
void legacy_news(struct legacy_fx *fx, enum rdzv_news news, const char *text);
void legacy_no_memory(struct legacy *l, int rc); /* if rc is an error */
void legacy_seen(struct legacy *l); /* keeps what legacy_progress() tells */

/* machine_phases.c: the phase's request was answered, or its pause is over. */
void legacy_on_reply(struct legacy *l, struct legacy_fx *fx);
void legacy_on_timer(struct legacy *l, struct legacy_fx *fx);

#endif
