/* coordinator_nodes.c - the nodes of ours that a coordinator knows, and the lists they
 * are in: who was heard of when, who waits for an answer, who is gone for less than its
 * grace.
 *
 * Whatever happens to one node costs the same however many there are. */
#include "base/list.h"
#include "base/mem.h"

#include <assert.h>

#include "rendezvous/core/coordinator_int.h"

/* Identity as bytes: two numbers, then the address. */
#define KEY_FIXED 16u
#define KEY_MAX   (KEY_FIXED + RDZV_MAX_ADDR)

static struct span identity(uint8_t *key, const struct rdzv_node *n)
{
    put_u64(key, (uint64_t)n->pid);
    put_u64(key + 8, (uint64_t)n->local_id);
    assert(n->addr.n <= RDZV_MAX_ADDR);
    memcpy(key + KEY_FIXED, n->addr.p, n->addr.n);
    return span_of(key, KEY_FIXED + n->addr.n);
}

struct node_session *coordinator_find(const struct coordinator *h,
                                      const struct rdzv_node *node)
{
    uint8_t key[KEY_MAX];
    struct map_link *link;

    if (node->addr.n > RDZV_MAX_ADDR)
        return NULL;
    link = map_get(&h->node_sessions, identity(key, node));
    return link ? CONTAINER_OF(link, struct node_session, link) : NULL;
}

struct node_session *node_session_of(const struct coordinator *h, uint32_t peer)
{
    return peer < h->by_peer_size ? h->by_peer[peer] : NULL;
}

static void heard_unlink(struct coordinator *h, struct node_session *w)
{
    LIST_REMOVE(&h->heard, w, prev, next);
}

void node_session_heard(struct coordinator *h, struct node_session *w, struct now now)
{
    w->heard_ms = now.mono_ms;
    LIST_APPEND(&h->heard, w, prev, next);
}

void node_session_hear(struct coordinator *h, struct node_session *w, struct now now)
{
    heard_unlink(h, w);
    node_session_heard(h, w, now);
}

void coordinator_request_begin(struct coordinator *h, struct node_session *w)
{
    assert(!w->request);
    w->request = true;
    LIST_APPEND(&h->requests, w, request_prev, request_next);
}

void coordinator_request_end(struct coordinator *h, struct node_session *w)
{
    if (!w->request)
        return;
    assert(h->requests.first && h->staying >= w->stays);
    h->staying -= w->stays;
    w->request = w->stays = false;
    LIST_REMOVE(&h->requests, w, request_prev, request_next);
}

/* By when they are lost. Nodes of one run have one grace, so whoever goes last is lost
 * last: the search ends where it begins. */
void coordinator_gone_begin(struct coordinator *h, struct node_session *w,
                            uint64_t by_ms)
{
    struct node_session *before = h->gone.last;

    assert(w->lost_by_ms == MONO_NEVER && by_ms != MONO_NEVER);
    while (before && before->lost_by_ms > by_ms)
        before = before->gone_prev;
    w->lost_by_ms = by_ms;
    LIST_INSERT(&h->gone, before, w, gone_prev, gone_next);
}

void coordinator_gone_end(struct coordinator *h, struct node_session *w)
{
    if (w->lost_by_ms == MONO_NEVER)
        return;
    LIST_REMOVE(&h->gone, w, gone_prev, gone_next);
    w->lost_by_ms = MONO_NEVER;
}

void node_session_remove(struct coordinator *h, struct node_session *w)
{
    coordinator_request_end(h, w);
    heard_unlink(h, w);
    coordinator_gone_end(h, w);
    if (node_session_of(h, w->peer) == w)
        h->by_peer[w->peer] = NULL;
    map_remove(&h->node_sessions, &w->link);
    mem_free(w);
}

int coordinator_reserve_peer(struct coordinator *h, uint32_t peer)
{
    struct node_session **by_peer =
        mem_grow_to(h->by_peer, &h->by_peer_size, peer, sizeof *by_peer);

    if (!by_peer)
        return MUSTER_ENOMEM;
    h->by_peer = by_peer;
    return 0;
}

struct node_session *node_session_new(struct coordinator *h,
                                      const struct rdzv_node *node)
{
    struct node_session *w;
    uint8_t *key;

    if (map_reserve(&h->node_sessions, 1) < 0)
        return NULL;
    w = mem_calloc(1, sizeof *w + KEY_FIXED + node->addr.n);
    if (!w)
        return NULL;
    key = (uint8_t *)(w + 1);
    w->link.key = identity(key, node);
    w->node = *node;
    w->node.addr.p = key + KEY_FIXED;
    w->lost_by_ms = MONO_NEVER;
    map_add(&h->node_sessions, &w->link);
    return w;
}
