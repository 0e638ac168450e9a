/* cas_node_sync.c - one turn of the machine: the backend answers, cas_node_plan.c
 * decides what to do about it, and either that is written, or requests are answered and
 * the next read is scheduled. */
#include "base/err.h"

#include <assert.h>

#include "rendezvous/core/cas_node_int.h"
#include "rendezvous/core/state_pickle.h"

#define BACKOFF_MOST_MS 150u
#define SLOT_MOST_MS    4u

/* The least time between two reads. With many nodes, not every node needs to read every
 * change at once. */
uint64_t rdzv_spacing_ms(const struct rdzv *r)
{
    const uint64_t nodes = r->seen.nodes.count;
    const bool placed = rdzv_in(rdzv_state_find(&r->seen, &r->self), RDZV_PLACES);
    const uint64_t pause = r->mode == MODE_MEMBER ? 20 * nodes
                           : nodes <= 8           ? 0
                           : placed ? nodes /* It only waits for the others. */
                                    : nodes / 4;

    return MIN_OF(pause, r->poll_ms);
}

/* How often to read where changes are not reported. torch reads once a second. While a
 * small group forms, reading more often costs little and spares everybody the wait. */
uint64_t rdzv_poll_ms(const struct rdzv *r)
{
    const uint64_t quick = MAX_OF(100u, 25u * (uint64_t)r->seen.nodes.count);

    return r->mode == MODE_JOINING ? MIN_OF(quick, r->poll_ms) : r->poll_ms;
}

/* There is nothing to do for now: decides when to read again, and asks to be told of
 * changes. */
static void wait_for_change(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    const bool beats = rdzv_in(rdzv_state_find(&r->seen, &r->self), RDZV_BEATS);
    uint64_t due = r->can_watch ? MONO_NEVER : now.mono_ms + rdzv_poll_ms(r);
    struct rdzv_effect *e;

    assert(r->busy == BUSY_NOT);
    if (r->mode == MODE_IDLE) {
        r->read_due_ms = rdzv_has_work(r) ? now.mono_ms + r->poll_ms : MONO_NEVER;
        return;
    }
    due = MIN_OF(due, rdzv_next_death(r, &r->seen));
    if (beats && r->entry_is_ours)
        due = MIN_OF(due, MAX_OF(r->beat_due_ms, now.mono_ms));
    if (r->mode == MODE_JOINING && r->seen.deadline_us != WALL_NEVER &&
        r->call_since_ms + r->settings.last_call_ms >= now.mono_ms)
        due = MIN_OF(due, r->call_since_ms + r->settings.last_call_ms + 1);
    if (r->mode == MODE_JOINING && r->in_old_round && r->stay_until_ms > now.mono_ms)
        due = MIN_OF(due, r->stay_until_ms);
    if (r->mode == MODE_JOINING && r->join_by_ms >= now.mono_ms)
        due = MIN_OF(due, r->join_by_ms + 1);
    r->read_due_ms = due;
    if (!r->can_watch)
        return;
    e = rdzv_fx_add(fx, RDZV_FX_WATCH);
    e->present = buf_len(&r->value) > 0;
    e->value = buf_span(&r->value);
}

static void write_now(struct rdzv *r, struct rdzv_plan *p, struct now now,
                      struct rdzv_fx *fx)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_WRITE_STATE);

    assert(p->writes && buf_len(&p->text) > 0 && r->busy == BUSY_NOT);
    r->sent_ms = now.mono_ms;
    fence_unanswered(&r->fence); /* A state that we read shows what came of the last. */
    if (p->seated)
        fence_sent(&r->fence, now.mono_ms);
    r->write_first = false;

    rdzv_plan_fini(&r->sent);
    r->sent = *p;
    *p = (struct rdzv_plan){ 0 };
    r->busy = BUSY_WRITING;
    r->write_taken = false;
    if (r->sent.seated)
        r->beat_us = r->sent.beat_us;
    e->value = buf_span(&r->sent.text);
    e->present = true;
    e->token = buf_span(&r->token);
    e->has_token = r->has_token;
    e->quiet = r->sent.quiet;
}

