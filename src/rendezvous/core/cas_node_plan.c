/* cas_node_plan.c - decides what this node does about a fresh state.
 *
 * torch writes after each action. We go on deciding on our copy until nothing more is
 * to be changed, and write once: leaving the old round and queueing for the next is one
 * compare-and-set instead of two. Nothing counts until that write has won.
 *
 * Dead nodes: decisions see a state without them. What we write keeps the dead
 * participants of a completed round for as long as one of them lives. So a node that
 * reads late still sees the whole round and learns of the loss as news, instead of
 * getting another world than the others. */
#include "base/err.h"

#include <assert.h>
#include <stdio.h>

#include "base/mem.h"
#include "rendezvous/core/cas_node_int.h"
#include "rendezvous/core/state_pickle.h"

void rdzv_plan_fini(struct rdzv_plan *p)
{
    if (p->writes)
        rdzv_state_fini(&p->next);
    buf_fini(&p->text);
    rdzv_roster_fini(&p->roster);
    *p = (struct rdzv_plan){ 0 };
}

struct deaths {
    const struct rdzv *r;
    uint64_t now_ms;
    bool keep_places; /* keep the dead that have a place */
};

static bool is_removable(const void *ctx, const struct participant *m)
{
    const struct deaths *d = ctx;

    if (d->keep_places && rdzv_in(m, RDZV_PLACES))
        return false;
    return rdzv_is_dead(d->r, m, d->now_ms);
}

/* Returns how many nodes were removed. */
static size_t remove_dead(const struct rdzv *r, struct rdzv_state *s, uint64_t now_ms)
{
    struct deaths d = { r, now_ms, false };

    d.keep_places = s->complete && rdzv_count_live(r, s, RDZV_PLACES, now_ms) > 0;
    return rdzv_sweep(s, &r->settings, is_removable, &d);
}

static bool any_dead(const struct rdzv *r, const struct rdzv_state *s, uint64_t now_ms)
{
    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        if (rdzv_is_dead(r, m, now_ms))
            return true;
    }
    return false;
}

/* Every live node has a place, and we have been in a round, so all nodes that we know
 * of are here. A node that has never been seen joins later, as any newcomer does. */
static bool everybody_is_here(const struct rdzv *r, const struct rdzv_state *s,
                              uint64_t now_ms)
{
    if (!r->settings.ours_only || r->settings.last_call_always || !r->was_member)
        return false;
    for (const struct participant *m = rdzv_first(s, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS])
        if (!rdzv_in(m, RDZV_PLACES) && !rdzv_is_dead(r, m, now_ms))
            return false;
    return true;
}

/* The view that torch's node would have, but by the monotonic clock: it counts who is
 * alive, and says whether our heartbeat is due and the last call is over. */
static struct rdzv_view view_now(const struct rdzv *r, const struct rdzv_state *s,
                                 struct now now, uint64_t due_ms)
{
    struct rdzv_view v = rdzv_view_of(s, &r->self, &r->settings, now, due_ms);
    const uint64_t call_by_ms = r->call_since_ms + r->settings.last_call_ms;

    v.placed = (int64_t)rdzv_count_live(r, s, RDZV_PLACES, now.mono_ms);
    v.call_over = s->deadline_us != WALL_NEVER && s->deadline_us == r->call_us &&
                  now.mono_ms > call_by_ms;
    v.everybody = everybody_is_here(r, s, now.mono_ms);
    v.beat_due = rdzv_in(rdzv_state_find(s, &r->self), RDZV_BEATS) &&
                 now.mono_ms >= r->beat_due_ms;
    return v;
}

/* Gives up whatever seat we have. A seat that belongs to another process is not ours to
 * give up. */
static enum rdzv_action leave_next(const struct rdzv *r, const struct rdzv_view *v)
{
    if (!r->entry_is_ours)
        return RDZV_FINISH;
    if (v->seat == SEAT_SPARE)
        return RDZV_DROP_SPARE;
    if (v->in_round)
        return RDZV_DROP_PLACE;
    return v->seat == SEAT_WAIT ? RDZV_DROP_WAIT : RDZV_FINISH;
}

