/* shell.h - what every handler of ours has in common: the agent's calls and callbacks
 * around the lifecycle (rendezvous/core/lifecycle.h), on one timer. An engine does what
 * the lifecycle decides: dynamic.c for c10d, etcd-v2 and etcd-v3, static.c, and
 * etcd/legacy/handler.c for the backend etcd.
 *
 * An engine embeds the shell as its first field and fills its table of handler
 * operations with RDZV_SHELL_OPS and the questions that it answers itself. It reports
 * the outcome of what it is asked to do by shell_feed(), at once or from the loop. */
#ifndef RENDEZVOUS_SHELL_H
#define RENDEZVOUS_SHELL_H

#include "loop/handle_set.h"
#include "rendezvous/core/lifecycle.h"
#include "rendezvous/handler.h"

struct rdzv_shell;

struct rdzv_engine {
    void (*open)(struct rdzv_shell *s);   /* answered by LIFE_OPENED */
    void (*join)(struct rdzv_shell *s);   /* by LIFE_JOINED or LIFE_REFUSED */
    void (*leave)(struct rdzv_shell *s);  /* by LIFE_LEFT, after any LIFE_REFUSED */
    void (*close)(struct rdzv_shell *s);  /* by LIFE_CLOSED */
    void (*find)(struct rdzv_shell *s);   /* by LIFE_ADDRESS or LIFE_NO_ADDRESS */
    void (*drop)(struct rdzv_shell *s);   /* may come before all other calls */
    void (*rename)(struct rdzv_shell *s); /* and joins; NULL: never EEXIST */
    void (*retire)(struct rdzv_shell *s); /* NULL: the lifecycle does not linger */
    size_t (*others)(const struct rdzv_shell *s); /* likewise */
    /* A deadline of the engine itself, and the call when it has come; may be NULL. */
    uint64_t (*deadline)(const struct rdzv_shell *s);
    void (*timer)(struct rdzv_shell *s);
    void (*stopped)(struct rdzv_shell *s,
                    const struct muster_error *err); /* may be NULL */
    const struct rdzv_round *(*round)(const struct rdzv_shell *s);
    /* destroy() hands everything that has to be closed to s->closing. When that is
     * closed, release() frees the engine and the shell in it, and calls the callback
     * that it copied from s->gone before. */
    void (*destroy)(struct rdzv_shell *s);
    void (*release)(struct rdzv_shell *s);
};

struct shell_gone {
    void (*cb)(void *ctx); /* NULL: destroy() was not called yet */
    void *ctx;
};

struct shell_request {
    rdzv_done_cb cb;
    void *ctx;
};

struct rdzv_shell {
    struct rdzv_handler base;
    const struct rdzv_engine *engine;
    struct lifecycle life;
    uv_timer_t timer; /* for the earliest deadline */
    rdzv_next_cb next_cb;
    void *next_ctx;
    rdzv_news_cb news_cb;
    void *news_ctx;
    struct shell_request close, leave, stop;
    unsigned inside;           /* calls of the agent's that are under way */
    struct handle_set closing; /* what destroy() closes */
    struct shell_gone gone;
};

/* The caller initialises s->life by life_init(). */
void shell_init(struct rdzv_shell *s, uv_loop_t *loop,
                const struct rdzv_handler_ops *ops, const struct rdzv_engine *engine);

/* Reports an event to the lifecycle. now_ms and inside are filled in here. */
void shell_feed(struct rdzv_shell *s, struct life_event ev);
void shell_feed_error(struct rdzv_shell *s, enum life_event_kind kind,
                      const struct muster_error *err); /* NULL: code 0 */

/* Call this when the engine's deadline may have changed. */
void shell_arm(struct rdzv_shell *s);

/* Whether destroy() was called: then nothing is wanted any more. */
bool shell_ends(const struct rdzv_shell *s);

/* What the agent calls; only for RDZV_SHELL_OPS. */
void shell_next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx);
void shell_cancel(struct rdzv_handler *h);
void shell_on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx);
void shell_set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx);
void shell_leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx);
void shell_shutdown(struct rdzv_handler *h, bool close, rdzv_done_cb cb, void *ctx);
void shell_destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx);
const char *shell_run_id(const struct rdzv_handler *h);

#define RDZV_SHELL_OPS                                                                 \
    .next = shell_next, .cancel = shell_cancel, .on_news = shell_on_news,              \
    .set_closed = shell_set_closed, .leave = shell_leave, .shutdown = shell_shutdown,  \
    .destroy = shell_destroy, .run_id = shell_run_id

#endif
