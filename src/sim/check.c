/* check.c - the promises, which are checked while a run goes on.
 *
 *   1  within a round the ranks are 0 .. n - 1, each once, and all members agree;
 *   2  round numbers only grow; a complete round stays complete until nobody is in it;
 *   3  a closed run stays closed, and no round completes in it;
 *   4  min <= size <= max;
 *   5  a node that lives gets its answer before its deadline;
 *   6  when a member dies, the others know it within the keep-alive time;
 *   7  once there are no more faults, all nodes that live are together in one round.
 *
 * 1 and 6 are not checked for torchrun's nodes. They break 1 by themselves if a member
 * leaves or seems dead before they read the state, and nobody notifies them as 6 asks.
 */
#include <assert.h>
#include <stdio.h>

#include "base/mem.h"
#include "rendezvous/core/state_pickle.h"
#include "sim/sim.h"

#define ROUNDS 32 /* that are remembered, since a node may learn late of one */

struct seen_round {
    uint32_t epoch;
    int64_t round, world;
    uint64_t roster; /* hash of the members in rank order; 0: not known yet */
    char *owner;     /* owned: for each rank, "name_pid" in 24 bytes */
};

struct sim_checks {
    struct seen_round rounds[ROUNDS];
    size_t next;
};

#define OWNER 24u

struct sim_checks *sim_checks_new(void)
{
    struct sim_checks *c = mem_calloc(1, sizeof *c);

    assert(c);
    for (size_t i = 0; i < ROUNDS; i++)
        c->rounds[i].round = -1;
    return c;
}

void sim_checks_free(struct sim_checks *c)
{
    for (size_t i = 0; i < ROUNDS; i++)
        mem_free(c->rounds[i].owner);
    mem_free(c);
}

static struct seen_round *round_of(struct sim *s, uint32_t epoch, int64_t round,
                                   int64_t world)
{
    struct sim_checks *c = s->checks;
    struct seen_round *r;

    for (size_t i = 0; i < ROUNDS; i++) {
        if (c->rounds[i].round == round && c->rounds[i].epoch == epoch)
            return &c->rounds[i];
    }
    r = &c->rounds[c->next++ % ROUNDS];
    mem_free(r->owner);
    *r = (struct seen_round){ .epoch = epoch, .round = round, .world = world };
    r->owner = mem_calloc((size_t)world, OWNER);
    assert(r->owner);
    return r;
}

static void check_roster(struct sim_node *n, struct seen_round *r, int64_t rank)
{
    uint64_t hash = 14695981039346656037u;
    const struct rdzv_node *members, me = sim_identity(n);
    size_t count;

    if (!n->driver->members)
        return;
    members = n->driver->members(n, &count);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < members[i].addr.n; k++)
            hash = (hash ^ members[i].addr.p[k]) * 1099511628211u;
        hash = (hash ^ (uint64_t)members[i].pid) * 1099511628211u;
    }
    if ((int64_t)count != r->world || rdzv_node_cmp(&members[rank], &me) != 0)
        sim_fail(
            n->sim,
            "%s: its list of round %lld has %zu members, or does not have it as %lld",
            n->name, (long long)r->round, count, (long long)rank);
    if (r->roster && r->roster != hash)
        sim_fail(n->sim, "%s sees different members in round %lld than others do",
                 n->name, (long long)r->round);
    r->roster = hash;
}

