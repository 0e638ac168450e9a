/* sessions.h - the nodes of one run: who is connected, who was last heard when, and who
 * is lost. This is the only place where a run decides that a node is lost; its parts,
 * the seats (seats.h) and the recorder (recorder.h), act on that in the same step, so
 * that everybody hears the same.
 *
 * A node is one process: an agent, a program that joins on its own, or an observer. It
 * has one connection to the store that serves the run, and its nonce names it. Its
 * life:
 *
 *   here   It is connected. Whatever comes from it shows that it lives.
 *   away   It is not. It may come back until lost_by_us, and then nothing has happened:
 *          a connection may break for reasons that do not matter.
 *   lost   It was away, or here and silent, for too long. It stays in the list of
 *          losses until the run has dealt with it, also if the node comes back
 *          meanwhile: what was decided is not taken back.
 *
 * What a loss does: the record gets an entry (LOST), a failure that only says that a
 * peer is gone is blamed on the node, its seat is given away and the members of the
 * round are told. A connection that is still open is closed.
 *
 * The node whose process serves the store is never silent: if it were gone, so would
 * this table be.
 *
 * Pure. Everything costs the same however many nodes there are. */
#ifndef JOB_CORE_SESSIONS_H
#define JOB_CORE_SESSIONS_H

#include "base/base.h"
#include "base/map.h"

/* How long we wait for a node that is away and has not named a time: the first if it is
 * near, at most the second if its answers take long. See grace_us(). */
#define SESSION_GRACE_US 250000u
#define SESSION_MOST_US  1000000u

#define SESSION_SILENT_US  15000000u /* unless the nodes agreed on another time */
#define SESSION_NO_PEER    UINT32_MAX
#define SESSION_AWAY_LEAST 1024u /* nodes that may be away at once, at least */

/* In microseconds, since milliseconds are too coarse to compare clocks. */
struct run_now {
    uint64_t mono_us;
    int64_t wall_us;
};

struct seat_node;
struct record_peer;

enum session_presence { SESSION_HERE, SESSION_AWAY, SESSION_LOST };

struct run_session {
    struct map_link link; /* by nonce */
    uint64_t nonce;
    enum session_presence state;
    uint32_t peer;            /* the connection, or SESSION_NO_PEER */
    struct seat_node *seat;   /* borrowed; what the seats know of the node, or NULL */
    struct record_peer *said; /* borrowed; what the recorder knows of it, or NULL */
    bool lost;                /* in `losses` */
    bool serves;              /* its process serves the store */
    bool crowded;             /* lost because too many were away */
    bool broke; /* away or lost because its connection broke; else it fell silent */
    uint64_t heard_us;
    uint64_t grace_us;   /* to come back, as the node named it; or MONO_NEVER */
    uint64_t slow_us;    /* its slowest recent round trip */
    uint64_t lost_by_us; /* MONO_NEVER unless it is away */
    struct run_session *prev, *next; /* in `heard`, `away` or `losses` */
};

struct session_list {
    struct run_session *first, *last;
};

struct sessions {
    struct map nodes;
    struct run_session **by_peer; /* owned */
    size_t by_peer_size;
    uint64_t silent_us; /* how long a node may be silent */
    struct session_list
        heard; /* the longest silent first; without the one that serves */
    struct session_list away;     /* the one that is lost first comes first */
    size_t away_count, away_most; /* when more are away, the first of them is lost */
    struct session_list losses;   /* the run has still to deal with these */
};

void sessions_init(struct sessions *t); /* cannot fail */
void sessions_fini(struct sessions *t); /* frees all nodes, but not what parts know */

struct run_session *sessions_of(const struct sessions *t, uint32_t peer); /* or NULL */
struct run_session *sessions_find(const struct sessions *t, uint64_t nonce);

/* Finds the node or makes it, with room for its connection, so that run_session_open()
 * cannot fail. NULL: out of memory. A node that no part knows goes with
 * run_session_release(). */
struct run_session *sessions_meet(struct sessions *t, uint64_t nonce, uint32_t peer);
void run_session_release(struct sessions *t, struct run_session *s);

/* The node is connected by this peer from now on, and by no other. */
void run_session_open(struct sessions *t, struct run_session *s, uint32_t peer,
                      uint64_t now_us);
/* Its connection is gone, so it is away; it is not lost before hold_us, whatever its
 * grace. */
void run_session_close(struct sessions *t, struct run_session *s, uint64_t now_us,
                       uint64_t hold_us);
void run_session_heard(struct sessions *t, struct run_session *s, uint64_t now_us);
/* The node's process serves the store, or does not. */
void run_session_set_serves(struct sessions *t, struct run_session *s, bool serves);
bool run_session_is_open(const struct run_session *s);

/* Decides who is lost by now. */
void sessions_judge(struct sessions *t, uint64_t now_us);
/* When sessions_judge() has something to decide, or a loss is to be dealt with;
 * MONO_NEVER: nothing is due. */
uint64_t sessions_deadline(const struct sessions *t);

/* The first loss that the run has not dealt with, or NULL; run_session_settle() says
 * that it has. */
struct run_session *sessions_lost(const struct sessions *t);
void run_session_settle(struct sessions *t, struct run_session *s);

#endif
