/* ops_waits.c - requests that block, and queues, which wake one at a time; see
 * ops_int.h. */
#include "base/mem.h"
#include "store/decimal.h"
#include "store/ops_int.h"
#include "store/reserved.h"

static int wait_for(struct store *s, struct wait *w, struct span name)
{
    const struct reserved r = reserved_parse(name);

    if (name_ready(s, name))
        return 0;
    if (r.kind == RESERVED_IS_CHANGED)
        return wait_for_change(s, w, r.key, r.hash);
    return wait_for_ready(s, w, name);
}

int on_wait(struct store *s, const struct ask *a)
{
    struct c10d_list keys = a->req->list;
    struct wait *w;
    struct span name;
    size_t missing = 0;

    while (c10d_list_next(&keys, &name)) {
        if (reserved_parse(name).kind == RESERVED_UNKNOWN)
            return refuse_key(s, a, name, "no such reserved key");
        missing += !name_ready(s, name);
    }
    if (missing == 0) {
        peer_drop_wait(s, a->peer);
        return reply_number(a, 0);
    }
    if (wait_new(s, a->peer, C10D_WAIT, missing, &w) < 0)
        return MUSTER_ENOMEM;
    for (keys = a->req->list; c10d_list_next(&keys, &name);) {
        if (wait_for(s, w, name) < 0) {
            wait_free(s, w);
            return MUSTER_ENOMEM;
        }
    }
    wait_begin(s, w, a->fx);
    return 0;
}

int on_cancel(struct store *s, const struct ask *a)
{
    peer_leave(s, a->peer, a->fx);
    return reply_number(a, 1);
}

int on_queue_push(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);

    if (!k)
        k = key_make(s, a->req->key, 0);
    if (!k)
        return MUSTER_ENOMEM;
    if (queue_push(k, a->req->value) < 0) {
        key_tidy(s, k);
        return MUSTER_ENOMEM;
    }
    waits_pushed(s, k, a->fx);
    return 0;
}

int on_queue_pop(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);
    struct c10d_reply reply = { .op = C10D_QUEUE_POP };

    if (!k || !k->more || !k->more->items)
        return reply_number(a, 0);
    reply.number = (int64_t)k->more->items;
    s->popped = queue_pop(k);
    reply.value = span_of(s->popped->bytes, s->popped->n);
    fx_reply(a->fx, a->peer, &reply);
    if (k->more->items == 0)
        queue_is_empty(s, k);
    else
        peer_popped(s, a->peer, k);
    key_tidy(s, k);
    return 0;
}

int on_queue_len(struct store *s, const struct ask *a)
{
    const struct key *k = key_find(s, a->req->key);

    return reply_number(a, k && k->more ? (int64_t)k->more->items : 0);
}

/* The last to come answers everybody, itself at the end. */
static int barrier_done(struct store *s, const struct ask *a, struct key *k,
                        uint8_t *block, struct span text)
{
    value_put(s, k, block, text);
    /* The caller may have waited for k itself; with a value it stays. */
    peer_drop_wait(s, a->peer);
    waits_written(s, k, a->fx);
    key_tidy(s, k);
    return reply_number(a, 0);
}

int on_barrier(struct store *s, const struct ask *a)
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
        wait_free(s, w); /* Without a link yet. */
        goto nomem;
    }
    value_put(s, k, block, count); /* The key exists now, but that wakes nobody. */
    wait_begin(s, w, a->fx);
    waits_changed(s, k, a->fx);
    key_tidy(s, k);
    return 0;
nomem:
    mem_free(block);
    k = key_find(s, a->req->key);
    if (k)
        key_tidy(s, k);
    return MUSTER_ENOMEM;
}
