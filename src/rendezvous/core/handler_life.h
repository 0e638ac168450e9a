/* handler_life.h - the life of a rendezvous handler, whatever its backend: opened at
 * the first request, rounds joined one after the other, left or closed, and stopped. It
 * decides what the agent is told, and when; an implementation
 * (rendezvous/handler_base.h) does the work.
 *
 *     NEXT --> open --> JOIN --> JOINED --> find the address --> told
 *                        ^  \-- REFUSED --> told                  |
 *                        \------- a member is gone meanwhile <----/
 *
 * Pure, and without memory of its own, so a step cannot fail. What always holds:
 *
 *   - each NEXT, CLOSE, LEAVE and STOP is answered by exactly one NOTIFY effect. If it
 *     came from inside a call of the agent's, the answer does not come with its own
 *     step but with the next one, and life_deadline() is 0 until then;
 *   - a step has at most one such NOTIFY, and it is the last effect, so that the agent
 *     may ask for anything while it is told;
 *   - nothing is asked of the implementation before OPENED, or after STOP was answered.
 */
#ifndef RENDEZVOUS_CORE_HANDLER_LIFE_H
#define RENDEZVOUS_CORE_HANDLER_LIFE_H

#include "base/base.h"
#include "base/log.h"
#include "muster/error.h"
#include "rendezvous/core/news.h"

enum life_event_kind {
    /* What the agent wants, one of each at a time. */
    LIFE_NEXT,
    LIFE_CANCEL, /* the NEXT under way, if there is one */
    LIFE_CLOSE,
    LIFE_LEAVE,
    LIFE_STOP, /* the agent's last request; closes: close the run for everybody */
    /* What the implementation answers. */
    LIFE_OPENED,     /* code, text */
    LIFE_JOINED,     /* we have a round; its workers' address is needed next */
    LIFE_REFUSED,    /* the JOIN failed: code, text. EEXIST: our name is taken */
    LIFE_ADDRESS,    /* code 0: known; else code, text */
    LIFE_NO_ADDRESS, /* the store was restarted and lost it: only another round helps */
    LIFE_LEFT,       /* code, text */
    LIFE_CLOSED,     /* likewise */
    LIFE_OTHERS,     /* others: how many nodes still read the store that we serve */
    LIFE_FAILED,     /* it cannot go on: code, text. Every request gets this answer */
    /* What happens by itself. */
    LIFE_NEWS,  /* news, code, text; again: the store is being tried again */
    LIFE_HEARD, /* the store has answered */
    LIFE_TIMER, /* life_deadline() has come */
};

struct life_event {
    enum life_event_kind kind;
    uint64_t now_ms; /* monotonic */
    bool inside;     /* from inside a call of the agent's: tell nothing yet */
    bool closes, again;
    bool over; /* STOP: the run is closed and nobody reads our store, so nothing is left
                  to do */
    size_t others;
    enum rdzv_news news;
    int code;
    const char *text; /* borrowed for the step; may be NULL with code 0 */
};

enum life_effect_kind {
    LIFE_DO_OPEN,   /* answered by OPENED */
    LIFE_DO_DROP,   /* stop looking for the address; release the last round's stores */
    LIFE_DO_JOIN,   /* answered by JOINED or REFUSED */
    LIFE_DO_RENAME, /* take another name and JOIN again; answered likewise */
    LIFE_DO_FIND,   /* answered by ADDRESS or NO_ADDRESS, unless DROP comes first */
    LIFE_DO_LEAVE,  /* answered by LEFT; a JOIN under way is REFUSED */
    LIFE_DO_CLOSE,  /* answered by CLOSED */
    LIFE_DO_RETIRE, /* the run is closed: stop reading our own store */
    LIFE_DO_COUNT,  /* answered by OTHERS */
    LIFE_NOTIFY_NEXT, /* err; code 0: the round */
    LIFE_NOTIFY_CLOSE,
    LIFE_NOTIFY_LEAVE,
    LIFE_NOTIFY_STOP,
    LIFE_NOTIFY_NEWS, /* news, err */
};

struct life_effect {
    enum life_effect_kind kind;
    enum rdzv_news news;
    /* of NOTIFY effects; borrowed until the next step */
    const struct muster_error *err;
};

#define LIFE_FX_MAX 5

struct life_fx {
    struct life_effect at[LIFE_FX_MAX];
    size_t count;
};

enum life_stage { LIFE_NEW, LIFE_OPENING, LIFE_READY, LIFE_BROKEN };

/* Where a request of the agent's stands. */
enum life_state {
    LIFE_IDLE,      /* not under way */
    LIFE_WAITS,     /* until the handler is open */
    LIFE_ASKED,     /* the implementation was asked */
    LIFE_CANCELING, /* NEXT alone: asked, but the answer is ECANCELED whatever comes */
    LIFE_FINDING,   /* NEXT alone: joined, but the workers' address is not known yet */
    LIFE_DUE,       /* the agent is to be told the answer */
};

struct life_request {
    enum life_state state;
    struct muster_error err; /* the answer, while DUE */
};

struct handler_life {
    const char *run_id;    /* borrowed */
    const struct log *log; /* borrowed, may be NULL */
    uint64_t silence_ms;   /* how long a store may be unreachable before that is news */
    bool lingers; /* we serve a store: after closing wait until the others have read it
                   */

    enum life_stage stage;
    struct life_request next, close, leave, stop;
    bool stop_closes;
    bool ended;          /* we have closed the run and wait for its readers */
    bool over;           /* STOP was answered */
    bool newcomer_waits; /* a node waits for the next round; news once the agent has
                            this one */
    unsigned renames;
    struct muster_error broken,
        news_err;        /* why opening failed; the text of the last news */
    uint64_t away_by_ms; /* when an unreachable store becomes news; MONO_NEVER: it is
                            reachable */
    struct muster_error away_err; /* that news, since others may come before it */
    uint64_t linger_at_ms, linger_by_ms; /* when to count the readers again, and until
                                            when; MONO_NEVER: not now */
};

/* Borrows run_id and log. */
void life_init(struct handler_life *l, const char *run_id, const struct log *log,
               uint64_t silence_ms, bool lingers);

void life_step(struct handler_life *l, const struct life_event *ev, struct life_fx *fx);

/* When to send TIMER, by now_ms; 0: at once; MONO_NEVER: nothing is due. */
uint64_t life_deadline(const struct handler_life *l);

/* Whether a NEXT is under way and not canceled, so that a round is of use. */
bool life_wants_round(const struct handler_life *l);

#endif
