/* etcd_watch.c - the watches at each member of the cluster; see etcd.h. A member
 * reports changes late, and one that is cut off reports them when it is back. */
#include "sim/etcd.h"

static void drop(struct cluster *e, size_t i)
{
    e->watchers[i] = e->watchers[--e->watcher_count];
}

void cluster_drop_watchers(size_t member, bool all)
{
    struct cluster *e = &cluster;

    for (size_t i = e->watcher_count; i-- > 0;) {
        if (!all && e->watchers[i].call->member != member)
            continue;
        call_break(e->watchers[i].call);
        drop(e, i);
    }
}

static bool matches(const struct etcd_want *w, const char *key)
{
    if (!w->end)
        return strcmp(key, w->key) == 0;
    return strcmp(key, w->key) >= 0 && strcmp(key, w->end) < 0;
}

/* v2: one event answers the request. True if there was one. */
static bool notify_v2(struct cluster *e, struct etcd_watcher *w)
{
    struct etcd_response r = { 0 };
    bool notified = false;

    buf_init(&r.body, SIZE_MAX);
    if (w->want.next && w->want.next < e->store.oldest) {
        etcd2_cleared(&e->store, w->want.next, &r);
        notified = true;
    }
    for (size_t i = 0; !notified && i < e->store.change_count; i++) {
        const struct etcd_change *c = &e->store.changes[i];

        if (c->revision < w->want.next || !matches(&w->want, c->key))
            continue;
        etcd2_event(&e->store, c, &r);
        notified = true;
    }
    if (notified)
        call_answer(w->call, &r);
    buf_fini(&r.body);
    return notified;
}

/* v3: sends a line with all new events. True if the stream has ended. */
static bool notify_v3(struct cluster *e, struct etcd_watcher *w)
{
    const bool compacted = w->want.next < e->store.oldest;
    struct buf line;

    buf_init(&line, SIZE_MAX);
    if (compacted)
        etcd3_canceled(e->store.revision, e->store.oldest, &line);
    else
        etcd3_events(&e->store, e->store.changes, e->store.change_count, &w->want,
                     &line);
    if (buf_len(&line))
        call_push(w->call, buf_span(&line));
    w->want.next = e->store.revision + 1;
    buf_fini(&line);
    return compacted;
}

static void on_push(void *call, uint64_t n)
{
    struct cluster_call *c = call;
    struct cluster *e = &cluster;
    size_t i = 0;

    while (i < e->watcher_count && e->watchers[i].call != c)
        i++;
    if (i == e->watcher_count)
        return;
    e->watchers[i].due = false;
    if (c->gone) {
        drop(e, i);
        return;
    }
    if (!cluster_member_ok(c->member))
        return; /* It is sent when the member is back. */
    if (e->v2 ? notify_v2(e, &e->watchers[i]) : notify_v3(e, &e->watchers[i]))
        drop(e, i);
}

static void push_soon(struct etcd_watcher *w)
{
    uint64_t lag = 200 + rng_below(&cluster.rng, 2000);

    if (w->due)
        return;
    if (rng_below(&cluster.rng, 30) == 0)
        lag += rng_below(&cluster.rng, 1500000); /* The member lags. */
    w->due = true;
    os_at(os.t + lag, on_push, w->call, 0);
}

void cluster_changed(void)
{
    for (size_t i = 0; i < cluster.watcher_count; i++)
        push_soon(&cluster.watchers[i]);
}

void cluster_watch(struct cluster_call *c, struct etcd_want *w)
{
    struct cluster *e = &cluster;
    struct buf line;

    if (c->gone)
        return;
    e->watchers = os_grow(e->watchers, e->watcher_count, sizeof *e->watchers);
    e->watchers[e->watcher_count++] = (struct etcd_watcher){ .call = c, .want = *w };
    w = &e->watchers[e->watcher_count - 1].want;
    if (!e->v2) {
        buf_init(&line, SIZE_MAX);
        etcd3_created(e->store.revision, &line);
        call_push(c, buf_span(&line));
        buf_fini(&line);
    }
    if (w->next == 0)
        w->next = e->store.revision + 1;
    if (w->next <= e->store.revision)
        push_soon(&e->watchers[e->watcher_count - 1]);
}
