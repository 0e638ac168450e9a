/* test_base64.c - the vectors of RFC 4648, every length, and what must be refused. */
#include "testing.h"

#include "base/base64.h"
#include "base/rng.h"
#include "muster/error.h"

static void vectors(void **state)
{
    static const struct {
        const char *bytes, *text;
    } rows[] = {
        { "", "" },
        { "f", "Zg==" },
        { "fo", "Zm8=" },
        { "foo", "Zm9v" },
        { "foob", "Zm9vYg==" },
        { "fooba", "Zm9vYmE=" },
        { "foobar", "Zm9vYmFy" },
        { "\xff\xfe\xfd", "//79" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;
        uint8_t out[16];

        buf_init(&b, SIZE_MAX);
        assert_int_equal(base64_encode(&b, span_str(rows[i].bytes)), 0);
        assert_true(span_eq(buf_span(&b), span_str(rows[i].text)));
        assert_int_equal(base64_decode(out, buf_span(&b)), strlen(rows[i].bytes));
        assert_memory_equal(out, rows[i].bytes, strlen(rows[i].bytes));
        buf_fini(&b);
    }
}

static void there_and_back(void **state)
{
    struct rng r;
    uint8_t in[200], out[210];

    (void)state;
    rng_init(&r, 7);
    for (size_t n = 0; n <= sizeof in; n++) {
        struct buf b;

        for (size_t i = 0; i < n; i++)
            in[i] = (uint8_t)rng_u64(&r);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(base64_encode(&b, span_of(in, n)), 0);
        assert_int_equal(buf_len(&b), BASE64_LEN(n));
        assert_int_equal(base64_decode(out, buf_span(&b)), n);
        assert_memory_equal(out, in, n);
        buf_fini(&b);
    }
}

static void refused(void **state)
{
    static const char *const rows[] = {
        "Z",
        "Zg",
        "Zg=",
        "Z===",
        "====",
        "Zg==Zg==",
        "Zh==",
        "Zm9=",
        "Zm 8",
        "Zm8\n",
        "Zm8-",
        "Zm8_",
        "=m8A",
        "Z=8A",
        "Zm=A",
        "Zg=A",
        ("\xc3\xa4"
         "AA"), /* in two, lest the A be taken for a digit */
    };
    uint8_t out[16];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (base64_decode(out, span_str(rows[i])) != MUSTER_EPROTO)
            fail_msg("'%s' was taken for base64", rows[i]);
}

static void room(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 7);
    assert_int_equal(base64_encode(&b, span_str("four")), MUSTER_EFULL);
    assert_int_equal(buf_len(&b), 0);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(refused),
        cmocka_unit_test(room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