static bool sorts_last(const struct rdzv_state *s, const struct rdzv_node *n)
{
    for (const struct participant *m = rdzv_first(s, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (rdzv_node_cmp(&m->node, n) > 0)
            return false;
    }
    return true;
}

/* A torchrun node removes nodes that it finds dead even from a completed round. If it
 * removed the last rank, the remaining ranks look whole. But that node must have
 * been silent for the keep-alive bound, so either we knew it, or we have not read for
 * that long. If the round began after our last read, then every node that we knew was
 * waiting for its place. */
static bool may_have_lost_last_rank(const struct rdzv *r, const struct rdzv_state *s,
                                    uint64_t now_ms)
{
    const bool same = r->seen.round == s->round;
    const enum rdzv_list list = same ? RDZV_PLACES : RDZV_WAITS;

    if (s == &r->seen)
        return false; /* We have just written it ourselves. */
    if (now_ms - r->read_ms >= rdzv_dead_after_ms(&r->settings))
        return true;
    for (const struct participant *m = rdzv_first(&r->seen, list); m;
         m = m->next[list]) {
        const struct participant *o = rdzv_state_find(s, &m->node);

        if ((same ? !rdzv_in(o, RDZV_PLACES) : !o) && sorts_last(s, &m->node))
            return true;
    }
    return false;
}

/* A node that leaves a round for the next one is listed as waiting, and the remaining
 * ranks may look complete. But while there is room, no node is left waiting when a
 * round completes, so if one waits, a node has come or gone since. Either way a new
 * round is due, and nothing is lost by going straight there. This does not hold for the
 * node that completed the round, since nobody else saw the round before it did. */
static bool may_have_shrunk(const struct rdzv *r, const struct rdzv_state *s,
                            uint64_t now_ms)
{
    return s->round != r->completed &&
           (int64_t)rdzv_count(s, RDZV_PLACES) < r->settings.max_nodes &&
           rdzv_count_live(r, s, RDZV_WAITS, now_ms) > 0;
}

static int rdzv_roster_make(struct rdzv_roster *out, const struct rdzv_state *s);

/* We have a place in a completed round. Checks that all of its participants see it
 * alike; if not, we leave it for the next one. */
static int finish(const struct rdzv *r, const struct rdzv_state *s, struct now now,
                  struct rdzv_plan *p, enum rdzv_action *a)
{
    assert(s->complete);
    const long long n = (long long)rdzv_count(s, RDZV_PLACES);
    int rc;

    if (n > r->settings.max_nodes) {
        p->refused =
            err_set(&p->why, MUSTER_EINVAL,
                    "round %lld has %lld nodes, but this node was started for at "
                    "most %lld: start all nodes with the same --nnodes",
                    (long long)s->round, n, (long long)r->settings.max_nodes);
        *a = RDZV_SYNC;
        return 0;
    }
    rdzv_roster_fini(&p->roster);
    if (n < r->settings.min_nodes || may_have_lost_last_rank(r, s, now.mono_ms) ||
        may_have_shrunk(r, s, now.mono_ms))
        rc = MUSTER_ESTATE;
    else
        rc = rdzv_roster_make(&p->roster, s);
    assert(rc != 0 || p->roster.count == (size_t)n);
    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc < 0) {
        log_line(r->log, LOG_WARN, AT_RENDEZVOUS,
                 "round %lld of the rendezvous '%s' lost a node before we had read it: "
                 "leaving it for the next one, since other nodes may see another world",
                 (long long)s->round, r->run_id);
        *a = RDZV_DROP_PLACE;
    }
    return 0;
}

static int join_next(const struct rdzv *r, const struct rdzv_state *s,
                     const struct rdzv_view *v, struct now now, struct rdzv_plan *p,
                     enum rdzv_action *a)
{
    assert(r->mode == MODE_JOINING);
    if (r->in_old_round && !p->left_round) {
        if (v->in_round && v->now_ms < r->stay_until_ms && !v->closed) {
            *a = v->beat_due ? RDZV_KEEP_ALIVE : RDZV_SYNC;
            return 0;
        }
        *a = rdzv_exit_next(v);
        p->end = rdzv_action_writes(*a) ? RDZV_SYNC : *a;
        if (*a == RDZV_FAIL_TIMEOUT)
            return 0;
        p->left_round = true;
        if (*a != RDZV_FINISH)
            return 0;
    }
    *a = rdzv_join_next(v);
    /* torch leaves a node in the wait list when the round fills up without it. Then the
     * participants restart for its sake again and again, and never have room. */
    if (v->complete && v->seat == SEAT_WAIT && v->placed >= v->max_nodes &&
        !rdzv_action_writes(*a) && *a != RDZV_FAIL_CLOSED && *a != RDZV_FAIL_TIMEOUT)
        *a = RDZV_DROP_WAIT;
    if (*a == RDZV_FINISH && !p->writes && finish(r, s, now, p, a) < 0)
        return MUSTER_ENOMEM;
    if (*a == RDZV_DROP_SPARE)
        p->renewed = true;
    p->end = rdzv_action_writes(*a) ? RDZV_SYNC : *a;
    return 0;
}