/* How many other nodes want to write now, as far as the state shows: those that have
 * yet to come to an open round, or to leave one that is over. */
static uint64_t rivals(const struct rdzv *r)
{
    const uint64_t placed = rdzv_count(&r->seen, RDZV_PLACES);
    const uint64_t wanted = (uint64_t)r->settings.min_nodes;

    if (r->mode != MODE_JOINING)
        return 1;
    if (r->seen.complete)
        return placed;
    return wanted > placed ? wanted - placed : 1;
}

/* After a lost write a node pauses for a random time, so that another can win. Of many
 * writers one wins at a time, and each write takes one slot, so we draw the pause from
 * as many slots as there are writers, but at first from a few, since there are usually
 * few writers. If the pause is shorter than a round trip, reading again would only
 * delay us: the answer to the lost write had the state in it. */
static bool back_off(struct rdzv *r, struct now now)
{
    const uint64_t slot = MIN_OF(MAX_OF(r->quickest_write_ms, 1u), SLOT_MOST_MS);
    const uint64_t most = MIN_OF(
        MAX_OF(1ull << MIN_OF(r->losses, 4u), r->losses > 1 ? rivals(r) * slot : 0),
        BACKOFF_MOST_MS);
    const uint64_t asked = r->settings.cas_backoff_ms; /* as the user set it */
    const uint64_t pause =
        r->losses ? rng_below(&r->rng, (asked ? asked : most) + 1) : 0;

    assert(slot > 0 && most > 0 && most <= BACKOFF_MOST_MS);
    if (pause == 0 || r->write_first)
        return false;
    r->read_due_ms = now.mono_ms + pause;
    r->write_first = pause < r->write_took_ms;
    return true;
}

/* The plan was made from r->seen, which is fresh. */
void rdzv_commit(struct rdzv *r, struct rdzv_plan *p, struct now now,
                 struct rdzv_fx *fx)
{
    bool again;

    if (r->mode == MODE_MEMBER && !rdzv_notify(r, now, fx))
        r->mode = MODE_IDLE;
    if (p->writes) {
        if (!back_off(r, now))
            write_now(r, p, now, fx);
        rdzv_plan_fini(p);
        return;
    }
    r->losses = 0;
    r->write_first = false;
    if (p->left_round)
        r->in_old_round = false;
    if (p->closed)
        rdzv_done(r, &r->close, RDZV_EV_CLOSE, 0, "", fx);
    if (r->mode == MODE_JOINING && !r->leave.on)
        rdzv_end_join(r, p, now, fx);
    again = r->mode == MODE_JOINING && r->leave.on;
    if (p->left)
        rdzv_done(r, &r->leave, RDZV_EV_LEAVE, 0, "", fx);
    if (p->seat_released)
        r->release_seat.on = false;
    rdzv_plan_fini(p);
    if (again)
        rdzv_read_now(r, fx); /* The old seat is given up: take a new one. */
    else
        wait_for_change(r, now, fx);
}

static int set_bytes(struct buf *b, struct span to)
{
    if (span_eq(to, buf_span(b)))
        return 0;
    buf_clear(b);
    return buf_append_span(b, to);
}

/* The backend has answered, and the plan says what follows. Cannot fail. */
static void act_on(struct rdzv *r, struct rdzv_plan *plan, struct now now,
                   struct rdzv_fx *fx)
{
    r->read_ms = now.mono_ms;
    r->busy = BUSY_NOT;
    r->failures = 0;
    r->backend_notified = false;
    rdzv_commit(r, plan, now, fx);
}

/* A bit early and at random, so that nodes that came together do not beat together. */
static uint64_t next_beat(struct rdzv *r, uint64_t now_ms)
{
    const uint64_t interval = rdzv_interval_ms(&r->settings);

    return now_ms + interval - rng_below(&r->rng, interval / 8 + 1);
}

