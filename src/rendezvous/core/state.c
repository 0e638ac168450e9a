/* state.c - see state.h. */
#include "rendezvous/core/state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/mem.h"
#include "muster/error.h"

int rdzv_node_cmp(const struct rdzv_node *a, const struct rdzv_node *b)
{
    const int c = span_cmp(a->addr, b->addr);

    if (c != 0)
        return c;
    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    return (a->local_id > b->local_id) - (a->local_id < b->local_id);
}

const char *rdzv_node_text(const struct rdzv_node *n, char *text, size_t size)
{
    (void)snprintf(text, size, "%.*s_%lld_%lld", (int)n->addr.n,
                   n->addr.n ? (const char *)n->addr.p : "", (long long)n->pid,
                   (long long)n->local_id);
    return text;
}

#define ORDER_DIGITS 8

struct span rdzv_unordered_addr(struct span addr)
{
    if (addr.n <= ORDER_DIGITS + 1 || addr.p[ORDER_DIGITS] != '.')
        return addr;
    for (size_t i = 0; i < ORDER_DIGITS; i++)
        if (addr.p[i] < '0' || addr.p[i] > '9')
            return addr;
    return span_of(addr.p + ORDER_DIGITS + 1, addr.n - ORDER_DIGITS - 1);
}

struct span rdzv_ordered_addr(struct span addr, uint64_t order,
                              char to[RDZV_ORDERED_SIZE])
{
    if (rdzv_unordered_addr(addr).n != addr.n ||
        addr.n + ORDER_DIGITS + 1 > RDZV_MAX_ADDR || order > 99999999)
        return addr;
    (void)snprintf(to, RDZV_ORDERED_SIZE, "%0*" PRIu64 ".%.*s", ORDER_DIGITS, order,
                   (int)addr.n, addr.n ? (const char *)addr.p : "");
    return span_str(to);
}

void rdzv_state_init(struct rdzv_state *s)
{
    *s = (struct rdzv_state){ .deadline_us = WALL_NEVER };
    /* No seed is needed: whoever chooses addresses that collide slows down only its own
     * run. */
    map_init(&s->nodes, 0);
}

void rdzv_state_fini(struct rdzv_state *s)
{
    struct map_link *link;

    if (!s)
        return;
    for (size_t i = 0; (link = map_next(&s->nodes, &i));)
        mem_free(CONTAINER_OF(link, struct participant, link));
    map_fini(&s->nodes);
    rdzv_state_init(s);
}

struct span rdzv_node_key(uint8_t *key, const struct rdzv_node *n)
{
    assert(n->addr.n <= RDZV_MAX_ADDR);
    put_u64(key, (uint64_t)n->pid);
    put_u64(key + 8, (uint64_t)n->local_id);
    if (n->addr.n)
        memcpy(key + RDZV_KEY_HEAD, n->addr.p, n->addr.n);
    return span_of(key, RDZV_KEY_HEAD + n->addr.n);
}

/* In a table of this size, looking at every entry is quicker than hashing. */
#define FEW_SLOTS 16u

static struct participant *find_of_few(const struct rdzv_state *s,
                                       const struct rdzv_node *n)
{
    struct map_link *link;

    for (size_t i = 0; (link = map_next(&s->nodes, &i));) {
        struct participant *m = CONTAINER_OF(link, struct participant, link);
        if (m->node.pid == n->pid && m->node.local_id == n->local_id &&
            span_eq(m->node.addr, n->addr))
            return m;
    }
    return NULL;
}

struct participant *rdzv_state_find(const struct rdzv_state *s,
                                    const struct rdzv_node *n)
{
    uint8_t key[RDZV_KEY_MAX];
    struct map_link *link;

    if (s->nodes.size <= FEW_SLOTS)
        return find_of_few(s, n);
    link = map_get(&s->nodes, rdzv_node_key(key, n));
    return link ? CONTAINER_OF(link, struct participant, link) : NULL;
}

static struct participant *add(struct rdzv_state *s, const struct rdzv_node *n)
{
    struct participant *m;
    uint8_t *key;

