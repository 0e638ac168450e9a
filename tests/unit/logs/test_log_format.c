/* test_log_format.c - Python's log formats; what is expected was printed by
 * Python 3.11.
 */
#include "logs/core/log_format.h"

#include "testing.h"

static const struct log_record record = {
    .level = "WARNING",
    .level_number = 30,
    .where = "site-packages/torch/distributed/run.py:874",
    .message = "a\nb 'c'",
    .asctime = "2026-11-15 23:41:34,250",
    .created = 1794786094.25,
    .since_start = 1500.5,
    .pid = 77,
};

static const struct {
    const char *text, *want; /* NULL: refused */
    int rc;
} rows[] = {
    { "short", "WARNING:torch.distributed.run:a\nb 'c'\n", 0 },
    { "basic", "WARNING:torch.distributed.run:a\nb 'c'\n", 0 },
    { "", "a\nb 'c'\n", 0 },
    { "%(asctime)s %(process)d %(filename)s:%(lineno)d",
      "2026-11-15 23:41:34,250 77 run.py:874\n", 0 },
    { "%(levelname)-9s|%(levelname)9s|%(levelname).4s|", "WARNING  |  WARNING|WARN|\n",
      0 },
    { "%(lineno)06d|%(lineno)+d|%(lineno)-6d|%(lineno)s", "000874|+874|874   |874\n",
      0 },
    { "%(created)f|%(created).1f|%(msecs)03d|%(msecs)s|%(relativeCreated)d",
      "1794786094.250000|1794786094.2|250|250.0|1500\n", 0 },
    { "%(message)r|%(module)s|%(levelno)s|100%%", "\"a\\nb 'c'\"|run|30|100%\n", 0 },
    { "%(pathname)s %(processName)s %(threadName)s",
      "site-packages/torch/distributed/run.py MainProcess MainThread\n", 0 },
    { "x", NULL, MUSTER_EINVAL },
    { "%(", NULL, MUSTER_EINVAL },
    { "%s", NULL, MUSTER_EINVAL },
    { "%(message)", NULL, MUSTER_EINVAL },
    { "%()s", NULL, MUSTER_EINVAL },
    { "%(bogus)s", NULL, MUSTER_ENOTSUP },
    { "%(levelname)d", NULL, MUSTER_ENOTSUP },
    { "%(message)s %s", NULL, MUSTER_ENOTSUP },
    { "%(message)s %", NULL, MUSTER_ENOTSUP },
    { "%(message)*s", NULL, MUSTER_ENOTSUP },
    { "%(message)99999999999s", NULL, MUSTER_ENOTSUP },
    { "%(lineno)x", NULL, MUSTER_ENOTSUP },
};

static void as_python(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct muster_error err = { 0 };
        const char *format = NULL;
        struct buf b;
        const int rc = logline_format(rows[i].text, &format, &err);

        if (rc != rows[i].rc)
            fail_msg("'%s': want %d, got %d (%s)", rows[i].text, rows[i].rc, rc,
                     err.text);
        if (rc != 0)
            continue;
        buf_init(&b, SIZE_MAX);
        assert_int_equal(logline_print(&b, format, &record), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), rows[i].want);
        buf_fini(&b);
    }
}

/* A package's own file is the package; parts of ours have no line. */
static void loggers(void **state)
{
    static const char *const wheres[][2] = {
        { "site-packages/torch/a/errors/__init__.py:132",
          "torch.a.errors|__init__.py|132\n" },
        { "muster/agent", "muster.agent|agent|0\n" },
        { "", "||0\n" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wheres); i++) {
        struct log_record r = record;
        struct buf b;

        r.where = wheres[i][0];
        buf_init(&b, SIZE_MAX);
        assert_int_equal(logline_print(&b, "%(name)s|%(filename)s|%(lineno)d", &r), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), wheres[i][1]);
        buf_fini(&b);
    }
}

static void no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct muster_error err;
        const char *format = NULL;
        const int rc =
            logline_format("%(message)r %(created)s %(lineno)d", &format, &err);

        assert_int_equal(rc, failing_rc(&f));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_python),
        cmocka_unit_test(loggers),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
