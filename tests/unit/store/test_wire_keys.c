/* test_wire_keys.c - prefixes put before keys and taken off, keys shown to people. */
#include "testing.h"

#include <stdio.h>

#include "base/rng.h"
#include "store/core/wire_keys.h"

#define LIT(s) span_of("" s, sizeof(s) - 1)
#define K1     "\1\0\0\0\0\0\0\0k"
#define V1     "\1\0\0\0\0\0\0\0v"

static void one_key_gets_a_prefix(void **state)
{
    const struct c10d_request req = {
        .op = C10D_COMPARE_SET, .key = LIT("k"), .expected = LIT("e"), .value = LIT("v")
    };
    struct c10d_prefixed p;

    (void)state;
    assert_int_equal(c10d_prefix_keys(&p, &req, LIT("pre/"), NULL), 0);
    assert_true(span_eq(p.req.key, LIT("pre/k")));
    assert_true(span_eq(p.req.expected, LIT("e")) && span_eq(p.req.value, LIT("v")));
    c10d_prefixed_fini(&p);
}

static void lists_get_a_prefix(void **state)
{
    const struct c10d_request wait = { .op = C10D_WAIT, .list = { LIT(K1 K1), 2 } };
    const struct c10d_request set = { .op = C10D_MULTI_SET,
                                      .list = { LIT(K1 V1 K1 V1), 2 } };
    const struct c10d_request none = { .op = C10D_LIST_KEYS };
    struct c10d_prefixed p;

    (void)state;
    assert_int_equal(c10d_prefix_keys(&p, &wait, LIT("/"), NULL), 0);
    assert_true(span_eq(p.req.list.bytes, LIT("\2\0\0\0\0\0\0\0/k\2\0\0\0\0\0\0\0/k")));
    assert_int_equal(p.req.list.count, 2);
    c10d_prefixed_fini(&p);

    assert_int_equal(c10d_prefix_keys(&p, &set, LIT("/"), NULL), 0);
    assert_true(span_eq(p.req.list.bytes,
                        LIT("\2\0\0\0\0\0\0\0/k" V1 "\2\0\0\0\0\0\0\0/k" V1)));
    c10d_prefixed_fini(&p);

    assert_int_equal(c10d_prefix_keys(&p, &none, LIT("/"), NULL), 0);
    assert_int_equal(p.req.key.n, 0);
    c10d_prefixed_fini(&p);
}

/* A copy says the same after the original is gone. */
static void copies_stand_alone(void **state)
{
    static const char *const prefixes[] = { "", "/", "a long prefix/" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        char key[] = "key", value[] = "value", expected[] = "old", list[] = K1 V1;
        const struct c10d_request set = { .op = C10D_COMPARE_SET,
                                          .key = span_str(key),
                                          .value = span_str(value),
                                          .expected = span_str(expected) };
        const struct c10d_request many = { .op = C10D_MULTI_SET,
                                           .list = { span_of(list, 18), 1 } };
        struct c10d_prefixed a, b;
        struct span element;
        char want[32];

        assert_int_equal(c10d_request_copy(&a, &set, span_str(prefixes[i]), NULL), 0);
        assert_int_equal(c10d_request_copy(&b, &many, span_str(prefixes[i]), NULL), 0);
        memset(key, '?', sizeof key - 1);
        memset(value, '?', sizeof value - 1);
        memset(expected, '?', sizeof expected - 1);
        memset(list, '?', sizeof list - 1);
        (void)snprintf(want, sizeof want, "%skey", prefixes[i]);
        assert_true(span_eq(a.req.key, span_str(want)));
        assert_true(span_eq(a.req.value, LIT("value")));
        assert_true(span_eq(a.req.expected, LIT("old")));
        (void)snprintf(want, sizeof want, "%sk", prefixes[i]);
        assert_true(c10d_list_next(&b.req.list, &element));
        assert_true(span_eq(element, span_str(want)));
        assert_true(c10d_list_next(&b.req.list, &element));
        assert_true(span_eq(element, LIT("v")));
        c10d_prefixed_fini(&a);
        c10d_prefixed_fini(&b);
    }
}

