/* shell.c - see shell.h. From top to bottom: feed and perform, time, what the agent
 * calls, the end. */
#include "rendezvous/shell.h"

#include <assert.h>

#include "base/err.h"
#include "loop/clock.h"

/* ---- Feed and perform ---- */

static void notify(struct shell_request *r, const struct muster_error *err)
{
    const struct shell_request was = *r;

    *r = (struct shell_request){ 0 };
    if (was.cb)
        was.cb(was.ctx, err->code, err->code < 0 ? err : NULL);
}

static void notify_next(struct rdzv_shell *s, const struct muster_error *err)
{
    const rdzv_next_cb cb = s->next_cb;

    s->next_cb = NULL;
    if (cb)
        cb(s->next_ctx, err->code, err->code < 0 ? NULL : s->engine->round(s),
           err->code < 0 ? err : NULL);
}

static void count_others(struct rdzv_shell *s)
{
    shell_feed(
        s, (struct life_event){ .kind = LIFE_OTHERS, .others = s->engine->others(s) });
}

/* The agent may call anything from its callback, so err is a copy of the step's. */
static void notify_agent(struct rdzv_shell *s, const struct life_effect *e)
{
    const struct muster_error err = *e->err;

    switch (e->kind) {
    case LIFE_NOTIFY_NEXT:
        notify_next(s, &err);
        return;
    case LIFE_NOTIFY_CLOSE:
        notify(&s->close, &err);
        return;
    case LIFE_NOTIFY_LEAVE:
        notify(&s->leave, &err);
        return;
    case LIFE_NOTIFY_STOP:
        if (s->engine->stopped)
            s->engine->stopped(s, &err);
        notify(&s->stop, &err);
        return;
    default:
        assert(e->kind == LIFE_NOTIFY_NEWS);
        if (s->news_cb)
            s->news_cb(s->news_ctx, e->news, &err);
        return;
    }
}

static void shell_perform(struct rdzv_shell *s, const struct life_effect *e)
{
    const struct rdzv_engine *const engine = s->engine;

    switch (e->kind) {
    case LIFE_DO_OPEN:
        engine->open(s);
        return;
    case LIFE_DO_DROP:
        engine->drop(s);
        return;
    case LIFE_DO_JOIN:
        engine->join(s);
        return;
    case LIFE_DO_RENAME:
        engine->rename(s);
        return;
    case LIFE_DO_FIND:
        engine->find(s);
        return;
    case LIFE_DO_LEAVE:
        engine->leave(s);
        return;
    case LIFE_DO_CLOSE:
        engine->close(s);
        return;
    case LIFE_DO_RETIRE:
        engine->retire(s);
        return;
    case LIFE_DO_COUNT:
        count_others(s);
        return;
    default:
        notify_agent(s, e);
        return;
    }
}

void shell_feed(struct rdzv_shell *s, struct life_event ev)
{
    struct life_fx fx;

    if (shell_ends(s))
        return;
    ev.now_ms = clock_mono_ms();
    ev.inside = s->inside > 0;
    life_step(&s->life, &ev, &fx);
    for (size_t i = 0; i < fx.count && !shell_ends(s); i++)
        shell_perform(s, &fx.at[i]);
    shell_arm(s);
}

void shell_feed_error(struct rdzv_shell *s, enum life_event_kind kind,
                      const struct muster_error *err)
{
    shell_feed(s, (struct life_event){ .kind = kind,
                                       .code = err ? err->code : 0,
                                       .text = err ? err->text : NULL });
}

/* ---- Time: one timer for the earliest deadline ---- */

static void shell_on_timer(uv_timer_t *t)
{
    struct rdzv_shell *s = t->data;

    if (clock_mono_ms() >= life_deadline(&s->life))
        shell_feed(s, (struct life_event){ .kind = LIFE_TIMER });
    if (!shell_ends(s) && !s->life.over && s->engine->deadline &&
        clock_mono_ms() >= s->engine->deadline(s))
        s->engine->timer(s);
    shell_arm(s);
}

void shell_arm(struct rdzv_shell *s)
{
    uint64_t due;

    if (shell_ends(s))
        return;
    due = life_deadline(&s->life);
    if (due == 0) {
        (void)uv_timer_start(&s->timer, shell_on_timer, 0, 0);
        return;
    }
    if (!s->life.over && s->engine->deadline)
        due = MIN_OF(due, s->engine->deadline(s));
    clock_arm(&s->timer, shell_on_timer, due);
}

/* ---- What the agent calls ---- */

static struct rdzv_shell *shell_of(struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct rdzv_shell, base);
}

static void ask(struct rdzv_shell *s, struct life_event ev)
{
    s->inside++;
    shell_feed(s, ev);
    s->inside--;
}

void shell_next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct rdzv_shell *s = shell_of(h);

    assert(!s->next_cb);
    s->next_cb = cb;
    s->next_ctx = ctx;
    ask(s, (struct life_event){ .kind = LIFE_NEXT });
}

void shell_cancel(struct rdzv_handler *h)
{
    ask(shell_of(h), (struct life_event){ .kind = LIFE_CANCEL });
}

void shell_on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    shell_of(h)->news_cb = cb;
    shell_of(h)->news_ctx = ctx;
}

void shell_set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct rdzv_shell *s = shell_of(h);

    assert(!s->close.cb);
    s->close = (struct shell_request){ cb, ctx };
    ask(s, (struct life_event){ .kind = LIFE_CLOSE });
}

void shell_leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct rdzv_shell *s = shell_of(h);

    assert(!s->leave.cb);
    s->leave = (struct shell_request){ cb, ctx };
    ask(s, (struct life_event){ .kind = LIFE_LEAVE });
}

/* A run that is closed need not be closed again, and the node that closed it may have
 * ended the store. A host closes in the usual way, since other nodes may still want to
 * read its store. */
void shell_shutdown(struct rdzv_handler *h, bool close, rdzv_done_cb cb, void *ctx)
{
    struct rdzv_shell *s = shell_of(h);
    const bool serves = s->engine->others && s->engine->others(s) > 0;

    assert(!s->stop.cb);
    s->stop = (struct shell_request){ cb, ctx };
    ask(s, (struct life_event){ .kind = LIFE_STOP,
                                .closes = close,
                                .over = h->ops->is_closed(h) && !serves });
}

/* ---- The beginning and the end ---- */

const char *shell_run_id(const struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct rdzv_shell, base)->life.run_id;
}

void shell_init(struct rdzv_shell *s, uv_loop_t *loop,
                const struct rdzv_handler_ops *ops, const struct rdzv_engine *engine)
{
    s->base = (struct rdzv_handler){ .ops = ops, .loop = loop };
    s->engine = engine;
    (void)uv_timer_init(loop, &s->timer); /* cannot fail */
    s->timer.data = s;
}

bool shell_ends(const struct rdzv_shell *s)
{
    return s->gone.cb != NULL;
}

static void shell_on_parts_gone(void *ctx)
{
    struct rdzv_shell *s = ctx;

    s->engine->release(s);
}

void shell_destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct rdzv_shell *s = shell_of(h);

    assert(!shell_ends(s) && cb);
    s->gone = (struct shell_gone){ cb, ctx };
    handle_set_begin(&s->closing, shell_on_parts_gone, s);
    s->engine->destroy(s);
    handle_set_close(&s->closing, &s->timer);
    handle_set_end(&s->closing);
}
