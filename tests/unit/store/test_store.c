/* test_store.c - the engine, request by request. Random play beside a twin is in
 * test_store_twin.c. */
#include "testing.h"

#include <stdio.h>

#include "store/core/decimal.h"
#include "store/core/quote.h"
#include "store/core/reserved.h"
#include "store/core/store_int.h"

/* ---- small parts ---- */

static void numbers_are_read_as_torch_reads_them(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        bool ok;
        int64_t want;
    } rows[] = {
#define ROW(text, ok, want) { text, sizeof text - 1, ok, want }
        ROW("0", true, 0),
        ROW("-2", true, -2),
        ROW(" \t\n\v\f\r+5", true, 5),
        ROW("12abc", true, 12),
        ROW("12\0"
            "34",
            true, 12),
        ROW("0x10", true, 0),
        ROW("1e3", true, 1),
        ROW("000000000000000000000000000001", true, 1),
        ROW("9223372036854775807", true, INT64_MAX),
        ROW("-9223372036854775808", true, INT64_MIN),
        ROW("9223372036854775808", false, 0),
        ROW("-9223372036854775809", false, 0),
        ROW("99999999999999999999", false, 0),
        ROW("", false, 0),
        ROW(" ", false, 0),
        ROW("-", false, 0),
        ROW("+-1", false, 0),
        ROW("x1", false, 0),
        ROW("\0"
            "1",
            false, 0),
#undef ROW
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int64_t got = 0;
        const bool ok = decimal_parse(span_of(rows[i].text, rows[i].n), &got);

        if (ok != rows[i].ok || got != rows[i].want)
            fail_msg("\"%s\": %d, %lld", rows[i].text, ok, (long long)got);
    }
}

static void numbers_are_written(void **state)
{
    static const int64_t rows[] = { 0,   1,          -1,        9,        10,
                                    -10, 1234567890, INT64_MAX, INT64_MIN };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint8_t got[DECIMAL_MAX];
        char want[32];
        int64_t back;
        const size_t n = decimal_format(rows[i], got);

        assert_int_equal(n, snprintf(want, sizeof want, "%lld", (long long)rows[i]));
        assert_memory_equal(got, want, n);
        assert_true(decimal_parse(span_of(got, n), &back));
        assert_true(back == rows[i]);
    }
}

static void reserved_names(void **state)
{
    static const struct {
        const char *name;
        enum reserved_kind want;
    } rows[] = {
        { "", RESERVED_NONE },
        { "/", RESERVED_NONE },
        { "/\1muster", RESERVED_NONE },
        { "/muster/caps", RESERVED_NONE },
        { "x\1muster/caps", RESERVED_NONE },
        { "/\1muster/", RESERVED_UNKNOWN },
        { "/\1muster/caps", RESERVED_IS_CAPS },
        { "/\1muster/caps/", RESERVED_UNKNOWN },
        { "/\1muster/changed/", RESERVED_UNKNOWN },
        { "/\1muster/changed/0123456789abcdef", RESERVED_UNKNOWN },
        { "/\1muster/changed/0123456789abcdef/", RESERVED_IS_CHANGED },
        { "/\1muster/changed/0123456789abcdef//k", RESERVED_IS_CHANGED },
        { "/\1muster/changed/0123456789abcdeF//k", RESERVED_UNKNOWN },
        { "/\1muster/changed/0123456789abcdef//\1muster/caps", RESERVED_UNKNOWN },
    };
    struct reserved r;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (reserved_parse(span_str(rows[i].name)).kind != rows[i].want)
            fail_msg("row %zu", i);
    }
    r = reserved_parse(span_str("/\1muster/changed/0123456789abcdef/"
                                "//k"));
    assert_true(r.hash == 0x0123456789abcdefu && span_eq(r.key, span_str("//k")));
    /* The published test values of FNV-1a. */
    assert_true(reserved_hash(span_str("")) == 0xcbf29ce484222325u);
    assert_true(reserved_hash(span_str("a")) == 0xaf63dc4c8601ec8cu);
    assert_true(reserved_hash(span_str("foobar")) == 0x85944171f73967e8u);
}