/* Looks at the entry under our name in a store that we have never written to. It
 * belongs to another process, or our predecessor in this container left it behind. Here
 * we may compare wall-clock times, since both were read on one machine. */
static bool name_is_taken(const struct rdzv *r, const struct rdzv_state *s,
                          struct now now, struct rdzv_plan *p)
{
    const struct participant *m = rdzv_state_find(s, &r->self);
    const struct participant *before = rdzv_state_find(&r->seen, &r->self);
    const int64_t dead_us = (int64_t)rdzv_dead_after_ms(&r->settings) * 1000;

    if (r->entry_is_ours || !rdzv_in(m, RDZV_BEATS) || m->beat_us == r->beat_us)
        return false;
    if (m->beat_us < now.wall_us - dead_us || rdzv_is_dead(r, m, now.mono_ms))
        return false;
    if (rdzv_in(before, RDZV_BEATS) && before->beat_us != m->beat_us)
        p->refused = err_set(&p->why, MUSTER_EEXIST,
                             "the rendezvous '%s' already has a live node '%s': two "
                             "processes with the same address and pid, as in two "
                             "containers, count as one node; give each its own "
                             "--local-addr",
                             r->run_id, r->self_text);
    return true;
}

/* Finds the next action, the most urgent request first, and notes in p which requests
 * are fulfilled. */
static int next_action(const struct rdzv *r, const struct rdzv_state *s, struct now now,
                       struct rdzv_plan *p, enum rdzv_action *a)
{
    struct rdzv_view v = view_now(r, s, now, r->close.by_ms);

    *a = RDZV_SYNC;
    if (r->close.on && !p->closed) {
        *a = rdzv_close_next(&v);
        p->closed = *a == RDZV_FINISH;
        if (rdzv_action_writes(*a))
            return 0;
    }
    if (r->leave.on || r->release_seat.on) {
        *a = leave_next(r, &v);
        p->left = p->seat_released = *a == RDZV_FINISH;
        return 0;
    }
    if (r->mode == MODE_MEMBER) {
        v.due_ms = MONO_NEVER;
        *a = rdzv_keep_alive_next(&v);
    }
    if (r->mode == MODE_JOINING) {
        v.due_ms = r->join_by_ms;
        return join_next(r, s, &v, now, p, a);
    }
    return 0;
}

/* A node that opens a round, or comes to an open one, also gives places to the nodes
 * that wait. They could do so themselves, but only one after the other, each competing
 * with all the rest. */
static int seat_those_who_wait(const struct rdzv *r, struct rdzv_state *s,
                               uint64_t now_ms)
{
    struct participant *next;

    for (struct participant *m = rdzv_first(s, RDZV_WAITS); m; m = next) {
        next = m->next[RDZV_WAITS];
        if ((int64_t)rdzv_count(s, RDZV_PLACES) + 1 >= r->settings.max_nodes)
            return 0; /* The last place is for us. */
        if (rdzv_node_cmp(&m->node, &r->self) == 0 ||
            now_ms - m->since_ms > rdzv_interval_ms(&r->settings))
            continue; /* Without a recent heartbeat it may be dead. */
        if (!rdzv_state_put(s, &m->node, RDZV_PLACES))
            return MUSTER_ENOMEM;
        rdzv_state_drop(s, m, RDZV_WAITS);
    }
    return 0;
}

