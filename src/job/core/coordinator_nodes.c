/* coordinator_nodes.c - the nodes of ours that a coordinator knows, and which of them
 * wait for an answer. Who is connected and who is lost is known in sessions.c.
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
    const struct session *s = sessions_of(c->sessions, LINE_SEATS, peer);

    return s ? s->part[LINE_SEATS] : NULL;
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

void node_session_remove(struct coordinator *c, struct node_session *session)
{
    struct session *const s = session->session;

    coordinator_request_end(c, session);
    LIST_REMOVE(&c->all, session, prev, next);
    map_remove(&c->node_sessions, &session->link);
    mem_free(session);
    assert(!session_is_open(s, LINE_SEATS));
    s->part[LINE_SEATS] = NULL;
    s->grace_us = MONO_NEVER;
    session_settle(c->sessions, s, LINE_SEATS);
    session_release(c->sessions, s);
}

struct node_session *node_session_new(struct coordinator *c,
                                      const struct rdzv_node *node, struct session *s)
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
    session->session = s;
    s->part[LINE_SEATS] = session;
    map_add(&c->node_sessions, &session->link);
    LIST_APPEND(&c->all, session, prev, next);
    return session;
}
