/* rdzv_driver.c - the dynamic rendezvous at work: the core (rdzv/rdzv.c) decides, a
 * backend (rdzv_backend.h) holds the state, and this goes between them and the agent.
 *
 * Top to bottom: callbacks, feed() (the only caller of rdzv_step), perform() (the only
 * switch over its effects). Rounds come to the agent by rdzv_round.c, all else by
 * rdzv_tell.c. What the agent calls is in rdzv_face.c; it may call back from inside a
 * callback: such wishes wait until the step that told it is through. */
#include <inttypes.h>

#include "io/clock.h"
#include "io/rdzv_driver_int.h"

#define MAX_RENAMES 3u

static void feed(struct dynamic *d, struct rdzv_event *ev);

/* ---- Callbacks ---- */

static void on_state(void *ctx, const struct rdzv_event *ev)
{
    struct dynamic *d = ctx;
    struct rdzv_event copy = *ev;

    if (d->stopped)
        return;
    /* Whether it can tell of changes shows when it is asked to: it may by now. */
    if (ev->kind != RDZV_EV_FAILED) {
        rdzv_can_watch(d->core, d->backend->ops->watch != NULL);
        (void)uv_timer_stop(&d->away); /* Back before it was worth telling. */
    }
    feed(d, &copy);
}

static void on_changed(void *ctx)
{
    struct dynamic *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_CHANGED };

    if (!d->stopped)
        feed(d, &ev);
}

void dynamic_peer_gone(void *ctx, struct span node)
{
    struct dynamic *d = ctx;
    struct rdzv_event ev = { .kind = RDZV_EV_GONE, .value = node };

    if (!d->stopped && d->core)
        feed(d, &ev);
}

static void on_timer(uv_timer_t *t)
{
    struct dynamic *d = t->data;
    struct rdzv_event ev = { .kind = RDZV_EV_TIMER };

    if (!d->stopped)
        feed(d, &ev);
}

/* ---- Feed and perform ---- */

static void perform(struct dynamic *d, const struct rdzv_effect *e)
{
    const struct rdzv_backend_ops *ops = d->backend->ops;

    switch (e->kind) {
    case RDZV_FX_READ_STATE:
        ops->get(d->backend, UINT64_MAX, on_state, d);
        return;
    case RDZV_FX_WRITE_STATE:
        ops->set(d->backend, e->value, e->has_token, e->token, e->quiet, UINT64_MAX,
                 on_state, d);
        return;
    case RDZV_FX_WATCH:
        rdzv_can_watch(d->core, ops->watch && ops->watch(d->backend, e->present,
                                                         e->value, on_changed, d));
        return;
    case RDZV_FX_JOINED:
        dynamic_joined(d, e);
        return;
    case RDZV_FX_REFUSED:
        d->collided =
            e->code == MUSTER_EEXIST && d->renamed < MAX_RENAMES && !d->canceling;
        if (!d->collided)
            dynamic_refused(d, e);
        return;
    case RDZV_FX_DONE:
        dynamic_done(d, e);
        return;
    case RDZV_FX_NEWS:
        dynamic_news(d, e);
        return;
    }
}

static void arm(struct dynamic *d)
{
    clock_arm(&d->timer, on_timer,
              d->core && !d->stopped ? rdzv_deadline(d->core) : MONO_NEVER);
}

/* Out of memory in the middle of a step leaves the core waiting for its answer: give it
 * a failed one, and if even that does not go, end the wish. */
static void step_failed(struct dynamic *d, const struct rdzv_event *ev,
                        struct rdzv_fx *fx)
{
    struct rdzv_event failed = { .kind = RDZV_EV_FAILED,
                                 .now = ev->now,
                                 .code = MUSTER_ENOMEM,
                                 .text = "out of memory",
                                 .again = true };

    if ((ev->kind == RDZV_EV_STATE || ev->kind == RDZV_EV_WROTE) &&
        rdzv_step(d->core, &failed, fx) == 0)
        return;
    fx->count = 0;
    if (ev->kind == RDZV_EV_JOIN)
        dynamic_next_failed(d, MUSTER_ENOMEM, "out of memory");
}

static void step(struct dynamic *d, struct rdzv_event *ev)
{
    struct rdzv_fx fx;

    ev->now = clock_now();
    if (rdzv_step(d->core, ev, &fx) < 0)
        step_failed(d, ev, &fx);
    for (size_t i = 0; i < fx.count; i++)
        perform(d, &fx.at[i]);
}

/* Somebody else's heartbeats come under our name: two containers with one host name and
 * one process id, or our own former self. */
static void rename_self(struct dynamic *d)
{
    struct muster_error err;
    const int64_t old = d->local_id;

    d->collided = false;
    if (d->canceling) {
        dynamic_canceled(d);
        return;
    }
    d->renamed++;
    dynamic_rename(d);
    if (dynamic_core(d, &err) < 0) {
        dynamic_next_failed(d, err.code, err.text);
        return;
    }
    trace(d->trace, TRACE_WARN,
          "another node of the rendezvous '%s' is alive as '%s_%" PRId64 "_%" PRId64
          "'; joining as '%s_%" PRId64 "_%" PRId64 "' (--local-addr tells nodes apart)",
          d->params.run_id, d->addr, d->pid, old, d->addr, d->pid, d->local_id);
    dynamic_present(d);
    d->wishes |= 1u << RDZV_EV_JOIN;
}

static void feed(struct dynamic *d, struct rdzv_event *ev)
{
    static const enum rdzv_event_kind order[] = { RDZV_EV_LEAVE, RDZV_EV_CLOSE,
                                                  RDZV_EV_JOIN };

    assert(!d->in_feed);
    d->in_feed = true;
    step(d, ev);
    if (d->collided && !d->destroying)
        rename_self(d);
    for (size_t i = 0; i < ARRAY_LEN(order) && !d->destroying; i++) {
        struct rdzv_event w = { .kind = order[i] };

        if (d->unjoined) {
            d->unjoined = false;
            dynamic_canceled(d);
        }
        if (!(d->wishes & 1u << order[i]))
            continue;
        d->wishes &= ~(1u << order[i]);
        step(d, &w);
        i = SIZE_MAX; /* That may have brought others. */
    }
    d->in_feed = false;
    arm(d);
}

void dynamic_wish(struct dynamic *d, enum rdzv_event_kind kind)
{
    struct rdzv_event ev = { .kind = kind };

    if (d->guest) {
        rdzv_guest_wish(d->guest, kind);
    } else if (d->in_feed) {
        if (kind == RDZV_EV_LEAVE && d->wishes & 1u << RDZV_EV_JOIN) {
            d->wishes &= ~(1u << RDZV_EV_JOIN); /* As rdzv_guest_wish() does. */
            d->unjoined = true;
        }
        d->wishes |= 1u << kind;
    } else {
        feed(d, &ev);
    }
}

void dynamic_told(void *ctx, const struct rdzv_effect *told)
{
    struct dynamic *d = ctx;

    if (d->stopped)
        return;
    perform(d, told);
    if (!d->collided || d->destroying)
        return;
    rename_self(d);
    d->wishes = 0;
    if (d->guest && dynamic_be_guest(d))
        rdzv_guest_wish(d->guest, RDZV_EV_JOIN);
}
