/* test_failure_report.c - the failure report against torch's own, and error files of
 * all kinds.
 */
#include "testing.h"

#include <stdio.h>

#include "agent/core/exit_cause.h"
#include "agent/core/failure_report.h"
#include "base/py/json.h"

static const char *text_of(struct buf *b)
{
    buf_u8(b, 0);
    return (const char *)buf_data(b);
}

#define NO_TRACE                                                                       \
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

/* Both were printed by torchrun 2.13. */
static void two_failures(void **state)
{
    const struct failure list[] = {
        { .local_rank = 1,
          .rank = 1,
          .pid = 27239,
          .code = 3,
          .time_s = 5,
          .when = "2026-11-15_18:46:41" },
        { .local_rank = 0,
          .rank = 0,
          .pid = 27238,
          .code = -15,
          .time_s = 5,
          .signal_name = "SIGTERM",
          .when = "2026-11-15_18:46:41" },
    };
    struct buf b;
    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(report_print(&b, "fail.py", "localhost", list, 2), 0);
    assert_string_equal(
        text_of(&b), "\n============================================================\n"
                     "fail.py FAILED\n"
                     "------------------------------------------------------------\n"
                     "Failures:\n"
                     "[1]:\n"
                     "  time      : 2026-11-15_18:46:41\n"
                     "  host      : localhost\n"
                     "  rank      : 0 (local_rank: 0)\n"
                     "  exitcode  : -15 (pid: 27238)  (SIGTERM)\n"
                     "  error_file: <N/A>\n"
                     "  traceback : Signal 15 (SIGTERM) received by PID 27238\n"
                     "------------------------------------------------------------\n"
                     "Root Cause (first observed failure):\n"
                     "[0]:\n"
                     "  time      : 2026-11-15_18:46:41\n"
                     "  host      : localhost\n"
                     "  rank      : 1 (local_rank: 1)\n"
                     "  exitcode  : 3 (pid: 27239) \n"
                     "  error_file: <N/A>\n"
                     "  traceback : " NO_TRACE "\n"
                     "============================================================\n");
    buf_fini(&b);
}

static void one_narrow(void **state)
{
    const struct failure f = { .pid = 28587,
                               .code = -9,
                               .signal_name = "SIGKILL",
                               .when = "2026-11-15_18:48:30" };
    struct buf b;
    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(report_print(&b, "sig.py", "localhost", &f, 1), 0);
    assert_string_equal(text_of(&b),
                        "\n======================================================\n"
                        "sig.py FAILED\n"
                        "------------------------------------------------------\n"
                        "Failures:\n"
                        "  <NO_OTHER_FAILURES>\n"
                        "------------------------------------------------------\n"
                        "Root Cause (first observed failure):\n"
                        "[0]:\n"
                        "  time      : 2026-11-15_18:48:30\n"
                        "  host      : localhost\n"
                        "  rank      : 0 (local_rank: 0)\n"
                        "  exitcode  : -9 (pid: 28587)  (SIGKILL)\n"
                        "  error_file: <N/A>\n"
                        "  traceback : Signal 9 (SIGKILL) received by PID 28587\n"
                        "======================================================\n");
    buf_fini(&b);
}

static void error_files(void **state)
{
    static const struct {
        const char *json;
        int want;
        const char *text;
        int64_t time;
    } rows[] = {
        { "{\"message\": \"m\", \"timestamp\": 7}", 0, "m", 7 },
        { "{\"message\": \"a\\nb\"}", 0, "a\nb", 0 },
        { "{\"message\": {\"message\": \"E: x\", \"extraInfo\": {\"py_callstack\": "
          "\"T\\nE: x\\n\", \"timestamp\": \"12\"}}}",
          0, "T\n  E: x\n  ", 12 },
        { "{\"message\": {\"message\": \"only\", \"extraInfo\": {\"timestamp\": 3}}}",
          0, "only", 3 },
        { "{\"message\": {\"extraInfo\": {\"timestamp\": 3}}}", 0, "<N/A>", 3 },
        { "", MUSTER_ESTATE, NULL, 0 },
        { "{\"message\": {\"mess", MUSTER_ESTATE, NULL, 0 },
        { "{}", MUSTER_ESTATE, NULL, 0 },
        { "[1]", MUSTER_ESTATE, NULL, 0 },
        { "{\"message\": {}}", MUSTER_ESTATE, NULL, 0 },
        { "{\"message\": 5}", MUSTER_ESTATE, NULL, 0 },
        { "{\"message\": \"m\", \"timestamp\": \"soon\"}", MUSTER_ESTATE, NULL, 0 },
        { "\xff\xfe\x01", MUSTER_ESTATE, NULL, 0 },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct error_file e = { 0 };
        struct muster_error err;
        const int rc = error_file_parse(&e, span_str(rows[i].json), &err);
        if (rc != rows[i].want)
            fail_msg("%s: want %d, got %d", rows[i].json, rows[i].want, rc);
        if (rc == 0) {
            assert_string_equal(e.text, rows[i].text);
            assert_int_equal(e.time_s, rows[i].time);
        }
        error_file_fini(&e);
    }
}