static void prefixes_come_off(void **state)
{
    struct buf in, out;
    struct c10d_list list;
    struct span key;
    size_t count;

    (void)state;
    buf_init(&in, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    assert_int_equal(c10d_list_add(&in, LIT("foo/a")), 0);
    assert_int_equal(c10d_list_add(&in, LIT("foobar")), 0); /* not ours, unlike torch */
    assert_int_equal(c10d_list_add(&in, LIT("foo")), 0);
    assert_int_equal(c10d_list_add(&in, LIT("foo/")), 0);
    list = (struct c10d_list){ buf_span(&in), 4 };
    assert_int_equal(c10d_strip_keys(&out, list, LIT("foo/"), &count), 0);
    assert_int_equal(count, 2);
    list = (struct c10d_list){ buf_span(&out), count };
    assert_true(c10d_list_next(&list, &key) && span_eq(key, LIT("a")));
    assert_true(c10d_list_next(&list, &key) && key.n == 0);
    buf_fini(&in);
    buf_fini(&out);
}

static void keys_are_shown(void **state)
{
    const struct c10d_request one = { .op = C10D_GET, .key = LIT("/a\0\xff\\") };
    const struct c10d_request two = { .op = C10D_WAIT, .list = { LIT(K1 V1), 2 } };
    const struct c10d_request set = { .op = C10D_MULTI_SET,
                                      .list = { LIT(K1 V1 K1 V1), 2 } };
    const struct c10d_request none = { .op = C10D_GETNUMKEYS };
    char out[32];

    (void)state;
    c10d_keys_text(&one, out, sizeof out);
    assert_string_equal(out, "/a\\x00\\xff\\x5c");
    c10d_keys_text(&two, out, sizeof out);
    assert_string_equal(out, "k, v");
    c10d_keys_text(&set, out, sizeof out);
    assert_string_equal(out, "k, k");
    c10d_keys_text(&none, out, sizeof out);
    assert_string_equal(out, "");
    c10d_keys_text(&one, out, 10);
    assert_string_equal(out, "/a\\x00...");
}

/* However little room there is, what is written ends inside it. */
static void long_keys_are_cut(void **state)
{
    char bytes[300];
    struct rng r;

    (void)state;
    rng_init(&r, 1);
    for (int i = 0; i < 2000; i++) {
        const size_t n = (size_t)rng_below(&r, sizeof bytes);
        const size_t room = 4 + (size_t)rng_below(&r, 100);
        char *out = test_malloc(room);

        for (size_t k = 0; k < n; k++)
            bytes[k] = (char)rng_below(&r, 256);
        c10d_keys_text(
            &(struct c10d_request){ .op = C10D_GET, .key = span_of(bytes, n) }, out,
            room);
        assert_true(strlen(out) < room);
        test_free(out);
    }
}

static void failing_memory_is_said(void **state)
{
    const struct c10d_request set = { .op = C10D_MULTI_SET,
                                      .list = { LIT(K1 V1 K1 V1), 2 } };
    const struct c10d_request cas = { .op = C10D_COMPARE_SET,
                                      .key = LIT("k"),
                                      .value = LIT("a value of more than sixty-four "
                                                   "bytes, so that memory must grow "
                                                   "for it") };

    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct c10d_prefixed p[3];
        int rc[3];

        rc[0] = c10d_prefix_keys(&p[0], &set, LIT("/"), NULL);
        rc[1] = c10d_request_copy(&p[1], &cas, LIT("/"), NULL);
        rc[2] = c10d_request_copy(&p[2], &cas, LIT(""), NULL);
        for (size_t i = 0; i < ARRAY_LEN(p); i++) {
            assert_true(rc[i] == 0 || rc[i] == MUSTER_ENOMEM);
            c10d_prefixed_fini(&p[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_key_gets_a_prefix),  cmocka_unit_test(lists_get_a_prefix),
        cmocka_unit_test(copies_stand_alone),     cmocka_unit_test(prefixes_come_off),
        cmocka_unit_test(keys_are_shown),         cmocka_unit_test(long_keys_are_cut),
        cmocka_unit_test(failing_memory_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
