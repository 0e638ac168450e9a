/* lifecycle.c - see lifecycle.h. From top to bottom: effects, joining, the agent's
 * requests, the engine's answers, what happens by itself, and the step. */
#include "rendezvous/core/lifecycle.h"

#include <assert.h>

#include "base/err.h"

#define MAX_RENAMES    3u
#define LINGER_MS      5000u /* how long a host waits for others to read "closed" */
#define LINGER_TICK_MS 20u

static void put(struct life_fx *fx, enum life_effect_kind kind)
{
    assert(fx->count < LIFE_FX_MAX);
    fx->at[fx->count++] = (struct life_effect){ .kind = kind };
}

static void set_due(struct life_request *r, int code, const char *text)
{
    assert(r->state != LIFE_IDLE);
    r->state = LIFE_DUE;
    if (code < 0)
        (void)err_set(&r->err, code, "%s", text ? text : "");
    else
        r->err = (struct muster_error){ 0 };
}

static bool is_asked(const struct life_request *r)
{
    return r->state != LIFE_IDLE && r->state != LIFE_DUE;
}

/* ---- Joining ---- */

static void open_once(struct lifecycle *l, struct life_fx *fx)
{
    if (l->stage != LIFE_NEW)
        return;
    l->stage = LIFE_OPENING;
    put(fx, LIFE_DO_OPEN);
}

static void join(struct lifecycle *l, struct life_fx *fx)
{
    assert(l->stage == LIFE_READY && l->next.state != LIFE_DUE);
    l->next.state = LIFE_ASKED;
    l->newcomer_waits = false;
    put(fx, LIFE_DO_DROP);
    put(fx, LIFE_DO_JOIN);
}

static void canceled(struct lifecycle *l)
{
    set_due(&l->next, MUSTER_ECANCELED, "");
    (void)err_set(&l->next.err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  l->run_id);
}

/* STOP is answered last, so every request that has no answer gets one first. */
static void stop_due(struct lifecycle *l, int code, const char *text)
{
    set_due(&l->stop, code, text);
    if (is_asked(&l->next))
        canceled(l);
    if (is_asked(&l->close))
        set_due(&l->close, code, text);
    if (is_asked(&l->leave))
        set_due(&l->leave, 0, NULL);
}

/* ---- The agent's requests ---- */

static void on_next(struct lifecycle *l, struct life_fx *fx)
{
    assert(l->next.state == LIFE_IDLE && !l->over);
    l->next.state = LIFE_WAITS;
    if (l->stage == LIFE_READY)
        join(l, fx);
    else if (l->stage == LIFE_BROKEN)
        set_due(&l->next, l->broken.code, l->broken.text);
    else
        open_once(l, fx);
}

/* Returns true if the engine was asked to leave. */
static bool cancel(struct lifecycle *l, struct life_fx *fx)
{
    const enum life_state was = l->next.state;

    if (was == LIFE_IDLE || was == LIFE_CANCELING)
        return false;
    if (was == LIFE_ASKED) {
        l->next.state = LIFE_CANCELING; /* REFUSED says when it is over. */
    } else {
        canceled(l);
        put(fx, LIFE_DO_DROP);
    }
    if (l->stage != LIFE_READY)
        return false;
    put(fx, LIFE_DO_LEAVE);
    return true;
}

static void on_close(struct lifecycle *l, struct life_fx *fx)
{
    assert(l->close.state == LIFE_IDLE && !l->over);
    l->close.state = LIFE_WAITS;
    if (l->stage == LIFE_BROKEN) {
        set_due(&l->close, l->broken.code, l->broken.text);
    } else if (l->stage == LIFE_READY) {
        l->close.state = LIFE_ASKED;
        if (!(is_asked(&l->stop) &&
              l->stop_closes)) /* Else a CLOSE is already on its way. */
            put(fx, LIFE_DO_CLOSE);
    } else {
        open_once(l, fx);
    }
}

static void on_leave(struct lifecycle *l, struct life_fx *fx)
{
    assert(l->leave.state == LIFE_IDLE && !l->over);
    l->leave.state = LIFE_ASKED;
    if (!cancel(l, fx) && l->stage == LIFE_READY)
        put(fx, LIFE_DO_LEAVE);
    if (l->stage != LIFE_READY) /* There is nothing to leave yet. */
        set_due(&l->leave, 0, NULL);
}

