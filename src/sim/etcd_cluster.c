/* etcd_cluster.c - members, the leader, requests on their way into the log, and faults;
 * see etcd.h. */
#include <assert.h>

#include "sim/etcd.h"

struct cluster cluster;

#define EXPIRE_US   500000u  /* how often a leader looks for what has expired */
#define FLAP_US     7500000u /* within which not all nodes can renew their keys */
#define PATIENCE_US 7000000u /* after which a request without a leader is refused */

bool cluster_member_ok(size_t member)
{
    const struct etcd_member *m = &cluster.members[member];

    return m->up && m->stopped_t <= os.t && m->cut_t <= os.t;
}

static bool quorum(void)
{
    size_t n = 0;

    for (size_t i = 0; i < cluster.count; i++)
        n += cluster_member_ok(i);
    return n > cluster.count / 2;
}

/* ---- Requests ---- */

static void refuse(struct cluster_call *c, bool timed_out)
{
    struct etcd_response r = { 0 };

    buf_init(&r.body, SIZE_MAX);
    if (cluster.v2)
        etcd2_refuse(&cluster.store, timed_out, &r);
    else
        etcd3_refuse(timed_out, &r);
    call_answer(c, &r);
    buf_fini(&r.body);
}

static void apply(struct cluster_call *c, bool answer)
{
    struct cluster *e = &cluster;
    const uint64_t before = e->store.revision;
    struct etcd_response r = { 0 };

    buf_init(&r.body, SIZE_MAX);
    if (e->v2)
        etcd2_apply(&e->store, os.t, &c->request, &r);
    else
        etcd3_apply(&e->store, os.t, &c->request, &r);
    if (answer)
        call_answer(c, &r);
    buf_fini(&r.body);
    if (e->store.revision != before)
        cluster_changed();
}

static void forget(struct cluster *e, size_t i)
{
    memmove(&e->pending[i], &e->pending[i + 1],
            (e->pending_count - i - 1) * sizeof *e->pending);
    e->pending_count--;
}

static uint64_t raft_us(void)
{
    if (rng_below(&cluster.rng, 40) == 0)
        return 50000 + rng_below(&cluster.rng, 400000); /* a slow disk */
    return 500 + rng_below(&cluster.rng, 3000);
}

static void on_commit(void *call, uint64_t n);
static void on_patience(void *call, uint64_t n);

static void propose(struct etcd_pending *p)
{
    p->commit_t = os.t + raft_us();
    p->lost = false;
    os_at(p->commit_t, on_commit, p->call, 0);
}

static void accept_request(struct cluster_call *c)
{
    struct cluster *e = &cluster;
    struct etcd_pending *p;

    e->pending = os_grow(e->pending, e->pending_count, sizeof *e->pending);
    p = &e->pending[e->pending_count++];
    *p = (struct etcd_pending){ .call = c, .since_t = os.t, .commit_t = OS_NEVER };
    if (e->leader >= 0 && cluster_member_ok(c->member))
        propose(p);
    else
        os_at(os.t + (rng_below(&cluster.rng, 3) ? PATIENCE_US : 1000), on_patience, c,
              0);
}

/* The request has arrived at its member. */
void cluster_on_request(void *call, uint64_t n)
{
    struct cluster_call *c = call;
    struct etcd_member *m = &cluster.members[c->member];
    struct etcd_want w;

    if (!m->up) {
        call_refuse(c);
        return;
    }
    if (m->stopped_t > os.t) { /* It stays in the socket until the member wakes up. */
        os_at(m->stopped_t, cluster_on_request, c, 0);
        return;
    }
    if (cluster.v2 ? etcd2_is_wait(&c->request, &w) : etcd3_is_watch(&c->request, &w))
        cluster_watch(c, &w);
    else
        accept_request(c);
}

static size_t pending_of(const struct cluster *e, const struct cluster_call *c)
{
    size_t i = 0;

    while (i < e->pending_count && e->pending[i].call != c)
        i++;
    return i;
}

static void on_commit(void *call, uint64_t n)
{
    struct cluster_call *c = call;
    struct cluster *e = &cluster;
    const size_t i = pending_of(e, c);

    if (i == e->pending_count || e->pending[i].commit_t > os.t || e->leader < 0)
        return;
    apply(c, !e->pending[i].lost);
    if (e->pending[i].lost) /* It was done, but the client does not learn that. */
        refuse(c, true);
    forget(e, pending_of(e, c));
}

static void on_patience(void *call, uint64_t n)
{
    struct cluster_call *c = call;
    const size_t i = pending_of(&cluster, c);

    if (i == cluster.pending_count || cluster.pending[i].commit_t != OS_NEVER)
        return;
    refuse(c, os.t - cluster.pending[i].since_t >= PATIENCE_US);
    forget(&cluster, i);
}

/* ---- The leader ---- */

/* Of the requests that a lost leader had not committed, some are lost and some are in
 * the next leader's log; no client can tell which. */
