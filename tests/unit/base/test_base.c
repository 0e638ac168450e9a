/* test_base.c - err, mem, buf, map, rng, utf8. */
#include "testing.h"

#include "base/list.h"
#include "base/mem.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/map.h"
#include "base/nearest.h"
#include "base/rng.h"
#include "base/utf8.h"

static void errors_carry_text(void **state)
{
    struct muster_error err;

    (void)state;
    assert_int_equal(err_set(&err, MUSTER_EINVAL, "port %d", 7), MUSTER_EINVAL);
    assert_int_equal(err_wrap(&err, "joining %s", "r1"), MUSTER_EINVAL);
    assert_string_equal(err.text, "joining r1: port 7");
    err_add(&err, "; give another");
    assert_string_equal(err.text, "joining r1: port 7; give another");
    assert_string_equal(muster_code_name(MUSTER_EINVAL), "MUSTER_EINVAL");
    assert_string_equal(muster_code_name(77), "MUSTER_E?");
    assert_int_equal(err_set(NULL, MUSTER_EIO, "x"), MUSTER_EIO);
}

static void long_errors_are_cut(void **state)
{
    struct muster_error err;

    (void)state;
    (void)err_set(&err, MUSTER_EIO, "%0900d", 1);
    for (int i = 0; i < 5; i++)
        (void)err_wrap(&err, "a fairly long place number %d", i);
    assert_true(strlen(err.text) < sizeof err.text);
}

/* sys.maxsize seconds are a long time, and a deadline of ours can be that far away. */
static void seconds_do_not_overflow(void **state)
{
    const uint64_t years_ms = UINT64_C(1000) * 86400 * 365;

    (void)state;
    assert_int_equal(ms_of_seconds(INT64_MIN), 0);
    assert_int_equal(ms_of_seconds(-1), 0);
    assert_int_equal(ms_of_seconds(0), 0);
    assert_int_equal(ms_of_seconds(30), 30000);
    assert_true(ms_of_seconds(INT64_MAX) >= 10 * years_ms);
    assert_true(ms_of_seconds(INT64_MAX) < 11 * years_ms);
    assert_true(ms_of_seconds(INT64_MAX / 1000 + 1) >= 10 * years_ms);
}

static void buffers_grow_and_shrink(void **state)
{
    struct buf b;
    struct rng r;
    size_t in = 0, out = 0;

    (void)state;
    buf_init(&b, SIZE_MAX);
    rng_init(&r, 3);
    for (int i = 0; i < 20000; i++) { /* A queue of bytes that count up. */
        size_t n = rng_below(&r, 50);

        if (rng_below(&r, 2)) {
            for (size_t k = 0; k < n; k++)
                assert_int_equal(buf_u8(&b, (uint8_t)in++), 0);
        } else {
            n = MIN_OF(n, buf_len(&b));
            for (size_t k = 0; k < n; k++)
                assert_int_equal(buf_data(&b)[k], (uint8_t)out++);
            buf_consume(&b, n);
        }
        if (rng_below(&r, 100) == 0)
            buf_shrink(&b);
    }
    assert_int_equal(in - out, buf_len(&b));
    buf_fini(&b);
    buf_fini(NULL);
}

static void buffers_have_a_cap(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 10);
    assert_int_equal(buf_append(&b, "0123456789", 10), 0);
    assert_int_equal(buf_error(&b), 0);
    assert_int_equal(buf_u8(&b, 1), MUSTER_EFULL);
    assert_int_equal(buf_error(&b), MUSTER_EFULL);
    assert_int_equal(buf_append(&b, NULL, SIZE_MAX), MUSTER_EFULL);
    assert_int_equal(buf_len(&b), 10);
    buf_consume(&b, 4);
    assert_int_equal(buf_u32(&b, 0x01020304), 0);
    assert_memory_equal(buf_data(&b), "456789\4\3\2\1", 10);
    assert_int_equal(buf_error(&b), MUSTER_EFULL); /* It keeps the first failure, */
    buf_clear(&b);
    assert_int_equal(buf_error(&b), 0); /* until it begins anew. */
    buf_fail(&b, MUSTER_ENOMEM);
    buf_fail(&b, MUSTER_EFULL);
    assert_int_equal(buf_error(&b), MUSTER_ENOMEM);
    buf_fini(&b);
}