static void on_stop(struct lifecycle *l, const struct life_event *ev,
                    struct life_fx *fx)
{
    bool leaving;

    assert(l->stop.state == LIFE_IDLE && !l->over);
    leaving = cancel(l, fx);
    l->stop.state = LIFE_ASKED;
    l->stop_closes = ev->closes;
    if (l->stage == LIFE_BROKEN && ev->closes) {
        stop_due(l, l->broken.code, l->broken.text);
    } else if ((ev->closes && ev->over) || (l->stage != LIFE_READY && !ev->closes)) {
        stop_due(l, 0, NULL);
    } else if (l->stage != LIFE_READY) {
        l->stop.state = LIFE_WAITS;
        open_once(l, fx);
    } else if (!ev->closes) {
        if (!leaving)
            put(fx, LIFE_DO_LEAVE);
    } else if (l->close.state != LIFE_ASKED) {
        put(fx, LIFE_DO_CLOSE);
    }
}

/* ---- The engine's answers ---- */

static void opening_failed(struct lifecycle *l, const struct life_event *ev)
{
    l->stage = LIFE_BROKEN;
    (void)err_set(&l->broken, ev->code, "%s", ev->text);
    if (l->next.state == LIFE_WAITS)
        set_due(&l->next, ev->code, ev->text);
    if (l->close.state == LIFE_WAITS)
        set_due(&l->close, ev->code, ev->text);
    if (l->stop.state == LIFE_WAITS)
        stop_due(l, ev->code, ev->text);
}

static void lifecycle_on_opened(struct lifecycle *l, const struct life_event *ev,
                                struct life_fx *fx)
{
    assert(l->stage == LIFE_OPENING);
    if (ev->code < 0) {
        opening_failed(l, ev);
        return;
    }
    l->stage = LIFE_READY;
    if (l->close.state == LIFE_WAITS || l->stop.state == LIFE_WAITS)
        put(fx, LIFE_DO_CLOSE);
    if (l->close.state == LIFE_WAITS)
        l->close.state = LIFE_ASKED;
    if (l->stop.state == LIFE_WAITS)
        l->stop.state = LIFE_ASKED;
    if (l->next.state == LIFE_WAITS)
        join(l, fx);
}

static void on_joined(struct lifecycle *l, struct life_fx *fx)
{
    if (l->next.state == LIFE_CANCELING) {
        canceled(l); /* The LEAVE that gives up this seat is on its way. */
    } else if (l->next.state == LIFE_ASKED) {
        l->next.state = LIFE_FINDING;
        put(fx, LIFE_DO_FIND);
    }
}

/* EEXIST means that another process beats under our name: two containers with the same
 * host name and pid, or our own predecessor. */
static void lifecycle_on_refused(struct lifecycle *l, const struct life_event *ev,
                                 struct life_fx *fx)
{
    assert(ev->code < 0);
    if (l->next.state == LIFE_CANCELING) {
        canceled(l);
    } else if (l->next.state == LIFE_ASKED && ev->code == MUSTER_EEXIST &&
               l->renames < MAX_RENAMES) {
        l->renames++;
        put(fx, LIFE_DO_RENAME);
    } else if (l->next.state == LIFE_ASKED) {
        set_due(&l->next, ev->code, ev->text);
    }
}

static void on_address(struct lifecycle *l, const struct life_event *ev,
                       struct life_fx *fx)
{
    if (l->next.state != LIFE_FINDING)
        return;
    if (ev->kind == LIFE_ADDRESS) {
        set_due(&l->next, ev->code, ev->text);
        return;
    }
    trace(l->trace, TRACE_WARN,
          "run '%s': the store lost the workers' address; joining again", l->run_id);
    join(l, fx);
}

/* The store ends with its host, and a node that has not read "closed" by then would
 * take the end of the run for a failure. So a host waits for the readers of its
 * store. */
static void lifecycle_on_done(struct lifecycle *l, const struct life_event *ev,
                              struct life_fx *fx)
{
    const bool closed = ev->kind == LIFE_CLOSED;
    struct life_request *r = closed ? &l->close : &l->leave;