static int apply(const struct rdzv *r, struct rdzv_state *s, enum rdzv_action a,
                 int64_t beat_us, uint64_t now_ms)
{
    int rc = a == RDZV_TAKE_PLACE ? seat_those_who_wait(r, s, now_ms) : 0;

    assert(rdzv_action_writes(a));

    if (rc == 0)
        rc = rdzv_apply(s, a, &r->self, &r->settings, beat_us);
    /* When several nodes get places at once, the number may jump past min_nodes. */
    if (rc == 0 && a == RDZV_TAKE_PLACE && !s->complete &&
        s->deadline_us == WALL_NEVER &&
        (int64_t)rdzv_count(s, RDZV_PLACES) >= r->settings.min_nodes)
        s->deadline_us = beat_us + (int64_t)r->settings.last_call_ms * 1000;
    return rc;
}

/* Decides and applies until nothing more is to be changed. To close, leave and join
 * again takes five actions at most, so the limit is never met. */
static int decide_until_done(const struct rdzv *r, struct rdzv_state *s, struct now now,
                             struct rdzv_plan *p)
{
    struct participant *me;
    enum rdzv_action a;
    int rc;

    for (int i = 0; i < 16; i++) {
        rc = next_action(r, s, now, p, &a);
        if (rc < 0 || !rdzv_action_writes(a))
            return rc;
        p->writes = true;
        rc = apply(r, s, a, p->beat_us, now.mono_ms);
        if (rc < 0)
            return rc;
        if (a == RDZV_KEEP_ALIVE) {
            p->only_beat = i == 0;
            return 0;
        }
        me = rdzv_state_find(s, &r->self);
        if (me)
            me->since_ms = now.mono_ms;
        (void)remove_dead(r, s, now.mono_ms);
    }
    return 0;
}

/* base_text is the text of a state that s differs from in our heartbeat alone, or
 * empty. */
static int encode(const struct rdzv *r, struct rdzv_state *s, struct span base_text,
                  struct rdzv_plan *p)
{
    struct participant *me = rdzv_state_find(s, &r->self);
    int rc = 0;

    assert(p->writes && buf_len(&p->text) == 0);
    p->seated = me != NULL;
    if (rdzv_in(me, RDZV_BEATS))
        me->beat_us = p->beat_us; /* Every write of ours also counts as a heartbeat. */
    if (base_text.n && me)
        rc = pickle_write_beat(s, me, base_text, &p->text);
    if (rc == 0)
        rc = pickle_write_text(s, &p->text);
    rc = MIN_OF(rc, 0);
    if (rc == MUSTER_EFULL) {
        p->refused = err_set(
            &p->why, MUSTER_EFULL,
            "the state of the rendezvous '%s' is too large for the store", r->run_id);
        return 0;
    }
    return rc;
}

/* Whether no other node needs to read the new state soon: it has only new heartbeats,
 * or one more node in a round that is still open. A node that wants to write learns of
 * it when it tries. */