static void keys_are_quoted(void **state)
{
    char text[QUOTE_MAX], many[500];

    (void)state;
    memset(many, 1, sizeof many);
    assert_string_equal(quote(span_str("/k"), text), "\"/k\"");
    assert_string_equal(quote(span_str("a\"\n\xff"), text), "\"a\\x22\\x0a\\xff\"");
    assert_string_equal(quote(span_of(NULL, 0), text), "\"\"");
    assert_true(strlen(quote(span_of(many, sizeof many), text)) < QUOTE_MAX);
    assert_string_equal(text + strlen(text) - 4, "\"...");
}

/* ---- stories ---- */

struct scene {
    struct store *s;
    struct store_fx fx;
    struct buf text;
};

static void scene_begin(struct scene *sc)
{
    sc->s = store_new(7, SIZE_MAX);
    assert_non_null(sc->s);
    store_fx_init(&sc->fx);
    buf_init(&sc->text, SIZE_MAX);
}

static void scene_end(struct scene *sc)
{
    store_free(sc->s);
    store_fx_fini(&sc->fx);
    buf_fini(&sc->text);
}

/* "2:WAIT=0 1:GET=v 3:close" */
static const char *told(struct scene *sc)
{
    buf_clear(&sc->text);
    for (size_t i = 0; i < sc->fx.count; i++) {
        const struct store_effect *e = &sc->fx.items[i];
        struct c10d_list l = e->reply.list;
        struct span v;

        (void)buf_printf(&sc->text, "%s%u:", i ? " " : "", (unsigned)e->peer);
        if (e->kind == STORE_CLOSE) {
            (void)buf_append_str(&sc->text, "close");
            continue;
        }
        (void)buf_printf(&sc->text, "%s=", c10d_op_name(e->reply.op));
        if (e->reply.op == C10D_GET || e->reply.op == C10D_COMPARE_SET)
            (void)buf_append_span(&sc->text, e->reply.value);
        else if (e->reply.op != C10D_MULTI_GET)
            (void)buf_printf(&sc->text, "%lld", (long long)e->reply.number);
        if (e->reply.op == C10D_QUEUE_POP && e->reply.number > 0) {
            (void)buf_append_str(&sc->text, ",");
            (void)buf_append_span(&sc->text, e->reply.value);
        }
        while (c10d_list_next(&l, &v)) {
            (void)buf_append_span(&sc->text, v);
            (void)buf_append_str(&sc->text, ";");
        }
    }
    (void)buf_append(&sc->text, "", 1);
    return (const char *)buf_data(&sc->text);
}

/* Keys of a list are words in `key`; for MULTI_SET keys and values in turn. */
struct line {
    uint32_t peer;
    enum c10d_op op;
    const char *key;
    const char *value;
    int64_t number;
    const char *want;
};

#define LEAVES  C10D_OP_COUNT
#define WIPES   ((enum c10d_op)(C10D_OP_COUNT + 1))
#define FNV_NIL "cbf29ce484222325"
#define FNV_A   "af63dc4c8601ec8c"
#define WATCH   "/\1muster/changed/"

static struct c10d_list words(const char *text, bool pairs, struct buf *to)
{
    size_t n = 0;

    while (text && *text) {
        const size_t len = strcspn(text, " ");

        if (c10d_list_add(to, span_of(text, len)) < 0)
            return (struct c10d_list){ { NULL, 0 }, SIZE_MAX }; /* Memory that fails. */
        text += len + (text[len] == ' ');
        n++;
    }
    return (struct c10d_list){ buf_span(to), pairs ? n / 2 : n };
}

static uint64_t print_number(uint64_t print, uint64_t n)
{
    return print_bytes(print, &n, sizeof n);
}

/* Who waits for a key, oldest first, and what still holds them up. */
static uint64_t print_links(uint64_t print, const struct links *l)
{
    print = print_number(print, l->count);
    for (const struct link *k = l->first; k; k = k->next) {
        print = print_number(print, k->wait->peer);
        print = print_number(print, k->wait->op);
        print = print_number(print, k->wait->pending);
        print = print_number(print, k->hash);
    }
    return print;
}

static uint64_t print_key(struct key *k)
{
    static const struct more none; /* An empty one is made in advance: no difference. */
    const struct span name = key_name(k), value = key_value(k);
    const struct more *m = k->more ? k->more : &none;
    uint64_t print = print_bytes(1, name.p, name.n);

    print = print_number(print, k->present);
    print = print_bytes(print, value.p, value.n);
    print = print_links(print, &m->ready);
    print = print_links(print, &m->watch);
    print = print_links(print, &m->unclaimed);
    print = print_number(print, m->items);
    for (const struct item *i = m->first; i; i = i->next)
        print = print_bytes(print_number(print, i->n), i->bytes, i->n);
    return print;
}