    if (r->state == LIFE_ASKED)
        set_due(r, ev->code, ev->text);
    if (l->stop.state != LIFE_ASKED || l->stop_closes != closed || l->ended)
        return;
    if (closed && ev->code == 0 && l->lingers) {
        l->ended = true;
        l->linger_at_ms = ev->now_ms;
        l->linger_by_ms = ev->now_ms + LINGER_MS;
        put(fx, LIFE_DO_DROP);
        put(fx, LIFE_DO_RETIRE);
    } else {
        stop_due(l, ev->code, ev->text);
    }
}

static void on_others(struct lifecycle *l, const struct life_event *ev)
{
    const uint64_t waited = ev->now_ms + LINGER_MS - l->linger_by_ms;

    assert(l->ended && l->stop.state == LIFE_ASKED);
    /* The first ticks are short, since mostly the only reader was ourselves, and we
     * have just closed. */
    if (ev->others > 0 && ev->now_ms < l->linger_by_ms)
        l->linger_at_ms = ev->now_ms + MIN_OF(1 + waited, LINGER_TICK_MS);
    else
        stop_due(l, 0, NULL);
}

/* ---- What happens by itself ---- */

static void notify_news(struct lifecycle *l, enum rdzv_news news, struct life_fx *fx)
{
    put(fx, LIFE_NOTIFY_NEWS);
    fx->at[fx->count - 1].news = news;
    fx->at[fx->count - 1].err = &l->news_err;
}

static void lifecycle_on_news(struct lifecycle *l, const struct life_event *ev,
                              struct life_fx *fx)
{
    const bool finding = l->next.state == LIFE_FINDING;

    if (finding && (ev->news == RDZV_NEWS_LOST || ev->news == RDZV_NEWS_EVICTED ||
                    ev->news == RDZV_NEWS_MOVED_ON || ev->news == RDZV_NEWS_CUT_OFF)) {
        /* The round fell apart, or goes on without us, before we learnt the workers'
         * address. The agent wants a round, so join the next one. */
        trace(l->trace, TRACE_INFO, "run '%s': %s; joining again", l->run_id,
              ev->text && *ev->text ? ev->text : "a member is gone");
        join(l, fx);
        return;
    }
    if (finding && ev->news == RDZV_NEWS_CLOSED) {
        put(fx, LIFE_DO_DROP);
        set_due(&l->next, MUSTER_ECLOSED,
                "another node closed the run before its workers started: "
                "it failed, or was ended; the other nodes' logs tell why");
        return;
    }
    if (ev->news == RDZV_NEWS_WAITING && (finding || l->next.state == LIFE_DUE)) {
        l->newcomer_waits =
            true; /* The agent has no round yet that it could leave for it. */
        return;
    }
    (void)err_set(&l->news_err, ev->code, "%s", ev->text ? ev->text : "");
    if (ev->news == RDZV_NEWS_BACKEND && ev->again) {
        /* The engine keeps trying. A store that comes back within the time that a node
         * may be silent has done no harm. */
        l->away_by_ms = ev->now_ms + l->silence_ms;
        return;
    }
    notify_news(l, ev->news, fx);
}

static void lifecycle_on_timer(struct lifecycle *l, const struct life_event *ev,
                               struct life_fx *fx)
{
    if (l->newcomer_waits && l->next.state == LIFE_IDLE) {
        l->newcomer_waits = false;
        (void)err_set(&l->news_err, 0, "a node waits for the next round");
        notify_news(l, RDZV_NEWS_WAITING, fx);
        return;
    }
    if (ev->now_ms >= l->away_by_ms) {
        l->away_by_ms = MONO_NEVER;
        notify_news(l, RDZV_NEWS_BACKEND, fx);
    }
    if (ev->now_ms >= l->linger_at_ms) {
        l->linger_at_ms = MONO_NEVER;
        put(fx, LIFE_DO_COUNT);
    }
}

/* ---- The step ---- */

/* NEXT is told first and STOP last. One a step: the agent may ask for the same again
 * while it is told. */