static bool is_quiet(const struct rdzv_state *was, const struct rdzv_state *is)
{
    if (was->round != is->round || was->complete != is->complete ||
        was->closed != is->closed || was->deadline_us != is->deadline_us ||
        rdzv_count(was, RDZV_WAITS) != rdzv_count(is, RDZV_WAITS) ||
        rdzv_count(was, RDZV_SPARES) != rdzv_count(is, RDZV_SPARES))
        return false;
    for (const struct participant *m = rdzv_first(was, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct participant *o = rdzv_state_find(is, &m->node);

        if (!o || o->in != m->in)
            return false;
    }
    return !is->complete || was->nodes.count == is->nodes.count;
}

int rdzv_plan_make(const struct rdzv *r, const struct rdzv_state *s, struct now now,
                   struct rdzv_plan *out)
{
    struct rdzv_plan p = { .end = RDZV_SYNC };
    struct rdzv_state work;
    enum rdzv_action a = RDZV_SYNC;
    struct span base_text = { 0 };
    bool removed;
    int rc = 0;

    buf_init(&p.text, SIZE_MAX);
    if (r->mode == MODE_JOINING && name_is_taken(r, s, now, &p)) {
        *out = p;
        return 0;
    }
    /* Most reads lead to no change, and then no copy is needed. */
    if (!any_dead(r, s, now.mono_ms)) {
        rc = next_action(r, s, now, &p, &a);
        if (rc == 0 && !rdzv_action_writes(a)) {
            *out = p;
            return 0;
        }
        rdzv_plan_fini(&p);
        p.end = RDZV_SYNC;
        buf_init(&p.text, SIZE_MAX);
    }
    if (rc == 0)
        rc = rdzv_state_copy(&work, s);
    if (rc < 0)
        return rc;
    p.beat_us = rdzv_beat_time(r, s, now.wall_us);
    if (r->write_unsure && p.beat_us - r->beat_us >= 0 &&
        p.beat_us - r->beat_us < (int64_t)rdzv_interval_ms(&r->settings) * 1000)
        p.beat_us = r->beat_us; /* By this value we recognise our own entry. */
    removed = remove_dead(r, &work, now.mono_ms) > 0;
    rc = decide_until_done(r, &work, now, &p);
    if (p.only_beat && !removed && s == &r->seen) /* We have its text. */
        base_text = buf_span(&r->value);
    if (rc == 0 && p.writes)
        rc = encode(r, &work, base_text, &p);
    if (rc == 0 && p.writes && !p.refused) {
        assert(buf_len(&p.text) > 0);
        p.quiet = is_quiet(s, &work);
        p.next = work;
        *out = p;
        return 0;
    }
    p.writes = false;
    rdzv_state_fini(&work);
    if (rc < 0)
        rdzv_plan_fini(&p);
    else
        *out = p;
    return rc;
}

/* ---- the participants of a completed round, in rank order ---- */

void rdzv_roster_fini(struct rdzv_roster *r)
{
    mem_free(r->nodes);
    *r = (struct rdzv_roster){ 0 };
}

static bool ranks_are_whole(const struct rdzv_state *s,
                            const struct participant **by_rank)
{
    const size_t count = rdzv_count(s, RDZV_PLACES);

    for (const struct participant *m = rdzv_first(s, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        if (m->rank < 0 || (uint64_t)m->rank >= count || by_rank[m->rank])
            return false;
        by_rank[m->rank] = m;
    }
    return true;
}

/* Lists the participants of a completed round. Returns MUSTER_ESTATE if its ranks are
 * not 0 .. n - 1, each once: then a node has been removed, and nodes may see different
 * worlds. */
static int rdzv_roster_make(struct rdzv_roster *out, const struct rdzv_state *s)
{
    const size_t count = rdzv_count(s, RDZV_PLACES);
    const struct participant **by_rank = mem_calloc(count + 1, sizeof *by_rank);
    struct rdzv_node *nodes = NULL;
    size_t bytes = 0;
    int rc = MUSTER_ENOMEM;

    if (!by_rank)
        return MUSTER_ENOMEM;
    if (!ranks_are_whole(s, by_rank)) {
        rc = MUSTER_ESTATE;
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        assert(by_rank[i]);
        bytes += by_rank[i]->node.addr.n;
    }
    nodes = mem_alloc(count * sizeof *nodes + bytes + 1);
    if (!nodes)
        goto done;
    for (size_t i = 0, at = 0; i < count; i++) {
        uint8_t *addr = (uint8_t *)(nodes + count) + at;

        nodes[i] = by_rank[i]->node;
        if (nodes[i].addr.n)
            memcpy(addr, nodes[i].addr.p, nodes[i].addr.n);
        at += nodes[i].addr.n;
        nodes[i].addr.p = addr;
    }
    *out = (struct rdzv_roster){ nodes, count, s->round };
    rc = 0;
done:
    mem_free(by_rank);
    return rc;
}

/* ---- what the agent of a node in a running round must know, each thing once ---- */

static void add_news(struct rdzv *r, struct rdzv_fx *fx, enum rdzv_news what,
                     int64_t count)
{
    struct rdzv_effect *e = rdzv_fx_add(fx, RDZV_FX_NEWS);

    e->news = what;
    e->count = count;
    e->text = r->news_text;
}

/* How many of the round's participants neither have their place any more nor wait for
 * the next round, and one of them for the message. moved: one of them waits. */
static size_t count_lost(const struct rdzv *r, uint64_t now_ms,
                         const struct rdzv_node **one, bool *moved)
{
    size_t lost = 0;

    for (size_t i = 0; i < r->roster.count; i++) {
        const struct participant *m = rdzv_state_find(&r->seen, &r->roster.nodes[i]);

        if ((rdzv_in(m, RDZV_PLACES) || rdzv_in(m, RDZV_WAITS)) &&
            !rdzv_is_dead(r, m, now_ms)) {
            *moved |= !rdzv_in(m, RDZV_PLACES);
            continue;
        }
        lost++;
        *one = &r->roster.nodes[i];
    }
    return lost;
}

/* Waiting nodes are news only if there is room for them: a full round that starts again
 * would be as full as before, with others left over. */
static void notify_waiting(struct rdzv *r, uint64_t now_ms, struct rdzv_fx *fx)
{
    const size_t live = rdzv_count_live(r, &r->seen, RDZV_PLACES, now_ms);
    const size_t waiting = (int64_t)live >= r->settings.max_nodes
                               ? 0
                               : rdzv_count_live(r, &r->seen, RDZV_WAITS, now_ms);

    if (waiting > r->waiting_notified) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "%zu node(s) wait for the next round of the rendezvous '%s'",
                       waiting, r->run_id);
        add_news(r, fx, RDZV_NEWS_WAITING, (int64_t)waiting);
    }
    r->waiting_notified = waiting;
}

