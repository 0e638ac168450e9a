/* test_last_words.c - a worker's last words are understood, and escaped. */
#include "testing.h"

#include "base/escape.h"
#include "job/core/verdict.h"
#include "logs/core/last_words.h"

struct row {
    const char *says, *tail;
    int64_t rank;
    bool python;
    const char *text, *place;
};

static const struct row rows[] = {
    { "an exception in the user's code",
      "W data.py: x\nTraceback (most recent call last):\n"
      "  File \"/tmp/train.py\", line 9, in <module>\n    main()\n"
      "  File \"/tmp/train.py\", line 41, in load\n    raise RuntimeError(1)\n"
      "RuntimeError: bad data shard 17\n",
      -1, true, "RuntimeError: bad data shard 17",
      "File \"/tmp/train.py\", line 41, in load" },
    { "raised below a library",
      "Traceback (most recent call last):\n  File \"t.py\", line 3, in f\n    g()\n"
      "  File \"/usr/lib/python3/site-packages/torch/x.py\", line 7, in g\n    h()\n"
      "    ~^^\ntorch.cuda.OutOfMemoryError: CUDA out of memory\n",
      -1, true, "torch.cuda.OutOfMemoryError: CUDA out of memory",
      "File \"t.py\", line 3, in f" },
    { "marked by torch, and another rank's in between",
      "[rank1]: Traceback (most recent call last):\n[rank0]: Traceback (most recent "
      "call last):\n"
      "[rank1]:   File \"a.py\", line 1, in m\n[rank0]:   File \"b.py\", line 2, in n\n"
      "[rank1]: ValueError: one\n[rank0]: ValueError: two\n",
      1, true, "ValueError: one", "File \"a.py\", line 1, in m" },
    { "one after another: the last counts",
      "Traceback (most recent call last):\n  File \"a.py\", line 1, in m\nKeyError: "
      "'x'\n\n"
      "During handling of the above exception, another exception occurred:\n\n"
      "Traceback (most recent call last):\n  File \"a.py\", line 5, in m\nOSError: "
      "disk\n",
      -1, true, "OSError: disk", "File \"a.py\", line 5, in m" },
    { "a syntax error",
      "  File \"t.py\", line 2\n    x ==\n        ^\nSyntaxError: invalid syntax\n", -1,
      true, "SyntaxError: invalid syntax", "File \"t.py\", line 2" },
    { "colours of Python 3.13 and 3.14",
      "Traceback (most recent call last):\n"
      "  File \x1b[35m\"/t.py\"\x1b[0m, line \x1b[35m5\x1b[0m, in "
      "\x1b[35mmain\x1b[0m\n    \x1b[31mload\x1b[0m\x1b[1;31m(17)\x1b[0m\n"
      "    \x1b[31m~~~~\x1b[0m\x1b[1;31m^^^^\x1b[0m\n"
      "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad data shard 17\x1b[0m\n",
      -1, true, "ValueError: bad data shard 17", "File \"/t.py\", line 5, in main" },
    { "a syntax error in colours",
      "  File \x1b[35m\"/s.py\"\x1b[0m, line \x1b[35m1\x1b[0m\n    x ==\x1b[1;31m"
      "\x1b[0m\n        \x1b[1;31m^\x1b[0m\n"
      "\x1b[1;35mSyntaxError\x1b[0m: \x1b[35minvalid syntax\x1b[0m\n",
      -1, true, "SyntaxError: invalid syntax", "File \"/s.py\", line 1" },
    { "a marked traceback in colours",
      "[rank1]: Traceback (most recent call last):\n"
      "[rank1]:   File \x1b[35m\"a.py\"\x1b[0m, line \x1b[35m1\x1b[0m, in m\n"
      "[rank1]: \x1b[1;35mKeyError\x1b[0m: \x1b[35m'a'\x1b[0m\n",
      1, true, "KeyError: 'a'", "File \"a.py\", line 1, in m" },
    { "a compiler's colours",
      "\x1b[01m\x1b[Kld:\x1b[m\x1b[K x: No such file or directory\n", -1, false,
      "ld: x: No such file or directory", "" },
    { "C++",
      "terminate called after throwing an instance of 'std::runtime_error'\n  what():  "
      "no luck\n",
      -1, false, "std::runtime_error: no luck", "" },
    { "an exception of a class in a function, in a file that others write to",
      "Traceback (most recent call last):\n  File \"t.py\", line 6, in <module>\n"
      "[default0]:step: 3\nsome other line\n    load(17)\n"
      "  File \"t.py\", line 3, in load\nf.<locals>.Bad: shard 17\n",
      0, true, "f.<locals>.Bad: shard 17", "File \"t.py\", line 3, in load" },
    { "a shell", "sh: 1: trian: not found\n", -1, false, "sh: 1: trian: not found",
      "" },
    { "Python finds no script",
      "python: can't open file '/x.py': [Errno 2] No such file or directory\n", -1,
      false, "python: can't open file '/x.py': [Errno 2] No such file or directory",
      "" },
    { "cut off in the middle",
      "Traceback (most recent call last):\n  File \"a.py\", line 1, in m\n", -1, false,
      "", "" },
    { "nothing to understand", "50%\r100%\nbye", -1, false, "", "" },
    { "nothing", "", -1, false, "", "" },
    { "control sequences in an exception",
      "Traceback (most recent call last):\n  File \"a\x1b]0;x\x07.py\", line 1, in "
      "m\nE: \x1b[2Jhi\xff\x1b[\n",
      -1, true, "E: \\x1b[2Jhi\\xff\\x1b[",
      "File \"a\\x1b]0;x\\x07.py\", line 1, in m" },
};