static struct life_request *first_due(struct lifecycle *l, enum life_effect_kind *kind)
{
    struct life_request *const all[] = { &l->next, &l->close, &l->leave, &l->stop };
    static const enum life_effect_kind kinds[] = { LIFE_NOTIFY_NEXT, LIFE_NOTIFY_CLOSE,
                                                   LIFE_NOTIFY_LEAVE,
                                                   LIFE_NOTIFY_STOP };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i]->state == LIFE_DUE) {
            *kind = kinds[i];
            return all[i];
        }
    }
    return NULL;
}

static void notify_one(struct lifecycle *l, struct life_fx *fx)
{
    enum life_effect_kind kind;
    struct life_request *r = first_due(l, &kind);

    if (!r)
        return;
    r->state = LIFE_IDLE;
    put(fx, kind);
    fx->at[fx->count - 1].err = &r->err;
    if (kind == LIFE_NOTIFY_NEXT && r->err.code)
        l->newcomer_waits = false;
    if (kind != LIFE_NOTIFY_STOP)
        return;
    l->over = true;
    l->away_by_ms = l->linger_at_ms = MONO_NEVER;
}

static void take(struct lifecycle *l, const struct life_event *ev, struct life_fx *fx)
{
    switch (ev->kind) {
    case LIFE_NEXT:
        on_next(l, fx);
        return;
    case LIFE_CANCEL:
        (void)cancel(l, fx);
        return;
    case LIFE_CLOSE:
        on_close(l, fx);
        return;
    case LIFE_LEAVE:
        on_leave(l, fx);
        return;
    case LIFE_STOP:
        on_stop(l, ev, fx);
        return;
    case LIFE_OPENED:
        lifecycle_on_opened(l, ev, fx);
        return;
    case LIFE_JOINED:
        on_joined(l, fx);
        return;
    case LIFE_REFUSED:
        lifecycle_on_refused(l, ev, fx);
        return;
    case LIFE_ADDRESS:
    case LIFE_NO_ADDRESS:
        on_address(l, ev, fx);
        return;
    case LIFE_LEFT:
    case LIFE_CLOSED:
        lifecycle_on_done(l, ev, fx);
        return;
    case LIFE_OTHERS:
        on_others(l, ev);
        return;
    case LIFE_NEWS:
        lifecycle_on_news(l, ev, fx);
        return;
    case LIFE_HEARD:
        l->away_by_ms = MONO_NEVER; /* It is back before it became news. */
        return;
    case LIFE_TIMER:
        lifecycle_on_timer(l, ev, fx);
        return;
    }
}

void life_step(struct lifecycle *l, const struct life_event *ev, struct life_fx *fx)
{
    assert(!l->over || ev->kind == LIFE_CANCEL || ev->kind > LIFE_STOP);
    fx->count = 0;
    if (!l->over)
        take(l, ev, fx);
    if (!ev->inside)
        notify_one(l, fx);
    assert(l->stage == LIFE_READY || l->next.state != LIFE_ASKED);
    assert(l->stage == LIFE_READY || l->next.state != LIFE_FINDING);
    assert(!l->ended || l->stage == LIFE_READY);
    assert(!l->over || !is_asked(&l->stop));
}

void life_init(struct lifecycle *l, const char *run_id, const struct trace *trace,
               uint64_t silence_ms, bool lingers)
{
    *l = (struct lifecycle){ .run_id = run_id,
                             .trace = trace,
                             .silence_ms = silence_ms,
                             .lingers = lingers,
                             .away_by_ms = MONO_NEVER,
                             .linger_at_ms = MONO_NEVER };
}

uint64_t life_deadline(const struct lifecycle *l)
{
    if (l->next.state == LIFE_DUE || l->close.state == LIFE_DUE ||
        l->leave.state == LIFE_DUE || l->stop.state == LIFE_DUE ||
        (l->newcomer_waits && l->next.state == LIFE_IDLE && !l->over))
        return 0;
    return MIN_OF(l->away_by_ms, l->linger_at_ms);
}

bool life_wants_round(const struct lifecycle *l)
{
    return l->next.state == LIFE_WAITS || l->next.state == LIFE_ASKED ||
           l->next.state == LIFE_FINDING;
}
