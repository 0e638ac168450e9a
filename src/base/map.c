/* map.c - open addressing, linear probing, backward-shift removal; see map.h.
 *
 * A slot is 32 bits of the hash and a link, in two arrays: probing runs along the
 * hashes, sixteen to a cache line, and touches an entry only when it is very likely the
 * right one. Growing does not hash the keys again. */
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
    mem_free(m->links);
    m->links = NULL;
    m->hashes = NULL;
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

static struct span link_key(const struct map *m, const struct map_link *link)
{
    return m->key_of ? m->key_of(link) : link->key;
}

/* The part of the hash that a slot keeps. It is never 0, which marks a free slot. */
static uint32_t short_hash(const struct map *m, struct span key)
{
    const uint32_t hash = (uint32_t)map_hash(m, key);

    return hash ? hash : 1;
}

struct map_link *map_get(const struct map *m, struct span key)
{
    uint32_t hash;

    if (m->count == 0)
        return NULL;
    hash = short_hash(m, key);
    for (size_t i = hash & (m->size - 1); m->hashes[i]; i = (i + 1) & (m->size - 1)) {
        if (m->hashes[i] == hash && span_eq(link_key(m, m->links[i]), key))
            return m->links[i];
    }
    return NULL;
}

static void slot_put(struct map *m, struct map_link *link, uint32_t hash)
{
    size_t i = hash & (m->size - 1);

    assert(hash && m->count < m->size);
    while (m->hashes[i])
        i = (i + 1) & (m->size - 1);
    m->links[i] = link;
    m->hashes[i] = hash;
}

/* A map is at most seven eighths full. At that load a miss looks at about thirty
 * hashes, which is two cache lines. */
static size_t room_in(size_t size)
{
    return size / 8 * 7;
}

int map_reserve(struct map *m, size_t more)
{
    const struct map old = *m;
    size_t size = old.size ? old.size : 16;
    struct map_link **links;

    if (more > SIZE_MAX / 32 || m->count > SIZE_MAX / 32)
        return MUSTER_ENOMEM;
    while (room_in(size) < m->count + more)
        size *= 2;
    if (size == old.size)
        return 0;
    links = mem_calloc(size, sizeof *links + sizeof *m->hashes);
    if (!links)
        return MUSTER_ENOMEM;
    m->links = links;
    m->hashes = (uint32_t *)(void *)(links + size);
    m->size = size;
    for (size_t i = 0; i < old.size; i++) {
        if (old.hashes[i])
            slot_put(m, old.links[i], old.hashes[i]);
    }
    mem_free(old.links);
    return 0;
}

void map_add(struct map *m, struct map_link *link)
{
    assert(m->count < room_in(m->size));
    slot_put(m, link, short_hash(m, link_key(m, link)));
    m->count++;
}

void map_remove(struct map *m, struct map_link *link)
{
    const size_t mask = m->size - 1;
    size_t hole = short_hash(m, link_key(m, link)) & mask;

    assert(m->count > 0);
    while (!m->hashes[hole] || m->links[hole] != link) {
        assert(m->hashes[hole]); /* The link must be in this map. */
        hole = (hole + 1) & mask;
    }
    for (size_t i = (hole + 1) & mask; m->hashes[i]; i = (i + 1) & mask) {
        const size_t home = m->hashes[i] & mask;

        /* Slot i may move back to the hole unless its home lies in between. */
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->links[hole] = m->links[i];
            m->hashes[hole] = m->hashes[i];
            hole = i;
        }
    }
    m->hashes[hole] = 0;
    m->count--;
}

int map_init_as(struct map *m, const struct map *like)
{
    struct map_link **links = NULL;

    if (like->size) {
        links = mem_calloc(like->size, sizeof *links + sizeof *like->hashes);
        if (!links)
            return MUSTER_ENOMEM;
    }
    *m = *like;
    m->links = links;
    m->hashes = links ? (uint32_t *)(void *)(links + like->size) : NULL;
    m->count = 0;
    return 0;
}

void map_clear(struct map *m)
{
    if (m->size)
        memset(m->hashes, 0, m->size * sizeof *m->hashes);
    m->count = 0;
}

struct map_link *map_next(const struct map *m, size_t *i)
{
    for (; *i < m->size; ++*i) {
        if (m->hashes[*i])
            return m->links[(*i)++];
    }
    return NULL;
}