static void is(const struct row *row, const struct buf *b, const char *want)
{
    if (!span_eq(buf_span(b), span_str(want)))
        fail_msg("%s: want \"%s\", got \"%.*s\"", row->says, want, (int)buf_len(b),
                 (const char *)buf_data(b));
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct last_words w;

        last_words_read(&w, span_str(rows[i].tail), rows[i].rank);
        is(&rows[i], &w.text, rows[i].text);
        is(&rows[i], &w.place, rows[i].place);
        assert_int_equal(w.python, rows[i].python);
        last_words_fini(&w);
    }
}

static void test_lines(void **state)
{
    struct last_words w;
    struct buf b;

    (void)state;
    last_words_read(&w, span_str("10%\r50%\r100%\r\nbye"), -1);
    assert_true(span_eq(buf_span(&w.lines), span_str("100%\nbye\n")));
    last_words_fini(&w);
    buf_init(&b, SIZE_MAX); /* long lines of arbitrary bytes */
    for (int i = 0; i < 100000; i++)
        assert_int_equal(buf_u8(&b, (uint8_t)(i * 7)), 0);
    last_words_read(&w, buf_span(&b), 3);
    assert_true(buf_len(&w.lines) <= 10000);
    last_words_fini(&w);
    buf_fini(&b);
}

static void test_escape(void **state)
{
    char text[16];
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(
        escape_append(&b, span_str("a\tb\n\x1b[31m\xc3\xa9\xe2\x80\xae\xff\xc2\x9b."),
                      0),
        0);
    assert_true(span_eq(buf_span(&b),
                        span_str("a\tb\\x0a\\x1b[31m\xc3\xa9\\u202e\\xff\\x9b.")));
    buf_clear(&b);
    assert_int_equal(escape_append(&b, span_str("a\nb"), ESCAPE_LINES), 0);
    assert_true(span_eq(buf_span(&b), span_str("a\nb")));
    buf_fini(&b);
    assert_string_equal(escape_text(text, 6, span_str("abcdefgh")), "abcde");
    assert_string_equal(escape_text(text, 6, span_str("abcd\xc3\xa9")), "abcd");
}