/* Of all that the store keeps, except for room that it has reserved: the map and the
 * list of peers may have grown. The keys come in any order. */
static uint64_t print_of(const struct store *s)
{
    const struct map_link *link;
    uint64_t keys = 0, print = 0;

    for (size_t i = 0; (link = map_next(&s->map, &i));)
        keys += print_key(key_of_link(link));
    print = print_number(print, keys);
    print = print_number(print, s->map.count);
    print = print_number(print, s->present);
    print = print_number(print, s->name_bytes);
    print = print_number(print, s->waits);
    for (size_t i = 0; i < s->peers_size; i++) {
        const struct peer *p = &s->peers[i];

        if (p->wait)
            print = print_number(print_number(print, i), p->wait->pending);
        if (p->unclaimed)
            print = print_number(print_number(print, ~i), p->unclaimed->count);
    }
    return print;
}

static int play_line(struct scene *sc, const struct line *l)
{
    struct c10d_request r = { .op = l->op, .number = l->number };
    struct store_event ev = { .kind = STORE_REQUEST, .peer = l->peer, .request = &r };
    struct buf list;
    int rc;

    buf_init(&list, SIZE_MAX);
    if (l->op == LEAVES)
        ev.kind = STORE_LEFT;
    if (l->op == WIPES)
        ev.kind = STORE_WIPE;
    if (l->op == C10D_CHECK || l->op == C10D_WAIT || l->op == C10D_MULTI_GET ||
        l->op == C10D_MULTI_SET)
        r.list = words(l->key, l->op == C10D_MULTI_SET, &list);
    else if (l->key)
        r.key = span_str(l->key);
    r.name = reserved_parse(r.key);
    if (l->value && l->op == C10D_COMPARE_SET) { /* "expected>desired" */
        const size_t n = strcspn(l->value, ">");

        r.expected = span_of(l->value, n);
        r.value = span_str(l->value + n + 1);
    } else if (l->value) {
        r.value = span_str(l->value);
    }
    if (r.list.count == SIZE_MAX)
        rc = MUSTER_ENOMEM; /* The failing memory was that of the request. */
    else
        TAKE_STEP(rc, store_step(sc->s, &ev, &sc->fx), print_of(sc->s));
    buf_fini(&list);
    return rc;
}

static void play(const char *says, const struct line *lines, size_t n)
{
    struct scene sc;

    scene_begin(&sc);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(play_line(&sc, &lines[i]), 0);
        if (strcmp(told(&sc), lines[i].want ? lines[i].want : "") != 0)
            fail_msg("%s, line %zu: want \"%s\", got \"%s\"", says, i + 1,
                     lines[i].want ? lines[i].want : "", told(&sc));
    }
    scene_end(&sc);
}