/* Escapes that Python writes and nobody else can read become text; those before which
 * stands another backslash are text already. */
static void tamed(void **state)
{
    static const struct {
        const char *in, *want;
    } rows[] = {
        { "", "" },
        { "plain \\n \\\" \\u00e9", NULL },
        { "\\ud83d\\ude00", NULL }, /* a pair */
        { "\\uD83D\\uDE00", NULL },
        { "\\uDBff\\udFFF", NULL },
        { "\\ud7ff\\ue000\\u0001", NULL }, /* the neighbours */
        { "\\udce9", "\\\\udce9" },
        { "\\uDCE9x", "\\\\uDCE9x" },
        { "\\ud83d", "\\\\ud83d" },
        { "\\uD83Dx", "\\\\uD83Dx" },
        { "\\ud83d\\n", "\\\\ud83d\\n" },
        { "\\ud83d\\u0041", "\\\\ud83d\\u0041" },
        { "\\ud83d\\ud83d\\ude00", "\\\\ud83d\\ud83d\\ude00" },
        { "\\ud83d\\u0000", "\\\\ud83d\\\\u0000" },
        { "\\ude00\\ud83d", "\\\\ude00\\\\ud83d" },
        { "\\ud83d\\ude0", "\\\\ud83d\\ude0" }, /* cut */
        { "\\u0000", "\\\\u0000" },
        { "\\\\udce9", NULL }, /* a backslash, then udce9 */
        { "\\\\\\udce9", "\\\\\\\\udce9" },
        { "\\\\\\\\u0000", NULL },
        { "\\udce", NULL },
        { "\\u", NULL },
        { "\\", NULL },
        { "\\udcg9\\ud\x10"
          "00",
          NULL },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;
        buf_init(&b, SIZE_MAX);
        assert_int_equal(json_tame(&b, span_str(rows[i].in)), 0);
        assert_string_equal(text_of(&b), rows[i].want ? rows[i].want : rows[i].in);
        buf_fini(&b);
    }
}

/* What @record writes of a path that is no UTF-8, and of a NUL; in names too. */
static void error_files_of_odd_bytes(void **state)
{
    struct error_file e = { 0 };
    struct buf b;
    (void)state;
    assert_int_equal(
        error_file_parse(
            &e,
            span_str("{\"message\": {\"message\": \"E: c\\udce9\", \"extraInfo\": "
                     "{\"py_callstack\": \"T\\nE: c\\udce9 \\u0000\\u0001 \\\\ud83d "
                     "\\ud83d\\ude00\", \"timestamp\": \"9\", \"\\u0000\": 1}}}"),
            NULL),
        0);
    assert_string_equal(e.text,
                        "T\n  E: c\\udce9 \\u0000\x01 \\ud83d \xf0\x9f\x98\x80");
    buf_init(&b, SIZE_MAX);
    assert_int_equal(error_file_for_parent(&b, &e, 1), 0);
    assert_string_equal(text_of(&b),
                        "{\"message\": {\"message\": \"E: c\\\\udce9\", \"extraInfo\": "
                        "{\"py_callstack\": \"T\\nE: c\\\\udce9 \\\\u0000\\u0001 "
                        "\\\\ud83d \\ud83d\\ude00\", \"timestamp\": \"9\", "
                        "\"\\\\u0000\": 1}, \"errorCode\": 1}}");
    buf_fini(&b);
    error_file_fini(&e);
}

