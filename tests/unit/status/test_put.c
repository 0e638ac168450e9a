/* test_put.c - texts from anywhere in JSON, HTML, on a terminal and in labels. */
#include "testing.h"

#include "status/core/put.h"

typedef void (*put_fn)(struct buf *out, struct span text);

static void check(put_fn put, const char *text, const char *want)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    put(&b, span_str(text));
    assert_int_equal(buf_u8(&b, 0), 0);
    assert_string_equal((const char *)buf_data(&b), want);
    buf_fini(&b);
}

static void texts_stay_texts(void **state)
{
    (void)state;
    check(put_json, "a\"b\\c\n\x01<script>&",
          "\"a\\\"b\\\\c\\n\\u0001\\u003cscript\\u003e\\u0026\"");
    check(put_json, "na\xc3\xafve \xf0\x9f\x98\x80",
          "\"na\xc3\xafve \xf0\x9f\x98\x80\"");
    check(put_json, "\xff\xc0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    check(put_json, "\xe2\x80\xa8", "\"\\u2028\"");
    check(put_html, "<b a='x'>\"&\x1b[31m",
          "&lt;b a=&#39;x&#39;&gt;&quot;&amp;\xef\xbf\xbd[31m");
    check(put_plain, "\x1b[2Jx\ty\n\x7f\xc2\x9b", "?[2Jx?y???");
    check(put_plain,
          "abc\xe2\x80\xae"
          "fed",
          "abc?fed"); /* right to left */
    check(put_label, "a\"b\\c\nd\x1b", "a\\\"b\\\\c\\nd?");
    check(put_plain, "\xed\xa0\x80",
          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* a surrogate */
}

static void cut(struct buf *out, struct span text)
{
    put_plain_cut(out, text, 6);
}

static void is_cut_at_a_character(void **state)
{
    (void)state;
    check(cut, "abcdef", "abcdef");
    check(cut, "abcdefg", "abc...");
    check(cut, "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f",
          "\xc3\xa4\xc3\xb6\xc3\xbc...");
    check(cut, "", "");
    assert_int_equal(plain_width(span_str("\xc3\xa4"
                                          "b\xff")),
                     3);
}

static void numbers_read_well(void **state)
{
    static const struct {
        int64_t us;
        const char *want;
    } rows[] = {
        { -5, "0 s" },
        { 400000, "0.4 s" },
        { 12000000, "12 s" },
        { 119000000, "119 s" },
        { 720000000, "12 min" },
        { 8040000000, "2 h 14 min" },
        { 190000000000, "2 d 4 h" },
    };
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        buf_clear(&b);
        put_duration(&b, rows[i].us);
        (void)buf_u8(&b, 0);
        assert_string_equal((const char *)buf_data(&b), rows[i].want);
    }
    buf_clear(&b);
    put_bytes(&b, 44238562918ull);
    put_str(&b, " ");
    put_bytes(&b, 17);
    put_str(&b, " ");
    put_grouped(&b, 1204007);
    put_str(&b, " ");
    put_int(&b, INT64_MIN);
    put_str(&b, " ");
    put_seconds(&b, -1500000);
    (void)buf_u8(&b, 0);
    assert_string_equal((const char *)buf_data(&b),
                        "41.2 GiB 17 B 1,204,007 -9223372036854775808 -1.500000");
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_stay_texts),
        cmocka_unit_test(is_cut_at_a_character),
        cmocka_unit_test(numbers_read_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
