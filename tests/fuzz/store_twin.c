/* store_twin.c - see store_twin.h. Plain malloc: the engine's memory may fail, ours
 * not. */
#include "store_twin.h"

#include "store/core/reserved.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MANY  512 /* more keys and items than a script has steps */
#define WANTS 8   /* keys in one wait; scripts name at most 5 */

struct bytes {
    size_t n;
    uint8_t *p; /* owned */
};

struct want {
    struct bytes name;
    bool change;
    uint64_t hash;
};

struct pending {
    bool on;
    enum c10d_op op;
    unsigned long age;
    struct want want[WANTS];
    size_t count;
};

struct pair {
    struct bytes name, value;
};

struct twin {
    struct pair keys[MANY], items[MANY]; /* items: of all queues, oldest first */
    size_t nkeys, nitems;
    struct pending waits[TWIN_PEERS];
    struct bytes owed[TWIN_PEERS];
    bool owes[TWIN_PEERS];
    unsigned long age;
    struct store_effect fx[MANY];
    size_t nfx;
    struct bytes answer; /* what a reply of this step points to */
    struct buf list;
};

static struct bytes copy(struct span s)
{
    struct bytes b = { s.n, malloc(s.n + 1) };

    if (!b.p)
        abort();
    if (s.n)
        memcpy(b.p, s.p, s.n);
    return b;
}

static struct span span(struct bytes b)
{
    return span_of(b.p, b.n);
}

static void drop(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){ 0, NULL };
}

static bool same(struct bytes b, struct span s)
{
    return b.n == s.n && memcmp(b.p, s.p ? s.p : (const uint8_t *)"", s.n) == 0;
}

static struct pair *find(struct twin *t, struct span name)
{
    for (size_t i = 0; i < t->nkeys; i++) {
        if (same(t->keys[i].name, name))
            return &t->keys[i];
    }
    return NULL;
}

static struct span value(struct twin *t, struct span name)
{
    struct pair *p = find(t, name);

    return p ? span(p->value) : span_of("", 0);
}

static void put(struct twin *t, struct span name, struct span v)
{
    struct pair *p = find(t, name);

    if (!p) {
        p = &t->keys[t->nkeys++];
        p->name = copy(name);
        p->value = (struct bytes){ 0, NULL };
    }
    struct bytes new = copy(v); /* v may be the value itself. */
    drop(&p->value);
    p->value = new;
}

static size_t queued(const struct twin *t, struct span name)
{
    size_t n = 0;

    for (size_t i = 0; i < t->nitems; i++)
        n += same(t->items[i].name, name);
    return n;
}

static bool begins(struct span s, const char *with, size_t n)
{
    return s.n >= n && memcmp(s.p, with, n) == 0;
}

static bool is_reserved(struct span s)
{
    return begins(s, "/\1muster/", 9);
}

static bool is_caps(struct span s)
{
    return s.n == 13 && begins(s, "/\1muster/caps", 13);
}

static bool is_change(struct span s, uint64_t *hash, struct span *key)
{
    char hex[17] = "";
    char *end;

    if (!begins(s, "/\1muster/changed/", 17) || s.n < 34 || s.p[33] != '/')
        return false;
    memcpy(hex, s.p + 17, 16);
    if (strspn(hex, "0123456789abcdef") != 16)
        return false;
    *hash = strtoull(hex, &end, 16);
    *key = span_of(s.p + 34, s.n - 34);
    return !is_reserved(*key);
}

static uint64_t fnv(struct span v)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < v.n; i++) {
        h ^= v.p[i];
        h *= 1099511628211u;
    }
    return h;
}

static bool ready(struct twin *t, struct span name)
{
    uint64_t hash;
    struct span key;

    if (is_change(name, &hash, &key))
        return fnv(value(t, key)) != hash;
    return is_caps(name) || find(t, name) || queued(t, name);
}

static struct store_effect *effect(struct twin *t, uint32_t peer, enum c10d_op op)
{
    struct store_effect *e = &t->fx[t->nfx++];

    *e = (struct store_effect){ .kind = STORE_REPLY,
                                .peer = peer,
                                .reply = { .op = op } };
    return e;
}

static void cancel(struct twin *t, uint32_t peer)
{
    struct pending *w = &t->waits[peer];

    for (size_t i = 0; i < w->count; i++)
        drop(&w->want[i].name);
    w->count = 0;
    w->on = false;
}

