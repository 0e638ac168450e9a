/* test_prefix_lines.c - teed lines as torch prints them. Every row is also fed byte by
 * byte: the outcome must not depend on how the bytes arrive. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "logs/core/prefix_lines.h"
#include "muster/error.h"

#define FFFD "\xef\xbf\xbd"

static const struct {
    const char *in, *out;
} rows[] = {
    { "hi\n", "P:hi\n" },
    { "a\nb\n", "P:a\nP:b\n" },
    { "", "" },
    { "\n\n", "P:\nP:\n" },
    { "no end", "P:no end" },
    { "a\rb\r\nc", "P:a\nP:b\nP:c" },
    { "50%\r100%\r", "P:50%\nP:100%\n" },
    { "a\r\r\n\n", "P:a\nP:\nP:\n" },
    { "\xff\n", "P:" FFFD "\n" },
    { "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n",
      "P:caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n" },
    { "\xe2\x82\n", "P:" FFFD "\n" }, /* cut short: one */
    { "\xe2\x28\xa1\n", "P:" FFFD "(" FFFD "\n" },
    { "\xed\xa0\x80\n", "P:" FFFD FFFD FFFD "\n" }, /* a surrogate */
    { "\xc0\xaf\n", "P:" FFFD FFFD "\n" },          /* overlong */
    { "\xf4\x90\x80\x80\n", "P:" FFFD FFFD FFFD FFFD "\n" },
    { "x\xf0\x9f\x98", "P:x" FFFD },
};

static void run_row(const char *in, size_t step, struct buf *out)
{
    struct tee t;
    tee_init(&t, span_str("P:"), NULL, 0);
    for (size_t i = 0; i < strlen(in); i += step)
        assert_int_equal(
            tee_feed(&t, span_of(in + i, MIN_OF(step, strlen(in) - i)), out, NULL), 0);
    assert_int_equal(tee_flush(&t, out, NULL), 0);
    tee_fini(&t);
}

static void lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t step = 1; step < 40; step++) {
            struct buf out;
            buf_init(&out, SIZE_MAX);
            run_row(rows[i].in, step, &out);
            buf_u8(&out, 0);
            if (strcmp((const char *)buf_data(&out), rows[i].out) != 0)
                fail_msg("row %zu, %zu bytes at a time: want %s, got %s", i, step,
                         rows[i].out, (const char *)buf_data(&out));
            buf_fini(&out);
        }
}

/* Its rest comes later: a prefix again, as torch has it. */
static void partial(void **state)
{
    struct tee t;
    struct buf out;
    (void)state;
    buf_init(&out, SIZE_MAX);
    tee_init(&t, span_str("P:"), NULL, 0);
    tee_feed(&t, span_str("partial"), &out, NULL);
    assert_true(tee_holds(&t));
    assert_int_equal(buf_len(&out), 0);
    tee_flush(&t, &out, NULL);
    tee_feed(&t, span_str("rest\n"), &out, NULL);
    buf_u8(&out, 0);
    assert_string_equal((const char *)buf_data(&out), "P:partialP:rest\n");
    buf_fini(&out);
    tee_fini(&t);
}

/* How long a line has been waiting is counted from its first byte, not its last. */
static void fresh(void **state)
{
    static const struct {
        const char *says, *in;
        bool want;
    } feeds[] = {
        { "a line begins", ".", true },
        { "it grows", ".", false },
        { "and grows", "..", false },
        { "it ends, the next begins", "\n.", true },
        { "which ends in a feed", ".\r", true },
        { "whose end that was", "\n.", true },
        { "and grows", ".", false },
    };
    struct tee t;
    struct buf out;

    (void)state;
    buf_init(&out, SIZE_MAX);
    tee_init(&t, span_str(""), NULL, 0);
    for (size_t i = 0; i < ARRAY_LEN(feeds); i++) {
        assert_int_equal(tee_feed(&t, span_str(feeds[i].in), &out, NULL), 0);
        if (t.fresh != feeds[i].want)
            fail_msg("feed %zu, %s: fresh is %d", i, feeds[i].says, t.fresh);
    }
    buf_fini(&out);
    tee_fini(&t);
}

static void needles(void **state)
{
    char *const list[] = { (char *)"a,b", (char *)"zz" };
    char *const any[] = { (char *)"" };
    struct tee t;
    struct buf out, copy;
    (void)state;
    buf_init(&out, SIZE_MAX);
    buf_init(&copy, SIZE_MAX);
    tee_init(&t, span_str("[a,b0]:"), list, 2); /* the prefix does not count */
    tee_feed(&t, span_str("xa,by\nno\nz"), &out, &copy);
    tee_feed(&t, span_str("z\n"), &out, &copy);
    buf_u8(&copy, 0);
    assert_string_equal((const char *)buf_data(&copy), "[a,b0]:xa,by\n[a,b0]:zz\n");
    tee_fini(&t);
    buf_clear(&copy);
    tee_init(&t, span_str(""), any, 1);
    tee_feed(&t, span_str("q\n"), &out, &copy);
    assert_int_equal(buf_len(&copy), 2);
    buf_fini(&out);
    buf_fini(&copy);
    tee_fini(&t);
}

/* A line longer than can be held comes in pieces, and nothing of it is lost. */
static void endless(void **state)
{
    const size_t size = 3u << 20;
    char *text = malloc(size);
    struct tee t;
    struct buf out;
    (void)state;
    memset(text, 'x', size);
    text[size - 1] = '\n';
    for (size_t step = 1000; step <= size; step *= 13) {
        buf_init(&out, SIZE_MAX);
        tee_init(&t, span_str(""), NULL, 0);
        for (size_t i = 0; i < size; i += step)
            assert_int_equal(
                tee_feed(&t, span_of(text + i, MIN_OF(step, size - i)), &out, NULL), 0);
        assert_int_equal(buf_len(&out), size);
        assert_memory_equal(buf_data(&out), text, size);
        buf_fini(&out);
        tee_fini(&t);
    }
    free(text);
}

static void no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct tee t;
        struct buf out;
        buf_init(&out, SIZE_MAX);
        tee_init(&t, span_str("P:"), NULL, 0);
        int rc = tee_feed(&t, span_str("one\ntwo\nthr"), &out, NULL);
        if (rc == 0)
            rc = tee_flush(&t, &out, NULL);
        assert_int_equal(rc, failing_rc(&f));
        buf_fini(&out);
        tee_fini(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),   cmocka_unit_test(partial),
        cmocka_unit_test(fresh),   cmocka_unit_test(needles),
        cmocka_unit_test(endless), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