static void notify_lost(struct rdzv *r, uint64_t now_ms, struct rdzv_fx *fx)
{
    const struct rdzv_node *one = NULL;
    char name[128];
    bool moved = false;
    size_t lost;

    if (rdzv_count_live(r, &r->seen, RDZV_PLACES, now_ms) == r->roster.count)
        return; /* Usually nobody is missing. */
    lost = count_lost(r, now_ms, &one, &moved);
    if (r->seen.closed) { /* Nodes leave a closed run one by one. */
        if (lost && !r->deserted_notified)
            rdzv_fx_add(fx, RDZV_FX_NEWS)->news = RDZV_NEWS_DESERTED;
        r->deserted_notified |= lost > 0;
        return;
    }
    if (moved && !r->moved_notified)
        rdzv_fx_add(fx, RDZV_FX_NEWS)->news = RDZV_NEWS_MOVED_ON;
    r->moved_notified |= moved;
    if (lost > r->lost_notified) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "node '%s' is gone from round %lld of the rendezvous '%s'",
                       rdzv_node_text(one, name, sizeof name),
                       (long long)r->roster.round, r->run_id);
        add_news(r, fx, RDZV_NEWS_LOST, (int64_t)lost);
        r->lost_notified = lost;
    }
}

void rdzv_notify_cut_off(struct rdzv *r, bool was_absent, struct rdzv_fx *fx)
{
    const bool why = r->why.code && r->failures;

    if (was_absent) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "this node was away for longer than a node may be silent "
                       "(keep_alive_interval * keep_alive_max_attempt)");
        add_news(r, fx, RDZV_NEWS_EVICTED, 0);
        return;
    }
    (void)snprintf(
        r->news_text, sizeof r->news_text,
        "no heartbeat of '%s' has reached the rendezvous '%s' in time%s%.200s",
        r->self_text, r->run_id, why ? ": " : "", why ? r->why.text : "");
    add_news(r, fx, RDZV_NEWS_CUT_OFF, 0);
    fx->at[fx->count - 1].code = MUSTER_ECONN;
}

bool rdzv_notify(struct rdzv *r, struct now now, struct rdzv_fx *fx)
{
    const struct participant *me = rdzv_state_find(&r->seen, &r->self);
    const bool in = rdzv_in(me, RDZV_PLACES) && r->seen.complete &&
                    r->seen.round == r->roster.round;

    if (r->seen.closed && !r->closed_notified && !r->close.on) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "the rendezvous '%s' was closed", r->run_id);
        add_news(r, fx, RDZV_NEWS_CLOSED, 0);
        r->closed_notified = true;
    }
    if (!in) {
        (void)snprintf(r->news_text, sizeof r->news_text,
                       "the other nodes have dropped '%s' from round %lld of the "
                       "rendezvous '%s'",
                       r->self_text, (long long)r->roster.round, r->run_id);
        add_news(r, fx, RDZV_NEWS_EVICTED, 0);
        return false;
    }
    if (!r->seen.closed) /* otherwise the run ends, and no new round is needed */
        notify_waiting(r, now.mono_ms, fx);
    notify_lost(r, now.mono_ms, fx);
    return true;
}
