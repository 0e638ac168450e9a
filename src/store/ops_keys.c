/* ops_keys.c - requests about one key; see ops_int.h. */
#include "store/decimal.h"
#include "store/ops_int.h"
#include "store/reserved.h"

int make_room(struct store *s, struct span name, size_t n, struct key **k,
              uint8_t **block)
{
    if (!*k)
        *k = key_make(s, name, n);
    if (!*k)
        return MUSTER_ENOMEM;
    if (value_reserve(*k, n, block) == 0)
        return 0;
    key_tidy(s, *k);
    return MUSTER_ENOMEM;
}

void put_and_wake(struct store *s, struct key *k, uint8_t *block, struct span v,
                  struct store_fx *fx)
{
    value_put(s, k, block, v);
    waits_written(s, k, fx);
    key_tidy(s, k);
}

int on_set(struct store *s, const struct ask *a)
{
    uint8_t *block;
    struct key *k = key_find(s, a->req->key);

    if (fx_reserve(a->fx, waits_on(k)) < 0 ||
        make_room(s, a->req->key, a->req->value.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    value_slim(k, a->req->value.n);
    put_and_wake(s, k, block, a->req->value, a->fx);
    return 0;
}

int on_compare_set(struct store *s, const struct ask *a)
{
    const struct c10d_request *r = a->req;
    struct key *k = key_find(s, r->key);
    const bool present = k && k->present;
    uint8_t *block;

    if (present && !span_eq(key_value(k), r->expected))
        return reply_value(a, key_value(k));
    if (!present && r->expected.n)
        return reply_value(a,
                           r->expected); /* Sic: torch says so, and stores nothing. */
    if (fx_reserve(a->fx, waits_on(k) + 1) < 0 ||
        make_room(s, r->key, r->value.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    put_and_wake(s, k, block, r->value, a->fx);
    return reply_value(a, r->value);
}

int on_get(struct store *s, const struct ask *a)
{
    if (reserved_parse(a->req->key).kind == RESERVED_IS_CAPS)
        return reply_value(a, span_str(RESERVED_CAPS_TEXT));

    const struct span v = key_value(key_find(s, a->req->key));

    if (v.n > s->max_reply)
        return refuse_size(s, a, v.n);
    return reply_value(a, v);
}

int on_add(struct store *s, const struct ask *a)
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
    if (!k) /* With room for every number to come. */
        k = key_make(s, a->req->key, DECIMAL_MAX);
    if (!k || make_room(s, a->req->key, v.n, &k, &block) < 0)
        return MUSTER_ENOMEM;
    put_and_wake(s, k, block, v, a->fx);
    return reply_number(a, sum);
}

int on_append(struct store *s, const struct ask *a)
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
        key_tidy(s, k);
        return MUSTER_ENOMEM;
    }
    if (v.n)
        memcpy(value_at(k) + old, v.p, v.n);
    value_set_len(s, k, len);
    waits_written(s, k, a->fx);
    key_tidy(s, k);
    return 0;
}

int on_delete(struct store *s, const struct ask *a)
{
    struct key *k = key_find(s, a->req->key);

    if (!k || !k->present)
        return reply_number(a, 0);
    if (fx_reserve(a->fx, waits_on(k) + 1) < 0)
        return MUSTER_ENOMEM;
    value_drop(s, k);
    waits_changed(s, k, a->fx); /* A missing key is a change, too. */
    key_tidy(s, k);
    return reply_number(a, 1);
}