static void buffers_survive_failing_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct buf b;
        int rc = 0;

        buf_init(&b, SIZE_MAX);
        for (int i = 0; i < 100 && rc == 0; i++) {
            const size_t before = buf_len(&b);

            rc = buf_printf(&b, "line %d\n", i);
            assert_true(rc == 0 || (rc == MUSTER_ENOMEM && buf_len(&b) == before));
        }
        buf_fini(&b);
    }
}

struct word {
    struct map_link link;
    char text[16];
    bool in;
};

static void maps_agree_with_an_array(void **state)
{
    static struct word words[3000];
    struct map m;
    struct rng r;
    size_t count = 0, seen = 0;

    (void)state;
    map_init(&m, 42);
    rng_init(&r, 9);
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        (void)snprintf(words[i].text, sizeof words[i].text, "k%zu", i);
        words[i].link.key = span_str(words[i].text);
    }
    for (int i = 0; i < 100000; i++) {
        struct word *w = &words[rng_below(&r, ARRAY_LEN(words))];

        assert_ptr_equal(map_get(&m, w->link.key), w->in ? &w->link : NULL);
        if (w->in) {
            map_remove(&m, &w->link);
            count--;
        } else {
            assert_int_equal(map_reserve(&m, 1), 0);
            map_add(&m, &w->link);
            count++;
        }
        w->in = !w->in;
        assert_int_equal(m.count, count);
    }
    for (size_t i = 0; map_next(&m, &i);)
        seen++;
    assert_int_equal(seen, count);
    map_fini(&m);
}

static void hashes_match_the_reference(void **state)
{
    /* Same seed, same key, same hash; another seed, another hash. */
    struct map a, b, c;

    (void)state;
    map_init(&a, 1);
    map_init(&b, 1);
    map_init(&c, 2);
    assert_true(map_hash(&a, span_str("hello")) == map_hash(&b, span_str("hello")));
    assert_true(map_hash(&a, span_str("hello")) != map_hash(&c, span_str("hello")));
    assert_true(map_hash(&a, span_str("")) != map_hash(&a, span_of("", 1)));
}

static void random_numbers_repeat(void **state)
{
    struct rng a, b;

    (void)state;
    rng_init(&a, 5);
    rng_init(&b, 5);
    for (int i = 0; i < 1000; i++) {
        assert_true(rng_u64(&a) == rng_u64(&b));
        assert_true(rng_below(&a, 7) < 7);
        (void)rng_u64(&b);
    }
    assert_true(rng_below(&a, 0) == 0);
}

static void test_nearest(void **state)
{
    static const struct {
        const char *word, *want; /* NULL: nothing is near */
    } rows[] = {
        { "rnu", "run" },
        { "runn", "run" },
        { "ru", "run" },
        { "stroe", "store" },
        { "stor", "store" },
        { "version", "version" },
        { "vresion", "version" },
        { "x", NULL },
        { "", NULL },
        { "launcher", "launch" },
        { "train", NULL },
        { "train.py", NULL },
        { "completion_", "completion" },
    };
    static const char *const words[] = { "run", "launch", "store", "completion",
                                         "version" };
    char longest[80] = "";

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct nearest n = { 0 };

        for (size_t k = 0; k < ARRAY_LEN(words); k++)
            nearest_try(&n, span_str(rows[i].word), words[k]);
        if (!n.word != !rows[i].want || (n.word && strcmp(n.word, rows[i].want) != 0))
            fail_msg("%s: %s", rows[i].word, n.word ? n.word : "nothing");
    }
    assert_int_equal(word_distance(span_str("a-b"), span_str("a_b")), 0);
    assert_int_equal(word_distance(span_str("ab"), span_str("ba")), 1);
    memset(longest, 'a', sizeof longest - 1);
    assert_int_equal(word_distance(span_str(longest), span_str("a")), UINT32_MAX);
}

static void count_lines(void *ctx, enum log_level level, enum log_place place,
                        const char *text)
{
    (void)place;
    assert_int_equal(level, LOG_WARN);
    assert_string_equal(text, "door: 990 more connections were refused in 12 s");
    ++*(int *)ctx;
}

static void lines_have_a_rate(void **state)
{
    int told = 0, allowed = 0;
    const struct log t = { .emit = count_lines, .ctx = &told, .torch_least = LOG_WARN };
    struct log_rate r = { 0 };

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        allowed += log_rate_allows(&r, 5 + i, &t, "door");
    assert_int_equal(allowed, LOG_RATE_LINES);
    assert_int_equal(told, 0);
    assert_true(log_rate_allows(&r, 12345, &t, "door"));
    assert_int_equal(told, 1);
    assert_true(log_rate_allows(&r, 12345, &t, "door"));
    assert_int_equal(told, 1);
}

