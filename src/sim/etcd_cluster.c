/* etcd_cluster.c - members, the leader, requests on their way into the log, and faults;
 * see etcd.h. */
#include <assert.h>

#include "base/mem.h"
#include "sim/etcd.h"

#define EXPIRE_US   500000u  /* how often a leader looks for what has expired */
#define PATIENCE_US 7000000u /* after which a request without a leader is refused */

bool sim_etcd_member_ok(const struct sim *s, size_t member)
{
    const struct etcd_member *m = &s->etcd->members[member];

    return m->up && m->stopped_t <= s->t && m->cut_t <= s->t;
}

static bool quorum(const struct sim *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->etcd->count; i++)
        n += sim_etcd_member_ok(s, i);
    return n > s->etcd->count / 2;
}

static void tick_at(struct sim *s, uint64_t t, enum etcd_tick what, struct sim_call *c)
{
    struct sim_event *ev = sim_at(s, t, SIM_EV_ETCD_TICK);

    ev->what = (int)what;
    ev->call = c;
    if (c)
        c->refs++;
}

/* ---- Requests ---- */

static void refuse(struct sim *s, struct sim_call *c, bool timed_out)
{
    struct etcd_response r = { 0 };

    buf_init(&r.body, SIZE_MAX);
    if (s->etcd->v2)
        etcd2_refuse(&s->etcd->store, timed_out, &r);
    else
        etcd3_refuse(timed_out, &r);
    sim_http_answer(c, &r);
    buf_fini(&r.body);
}

static void apply(struct sim *s, struct sim_call *c, bool answer)
{
    struct sim_etcd *e = s->etcd;
    const uint64_t before = e->store.revision;
    struct etcd_response r = { 0 };

    buf_init(&r.body, SIZE_MAX);
    if (e->v2)
        etcd2_apply(&e->store, s->t, &c->msg, &r);
    else
        etcd3_apply(&e->store, s->t, &c->msg, &r);
    if (answer)
        sim_http_answer(c, &r);
    buf_fini(&r.body);
    if (e->store.revision != before)
        sim_etcd_changed(s);
}

static void forget(struct sim_etcd *e, size_t i)
{
    sim_call_unref(e->pending[i].call);
    memmove(&e->pending[i], &e->pending[i + 1],
            (e->pending_count - i - 1) * sizeof *e->pending);
    e->pending_count--;
}

static uint64_t raft_us(struct sim *s)
{
    if (rng_below(&s->rng, 40) == 0)
        return 50000 + rng_below(&s->rng, 400000); /* a slow disk */
    return 500 + rng_below(&s->rng, 3000);
}

static void propose(struct sim *s, struct etcd_pending *p)
{
    p->commit_t = s->t + raft_us(s);
    p->lost = false;
    tick_at(s, p->commit_t, ETCD_COMMIT, p->call);
}

static void accept_request(struct sim *s, struct sim_call *c)
{
    struct sim_etcd *e = s->etcd;
    struct etcd_pending *p;

    e->pending =
        mem_realloc_array(e->pending, e->pending_count + 1, sizeof *e->pending);
    assert(e->pending);
    p = &e->pending[e->pending_count++];
    *p = (struct etcd_pending){ .call = c, .since_t = s->t, .commit_t = SIM_NEVER };
    c->refs++;
    if (e->leader >= 0 && sim_etcd_member_ok(s, c->member))
        propose(s, p);
    else
        tick_at(s, s->t + (rng_below(&s->rng, 3) ? PATIENCE_US : 1000), ETCD_PATIENCE,
                c);
}

void sim_etcd_request(struct sim *s, struct sim_call *c)
{
    struct etcd_member *m = &s->etcd->members[c->member];
    struct etcd_want w;

    if (!m->up) {
        sim_http_refuse(c);
        return;
    }
    if (m->stopped_t > s->t) { /* It stays in the socket until the member wakes up. */
        struct sim_event *ev = sim_at(s, m->stopped_t, SIM_EV_ETCD_AT);

        ev->call = c;
        ev->node = c->node->index;
        ev->boot = c->boot;
        c->refs++;
        return;
    }
    if (s->etcd->v2 ? etcd2_is_wait(&c->msg, &w) : etcd3_is_watch(&c->msg, &w))
        sim_etcd_watch(s, c, &w);
    else
        accept_request(s, c);
}

