/* sessions.h - the nodes of one run: who is connected, who was last heard when, and who
 * is lost. This is the only place where a run decides that a node is lost; its parts,
 * the seats (coordinator.h) and the record (hub.h), act on that, each in its own way
 * and at the same moment, so that everybody hears the same.
 *
 * A node is one process: an agent, or a program that joins on its own. It has up to two
 * lines, which are connections to the store that serves the run: one on which it asks
 * for a seat, one for the record. Both name the process by the same nonce. Its life:
 *
 *   here   A line is open. Whatever comes over either shows that the node lives.
 *   away   No line is open. It may come back until lost_by_us, and then nothing has
 *          happened: a connection may break for reasons that do not matter.
 *   lost   It was away, or here and silent, for too long. Each part that knows it is
 *          owed the news once (sessions_owed), also if the node comes back meanwhile:
 *          what was decided is not taken back. A part that forgets the node then sets
 *          its `part` to NULL.
 *
 * What a loss does: the seats tell the members of the round and give the place away
 * (LOST), the record gets an entry (LOST), and a failure that only says that a peer is
 * gone is blamed on the node. A line that is still open is closed by its part.
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

enum session_line { LINE_SEATS, LINE_RECORD, SESSION_LINES };

enum session_state { SESSION_HERE, SESSION_AWAY, SESSION_LOST };

struct session {
    struct map_link link; /* by nonce */
    uint64_t nonce;
    enum session_state state;
    uint32_t peer[SESSION_LINES]; /* the connection, or SESSION_NO_PEER */
    void *part[SESSION_LINES];    /* borrowed; what a part knows of the node, or NULL */
    bool owed[SESSION_LINES];     /* the part has not yet been told of the loss */
    bool serves;                  /* its process serves the store */
    bool crowded;                 /* lost because too many were away */
    bool broke; /* away or lost because its connection broke; else it fell silent */
    uint64_t heard_us;
    uint64_t grace_us;           /* to come back, as the node named it; or MONO_NEVER */
    uint64_t slow_us;            /* its slowest recent round trip */
    uint64_t lost_by_us;         /* MONO_NEVER unless it is away */
    struct session *prev, *next; /* in `heard` if it is here, in `away` if it is away */
    struct session *owed_prev[SESSION_LINES], *owed_next[SESSION_LINES];
};

struct session_list {
    struct session *first, *last;
};

struct session_at {
    struct session *session;
    enum session_line line;
};

struct sessions {
    struct map nodes;
    struct session_at *by_peer; /* owned */
    size_t by_peer_size;
    uint64_t silent_us; /* how long a node may be silent */
    struct session_list
        heard; /* the longest silent first; without the one that serves */
    struct session_list away;     /* the one that is lost first comes first */
    size_t away_count, away_most; /* when more are away, the first of them is lost */
    struct session_list owed[SESSION_LINES];
};

void sessions_init(struct sessions *t); /* cannot fail */
void sessions_fini(struct sessions *t); /* frees all nodes, but not their parts */

/* The node of an open line; NULL if the peer has no such line. */
struct session *sessions_of(const struct sessions *t, enum session_line line,
                            uint32_t peer);
struct session *sessions_find(const struct sessions *t, uint64_t nonce);

/* Finds the node or makes it, with room for its line to this peer, so that
 * session_open() cannot fail. NULL: out of memory. A node that gets neither a line nor
 * a part goes with session_release(). */
struct session *sessions_meet(struct sessions *t, uint64_t nonce, uint32_t peer);
void session_release(struct sessions *t, struct session *s);

/* The line is open on this peer from now on, and on no other. */
void session_open(struct sessions *t, struct session *s, enum session_line line,
                  uint32_t peer, uint64_t now_us);
/* The line is gone. If it was the last one, the node is away; it is not lost before
 * hold_us, whatever its grace. */
void session_close(struct sessions *t, struct session *s, enum session_line line,
                   uint64_t now_us, uint64_t hold_us);
void session_heard(struct sessions *t, struct session *s, uint64_t now_us);
/* The node's process serves the store, or does not. */
void session_set_serves(struct sessions *t, struct session *s, bool serves);
bool session_is_open(const struct session *s, enum session_line line);

/* Decides who is lost by now. */
void sessions_judge(struct sessions *t, uint64_t now_us);
/* When sessions_judge() has something to decide, or a part has something to act on;
 * MONO_NEVER: nothing is due. */
uint64_t sessions_deadline(const struct sessions *t, enum session_line part);

/* The first node whose loss the part has not dealt with, or NULL; the next one is
 * owed_next[part]. session_settle() says that it has. */
struct session *sessions_owed(const struct sessions *t, enum session_line part);
void session_settle(struct sessions *t, struct session *s, enum session_line part);

#endif