void sim_check_joined(struct sim_node *n, const struct rdzv_effect *e)
{
    const struct rdzv_settings *set = &n->sim->cfg.settings;
    struct seen_round *r;
    char *owner, me[OWNER];

    if (n->kind == SIM_TORCH) {
        if (e->rank < 0)
            sim_fail(n->sim, "%s was given rank %lld", n->name, (long long)e->rank);
        return;
    }
    if (e->world < set->min_nodes || e->world > set->max_nodes || e->rank < 0 ||
        e->rank >= e->world) {
        sim_fail(n->sim, "%s was given rank %lld of %lld, in a group of %lld to %lld",
                 n->name, (long long)e->rank, (long long)e->world,
                 (long long)set->min_nodes, (long long)set->max_nodes);
        return;
    }
    if (e->round <= n->round && n->epoch == n->round_epoch)
        sim_fail(n->sim, "%s joined round %lld after round %lld", n->name,
                 (long long)e->round, (long long)n->round);
    if (n->life != SIM_JOINING && n->life != SIM_LEAVING)
        sim_fail(n->sim, "%s was notified of JOINED, but had not asked to join",
                 n->name);
    r = round_of(n->sim, n->epoch, e->round, e->world);
    if (r->world != e->world) {
        sim_fail(n->sim, "%s joined a world of %lld in round %lld, others one of %lld",
                 n->name, (long long)e->world, (long long)e->round,
                 (long long)r->world);
        return;
    }
    owner = r->owner + (size_t)e->rank * OWNER;
    (void)snprintf(me, sizeof me, "%s_%lld", n->name, (long long)n->pid);
    if (owner[0] && strcmp(owner, me) != 0)
        sim_fail(n->sim, "%s and %s are both rank %lld of round %lld", owner, me,
                 (long long)e->rank, (long long)e->round);
    memcpy(owner, me, OWNER);
    check_roster(n, r, e->rank);
}

/* A member has ended: the others of its round must learn it. */
void sim_check_gone(struct sim_node *n)
{
    struct sim *s = n->sim;

    if (n->life != SIM_RUNNING)
        return;
    n->lost_since_t = SIM_NEVER;
    for (size_t i = 0; i < s->count && !s->cfg.many; i++) {
        struct sim_node *m = &s->nodes[i];

        if (m == n || m->life != SIM_RUNNING || m->round_epoch != n->round_epoch ||
            m->round != n->round)
            continue;
        if (m->lost_since_t == SIM_NEVER)
            m->lost_since_t = s->t;
        if (m->kind == SIM_TORCH && s->autopilot) {
            m->fail_round = m->round;
            sim_do_at(m, s->t + 2000000 + rng_below(&s->rng, 3000000), SIM_DO_FAIL);
        }
    }
}

static void names(const struct rdzv_state *st, enum rdzv_list list, char *out,
                  size_t size)
{
    size_t len = 0;

    out[0] = '\0';
    for (const struct participant *m = rdzv_first(st, list); m && len + 40 < size;
         m = m->next[list]) {
        len += (size_t)snprintf(out + len, size - len, "%s%.*s", len ? " " : "",
                                (int)MIN_OF(m->node.addr.n, 20),
                                (const char *)m->node.addr.p);
        if (list == RDZV_PLACES && st->complete)
            len += (size_t)snprintf(out + len, size - len, "=%lld", (long long)m->rank);
    }
}

