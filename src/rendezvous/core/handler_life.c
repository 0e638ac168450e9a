/* handler_life.c - see handler_life.h. From top to bottom: effects, joining, the
 * agent's requests, the implementation's answers, what happens by itself, and the step.
 */
#include "rendezvous/core/handler_life.h"

#include <assert.h>

#include "base/err.h"

#define MAX_RENAMES    3u
#define LINGER_MS      5000u /* how long a host waits for others to read "closed" */
#define LINGER_TICK_MS 20u

static void life_do(struct life_fx *fx, enum life_effect_kind kind)
{
    assert(fx->count < LIFE_FX_MAX);
    fx->at[fx->count++] = (struct life_effect){ .kind = kind };
}

static void life_set_due(struct life_request *r, int code, const char *text)
{
    assert(r->state != LIFE_IDLE);
    r->state = LIFE_DUE;
    if (code < 0)
        (void)err_set(&r->err, code, "%s", text ? text : "");
    else
        r->err = (struct muster_error){ 0 };
}

static bool life_is_asked(const struct life_request *r)
{
    return r->state != LIFE_IDLE && r->state != LIFE_DUE;
}

/* ---- Joining ---- */

static void life_open_once(struct handler_life *l, struct life_fx *fx)
{
    if (l->stage != LIFE_NEW)
        return;
    l->stage = LIFE_OPENING;
    life_do(fx, LIFE_DO_OPEN);
}

static void life_join(struct handler_life *l, struct life_fx *fx)
{
    assert(l->stage == LIFE_READY && l->next.state != LIFE_DUE);
    l->next.state = LIFE_ASKED;
    l->newcomer_waits = false;
    life_do(fx, LIFE_DO_DROP);
    life_do(fx, LIFE_DO_JOIN);
}

static void life_canceled(struct handler_life *l)
{
    life_set_due(&l->next, MUSTER_ECANCELED, "");
    (void)err_set(&l->next.err, MUSTER_ECANCELED, "joining the run '%s' was canceled",
                  l->run_id);
}

/* STOP is answered last, so every request that has no answer gets one first. */
static void life_stop_due(struct handler_life *l, int code, const char *text)
{
    life_set_due(&l->stop, code, text);
    if (life_is_asked(&l->next))
        life_canceled(l);
    if (life_is_asked(&l->close))
        life_set_due(&l->close, code, text);
    if (life_is_asked(&l->leave))
        life_set_due(&l->leave, 0, NULL);
}

/* ---- The agent's requests ---- */

static void life_on_next(struct handler_life *l, struct life_fx *fx)
{
    assert(l->next.state == LIFE_IDLE && !l->over);
    l->next.state = LIFE_WAITS;
    if (l->stage == LIFE_READY)
        life_join(l, fx);
    else if (l->stage == LIFE_BROKEN)
        life_set_due(&l->next, l->broken.code, l->broken.text);
    else
        life_open_once(l, fx);
}

/* Returns true if the implementation was asked to leave. */
static bool life_cancel(struct handler_life *l, struct life_fx *fx)
{
    const enum life_state was = l->next.state;

    if (was == LIFE_IDLE || was == LIFE_CANCELING)
        return false;
    if (was == LIFE_ASKED) {
        l->next.state = LIFE_CANCELING; /* REFUSED says when it is over. */
    } else {
        life_canceled(l);
        life_do(fx, LIFE_DO_DROP);
    }
    if (l->stage != LIFE_READY)
        return false;
    life_do(fx, LIFE_DO_LEAVE);
    return true;
}

static void life_on_close(struct handler_life *l, struct life_fx *fx)
{
    assert(l->close.state == LIFE_IDLE && !l->over);
    l->close.state = LIFE_WAITS;
    if (l->stage == LIFE_BROKEN) {
        life_set_due(&l->close, l->broken.code, l->broken.text);
    } else if (l->stage == LIFE_READY) {
        l->close.state = LIFE_ASKED;
        if (!(life_is_asked(&l->stop) &&
              l->stop_closes)) /* Else a CLOSE is already on its way. */
            life_do(fx, LIFE_DO_CLOSE);
    } else {
        life_open_once(l, fx);
    }
}

static void life_on_leave(struct handler_life *l, struct life_fx *fx)
{
    assert(l->leave.state == LIFE_IDLE && !l->over);
    l->leave.state = LIFE_ASKED;
    if (!life_cancel(l, fx) && l->stage == LIFE_READY)
        life_do(fx, LIFE_DO_LEAVE);
    if (l->stage != LIFE_READY) /* There is nothing to leave yet. */
        life_set_due(&l->leave, 0, NULL);
}