#define STORY(name, ...)                                                               \
    static void name(void **state)                                                     \
    {                                                                                  \
        static const struct line lines[] = { __VA_ARGS__ };                            \
                                                                                       \
        (void)state;                                                                   \
        play(#name, lines, ARRAY_LEN(lines));                                          \
    }

STORY(values_come_and_go, { 1, C10D_GET, "/a", .want = "1:GET=" },
      { 1, C10D_SET, "/a", "one" }, { 1, C10D_GET, "/a", .want = "1:GET=one" },
      { 1, C10D_SET, "/a", "a value that is much longer than the one before" },
      { 1, C10D_GET, "/a",
        .want = "1:GET=a value that is much longer than the one before" },
      { 1, C10D_APPEND, "/a", "+" },
      { 1, C10D_GET, "/a",
        .want = "1:GET=a value that is much longer than the one before+" },
      { 1, C10D_APPEND, "/b", "x" }, { 1, C10D_GETNUMKEYS, .want = "1:GETNUMKEYS=2" },
      { 1, C10D_DELETE_KEY, "/a", .want = "1:DELETE_KEY=1" },
      { 1, C10D_DELETE_KEY, "/a", .want = "1:DELETE_KEY=0" },
      { 1, C10D_LIST_KEYS, .want = "1:LIST_KEYS=1/b;" },
      { 1, C10D_MULTI_SET, "/a 1 /b 2 /a 3" },
      { 1, C10D_MULTI_GET, "/a /b /c", .want = "1:MULTI_GET=3;2;;" },
      { 1, C10D_MULTI_GET, "", .want = "1:MULTI_GET=" }, { 1, C10D_MULTI_SET, "" })

STORY(compare_and_set, { 1, C10D_WAIT, "/a" },
      { 2, C10D_COMPARE_SET, "/a", "x>y", .want = "2:COMPARE_SET=x" },
      { 2, C10D_COMPARE_SET, "/a", ">y", .want = "1:WAIT=0 2:COMPARE_SET=y" },
      { 2, C10D_COMPARE_SET, "/a", "x>z", .want = "2:COMPARE_SET=y" },
      { 2, C10D_COMPARE_SET, "/a", "y>z", .want = "2:COMPARE_SET=z" },
      { 2, C10D_COMPARE_SET, "/a", "z>", .want = "2:COMPARE_SET=" },
      { 2, C10D_COMPARE_SET, "/a", ">", .want = "2:COMPARE_SET=" })

STORY(counters, { 1, C10D_ADD, "/n", NULL, 5, "1:ADD=5" },
      { 1, C10D_ADD, "/n", NULL, -7, "1:ADD=-2" },
      { 1, C10D_GET, "/n", .want = "1:GET=-2" },
      { 1, C10D_ADD, "/n", NULL, INT64_MIN, "1:ADD=9223372036854775806" },
      { 1, C10D_SET, "/n", "text" }, { 1, C10D_ADD, "/n", NULL, 1, "1:close" },
      { 2, C10D_GET, "/n", .want = "2:GET=text" })

STORY(waits_are_struck_key_by_key, { 1, C10D_SET, "/there", "x" },
      { 2, C10D_WAIT, "/there", .want = "2:WAIT=0" },
      { 2, C10D_WAIT, "", .want = "2:WAIT=0" }, { 2, C10D_WAIT, "/a /there /b /a" },
      { 1, C10D_SET, "/a" }, { 1, C10D_DELETE_KEY, "/a", .want = "1:DELETE_KEY=1" },
      { 1, C10D_ADD, "/b", NULL, 1, "2:WAIT=0 1:ADD=1" }, { 1, C10D_SET, "/a" },
      { 3, C10D_CANCEL_WAIT, .want = "3:CANCEL_WAIT=1" }, { 3, C10D_WAIT, "/c" },
      { 3, C10D_CANCEL_WAIT, .want = "3:CANCEL_WAIT=1" }, { 3, C10D_WAIT, "/c" },
      { 4, C10D_WAIT, "/c" }, { 3, LEAVES },
      { 1, C10D_MULTI_SET, "/d 1 /c 2", .want = "4:WAIT=0" })

STORY(the_newest_wait_counts, { 1, C10D_WAIT, "/a" }, { 1, C10D_WAIT, "/b" },
      { 2, C10D_SET, "/a" }, { 2, C10D_SET, "/b", .want = "1:WAIT=0" })

STORY(queues, { 1, C10D_QUEUE_POP, "/q", .want = "1:QUEUE_POP=0" },
      { 1, C10D_QUEUE_PUSH, "/q", "x" }, { 1, C10D_QUEUE_PUSH, "/q", "y" },
      { 1, C10D_QUEUE_LEN, "/q", .want = "1:QUEUE_LEN=2" },
      { 1, C10D_GETNUMKEYS, .want = "1:GETNUMKEYS=0" },
      { 1, C10D_CHECK, "/q", .want = "1:CHECK=0" },
      { 1, C10D_GET, "/q", .want = "1:GET=" },
      { 1, C10D_DELETE_KEY, "/q", .want = "1:DELETE_KEY=0" },
      { 1, C10D_QUEUE_POP, "/q", .want = "1:QUEUE_POP=2,x" },
      { 1, C10D_QUEUE_POP, "/q", .want = "1:QUEUE_POP=1,y" },
      { 1, C10D_CHECK, "/q", .want = "1:CHECK=1" })

STORY(one_item_one_waiter, { 1, C10D_WAIT, "/q /y" }, { 2, C10D_WAIT, "/q" },
      { 3, C10D_WAIT, "/q" }, { 4, C10D_QUEUE_PUSH, "/q", "x", .want = "2:WAIT=0" },
      { 2, C10D_QUEUE_POP, "/q", .want = "2:QUEUE_POP=1,x" },
      { 4, C10D_QUEUE_PUSH, "/q", "y", .want = "3:WAIT=0" },
      { 4, C10D_QUEUE_PUSH, "/q", "z" }, { 4, C10D_SET, "/y", .want = "1:WAIT=0" })

STORY(a_woken_waiter_is_not_woken_again_elsewhere, { 1, C10D_WAIT, "/q" },
      { 2, C10D_QUEUE_PUSH, "/q", "x", .want = "1:WAIT=0" }, { 1, C10D_WAIT, "/other" },
      { 2, C10D_QUEUE_PUSH, "/q", "y" }, { 2, C10D_SET, "/other", .want = "1:WAIT=0" })

STORY(who_leaves_passes_the_wake_up_on, { 1, C10D_WAIT, "/q" }, { 2, C10D_WAIT, "/q" },
      { 3, C10D_WAIT, "/q" }, { 4, C10D_WAIT, "/q" },
      { 9, C10D_QUEUE_PUSH, "/q", "x", .want = "1:WAIT=0" },
      { 1, LEAVES, .want = "2:WAIT=0" },
      { 2, C10D_CANCEL_WAIT, .want = "3:WAIT=0 2:CANCEL_WAIT=1" },
      { 3, C10D_WAIT, "/else", .want = "4:WAIT=0" },
      { 4, C10D_QUEUE_POP, "/q", .want = "4:QUEUE_POP=1,x" }, { 4, LEAVES })

STORY(a_stolen_item_is_not_passed_on, { 1, C10D_WAIT, "/q" }, { 2, C10D_WAIT, "/q" },
      { 9, C10D_QUEUE_PUSH, "/q", "x", .want = "1:WAIT=0" },
      { 9, C10D_QUEUE_POP, "/q", .want = "9:QUEUE_POP=1,x" }, { 1, LEAVES },
      { 9, C10D_QUEUE_PUSH, "/q", "y", .want = "2:WAIT=0" })

STORY(barriers, { 1, C10D_BARRIER, "/b", NULL, 1, "1:BARRIER=0" },
      { 1, C10D_BARRIER, "/b3", NULL, 3 },
      { 5, C10D_CHECK, "/b3", .want = "5:CHECK=0" },
      { 2, C10D_BARRIER, "/b3", NULL, 3 }, { 2, LEAVES },
      { 3, C10D_BARRIER, "/b3", NULL, 3, "1:BARRIER=0 3:BARRIER=0" },
      { 4, C10D_BARRIER, "/b3", NULL, 3, "4:BARRIER=0" },
      { 4, C10D_GET, "/b3", .want = "4:GET=4" }, { 1, C10D_BARRIER, "/b9", NULL, 9 },
      { 2, C10D_SET, "/b9", "text", .want = "1:BARRIER=0" },
      { 1, C10D_BARRIER, "/b9", NULL, 9, "1:close" })

STORY(changes_are_told, { 1, C10D_WAIT, WATCH FNV_NIL "//k" },
      { 9, C10D_SET, "/k", "" }, { 9, C10D_SET, "/k", "a", .want = "1:WAIT=0" },
      { 1, C10D_WAIT, WATCH FNV_NIL "//k", .want = "1:WAIT=0" },
      { 1, C10D_WAIT, WATCH FNV_A "//k" },
      { 9, C10D_COMPARE_SET, "/k", "a>a", .want = "9:COMPARE_SET=a" },
      { 9, C10D_DELETE_KEY, "/k", .want = "1:WAIT=0 9:DELETE_KEY=1" },
      { 1, C10D_WAIT, WATCH FNV_NIL "//k" },
      { 9, C10D_BARRIER, "/k", NULL, 2, "1:WAIT=0" },
      { 9, C10D_GETNUMKEYS, .want = "9:GETNUMKEYS=1" },
      { 9, C10D_SET, "/\1muster/caps", "x", .want = "9:close" },
      { 9, C10D_CHECK, "/\1muster/caps", .want = "9:CHECK=0" },
      { 9, C10D_GET, "/\1muster/caps", .want = "9:GET=" RESERVED_CAPS_TEXT },
      { 9, C10D_WAIT, "/\1muster/nonsense", .want = "9:close" })

STORY(a_wipe_leaves_waits, { 1, C10D_SET, "/a", "a" },
      { 1, C10D_QUEUE_PUSH, "/q", "x" }, { 2, C10D_WAIT, "/b" },
      { 3, C10D_WAIT, WATCH FNV_A "//a" }, { 4, C10D_BARRIER, "/bar", NULL, 2 },
      { 0, WIPES, .want = "3:WAIT=0" },
      { 1, C10D_GETNUMKEYS, .want = "1:GETNUMKEYS=0" },
      { 1, C10D_QUEUE_LEN, "/q", .want = "1:QUEUE_LEN=0" },
      { 1, C10D_SET, "/b", .want = "2:WAIT=0" },
      { 1, C10D_BARRIER, "/bar", NULL, 1, "4:BARRIER=0 1:BARRIER=0" })

/* ---- size ---- */

static void ten_thousand_wake_without_memory(void **state)
{
    const struct line wait = { 0, C10D_WAIT, "/k" },
                      set = { 20000, C10D_SET, "/k", "v" };
    struct scene sc;
    unsigned long before;

    (void)state;
    if (step_starves)
        return; /* It counts allocations, and its steps are those of the other tests. */
    scene_begin(&sc);
    for (uint32_t p = 0; p < 12000; p++) {
        struct line l = wait;

        l.peer = p;
        assert_int_equal(play_line(&sc, &l), 0);
    }
    for (uint32_t p = 0; p < 12000; p += 6) {
        const struct line l = { p, LEAVES };

        assert_int_equal(play_line(&sc, &l), 0);
    }
    assert_int_equal(sc.s->waits, 10000);
    before = mem_count();
    assert_int_equal(play_line(&sc, &set), 0);
    assert_true(mem_count() - before <= 2); /* The array of effects, once. */
    assert_int_equal(sc.fx.count, 10000);
    assert_int_equal(sc.fx.items[0].peer, 1);
    assert_int_equal(sc.fx.items[9999].peer, 11999);
    assert_int_equal(sc.s->waits, 0);
    scene_end(&sc);
}

static void nothing_is_left_of_those_who_left(void **state)
{
    struct scene sc;
    struct buf names;
    char name[32];
    struct c10d_request r = { .op = C10D_WAIT };
    const struct store_event ask = { .kind = STORE_REQUEST, .peer = 3, .request = &r };
    const struct line leaves = { 3, LEAVES };

    (void)state;
    scene_begin(&sc);
    buf_init(&names, SIZE_MAX);
    for (int i = 0; i < 131072; i++) {
        const int n = snprintf(name, sizeof name, "/key/%d", i);

        assert_int_equal(c10d_list_add(&names, span_of(name, (size_t)n)), 0);
    }
    r.list = (struct c10d_list){ buf_span(&names), 131072 };
    assert_int_equal(store_step(sc.s, &ask, &sc.fx), 0);
    assert_int_equal(sc.s->map.count, 131072);
    assert_int_equal(play_line(&sc, &leaves), 0);
    assert_int_equal(sc.s->map.count, 0);
    assert_int_equal(sc.s->waits, 0);
    buf_fini(&names);
    scene_end(&sc);
}

static void large_answers_are_refused(void **state)
{
    struct scene sc;
    const struct line set = { 1, C10D_SET, "/k", "0123456789" };
    const struct line get = { 1, C10D_MULTI_GET, "/k /k /k /k /k /k" };
    const struct line list = { 1, C10D_LIST_KEYS };

    (void)state;
    scene_begin(&sc);
    store_free(sc.s);
    sc.s = store_new(1, 100);
    assert_int_equal(play_line(&sc, &set), 0);
    assert_int_equal(play_line(&sc, &get), 0);
    assert_string_equal(told(&sc), "1:close");
    assert_int_equal(play_line(&sc, &list), 0);
    assert_string_equal(told(&sc), "1:LIST_KEYS=1/k;");
    scene_end(&sc);
}

/* ---- memory that fails ---- */

static const struct line setting[] = {
    { 1, C10D_SET, "/a", "a" },          { 1, C10D_SET, "/n", "7" },
    { 1, C10D_QUEUE_PUSH, "/q", "x" },   { 2, C10D_WAIT, "/w /n" },
    { 3, C10D_WAIT, WATCH FNV_A "//a" }, { 4, C10D_BARRIER, "/bar", NULL, 3 },
};

static const struct line attempts[] = {
    { 1, C10D_SET, "/new", "v" },
    { 1, C10D_SET, "/a", "a longer value than there was, for which there is no room" },
    { 1, C10D_SET, "/w", "v" },
    { 1, C10D_COMPARE_SET, "/a", "a>a longer value than there was, for sure" },
    { 1, C10D_ADD, "/w", NULL, 1 },
    { 1, C10D_APPEND, "/a", " and then a lot more than there was before this" },
    { 1, C10D_APPEND, "/w", "v" },
    { 1, C10D_MULTI_SET,
      "/a a-longer-value-than-there-was-for-sure /w 2 /x 3 /x 44444" },
    { 1, C10D_MULTI_GET, "/a /n" },
    { 1, C10D_LIST_KEYS },
    { 1, C10D_WAIT, "/x /y /z" },
    { 1, C10D_WAIT, WATCH FNV_NIL "//zz" },
    { 1, C10D_QUEUE_PUSH, "/q2", "x" },
    { 1, C10D_BARRIER, "/bar", NULL, 3 },
    { 1, C10D_BARRIER, "/newbar", NULL, 3 },
    { 4, C10D_BARRIER, "/bar", NULL, 2 },
};

/* All that can be seen of a store. */
static void look(struct scene *sc, struct buf *out)
{
    static const struct line looks[] = {
        { 9, C10D_MULTI_GET, "/a /n /w /x /new /bar /newbar" },
        { 9, C10D_CHECK, "/q2" },
        { 9, C10D_GETNUMKEYS },
        { 9, C10D_QUEUE_LEN, "/q" },
    };

    for (size_t i = 0; i < ARRAY_LEN(looks); i++) {
        assert_int_equal(play_line(sc, &looks[i]), 0);
        (void)buf_append_str(out, told(sc));
    }
    (void)buf_printf(out, " %zu waits, %zu entries", sc->s->waits, sc->s->map.count);
}

static void attempt(const struct line *l, struct failing *f)
{
    struct scene sc;
    struct buf before, after;
    int rc;

    mem_fail_from(0);
    scene_begin(&sc);
    buf_init(&before, SIZE_MAX);
    buf_init(&after, SIZE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(setting); i++)
        assert_int_equal(play_line(&sc, &setting[i]), 0);
    look(&sc, &before);
    sc.fx.count = 0;
    f->before = mem_count();
    mem_fail_from(f->nth);
    rc = play_line(&sc, l);
    mem_fail_from(0);
    const unsigned long asked = mem_count() - f->before;
    if (rc != 0) {
        assert_int_equal(rc, MUSTER_ENOMEM);
        assert_int_equal(sc.fx.count, 0);
        look(&sc, &after);
        assert_true(span_eq(buf_span(&before), buf_span(&after)));
    }
    f->before = mem_count() - asked; /* failing_next looks at this. */
    buf_fini(&before);
    buf_fini(&after);
    scene_end(&sc);
}

static void failing_memory_changes_nothing(void **state)
{
    (void)state;
    if (step_starves)
        return; /* It has its own way to fail. */
    for (size_t i = 0; i < ARRAY_LEN(attempts); i++) {
        for (struct failing f = failing_first(); failing_next(&f);)
            attempt(&attempts[i], &f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_as_torch_reads_them),
        cmocka_unit_test(numbers_are_written),
        cmocka_unit_test(reserved_names),
        cmocka_unit_test(keys_are_quoted),
        cmocka_unit_test(values_come_and_go),
        cmocka_unit_test(compare_and_set),
        cmocka_unit_test(counters),
        cmocka_unit_test(waits_are_struck_key_by_key),
        cmocka_unit_test(the_newest_wait_counts),
        cmocka_unit_test(queues),
        cmocka_unit_test(one_item_one_waiter),
        cmocka_unit_test(a_woken_waiter_is_not_woken_again_elsewhere),
        cmocka_unit_test(who_leaves_passes_the_wake_up_on),
        cmocka_unit_test(a_stolen_item_is_not_passed_on),
        cmocka_unit_test(barriers),
        cmocka_unit_test(changes_are_told),
        cmocka_unit_test(a_wipe_leaves_waits),
        cmocka_unit_test(ten_thousand_wake_without_memory),
        cmocka_unit_test(nothing_is_left_of_those_who_left),
        cmocka_unit_test(large_answers_are_refused),
        cmocka_unit_test(failing_memory_changes_nothing),
    };

    const int failed = cmocka_run_group_tests(tests, NULL, NULL);

    step_starves = true;
    return cmocka_run_group_tests_name("starved", tests, NULL, NULL) + failed;
}
