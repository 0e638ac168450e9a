/* test_filelog.c - files of torch's FileStore, as bytes. */
#include "testing.h"

#include <stdlib.h>

#include "store/core/filelog.h"

#define LIT(s) span_of("" s, sizeof(s) - 1)

/* What a real FileStore wrote: constructor, set("k","v"), add("n",5), add("n",-7),
 * delete_key("k"), destructor. */
static const char golden[] = "\x09\0\0\0refcount/\1\0\0\0"
                             "1"
                             "\2\0\0\0/k\1\0\0\0v"
                             "\2\0\0\0/n\1\0\0\0"
                             "5"
                             "\2\0\0\0/n\2\0\0\0-2"
                             "\3\0\0\0-/k\0\0\0\0"
                             "\x08\0\0\0"
                             "cleanup/\1\0\0\0"
                             "1"
                             "\x09\0\0\0refcount/\1\0\0\0"
                             "0";
#define GOLDEN_SIZE (sizeof golden - 1)

static void assert_value(const struct filelog *f, struct span key, struct span want)
{
    struct span got;

    assert_true(filelog_get(f, key, &got));
    assert_true(span_eq(got, want));
}

static void golden_files_are_read(void **state)
{
    struct filelog f;
    struct span key;
    size_t used, seen = 0;

    (void)state;
    filelog_init(&f, 1);
    assert_int_equal(filelog_feed(&f, (const uint8_t *)golden, GOLDEN_SIZE, &used), 0);
    assert_int_equal(used, GOLDEN_SIZE);
    assert_value(&f, LIT("/n"), LIT("-2"));
    assert_value(&f, LIT(FILELOG_REFCOUNT), LIT("0"));
    assert_value(&f, LIT(FILELOG_CLEANUP), LIT("1"));
    assert_false(filelog_get(&f, LIT("/k"), NULL));
    assert_int_equal(filelog_count(&f), 3);
    for (size_t i = 0; filelog_next(&f, &i, &key);)
        seen += key.n;
    assert_int_equal(seen, 2 + 9 + 8);
    filelog_clear(&f);
    assert_int_equal(filelog_count(&f), 0);
    assert_int_equal(filelog_feed(&f, (const uint8_t *)golden, 30, &used), 0);
    assert_value(&f, LIT("/k"), LIT("v"));
    filelog_fini(&f);
}

/* Cut anywhere, the whole records count, and the rest is asked for again. */
static void pieces_make_the_same(void **state)
{
    (void)state;
    for (size_t cut = 0; cut <= GOLDEN_SIZE; cut++) {
        struct filelog f;
        uint8_t *copy = malloc(cut + !cut);
        size_t used, rest;

        filelog_init(&f, 1);
        memcpy(copy, golden, cut);
        assert_int_equal(filelog_feed(&f, copy, cut, &used), 0);
        assert_true(used <= cut);
        assert_int_equal(
            filelog_feed(&f, (const uint8_t *)golden + used, GOLDEN_SIZE - used, &rest),
            0);
        assert_int_equal(used + rest, GOLDEN_SIZE);
        assert_int_equal(filelog_count(&f), 3);
        free(copy);
        filelog_fini(&f);
    }
}

static void records_are_written_so(void **state)
{
    struct buf out;

    (void)state;
    buf_init(&out, SIZE_MAX);
    assert_int_equal(filelog_record(&out, LIT(FILELOG_REFCOUNT), LIT("1")), 0);
    assert_int_equal(filelog_record(&out, LIT("/k"), LIT("v")), 0);
    assert_memory_equal(buf_data(&out), golden, 18 + 11);
    assert_int_equal(buf_len(&out), 18 + 11);
    assert_int_equal(filelog_record(&out, LIT("k"), span_of("", (size_t)1 << 32)),
                     MUSTER_EINVAL);
    buf_fini(&out);
}

static void odd_records_do_no_harm(void **state)
{
    static const struct {
        struct span bytes;
        size_t used, count;
    } rows[] = {
        { { (const uint8_t *)"\0\0\0\0\0\0\0\0", 8 }, 8, 1 },       /* empty key */
        { { (const uint8_t *)"\1\0\0\0-\0\0\0\0", 9 }, 9, 0 },      /* deletes "" */
        { { (const uint8_t *)"\3\0\0\0-/x\1\0\0\0v", 12 }, 12, 0 }, /* was not there */
        { { (const uint8_t *)"\xff\xff\xff\xff/k", 6 }, 0, 0 },     /* 4 GiB of key */
        { { (const uint8_t *)"\1\0\0\0k\xff\xff\xff\xff", 9 }, 0, 0 }, /* of value */
        { { (const uint8_t *)"", 0 }, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct filelog f;
        size_t used;

        filelog_init(&f, i);
        assert_int_equal(filelog_feed(&f, rows[i].bytes.p, rows[i].bytes.n, &used), 0);
        assert_int_equal(used, rows[i].used);
        assert_int_equal(filelog_count(&f), rows[i].count);
        filelog_fini(&f);
    }
}

/* Where memory runs out, reading goes on from there later. */
static void failing_memory_loses_nothing(void **state)
{
    (void)state;
    for (struct failing fail = failing_first(); failing_next(&fail);) {
        struct filelog f;
        size_t used, rest = 0;
        int rc;

        filelog_init(&f, 1);
        rc = filelog_feed(&f, (const uint8_t *)golden, GOLDEN_SIZE, &used);
        assert_int_equal(rc, failing_rc(&fail));
        mem_fail_from(0);
        assert_int_equal(
            filelog_feed(&f, (const uint8_t *)golden + used, GOLDEN_SIZE - used, &rest),
            0);
        assert_int_equal(used + rest, GOLDEN_SIZE);
        assert_value(&f, LIT("/n"), LIT("-2"));
        filelog_fini(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_files_are_read),
        cmocka_unit_test(pieces_make_the_same),
        cmocka_unit_test(records_are_written_so),
        cmocka_unit_test(odd_records_do_no_harm),
        cmocka_unit_test(failing_memory_loses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
