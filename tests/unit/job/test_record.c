/* test_record.c - the record of the job's life: entries as bytes, bounds, totals. */
#include "testing.h"

#include "job/core/phase_times.h"
#include "job/core/record.h"

static struct record_entry failed(uint64_t number)
{
    return (struct record_entry){ .number = number,
                                  .kind = RECORD_FAILED,
                                  .cause = CAUSE_EXCEPTION,
                                  .at_us = 1700000000000000,
                                  .unsure_us = 40,
                                  .node = 2,
                                  .round = 3,
                                  .rank = 5,
                                  .local_rank = 1,
                                  .pid = 4711,
                                  .code = 1,
                                  .host = span_str("node2"),
                                  .text = span_str("RuntimeError: bad shard"),
                                  .place = span_str("File \"train.py\", line 41"),
                                  .path = span_str("/logs/1/stderr.log"),
                                  .body = span_str("a\nb\n") };
}

static void test_bytes(void **state)
{
    struct record_entry e = failed(7), got;
    struct muster_error err;
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(record_entry_encode(&b, &e), 0);
    assert_int_equal(record_entry_decode(buf_span(&b), &got, &err), 0);
    assert_int_equal(got.rank, 5);
    assert_true(span_eq(got.body, e.body) && span_eq(got.path, e.path));
    for (size_t n = 0; n < buf_len(&b);
         n++) /* If it is cut anywhere, that is an error. */
        assert_int_equal(record_entry_decode(span_of(buf_data(&b), n), &got, &err),
                         MUSTER_EPROTO);
    assert_int_equal(buf_append_str(&b, "fields of a later version"), 0);
    assert_int_equal(record_entry_decode(buf_span(&b), &got, &err), 0);
    buf_fini(&b);
}

static void test_too_long(void **state)
{
    static char text[4000];
    struct record_entry e = failed(1);
    struct buf b;

    (void)state;
    for (size_t i = 0; i + 1 < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    e.text = span_of(text, sizeof text - 1);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(record_entry_encode(&b, &e), MUSTER_EFULL);
    assert_int_equal(buf_len(&b), 0);
    record_trim(&e);
    assert_int_equal(e.text.n, RECORD_TEXT_MAX);
    e.text = span_of(text + 1, sizeof text - 1); /* so that a cut splits a character */
    record_trim(&e);
    assert_int_equal(e.text.n, RECORD_TEXT_MAX - 1);
    assert_int_equal(record_entry_encode(&b, &e), 0);
    buf_fini(&b);
}

static void test_phases(void **state)
{
    static const char *const bad[] = { "",  "start", "start 1 2 3 4",  "start 1 2\n",
                                       " ", "\n",    "start a b c d\n" };
    struct span body = span_str("stop 1 2 3 4\nstart 5 6 7 8\n");
    struct record_phase p;

    (void)state;
    assert_true(record_phases_next(&body, &p));
    assert_true(span_eq(p.name, span_str("stop")) && p.min_us == 1 && p.slowest == 4);
    assert_true(record_phases_next(&body, &p));
    assert_true(p.median_us == 6 && p.max_us == 7);
    assert_false(record_phases_next(&body, &p));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        body = span_str(bad[i]);
        assert_false(record_phases_next(&body, &p));
    }
}

static void test_bounded(void **state)
{
    struct record_entry e = failed(1), got;
    struct record r;

    (void)state;
    record_init(&r);
    assert_int_equal(record_add(&r, &e), 0);
    for (uint64_t n = 2; n <= 2 * RECORD_ENTRIES; n++) {
        e = (struct record_entry){ .number = n,
                                   .kind = n % 3 ? RECORD_PHASES : RECORD_RESTART,
                                   .count = (int64_t)(n / 3) };
        assert_int_equal(record_add(&r, &e), 0);
    }
    assert_int_equal(r.count, RECORD_ENTRIES);
    assert_int_equal(r.last, 2 * RECORD_ENTRIES);
    assert_int_equal(r.restarts, 2 * RECORD_ENTRIES / 3);  /* counted, kept or not */
    assert_true(record_find(&r, RECORD_FAILED, -1, &got)); /* not the first to go */
    assert_int_equal(got.pid, 4711);
    assert_false(record_find(&r, RECORD_FAILED, 2, &got));
    for (size_t i = 1; i < r.count; i++)
        assert_true(record_at(&r, i - 1).number < record_at(&r, i).number);
    record_fini(&r);
    record_fini(&r);
}

/* A job of ten thousand restarts: of everything the first and the last are kept. */
static void test_first_and_last(void **state)
{
    static const enum record_kind kinds[] = { RECORD_ROUND,  RECORD_PHASES,
                                              RECORD_FAILED, RECORD_ENDING,
                                              RECORD_ENDED,  RECORD_RESTART };
    const uint64_t rounds = 10000;
    struct record_entry e = { .number = 1, .kind = RECORD_NODES };
    struct record r;

    (void)state;
    record_init(&r);
    assert_int_equal(record_add(&r, &e), 0);
    for (uint64_t n = 0; n < rounds * ARRAY_LEN(kinds); n++) {
        e = (struct record_entry){ .number = n + 2,
                                   .kind = kinds[n % ARRAY_LEN(kinds)],
                                   .round = (int64_t)(n / ARRAY_LEN(kinds)) };
        assert_int_equal(record_add(&r, &e), 0);
    }
    assert_int_equal(r.count, RECORD_ENTRIES);
    assert_int_equal(r.rounds, rounds);
    assert_int_equal(record_at(&r, 0).kind, RECORD_NODES);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        for (int64_t i = 0; i < 16; i++) {
            assert_true(record_find(&r, kinds[k], i, &e));
            assert_true(record_find(&r, kinds[k], (int64_t)rounds - 100 + i, &e));
        }
    record_fini(&r);
}

