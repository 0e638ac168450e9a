/* etcd_store.c - a cluster's data: keys, revisions, history, leases; see etcd.h. */
#include "sim/etcd.h"

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
    st->changes = os_grow(st->changes, st->change_count, sizeof *st->changes);
    st->changes[st->change_count++] =
        (struct etcd_change){ st->revision, os_text("%s", key), deleted };
}

/* Sets the key in the current revision. The caller adds the change to the history. */
struct etcd_entry *etcd_store_put(struct etcd_store *st, const char *key,
                                  const char *value, bool dir)
{
    struct etcd_entry *e = etcd_store_find(st, key);

    if (!e) {
        st->entries = os_grow(st->entries, st->count, sizeof *e);
        e = &st->entries[st->count++];
        *e = (struct etcd_entry){ .key = os_text("%s", key), .created = st->revision };
    }
    e->value = os_text("%s", value);
    e->dir = dir;
    e->modified = st->revision;
    e->lease = 0;
    e->expire_t = OS_NEVER;
    return e;
}

void etcd_store_delete(struct etcd_store *st, struct etcd_entry *e)
{
    etcd_store_note(st, e->key, true);
    *e = st->entries[--st->count];
}

void etcd_store_compact(struct etcd_store *st)
{
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
