/* filelog.c - the log of a FileStore; see filelog.h. */
#include "store/core/filelog.h"

#include <assert.h>

#include "base/mem.h"

struct entry {
    struct map_link link; /* key: in bytes[] */
    size_t value_size;
    uint8_t bytes[]; /* key, then value */
};

void filelog_init(struct filelog *f, uint64_t seed)
{
    map_init(&f->map, seed);
}

void filelog_clear(struct filelog *f)
{
    struct map_link *link;

    for (size_t i = 0; (link = map_next(&f->map, &i));)
        mem_free(CONTAINER_OF(link, struct entry, link));
    map_fini(&f->map); /* An empty map stays usable. */
}

void filelog_fini(struct filelog *f)
{
    filelog_clear(f);
}

static struct entry *entry_find(const struct filelog *f, struct span key)
{
    struct map_link *link = map_get(&f->map, key);

    return link ? CONTAINER_OF(link, struct entry, link) : NULL;
}

static void entry_drop(struct filelog *f, struct entry *e)
{
    if (!e)
        return;
    map_remove(&f->map, &e->link);
    mem_free(e);
}

static int entry_put(struct filelog *f, struct span key, struct span value)
{
    struct entry *e = mem_alloc(sizeof *e + key.n + value.n);

    if (!e || map_reserve(&f->map, 1) < 0) {
        mem_free(e);
        return MUSTER_ENOMEM;
    }
    if (key.n)
        memcpy(e->bytes, key.p, key.n);
    if (value.n)
        memcpy(e->bytes + key.n, value.p, value.n);
    e->value_size = value.n;
    e->link.key = span_of(e->bytes, key.n);
    entry_drop(f, entry_find(f, key));
    map_add(&f->map, &e->link);
    return 0;
}

/* Reads the record at the front of the n bytes p. Returns how many bytes it takes, or 0
 * if it is not complete. */
static size_t record_parse(const uint8_t *p, size_t n, struct span *key,
                           struct span *value)
{
    size_t key_size, value_size;

    if (n < 4)
        return 0;
    key_size = get_u32(p);
    if (n - 4 < key_size || n - 4 - key_size < 4)
        return 0;
    value_size = get_u32(p + 4 + key_size);
    if (n - 8 - key_size < value_size)
        return 0;
    *key = span_of(p + 4, key_size);
    *value = span_of(p + 8 + key_size, value_size);
    return 8 + key_size + value_size;
}

int filelog_feed(struct filelog *f, const uint8_t *p, size_t n, size_t *used)
{
    struct span key, value;
    size_t size;

    *used = 0;
    while ((size = record_parse(p + *used, n - *used, &key, &value))) {
        if (key.n && key.p[0] == '-')
            entry_drop(f, entry_find(f, span_of(key.p + 1, key.n - 1)));
        else if (entry_put(f, key, value) < 0)
            return MUSTER_ENOMEM;
        *used += size;
        assert(*used <= n);
    }
    return 0;
}

bool filelog_get(const struct filelog *f, struct span key, struct span *value)
{
    const struct entry *e = entry_find(f, key);

    if (e && value)
        *value = span_of(e->bytes + e->link.key.n, e->value_size);
    return e != NULL;
}

size_t filelog_count(const struct filelog *f)
{
    return f->map.count;
}

bool filelog_next(const struct filelog *f, size_t *i, struct span *key)
{
    const struct map_link *link = map_next(&f->map, i);

    if (link)
        *key = link->key;
    return link != NULL;
}

int filelog_record(struct buf *out, struct span key, struct span value)
{
    uint8_t *to;

    if (key.n > UINT32_MAX || value.n > UINT32_MAX)
        return MUSTER_EINVAL;
    to = buf_room(out, 8 + key.n + value.n);
    if (!to)
        return MUSTER_ENOMEM;
    put_u32(to, (uint32_t)key.n);
    if (key.n)
        memcpy(to + 4, key.p, key.n);
    put_u32(to + 4 + key.n, (uint32_t)value.n);
    if (value.n)
        memcpy(to + 8 + key.n, value.p, value.n);
    buf_commit(out, 8 + key.n + value.n);
    return 0;
}