static void for_parents(void **state)
{
    struct error_file e;
    struct buf b;
    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(
        error_file_parse(&e,
                         span_str("{\"message\":{\"message\":\"E\",\"extraInfo\":"
                                  "{\"timestamp\":\"1\"}},\"z\":[1,2.5,null,true]}"),
                         NULL),
        0);
    assert_int_equal(error_file_for_parent(&b, &e, -9), 0);
    assert_string_equal(text_of(&b),
                        "{\"message\": {\"message\": \"E\", \"extraInfo\": "
                        "{\"timestamp\": \"1\"}, \"errorCode\": -9}, \"z\": "
                        "[1, 2.5, null, true]}");
    error_file_fini(&e);
    buf_clear(&b);
    assert_int_equal(error_file_print(&b, "E: \"x\"", "at\n", 44), 0);
    assert_string_equal(text_of(&b), "{\"message\": {\"message\": \"E: \\\"x\\\"\", "
                                     "\"extraInfo\": {\"py_callstack\": \"at\\n\", "
                                     "\"timestamp\": \"44\"}}}");
    buf_fini(&b);
}

/* json.dumps of the same numbers. */
static void numbers(void **state)
{
    static const struct {
        double v;
        const char *text;
    } rows[] = { { 0.1, "0.1" },
                 { 3, "3.0" },
                 { 1794769835.606078, "1794769835.606078" },
                 { 1e16, "1e+16" },
                 { 120000, "120000.0" },
                 { -2.5, "-2.5" },
                 { 1e-7, "1e-07" } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;
        json_t *v = json_real(rows[i].v);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(json_python(&b, v), 0);
        assert_string_equal(text_of(&b), rows[i].text);
        json_decref(v);
        buf_fini(&b);
    }
}

/* Every signal gets its name and a meaning; a program's own codes are left alone. */
static void causes(void **state)
{
    static const struct {
        int code;
        const char *name, *begins, *has;
        int64_t oom_kills;
    } rows[] = {
        { -9, "SIGKILL", "died of signal 9 (SIGKILL): ", "dmesg", -1 },
        { -9, "SIGKILL", "died of signal 9 (SIGKILL): ", "OOM killer has not", 0 },
        { -11, "SIGSEGV", "died of signal 11 (SIGSEGV): ", "PYTHONFAULTHANDLER", -1 },
        { -7, "SIGBUS", "died of signal 7 (SIGBUS): ", "/dev/shm", -1 },
        { -40, NULL, "died of signal 40 (<N/A>): ", "no handler", -1 },
        { 137, NULL, "ended with code 137, ", "signal 9: ", -1 },
        { 192, NULL, "ended with code 192, ", "signal 64: ", -1 },
    };
    static const int own[] = { 0, 1, 2, 127, 128, 193, 255 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;
        buf_init(&b, SIZE_MAX);
        assert_true(
            exit_cause_print(&b, rows[i].code, rows[i].name, rows[i].oom_kills));
        assert_ptr_equal(strstr(text_of(&b), rows[i].begins), buf_data(&b));
        assert_non_null(strstr((const char *)buf_data(&b), rows[i].has));
        buf_fini(&b);
    }
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        assert_false(exit_cause_print(NULL, own[i], NULL, -1));
    assert_false(
        exit_cause_print(NULL, -9, "SIGKILL", 1)); /* told by who counted them */
    assert_false(exit_cause_print(NULL, 137, NULL, 1));
}

static void no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct error_file e = { 0 };
        struct buf b;
        const struct failure one = { .when = "now", .code = 1 };
        buf_init(&b, SIZE_MAX);
        int rc = error_file_parse(&e, span_str("{\"message\": \"\\udce9\"}"), NULL);
        if (rc == 0)
            rc = report_print(&b, "n", "h", &one, 1);
        assert_int_equal(rc, failing_rc(&f));
        error_file_fini(&e);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_failures),
        cmocka_unit_test(one_narrow),
        cmocka_unit_test(error_files),
        cmocka_unit_test(tamed),
        cmocka_unit_test(error_files_of_odd_bytes),
        cmocka_unit_test(for_parents),
        cmocka_unit_test(numbers),
        cmocka_unit_test(causes),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
