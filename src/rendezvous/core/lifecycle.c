/* lifecycle.c - see lifecycle.h. Top to bottom: effects; joining; the agent's requests;
 * the engine's answers; what happens by itself; the step. */
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

static void due(struct life_request *r, int code, const char *text)
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
    l->awaited = false;
    put(fx, LIFE_DO_DROP);
    put(fx, LIFE_DO_JOIN);
}

static void canceled(struct lifecycle *l)
{
    due(&l->next, MUSTER_ECANCELED, "");
    (void)err_set(&l->next.err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  l->run_id);
}

/* The end is told last, and nothing after it: what has had no answer gets one first. */
static void stop_due(struct lifecycle *l, int code, const char *text)
{
    due(&l->stop, code, text);
    if (is_asked(&l->next))
        canceled(l);
    if (is_asked(&l->close))
        due(&l->close, code, text);
    if (is_asked(&l->leave))
        due(&l->leave, 0, NULL);
}

/* ---- The agent's requests ---- */

static void on_next(struct lifecycle *l, struct life_fx *fx)
{
    assert(l->next.state == LIFE_IDLE && !l->over);
    l->next.state = LIFE_WAITS;
    if (l->stage == LIFE_READY)
        join(l, fx);
    else if (l->stage == LIFE_BROKEN)
        due(&l->next, l->broken.code, l->broken.text);
    else
        open_once(l, fx);
}

/* True: the engine was asked to leave. */
static bool cancel(struct lifecycle *l, struct life_fx *fx)
{
    const enum life_state was = l->next.state;

    if (was == LIFE_IDLE || was == LIFE_CANCELING)
        return false;
    if (was == LIFE_ASKED) {
        l->next.state = LIFE_CANCELING; /* REFUSED will tell when it is over. */
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
        due(&l->close, l->broken.code, l->broken.text);
    } else if (l->stage == LIFE_READY) {
        l->close.state = LIFE_ASKED;
        if (!(is_asked(&l->stop) && l->stop_closes)) /* Else that is on its way. */
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
    if (l->stage != LIFE_READY) /* There is nothing to be left yet. */
        due(&l->leave, 0, NULL);
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
        due(&l->next, ev->code, ev->text);
    if (l->close.state == LIFE_WAITS)
        due(&l->close, ev->code, ev->text);
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
        canceled(l); /* The LEAVE that ends this seat as well is on its way. */
    } else if (l->next.state == LIFE_ASKED) {
        l->next.state = LIFE_FINDING;
        put(fx, LIFE_DO_FIND);
    }
}

/* Somebody else's heartbeats come under our name: two containers with one host name and
 * one process id, or our own former self. */
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
        due(&l->next, ev->code, ev->text);
    }
}

static void on_address(struct lifecycle *l, const struct life_event *ev,
                       struct life_fx *fx)
{
    if (l->next.state != LIFE_FINDING)
        return;
    if (ev->kind == LIFE_ADDRESS) {
        due(&l->next, ev->code, ev->text);
        return;
    }
    trace(l->trace, TRACE_WARN,
          "run '%s': the store lost the workers' address; joining again", l->run_id);
    join(l, fx);
}

/* The store dies with its host; those who have not read "closed" by then would take the
 * end of the run for a failure. */
static void lifecycle_on_done(struct lifecycle *l, const struct life_event *ev,
                              struct life_fx *fx)
{
    const bool closed = ev->kind == LIFE_CLOSED;
    struct life_request *r = closed ? &l->close : &l->leave;

    if (r->state == LIFE_ASKED)
        due(r, ev->code, ev->text);
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
    /* The first ticks are short: mostly the only reader was ourselves, just closed. */
    if (ev->others > 0 && ev->now_ms < l->linger_by_ms)
        l->linger_at_ms = ev->now_ms + MIN_OF(1 + waited, LINGER_TICK_MS);
    else
        stop_due(l, 0, NULL);
}

/* ---- What happens by itself ---- */

static void lifecycle_on_news(struct lifecycle *l, const struct life_event *ev,
                              struct life_fx *fx)
{
    const bool finding = l->next.state == LIFE_FINDING;

    if (finding && (ev->news == RDZV_NEWS_LOST || ev->news == RDZV_NEWS_EVICTED ||
                    ev->news == RDZV_NEWS_MOVED_ON)) {
        /* The round fell apart before we learnt the workers' address: its rank 0 may
         * never tell it. The next round is what the agent wants. */
        trace(l->trace, TRACE_INFO, "run '%s': %s; joining again", l->run_id,
              ev->text && *ev->text ? ev->text : "a member is gone");
        join(l, fx);
        return;
    }
    if (finding && ev->news == RDZV_NEWS_CLOSED) {
        put(fx, LIFE_DO_DROP);
        due(&l->next, MUSTER_ECLOSED,
            "another node has closed the run before its workers started: "
            "it failed, or was ended; the other nodes' logs tell why");
        return;
    }
    if (ev->news == RDZV_NEWS_WAITING && (finding || l->next.state == LIFE_DUE)) {
        l->awaited = true; /* The agent has no round yet to leave for its sake. */
        return;
    }
    (void)err_set(&l->away, ev->code, "%s", ev->text ? ev->text : "");
    if (ev->news == RDZV_NEWS_BACKEND && ev->again) {
        /* It is tried again and again; a store that comes back in the time that a node
         * may be silent has done nobody harm. */
        l->away_by_ms = ev->now_ms + l->silence_ms;
        return;
    }
    put(fx, LIFE_NOTIFY_NEWS);
    fx->at[fx->count - 1].news = ev->news;
    fx->at[fx->count - 1].err = &l->away;
}

static void lifecycle_on_timer(struct lifecycle *l, const struct life_event *ev,
                               struct life_fx *fx)
{
    if (l->awaited && l->next.state == LIFE_IDLE) {
        l->awaited = false;
        (void)err_set(&l->away, 0, "somebody waits for the next round");
        put(fx, LIFE_NOTIFY_NEWS);
        fx->at[fx->count - 1].news = RDZV_NEWS_WAITING;
        fx->at[fx->count - 1].err = &l->away;
        return;
    }
    if (ev->now_ms >= l->away_by_ms) {
        l->away_by_ms = MONO_NEVER;
        put(fx, LIFE_NOTIFY_NEWS);
        fx->at[fx->count - 1].news = RDZV_NEWS_BACKEND;
        fx->at[fx->count - 1].err = &l->away;
    }
    if (ev->now_ms >= l->linger_at_ms) {
        l->linger_at_ms = MONO_NEVER;
        put(fx, LIFE_DO_COUNT);
    }
}

/* ---- The step ---- */

/* The oldest promise first; the end last. One a step: the agent may ask for the same
 * again while it is told. */
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
        l->awaited = false;
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
        l->away_by_ms = MONO_NEVER; /* Back before it was worth telling. */
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
        (l->awaited && l->next.state == LIFE_IDLE && !l->over))
        return 0;
    return MIN_OF(l->away_by_ms, l->linger_at_ms);
}

bool life_wants_round(const struct lifecycle *l)
{
    return l->next.state == LIFE_WAITS || l->next.state == LIFE_ASKED ||
           l->next.state == LIFE_FINDING;
}