static void life_on_stop(struct handler_life *l, const struct life_event *ev,
                         struct life_fx *fx)
{
    bool leaving;

    assert(l->stop.state == LIFE_IDLE && !l->over);
    leaving = life_cancel(l, fx);
    l->stop.state = LIFE_ASKED;
    l->stop_closes = ev->closes;
    if (l->stage == LIFE_BROKEN && ev->closes) {
        life_stop_due(l, l->broken.code, l->broken.text);
    } else if ((ev->closes && ev->over) || (l->stage != LIFE_READY && !ev->closes)) {
        life_stop_due(l, 0, NULL);
    } else if (l->stage != LIFE_READY) {
        l->stop.state = LIFE_WAITS;
        life_open_once(l, fx);
    } else if (!ev->closes) {
        if (!leaving)
            life_do(fx, LIFE_DO_LEAVE);
    } else if (l->close.state != LIFE_ASKED) {
        life_do(fx, LIFE_DO_CLOSE);
    }
}

/* ---- The implementation's answers ---- */

static void life_notify_news(struct handler_life *l, enum rdzv_news news,
                             struct life_fx *fx);

/* Opening has failed, or memory has run out: from now on this is the answer to every
 * request. An agent that waits for none of them is told by news. */
static void life_on_failed(struct handler_life *l, const struct life_event *ev,
                           struct life_fx *fx)
{
    const bool is_news = l->stage == LIFE_READY && l->next.state == LIFE_IDLE &&
                         l->stop.state == LIFE_IDLE;

    if (l->stage == LIFE_BROKEN)
        return;
    l->stage = LIFE_BROKEN;
    l->ended = false;
    l->away_by_ms = l->linger_at_ms = MONO_NEVER;
    (void)err_set(&l->broken, ev->code, "%s", ev->text);
    if (life_is_asked(&l->next))
        life_set_due(&l->next, ev->code, ev->text);
    if (life_is_asked(&l->close))
        life_set_due(&l->close, ev->code, ev->text);
    if (life_is_asked(&l->leave))
        life_set_due(&l->leave, 0, NULL);
    if (life_is_asked(&l->stop))
        life_stop_due(l, ev->code, ev->text);
    if (!is_news)
        return;
    l->news_err = l->broken;
    life_notify_news(l, RDZV_NEWS_BACKEND, fx);
}

static void life_on_opened(struct handler_life *l, const struct life_event *ev,
                           struct life_fx *fx)
{
    assert(l->stage == LIFE_OPENING);
    if (ev->code < 0) {
        life_on_failed(l, ev, fx);
        return;
    }
    l->stage = LIFE_READY;
    if (l->close.state == LIFE_WAITS || l->stop.state == LIFE_WAITS)
        life_do(fx, LIFE_DO_CLOSE);
    if (l->close.state == LIFE_WAITS)
        l->close.state = LIFE_ASKED;
    if (l->stop.state == LIFE_WAITS)
        l->stop.state = LIFE_ASKED;
    if (l->next.state == LIFE_WAITS)
        life_join(l, fx);
}

static void life_on_joined(struct handler_life *l, struct life_fx *fx)
{
    if (l->next.state == LIFE_CANCELING) {
        life_canceled(l); /* The LEAVE that gives up this seat is on its way. */
    } else if (l->next.state == LIFE_ASKED) {
        l->next.state = LIFE_FINDING;
        life_do(fx, LIFE_DO_FIND);
    }
}

/* EEXIST means that another process beats under our name: two containers with the same
 * host name and pid, or our own predecessor. */
static void life_on_refused(struct handler_life *l, const struct life_event *ev,
                            struct life_fx *fx)
{
    assert(ev->code < 0);
    if (l->next.state == LIFE_CANCELING) {
        life_canceled(l);
    } else if (l->next.state == LIFE_ASKED && ev->code == MUSTER_EEXIST &&
               l->renames < MAX_RENAMES) {
        l->renames++;
        life_do(fx, LIFE_DO_RENAME);
    } else if (l->next.state == LIFE_ASKED) {
        life_set_due(&l->next, ev->code, ev->text);
    }
}