/* The store has taken our write. */
static void on_write_taken(struct rdzv *r, struct now now)
{
    const struct rdzv_plan *did = &r->sent;

    r->write_taken = true;
    r->write_unsure = false;
    if (did->seated) {
        r->entry_is_ours = true;
        fence_answered(&r->fence);
        r->beat_due_ms = next_beat(r, now.mono_ms);
    } else {
        /* Whoever comes under our name from now on is another process. */
        r->entry_is_ours = false;
    }
    if (did->left_round)
        r->in_old_round = false;
    if (did->renewed)
        r->join_by_ms = now.mono_ms + r->settings.join_ms;
}

/* If the answer to a write was lost, or its repetition met its own result, our entry
 * shows that the store has taken it. Learning that twice changes nothing. */
static void recognise_own_write(struct rdzv *r, const struct rdzv_state *s,
                                struct now now)
{
    const struct participant *me = rdzv_state_find(s, &r->self);

    if (!r->write_taken && r->sent.seated && rdzv_in(me, RDZV_BEATS) &&
        me->beat_us == r->beat_us)
        on_write_taken(r, now);
}

/* Nothing has changed except for heartbeats, which r->seen already has, so the text
 * need not be decoded again. */
static int on_unchanged(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx)
{
    struct rdzv_plan plan;
    int rc = set_bytes(&r->token, ev->token);

    rdzv_extend_for_outage(r, ev->now.mono_ms);
    recognise_own_write(r, &r->seen, ev->now);
    if (rc == 0)
        rc = rdzv_plan_make(r, &r->seen, ev->now, &plan);
    if (rc < 0)
        return rc;
    act_on(r, &plan, ev->now, fx);
    return 0;
}

struct beats {
    struct rdzv *r;
    struct now now;
};

static void on_beat(void *ctx, struct participant *m, int64_t beat_us)
{
    const struct beats *b = ctx;

    rdzv_beat_seen(b->r, m, beat_us, b->now);
}

/* Takes over a text that differs in heartbeats alone. We do this only once the entry
 * under our name is ours: before that it matters whether that entry's heartbeat changes
 * (name_is_taken in cas_node_plan.c). */
static bool take_beats(struct rdzv *r, const struct rdzv_event *ev)
{
    struct beats b = { r, ev->now };

    if (!r->entry_is_ours ||
        !pickle_only_beats(&r->seen, buf_span(&r->value), ev->value, on_beat, &b))
        return false;
    buf_clear(&r->value);
    const int rc = buf_append_span(&r->value, ev->value);
    assert(rc == 0); /* It is as long as before, so there is room. */
    return rc == 0;
}

/* Takes over what the backend holds now and acts on it. The plan compares it with what
 * was seen before. */
int rdzv_on_state(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx)
{
    const struct span none = { NULL, 0 };
    struct rdzv_state fresh;
    struct rdzv_plan plan;
    struct muster_error why;
    int rc;

    if (ev->present && (span_eq(ev->value, buf_span(&r->value)) || take_beats(r, ev)))
        return on_unchanged(r, ev, fx);
    rdzv_state_init(&fresh);
    rc = ev->present ? pickle_read_text(ev->value, &fresh, &why) : 0;
    if (rc == MUSTER_ESTATE) {
        struct rdzv_event failed = {
            .kind = RDZV_EV_FAILED, .now = ev->now, .code = rc, .text = why.text
        };

        return rdzv_step(r, &failed, fx);
    }
    if (rc == 0) {
        rdzv_observe(r, &fresh, ev->now);
        recognise_own_write(r, &fresh, ev->now);
        rc = rdzv_plan_make(r, &fresh, ev->now, &plan);
    }
    rdzv_state_fini(&r->seen);
    r->seen = fresh;
    r->has_token = ev->present;
    if (rc < 0)
        return rc;
    if (set_bytes(&r->value, ev->present ? ev->value : none) < 0 ||
        set_bytes(&r->token, ev->present ? ev->token : none) < 0) {
        rdzv_plan_fini(&plan);
        return MUSTER_ENOMEM;
    }
    act_on(r, &plan, ev->now, fx);
    return 0;
}

