/* etcd_store.c - a cluster's data: keys, revisions, history, leases; see etcd.h. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sim/etcd.h"

static char *copy(const char *s)
{
    char *c = mem_strdup(s);

    assert(c);
    return c;
}

void etcd_store_fini(struct etcd_store *st)
{
    for (size_t i = 0; i < st->count; i++) {
        mem_free(st->entries[i].key);
        mem_free(st->entries[i].value);
    }
    for (size_t i = 0; i < st->change_count; i++)
        mem_free(st->changes[i].key);
    mem_free(st->entries);
    mem_free(st->changes);
    mem_free(st->leases);
    *st = (struct etcd_store){ 0 };
}

struct etcd_entry *etcd_store_find(struct etcd_store *st, const char *key)
{
    for (size_t i = 0; i < st->count; i++) {
        if (strcmp(st->entries[i].key, key) == 0)
            return &st->entries[i];
    }
    return NULL;
}

void etcd_store_note(struct etcd_store *st, const char *key, bool deleted)
{
    if ((st->change_count & 63) == 0) {
        st->changes =
            mem_realloc_array(st->changes, st->change_count + 64, sizeof *st->changes);
        assert(st->changes);
    }
    st->changes[st->change_count++] =
        (struct etcd_change){ st->revision, copy(key), deleted };
}

/* Sets the key in the current revision. The caller adds the change to the history. */
struct etcd_entry *etcd_store_put(struct etcd_store *st, const char *key,
                                  const char *value, bool dir)
{
    struct etcd_entry *e = etcd_store_find(st, key);

    if (!e) {
        st->entries = mem_realloc_array(st->entries, st->count + 1, sizeof *e);
        assert(st->entries);
        e = &st->entries[st->count++];
        *e = (struct etcd_entry){ .key = copy(key), .created = st->revision };
    }
    mem_free(e->value);
    e->value = copy(value);
    e->dir = dir;
    e->modified = st->revision;
    e->lease = 0;
    e->expire_t = SIM_NEVER;
    return e;
}

void etcd_store_delete(struct etcd_store *st, struct etcd_entry *e)
{
    etcd_store_note(st, e->key, true);
    mem_free(e->key);
    mem_free(e->value);
    *e = st->entries[--st->count];
}

void etcd_store_compact(struct etcd_store *st)
{
    for (size_t i = 0; i < st->change_count; i++)
        mem_free(st->changes[i].key);
    st->change_count = 0;
    st->oldest = st->revision + 1;
}

struct etcd_lease_entry *etcd_store_lease(struct etcd_store *st, int64_t id)
{
    for (size_t i = 0; i < st->lease_count; i++) {
        if (st->leases[i].id == id)
            return &st->leases[i];
    }
    return NULL;
}

static bool expire_leases(struct etcd_store *st, uint64_t now_t)
{
    bool any = false;

    for (size_t i = st->lease_count; i-- > 0;) {
        const int64_t id = st->leases[i].id;

        if (st->leases[i].expire_t > now_t)
            continue;
        st->leases[i] = st->leases[--st->lease_count];
        st->revision++;
        any = true;
        for (size_t k = st->count; k-- > 0;) {
            if (st->entries[k].lease == id)
                etcd_store_delete(st, &st->entries[k]);
        }
    }
    return any;
}

bool etcd_store_expire(struct etcd_store *st, uint64_t now_t)
{
    bool any = expire_leases(st, now_t);

    for (size_t i = st->count; i-- > 0;) {
        if (st->entries[i].expire_t > now_t)
            continue;
        st->revision++;
        etcd_store_delete(st, &st->entries[i]);
        any = true;
    }
    return any;
}