static size_t pending_of(const struct sim_etcd *e, const struct sim_call *c)
{
    size_t i = 0;

    while (i < e->pending_count && e->pending[i].call != c)
        i++;
    return i;
}

static void on_commit(struct sim *s, struct sim_call *c)
{
    struct sim_etcd *e = s->etcd;
    const size_t i = pending_of(e, c);

    if (i == e->pending_count || e->pending[i].commit_t > s->t || e->leader < 0)
        return;
    apply(s, c, !e->pending[i].lost);
    if (e->pending[i].lost) /* It was done, but the client does not learn that. */
        refuse(s, c, true);
    forget(e, pending_of(e, c));
}

static void on_patience(struct sim *s, struct sim_call *c)
{
    const size_t i = pending_of(s->etcd, c);

    if (i == s->etcd->pending_count || s->etcd->pending[i].commit_t != SIM_NEVER)
        return;
    refuse(s, c, s->t - s->etcd->pending[i].since_t >= PATIENCE_US);
    forget(s->etcd, i);
}

/* ---- The leader ---- */

static uint64_t dead_us(const struct sim *s)
{
    return rdzv_dead_after_ms(&s->cfg.settings) * 1000;
}

/* Of the requests that a lost leader had not committed, some are lost and some are in
 * the next leader's log; no client can tell which. */
static void lose_leader(struct sim *s)
{
    struct sim_etcd *e = s->etcd;

    e->flaps |= e->elected_t && s->t - e->elected_t < dead_us(s) / 2;
    e->leader = -1;
    sim_log(s, NULL, "-- the cluster has no leader");
    for (size_t i = e->pending_count; i-- > 0;) {
        struct etcd_pending *p = &e->pending[i];

        if (p->commit_t == SIM_NEVER)
            continue;
        p->commit_t = SIM_NEVER;
        p->lost = rng_below(&s->rng, 2) == 0;
        if (!p->lost) { /* It will never be done. */
            tick_at(s, s->t + 1000 + rng_below(&s->rng, PATIENCE_US), ETCD_PATIENCE,
                    p->call);
            p->since_t = 0;
        }
    }
}

/* Members have come or gone: the leader may be lost, or one can be elected. */
static void update_leader(struct sim *s)
{
    struct sim_etcd *e = s->etcd;

    if (e->leader >= 0 && (!sim_etcd_member_ok(s, (size_t)e->leader) || !quorum(s)))
        lose_leader(s);
    if (e->leader >= 0 || e->electing || !quorum(s))
        return;
    e->electing = true;
    tick_at(s, s->t + 1000000 + rng_below(&s->rng, 1500000), ETCD_ELECT, NULL);
}

static void on_elect(struct sim *s)
{
    struct sim_etcd *e = s->etcd;
    size_t at = rng_below(&s->rng, e->count);

    e->electing = false;
    if (e->leader >= 0 || !quorum(s))
        return;
    while (!sim_etcd_member_ok(s, at))
        at = (at + 1) % e->count;
    e->leader = (int)at;
    e->elected_t = s->t;
    sim_log(s, NULL, "-- m%zu leads the cluster", at);
    /* A new leader starts all leases anew. */
    for (size_t i = 0; i < e->store.lease_count; i++)
        e->store.leases[i].expire_t = s->t + e->store.leases[i].ttl_us;
    for (size_t i = 0; i < e->pending_count; i++) {
        struct etcd_pending *p = &e->pending[i];

        if (p->commit_t != SIM_NEVER || !(p->lost || p->since_t))
            continue;
        if (p->lost || sim_etcd_member_ok(s, p->call->member)) {
            const bool lost = p->lost;

            propose(s, p);
            p->lost = lost;
        }
    }
}

/* ---- Faults ---- */

