/* cas_node.c - see cas_node.h. One node's loop on a shared state, in three files:
 *
 *     cas_node.c       events in, requests of the agent, deadlines, how requests end
 *     cas_node_sync.c  an answer of the backend: take it over, commit a plan, or pause
 *     cas_node_plan.c  what to do about a fresh state, and what the agent is told of it
 *
 *     JOIN, LEAVE, CLOSE, TIMER, CHANGED --> READ_STATE --> STATE --> plan
 *       plan has nothing to write: answer requests, WATCH, or read again when due
 *       plan writes: WRITE_STATE --> WROTE won: plan again on what we wrote
 *                                    WROTE lost: the answer has the state; pause, plan
 *
 * Rules, each with its reason:
 *   - one request to the backend at a time, so that an answer can only mean that
 *     one;
 *   - all actions of a plan are one write: leaving a round and queueing for the next
 *     must not be seen apart, and half as many writes compete;
 *   - a write whose answer was lost may have happened: we read, and know our own
 *     entry by its heartbeat, which nobody else writes;
 *   - after a lost write a random pause, drawn from as many slots as there are
 *     rivals, or N nodes would take N^2 writes to sit down;
 *   - a peer is dead when its entry has not changed for the bound by our own
 *     monotonic clock, since wall clocks of two machines cannot be compared;
 *   - a member that has not been heard for too long stops by itself (fence.h) before
 *     the others begin without it;
 *   - memory that runs out is final: every later step says so. */
#include "rendezvous/core/cas_node.h"
#include "base/err.h"
#include "base/mem.h"
#include "rendezvous/core/cas_node_int.h"
#include <assert.h>

int rdzv_new(const struct rdzv_config *cfg, struct rdzv **out, struct muster_error *err)
{
    struct rdzv *r;

    if (!cfg->run_id || !cfg->run_id[0])
        return err_set(err, MUSTER_EINVAL, "The run id must be a non-empty string.");
    if (cfg->self.addr.n > RDZV_MAX_ADDR)
        return err_set(err, MUSTER_EINVAL,
                       "the node's address has %zu bytes, which is too many",
                       cfg->self.addr.n);
    if (rdzv_settings_check(&cfg->settings, err) < 0)
        return MUSTER_EINVAL;
    r = mem_calloc(1, sizeof *r);
    if (!r)
        return err_nomem(err);
    r->run_id = mem_strdup(cfg->run_id);
    r->addr = mem_strndup((const char *)cfg->self.addr.p, cfg->self.addr.n);
    if (!r->run_id || !r->addr) {
        rdzv_free(r);
        return err_nomem(err);
    }
    r->self = cfg->self;
    r->self.addr.p = (const uint8_t *)r->addr;
    (void)rdzv_node_text(&r->self, r->self_text, sizeof r->self_text);
    r->settings = cfg->settings;
    r->poll_ms = cfg->poll_ms ? cfg->poll_ms : 1000;
    r->log = cfg->log;
    rdzv_state_init(&r->seen);
    r->completed = -1;
    buf_init(&r->value, SIZE_MAX);
    buf_init(&r->token, SIZE_MAX);
    r->call_us = WALL_NEVER;
    r->read_due_ms = MONO_NEVER;
    rng_init(&r->rng, cfg->seed);
    fence_init_beats(&r->fence, rdzv_interval_ms(&r->settings),
                     rdzv_dead_after_ms(&r->settings));
    *out = r;
    return 0;
}

void rdzv_free(struct rdzv *r)
{
    if (!r)
        return;
    rdzv_plan_fini(&r->sent);
    rdzv_roster_fini(&r->roster);
    rdzv_state_fini(&r->seen);
    buf_fini(&r->value);
    buf_fini(&r->token);
    mem_free(r->run_id);
    mem_free(r->addr);
    mem_free(r);
}

struct rdzv_effect *rdzv_fx_add(struct rdzv_fx *fx, enum rdzv_effect_kind kind)
{
    struct rdzv_effect *e = &fx->at[fx->count++];

    assert(fx->count <= RDZV_FX_MAX);
    *e = (struct rdzv_effect){ .kind = kind };
    return e;
}

void rdzv_read_now(struct rdzv *r, struct rdzv_fx *fx)
{
    if (r->busy != BUSY_NOT)
        return;
    r->write_first = false;
    r->busy = BUSY_READING;
    (void)rdzv_fx_add(fx, RDZV_FX_READ_STATE);
}

bool rdzv_has_work(const struct rdzv *r)
{
    return r->mode != MODE_IDLE || r->leave.on || r->close.on || r->release_seat.on;
}