/* What a failed job prints at its end: the cause first, and ten lines at most. */
static void test_verdict(void **state)
{
    const struct verdict_style style = { .report_path = "r.json" };
    struct record_entry e = {
        .number = 1, .kind = RECORD_ENDED, .round = 2, .total = 6, .code = 3
    };
    struct record r;
    struct buf b;

    (void)state;
    record_init(&r);
    buf_init(&b, SIZE_MAX);
    assert_false(verdict_print(&b, &r, &style));
    assert_int_equal(record_add(&r, &e), 0);
    e = (struct record_entry){ .number = 2,
                               .kind = RECORD_VERDICT,
                               .cause = CAUSE_EXCEPTION,
                               .round = 2,
                               .rank = 3,
                               .local_rank = 1,
                               .pid = 4711,
                               .count = 3,
                               .total = 3,
                               .host = span_str("node2"),
                               .text = span_str("RuntimeError: bad data shard 17"),
                               .place = span_str("File \"train.py\", line 41, in load"),
                               .path = span_str("/logs/1/stderr.log") };
    assert_int_equal(record_add(&r, &e), 0);
    assert_true(verdict_print(&b, &r, &style));
    assert_true(span_eq(
        buf_span(&b),
        span_str(
            "muster: the job failed: rank 3 on node2 (local rank 1, pid 4711): "
            "RuntimeError: bad data shard 17\n"
            "          File \"train.py\", line 41, in load\n"
            "muster: 5 other ranks on 3 nodes were stopped because of it; all 3 "
            "restarts were used\n"
            "muster: its output: /logs/1/stderr.log   the whole story: r.json\n")));
    buf_clear(&b);
    e.kind = RECORD_RESTART;
    e.count = 1;
    assert_int_equal(restart_print(&b, &e), 0);
    assert_true(
        span_eq(buf_span(&b), span_str("rank 3 on node2 failed: RuntimeError: bad data "
                                       "shard 17 (train.py:41). Restart 1 of 3.")));
    buf_clear(&b);
    e = (struct record_entry){ .number = 3,
                               .kind = RECORD_VERDICT,
                               .cause = CAUSE_EXIT,
                               .round = 3,
                               .host = span_str("node2"),
                               .text = span_str("sh: 1: trian: not found (exit code "
                                                "127)"),
                               .body = span_str("sh: 1: trian: not found\n") };
    assert_int_equal(record_add(&r, &e), 0);
    assert_true(verdict_print(&b, &r, &style)); /* One line is not printed twice. */
    assert_true(span_eq(
        buf_span(&b),
        span_str("muster: the job failed: rank 0 on node2 (local rank 0, pid 0): sh: "
                 "1: trian: not found (exit code 127)\n"
                 "muster: no restarts were allowed (--max-restarts)\n"
                 "muster: the whole story: r.json\n")));
    buf_clear(&b);
    /* Whoever hears nothing does not know what became of the job. */
    e = (struct record_entry){ .number = 4,
                               .kind = RECORD_VERDICT,
                               .cause = CAUSE_CUT_OFF,
                               .round = 2,
                               .rank = -1,
                               .at_us = 3661500000,
                               .host = span_str("node1"),
                               .text = span_str("no sign of life for 10.2 s from "
                                                "node1, which hosted the rendezvous") };
    assert_int_equal(record_add(&r, &e), 0);
    assert_true(verdict_print(&b, &r, &style));
    assert_true(span_eq(
        buf_span(&b),
        span_str("muster: this node was cut off: no sign of life for 10.2 s from "
                 "node1, which hosted the rendezvous\n"
                 "          it was last heard of at 01:01:01.500\n"
                 "muster: its machine is down, or the network to it; if it is up, the "
                 "job may go on there without this node\n"
                 "muster: the whole story: r.json\n")));
    buf_fini(&b);
    record_fini(&r);
}