/* Our write has won: the store holds what we sent. */
static int on_won(struct rdzv *r, const struct rdzv_event *ev)
{
    struct rdzv_plan *did = &r->sent;

    assert(did->writes && buf_len(&did->text) > 0);
    rdzv_observe(r, &did->next, ev->now);
    if (did->next.complete && !(r->seen.complete && r->seen.round == did->next.round))
        r->completed = did->next.round;
    rdzv_state_fini(&r->seen);
    r->seen = did->next;
    did->writes = false;
    buf_fini(&r->value);
    r->value = did->text;
    buf_init(&did->text, SIZE_MAX);
    r->has_token = true;
    r->read_ms = ev->now.mono_ms;
    r->busy = BUSY_NOT;
    r->losses = r->failures = 0;
    r->backend_notified = false;
    on_write_taken(r, ev->now);
    return set_bytes(&r->token, ev->token);
}

int rdzv_on_wrote(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx)
{
    struct rdzv_plan plan;
    int rc;

    r->write_took_ms = ev->now.mono_ms - r->sent_ms;
    r->quickest_write_ms = r->quickest_write_ms
                               ? MIN_OF(r->quickest_write_ms, r->write_took_ms)
                               : r->write_took_ms;
    if (!ev->won) {
        log_line(
            r->log, LOG_DEBUG, AT_RENDEZVOUS,
            "The node '%s' has a stale state and failed to sync its local changes with "
            "other nodes in the rendezvous '%s'.",
            r->self_text, r->run_id);
        r->losses++;
        return rdzv_on_state(r, ev, fx);
    }
    if (r->sent.writes) {
        rc = on_won(r, ev);
        if (rc < 0)
            return rc;
    }
    rc = rdzv_plan_make(r, &r->seen, ev->now, &plan);
    if (rc < 0)
        return rc;
    rdzv_commit(r, &plan, ev->now, fx);
    return 0;
}

/* The backend did not answer, or its answer was not a state. */
void rdzv_on_failed(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx)
{
    const uint64_t pause = 100ull << MIN_OF(r->failures, 4u);
    const char *text = ev->text ? ev->text : muster_code_text(ev->code);
    const int code = ev->code ? ev->code : MUSTER_ECONN;
    struct rdzv_effect *e;

    assert(text);
    r->write_unsure |= r->busy == BUSY_WRITING && r->sent.seated;
    r->busy = BUSY_NOT;
    r->failures++;
    log_line(r->log, LOG_WARN, AT_RENDEZVOUS,
             "The node '%s' has failed to sync with the rendezvous '%s': %s",
             r->self_text, r->run_id, text);
    (void)err_set(&r->why, code, "%s", text);
    if (r->mode == MODE_MEMBER && !r->backend_notified) {
        r->backend_notified = true;
        e = rdzv_fx_add(fx, RDZV_FX_NEWS);
        e->news = RDZV_NEWS_BACKEND;
        e->code = code;
        e->text = r->why.text;
    }
    if (!ev->again) {
        rdzv_done(r, &r->leave, RDZV_EV_LEAVE, code, r->why.text, fx);
        rdzv_done(r, &r->close, RDZV_EV_CLOSE, code, r->why.text, fx);
        r->release_seat.on = false;
        if (r->mode == MODE_JOINING) {
            rdzv_refuse(r, ev->now, code, fx);
            r->release_seat.on = false;
        }
    }
    r->read_due_ms =
        rdzv_has_work(r) ? ev->now.mono_ms + MIN_OF(pause, 1000u) : MONO_NEVER;
}
