/* map.c - open addressing, linear probing, backward-shift removal; see map.h.
 *
 * A slot keeps 32 bits of the hash, so that probing touches an entry only when it is
 * very likely the right one, and growing does not hash again. */
#include "base/map.h"

#include <assert.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "muster/error.h"

void map_init(struct map *m, uint64_t seed)
{
    *m = (struct map){ .seed = { rng_mix(seed), rng_mix(seed + 1) } };
}

void map_fini(struct map *m)
{
    if (!m)
        return;
    mem_free(m->slots);
    m->slots = NULL;
    m->size = m->count = 0;
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline void sip_round(struct sip *s)
{
    s->v0 += s->v1;
    s->v1 = rotl(s->v1, 13) ^ s->v0;
    s->v0 = rotl(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotl(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotl(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotl(s->v1, 17) ^ s->v2;
    s->v2 = rotl(s->v2, 32);
}

uint64_t map_hash(const struct map *m, struct span key)
{
    struct sip s = { m->seed[0] ^ 0x736f6d6570736575u, m->seed[1] ^ 0x646f72616e646f6du,
                     m->seed[0] ^ 0x6c7967656e657261u,
                     m->seed[1] ^ 0x7465646279746573u };
    const size_t whole = key.n & ~(size_t)7;
    uint64_t last = (uint64_t)key.n << 56;

    for (size_t i = 0; i < whole; i += 8) {
        const uint64_t w = get_u64(key.p + i);

        s.v3 ^= w;
        sip_round(&s);
        s.v0 ^= w;
    }
    for (size_t i = whole; i < key.n; i++)
        last |= (uint64_t)key.p[i] << (8 * (i - whole));
    s.v3 ^= last;
    sip_round(&s);
    s.v0 ^= last;
    s.v2 ^= 0xff;
    sip_round(&s);
    sip_round(&s);
    sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

struct map_link *map_get(const struct map *m, struct span key)
{
    uint32_t hash;

    if (m->count == 0)
        return NULL;
    hash = (uint32_t)map_hash(m, key);
    for (size_t i = hash & (m->size - 1);; i = (i + 1) & (m->size - 1)) {
        const struct map_slot *slot = &m->slots[i];

        if (!slot->link)
            return NULL;
        if (slot->hash == hash && span_eq(slot->link->key, key))
            return slot->link;
    }
}

static void put(struct map *m, struct map_slot slot)
{
    size_t i = slot.hash & (m->size - 1);

    while (m->slots[i].link)
        i = (i + 1) & (m->size - 1);
    m->slots[i] = slot;
}

int map_reserve(struct map *m, size_t more)
{
    struct map_slot *old = m->slots;
    const size_t old_size = m->size;
    struct map_slot *slots;
    size_t size = old_size ? old_size : 16;

    if (more > SIZE_MAX / 16 || m->count > SIZE_MAX / 16)
        return MUSTER_ENOMEM;
    while (size / 4 * 3 < m->count + more) /* At most three quarters full. */
        size *= 2;
    if (size == old_size)
        return 0;
    slots = mem_calloc(size, sizeof *slots);
    if (!slots)
        return MUSTER_ENOMEM;
    m->slots = slots;
    m->size = size;
    for (size_t i = 0; i < old_size; i++) {
        if (old[i].link)
            put(m, old[i]);
    }
    mem_free(old);
    return 0;
}

void map_add(struct map *m, struct map_link *link)
{
    assert(m->count < m->size / 4 * 3);
    put(m, (struct map_slot){ link, (uint32_t)map_hash(m, link->key) });
    m->count++;
}

void map_remove(struct map *m, struct map_link *link)
{
    const size_t mask = m->size - 1;
    size_t hole = (uint32_t)map_hash(m, link->key) & mask;

    while (m->slots[hole].link != link) {
        assert(m->slots[hole].link); /* Else the link was never in this map. */
        hole = (hole + 1) & mask;
    }
    for (size_t i = (hole + 1) & mask; m->slots[i].link; i = (i + 1) & mask) {
        const size_t home = m->slots[i].hash & mask;

        /* May slot i move back to the hole? Yes unless its home lies in between. */
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].link = NULL;
    m->count--;
}

void map_clear(struct map *m)
{
    if (m->size)
        memset(m->slots, 0, m->size * sizeof *m->slots);
    m->count = 0;
}

struct map_link *map_next(const struct map *m, size_t *i)
{
    while (*i < m->size) {
        struct map_link *link = m->slots[(*i)++].link;

        if (link)
            return link;
    }
    return NULL;
}
