/* handler_base.h - what every handler has in common: the agent's calls and callbacks
 * around handler_life (rendezvous/core/handler_life.h), on one timer, and the proof of
 * the job's secret. An implementation does what handler_life decides: dynamic.c for
 * c10d, etcd-v2 and etcd-v3, static.c, etcd/legacy/handler.c for the backend etcd, and
 * api/foreign_handler.c for handlers that a caller registered.
 *
 * An implementation embeds the base as its first field and fills its table of handler
 * operations with HANDLER_BASE_OPS and the questions that it answers itself. It reports
 * the outcome of what it is asked to do by handler_feed(), at once or from the loop. */
#ifndef RENDEZVOUS_HANDLER_BASE_H
#define RENDEZVOUS_HANDLER_BASE_H

#include "loop/handle_set.h"
#include "rendezvous/core/handler_life.h"
#include "rendezvous/secured.h"

struct handler_base;

struct handler_impl {
    void (*open)(struct handler_base *s);  /* answered by LIFE_OPENED */
    void (*join)(struct handler_base *s);  /* by LIFE_JOINED or LIFE_REFUSED */
    void (*leave)(struct handler_base *s); /* by LIFE_LEFT, after any LIFE_REFUSED */
    void (*close)(struct handler_base *s); /* by LIFE_CLOSED */
    /* Replaces close() when the agent's last request closes the run, and is called even
     * if the run is closed already; answered likewise. NULL: close() does it. */
    void (*shutdown)(struct handler_base *s);
    void (*find)(struct handler_base *s);   /* by LIFE_ADDRESS or LIFE_NO_ADDRESS */
    void (*drop)(struct handler_base *s);   /* may come before all other calls */
    void (*rename)(struct handler_base *s); /* and joins; NULL: never EEXIST */
    void (*retire)(struct handler_base *s); /* NULL: a handler that does not linger */
    size_t (*others)(const struct handler_base *s); /* likewise */
    /* A deadline of the implementation itself, and the call when it has come; may be
     * NULL. */
    uint64_t (*deadline)(const struct handler_base *s);
    void (*timer)(struct handler_base *s);
    void (*stopped)(struct handler_base *s,
                    const struct muster_error *err); /* may be NULL */
    const struct rdzv_round *(*round)(const struct handler_base *s);
    /* destroy() hands everything that has to be closed to s->closing. When that is
     * closed, release() frees the implementation and the base in it, and calls the
     * callback that it copied from s->gone before. */
    void (*destroy)(struct handler_base *s);
    void (*release)(struct handler_base *s);
};

struct handler_gone {
    void (*cb)(void *ctx); /* NULL: destroy() was not called yet */
    void *ctx;
};

struct handler_request {
    rdzv_done_cb cb;
    void *ctx;
};

struct handler_base {
    struct rdzv_handler handler;
    const struct handler_impl *impl;
    struct handler_life life;
    struct secured secured; /* for a job with a secret */
    uv_timer_t timer;       /* for the earliest deadline */
    rdzv_next_cb next_cb;
    void *next_ctx;
    rdzv_news_cb news_cb;
    void *news_ctx;
    struct handler_request close, leave, stop;
    unsigned inside;           /* calls of the agent's that are under way */
    struct handle_set closing; /* what destroy() closes */
    struct handler_gone gone;
};

/* s is zeroed. The caller initialises s->life by life_init(). */
void handler_base_init(struct handler_base *s, uv_loop_t *loop,
                       const struct rdzv_handler_ops *ops,
                       const struct handler_impl *impl);

/* Gives a handler the job's secret. */
void handler_secure(struct rdzv_handler *h, struct auth *auth, const struct log *log);

/* Reports an event to handler_life. now_ms and inside are filled in here. */
void handler_feed(struct handler_base *s, struct life_event ev);
void handler_feed_error(struct handler_base *s, enum life_event_kind kind,
                        const struct muster_error *err); /* NULL: code 0 */

/* Memory has run out for the implementation: it can only be destroyed from now on. */
void handler_no_memory(struct handler_base *s);

/* Call this when the implementation's deadline may have changed. */
void handler_arm(struct handler_base *s);

/* Whether destroy() was called: then nothing is wanted any more. */
bool handler_ends(const struct handler_base *s);

/* Whether the run is being closed for the agent's last request. */
bool handler_shuts_down(const struct handler_base *s);

/* What the agent calls; only for HANDLER_BASE_OPS. */
void handler_next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx);
void handler_cancel(struct rdzv_handler *h);
void handler_on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx);
void handler_set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx);
void handler_leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx);
void handler_shutdown(struct rdzv_handler *h, bool close, rdzv_done_cb cb, void *ctx);
void handler_destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx);

#define HANDLER_BASE_OPS                                                               \
    .next = handler_next, .cancel = handler_cancel, .on_news = handler_on_news,        \
    .set_closed = handler_set_closed, .leave = handler_leave,                          \
    .shutdown = handler_shutdown, .destroy = handler_destroy

#endif
