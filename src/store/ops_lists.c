/* ops_lists.c - requests about many keys; see ops_int.h. */
#include "base/mem.h"
#include "store/ops_int.h"
#include "store/reserved.h"

int on_num_keys(struct store *s, const struct ask *a)
{
    return reply_number(a, (int64_t)s->present);
}

int on_list_keys(struct store *s, const struct ask *a)
{
    const uint64_t size = 8 + (uint64_t)s->present * 8 + s->name_bytes;
    struct c10d_reply reply = { .op = C10D_LIST_KEYS };
    struct map_link *l;

    if (size > s->max_reply)
        return refuse_size(s, a, size);
    for (size_t i = 0; (l = map_next(&s->map, &i));) {
        const struct key *k = key_of_link(l);

        if (k->present && c10d_list_add(&a->fx->lists, key_name(k)) < 0)
            return MUSTER_ENOMEM;
    }
    reply.number = (int64_t)s->present;
    reply.list = (struct c10d_list){ buf_span(&a->fx->lists), s->present };
    fx_reply(a->fx, a->peer, &reply);
    return 0;
}

static struct span value_of_name(const struct store *s, struct span name)
{
    if (reserved_parse(name).kind == RESERVED_IS_CAPS)
        return span_str(RESERVED_CAPS_TEXT);
    return key_value(key_find(s, name));
}

int on_multi_get(struct store *s, const struct ask *a)
{
    struct c10d_reply reply = { .op = C10D_MULTI_GET };
    struct c10d_list keys = a->req->list;
    struct span name;
    uint64_t size = 0;

    while (c10d_list_next(&keys, &name))
        size += 8 + value_of_name(s, name).n;
    if (size > s->max_reply)
        return refuse_size(s, a, size);
    for (keys = a->req->list; c10d_list_next(&keys, &name);) {
        if (c10d_list_add(&a->fx->lists, value_of_name(s, name)) < 0)
            return MUSTER_ENOMEM;
    }
    reply.list = (struct c10d_list){ buf_span(&a->fx->lists), a->req->list.count };
    fx_reply(a->fx, a->peer, &reply);
    return 0;
}

struct staged {
    struct key *key;
    uint8_t *block;
    struct span value;
};

/* All memory for all pairs first, so that either all are set or none is. */
static int stage(struct store *s, struct c10d_list list, struct staged *to,
                 size_t *done)
{
    struct span name, value;

    for (; c10d_list_next(&list, &name) && c10d_list_next(&list, &value); ++*done) {
        to[*done] = (struct staged){ .key = key_find(s, name), .value = value };
        if (make_room(s, name, value.n, &to[*done].key, &to[*done].block) < 0)
            return MUSTER_ENOMEM;
    }
    return 0;
}

/* A key may be there twice, and goes with the first that finds it useless: so blocks
 * first, and then each entry by name. */
static void unstage(struct store *s, struct c10d_list list, struct staged *st, size_t n)
{
    struct span name, value;

    for (size_t i = 0; i < n; i++)
        mem_free(st[i].block);
    while (n-- && c10d_list_next(&list, &name) && c10d_list_next(&list, &value)) {
        struct key *k = key_find(s, name);

        if (k)
            key_tidy(s, k);
    }
}

int on_multi_set(struct store *s, const struct ask *a)
{
    const size_t count = a->req->list.count;
    struct c10d_list keys = a->req->list;
    struct staged *st;
    struct span name, value;
    size_t done = 0;
    int rc = MUSTER_ENOMEM;

    while (c10d_list_next(&keys, &name) && c10d_list_next(&keys, &value)) {
        if (reserved_parse(name).kind != RESERVED_NONE)
            return refuse_key(s, a, name, "the key is reserved");
    }
    st = mem_alloc(count * sizeof *st);
    if (!st)
        return MUSTER_ENOMEM;
    if (fx_reserve(a->fx, s->waits) < 0 || stage(s, a->req->list, st, &done) < 0) {
        unstage(s, a->req->list, st, done);
        goto out;
    }
    for (size_t i = 0; i < done; i++)
        value_put(s, st[i].key, st[i].block, st[i].value);
    /* Wake when all are there: a waiter may read another of them next. No entry goes
     * away here, since each has a value. */
    for (size_t i = 0; i < done; i++) {
        waits_written(s, st[i].key, a->fx);
        key_tidy(s, st[i].key);
    }
    rc = 0;
out:
    mem_free(st);
    return rc;
}

bool name_ready(struct store *s, struct span name)
{
    const struct reserved r = reserved_parse(name);

    if (r.kind == RESERVED_IS_CHANGED)
        return value_hash(s, key_find(s, r.key)) != r.hash;
    return r.kind == RESERVED_IS_CAPS || key_ready(key_find(s, name));
}

int on_check(struct store *s, const struct ask *a)
{
    struct c10d_list keys = a->req->list;
    struct span name;

    while (c10d_list_next(&keys, &name)) {
        if (!name_ready(s, name))
            return reply_number(a, 1);
    }
    return reply_number(a, 0);
}
