/* store.c - the engine: one handler for each request, and the step function; see
 * store.h.
 *
 * Each handler first checks, then reserves what it needs, then changes; nothing can
 * fail after the first change. Requests about one key come first, then those about
 * many, then those that block. */
#include "store/core/store.h"

#include <assert.h>

#include "base/mem.h"
#include "store/core/decimal.h"
#include "store/core/quote.h"
#include "store/core/reserved.h"
#include "store/core/store_int.h"

/* What a handler needs to know. */
struct ask {
    uint32_t peer;
    const struct c10d_request *req;
    struct store_fx *fx; /* with room for the few effects that every step may have */
};

/* ---- answers; those with a result return 0, for handlers to return ---- */

static int reply_number(const struct ask *a, int64_t number)
{
    fx_reply(a->fx, a->peer,
             &(struct c10d_reply){ .op = a->req->op, .number = number });
    return 0;
}

static int reply_value(const struct ask *a, struct span value)
{
    fx_reply(a->fx, a->peer, &(struct c10d_reply){ .op = a->req->op, .value = value });
    return 0;
}

static void peer_leave(struct store *s, uint32_t peer, struct store_fx *fx)
{
    peer_drop_wait(s, peer);
    peer_pass_on(s, peer, fx);
}

static int refuse_key(struct store *s, const struct ask *a, struct span key,
                      const char *why)
{
    char text[QUOTE_MAX];

    fx_close(a->fx, a->peer, "%s of key %s: %s", c10d_op_name(a->req->op),
             quote(key, text), why);
    peer_leave(s, a->peer, a->fx);
    return 0;
}

static int refuse_size(struct store *s, const struct ask *a, uint64_t size)
{
    fx_close(a->fx, a->peer, "%s: the answer would have %llu bytes, more than %zu",
             c10d_op_name(a->req->op), (unsigned long long)size, s->max_reply);
    peer_leave(s, a->peer, a->fx);
    return 0;
}

/* ---- requests about one key ---- */

/* Makes the entry if *k is NULL, and reserves memory for a value of n bytes. */
static int make_room(struct store *s, struct span name, size_t n, struct key **k,
                     uint8_t **block)
{
    if (!*k)
        *k = key_make(s, name, n);
    if (!*k)
        return MUSTER_ENOMEM;
    if (value_reserve(*k, n, block) == 0)
        return 0;
    key_drop_if_empty(s, *k);
    return MUSTER_ENOMEM;
}

