/* lifecycle.h - the life of a rendezvous handler, whatever its backend: opened at the
 * first request, rounds joined one after the other, left or closed, and stopped.
 * Decides what the agent is told, and when; an engine (rendezvous/shell.h) does the
 * work.
 *
 *     NEXT --> open --> JOIN --> JOINED --> find the address --> told
 *                        ^  \-- REFUSED --> told                  |
 *                        \------- a member is gone meanwhile <----/
 *
 * Pure, without memory of its own: a step cannot fail. What always holds:
 *
 *   - each NEXT, CLOSE, LEAVE and STOP is answered by exactly one TELL, and never by
 * the step of an event that came from inside a call of the agent's: those are told at
 *     the next step, and life_deadline() is 0 until then;
 *   - at most one TELL of these comes of a step, and it is the last effect, so that the
 *     agent may ask for anything while it is told;
 *   - nothing is asked of the engine before it is OPENED, or after the end is told. */
#ifndef RENDEZVOUS_CORE_LIFECYCLE_H
#define RENDEZVOUS_CORE_LIFECYCLE_H

#include "base/base.h"
#include "base/trace.h"
#include "muster/error.h"
#include "rendezvous/core/news.h"

enum life_event_kind {
    /* What the agent wants. One of each at a time. */
    LIFE_NEXT,
    LIFE_CANCEL, /* the NEXT under way, if there is one */
    LIFE_CLOSE,
    LIFE_LEAVE,
    LIFE_STOP, /* closes: close the run; others: see below. The last event of these */
    /* What became of what the engine was asked for. */
    LIFE_OPENED,     /* code, text */
    LIFE_JOINED,     /* a round; its workers' address is wanted now */
    LIFE_REFUSED,    /* the JOIN failed: code, text. EEXIST: our name is taken */
    LIFE_ADDRESS,    /* code 0: known; else code, text */
    LIFE_NO_ADDRESS, /* the store came back without it: only another round will help */
    LIFE_LEFT,       /* code, text */
    LIFE_CLOSED,     /* likewise */
    LIFE_OTHERS,     /* others: how many still read the store that we serve */
    /* What happens by itself. */
    LIFE_NEWS,  /* news, code, text; again: the store may be back soon */
    LIFE_HEARD, /* the store has answered */
    LIFE_TIMER, /* life_deadline() has come */
};

struct life_event {
    enum life_event_kind kind;
    uint64_t now_ms; /* monotonic */
    bool inside;     /* from within a call of the agent's: nothing is told yet */
    bool closes, again;
    bool over; /* STOP: closed already, and nobody reads our store: nothing to do */
    size_t others;
    enum rdzv_news news;
    int code;
    const char *text; /* borrowed for the step; may be NULL with code 0 */
};

enum life_effect_kind {
    LIFE_DO_OPEN,     /* answer: OPENED */
    LIFE_DO_DROP,     /* stop looking for the address; the last round's stores go */
    LIFE_DO_JOIN,     /* JOINED or REFUSED */
    LIFE_DO_RENAME,   /* take another name, and JOIN with it */
    LIFE_DO_FIND,     /* ADDRESS or NO_ADDRESS, unless dropped before */
    LIFE_DO_LEAVE,    /* LEFT; a JOIN under way is REFUSED */
    LIFE_DO_CLOSE,    /* CLOSED */
    LIFE_DO_RETIRE,   /* the run is closed: be no reader of our own store */
    LIFE_DO_COUNT,    /* OTHERS */
    LIFE_NOTIFY_NEXT, /* err; code 0: the round */
    LIFE_NOTIFY_CLOSE,
    LIFE_NOTIFY_LEAVE,
    LIFE_NOTIFY_STOP,
    LIFE_NOTIFY_NEWS, /* news, err */
};

struct life_effect {
    enum life_effect_kind kind;
    enum rdzv_news news;
    const struct muster_error *err; /* of TELLs; borrowed until the next step */
};

#define LIFE_FX_MAX 5

struct life_fx {
    struct life_effect at[LIFE_FX_MAX];
    size_t count;
};

enum life_stage { LIFE_NEW, LIFE_OPENING, LIFE_READY, LIFE_BROKEN };

/* A request of the agent's: not under way; until the handler is open; asked of the
 * engine; its answer is to be told. The others are NEXT's alone. */
enum life_state {
    LIFE_IDLE,
    LIFE_WAITS,
    LIFE_ASKED,
    LIFE_CANCELING, /* asked, and to be told ECANCELED whatever comes */
    LIFE_FINDING,   /* joined; the workers' address is not known yet */
    LIFE_DUE,
};

struct life_request {
    enum life_state state;
    struct muster_error err; /* of DUE */
};

struct lifecycle {
    const char *run_id;        /* borrowed */
    const struct trace *trace; /* borrowed, may be NULL */
    uint64_t silence_ms;       /* how long a store may be away before it is news */
    bool lingers; /* others may read a store of ours: wait for them after closing */

    enum life_stage stage;
    struct life_request next, close, leave, stop;
    bool stop_closes;
    bool ended; /* we have closed the run, and said goodbye to its host */
    bool over;  /* STOP was told */
    bool
        awaited; /* somebody waits for the round after this one: told once it is told */
    unsigned renames;
    struct muster_error broken, away; /* why opening failed; why the store is away */
    uint64_t away_by_ms; /* told as news by then; MONO_NEVER: is not away */
    uint64_t linger_at_ms, linger_by_ms; /* who is still here? MONO_NEVER: not asked */
};

/* Borrows run_id and trace. */
void life_init(struct lifecycle *l, const char *run_id, const struct trace *trace,
               uint64_t silence_ms, bool lingers);

void life_step(struct lifecycle *l, const struct life_event *ev, struct life_fx *fx);

/* When to send TIMER, by now_ms; 0: at once; MONO_NEVER: nothing is due. */
uint64_t life_deadline(const struct lifecycle *l);

/* A NEXT is under way and not canceled: what the engine found for it is of use. */
bool life_wants_round(const struct lifecycle *l);

#endif