static void cas_node_on_join(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    assert(r->mode != MODE_JOINING);
    r->mode = MODE_JOINING;
    r->in_old_round = true;
    r->join_by_ms = now.mono_ms + r->settings.join_ms;
    r->release_seat.on = false;
    r->losses = 0;
    r->completed = -1;
    if (!r->entry_is_ours) { /* Judge the entry under our name afresh. */
        rdzv_state_fini(&r->seen);
        buf_clear(&r->value);
    }
    rdzv_read_now(r, fx);
}

static void cas_node_on_leave(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    if (r->mode == MODE_JOINING) {
        (void)err_set(&r->why, MUSTER_ECANCELED, "the join was given up");
        rdzv_refuse(r, now, MUSTER_ECANCELED, fx);
    }
    r->mode = MODE_IDLE;
    r->release_seat.on = false;
    r->leave = (struct rdzv_request){ true, now.mono_ms + r->settings.close_ms };
    if (r->busy == BUSY_NOT && !r->entry_is_ours && r->beat_us == 0)
        rdzv_done(r, &r->leave, RDZV_EV_LEAVE, 0, "", fx); /* We were never seated. */
    else
        rdzv_read_now(r, fx);
}

static void cas_node_on_close(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    r->close = (struct rdzv_request){ true, now.mono_ms + r->settings.close_ms };
    rdzv_read_now(r, fx);
}

static bool is_spare(const struct rdzv *r)
{
    return r->entry_is_ours &&
           rdzv_in(rdzv_state_find(&r->seen, &r->self), RDZV_SPARES);
}

/* The pause after a lost write is over: plan again and write without reading first. */
static int write_again(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    struct rdzv_plan plan;
    const int rc = rdzv_plan_make(r, &r->seen, now, &plan);

    if (rc == 0)
        rdzv_commit(r, &plan, now, fx);
    return rc;
}

static void join_timed_out(struct rdzv *r, struct now now, struct rdzv_fx *fx);

/* The others may be about to begin without us. */
static void judge_self(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    const bool was_absent = r->fence.asked;

    if (now.mono_ms < rdzv_fence_due(r) || !fence_passed(&r->fence, now.mono_ms))
        return;
    rdzv_notify_cut_off(r, was_absent, fx);
    if (was_absent)
        r->mode = MODE_IDLE;
}

static int cas_node_on_timer(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    static const char late[] = "the store did not answer in time";

    if (r->leave.on && now.mono_ms > r->leave.by_ms)
        rdzv_done(r, &r->leave, RDZV_EV_LEAVE, MUSTER_ETIMEDOUT, late, fx);
    if (r->close.on && now.mono_ms > r->close.by_ms)
        rdzv_done(r, &r->close, RDZV_EV_CLOSE, MUSTER_ETIMEDOUT, late, fx);
    if (r->release_seat.on && now.mono_ms > r->release_seat.by_ms)
        r->release_seat.on = false;
    if (r->mode == MODE_JOINING && now.mono_ms > r->join_by_ms + RDZV_ROLLBACK_MS &&
        !is_spare(r))
        join_timed_out(r, now, fx);
    if (r->mode == MODE_MEMBER)
        judge_self(r, now, fx);
    if (!rdzv_has_work(r)) {
        r->read_due_ms = MONO_NEVER;
    } else if (now.mono_ms >= r->read_due_ms && r->busy == BUSY_NOT) {
        if (r->write_first)
            return write_again(r, now, fx);
        rdzv_read_now(r, fx);
    }
    return 0;
}

static void cas_node_on_changed(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    const uint64_t due = r->read_ms + rdzv_spacing_ms(r);

    if (r->mode == MODE_IDLE || r->busy != BUSY_NOT || r->losses)
        return;
    if (now.mono_ms >= due)
        rdzv_read_now(r, fx);
    else
        r->read_due_ms = MIN_OF(r->read_due_ms, due);
}

/* The backend says that the node has ended, so we treat it as one that has been silent
 * for too long. It may have written a heartbeat before its end that we have not read
 * yet, so the first change from now on does not bring it back; the second one does. */
static void cas_node_on_gone(struct rdzv *r, const struct rdzv_event *ev,
                             struct rdzv_fx *fx)
{
    char text[sizeof r->self_text];