/* Takes one wanted key off the list; true if it was the last. */
static bool strike(struct twin *t, uint32_t peer, size_t i)
{
    struct pending *w = &t->waits[peer];

    drop(&w->want[i].name);
    w->want[i] = w->want[--w->count];
    if (w->count)
        return false;
    w->on = false;
    effect(t, peer, w->op)->reply.number = 0;
    return true;
}

/* The oldest wait, younger than `after`, that wants the key; -1 if there is none. */
static int oldest(struct twin *t, struct span name, bool change, unsigned long after,
                  size_t *at)
{
    int best = -1;

    for (int p = 0; p < TWIN_PEERS; p++) {
        const struct pending *w = &t->waits[p];

        if (!w->on || w->age <= after || (best >= 0 && w->age > t->waits[best].age))
            continue;
        for (size_t i = 0; i < w->count; i++) {
            if (w->want[i].change != change || !same(w->want[i].name, name) ||
                (change && w->want[i].hash == fnv(value(t, name))))
                continue;
            best = p;
            *at = i;
        }
    }
    return best;
}

static void changed(struct twin *t, struct span name)
{
    size_t i;

    for (int p; (p = oldest(t, name, true, 0, &i)) >= 0;)
        (void)strike(t, (uint32_t)p, i);
}

static void written(struct twin *t, struct span name)
{
    size_t i;

    for (int p; (p = oldest(t, name, false, 0, &i)) >= 0;)
        (void)strike(t, (uint32_t)p, i);
    changed(t, name);
}

static void pushed(struct twin *t, struct span name)
{
    size_t i;

    if (!queued(t, name))
        return;
    for (int p; (p = oldest(t, name, false, 0, &i)) >= 0;) {
        if (!strike(t, (uint32_t)p, i))
            continue;
        t->owes[p] = true;
        t->owed[p] = copy(name);
        return;
    }
}

static void pass_on(struct twin *t, uint32_t peer)
{
    struct bytes name = t->owed[peer];

    if (!t->owes[peer])
        return;
    t->owes[peer] = false;
    t->owed[peer] = (struct bytes){ 0, NULL };
    pushed(t, span(name));
    drop(&name);
}

static void drop_unclaimed(struct twin *t, uint32_t peer)
{
    t->owes[peer] = false;
    drop(&t->owed[peer]);
}

static void leave(struct twin *t, uint32_t peer)
{
    cancel(t, peer);
    pass_on(t, peer);
}

static void refuse(struct twin *t, uint32_t peer)
{
    t->fx[t->nfx++] = (struct store_effect){ .kind = STORE_CLOSE, .peer = peer };
    leave(t, peer);
}

/* strtoll says what torch does: std::stoll is made of it. */
static bool number(struct span v, int64_t *out)
{
    char *text = calloc(1, v.n + 1), *end;
    bool ok;

    if (!text)
        abort();
    if (v.n)
        memcpy(text, v.p, v.n);
    errno = 0;
    *out = strtoll(text, &end, 10);
    ok = end != text && errno == 0;
    free(text);
    return ok;
}

static void put_number(struct twin *t, struct span name, int64_t n)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%lld", (long long)n);
    put(t, name, span_str(text));
}

static void on_wait(struct twin *t, uint32_t peer, struct c10d_list list)
{
    struct c10d_list l = list;
    struct span name, key;
    uint64_t hash;
    bool all = true;

    while (c10d_list_next(&l, &name)) {
        if (is_reserved(name) && !is_caps(name) && !is_change(name, &hash, &key)) {
            refuse(t, peer);
            return;
        }
        all &= ready(t, name);
    }
    cancel(t, peer);
    if (all) {
        effect(t, peer, C10D_WAIT)->reply.number = 0;
        return;
    }
    struct pending *w = &t->waits[peer];
    *w = (struct pending){ .on = true, .op = C10D_WAIT, .age = ++t->age };
    while (c10d_list_next(&list, &name)) {
        bool twice = false;

        if (ready(t, name))
            continue;
        if (is_change(name, &hash, &key)) {
            w->want[w->count++] = (struct want){ copy(key), true, hash };
            continue;
        }
        for (size_t i = 0; i < w->count; i++)
            twice |= !w->want[i].change && same(w->want[i].name, name);
        if (!twice)
            w->want[w->count++] = (struct want){ copy(name), false, 0 };
    }
    pass_on(t, peer);
}

