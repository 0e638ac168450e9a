/* store_play.c - bytes as a script for the engine and its twin; see store_twin.h. */
#include "store_twin.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct script {
    const uint8_t *p;
    size_t n;
};

static uint8_t next(struct script *s)
{
    if (s->n == 0)
        return 0;
    s->n--;
    return *s->p++;
}

/* FNV-1a of "", "1" and "x": what a watcher may know. */
#define HASH_NONE "cbf29ce484222325"
#define HASH_1    "af63ac4c86019afc"
#define HASH_X    "af63f54c860217f7"

static struct span name(struct script *s)
{
    static const char *const names[] = {
        "/a",
        "/b",
        "/c",
        "/d",
        "",
        "init/",
        "/a longer name that is not like the others, for variety in sizes",
        "/\1muster/caps",
        "/\1muster/other",
        "/\1muster/changed/" HASH_NONE "//a",
        "/\1muster/changed/" HASH_1 "//a",
        "/\1muster/changed/" HASH_X "//b",
        "/\1muster/changed/" HASH_NONE "/",
        "/\1muster/changed/00000000000000zz//a",
    };
    const uint8_t b = next(s);

    /* Mostly the first few, so that they meet. */
    if (b < 192)
        return span_str(names[b % 4]);
    return span_str(names[b % ARRAY_LEN(names)]);
}

static struct span some_value(struct script *s, bool large)
{
    static const uint8_t zeros[3000];
    static const struct {
        const char *p;
        size_t n;
    } values[] = {
        { "", 0 },
        { "x", 1 },
        { "1", 1 },
        { "-7", 2 },
        { " 12a", 4 },
        { "9223372036854775807", 19 },
        { "12\0"
          "3",
          4 },
        { "+", 1 },
        { "a value of forty bytes, as some may be..", 40 },
        { "9223372036854775808", 19 },
        { "0x10", 4 },
    };
    const uint8_t b = next(s);

    if (large && b > 240)
        return span_of(zeros, (size_t)(b - 240) * 200);
    return span_of(values[b % ARRAY_LEN(values)].p, values[b % ARRAY_LEN(values)].n);
}

static struct c10d_list some_list(struct script *s, struct buf *to, bool pairs)
{
    const size_t n = next(s) % 6;

    buf_clear(to);
    for (size_t i = 0; i < n; i++) {
        (void)c10d_list_add(to, name(s));
        if (pairs)
            (void)c10d_list_add(to, some_value(s, false));
    }
    return (struct c10d_list){ buf_span(to), n };
}

static void some_request(struct script *s, struct c10d_request *r, struct buf *list)
{
    /* Numbers may only be made of short values: those of queues can be of any size. */
    *r = (struct c10d_request){ .op = next(s) % C10D_OP_COUNT };
    r->key = name(s);
    r->name = reserved_parse(r->key);
    r->value = some_value(s, r->op == C10D_QUEUE_PUSH);
    if (r->op == C10D_APPEND) /* Short for the same reason. */
        r->value.n = MIN_OF(r->value.n, 1);
    if (r->op == C10D_COMPARE_SET)
        r->expected = some_value(s, false);
    if (r->op == C10D_ADD || r->op == C10D_BARRIER)
        r->number = (int64_t)next(s) % 5 - 1;
    r->word = 0x01020304;
    if (r->op == C10D_CHECK || r->op == C10D_WAIT || r->op == C10D_MULTI_GET ||
        r->op == C10D_MULTI_SET)
        r->list = some_list(s, list, r->op == C10D_MULTI_SET);
}

static int by_bytes(const void *a, const void *b)
{
    return span_cmp(*(const struct span *)a, *(const struct span *)b);
}

