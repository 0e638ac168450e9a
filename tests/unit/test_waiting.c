/* What a person is told while the agent waits: group/waiting.c, rdzv/progress.c. */
#include "testing.h"

#include "group/waiting.h"

#define P(at, n, min, max, who, not_here, by, start)                                   \
    {                                                                                  \
        .stage = at, .here = n, .min_nodes = min, .max_nodes = max, .names = who,      \
        .missing = not_here, .by_ms = by, .start_by_ms = start                         \
    }

static const struct row {
    const char *says;
    struct rdzv_progress p;
    const char *expected;
    const char *want;
} rows[] = {
    { "nobody knows who is missing",
      P(RDZV_AT_ROUND, 1, 3, 3, "a", "", 60000, MONO_NEVER), "",
      "waiting 12 s, until 00:00:46 (48 s more): 1 of 3 nodes are here, 2 missing; "
      "here: a" },
    { "one of the last round is away",
      P(RDZV_AT_ROUND, 2, 3, 4, "a, b", "c", 60000, MONO_NEVER), "",
      "waiting 12 s, until 00:00:46 (48 s more): 2 of 3 nodes are here, missing: c; "
      "here: a, b" },
    { "one is known, another is not",
      P(RDZV_AT_ROUND, 1, 3, 3, "a", "c", 60000, MONO_NEVER), "",
      "waiting 12 s, until 00:00:46 (48 s more): 1 of 3 nodes are here, missing: c and "
      "1 more; here: a" },
    { "the scheduler knows them all",
      P(RDZV_AT_ROUND, 1, 3, 3, "b.cluster", "", 60000, MONO_NEVER), "a, b, c",
      "waiting 12 s, until 00:00:46 (48 s more): 1 of 3 nodes are here, missing: a, c; "
      "here: b.cluster" },
    { "the scheduler has others in mind",
      P(RDZV_AT_ROUND, 1, 3, 3, "b", "", 60000, MONO_NEVER), "a, b",
      "waiting 12 s, until 00:00:46 (48 s more): 1 of 3 nodes are here, 2 missing; "
      "here: b" },
    { "more are here than anybody lists",
      P(RDZV_AT_ROUND, 20, 64, 64, "", "", 60000, MONO_NEVER), "",
      "waiting 12 s, until 00:00:46 (48 s more): 20 of 64 nodes are here, 44 missing" },
    { "the last call", P(RDZV_AT_ROUND, 2, 2, 4, "a, b", "", 60000, 30000), "",
      "waiting 12 s, starting at 00:00:16 (18 s more): 2 nodes are here, 4 may be; "
      "here: a, b" },
    { "the store is far", P(RDZV_AT_STORE, 0, 0, 0, "", "", 12000, MONO_NEVER), "",
      "waiting 12 s, until 23:59:58 (0 s more): the store at head:29400 has not been "
      "reached" },
    { "the store is far, and why is known",
      { .stage = RDZV_AT_STORE, .by_ms = 12000, .why = "connection refused" },
      "",
      "waiting 12 s, until 23:59:58 (0 s more): the store at head:29400 has not been "
      "reached: connection refused" },
    { "something is in the way",
      { .stage = RDZV_AT_ROUND,
        .here = 2,
        .min_nodes = 2,
        .max_nodes = 2,
        .by_ms = 60000,
        .start_by_ms = MONO_NEVER,
        .why = "no place left" },
      "",
      "waiting 12 s, until 00:00:46 (48 s more): 2 nodes are here, 2 may be; no place "
      "left" },
    { "the workers' address",
      { .stage = RDZV_AT_ADDRESS, .by_ms = 60000, .start_by_ms = MONO_NEVER },
      "",
      "waiting 12 s, until 00:00:46 (48 s more): the group is complete, and node rank "
      "0 "
      "has to tell where its workers' store is" },
    { "the others work", P(RDZV_AT_NEXT, 0, 2, 4, "", "", 12001, MONO_NEVER), "",
      "waiting 12 s, until 23:59:59 (1 s more): the group is at work in a round "
      "without this node" },
    { "a spare", P(RDZV_AT_SPARE, 0, 2, 4, "", "", MONO_NEVER, MONO_NEVER), "",
      "waiting 12 s: a spare, since all 4 places are taken" },
};

static void test_lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct waiting w = { &rows[i].p, "head:29400", rows[i].expected,
                                   0,          12000,        86398 };
        struct buf b;

        buf_init(&b, SIZE_MAX);
        assert_int_equal(waiting_print(&b, &w), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        if (strcmp((const char *)buf_data(&b), rows[i].want) != 0)
            fail_msg("%s:\nwant %s\ngot  %s", rows[i].says, rows[i].want,
                     (const char *)buf_data(&b));
        buf_fini(&b);
    }
}

static void test_slurm_lists(void **state)
{
    static const struct {
        const char *list, *want;
    } lists[] = {
        { "node1", "node1" },
        { "node[1-3]", "node1, node2, node3" },
        { "gpu[03-05,7],x9", "gpu03, gpu04, gpu05, gpu7, x9" },
        { "a,b[9-11]", "a, b9, b10, b11" },
        { "gpu[1-17]", "" },
        { "gpu[3-1]", "" },
        { "gpu[1", "" },
        { "gpu[]", "" },
        { "gpu[1-2]-ib", "" },
        { ",", "" },
        { "", "" },
        { "gpu[99999999999999999999-1]", "" },
    };
    char names[RDZV_NAMES_SIZE];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        waiting_slurm_names(lists[i].list, names);
        if (strcmp(names, lists[i].want) != 0)
            fail_msg("%s: want '%s', got '%s'", lists[i].list, lists[i].want, names);
    }
}

static void test_who_is_not_there(void **state)
{
    static const struct {
        const char *all, *here, *want;
    } rows_of[] = {
        { "a, b, c", "b", "a, c" },
        { "a, a, b", "a", "a, b" },
        { "a", "a.example.org", "" },
        { "10.0.0.1, 10.0.0.11", "10.0.0.1", "10.0.0.11" },
        { "10.0.0.1", "10", "" }, /* a short name may be anybody's */
        { "", "a", "" },
        { "a", "", "a" },
    };
    char names[RDZV_NAMES_SIZE];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows_of); i++) {
        names_without(rows_of[i].all, rows_of[i].here, names);
        assert_string_equal(names, rows_of[i].want);
    }
}

/* What a hostile host sends is a list of names, or none. */
static void test_names_from_outside(void **state)
{
    char names[RDZV_NAMES_SIZE], text[2000];

    (void)state;
    names_copy(names, span_str("00000007.node8, x\033[2Jy,, z\n"));
    assert_string_equal(names, "node8, x?[2Jy, ?z?");
    memset(text, 'x', sizeof text);
    names_copy(names, span_of(text, sizeof text));
    assert_string_equal(names, "");
    memset(text, ',', sizeof text);
    names_copy(names, span_of(text, sizeof text));
    assert_true(strlen(names) < sizeof names);
    assert_int_equal(names_count("a, b, c"), 3);
    assert_int_equal(names_count(""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_slurm_lists),
        cmocka_unit_test(test_who_is_not_there),
        cmocka_unit_test(test_names_from_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