    for (struct participant *m = rdzv_first(&r->seen, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        if (rdzv_node_cmp(&m->node, &r->self) == 0 ||
            !span_eq(span_str(rdzv_node_text(&m->node, text, sizeof text)), ev->value))
            continue;
        m->since_ms = 0; /* the heartbeat counts as infinitely old */
        m->gone = true;
        if (r->mode != MODE_IDLE)
            rdzv_read_now(r, fx);
        return;
    }
}

static int cas_node_take(struct rdzv *r, const struct rdzv_event *ev,
                         struct rdzv_fx *fx)
{
    switch (ev->kind) {
    case RDZV_EV_JOIN:
        cas_node_on_join(r, ev->now, fx);
        return 0;
    case RDZV_EV_LEAVE:
        cas_node_on_leave(r, ev->now, fx);
        return 0;
    case RDZV_EV_CLOSE:
        cas_node_on_close(r, ev->now, fx);
        return 0;
    case RDZV_EV_STATE:
        return rdzv_on_state(r, ev, fx);
    case RDZV_EV_WROTE:
        return rdzv_on_wrote(r, ev, fx);
    case RDZV_EV_FAILED:
        rdzv_on_failed(r, ev, fx);
        return 0;
    case RDZV_EV_CHANGED:
        cas_node_on_changed(r, ev->now, fx);
        return 0;
    case RDZV_EV_GONE:
        cas_node_on_gone(r, ev, fx);
        return 0;
    case RDZV_EV_TIMER:
        return cas_node_on_timer(r, ev->now, fx);
    }
    return 0;
}

/* What holds between steps, whatever the backend answered. */
static void cas_node_check(const struct rdzv *r, const struct rdzv_fx *fx)
{
    assert(fx->count <= RDZV_FX_MAX);
    assert(r->mode != MODE_MEMBER || (r->was_member && r->roster.count > 0));
    assert(r->busy != BUSY_WRITING || r->sent.writes);
    assert(!r->entry_is_ours || r->beat_us != 0);
    (void)r;
    (void)fx;
}

int rdzv_step(struct rdzv *r, const struct rdzv_event *ev, struct rdzv_fx *fx)
{
    const bool answered = ev->kind == RDZV_EV_STATE || ev->kind == RDZV_EV_WROTE;
    const bool free = r->busy == BUSY_NOT || answered;

    fx->count = 0;
    if (r->no_memory)
        return MUSTER_ENOMEM;
    if (answered)
        r->away_ms = ev->now.mono_ms - r->asked_ms;
    if (cas_node_take(r, ev, fx) < 0) {
        r->no_memory = true;
        fx->count = 0;
        return MUSTER_ENOMEM;
    }
    cas_node_check(r, fx);
    if (free && r->busy != BUSY_NOT && r->failures == 0)
        r->asked_ms = ev->now.mono_ms;
    return 0;
}

uint64_t rdzv_deadline(const struct rdzv *r)
{
    uint64_t due = r->busy == BUSY_NOT ? r->read_due_ms : MONO_NEVER;

    if (r->no_memory)
        return MONO_NEVER;
    if (r->leave.on)
        due = MIN_OF(due, r->leave.by_ms + 1);
    if (r->close.on)
        due = MIN_OF(due, r->close.by_ms + 1);
    if (r->release_seat.on)
        due = MIN_OF(due, r->release_seat.by_ms + 1);
    if (r->mode == MODE_JOINING && !is_spare(r))
        due = MIN_OF(due, r->join_by_ms + RDZV_ROLLBACK_MS + 1);
    if (r->mode == MODE_MEMBER)
        due = MIN_OF(due, rdzv_fence_due(r));
    return due;
}

/* A run of one node has nobody who could go on without it. */
uint64_t rdzv_fence_due(const struct rdzv *r)
{
    return r->settings.max_nodes > 1 ? fence_due(&r->fence) : MONO_NEVER;
}

void rdzv_can_watch(struct rdzv *r, bool yes)
{
    /* The next read was put off because changes would be reported. From now on they are
     * not. */
    if (r->can_watch && !yes && r->mode != MODE_IDLE)
        r->read_due_ms = MIN_OF(r->read_due_ms, r->read_ms + rdzv_poll_ms(r));
    r->can_watch = yes;
}

int64_t rdzv_waiting(const struct rdzv *r)
{
    return (int64_t)r->waiting_notified;
}

bool rdzv_closed(const struct rdzv *r)
{
    return r->seen.closed;
}

bool rdzv_still_placed(const struct rdzv *r, size_t rank)
{
    const struct rdzv_node *node = &r->roster.nodes[rank];

    return r->seen.complete && r->seen.round == r->roster.round &&
           rdzv_node_cmp(node, &r->self) != 0 &&
           rdzv_in(rdzv_state_find(&r->seen, node), RDZV_PLACES);
}

uint64_t rdzv_last_round(const struct rdzv *r)
{
    return (uint64_t)r->roster.round;
}

const struct rdzv_node *rdzv_participants(const struct rdzv *r, size_t *count)
{
    *count = r->roster.count;
    return r->roster.nodes;
}

/* ---- how requests end: JOINED, REFUSED, DONE ---- */

void rdzv_done(struct rdzv *r, struct rdzv_request *request, enum rdzv_event_kind kind,
               int code, const char *text, struct rdzv_fx *fx)
{
    struct rdzv_effect *e;

    if (!request->on)
        return;
    request->on = false;
    if (kind == RDZV_EV_CLOSE && code == 0)
        r->closed_notified = true;
    e = rdzv_fx_add(fx, RDZV_FX_DONE);
    e->request = kind;
    e->code = code;
    e->text = text;
}

/* The join has failed. We give up later any seat that we may still have, unless the run
 * is over or the seat belongs to another process. */
void rdzv_refuse(struct rdzv *r, struct now now, int code, struct rdzv_fx *fx)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_REFUSED);

    e->code = code;
    e->text = r->why.text;
    r->mode = MODE_IDLE;
    if (code != MUSTER_ECLOSED && code != MUSTER_EGRACEFUL && code != MUSTER_EEXIST) {
        r->release_seat =
            (struct rdzv_request){ true, now.mono_ms + r->settings.close_ms };
        r->read_due_ms = now.mono_ms;
    }
}

