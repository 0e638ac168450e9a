/* seat_session.h - a seat in a run that its host owns (job/core/seats.h), on a uv loop:
 * what the dynamic handler (dynamic.c) uses of a node's session when the store hosts
 * runs; so does the benchmark, with thousands of them.
 *
 * The session lives above us, in job/session.c, and carries the job's record too; these
 * functions are declared here, so that this room need not know that one. */
#ifndef RENDEZVOUS_SEAT_SESSION_H
#define RENDEZVOUS_SEAT_SESSION_H

#include <uv.h>

#include "auth/core/auth.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/seat_round.h"

struct session;
struct store_conn;

/* Called with JOINED, REFUSED, DONE and NEWS, as in cas_node.h; borrowed for the call.
 * Always from the loop, never from inside a call of the functions below. */
typedef void (*rdzv_notify_cb)(void *ctx, const struct rdzv_effect *notice);

struct seat_opts {
    uv_loop_t *loop;       /* borrowed */
    const char *run_id;    /* copied, as is all but log */
    struct rdzv_node self; /* our name among the nodes */
    struct rdzv_settings settings;
    uint64_t nonce;    /* names this process to the host */
    uint64_t grace_ms; /* how long the host waits after our connection broke */
    uint64_t away_ms;  /* a join fails once the host is away for so long; 0: never */
    int64_t rank_order_key; /* ranks follow these; negative: they follow the names */
    struct auth *auth;      /* the job's secret, or NULL */
    const char *host;       /* where the store is */
    uint16_t port;
    struct store_conn *conn; /* a connection to it, or NULL; owned once it is open */
    bool serves;             /* this process serves it */
    const char *where;       /* the address of this machine, for the record; or NULL */
    const struct log *log;   /* borrowed, may be NULL */
    rdzv_notify_cb cb;
    void *ctx;
};

/* Asks for seats over the session `shared`, in place of those that it asked for before;
 * or, if that is NULL, over one of its own. */
int seat_session_open(struct session *shared, const struct seat_opts *opts,
                      struct session **out, struct muster_error *err);

/* kind: RDZV_EV_JOIN, LEAVE or CLOSE. May be called from inside cb. LEAVE ends a JOIN
 * with REFUSED and MUSTER_ECANCELED, even one that came just before. */
void seat_session_request(struct session *s, enum rdzv_event_kind kind);

/* Hangs up. After this the only callback is gone (which may be NULL), when libuv has
 * closed everything; with a shared session it comes from inside this call. */
void seat_session_close(struct session *s, void (*gone)(void *ctx), void *ctx);

/* As we were last told. */
int64_t seat_session_waiting(const struct session *s);
bool seat_session_closed(const struct session *s);
/* How far the JOIN under way has come; false if there is none. */
bool seat_session_progress(const struct session *s, struct rdzv_progress *out);
/* What we were told of the round last JOINED; borrowed until the next one. */
const struct seat_round *seat_session_round(const struct session *s);

/* Tells the run where we serve the workers' store of a round, as its rank 0; and again
 * if the run comes back. host is copied. 0, or MUSTER_ENOMEM. */
int seat_session_serve(struct session *s, uint64_t round, const char *host,
                       uint16_t port);

/* Until when, by mono_ms, our last sign of life keeps the host from dropping us, with
 * some time to spare (core/fence.h). After that, the news comes. MONO_NEVER: it has
 * come, or we are in no round. */
uint64_t seat_session_fence_due(const struct session *s);

#endif