static void drop_member(struct sim *s, size_t member)
{
    struct sim_etcd *e = s->etcd;

    sim_etcd_drop_watchers(s, member, false);
    for (size_t i = e->pending_count; i-- > 0;) {
        if (e->pending[i].call->member != member)
            continue;
        sim_http_break(e->pending[i].call);
        if (e->pending[i].commit_t == SIM_NEVER && !e->pending[i].lost)
            forget(e, i);
    }
}

void sim_etcd_fault(struct sim *s, enum etcd_fault fault, size_t member,
                    uint64_t for_us)
{
    struct sim_etcd *e = s->etcd;
    struct etcd_member *m = &e->members[member];
    const uint64_t back_t = s->t + for_us;

    s->host_calm_t = MAX_OF(s->host_calm_t, back_t + 4000000);
    switch (fault) {
    case ETCD_FAULT_KILL:
        sim_log(s, NULL, "-- m%zu is killed, back at %.3f", member,
                (double)back_t / 1e6);
        m->up = false;
        drop_member(s, member);
        break;
    case ETCD_FAULT_STOP:
        sim_log(s, NULL, "-- m%zu is stopped until %.3f", member, (double)back_t / 1e6);
        m->stopped_t = MAX_OF(m->stopped_t, back_t);
        break;
    case ETCD_FAULT_CUT:
        sim_log(s, NULL, "-- m%zu is cut off from the others until %.3f", member,
                (double)back_t / 1e6);
        m->cut_t = MAX_OF(m->cut_t, back_t);
        break;
    case ETCD_FAULT_COMPACT:
        sim_log(s, NULL, "-- its history is compacted");
        etcd_store_compact(&e->store);
        return;
    case ETCD_FAULT_STREAMS:
        sim_log(s, NULL, "-- every stream breaks");
        sim_etcd_drop_watchers(s, 0, true);
        return;
    }
    tick_at(s, back_t, ETCD_MEMBER_BACK, NULL);
    update_leader(s);
}

static void on_back(struct sim *s)
{
    for (size_t i = 0; i < s->etcd->count; i++) {
        struct etcd_member *m = &s->etcd->members[i];

        if (!m->up && m->stopped_t <= s->t && m->cut_t <= s->t)
            m->up = true;
    }
    update_leader(s);
    sim_etcd_changed(s); /* Watchers of a member that lagged catch up. */
}

static void on_expire(struct sim *s)
{
    tick_at(s, s->t + EXPIRE_US, ETCD_EXPIRE, NULL);
    if (s->etcd->leader < 0 || !etcd_store_expire(&s->etcd->store, s->t))
        return;
    sim_etcd_changed(s);
}

void sim_etcd_tick(struct sim *s, const struct sim_event *ev)
{
    switch ((enum etcd_tick)ev->what) {
    case ETCD_COMMIT:
        on_commit(s, ev->call);
        return;
    case ETCD_ELECT:
        on_elect(s);
        return;
    case ETCD_EXPIRE:
        on_expire(s);
        return;
    case ETCD_PUSH:
        sim_etcd_push(s, ev->call);
        return;
    case ETCD_PATIENCE:
        on_patience(s, ev->call);
        return;
    case ETCD_MEMBER_BACK:
        on_back(s);
        return;
    }
}

void sim_etcd_start(struct sim *s, bool v2, size_t members)
{
    struct sim_etcd *e = mem_calloc(1, sizeof *e);

    assert(e && members <= ETCD_MEMBERS_MAX);
    s->etcd = e;
    e->v2 = v2;
    e->count = members;
    e->store.revision = e->store.oldest = 1;
    for (size_t i = 0; i < members; i++)
        e->members[i].up = true;
    tick_at(s, EXPIRE_US, ETCD_EXPIRE, NULL);
}

void sim_etcd_stop(struct sim *s)
{
    struct sim_etcd *e = s->etcd;

    if (!e)
        return;
    while (e->pending_count)
        forget(e, e->pending_count - 1);
    sim_etcd_drop_watchers(s, 0, true);
    etcd_store_fini(&e->store);
    mem_free(e->pending);
    mem_free(e->watchers);
    mem_free(e);
    s->etcd = NULL;
}