static void on_barrier(struct twin *t, uint32_t peer, const struct c10d_request *r)
{
    int64_t n = 0;

    if (find(t, r->key) && !number(value(t, r->key), &n)) {
        refuse(t, peer);
        return;
    }
    n = (int64_t)((uint64_t)n + 1);
    put_number(t, r->key, n);
    cancel(t, peer);
    if (n >= r->number) {
        written(t, r->key);
        effect(t, peer, C10D_BARRIER)->reply.number = 0;
        return;
    }
    t->waits[peer] =
        (struct pending){ .on = true, .op = C10D_BARRIER, .age = ++t->age, .count = 1 };
    t->waits[peer].want[0] = (struct want){ copy(r->key), false, 0 };
    pass_on(t, peer);
    changed(t, r->key);
}

static void on_pop(struct twin *t, uint32_t peer, struct span name)
{
    const size_t n = queued(t, name);
    struct store_effect *e = effect(t, peer, C10D_QUEUE_POP);
    size_t i = 0;

    e->reply.number = (int64_t)n;
    if (n == 0)
        return;
    while (!same(t->items[i].name, name))
        i++;
    t->answer = t->items[i].value;
    e->reply.value = span(t->answer);
    drop(&t->items[i].name);
    memmove(&t->items[i], &t->items[i + 1], (--t->nitems - i) * sizeof t->items[0]);
    for (uint32_t p = 0; p < TWIN_PEERS; p++) {
        if (t->owes[p] && same(t->owed[p], name) && (n == 1 || p == peer))
            drop_unclaimed(t, p);
    }
}

static void on_cas(struct twin *t, uint32_t peer, const struct c10d_request *r)
{
    struct pair *p = find(t, r->key);

    if (p ? same(p->value, r->expected) : r->expected.n == 0) {
        put(t, r->key, r->value);
        written(t, r->key);
        effect(t, peer, r->op)->reply.value = r->value;
        return;
    }
    effect(t, peer, r->op)->reply.value = p ? span(p->value) : r->expected;
}

static void on_add(struct twin *t, uint32_t peer, const struct c10d_request *r)
{
    int64_t n = 0;

    if (find(t, r->key) && !number(value(t, r->key), &n)) {
        refuse(t, peer);
        return;
    }
    n = (int64_t)((uint64_t)n + (uint64_t)r->number);
    put_number(t, r->key, n);
    written(t, r->key);
    effect(t, peer, r->op)->reply.number = n;
}

static void on_append(struct twin *t, const struct c10d_request *r)
{
    const struct span old = value(t, r->key);
    uint8_t *both = malloc(old.n + r->value.n + 1);

    if (!both)
        abort();
    memcpy(both, old.p, old.n);
    if (r->value.n)
        memcpy(both + old.n, r->value.p, r->value.n);
    put(t, r->key, span_of(both, old.n + r->value.n));
    free(both);
    written(t, r->key);
}

static void on_delete(struct twin *t, uint32_t peer, const struct c10d_request *r)
{
    struct pair *p = find(t, r->key);
    struct store_effect *e;

    if (p) {
        drop(&p->name);
        drop(&p->value);
        *p = t->keys[--t->nkeys];
        changed(t, r->key);
    }
    e = effect(t, peer, r->op);
    e->reply.number = p != NULL;
}

static void on_multi_set(struct twin *t, uint32_t peer, struct c10d_list list)
{
    struct span name, v;

    for (struct c10d_list l = list;
         c10d_list_next(&l, &name) && c10d_list_next(&l, &v);) {
        if (is_reserved(name)) {
            refuse(t, peer);
            return;
        }
    }
    for (struct c10d_list l = list;
         c10d_list_next(&l, &name) && c10d_list_next(&l, &v);)
        put(t, name, v);
    while (c10d_list_next(&list, &name) && c10d_list_next(&list, &v))
        written(t, name);
}

static void on_list(struct twin *t, uint32_t peer, const struct c10d_request *r)
{
    struct c10d_list l = r->list;
    struct store_effect *e = effect(t, peer, r->op);
    struct span name;
    size_t n = 0;

    if (r->op == C10D_LIST_KEYS) {
        for (; n < t->nkeys; n++)
            (void)c10d_list_add(&t->list, span(t->keys[n].name));
        e->reply.number = (int64_t)n;
    } else {
        for (; c10d_list_next(&l, &name); n++)
            (void)c10d_list_add(&t->list, is_caps(name) ? span_str(RESERVED_CAPS_TEXT)
                                                        : value(t, name));
    }
    e->reply.list = (struct c10d_list){ buf_span(&t->list), n };
}