static void life_on_address(struct handler_life *l, const struct life_event *ev,
                            struct life_fx *fx)
{
    if (l->next.state != LIFE_FINDING)
        return;
    if (ev->kind == LIFE_ADDRESS) {
        life_set_due(&l->next, ev->code, ev->text);
        return;
    }
    log_line(l->log, LOG_WARN, AT_RENDEZVOUS,
             "run '%s': the store lost the workers' address; joining again", l->run_id);
    life_join(l, fx);
}

/* The store ends with its host, and a node that has not read "closed" by then would
 * take the end of the run for a failure. So a host waits for the readers of its
 * store. */
static void life_on_done(struct handler_life *l, const struct life_event *ev,
                         struct life_fx *fx)
{
    const bool closed = ev->kind == LIFE_CLOSED;
    struct life_request *r = closed ? &l->close : &l->leave;

    if (r->state == LIFE_ASKED)
        life_set_due(r, ev->code, ev->text);
    if (l->stop.state != LIFE_ASKED || l->stop_closes != closed || l->ended)
        return;
    if (closed && ev->code == 0 && l->lingers) {
        l->ended = true;
        l->linger_at_ms = ev->now_ms;
        l->linger_by_ms = ev->now_ms + LINGER_MS;
        life_do(fx, LIFE_DO_DROP);
        life_do(fx, LIFE_DO_RETIRE);
    } else {
        life_stop_due(l, ev->code, ev->text);
    }
}

static void life_on_others(struct handler_life *l, const struct life_event *ev)
{
    const uint64_t waited = ev->now_ms + LINGER_MS - l->linger_by_ms;

    assert(l->ended && l->stop.state == LIFE_ASKED);
    /* The first ticks are short, since mostly the only reader was ourselves, and we
     * have just closed. */
    if (ev->others > 0 && ev->now_ms < l->linger_by_ms)
        l->linger_at_ms = ev->now_ms + MIN_OF(1 + waited, LINGER_TICK_MS);
    else
        life_stop_due(l, 0, NULL);
}

/* ---- What happens by itself ---- */

static void life_notify_news(struct handler_life *l, enum rdzv_news news,
                             struct life_fx *fx)
{
    life_do(fx, LIFE_NOTIFY_NEWS);
    fx->at[fx->count - 1].news = news;
    fx->at[fx->count - 1].err = &l->news_err;
}

static void life_on_news(struct handler_life *l, const struct life_event *ev,
                         struct life_fx *fx)
{
    const bool finding = l->next.state == LIFE_FINDING;

    if (finding && (ev->news == RDZV_NEWS_LOST || ev->news == RDZV_NEWS_EVICTED ||
                    ev->news == RDZV_NEWS_MOVED_ON || ev->news == RDZV_NEWS_CUT_OFF)) {
        /* The round fell apart, or goes on without us, before we learnt the workers'
         * address. The agent wants a round, so join the next one. */
        log_line(l->log, LOG_INFO, AT_RENDEZVOUS, "run '%s': %s; joining again",
                 l->run_id, ev->text && *ev->text ? ev->text : "a member is gone");
        life_join(l, fx);
        return;
    }
    if (finding && ev->news == RDZV_NEWS_CLOSED) {
        life_do(fx, LIFE_DO_DROP);
        life_set_due(&l->next, MUSTER_ECLOSED,
                     "another node closed the run before its workers started: "
                     "it failed, or was ended; the other nodes' logs tell why");
        return;
    }
    if (ev->news == RDZV_NEWS_WAITING && (finding || l->next.state == LIFE_DUE)) {
        l->newcomer_waits =
            true; /* The agent has no round yet that it could leave for it. */
        return;
    }
    if (ev->news == RDZV_NEWS_BACKEND && ev->again) {
        /* The implementation keeps trying. A store that comes back within the time that
         * a node may be silent has done no harm. */
        (void)err_set(&l->away_err, ev->code, "%s", ev->text ? ev->text : "");
        l->away_by_ms = ev->now_ms + l->silence_ms;
        return;
    }
    (void)err_set(&l->news_err, ev->code, "%s", ev->text ? ev->text : "");
    life_notify_news(l, ev->news, fx);
}