static int on_set(struct store *s, const struct ask *a)
{
    uint8_t *block;
    struct key *k = key_find(s, a->req->key);

    if (fx_reserve(a->fx, waits_on(k)) < 0 ||
        make_room(s, a->req->key, a->req->value.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    if (k->outside)
        value_slim(k, a->req->value.n);
    value_put(s, k, block, a->req->value);
    key_written(s, k, a->fx);
    return 0;
}

static int on_compare_set(struct store *s, const struct ask *a)
{
    const struct c10d_request *r = a->req;
    struct key *k = key_find(s, r->key);
    const bool present = k && k->present;
    uint8_t *block;

    if (present && !span_eq(key_value(k), r->expected))
        return reply_value(a, key_value(k));
    if (!present && r->expected.n)
        /* Like torch: the answer is the expected value, although nothing is stored. */
        return reply_value(a, r->expected);
    if (fx_reserve(a->fx, waits_on(k) + 1) < 0 ||
        make_room(s, r->key, r->value.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    value_put(s, k, block, r->value);
    key_written(s, k, a->fx);
    return reply_value(a, r->value);
}

static int on_get(struct store *s, const struct ask *a)
{
    if (a->req->name.kind == RESERVED_IS_CAPS)
        return reply_value(a, span_str(RESERVED_CAPS_TEXT));

    const struct span v = key_value(key_find(s, a->req->key));

    if (v.n > s->max_reply)
        return refuse_size(s, a, v.n);
    return reply_value(a, v);
}

static int on_add(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);
    uint8_t text[DECIMAL_MAX], *block;
    int64_t sum = 0;

    if (k && k->present && !decimal_parse(key_value(k), &sum))
        return refuse_key(s, a, a->req->key, "its value is not a number");
    sum = decimal_add(sum, a->req->number);

    const struct span v = span_of(text, decimal_format(sum, text));

    if (fx_reserve(a->fx, waits_on(k) + 1) < 0)
        return MUSTER_ENOMEM;
    if (!k) /* Make room for any number, so that counting never allocates again. */
        k = key_make(s, a->req->key, DECIMAL_MAX);
    if (!k || make_room(s, a->req->key, v.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    value_put(s, k, block, v);
    key_written(s, k, a->fx);
    return reply_number(a, sum);
}

static int on_append(struct store *s, const struct ask *a)
{
    const struct span v = a->req->value;
    struct key *k = key_find(s, a->req->key);
    const size_t old = key_value(k).n, len = old + v.n;

    if (len > STORE_MAX_VALUE)
        return refuse_key(s, a, a->req->key, "the value would be too large");
    if (fx_reserve(a->fx, waits_on(k)) < 0)
        return MUSTER_ENOMEM;
    if (!k)
        k = key_make(s, a->req->key, len);
    if (!k)
        return MUSTER_ENOMEM;
    if (value_grow(k, len) < 0) {
        key_drop_if_empty(s, k);
        return MUSTER_ENOMEM;
    }
    if (v.n)
        memcpy(value_at(k) + old, v.p, v.n);
    value_set_len(s, k, len);
    key_written(s, k, a->fx);
    return 0;
}

static int on_delete(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);

    if (!k || !k->present)
        return reply_number(a, 0);
    if (fx_reserve(a->fx, waits_on(k) + 1) < 0)
        return MUSTER_ENOMEM;
    value_drop(s, k);
    waits_changed(s, k, a->fx); /* Losing its value is a change, too. */
    key_drop_if_empty(s, k);
    return reply_number(a, 1);
}

/* ---- requests about many keys ---- */

static int on_num_keys(struct store *s, const struct ask *a)
{
    return reply_number(a, (int64_t)s->present);
}

static int on_list_keys(struct store *s, const struct ask *a)
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
    assert(buf_len(&a->fx->lists) == size - 8);
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

static int on_multi_get(struct store *s, const struct ask *a)
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

/* Reserves the memory for all pairs first, so that either all are set or none is. */
static int pairs_stage(struct store *s, struct c10d_list list, struct staged *to,
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

/* A key may be in the list twice, and its entry is freed the first time. So this frees
 * all blocks first, and then finds each entry by name. */
static void pairs_unstage(struct store *s, struct c10d_list list, struct staged *st,
                          size_t n)
{
    struct span name, value;

    for (size_t i = 0; i < n; i++)
        mem_free(st[i].block);
    while (n-- && c10d_list_next(&list, &name) && c10d_list_next(&list, &value)) {
        struct key *k = key_find(s, name);

        if (k)
            key_drop_if_empty(s, k);
    }
}

static int on_multi_set(struct store *s, const struct ask *a)
{
    const size_t count = a->req->list.count;
    struct c10d_list keys = a->req->list;
    struct staged *st;
    struct span name, value;
    size_t done = 0;
    int rc = MUSTER_ENOMEM;

    while (c10d_list_next(&keys, &name) && c10d_list_next(&keys, &value)) {
        if (reserved_is_question(reserved_parse(name)))
            return refuse_key(s, a, name, "the key is reserved");
    }
    st = mem_alloc(count * sizeof *st);
    if (!st)
        return MUSTER_ENOMEM;
    if (fx_reserve(a->fx, s->waits) < 0 ||
        pairs_stage(s, a->req->list, st, &done) < 0) {
        pairs_unstage(s, a->req->list, st, done);
        goto out;
    }
    for (size_t i = 0; i < done; i++)
        value_put(s, st[i].key, st[i].block, st[i].value);
    assert(done <= count);
    /* Wake waiters only when all keys are set, since they may read another of them
     * next. No entry is freed here, since each has a value. */
    for (size_t i = 0; i < done; i++)
        key_written(s, st[i].key, a->fx);
    rc = 0;
out:
    mem_free(st);
    return rc;
}

static bool name_ready(struct store *s, struct span name)
{
    const struct reserved r = reserved_parse(name);

    if (r.kind == RESERVED_IS_CHANGED)
        return value_hash(s, key_find(s, r.key)) != r.hash;
    return r.kind == RESERVED_IS_CAPS || r.kind == RESERVED_IS_ANSWERED ||
           key_ready(key_find(s, name));
}

static int on_check(struct store *s, const struct ask *a)
{
    struct c10d_list keys = a->req->list;
    struct span name;

    while (c10d_list_next(&keys, &name)) {
        if (!name_ready(s, name))
            return reply_number(a, 1);
    }
    return reply_number(a, 0);
}

/* ---- requests that block, and queues, which wake one waiter at a time ---- */

static int wait_for_name(struct store *s, struct wait *w, struct span name)
{
    const struct reserved r = reserved_parse(name);

    if (name_ready(s, name))
        return 0;
    if (r.kind == RESERVED_IS_CHANGED)
        return wait_for_change(s, w, r.key, r.hash);
    return wait_for_ready(s, w, name);
}

static int on_wait(struct store *s, const struct ask *a)
{
    struct c10d_list keys = a->req->list;
    struct wait *w;
    struct span name;
    size_t missing = 0;

    while (c10d_list_next(&keys, &name)) {
        if (reserved_parse(name).kind == RESERVED_UNKNOWN)
            return refuse_key(s, a, name, "there is no such reserved key");
        missing += !name_ready(s, name);
    }
    if (missing == 0) {
        peer_drop_wait(s, a->peer);
        return reply_number(a, 0);
    }
    if (wait_new(s, a->peer, C10D_WAIT, missing, &w) < 0)
        return MUSTER_ENOMEM;
    for (keys = a->req->list; c10d_list_next(&keys, &name);) {
        if (wait_for_name(s, w, name) < 0) {
            wait_free(s, w);
            return MUSTER_ENOMEM;
        }
    }
    assert(w->count > 0 && w->count <= missing);
    wait_begin(s, w, a->fx);
    return 0;
}

static int on_cancel(struct store *s, const struct ask *a)
{
    peer_leave(s, a->peer, a->fx);
    return reply_number(a, 1);
}

static int on_queue_push(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);

    if (!k)
        k = key_make(s, a->req->key, 0);
    if (!k)
        return MUSTER_ENOMEM;
    if (queue_push(k, a->req->value) < 0) {
        key_drop_if_empty(s, k);
        return MUSTER_ENOMEM;
    }
    waits_pushed(s, k, a->fx);
    return 0;
}

static int on_queue_pop(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);
    struct c10d_reply reply = { .op = C10D_QUEUE_POP };

    if (!k || !k->more || !k->more->items)
        return reply_number(a, 0);
    assert(k->more->first && k->more->last);
    reply.number = (int64_t)k->more->items;
    s->popped = queue_pop(k);
    reply.value = span_of(s->popped->bytes, s->popped->n);
    fx_reply(a->fx, a->peer, &reply);
    if (k->more->items == 0)
        queue_is_empty(s, k);
    else
        peer_popped(s, a->peer, k);
    key_drop_if_empty(s, k);
    return 0;
}

static int on_queue_len(struct store *s, const struct ask *a)
{
    const struct key *k = key_find(s, a->req->key);

    return reply_number(a, k && k->more ? (int64_t)k->more->items : 0);
}

/* The last peer to arrive completes the barrier: all waiters are answered, then it. */
static int barrier_done(struct store *s, const struct ask *a, struct key *k,
                        uint8_t *block, struct span text)
{
    value_put(s, k, block, text);
    assert(k->present);
    /* The caller may have waited for k before. k stays, since it has a value. */
    peer_drop_wait(s, a->peer);
    key_written(s, k, a->fx);
    return reply_number(a, 0);
}

static int on_barrier(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);
    uint8_t text[DECIMAL_MAX], *block;
    struct wait *w;
    int64_t n = 0;

    if (k && k->present && !decimal_parse(key_value(k), &n))
        return refuse_key(s, a, a->req->key, "its value is not a number");
    n = decimal_add(n, 1);

    const struct span count = span_of(text, decimal_format(n, text));

    if (fx_reserve(a->fx, waits_on(k) + 2) < 0 ||
        make_room(s, a->req->key, count.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    if (n >= a->req->number)
        return barrier_done(s, a, k, block, count);
    if (wait_new(s, a->peer, C10D_BARRIER, 1, &w) < 0)
        goto nomem;
    if (wait_for_ready(s, w, a->req->key) < 0) {
        wait_free(s, w); /* It has no link yet. */
        goto nomem;
    }
    value_put(s, k, block, count); /* This alone ends no wait for the key. */
    wait_begin(s, w, a->fx);
    waits_changed(s, k, a->fx);
    key_drop_if_empty(s, k);
    return 0;
nomem:
    mem_free(block);
    k = key_find(s, a->req->key);
    if (k)
        key_drop_if_empty(s, k);
    return MUSTER_ENOMEM;
}

/* ---- the step ---- */

static int on_validate(struct store *s, const struct ask *a)
{
    (void)s;
    (void)a;
    return 0; /* The decoder has checked it, and it has no reply. */
}

static int on_ping(struct store *s, const struct ask *a)
{
    (void)s;
    fx_reply(a->fx, a->peer,
             &(struct c10d_reply){ .op = C10D_PING, .word = a->req->word });
    return 0;
}

static const struct {
    int (*run)(struct store *s, const struct ask *a);
    bool takes_reserved; /* or has no key, or checks its keys itself */
} handlers[C10D_OP_COUNT] = {
    [C10D_VALIDATE] = { on_validate, true },
    [C10D_SET] = { on_set, false },
    [C10D_COMPARE_SET] = { on_compare_set, false },
    [C10D_GET] = { on_get, true },
    [C10D_ADD] = { on_add, false },
    [C10D_CHECK] = { on_check, true },
    [C10D_WAIT] = { on_wait, true },
    [C10D_GETNUMKEYS] = { on_num_keys, true },
    [C10D_DELETE_KEY] = { on_delete, false },
    [C10D_APPEND] = { on_append, false },
    [C10D_MULTI_GET] = { on_multi_get, true },
    [C10D_MULTI_SET] = { on_multi_set, true },
    [C10D_CANCEL_WAIT] = { on_cancel, true },
    [C10D_PING] = { on_ping, true },
    [C10D_QUEUE_PUSH] = { on_queue_push, false },
    [C10D_QUEUE_POP] = { on_queue_pop, false },
    [C10D_QUEUE_LEN] = { on_queue_len, false },
    [C10D_LIST_KEYS] = { on_list_keys, true },
    [C10D_BARRIER] = { on_barrier, false },
};

static int store_on_request(struct store *s, const struct store_event *ev,
                            struct store_fx *fx)
{
    const struct ask a = { ev->peer, ev->request, fx };
    const enum c10d_op op = ev->request->op;

    assert(op < C10D_OP_COUNT && handlers[op].run);
    if (ev->gives_up)
        peer_drop_wait(s, ev->peer);
    if (!handlers[op].takes_reserved && reserved_is_question(ev->request->name))
        return refuse_key(s, &a, ev->request->key, "the key is reserved");
    return handlers[op].run(s, &a);
}

/* Keys that a peer waits for stay, without a value or a queue. */
static int on_wipe(struct store *s, struct store_fx *fx)
{
    struct key *stay = NULL;
    struct map_link *l;

    if (fx_reserve(fx, s->waits) < 0)
        return MUSTER_ENOMEM;
    for (size_t i = 0; (l = map_next(&s->map, &i));) {
        struct key *k = key_of_link(l);

        if (k->present)
            value_drop(s, k);
        if (k->more) {
            queue_clear(k->more);
            queue_is_empty(s, k);
            waits_changed(s, k, fx);
        }
        if (waits_on(k)) {
            k->more->next = stay;
            stay = k;
        } else {
            key_free(k);
        }
    }
    map_clear(&s->map);
    assert(s->present == 0 && s->name_bytes == 0);
    s->hashed = NULL; /* That key may have been freed. */
    for (; stay; stay = stay->more->next)
        map_add(&s->map, key_link(stay));
    return 0;
}

int store_step(struct store *s, const struct store_event *ev, struct store_fx *fx)
{
    int rc = 0;

    fx_begin(fx);
    mem_free(s->popped);
    s->popped = NULL;
    switch (ev->kind) {
    case STORE_REQUEST:
        rc = store_on_request(s, ev, fx);
        break;
    case STORE_LEFT:
        peer_leave(s, ev->peer, fx);
        break;
    case STORE_WIPE:
        rc = on_wipe(s, fx);
        break;
    }
    assert(rc == 0 || rc == MUSTER_ENOMEM);
    assert(s->present <= s->map.count && s->waits <= s->peers_size);
    if (rc < 0)
        fx_begin(fx);
    return rc;
}

struct store *store_new(uint64_t seed, size_t max_reply)
{
    struct store *s = mem_calloc(1, sizeof *s);

    if (!s)
        return NULL;
    map_init(&s->map, seed);
    s->map.key_of = name_of_link;
    s->max_reply = max_reply;
    return s;
}

size_t store_key_count(const struct store *s)
{
    return s->present;
}

void store_free(struct store *s)
{
    struct map_link *l;

    if (!s)
        return;
    for (size_t i = 0; i < s->peers_size; i++) {
        mem_free(s->peers[i].wait); /* All keys are freed, too: no need to unlink. */
        mem_free(s->peers[i].unclaimed);
    }
    for (size_t i = 0; (l = map_next(&s->map, &i));)
        key_free(key_of_link(l));
    map_fini(&s->map);
    mem_free(s->peers);
    mem_free(s->popped);
    mem_free(s);
}
