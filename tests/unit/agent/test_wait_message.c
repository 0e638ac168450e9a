/* What a person is told while the agent waits: agent/core/wait_message.c,
 * rendezvous/core/progress.c. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/core/wait_message.h"

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
      "waiting 12 s: 1 of 3 nodes are here, 2 missing (until 00:00:46, 48 s more); "
      "here: a" },
    { "one of the last round is away",
      P(RDZV_AT_ROUND, 2, 3, 4, "a, b", "c", 60000, MONO_NEVER), "",
      "waiting 12 s: 2 of 3 nodes are here, missing: c (until 00:00:46, 48 s more); "
      "here: a, b" },
    { "one is known, another is not",
      P(RDZV_AT_ROUND, 1, 3, 3, "a", "c", 60000, MONO_NEVER), "",
      "waiting 12 s: 1 of 3 nodes are here, missing: c and 1 more (until 00:00:46, 48 "
      "s more); here: a" },
    { "the scheduler knows them all",
      P(RDZV_AT_ROUND, 1, 3, 3, "b.cluster", "", 60000, MONO_NEVER), "a, b, c",
      "waiting 12 s: 1 of 3 nodes are here, missing: a, c (until 00:00:46, 48 s more); "
      "here: b.cluster" },
    { "the scheduler has others in mind",
      P(RDZV_AT_ROUND, 1, 3, 3, "b", "", 60000, MONO_NEVER), "a, b",
      "waiting 12 s: 1 of 3 nodes are here, 2 missing (until 00:00:46, 48 s more); "
      "here: b" },
    { "more are here than anybody lists",
      P(RDZV_AT_ROUND, 20, 64, 64, "", "", 60000, MONO_NEVER), "",
      "waiting 12 s: 20 of 64 nodes are here, 44 missing (until 00:00:46, 48 s more)" },
    { "the last call", P(RDZV_AT_ROUND, 2, 2, 4, "a, b", "", 60000, 30000), "",
      "waiting 12 s: 2 of at most 4 nodes are here (starting at 00:00:16, 18 s more); "
      "here: a, b" },
    { "the store is far", P(RDZV_AT_STORE, 0, 0, 0, "", "", 12000, MONO_NEVER), "",
      "waiting 12 s: the store at head:29400 has not been reached (until 23:59:58, 0 s "
      "more)" },
    { "the store is far, and why is known",
      { .stage = RDZV_AT_STORE, .by_ms = 12000, .why = "connection refused" },
      "",
      "waiting 12 s: the store at head:29400 has not been reached (until 23:59:58, 0 s "
      "more): connection refused" },
    { "something is in the way",
      { .stage = RDZV_AT_ROUND,
        .here = 2,
        .min_nodes = 2,
        .max_nodes = 2,
        .by_ms = 60000,
        .start_by_ms = MONO_NEVER,
        .why = "no place left" },
      "",
      "waiting 12 s: 2 of at most 2 nodes are here (until 00:00:46, 48 s more); no "
      "place "
      "left" },
    { "the workers' address",
      { .stage = RDZV_AT_ADDRESS, .by_ms = 60000, .start_by_ms = MONO_NEVER },
      "",
      "waiting 12 s: the group is complete, and node rank 0 has to tell where its "
      "workers' store is (until 00:00:46, 48 s more)" },
    { "the others work", P(RDZV_AT_NEXT, 0, 2, 4, "", "", 12001, MONO_NEVER), "",
      "waiting 12 s: the group is at work in a round without this node (until "
      "23:59:59, 1 s more)" },
    { "a spare", P(RDZV_AT_SPARE, 0, 2, 4, "", "", MONO_NEVER, MONO_NEVER), "",
      "waiting 12 s: a spare, since all 4 places are taken" },
};

static void check_line(const struct waiting *w, const char *says, const char *want)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    assert_int_equal(waiting_print(&b, w), 0);
    assert_int_equal(buf_u8(&b, 0), 0);
    if (strcmp((const char *)buf_data(&b), want) != 0)
        fail_msg("%s:\nwant %s\ngot  %s", says, want, (const char *)buf_data(&b));
    buf_fini(&b);
}

static void test_lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct waiting w = { .progress = &rows[i].p,
                                   .store = "head:29400",
                                   .expected = rows[i].expected,
                                   .now_ms = 12000,
                                   .wall_s = 86398 };

        check_line(&w, rows[i].says, rows[i].want);
    }
}

#define WAITING "waiting 12 s: "
#define UNTIL   " (until 00:00:46, 48 s more)"

/* Whoever was there in the last round and is not any more. */
static void test_gone(void **state)
{
    static const struct {
        struct gone_nodes gone;
        const char *want;
    } ends[] = {
        { { 0, "", false, 0 }, "" },
        { { 1, "node2", false, 7000 }, "; node2 left 5 s ago" },
        { { 1, "node2", true, 7000 }, "; node2 was lost 5 s ago" },
        { { 3, "node2", false, 7000 },
          "; 3 nodes of the last round are gone, the last one (node2) for 5 s" },
    };
    const struct rdzv_progress p =
        P(RDZV_AT_ROUND, 1, 2, 2, "a", "", 60000, MONO_NEVER);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        const struct waiting w = { .progress = &p,
                                   .expected = "",
                                   .gone = ends[i].gone,
                                   .now_ms = 12000,
                                   .wall_s = 86398 };
        char want[300];

        (void)snprintf(want, sizeof want, "%s%s",
                       WAITING "1 of 2 nodes are here, 1 missing" UNTIL "; here: a",
                       ends[i].want);
        check_line(&w, ends[i].want, want);
    }
}