static void test_old_numbers(void **state)
{
    struct record_entry e = failed(5);
    struct record r;

    (void)state;
    record_init(&r);
    assert_int_equal(record_add(&r, &e), 0);
    assert_int_equal(record_add(&r, &e), 0);
    e.number = 4;
    assert_int_equal(record_add(&r, &e), 0);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.failures, 1);
    record_fini(&r);
}

static void test_bodies(void **state)
{
    const struct record_node node = { .number = 3,
                                      .host = span_str("n3"),
                                      .addr = span_str("10.0.0.3"),
                                      .pid = 12,
                                      .nproc = 8,
                                      .offset_us = -3600000000,
                                      .unsure_us = 55 };
    struct record_node n;
    struct record_ranks k;
    struct record_entry e = { .number = 1, .kind = RECORD_NODES };
    struct record r;
    struct buf b;
    struct span rest;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(record_nodes_print(&b, &node), 0);
    e.body = buf_span(&b);
    record_init(&r);
    assert_int_equal(record_add(&r, &e), 0);
    assert_int_equal(r.joined, 1);
    assert_true(record_host_of(&r, 3, &n));
    assert_int_equal(n.offset_us, -3600000000);
    assert_int_equal(n.nproc, 8);
    assert_true(span_eq(n.addr, node.addr));
    assert_false(record_host_of(&r, 4, &n));
    buf_clear(&b);
    assert_int_equal(record_ranks_print(&b, &(struct record_ranks){ 3, 16, 8 }), 0);
    rest = buf_span(&b);
    assert_true(record_ranks_next(&rest, &k));
    assert_int_equal(k.first, 16);
    assert_false(record_ranks_next(&rest, &k));
    rest = span_str("99999999999999999999999999\n\n-1 x"); /* nonsense is harmless */
    while (record_ranks_next(&rest, &k))
        ;
    record_fini(&r);
    buf_fini(&b);
}

static void test_no_memory(void **state)
{
    const struct record_entry e = failed(1);

    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct record r;

        record_init(&r);
        const int rc = record_add(&r, &e);
        assert_true(rc == 0 ? r.count == 1 : rc == MUSTER_ENOMEM && r.last == 0);
        record_fini(&r);
    }
}

/* Exit codes of two nodes: equal neighbours become one line, whatever a peer sends. */
static void exit_codes_are_merged(void **state)
{
    static const struct {
        const char *first, *second, *want;
    } rows[] = {
        { "0 2 1\n2 2 -15\n", "4 4 -15\n", "0 2 1\n2 6 -15\n" },
        { "0 2 0\n", "2 1 0\n3 1 0\n", "0 4 0\n" },
        { "0 2 0\n", "4 2 0\n", "0 2 0\n4 2 0\n" }, /* a node did not report */
        { "", "7 1 3\n", "7 1 3\n" },
        { "0 1 2\nnonsense\n1 1 2\n", "1 1 2\n", "0 2 2\n" },
        { "9223372036854775807 9223372036854775807 1\n", "0 1 1\n", "0 1 1\n" },
        { "0 9223372036854775807 1\n", "0 -1 1\n", "0 9007199254740992 1\n" },
        { "-5 5 1\n", "0 1 1\n", "0 1 1\n" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *const bodies[] = { rows[i].first, rows[i].second };
        struct record_codes run = { 0 }, more;
        struct buf b;

        buf_init(&b, SIZE_MAX);
        for (size_t k = 0; k < 2; k++) {
            struct span body = span_str(bodies[k]);

            while (record_codes_next(&body, &more))
                record_codes_add(&b, &run, more);
        }
        record_codes_end(&b, &run);
        if (!span_eq(buf_span(&b), span_str(rows[i].want)))
            fail_msg("row %zu: %.*s", i, (int)buf_len(&b), (const char *)buf_data(&b));
        buf_fini(&b);
    }
}

static void add_time(struct phase_times *p, const char *name, uint64_t us,
                     uint32_t node)
{
    assert_int_equal(phase_times_add(p, span_str(name), us, node), 0);
}

static void phases_are_one_line_each(void **state)
{
    struct phase_times p = { 0 };
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_false(is_phase_name(span_str("")));
    assert_false(is_phase_name(span_str("Rendezvous")));
    assert_false(is_phase_name(span_str("a_name_of_four_and_twenty")));
    for (uint32_t node = 1; node <= 30; node++)
        add_time(&p, "start", 1000 - node, node);
    add_time(&p, "ranks", UINT64_MAX, 7);
    assert_int_equal(phase_times_print(&p, &b), 0);
    assert_true(
        span_eq(buf_span(&b), span_str("start 970 985 999 1\nranks 9223372036854775807 "
                                       "9223372036854775807 9223372036854775807 7\n")));
    buf_clear(&b);
    assert_int_equal(phase_times_print(&p, &b), 0);
    assert_int_equal(buf_len(&b), 0);
    phase_times_fini(&p);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_are_merged),
        cmocka_unit_test(phases_are_one_line_each),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_first_and_last),
        cmocka_unit_test(test_old_numbers),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