static void join_timed_out(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    (void)err_set(
        &r->why, MUSTER_ETIMEDOUT,
        "the node '%s' could not join the rendezvous '%s' within %llu s: "
        "%zu of at least %lld node(s) had joined%s",
        r->self_text, r->run_id, (unsigned long long)r->settings.join_ms / 1000,
        rdzv_count_live(r, &r->seen, RDZV_PLACES, now.mono_ms),
        (long long)r->settings.min_nodes,
        r->seen.complete ? ", and their round goes on without this node" : "");
    if (r->busy != BUSY_NOT)
        err_add(&r->why, "; the store did not answer");
    rdzv_refuse(r, now, MUSTER_ETIMEDOUT, fx);
}

static void cas_node_joined(struct rdzv *r, struct rdzv_plan *p, struct now now,
                            struct rdzv_fx *fx)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_JOINED);

    r->was_member = true;

    rdzv_roster_fini(&r->roster);
    r->roster = p->roster;
    p->roster = (struct rdzv_roster){ 0 };
    r->mode = MODE_MEMBER;
    r->stay_until_ms = r->roster.count > 1 ? now.mono_ms + STAY_MS : 0;
    r->waiting_notified = r->lost_notified = 0;
    r->moved_notified = r->deserted_notified = r->closed_notified = false;
    e->round = r->roster.round;
    e->world = (int64_t)r->roster.count;
    assert(r->roster.count > 0);
    while (rdzv_node_cmp(&r->roster.nodes[e->rank], &r->self) != 0) {
        e->rank++;
        assert((size_t)e->rank < r->roster.count); /* The plan found us in it. */
    }
}

/* The state decides how the join ends. */
void rdzv_end_join(struct rdzv *r, struct rdzv_plan *p, struct now now,
                   struct rdzv_fx *fx)
{
    if (p->refused) {
        r->why = p->why;
        rdzv_refuse(r, now, p->refused, fx);
    } else if (p->end == RDZV_FINISH) {
        cas_node_joined(r, p, now, fx);
    } else if (p->end == RDZV_FAIL_TIMEOUT) {
        join_timed_out(r, now, fx);
    } else if (p->end == RDZV_FAIL_CLOSED) {
        (void)err_set(
            &r->why, MUSTER_ECLOSED,
            "The rendezvous '%s' is closed: the run has ended; use a new run id",
            r->run_id);
        rdzv_refuse(r, now, MUSTER_ECLOSED, fx);
    } else if (p->end == RDZV_DISMISSED) {
        (void)err_set(&r->why, MUSTER_EGRACEFUL,
                      "The rendezvous '%s' is closed, terminating pending rendezvous.",
                      r->run_id);
        rdzv_refuse(r, now, MUSTER_EGRACEFUL, fx);
    }
}

/* ---- what an answer of a c10d store means for the state ---- */

void rdzv_c10d_answer(struct rdzv_event *ev, bool write, struct span expected,
                      struct span sent, struct span answer)
{
    /* If the key is missing, the store answers with `expected` and stores nothing. Had
     * the key held that value, the store would have swapped it. So the store has been
     * restarted empty. */
    const bool missing = write && span_eq(answer, expected) && !span_eq(answer, sent);

    ev->kind = write ? RDZV_EV_WROTE : RDZV_EV_STATE;
    ev->won = write && span_eq(answer, sent);
    ev->present =
        !missing && answer.n > 0 && !span_eq(answer, span_str(RDZV_C10D_SENTINEL));
    ev->value = answer;
    ev->token = answer;
}
