/* test_metric_names.c - names, lines and the one number that is computed. */
#include "agent/core/telemetry.h"
#include "muster/error.h"

#include "testing.h"

static void check(int (*print)(struct buf *, const struct metric *), double when,
                  const char *name, int64_t value, const char *want)
{
    const struct metric m = { when, name, value };
    struct buf b;

    buf_init(&b, SIZE_MAX);
    assert_int_equal(print(&b, &m), 0);
    assert_int_equal(buf_u8(&b, 0), 0);
    assert_string_equal((const char *)buf_data(&b), want);
    buf_fini(&b);
}

static void lines(void **state)
{
    (void)state;
    check(metric_print, 1794786094.4270978, "workers.default.run_total", 1,
          "[1794786094.4270978][torchelastic]: workers.default.run_total=1\n");
    check(metric_print, 5, "x", -3, "[5.0][torchelastic]: x=-3\n");
    check(metric_print_json, 1794786094.25, "workers.a \"b\".healthy", 1,
          "{\"timestamp\": 1794786094.25, \"group_name\": \"torchelastic\", \"name\": "
          "\"workers.a \\\"b\\\".healthy\", \"value\": 1}\n");
}

static void names(void **state)
{
    (void)state;
    for (enum metric_call c = 0; c < CALLS; c++)
        assert_non_null(strstr(metric_call_name(c), "ElasticAgent."));
    assert_string_equal(metric_call_name(CALL_RUN), "SimpleElasticAgent.run");
}

static void flakiness(void **state)
{
    static const struct {
        bool failed;
        int64_t remaining, max, want;
    } rows[] = {
        { true, 3, 3, 100 }, { true, 0, 0, 100 }, { false, 0, 0, 0 },
        { false, 3, 3, 0 },  { false, 2, 3, 25 }, { false, 1, 2, 33 },
        { false, 0, 2, 66 }, { false, 0, 3, 75 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(
            metric_flakiness(rows[i].failed, rows[i].remaining, rows[i].max),
            rows[i].want);
}

static void no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        const struct metric m = { 1.5, "name", 2 };
        struct buf b;

        buf_init(&b, SIZE_MAX);
        const int rc = metric_print_json(&b, &m);
        assert_int_equal(rc, failing_rc(&f));
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),
        cmocka_unit_test(names),
        cmocka_unit_test(flakiness),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