static const struct {
    const char *says;
    enum waiting_for what;
    const char *here; /* the roll, 'x' for who has come; NULL: not known */
    int64_t done;
    const char *want;
} waits[] = {
    { "a static group gathers", WAITING_FOR_ROUND, "x..", 0,
      WAITING "1 of 3 nodes are here, missing: node ranks 1, 2" UNTIL },
    { "nobody could ask who has come", WAITING_FOR_ROUND, NULL, 0,
      WAITING "2 of 3 nodes are here, 1 missing" UNTIL },
    { "the store knows more than the count", WAITING_FOR_ROUND, "xxx", 0,
      WAITING "3 of at most 3 nodes are here" UNTIL },
    { "one has not told", WAITING_FOR_NODES, "xx.", 0,
      WAITING "2 of 3 nodes are here to get ranks, missing: node rank 2" UNTIL },
    { "nobody knows who has", WAITING_FOR_NODES, NULL, 0,
      WAITING
      "the nodes of this round have to tell how many workers they start" UNTIL },
    { "all have, this moment", WAITING_FOR_NODES, "xxx", 0,
      WAITING
      "the nodes of this round have to tell how many workers they start" UNTIL },
    { "rank 0 has not told", WAITING_FOR_RANKS, NULL, 0,
      WAITING "node rank 0 has not given out ranks; its log tells which nodes are "
              "missing" UNTIL },
    { "one is at work", WAITING_FOR_END, NULL, 2,
      WAITING "2 of 3 nodes are done, 1 at work" UNTIL },
    { "one has closed the run", WAITING_FOR_END, NULL, -2,
      WAITING "2 of 3 nodes are done, 1 not" UNTIL
              "; another node has closed the run: it failed, or was ended" },
    { "nobody knows how many", WAITING_FOR_END, NULL, 0,
      WAITING "this node is done, others are not" UNTIL },
    { "the last one is about to tell", WAITING_FOR_END, NULL, 3,
      WAITING "this node is done, others are not" UNTIL },
};

static void test_other_runs(void **state)
{
    static const struct {
        const char *answer, *want;
    } runs[] = {
        { "", "" },
        { "3 a\n", "" },
        { "0 b\n3 a\n", "" },
        { "1 b c\n3 a\n", "this store also has other runs: 'b c' (1 node); is "
                          "--rdzv-id the same on all "
                          "nodes?" },
        { "1 b\n2 \033[2J\n3 a\n9 c\n9 d\n9 e\n9 f\n",
          "this store also has other runs: 'b' (1 node), '\\x1b[2J' (2 nodes), 'c' (9 "
          "nodes), 'd' (9 nodes) and 2 more; is --rdzv-id the same on all nodes?" },
        { "nonsense\n1 b\n", "" },
        { " 1\n", "" },
        { "123456789 b\n", "" },
        { "1 b", "" },
    };
    char text[RDZV_WHY_SIZE];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        progress_other_runs(span_str(runs[i].answer), "a", text, sizeof text);
        assert_string_equal(text, runs[i].want);
    }
}

