/* handler_int.h - what the files of a caller's handler share.
 *
 * The caller's functions run on threads of their own, one at a time (cancel alone
 * beside next), so that the loop never waits for them: handler_calls.c. What comes back
 * is made of use in handler_foreign.c, what the agent asks for is in handler_face.c. */
#ifndef API_FOREIGN_HANDLER_INT_H
#define API_FOREIGN_HANDLER_INT_H

#include "api/foreign.h"
#include "api/params_int.h"
#include "loop/blocking_call.h"

enum call_kind {
    CALL_NEXT,
    CALL_POLL,
    CALL_CLOSE,
    CALL_LEAVE,
    CALL_SHUTDOWN,
    CALL_FREE,
    CALL_KINDS
};

/* One call of the caller's functions. It is the thread's while that runs, and stays
 * its own should it not come back in time. */
struct call {
    enum call_kind kind;
    const struct muster_handler_ops *ops;
    void *self;
    int status;
    struct muster_error err;
    struct muster_handler_round round; /* NEXT */
    int64_t waiting;                   /* POLL */
    bool closed;
};

struct wish {
    rdzv_done_cb cb;
    void *ctx;
    bool wanted; /* not yet begun */
};

struct foreign_handler {
    struct rdzv_handler base;
    const struct foreign *f;     /* borrowed from the registry */
    const struct trace *trace;   /* borrowed */
    struct muster_params params; /* owned copy */
    void *self;                  /* the caller's */
    uv_timer_t timer;            /* whatever is to be done later */

    struct blocking_call *running; /* the call under way, or NULL */
    enum call_kind kind;           /* of it */
    bool lost;                     /* a call did not come back: self is out of reach */

    rdzv_next_cb next_cb;
    void *next_ctx;
    bool next_wanted, canceled;
    struct async_store *store; /* owned: the round's */
    struct muster_handler_round found;
    struct rdzv_round round;

    struct wish close, leave, stop;
    bool stop_closes, stopped;
    bool seated; /* the handler has a place in a round, */
    bool member; /* and the agent knows of it: polls and news go on */

    rdzv_news_cb news_cb;
    void *news_ctx;
    int64_t waiting, waiting_told;
    bool closed, closed_told, backend_told;

    bool destroying, freed;
    size_t refs; /* what must close before we go */
    void (*gone_cb)(void *ctx);
    void *gone_ctx;
};

extern const struct rdzv_handler_ops foreign_handler_ops;

/* handler_calls.c: begins a call; its end is handler_told(), never from inside. */
void handler_start(struct foreign_handler *h, enum call_kind kind);
/* A canceled next() has had its time: it ends here, and the handler with it. */
void handler_give_up(struct foreign_handler *h);

/* handler_foreign.c: what came back. */
void handler_told(struct foreign_handler *h, const struct call *c);
void handler_tell_canceled(struct foreign_handler *h);
void handler_tell_wish(struct wish *w, int status, const struct muster_error *err);
void handler_refuse_all(struct foreign_handler *h); /* self is out of reach */
void handler_drop_store(struct foreign_handler *h);

/* handler_face.c: begins the first thing that is wanted, unless one is under way. */
void handler_go(struct foreign_handler *h);
void handler_closed(struct foreign_handler *h); /* one of refs */

#endif