static void lose_leader(void)
{
    struct cluster *e = &cluster;

    e->flaps |= e->elected_t && os.t - e->elected_t < FLAP_US;
    e->leader = -1;
    os_log("etcd", "-- the cluster has no leader");
    for (size_t i = e->pending_count; i-- > 0;) {
        struct etcd_pending *p = &e->pending[i];

        if (p->commit_t == OS_NEVER)
            continue;
        p->commit_t = OS_NEVER;
        p->lost = rng_below(&cluster.rng, 2) == 0;
        if (!p->lost) { /* It will never be done. */
            os_at(os.t + 1000 + rng_below(&cluster.rng, PATIENCE_US), on_patience,
                  p->call, 0);
            p->since_t = 0;
        }
    }
}

static void on_elect(void *arg, uint64_t n);

/* Members have come or gone: the leader may be lost, or one can be elected. */
static void update_leader(void)
{
    struct cluster *e = &cluster;

    if (e->leader >= 0 && (!cluster_member_ok((size_t)e->leader) || !quorum()))
        lose_leader();
    if (e->leader >= 0 || e->electing || !quorum())
        return;
    e->electing = true;
    os_at(os.t + 1000000 + rng_below(&cluster.rng, 1500000), on_elect, NULL, 0);
}

static void on_elect(void *arg, uint64_t n)
{
    struct cluster *e = &cluster;
    size_t at = rng_below(&cluster.rng, e->count);

    e->electing = false;
    if (e->leader >= 0 || !quorum())
        return;
    while (!cluster_member_ok(at))
        at = (at + 1) % e->count;
    e->leader = (int)at;
    e->elected_t = os.t;
    os_log("etcd", "-- m%zu leads the cluster", at);
    /* A new leader starts all leases anew. */
    for (size_t i = 0; i < e->store.lease_count; i++)
        e->store.leases[i].expire_t = os.t + e->store.leases[i].ttl_us;
    for (size_t i = 0; i < e->pending_count; i++) {
        struct etcd_pending *p = &e->pending[i];

        if (p->commit_t != OS_NEVER || !(p->lost || p->since_t))
            continue;
        if (p->lost || cluster_member_ok(p->call->member)) {
            const bool lost = p->lost;

            propose(p);
            p->lost = lost;
        }
    }
}

/* ---- Faults ---- */

static void drop_member(size_t member)
{
    struct cluster *e = &cluster;

    cluster_drop_watchers(member, false);
    for (size_t i = e->pending_count; i-- > 0;) {
        if (e->pending[i].call->member != member)
            continue;
        call_break(e->pending[i].call);
        if (e->pending[i].commit_t == OS_NEVER && !e->pending[i].lost)
            forget(e, i);
    }
}

static void on_back(void *arg, uint64_t n)
{
    for (size_t i = 0; i < cluster.count; i++) {
        struct etcd_member *m = &cluster.members[i];

        if (!m->up && m->stopped_t <= os.t && m->cut_t <= os.t)
            m->up = true;
    }
    update_leader();
    cluster_changed(); /* Watchers of a member that lagged catch up. */
}

void cluster_fault(enum etcd_fault fault, size_t member, uint64_t for_us)
{
    struct cluster *e = &cluster;
    struct etcd_member *m = &e->members[member];
    const uint64_t back_t = os.t + for_us;

    switch (fault) {
    case ETCD_FAULT_KILL:
        os_log("etcd", "-- m%zu is killed, back at %.3f", member, (double)back_t / 1e6);
        m->up = false;
        drop_member(member);
        break;
    case ETCD_FAULT_STOP:
        os_log("etcd", "-- m%zu is stopped until %.3f", member, (double)back_t / 1e6);
        m->stopped_t = MAX_OF(m->stopped_t, back_t);
        break;
    case ETCD_FAULT_CUT:
        os_log("etcd", "-- m%zu is cut off from the others until %.3f", member,
               (double)back_t / 1e6);
        m->cut_t = MAX_OF(m->cut_t, back_t);
        break;
    case ETCD_FAULT_COMPACT:
        os_log("etcd", "-- its history is compacted");
        etcd_store_compact(&e->store);
        return;
    case ETCD_FAULT_STREAMS:
        os_log("etcd", "-- every stream breaks");
        cluster_drop_watchers(0, true);
        return;
    }
    os_at(back_t, on_back, NULL, 0);
    update_leader();
}

static void on_expire(void *arg, uint64_t n)
{
    os_at(os.t + EXPIRE_US, on_expire, NULL, 0);
    if (cluster.leader < 0 || !etcd_store_expire(&cluster.store, os.t))
        return;
    cluster_changed();
}

void cluster_start(bool v2, size_t members, uint64_t seed)
{
    struct cluster *e = &cluster;

    assert(members <= ETCD_MEMBERS_MAX);
    *e = (struct cluster){ .v2 = v2, .count = members };
    rng_init(&e->rng, seed);
    e->store.revision = e->store.oldest = 1;
    for (size_t i = 0; i < members; i++)
        e->members[i].up = true;
    os_at(EXPIRE_US, on_expire, NULL, 0);
}
