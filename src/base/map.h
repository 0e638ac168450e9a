/* map.h - a hash map from byte strings to structures that carry their own link.
 *
 * The map is intrusive: the owner of an entry owns its link and its key bytes, and
 * takes it out of the map before freeing either. Hashes are seeded, so that nobody
 * outside can choose keys that collide. The order of iteration is arbitrary, and
 * nothing may be added or removed during it. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/base.h"

struct map_link {
    struct span key; /* borrowed from the entry for as long as it is in the map */
};

/* For entries that save the two words of a span: the link is then only an address that
 * leads to the entry, and this function returns the entry's key. */
typedef struct span (*map_key_fn)(const struct map_link *link);

struct map {
    struct map_link **links; /* owned; size is a power of two, or 0 */
    uint32_t *hashes;        /* behind the links, in the same memory; 0: free */
    size_t size;
    size_t count;
    map_key_fn key_of; /* NULL: the link holds the key */
    uint64_t seed[2];
};

void map_init(struct map *m, uint64_t seed); /* cannot fail */
void map_fini(struct map *m);                /* frees the slots, not the entries */

struct map_link *map_get(const struct map *m, struct span key);

/* Makes sure that the next `more` map_add cannot fail: 0 or MUSTER_ENOMEM. */
int map_reserve(struct map *m, size_t more);

/* Adds a link whose key is not in the map. Room must have been reserved. */
void map_add(struct map *m, struct map_link *link);

/* Takes out a link that is in the map. */
void map_remove(struct map *m, struct map_link *link);

/* For copies: makes an empty map with the size and seed of another one, so that an
 * entry that is in slot i there may be put into slot i here. 0 or MUSTER_ENOMEM. */
int map_init_as(struct map *m, const struct map *like);
static inline void map_put_at(struct map *m, size_t i, struct map_link *link,
                              uint32_t hash)
{
    m->links[i] = link;
    m->hashes[i] = hash;
    m->count++;
}

/* Takes out all links at once and keeps the slots. */
void map_clear(struct map *m);

/* for (size_t i = 0; (l = map_next(m, &i));) ... */
struct map_link *map_next(const struct map *m, size_t *i);

uint64_t map_hash(const struct map *m, struct span key); /* SipHash-1-3 */

#endif