static void life_on_timer(struct handler_life *l, const struct life_event *ev,
                          struct life_fx *fx)
{
    if (l->newcomer_waits && l->next.state == LIFE_IDLE) {
        l->newcomer_waits = false;
        (void)err_set(&l->news_err, 0, "a node waits for the next round");
        life_notify_news(l, RDZV_NEWS_WAITING, fx);
        return;
    }
    if (ev->now_ms >= l->away_by_ms) {
        l->away_by_ms = MONO_NEVER;
        l->news_err = l->away_err;
        life_notify_news(l, RDZV_NEWS_BACKEND, fx);
    }
    if (ev->now_ms >= l->linger_at_ms) {
        l->linger_at_ms = MONO_NEVER;
        life_do(fx, LIFE_DO_COUNT);
    }
}

/* ---- The step ---- */

/* NEXT is told first and STOP last. One a step: the agent may ask for the same again
 * while it is told. */
static struct life_request *life_first_due(struct handler_life *l,
                                           enum life_effect_kind *kind)
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

static void life_notify_one(struct handler_life *l, struct life_fx *fx)
{
    enum life_effect_kind kind;
    struct life_request *r = life_first_due(l, &kind);

    if (!r)
        return;
    r->state = LIFE_IDLE;
    life_do(fx, kind);
    fx->at[fx->count - 1].err = &r->err;
    if (kind == LIFE_NOTIFY_NEXT && r->err.code)
        l->newcomer_waits = false;
    if (kind != LIFE_NOTIFY_STOP)
        return;
    l->over = true;
    l->away_by_ms = l->linger_at_ms = MONO_NEVER;
}

static void life_take(struct handler_life *l, const struct life_event *ev,
                      struct life_fx *fx)
{
    switch (ev->kind) {
    case LIFE_NEXT:
        life_on_next(l, fx);
        return;
    case LIFE_CANCEL:
        (void)life_cancel(l, fx);
        return;
    case LIFE_CLOSE:
        life_on_close(l, fx);
        return;
    case LIFE_LEAVE:
        life_on_leave(l, fx);
        return;
    case LIFE_STOP:
        life_on_stop(l, ev, fx);
        return;
    case LIFE_OPENED:
        life_on_opened(l, ev, fx);
        return;
    case LIFE_JOINED:
        life_on_joined(l, fx);
        return;
    case LIFE_REFUSED:
        life_on_refused(l, ev, fx);
        return;
    case LIFE_ADDRESS:
    case LIFE_NO_ADDRESS:
        life_on_address(l, ev, fx);
        return;
    case LIFE_LEFT:
    case LIFE_CLOSED:
        life_on_done(l, ev, fx);
        return;
    case LIFE_OTHERS:
        life_on_others(l, ev);
        return;
    case LIFE_FAILED:
        life_on_failed(l, ev, fx);
        return;
    case LIFE_NEWS:
        life_on_news(l, ev, fx);
        return;
    case LIFE_HEARD:
        l->away_by_ms = MONO_NEVER; /* It is back before it became news. */
        return;
    case LIFE_TIMER:
        life_on_timer(l, ev, fx);
        return;
    }
}

void life_step(struct handler_life *l, const struct life_event *ev, struct life_fx *fx)
{
    assert(!l->over || ev->kind == LIFE_CANCEL || ev->kind > LIFE_STOP);
    fx->count = 0;
    if (!l->over)
        life_take(l, ev, fx);
    if (!ev->inside)
        life_notify_one(l, fx);
    assert(l->stage == LIFE_READY || l->next.state != LIFE_ASKED);
    assert(l->stage == LIFE_READY || l->next.state != LIFE_FINDING);
    assert(!l->ended || l->stage == LIFE_READY);
    assert(!l->over || !life_is_asked(&l->stop));
}

void life_init(struct handler_life *l, const char *run_id, const struct log *log,
               uint64_t silence_ms, bool lingers)
{
    *l = (struct handler_life){ .run_id = run_id,
                                .log = log,
                                .silence_ms = silence_ms,
                                .lingers = lingers,
                                .away_by_ms = MONO_NEVER,
                                .linger_at_ms = MONO_NEVER };
}

uint64_t life_deadline(const struct handler_life *l)
{
    if (l->next.state == LIFE_DUE || l->close.state == LIFE_DUE ||
        l->leave.state == LIFE_DUE || l->stop.state == LIFE_DUE ||
        (l->newcomer_waits && l->next.state == LIFE_IDLE && !l->over))
        return 0;
    return MIN_OF(l->away_by_ms, l->linger_at_ms);
}

bool life_wants_round(const struct handler_life *l)
{
    return l->next.state == LIFE_WAITS || l->next.state == LIFE_ASKED ||
           l->next.state == LIFE_FINDING;
}
