/* waits.c - which peers wait for which keys.
 *
 * A wait has a link for each of its keys. The link is struck off when the key is ready,
 * and the wait is answered when none is left. A link is in a list of its key, and a
 * wait leaves all lists in time proportional to its own keys: a peer that is gone costs
 * nothing afterwards. */
#include <assert.h>

#include "base/list.h"
#include "base/mem.h"
#include "store/core/store_int.h"

static void link_in(struct links *in, struct link *l)
{
    assert(!l->in);
    l->in = in;
    LIST_APPEND(in, l, prev, next);
    in->count++;
}

static void link_out(struct link *l)
{
    struct links *in = l->in;

    assert(in && in->count > 0);
    LIST_REMOVE(in, l, prev, next);
    in->count--;
    l->in = NULL;
}

static int peers_reserve(struct store *s, uint32_t peer)
{
    struct peer *peers = mem_grow_to(s->peers, &s->peers_size, peer, sizeof *peers);

    if (!peers)
        return MUSTER_ENOMEM;
    s->peers = peers;
    return 0;
}

int wait_new(struct store *s, uint32_t peer, enum c10d_op op, size_t links,
             struct wait **out)
{
    struct wait *w;

    if (peers_reserve(s, peer) < 0)
        return MUSTER_ENOMEM;
    w = mem_alloc(sizeof *w + links * sizeof w->links[0]);
    if (!w)
        return MUSTER_ENOMEM;
    *w = (struct wait){ .peer = peer, .op = op };
    *out = w;
    return 0;
}

static int key_for_wait(struct store *s, struct span name, struct key **out)
{
    struct key *k = key_find(s, name);

    if (!k)
        k = key_make(s, name, 0);
    if (!k)
        return MUSTER_ENOMEM;
    if (key_need_more(k) < 0) {
        key_drop_if_empty(s, k);
        return MUSTER_ENOMEM;
    }
    *out = k;
    return 0;
}

static void add_link(struct wait *w, struct key *k, struct links *in, uint64_t hash)
{
    struct link *l = &w->links[w->count++];

    *l = (struct link){ .key = k, .wait = w, .hash = hash };
    link_in(in, l);
    w->pending++;
}

/* A key that is named twice counts once: this wait is then already last in its list. */
int wait_for_ready(struct store *s, struct wait *w, struct span name)
{
    struct key *k;

    if (key_for_wait(s, name, &k) < 0)
        return MUSTER_ENOMEM;
    if (!k->more->ready.last || k->more->ready.last->wait != w)
        add_link(w, k, &k->more->ready, 0);
    return 0;
}

int wait_for_change(struct store *s, struct wait *w, struct span name, uint64_t hash)
{
    struct key *k;

    if (key_for_wait(s, name, &k) < 0)
        return MUSTER_ENOMEM;
    add_link(w, k, &k->more->watch, hash);
    return 0;
}

/* A peer that waits again will not pop the item that it was woken for: pass it on. */
void wait_begin(struct store *s, struct wait *w, struct store_fx *fx)
{
    assert(w->pending);
    peer_drop_wait(s, w->peer); /* A peer has one wait, the newest. */
    s->peers[w->peer].wait = w;
    s->waits++;
    peer_pass_on(s, w->peer, fx);
}

void wait_free(struct store *s, struct wait *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->count; i++) {
        struct link *l = &w->links[i];

        if (!l->key)
            continue;
        link_out(l);
        key_drop_if_empty(s, l->key);
    }
    mem_free(w);
}

void peer_drop_wait(struct store *s, uint32_t peer)
{
    if (peer >= s->peers_size || !s->peers[peer].wait)
        return;
    assert(s->waits > 0);
    wait_free(s, s->peers[peer].wait);
    s->peers[peer].wait = NULL;
    s->waits--;
}

static void drop_unclaimed(struct store *s, uint32_t peer)
{
    struct wait *w = s->peers[peer].unclaimed;

    s->peers[peer].unclaimed = NULL;
    wait_free(s, w);
}

static struct key *unclaimed_key(const struct wait *w)
{
    for (size_t i = 0; w && i < w->count; i++) {
        if (w->links[i].key)
            return w->links[i].key;
    }
    return NULL;
}

void peer_pass_on(struct store *s, uint32_t peer, struct store_fx *fx)
{
    struct wait *w = peer < s->peers_size ? s->peers[peer].unclaimed : NULL;

    if (!w)
        return;
    s->peers[peer].unclaimed =
        NULL; /* This peer may be woken itself if it waits again. */
    waits_pushed(s, unclaimed_key(w), fx); /* w is still linked, so the key stays. */
    wait_free(s, w);
}

void peer_popped(struct store *s, uint32_t peer, struct key *k)
{
    if (peer < s->peers_size && unclaimed_key(s->peers[peer].unclaimed) == k)
        drop_unclaimed(s, peer);
}

void queue_is_empty(struct store *s, struct key *k)
{
    struct link *l;

    while (k->more && (l = k->more->unclaimed.first)) {
        assert(s->peers[l->wait->peer].unclaimed == l->wait);
        link_out(l);
        s->peers[l->wait->peer].unclaimed = NULL;
        mem_free(l->wait); /* It has no other links. */
    }
}

static bool link_strike(struct link *l)
{
    assert(l->wait->pending > 0);
    link_out(l);
    l->key = NULL;
    return --l->wait->pending == 0;
}

static void wait_answer(struct store *s, struct wait *w, struct store_fx *fx)
{
    const struct c10d_reply stop = { .op = w->op, .number = 0 };

    assert(w->pending == 0 && w->peer < s->peers_size && s->waits > 0);
    assert(s->peers[w->peer].wait == w);
    s->peers[w->peer].wait = NULL;
    s->waits--;
    fx_reply(fx, w->peer, &stop);
}

void waits_changed(struct store *s, struct key *k, struct store_fx *fx)
{
    struct link *l, *next;
    uint64_t hash;

    if (!k->more || !k->more->watch.first)
        return;
    hash = value_hash(s, k);
    for (l = k->more->watch.first; l; l = next) {
        next = l->next; /* It belongs to another wait, or to one that goes on. */
        if (l->hash == hash || !link_strike(l))
            continue;
        wait_answer(s, l->wait, fx);
        mem_free(l->wait);
    }
}

void waits_written(struct store *s, struct key *k, struct store_fx *fx)
{
    while (k->more->ready.first) {
        struct link *l = k->more->ready.first;

        if (!link_strike(l))
            continue;
        wait_answer(s, l->wait, fx);
        mem_free(l->wait);
    }
    waits_changed(s, k, fx);
    key_drop_if_empty(s, k);
}

/* One item wakes one waiter: the oldest that waits for nothing else. It is expected to
 * pop the item. Waiters before it that also wait for other keys are struck off, since
 * the queue was filled once. */
void waits_pushed(struct store *s, struct key *k, struct store_fx *fx)
{
    assert(k && k->more);
    while (k->more->items && k->more->ready.first) {
        struct link *l = k->more->ready.first;
        struct wait *w = l->wait;

        if (!link_strike(l))
            continue;
        wait_answer(s, w, fx);
        l->key = k;
        link_in(&k->more->unclaimed, l);
        assert(!s->peers[w->peer].unclaimed); /* wait_begin has passed it on. */
        s->peers[w->peer].unclaimed = w;
        return;
    }
}
