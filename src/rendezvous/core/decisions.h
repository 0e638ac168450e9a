/* decisions.h - what a node does next, as pure functions of what it sees, and what that
 * does to the state. They match torch's _RendezvousJoinOp, _ExitOp, _CloseOp,
 * _KeepAliveOp, executor and sanitizer case by case. */
#ifndef RENDEZVOUS_CORE_DECISIONS_H
#define RENDEZVOUS_CORE_DECISIONS_H

#include "rendezvous/core/settings.h"
#include "rendezvous/core/state.h"

/* Like torchrun, give a join that timed out this long to hand its seat back. */
#define RDZV_ROLLBACK_MS 5000u

/* X(ours, torch's) */
#define RDZV_ACTIONS(X)                                                                \
    X(SYNC, "SYNC")                                                                    \
    X(FINISH, "FINISH")                                                                \
    X(KEEP_ALIVE, "KEEP_ALIVE")                                                        \
    X(TAKE_PLACE, "ADD_TO_PARTICIPANTS")                                               \
    X(TAKE_WAIT, "ADD_TO_WAIT_LIST")                                                   \
    X(TAKE_SPARE, "ADD_TO_REDUNDANCY_LIST")                                            \
    X(DROP_PLACE, "REMOVE_FROM_PARTICIPANTS")                                          \
    X(DROP_WAIT, "REMOVE_FROM_WAIT_LIST")                                              \
    X(DROP_SPARE, "REMOVE_FROM_REDUNDANCY_LIST")                                       \
    X(COMPLETE, "MARK_RENDEZVOUS_COMPLETE")                                            \
    X(CLOSE, "MARK_RENDEZVOUS_CLOSED")                                                 \
    X(FAIL_CLOSED, "ERROR_CLOSED")                                                     \
    X(FAIL_TIMEOUT, "ERROR_TIMEOUT")                                                   \
    X(DISMISSED, "GRACEFUL_EXIT") /* torch raises RendezvousGracefulExitError */

enum rdzv_action {
#define RDZV_ACTION_ENUM(name, torch) RDZV_##name,
    RDZV_ACTIONS(RDZV_ACTION_ENUM)
#undef RDZV_ACTION_ENUM
        RDZV_ACTION_COUNT
};

/* Whether the action changes the state, so that it must be written. */
bool rdzv_action_writes(enum rdzv_action a);

/* Where the state lists a node. If it is in several lists, the first of SPARE, PLACE
 * and WAIT counts, as in torch. */
enum rdzv_seat { SEAT_NONE, SEAT_PLACE, SEAT_WAIT, SEAT_SPARE };

enum rdzv_seat rdzv_seat_of(const struct participant *m); /* NULL: none */

/* All that a decision depends on. */
struct rdzv_view {
    enum rdzv_seat seat;
    bool in_round; /* has a place, even if it is also listed elsewhere */
    bool closed, complete;
    int64_t placed, min_nodes, max_nodes;
    bool call_over;          /* there was a last call, and it has ended */
    bool everybody;          /* every known node is here: a last call is not needed */
    bool beat_due;           /* our heartbeat is at least one interval old */
    uint64_t now_ms, due_ms; /* monotonic: now, and the deadline of the operation */
};

/* The view that torch's node would have, by the wall clock. */
struct rdzv_view rdzv_view_of(const struct rdzv_state *s, const struct rdzv_node *me,
                              const struct rdzv_settings *settings, struct now now,
                              uint64_t due_ms);

/* The join rules. They serve a node that changes the state itself (cas_node_plan.c) and
 * the coordinator, which applies them for its nodes (coordinator_seats.c). */
enum rdzv_action rdzv_join_next(const struct rdzv_view *v);
enum rdzv_action rdzv_exit_next(const struct rdzv_view *v);
enum rdzv_action rdzv_close_next(const struct rdzv_view *v);
enum rdzv_action rdzv_keep_alive_next(const struct rdzv_view *v);

/* Does to the state what the action says. Returns 0, or MUSTER_ENOMEM: the state must
 * then be thrown away. Actions that write nothing do nothing. */
int rdzv_apply(struct rdzv_state *s, enum rdzv_action a, const struct rdzv_node *me,
               const struct rdzv_settings *settings, int64_t wall_us);

/* Completes the round: gives out ranks in the order of the nodes and ends the last
 * call. `order` has room for all participants, so this cannot fail. */
void rdzv_complete_round_in(struct rdzv_state *s, struct participant **order);

/* Call this after participants were removed: a completed round that has none left ends,
 * and an open round that has too few loses its last call. */
void rdzv_places_removed(struct rdzv_state *s, const struct rdzv_settings *settings);

/* Removes each node for which dead() holds, including its heartbeat. Returns how many
 * there were. */
typedef bool (*rdzv_dead_fn)(const void *ctx, const struct participant *m);
size_t rdzv_sweep(struct rdzv_state *s, const struct rdzv_settings *settings,
                  rdzv_dead_fn dead, const void *ctx);

/* The sweep that torch does after every read: by the wall clock. */
size_t rdzv_sanitize(struct rdzv_state *s, const struct rdzv_settings *settings,
                     int64_t wall_us);

#endif