/* Restarts with one cause are counted: three are shown, one a minute, and the last. */
static void test_equal_restarts(void **state)
{
    static const struct {
        int64_t second, count, rank;
        const char *text, *want; /* what is said; "": nothing */
    } told[] = {
        { 0, 1, 0, "a", "rank 0 on n failed: a. Restart 1 of 9." },
        { 1, 2, 1, "a", "rank 1 on n failed: a. Restart 2 of 9." },
        { 2, 3, 0, "a", "rank 0 on n failed: a. Restart 3 of 9." },
        { 3, 4, 0, "a", "" },
        { 61, 5, 0, "a", "" },
        { 62, 6, 0, "a",
          "rank 0 on n failed: a. Restart 6 of 9. (2 restarts with one cause before it "
          "are not shown.)" },
        { 63, 7, 0, "a", "" },
        { 64, 8, 0, "b",
          "rank 0 on n failed: b. Restart 8 of 9. (1 restart with one cause before it "
          "is not shown.)" },
        { 65, 8, 0, "b", "rank 0 on n failed: b. Restart 8 of 9." },
        { 66, 8, 0, "b", "rank 0 on n failed: b. Restart 8 of 9." },
        { 67, 8, 0, "b", "" },
        { 68, 9, 0, "b",
          "rank 0 on n failed: b. Restart 9 of 9. (1 restart with one cause before it "
          "is not shown.)" },
    };
    struct restart_lines l = { 0 };
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(told); i++) {
        const struct record_entry e = { .kind = RECORD_RESTART,
                                        .cause = CAUSE_EXCEPTION,
                                        .at_us =
                                            1000000 * (1700000000 + told[i].second),
                                        .count = told[i].count,
                                        .total = 9,
                                        .rank = told[i].rank,
                                        .host = span_str("n"),
                                        .text = span_str(told[i].text) };

        buf_clear(&b);
        assert_int_equal(restart_print_once(&b, &l, &e), *told[i].want != '\0');
        assert_true(span_eq(buf_span(&b), span_str(told[i].want)));
        assert_int_equal(l.skipped > 0, *told[i].want == '\0');
    }
    buf_fini(&b);
}

/* Whether the last words are those of a program that aborted by itself. */
static void test_aborts(void **state)
{
    static const struct {
        const char *tail;
        bool aborts, unwound;
    } ends[] = {
        { "terminate called after throwing an instance of 'std::bad_alloc'\n", true },
        { "[W1] leaking\nterminate called without an active exception\n", true, true },
        { "a.out: a.c:3: main: Assertion `x' failed.\n", true },
        { "sh: 1: trian: not found\n", false },
        { "Assertion failed: x\n", false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct last_words w;

        last_words_read(&w, span_str(ends[i].tail), -1);
        assert_int_equal(w.aborts, ends[i].aborts);
        assert_int_equal(w.unwound, ends[i].unwound);
        last_words_fini(&w);
    }
}

/* Several workers and their agent write to one file: lines that are surely not this
 * worker's are skipped. */
static void test_shared_file(void **state)
{
    static const char text[] =
        "[rank2]: of another\n"
        "W1116 15:32:36.750000 4711 muster/agent] rank 3 on node2 failed\n"
        "muster: rank 3 on node2 failed: exited with code 7. Restart 1 of 3.\n"
        "muster: rank 3 on node2 failed: x. Other workers had been stopped already; "
        "this is not counted as a restart.\n"
        "muster: 4 ranks on 2 nodes started again after 21 ms\n"
        "muster: node2 left the job (stopped by SIGTERM from pid 712)\n"
        "muster: node2 was lost (its connection broke); rank 3 was there\n"
        "muster: the job failed: inside\n"
        "[rank3]: mine\n"
        "[default3]:shown by -t\n"
        "E1116 15:32:36.750000 47 site-packages/torch/distributed/elastic/x.py:1] f\n"
        "W1116 a line of the user's own\n"
        "somebody's\n";
    struct last_words w;

    (void)state;
    last_words_read(&w, span_str(text), 3);
    assert_true(span_eq(buf_span(&w.lines),
                        span_str("muster: the job failed: inside\nmine\nW1116 a line "
                                 "of the user's own\nsomebody's\n")));
    last_words_fini(&w);
    last_words_read(&w, span_str(text), -1); /* -1: all lines are the worker's. */
    assert_non_null(memmem(buf_data(&w.lines), buf_len(&w.lines), "muster/agent", 12));
    last_words_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_file), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_lines),       cmocka_unit_test(test_escape),
        cmocka_unit_test(test_verdict),     cmocka_unit_test(test_equal_restarts),
        cmocka_unit_test(test_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
