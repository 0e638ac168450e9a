/* handler_base.c - see handler_base.h. From top to bottom: feed and perform, time, what
 * the agent calls, the end. */
#include "rendezvous/handler_base.h"

#include <assert.h>

#include "base/err.h"
#include "loop/clock.h"

/* ---- Feed and perform ---- */

static void handler_notify(struct handler_request *r, const struct muster_error *err)
{
    const struct handler_request was = *r;

    *r = (struct handler_request){ 0 };
    if (was.cb)
        was.cb(was.ctx, err->code, err->code < 0 ? err : NULL);
}

static void handler_notify_next(struct handler_base *s, const struct muster_error *err)
{
    const rdzv_next_cb cb = s->next_cb;
    const struct rdzv_round *round =
        s->secured.auth ? &s->secured.round : s->impl->round(s);

    s->next_cb = NULL;
    if (cb)
        cb(s->next_ctx, err->code, err->code < 0 ? NULL : round,
           err->code < 0 ? err : NULL);
}

static void handler_count_others(struct handler_base *s)
{
    handler_feed(
        s, (struct life_event){ .kind = LIFE_OTHERS, .others = s->impl->others(s) });
}

/* The agent may call anything from its callback, so err is a copy of the step's. */
static void handler_notify_agent(struct handler_base *s, const struct life_effect *e)
{
    const struct muster_error err = *e->err;

    switch (e->kind) {
    case LIFE_NOTIFY_NEXT:
        handler_notify_next(s, &err);
        return;
    case LIFE_NOTIFY_CLOSE:
        handler_notify(&s->close, &err);
        return;
    case LIFE_NOTIFY_LEAVE:
        handler_notify(&s->leave, &err);
        return;
    case LIFE_NOTIFY_STOP:
        if (s->impl->stopped)
            s->impl->stopped(s, &err);
        handler_notify(&s->stop, &err);
        return;
    default:
        assert(e->kind == LIFE_NOTIFY_NEWS);
        if (s->news_cb)
            s->news_cb(s->news_ctx, e->news, &err);
        return;
    }
}

bool handler_shuts_down(const struct handler_base *s)
{
    return s->life.stop.state == LIFE_ASKED && s->life.stop_closes;
}

static void handler_perform(struct handler_base *s, const struct life_effect *e)
{
    const struct handler_impl *const impl = s->impl;

    switch (e->kind) {
    case LIFE_DO_OPEN:
        impl->open(s);
        return;
    case LIFE_DO_DROP:
        secured_drop(&s->secured);
        impl->drop(s);
        return;
    case LIFE_DO_JOIN:
        impl->join(s);
        return;
    case LIFE_DO_RENAME:
        impl->rename(s);
        return;
    case LIFE_DO_FIND:
        impl->find(s);
        return;
    case LIFE_DO_LEAVE:
        impl->leave(s);
        return;
    case LIFE_DO_CLOSE:
        if (impl->shutdown && handler_shuts_down(s))
            impl->shutdown(s);
        else
            impl->close(s);
        return;
    case LIFE_DO_RETIRE:
        impl->retire(s);
        return;
    case LIFE_DO_COUNT:
        handler_count_others(s);
        return;
    default:
        handler_notify_agent(s, e);
        return;
    }
}

static void handler_step(struct handler_base *s, struct life_event ev)
{
    struct life_fx fx;

    ev.now_ms = clock_mono_ms();
    ev.inside = s->inside > 0;
    life_step(&s->life, &ev, &fx);
    for (size_t i = 0; i < fx.count && !handler_ends(s); i++)
        handler_perform(s, &fx.at[i]);
    handler_arm(s);
}

static struct life_event handler_event(enum life_event_kind kind,
                                       const struct muster_error *err)
{
    return (struct life_event){ .kind = kind,
                                .code = err ? err->code : 0,
                                .text = err ? err->text : NULL };
}

static void handler_on_proved(void *ctx, const struct muster_error *err)
{
    handler_step(ctx, handler_event(LIFE_ADDRESS, err));
}

/* With a secret, an address is of use once this node has proved itself there. */
static void handler_prove(struct handler_base *s)
{
    const bool agents_store = s->handler.ops->use_agent_store(&s->handler);
    struct muster_error err;
    const int rc = secured_prove(&s->secured, s->handler.loop, s->impl->round(s),
                                 agents_store, handler_on_proved, s, &err);

    if (rc != 0)
        handler_on_proved(s, rc < 0 ? &err : NULL);
}

void handler_feed(struct handler_base *s, struct life_event ev)
{
    if (handler_ends(s))
        return;
    if (s->secured.auth && ev.kind == LIFE_ADDRESS && ev.code == 0 &&
        s->life.next.state == LIFE_FINDING)
        handler_prove(s);
    else
        handler_step(s, ev);
}

