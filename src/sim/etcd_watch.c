/* etcd_watch.c - the watches at each member of the cluster; see etcd.h. A member
 * reports changes late, and one that is cut off reports them when it is back. */
#include <assert.h>

#include "base/mem.h"
#include "sim/etcd.h"

static void want_fini(struct etcd_want *w)
{
    mem_free(w->key);
    mem_free(w->end);
}

static void drop(struct sim_etcd *e, size_t i)
{
    sim_call_unref(e->watchers[i].call);
    want_fini(&e->watchers[i].want);
    e->watchers[i] = e->watchers[--e->watcher_count];
}

void sim_etcd_drop_watchers(struct sim *s, size_t member, bool all)
{
    struct sim_etcd *e = s->etcd;

    for (size_t i = e->watcher_count; i-- > 0;) {
        if (!all && e->watchers[i].call->member != member)
            continue;
        sim_http_break(e->watchers[i].call);
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
static bool notify_v2(struct sim_etcd *e, struct etcd_watcher *w)
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
        sim_http_answer(w->call, &r);
    buf_fini(&r.body);
    return notified;
}

/* v3: sends a line with all new events. True if the stream has ended. */
static bool notify_v3(struct sim_etcd *e, struct etcd_watcher *w)
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
        sim_http_push(w->call, buf_span(&line));
    w->want.next = e->store.revision + 1;
    buf_fini(&line);
    return compacted;
}

void sim_etcd_push(struct sim *s, struct sim_call *c)
{
    struct sim_etcd *e = s->etcd;
    size_t i = 0;

    while (i < e->watcher_count && e->watchers[i].call != c)
        i++;
    if (i == e->watcher_count)
        return;
    e->watchers[i].due = false;
    if (c->gone || c->boot != c->node->boot) {
        drop(e, i);
        return;
    }
    if (!sim_etcd_member_ok(s, c->member))
        return; /* It is sent when the member is back. */
    if (e->v2 ? notify_v2(e, &e->watchers[i]) : notify_v3(e, &e->watchers[i]))
        drop(e, i);
}

static void push_soon(struct sim *s, struct etcd_watcher *w)
{
    struct sim_event *ev;
    uint64_t lag = 200 + rng_below(&s->rng, 2000);

    if (w->due)
        return;
    if (rng_below(&s->rng, 30) == 0)
        lag += rng_below(&s->rng, 1500000); /* The member lags. */
    w->due = true;
    ev = sim_at(s, s->t + lag, SIM_EV_ETCD_TICK);
    ev->what = ETCD_PUSH;
    ev->call = w->call;
    w->call->refs++;
}

void sim_etcd_changed(struct sim *s)
{
    for (size_t i = 0; i < s->etcd->watcher_count; i++)
        push_soon(s, &s->etcd->watchers[i]);
}

void sim_etcd_watch(struct sim *s, struct sim_call *c, struct etcd_want *w)
{
    struct sim_etcd *e = s->etcd;
    struct buf line;

    if (c->gone) {
        want_fini(w);
        return;
    }
    e->watchers =
        mem_realloc_array(e->watchers, e->watcher_count + 1, sizeof *e->watchers);
    assert(e->watchers);
    e->watchers[e->watcher_count++] = (struct etcd_watcher){ .call = c, .want = *w };
    c->refs++;
    w = &e->watchers[e->watcher_count - 1].want;
    if (!e->v2) {
        buf_init(&line, SIZE_MAX);
        etcd3_created(e->store.revision, &line);
        sim_http_push(c, buf_span(&line));
        buf_fini(&line);
    }
    if (w->next == 0)
        w->next = e->store.revision + 1;
    if (w->next <= e->store.revision)
        push_soon(s, &e->watchers[e->watcher_count - 1]);
}
