/* coordinator_nodes.c - the nodes of ours that a coordinator knows, and the lists they
 * are in: when each was last heard of, which wait for an answer, and which have been
 * gone for less than their grace.
 *
 * Every operation on one node costs the same however many nodes there are. */
#include "base/list.h"
#include "base/mem.h"

#include <assert.h>

#include "job/core/coordinator_int.h"

struct node_session *coordinator_find(const struct coordinator *c,
                                      const struct rdzv_node *node)
{
    uint8_t key[RDZV_KEY_MAX];
    struct map_link *link;

    if (node->addr.n > RDZV_MAX_ADDR)
        return NULL;
    link = map_get(&c->node_sessions, rdzv_node_key(key, node));
    return link ? CONTAINER_OF(link, struct node_session, link) : NULL;
}

struct node_session *node_session_of(const struct coordinator *c, uint32_t peer)
{
    return peer < c->by_peer_size ? c->by_peer[peer] : NULL;
}

static void heard_unlink(struct coordinator *c, struct node_session *session)
{
    LIST_REMOVE(&c->heard, session, prev, next);
}

void node_session_heard_first(struct coordinator *c, struct node_session *session,
                              struct now now)
{
    session->heard_ms = now.mono_ms;
    LIST_APPEND(&c->heard, session, prev, next);
}

void node_session_heard_again(struct coordinator *c, struct node_session *session,
                              struct now now)
{
    heard_unlink(c, session);
    node_session_heard_first(c, session, now);
}

void coordinator_request_begin(struct coordinator *c, struct node_session *session)
{
    assert(!session->request);
    session->request = true;
    LIST_APPEND(&c->requests, session, request_prev, request_next);
}

void coordinator_request_end(struct coordinator *c, struct node_session *session)
{
    if (!session->request)
        return;
    assert(c->requests.first && c->staying >= session->stays);
    c->staying -= session->stays;
    session->request = session->stays = false;
    LIST_REMOVE(&c->requests, session, request_prev, request_next);
}

/* The list is sorted by when its nodes are lost. Nodes of one run have the same grace,
 * so a node that goes later is lost later, and the search mostly ends where it
 * begins. */
void coordinator_gone_begin(struct coordinator *c, struct node_session *session,
                            uint64_t by_ms)
{
    struct node_session *before = c->gone.last;

    assert(session->lost_by_ms == MONO_NEVER && by_ms != MONO_NEVER);
    while (before && before->lost_by_ms > by_ms)
        before = before->gone_prev;
    session->lost_by_ms = by_ms;
    LIST_INSERT(&c->gone, before, session, gone_prev, gone_next);
    c->gone_count++;
}

void coordinator_gone_end(struct coordinator *c, struct node_session *session)
{
    if (session->lost_by_ms == MONO_NEVER)
        return;
    LIST_REMOVE(&c->gone, session, gone_prev, gone_next);
    c->gone_count--;
    session->lost_by_ms = MONO_NEVER;
}

void node_session_remove(struct coordinator *c, struct node_session *session)
{
    coordinator_request_end(c, session);
    heard_unlink(c, session);
    coordinator_gone_end(c, session);
    if (node_session_of(c, session->peer) == session)
        c->by_peer[session->peer] = NULL;
    map_remove(&c->node_sessions, &session->link);
    mem_free(session);
}

int coordinator_reserve_peer(struct coordinator *c, uint32_t peer)
{
    struct node_session **by_peer =
        mem_grow_to(c->by_peer, &c->by_peer_size, peer, sizeof *by_peer);

    if (!by_peer)
        return MUSTER_ENOMEM;
    c->by_peer = by_peer;
    return 0;
}

struct node_session *node_session_new(struct coordinator *c,
                                      const struct rdzv_node *node)
{
    struct node_session *session;
    uint8_t *key;

    if (map_reserve(&c->node_sessions, 1) < 0)
        return NULL;
    session = mem_calloc(1, sizeof *session + RDZV_KEY_HEAD + node->addr.n);
    if (!session)
        return NULL;
    key = (uint8_t *)(session + 1);
    session->link.key = rdzv_node_key(key, node);
    session->node = *node;
    session->node.addr.p = key + RDZV_KEY_HEAD;
    session->lost_by_ms = MONO_NEVER;
    map_add(&c->node_sessions, &session->link);
    return session;
}
