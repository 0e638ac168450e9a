/* seats_nodes.c - the nodes of ours that a coordinator knows, and which of them
 * wait for an answer. Who is connected and who is lost is known in sessions.c.
 *
 * Every operation on one node costs the same however many nodes there are. */
#include "base/list.h"
#include "base/mem.h"

#include <assert.h>

#include "job/core/seats_int.h"

struct seat_node *seats_find(const struct seats *c, const struct rdzv_node *node)
{
    uint8_t key[RDZV_KEY_MAX];
    struct map_link *link;

    if (node->addr.n > RDZV_MAX_ADDR)
        return NULL;
    link = map_get(&c->nodes, rdzv_node_key(key, node));
    return link ? CONTAINER_OF(link, struct seat_node, link) : NULL;
}

void seats_request_begin(struct seats *c, struct seat_node *node)
{
    assert(!node->request);
    node->request = true;
    LIST_APPEND(&c->requests, node, request_prev, request_next);
}

void seats_request_end(struct seats *c, struct seat_node *node)
{
    if (!node->request)
        return;
    assert(c->requests.first && c->staying >= node->stays);
    c->staying -= node->stays;
    node->request = node->stays = false;
    LIST_REMOVE(&c->requests, node, request_prev, request_next);
}

void seat_node_remove(struct seats *c, struct seat_node *node)
{
    struct run_session *const s = node->session;

    seats_request_end(c, node);
    for (size_t i = 0; i < ARRAY_LEN(c->stores); i++)
        if (c->stores[i].by == node)
            c->stores[i].by = NULL;
    LIST_REMOVE(&c->all, node, prev, next);
    map_remove(&c->nodes, &node->link);
    mem_free(node->role);
    mem_free(node);
    s->seat = NULL;
    s->grace_us = MONO_NEVER;
}

struct seat_node *seat_node_new(struct seats *c, const struct rdzv_node *name,
                                struct run_session *s)
{
    struct seat_node *node;
    uint8_t *key;

    if (map_reserve(&c->nodes, 1) < 0)
        return NULL;
    node = mem_calloc(1, sizeof *node + RDZV_KEY_HEAD + name->addr.n);
    if (!node)
        return NULL;
    key = (uint8_t *)(node + 1);
    node->link.key = rdzv_node_key(key, name);
    node->node = *name;
    node->node.addr.p = key + RDZV_KEY_HEAD;
    node->session = s;
    s->seat = node;
    map_add(&c->nodes, &node->link);
    LIST_APPEND(&c->all, node, prev, next);
    return node;
}
