/* keys.c - entries of the map, their values and queues.
 *
 * A store holds many small values that are set once and a few that change often, so a
 * value lies behind its key in one piece of memory as long as it fits there. */
#include <assert.h>

#include "base/mem.h"
#include "store/core/reserved.h"
#include "store/core/store_int.h"

/* A larger value gets a block of its own, so that it can be freed alone. */
#define INLINE_MAX 1024u

/* Every name has room behind it for the address of a block, wherever the name ends. */
#define INLINE_MIN (2 * sizeof(uint8_t *) - 1)

struct span name_of_link(const struct map_link *link)
{
    return key_name(key_of_link(link));
}

struct key *key_find(const struct store *s, struct span name)
{
    return key_of_link(map_get(&s->map, name));
}

/* The first aligned address behind the name: leak checkers look for pointers only at
 * such addresses. */
static uint8_t **value_block(struct key *k)
{
    const size_t end = offsetof(struct key, bytes) + k->name_len;
    const size_t align = sizeof(uint8_t *);

    return (uint8_t **)(void *)((uint8_t *)k + (end + align - 1) / align * align);
}

uint8_t *value_at(struct key *k)
{
    return k->outside ? *value_block(k) : k->bytes + k->name_len;
}

/* The size that malloc would hand out anyway: 8 bytes less than a multiple of 16. */
static size_t round_up(size_t n)
{
    return ((n + 8 + 15) & ~(size_t)15) - 8;
}

struct key *key_make(struct store *s, struct span name, size_t n)
{
    const size_t fixed = offsetof(struct key, bytes) + name.n;
    const size_t size = round_up(fixed + MAX_OF(n <= INLINE_MAX ? n : 0, INLINE_MIN));
    struct key *k;

    if (name.n > UINT32_MAX / 2 || map_reserve(&s->map, 1) < 0)
        return NULL;
    k = mem_alloc(size);
    if (!k)
        return NULL;
    *k = (struct key){ .name_len = (uint32_t)name.n, .cap = (uint32_t)(size - fixed) };
    if (name.n)
        memcpy(k->bytes, name.p, name.n);
    map_add(&s->map, key_link(k));
    return k;
}

uint64_t value_hash(struct store *s, struct key *k)
{
    if (!k || s->hashed != k) {
        s->hash = reserved_hash(key_value(k));
        s->hashed = k;
    }
    return s->hash;
}

void key_drop_if_empty(struct store *s, struct key *k)
{
    struct more *m = k->more;

    if (m && !m->ready.count && !m->watch.count && !m->unclaimed.count && !m->items) {
        mem_free(m);
        k->more = NULL;
    }
    if (k->present || k->more)
        return;
    map_remove(&s->map, key_link(k));
    if (s->hashed == k)
        s->hashed = NULL;
    key_free(k);
}

void key_free(struct key *k)
{
    if (k->outside)
        mem_free(value_at(k));
    if (k->more)
        queue_clear(k->more);
    mem_free(k->more);
    mem_free(k);
}

int key_need_more(struct key *k)
{
    if (!k->more)
        k->more = mem_calloc(1, sizeof *k->more);
    return k->more ? 0 : MUSTER_ENOMEM;
}

int value_reserve(struct key *k, size_t n, uint8_t **block)
{
    *block = NULL;
    if (n <= k->cap)
        return 0;
    *block = mem_alloc(round_up(n));
    return *block ? 0 : MUSTER_ENOMEM;
}

static void take_block(struct key *k, uint8_t *block, size_t size)
{
    assert(block && size <= UINT32_MAX);
    if (k->outside)
        mem_free(value_at(k));
    k->outside = true;
    *value_block(k) = block;
    k->cap = (uint32_t)size;
}

void value_set_len(struct store *s, struct key *k, size_t len)
{
    assert(len <= k->cap);
    if (!k->present) {
        s->present++;
        s->name_bytes += k->name_len;
    }
    k->present = true;
    k->len = (uint32_t)len;
    if (s->hashed == k)
        s->hashed = NULL;
}

void value_put(struct store *s, struct key *k, uint8_t *block, struct span v)
{
    if (block)
        take_block(k, block, round_up(v.n));
    assert(v.n <= k->cap);
    if (v.n)
        memcpy(value_at(k), v.p, v.n);
    value_set_len(s, k, v.n);
}

/* Doubles, so that many small APPENDs cost no more than one large SET. */
int value_grow(struct key *k, size_t n)
{
    const size_t size = round_up(MIN_OF(MAX_OF(n, (size_t)k->cap * 2), UINT32_MAX / 2));
    uint8_t *block;

    if (n <= k->cap)
        return 0;
    block = mem_alloc(size);
    if (!block)
        return MUSTER_ENOMEM;
    if (k->present && k->len)
        memcpy(block, value_at(k), k->len);
    take_block(k, block, size);
    return 0;
}

void value_drop(struct store *s, struct key *k)
{
    assert(k->present);
    assert(s->present > 0 && s->name_bytes >= k->name_len);
    s->present--;
    s->name_bytes -= k->name_len;
    k->present = false;
    if (s->hashed == k)
        s->hashed = NULL;
    if (!k->outside)
        return;
    mem_free(value_at(k)); /* The entry may stay for its waiters, without a value. */
    k->outside = false;
    k->cap = INLINE_MIN;
}

void value_slim(struct key *k, size_t n)
{
    uint8_t *block;

    if (!k->outside || k->cap < 4 * INLINE_MAX || n > k->cap / 4)
        return;
    block = mem_alloc(round_up(n));
    if (block)
        take_block(k, block, round_up(n));
}

int queue_push(struct key *k, struct span v)
{
    struct item *it;

    if (key_need_more(k) < 0)
        return MUSTER_ENOMEM;
    it = mem_alloc(sizeof *it + v.n);
    if (!it)
        return MUSTER_ENOMEM;
    it->next = NULL;
    it->n = v.n;
    if (v.n)
        memcpy(it->bytes, v.p, v.n);
    if (k->more->last)
        k->more->last->next = it;
    else
        k->more->first = it;
    k->more->last = it;
    k->more->items++;
    return 0;
}

struct item *queue_pop(struct key *k)
{
    struct more *m = k->more;
    struct item *it = m->first;

    assert(it && m->items > 0);
    m->first = it->next;
    if (!m->first)
        m->last = NULL;
    m->items--;
    return it;
}

void queue_clear(struct more *m)
{
    while (m->first) {
        struct item *it = m->first;

        m->first = it->next;
        mem_free(it);
    }
    m->last = NULL;
    m->items = 0;
}