/* One line an effect. The order of LIST_KEYS means nothing, so it is sorted. */
static void tell(struct buf *out, const struct store_effect *e)
{
    struct c10d_list l = e->reply.list;
    struct span items[1024];
    size_t n = 0;

    if (e->kind == STORE_CLOSE) {
        (void)buf_printf(out, "close %u\n", (unsigned)e->peer);
        return;
    }
    (void)buf_printf(out, "%s to %u: %lld %u \"", c10d_op_name(e->reply.op),
                     (unsigned)e->peer, (long long)e->reply.number,
                     (unsigned)e->reply.word);
    (void)buf_append_span(out, e->reply.value);
    (void)buf_printf(out, "\" %zu", l.count);
    while (n < ARRAY_LEN(items) && c10d_list_next(&l, &items[n]))
        n++;
    if (e->reply.op == C10D_LIST_KEYS)
        qsort(items, n, sizeof items[0], by_bytes);
    for (size_t i = 0; i < n; i++) {
        (void)buf_append_str(out, " ");
        (void)buf_append_span(out, items[i]);
    }
    (void)buf_append_str(out, "\n");
}

static int by_line(const void *a, const void *b)
{
    return span_cmp(*(const struct span *)a, *(const struct span *)b);
}

/* After a wipe the order of the answers means nothing either. */
static void sort_lines(struct buf *text)
{
    struct span lines[64];
    struct buf sorted;
    size_t n = 0;

    buf_init(&sorted, SIZE_MAX);
    for (struct span rest = buf_span(text); rest.n && n < ARRAY_LEN(lines);) {
        const uint8_t *end = memchr(rest.p, '\n', rest.n);
        const size_t len = (size_t)(end - rest.p) + 1;

        lines[n++] = span_of(rest.p, len);
        rest = span_of(rest.p + len, rest.n - len);
    }
    qsort(lines, n, sizeof lines[0], by_line);
    for (size_t i = 0; i < n; i++)
        (void)buf_append_span(&sorted, lines[i]);
    buf_fini(text);
    *text = sorted;
}

static void compare(const struct store_fx *fx, const struct store_effect *want,
                    size_t count, bool any_order)
{
    struct buf a, b;

    buf_init(&a, SIZE_MAX);
    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; i < fx->count; i++)
        tell(&a, &fx->items[i]);
    for (size_t i = 0; i < count; i++)
        tell(&b, &want[i]);
    if (any_order) {
        sort_lines(&a);
        sort_lines(&b);
    }
    if (!span_eq(buf_span(&a), buf_span(&b))) {
        fprintf(stderr, "the engine:\n%.*sits twin:\n%.*s", (int)a.len,
                (const char *)buf_data(&a), (int)b.len, (const char *)buf_data(&b));
        abort();
    }
    buf_fini(&a);
    buf_fini(&b);
}

/* The step, at first with the n-th allocation failing, n from the script: then it must
 * say so and change nothing, as what follows will show. */
static void step(struct store *s, const struct store_event *ev, struct store_fx *fx,
                 uint8_t fail)
{
    if (fail >= 128 && !ev->gives_up) {
        int rc;

        mem_fail_from((unsigned long)(fail & 7) + 1);
        rc = store_step(s, ev, fx);
        mem_fail_from(0);
        if (rc == 0)
            return; /* It needed less. */
        if (rc != MUSTER_ENOMEM || fx->count || ev->kind == STORE_LEFT)
            abort();
    }
    if (store_step(s, ev, fx) != 0)
        abort();
}

void twin_play(const uint8_t *data, size_t size)
{
    struct script in = { data, size };
    struct store *s = store_new(1, SIZE_MAX);
    struct twin *t = twin_new();
    struct store_fx fx;
    struct buf list;

    if (!s)
        abort();
    store_fx_init(&fx);
    buf_init(&list, SIZE_MAX);
    for (int steps = 0; in.n && steps < 400; steps++) {
        const struct store_effect *want;
        struct c10d_request r;
        struct store_event ev = { .kind = STORE_REQUEST, .request = &r };
        const uint8_t what = next(&in), fail = next(&in);
        size_t count;

        ev.peer = what % TWIN_PEERS;
        ev.gives_up = what == 249;
        if (what >= 250)
            ev.kind = what == 255 ? STORE_WIPE : STORE_LEFT;
        some_request(&in, &r, &list);
        step(s, &ev, &fx, fail);
        want = twin_step(t, &ev, &count);
        compare(&fx, want, count, ev.kind == STORE_WIPE);
    }
    store_fx_fini(&fx);
    buf_fini(&list);
    store_free(s);
    twin_free(t);
}