static void fill(struct missing_ranks *r, const char *here)
{
    assert_int_equal(missing_ranks_init(r, (int64_t)strlen(here), NULL), 0);
    for (size_t i = 0; here[i]; i++)
        if (here[i] == 'x')
            missing_ranks_mark(r, (int64_t)i);
}

static void test_other_waits(void **state)
{
    const struct rdzv_progress p = P(RDZV_AT_ROUND, 2, 3, 3, "", "", 60000, MONO_NEVER);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(waits); i++) {
        struct missing_ranks r = { 0 };
        const struct waiting w = { .what = waits[i].what,
                                   .progress = &p,
                                   .ranks = waits[i].here ? &r : NULL,
                                   .done = llabs(waits[i].done),
                                   .closed = waits[i].done < 0,
                                   .world = 3,
                                   .by_ms = 60000,
                                   .store = "head:29400",
                                   .expected = "",
                                   .now_ms = 12000,
                                   .wall_s = 86398 };

        if (waits[i].here)
            fill(&r, waits[i].here);
        check_line(&w, waits[i].says, waits[i].want);
        missing_ranks_fini(&r);
    }
}

static void test_roll(void **state)
{
    static const struct {
        const char *here, *want;
    } rolls[] = {
        { "xxx", "" },
        { "x", "" },
        { ".", "node rank 0" },
        { "x.x", "node rank 1" },
        { "...", "node ranks 0-2" },
        { "..", "node ranks 0, 1" },
        { "x...x.x..", "node ranks 1-3, 5, 7, 8" },
        { ".x.x.x.x.x.x.x.x.x..", "node ranks 0, 2, 4, 6, 8, 10, 12, 14 and 3 more" },
    };
    struct missing_ranks r = { 0 };
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rolls); i++) {
        fill(&r, rolls[i].here);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(missing_ranks_print(&b, &r), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), rolls[i].want);
        buf_fini(&b);
        missing_ranks_fini(&r);
    }
    fill(&r, "x..");
    missing_ranks_mark(&r, 0); /* once is enough */
    missing_ranks_mark(&r, 3); /* none of us */
    missing_ranks_mark(&r, -1);
    assert_int_equal(r.count, 1);
    assert_int_equal(missing_ranks_next(&r, 0), 1);
    assert_int_equal(missing_ranks_next(&r, 2), 2);
    assert_int_equal(missing_ranks_next(&r, 3), -1);
    missing_ranks_fini(&r);
    missing_ranks_fini(&r);
    missing_ranks_fini(NULL);
}

/* Without memory there is no line, and nothing else is harmed. */
static void test_no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct waiting w = { .what = WAITING_FOR_NODES, .by_ms = 1 };
        struct missing_ranks r = { 0 };
        struct buf b;
        int rc = missing_ranks_init(&r, 40, NULL);

        assert_int_equal(rc, failing_rc(&f));
        for (int64_t i = 0; rc == 0 && i < 40; i += 2)
            missing_ranks_mark(&r, i);
        w.ranks = rc == 0 ? &r : NULL;
        buf_init(&b, SIZE_MAX);
        rc = waiting_print(&b, &w);
        assert_int_equal(rc, failing_rc(&f));
        buf_fini(&b);
        missing_ranks_fini(&r);
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

static void test_stopping(void **state)
{
    static const struct {
        int64_t workers;
        uint64_t left_ms;
        bool again;
        const char *want;
    } stops[] = {
        { 2, 30000, true, "stopping 2 workers, 30 s (Ctrl-C again kills them)" },
        { 1, 29001, true, "stopping 1 worker, 30 s (Ctrl-C again kills them)" },
        { 6000, 0, false, "stopping 6000 workers, 0 s" },
        { 3, MONO_NEVER, true, "stopping 3 workers (Ctrl-C again kills them)" },
    };
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(stops); i++) {
        buf_init(&b, 256);
        assert_int_equal(
            stopping_print(&b, stops[i].workers, stops[i].left_ms, stops[i].again), 0);
        if (!span_eq(buf_span(&b), span_str(stops[i].want)))
            fail_msg("%.*s", (int)buf_len(&b), (const char *)buf_data(&b));
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_stopping),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_other_waits),
        cmocka_unit_test(test_roll),
        cmocka_unit_test(test_other_runs),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_slurm_lists),
        cmocka_unit_test(test_who_is_not_there),
        cmocka_unit_test(test_names_from_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