void handler_feed_error(struct handler_base *s, enum life_event_kind kind,
                        const struct muster_error *err)
{
    handler_feed(s, handler_event(kind, err));
}

void handler_no_memory(struct handler_base *s)
{
    struct muster_error err;

    (void)err_nomem(&err);
    handler_feed_error(s, LIFE_FAILED, &err);
}

/* ---- Time: one timer for the earliest deadline ---- */

static void handler_on_timer(uv_timer_t *t)
{
    struct handler_base *s = t->data;

    if (clock_mono_ms() >= life_deadline(&s->life))
        handler_feed(s, (struct life_event){ .kind = LIFE_TIMER });
    if (!handler_ends(s) && !s->life.over && s->impl->deadline &&
        clock_mono_ms() >= s->impl->deadline(s))
        s->impl->timer(s);
    handler_arm(s);
}

void handler_arm(struct handler_base *s)
{
    uint64_t due;

    if (handler_ends(s))
        return;
    due = life_deadline(&s->life);
    if (due == 0) {
        (void)uv_timer_start(&s->timer, handler_on_timer, 0, 0);
        return;
    }
    if (!s->life.over && s->impl->deadline)
        due = MIN_OF(due, s->impl->deadline(s));
    clock_arm(&s->timer, handler_on_timer, due);
}

/* ---- What the agent calls ---- */

static struct handler_base *base_of(struct rdzv_handler *h)
{
    return CONTAINER_OF(h, struct handler_base, handler);
}

static void handler_request(struct handler_base *s, struct life_event ev)
{
    s->inside++;
    handler_feed(s, ev);
    s->inside--;
}

void handler_next(struct rdzv_handler *h, rdzv_next_cb cb, void *ctx)
{
    struct handler_base *s = base_of(h);

    assert(!s->next_cb);
    s->next_cb = cb;
    s->next_ctx = ctx;
    handler_request(s, (struct life_event){ .kind = LIFE_NEXT });
}

void handler_cancel(struct rdzv_handler *h)
{
    handler_request(base_of(h), (struct life_event){ .kind = LIFE_CANCEL });
}

void handler_on_news(struct rdzv_handler *h, rdzv_news_cb cb, void *ctx)
{
    base_of(h)->news_cb = cb;
    base_of(h)->news_ctx = ctx;
}

void handler_set_closed(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct handler_base *s = base_of(h);

    assert(!s->close.cb);
    s->close = (struct handler_request){ cb, ctx };
    handler_request(s, (struct life_event){ .kind = LIFE_CLOSE });
}

void handler_leave(struct rdzv_handler *h, rdzv_done_cb cb, void *ctx)
{
    struct handler_base *s = base_of(h);

    assert(!s->leave.cb);
    s->leave = (struct handler_request){ cb, ctx };
    handler_request(s, (struct life_event){ .kind = LIFE_LEAVE });
}

/* A run that is closed need not be closed again, and the node that closed it may have
 * ended the store. A host closes in the usual way, since other nodes may still want to
 * read its store. */
void handler_shutdown(struct rdzv_handler *h, bool close, rdzv_done_cb cb, void *ctx)
{
    struct handler_base *s = base_of(h);
    const bool serves = s->impl->others && s->impl->others(s) > 0;

    assert(!s->stop.cb);
    s->stop = (struct handler_request){ cb, ctx };
    handler_request(s, (struct life_event){ .kind = LIFE_STOP,
                                            .closes = close,
                                            .over = h->ops->is_closed(h) && !serves &&
                                                    !s->impl->shutdown });
}

/* ---- The beginning and the end ---- */

void handler_base_init(struct handler_base *s, uv_loop_t *loop,
                       const struct rdzv_handler_ops *ops,
                       const struct handler_impl *impl)
{
    s->handler = (struct rdzv_handler){ .ops = ops, .loop = loop };
    s->impl = impl;
    (void)uv_timer_init(loop, &s->timer); /* cannot fail */
    s->timer.data = s;
}

void handler_secure(struct rdzv_handler *h, struct auth *auth, const struct log *log)
{
    h->auth = auth;
    secured_init(&base_of(h)->secured, auth, log);
}

bool handler_ends(const struct handler_base *s)
{
    return s->gone.cb != NULL;
}

static void handler_on_parts_gone(void *ctx)
{
    struct handler_base *s = ctx;

    auth_unref(s->secured.auth);
    s->impl->release(s);
}

void handler_destroy(struct rdzv_handler *h, void (*cb)(void *ctx), void *ctx)
{
    struct handler_base *s = base_of(h);

    assert(!handler_ends(s) && cb);
    s->gone = (struct handler_gone){ cb, ctx };
    handle_set_begin(&s->closing, handler_on_parts_gone, s);
    secured_close(&s->secured, &s->closing);
    s->impl->destroy(s);
    handle_set_close(&s->closing, &s->timer);
    handle_set_end(&s->closing);
}