    if (map_reserve(&s->nodes, 1) < 0)
        return NULL;
    m = mem_alloc(sizeof *m + RDZV_KEY_HEAD + n->addr.n);
    if (!m)
        return NULL;
    *m = (struct participant){ .node = *n };
    key = (uint8_t *)(m + 1);
    m->link.key = rdzv_node_key(key, n);
    m->node.addr.p = key + RDZV_KEY_HEAD;
    map_add(&s->nodes, &m->link);
    return m;
}

static void append(struct rdzv_state *s, struct participant *m, enum rdzv_list list)
{
    assert(!rdzv_in(m, list));
    m->in |= 1u << list;
    m->next[list] = NULL;
    m->prev[list] = s->list[list].last;
    if (m->prev[list])
        m->prev[list]->next[list] = m;
    else
        s->list[list].first = m;
    s->list[list].last = m;
    s->list[list].count++;
}

struct participant *rdzv_state_put(struct rdzv_state *s, const struct rdzv_node *n,
                                   enum rdzv_list list)
{
    struct participant *m = rdzv_state_find(s, n);

    if (!m)
        m = add(s, n);
    if (!m || rdzv_in(m, list))
        return m;
    append(s, m, list);
    if (list == RDZV_PLACES)
        m->rank = 0;
    if (list == RDZV_BEATS)
        m->beat_us = 0;
    return m;
}

static void unlink_from(struct rdzv_state *s, struct participant *m,
                        enum rdzv_list list)
{
    struct participant *next = m->next[list], *prev = m->prev[list];

    if (next)
        next->prev[list] = prev;
    else
        s->list[list].last = prev;
    if (prev)
        prev->next[list] = next;
    else
        s->list[list].first = next;
    s->list[list].count--;
    m->in &= ~(1u << list);
}

void rdzv_state_drop(struct rdzv_state *s, struct participant *m, enum rdzv_list list)
{
    if (!rdzv_in(m, list))
        return;
    unlink_from(s, m, list);
    if (m->in)
        return;
    map_remove(&s->nodes, &m->link);
    mem_free(m);
}

void rdzv_state_forget(struct rdzv_state *s, struct participant *m)
{
    for (unsigned list = 0; list < RDZV_LISTS; list++) {
        if (m->in & 1u << list)
            unlink_from(s, m, (enum rdzv_list)list);
    }
    map_remove(&s->nodes, &m->link);
    mem_free(m);
}

static struct participant *twin_of(const struct participant *m)
{
    return m ? m->twin : NULL;
}

static struct participant *make_twin(struct participant *m)
{
    struct participant *twin = mem_memdup(m, sizeof *m + m->link.key.n);

    if (!twin)
        return NULL;
    twin->link.key.p = (uint8_t *)(twin + 1);
    twin->node.addr.p = twin->link.key.p + RDZV_KEY_HEAD;
    m->twin = twin;
    return twin;
}

/* Copies each participant into the same slot, and then sets all links: nothing is
 * hashed. */
int rdzv_state_copy(struct rdzv_state *to, const struct rdzv_state *from)
{
    struct rdzv_state s = *from;
    struct map_link *link;

    if (map_init_as(&s.nodes, &from->nodes) < 0)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < from->nodes.size; i++) {
        struct participant *twin;

        if (!from->nodes.hashes[i])
            continue;
        twin = make_twin(CONTAINER_OF(from->nodes.links[i], struct participant, link));
        if (!twin) {
            rdzv_state_fini(&s);
            return MUSTER_ENOMEM;
        }
        map_put_at(&s.nodes, i, &twin->link, from->nodes.hashes[i]);
    }
    for (size_t i = 0; (link = map_next(&s.nodes, &i));) {
        struct participant *m = CONTAINER_OF(link, struct participant, link);

        for (unsigned list = 0; list < RDZV_LISTS; list++) {
            m->next[list] = m->in & 1u << list ? twin_of(m->next[list]) : NULL;
            m->prev[list] = m->in & 1u << list ? twin_of(m->prev[list]) : NULL;
        }
    }
    for (unsigned list = 0; list < RDZV_LISTS; list++) {
        s.list[list].first = twin_of(from->list[list].first);
        s.list[list].last = twin_of(from->list[list].last);
    }
    *to = s;
    return 0;
}