/* Whether the two differ only in heartbeats. */
static bool only_beats(const struct rdzv_state *a, const struct rdzv_state *b)
{
    if (a->round != b->round || a->complete != b->complete || a->closed != b->closed ||
        a->deadline_us != b->deadline_us || a->nodes.count != b->nodes.count)
        return false;
    for (const struct participant *m = rdzv_first(b, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct participant *o = rdzv_state_find(a, &m->node);

        if (!o || o->in != m->in)
            return false;
    }
    return true;
}

static void describe(struct sim *s, const struct rdzv_state *st, uint32_t peer)
{
    char places[400], waits[200], spares[200];
    const struct sim_conn *c = peer == UINT32_MAX ? NULL : s->host.conns[peer];
    const struct sim_node *n = c ? c->node : NULL;

    if (s->cfg.quiet)
        return;
    if (s->host.last_valid && only_beats(&s->host.last, st)) {
        sim_log(s, NULL, "holds %s's heartbeat", n ? n->name : "the host");
        return;
    }
    names(st, RDZV_PLACES, places, sizeof places);
    names(st, RDZV_WAITS, waits, sizeof waits);
    names(st, RDZV_SPARES, spares, sizeof spares);
    sim_log(s, NULL, "holds %s's round %lld %s [%s]%s%s%s%s%s%s%s%s",
            n ? n->name : "the host", (long long)st->round,
            st->complete ? "complete" : "open", places, waits[0] ? " wait [" : "",
            waits, waits[0] ? "]" : "", spares[0] ? " spare [" : "", spares,
            spares[0] ? "]" : "", st->deadline_us != WALL_NEVER ? ", last call" : "",
            st->closed ? ", closed" : "");
}

static bool ranks_whole(const struct rdzv_state *st)
{
    const size_t n = rdzv_count(st, RDZV_PLACES);
    uint64_t sum = 0;

    for (const struct participant *m = rdzv_first(st, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        for (const struct participant *o = m->next[RDZV_PLACES]; o && n <= 64;
             o = o->next[RDZV_PLACES]) {
            if (o->rank == m->rank)
                return false;
        }
        if (m->rank < 0 || (uint64_t)m->rank >= n)
            return false;
        sum += (uint64_t)m->rank;
    }
    return sum == n * (n - 1) / 2;
}

/* Two values of the key are one write apart, unless the host wrote: it updates the key
 * only when somebody reads it. */
static void check_change(struct sim *s, const struct rdzv_state *was,
                         const struct rdzv_state *is, bool by_host)
{
    const int64_t n = (int64_t)rdzv_count(is, RDZV_PLACES);
    const bool new_round = is->complete && (!was->complete || was->round != is->round);
    const bool begins = new_round && !by_host;

    if (is->round < was->round)
        sim_fail(s, "the round went from %lld back to %lld", (long long)was->round,
                 (long long)is->round);
    if (was->closed && !is->closed)
        sim_fail(s, "the run was closed and is open again");
    if (was->complete && !is->complete && is->round == was->round)
        sim_fail(s, "round %lld was complete and is open again", (long long)is->round);
    if (begins && was->closed)
        sim_fail(s, "round %lld completed in a closed run", (long long)is->round);
    if (begins && (n < s->cfg.settings.min_nodes || n > s->cfg.settings.max_nodes))
        sim_fail(s, "round %lld completed with %lld nodes", (long long)is->round,
                 (long long)n);
    if (begins && !ranks_whole(is))
        sim_fail(s, "round %lld completed with ranks that are not 0 .. n-1",
                 (long long)is->round);
    if (new_round || !is->complete || (by_host && s->host.epoch > 1))
        return; /* Members come back to a restarted host one by one. */
    for (const struct participant *m = rdzv_first(is, RDZV_PLACES); m;
         m = m->next[RDZV_PLACES]) {
        const struct participant *o = rdzv_state_find(was, &m->node);

        if (!rdzv_in(o, RDZV_PLACES) || o->rank != m->rank)
            sim_fail(s,
                     "a node entered round %lld, or changed its rank, after it was "
                     "complete",
                     (long long)is->round);
    }
}

static bool is_spare(const struct sim_node *n)
{
    const struct rdzv_node me = sim_identity(n);

    return n->spare || (n->sim->host.last_valid &&
                        rdzv_in(rdzv_state_find(&n->sim->host.last, &me), RDZV_SPARES));
}

/* A spare waits for as long as it takes; its time to join begins when it stops being a
 * spare. */
static void renew_spares(struct sim *s)
{
    for (size_t i = 0; i < s->count && !s->cfg.many; i++) {
        if (s->nodes[i].alive && is_spare(&s->nodes[i]))
            s->nodes[i].join_by_t = s->t + s->cfg.settings.join_ms * 1000;
    }
}

static void on_beat(void *ctx, struct participant *m, int64_t beat_us)
{
    (void)ctx;
    m->beat_us = beat_us;
}

/* Handles a value in which only heartbeats are new, which need no check_change(). */
static bool check_beats(struct sim *s, struct span value, uint32_t peer)
{
    struct sim_host *h = &s->host;
    const struct sim_conn *c = peer == UINT32_MAX ? NULL : h->conns[peer];
    const struct sim_node *n = c ? c->node : NULL;

    if (!h->last_valid ||
        !pickle_only_beats(&h->last, buf_span(&h->last_value), value, on_beat, NULL))
        return false;
    sim_log(s, NULL, "holds %s's heartbeat", n ? n->name : "the host");
    renew_spares(s);
    return true;
}

void sim_check_state(struct sim *s, struct span value, uint32_t peer)
{
    struct sim_host *h = &s->host;
    struct rdzv_state is;
    struct muster_error err;
    bool known;

    if (span_eq(value, buf_span(&h->last_value)))
        return;
    known = check_beats(s, value, peer);
    buf_clear(&h->last_value);
    sim_must(buf_append_span(&h->last_value, value));
    if (known)
        return;
    if (value.n == 0 || span_eq(value, span_str(RDZV_C10D_SENTINEL))) {
        if (h->last_valid)
            sim_fail(s, "the state vanished");
        return;
    }
    if (pickle_read_text(buf_span(&h->last_value), &is, &err) < 0) {
        sim_fail(s, "the state cannot be read: %s", err.text);
        return;
    }
    describe(s, &is, peer);
    if (h->last_valid) {
        renew_spares(s);
        check_change(s, &h->last, &is, peer == UINT32_MAX);
        rdzv_state_fini(&h->last);
    }
    h->last = is;
    h->last_valid = true;
}

static void check_node(struct sim_node *n)
{
    const struct sim *s = n->sim;
    const uint64_t calm_t = MAX_OF(n->calm_from_t, s->host_calm_t);
    const uint64_t slack_us = 3000000 + 4 * (s->cfg.delay_us + s->cfg.jitter_us);
    const uint64_t dead_us = rdzv_dead_after_ms(&s->cfg.settings) * 1000;
    uint64_t due_t = n->join_by_t + RDZV_ROLLBACK_MS * 1000 + slack_us;

    if (!n->alive || sim_is_stopped(n))
        return;
    if (n->kind == SIM_TORCH && n->calm_from_t > n->join_t)
        due_t = SIM_NEVER; /* torchrun may wait in a read for a long time. */
    due_t = MAX_OF(due_t, n->stopped_t + slack_us);
    if (n->life == SIM_JOINING && s->t > due_t && due_t != SIM_NEVER && !is_spare(n))
        sim_fail(n->sim, "%s asked to join at %.3f s and has no answer", n->name,
                 (double)n->join_t / 1e6);
    if (n->life != SIM_RUNNING || n->lost_since_t == SIM_NEVER || n->kind == SIM_TORCH)
        return;
    due_t =
        MAX_OF(n->lost_since_t, calm_t) + dead_us + s->cfg.grace_ms * 1000 + slack_us;
    if (s->t > due_t)
        sim_fail(n->sim, "%s was not notified of a member lost at %.3f s", n->name,
                 (double)n->lost_since_t / 1e6);
}

void sim_check_step(struct sim *s)
{
    for (size_t i = 0; i < s->count && !s->fail[0]; i++)
        check_node(&s->nodes[i]);
}

/* Whether the node runs on alone: torchrun never notifies a node that the others have
 * dropped. */
static bool is_zombie(const struct sim_node *n)
{
    const struct rdzv_node me = sim_identity(n);

    return n->kind == SIM_TORCH && n->life == SIM_RUNNING && n->sim->host.last_valid &&
           !rdzv_in(rdzv_state_find(&n->sim->host.last, &me), RDZV_PLACES);
}

/* Checks 7: there were no faults for long enough. */
void sim_check_end(struct sim *s)
{
    const struct rdzv_settings *set = &s->cfg.settings;
    const struct sim_node *one = NULL;
    int64_t live = 0, running = 0;
    bool torch = false;

    for (size_t i = 0; i < s->count; i++) {
        const struct sim_node *n = &s->nodes[i];

        live += n->alive && n->wants_in;
        torch |= n->kind == SIM_TORCH;
        if (is_zombie(n))
            return;
        if (n->life != SIM_RUNNING)
            continue;
        running++;
        if (one && (one->round != n->round || one->round_epoch != n->round_epoch))
            sim_fail(s, "%s runs in round %lld, and %s in round %lld, at the same time",
                     one->name, (long long)one->round, n->name, (long long)n->round);
        one = n;
    }
    if (s->host.last_valid && s->host.last.closed)
        return;
    if (torch && live > set->max_nodes)
        return; /* torch's waiting nodes restart a full round again and again. */
    if (live >= set->min_nodes && running != MIN_OF(live, set->max_nodes))
        sim_fail(s, "%lld nodes live, a round takes %lld to %lld, but %lld are in one",
                 (long long)live, (long long)set->min_nodes, (long long)set->max_nodes,
                 (long long)running);
    if (one && one->world != running && live >= set->min_nodes && !torch)
        sim_fail(s, "%lld nodes run in a round of %lld", (long long)running,
                 (long long)one->world);
}