static bool writes(enum c10d_op op)
{
    return op == C10D_SET || op == C10D_COMPARE_SET || op == C10D_ADD ||
           op == C10D_APPEND || op == C10D_DELETE_KEY || op == C10D_BARRIER ||
           op == C10D_QUEUE_PUSH || op == C10D_QUEUE_POP || op == C10D_QUEUE_LEN;
}

static void on_request(struct twin *t, uint32_t peer, const struct c10d_request *r)
{
    struct c10d_list l = r->list;
    struct span name;
    bool all = true;

    if (writes(r->op) && is_reserved(r->key)) {
        refuse(t, peer);
        return;
    }
    switch (r->op) {
    case C10D_VALIDATE:
        break;
    case C10D_SET:
        put(t, r->key, r->value);
        written(t, r->key);
        break;
    case C10D_COMPARE_SET:
        on_cas(t, peer, r);
        break;
    case C10D_GET:
        effect(t, peer, r->op)->reply.value =
            is_caps(r->key) ? span_str(RESERVED_CAPS_TEXT) : value(t, r->key);
        break;
    case C10D_ADD:
        on_add(t, peer, r);
        break;
    case C10D_CHECK:
        while (c10d_list_next(&l, &name))
            all &= ready(t, name);
        effect(t, peer, r->op)->reply.number = !all;
        break;
    case C10D_WAIT:
        on_wait(t, peer, r->list);
        break;
    case C10D_GETNUMKEYS:
        effect(t, peer, r->op)->reply.number = (int64_t)t->nkeys;
        break;
    case C10D_DELETE_KEY:
        on_delete(t, peer, r);
        break;
    case C10D_APPEND:
        on_append(t, r);
        break;
    case C10D_MULTI_GET:
    case C10D_LIST_KEYS:
        on_list(t, peer, r);
        break;
    case C10D_MULTI_SET:
        on_multi_set(t, peer, r->list);
        break;
    case C10D_CANCEL_WAIT:
        leave(t, peer);
        effect(t, peer, r->op)->reply.number = 1;
        break;
    case C10D_PING:
        effect(t, peer, r->op)->reply.word = r->word;
        break;
    case C10D_QUEUE_PUSH:
        t->items[t->nitems++] = (struct pair){ copy(r->key), copy(r->value) };
        pushed(t, r->key);
        break;
    case C10D_QUEUE_POP:
        on_pop(t, peer, r->key);
        break;
    case C10D_QUEUE_LEN:
        effect(t, peer, r->op)->reply.number = (int64_t)queued(t, r->key);
        break;
    case C10D_BARRIER:
        on_barrier(t, peer, r);
        break;
    case C10D_OP_COUNT:
        abort();
    }
}

/* Everything goes; then those who watched something that had a value hear of it. */
static void on_wipe(struct twin *t)
{
    for (size_t i = 0; i < t->nitems; i++) {
        drop(&t->items[i].name);
        drop(&t->items[i].value);
    }
    t->nitems = 0;
    for (uint32_t p = 0; p < TWIN_PEERS; p++)
        drop_unclaimed(t, p);

    const size_t n = t->nkeys;
    t->nkeys = 0;
    for (size_t i = 0; i < n; i++)
        changed(t, span(t->keys[i].name));
    for (size_t i = 0; i < n; i++) {
        drop(&t->keys[i].name);
        drop(&t->keys[i].value);
    }
}

struct twin *twin_new(void)
{
    struct twin *t = calloc(1, sizeof *t);

    if (!t)
        abort();
    buf_init(&t->list, SIZE_MAX);
    return t;
}

void twin_free(struct twin *t)
{
    on_wipe(t);
    for (uint32_t p = 0; p < TWIN_PEERS; p++)
        cancel(t, p);
    drop(&t->answer);
    buf_fini(&t->list);
    free(t);
}

const struct store_effect *twin_step(struct twin *t, const struct store_event *ev,
                                     size_t *count)
{
    t->nfx = 0;
    drop(&t->answer);
    buf_clear(&t->list);
    switch (ev->kind) {
    case STORE_REQUEST:
        if (ev->gives_up)
            cancel(t, ev->peer);
        on_request(t, ev->peer, ev->request);
        break;
    case STORE_LEFT:
        leave(t, ev->peer);
        break;
    case STORE_WIPE:
        on_wipe(t);
        break;
    }
    *count = t->nfx;
    return t->fx;
}