struct item {
    struct item *prev, *next;
    char name;
};

struct items {
    struct item *first, *last;
};

/* As read from either end: "abc|cba". */
static void assert_items(const struct items *l, const char *want)
{
    char got[32];
    size_t n = 0;

    for (const struct item *i = l->first; i; i = i->next)
        got[n++] = i->name;
    got[n++] = '|';
    for (const struct item *i = l->last; i; i = i->prev)
        got[n++] = i->name;
    got[n] = '\0';
    assert_string_equal(got, want);
}

static void lists_read_alike_from_both_ends(void **state)
{
    struct item a = { .name = 'a' }, b = { .name = 'b' }, c = { .name = 'c' };
    struct item *none = NULL;
    struct items l = { NULL, NULL };

    (void)state;
    LIST_APPEND(&l, &b, prev, next);
    LIST_APPEND(&l, &c, prev, next);
    LIST_INSERT(&l, none, &a, prev, next);
    assert_items(&l, "abc|cba");
    LIST_REMOVE(&l, &b, prev, next);
    assert_items(&l, "ac|ca");
    assert_true(!b.prev && !b.next);
    LIST_INSERT(&l, &a, &b, prev, next);
    assert_items(&l, "abc|cba");
    LIST_REMOVE(&l, &c, prev, next);
    LIST_REMOVE(&l, &a, prev, next);
    assert_items(&l, "b|b");
    LIST_REMOVE(&l, &b, prev, next);
    assert_items(&l, "|");
}

static void arrays_grow_by_index(void **state)
{
    size_t count = 0;
    int *p = mem_grow_to(NULL, &count, 0, sizeof *p), *grown;

    (void)state;
    assert_non_null(p);
    assert_true(count >= 1);
    p[0] = 7;
    assert_ptr_equal(mem_grow_to(p, &count, count - 1, sizeof *p), p);
    mem_fail_from(1);
    assert_null(mem_grow_to(p, &count, 1000, sizeof *p));
    mem_fail_from(0);
    assert_true(count < 1000);
    grown = mem_grow_to(p, &count, 1000, sizeof *p);
    assert_non_null(grown);
    assert_true(count > 1000 && grown[0] == 7 && grown[1] == 0 && grown[1000] == 0);
    mem_free(grown);
}

static void utf8_decodes_what_python_does(void **state)
{
    static const struct {
        const char *says, *text;
        size_t used;
        uint32_t point;
    } rows[] = {
        { "ASCII", "a", 1, 'a' },
        { "two bytes", "\xc3\xa9x", 2, 0xe9 },
        { "three bytes", "\xe2\x82\xac", 3, 0x20ac },
        { "four bytes", "\xf0\x9f\x98\x80", 4, 0x1f600 },
        { "the last character", "\xf4\x8f\xbf\xbf", 4, 0x10ffff },
        { "nothing", "", 0, 0 },
        { "a byte from the middle", "\x80", 0, 0 },
        { "two bytes for ASCII", "\xc1\xbf", 0, 0 },
        { "three bytes for two", "\xe0\x9f\xbf", 0, 0 },
        { "a surrogate", "\xed\xa0\x80", 0, 0 },
        { "beyond the last character", "\xf4\x90\x80\x80", 0, 0 },
        { "a character that is cut off", "\xe2\x82", 0, 0 },
        { "a character that is interrupted", "\xe2x\xac", 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t point = 0;

        if (utf8_decode(span_str(rows[i].text), &point) != rows[i].used ||
            point != rows[i].point)
            fail_msg("%s: got U+%04x", rows[i].says, point);
    }
    assert_true(utf8_valid(span_str("caf\xc3\xa9")));
    assert_false(utf8_valid(span_str("caf\xc3")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8_decodes_what_python_does),
        cmocka_unit_test(lists_read_alike_from_both_ends),
        cmocka_unit_test(arrays_grow_by_index),
        cmocka_unit_test(errors_carry_text),
        cmocka_unit_test(long_errors_are_cut),
        cmocka_unit_test(seconds_do_not_overflow),
        cmocka_unit_test(buffers_grow_and_shrink),
        cmocka_unit_test(buffers_have_a_cap),
        cmocka_unit_test(buffers_survive_failing_memory),
        cmocka_unit_test(maps_agree_with_an_array),
        cmocka_unit_test(hashes_match_the_reference),
        cmocka_unit_test(random_numbers_repeat),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(lines_have_a_rate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
