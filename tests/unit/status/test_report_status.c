/* A report in the shape of a status: what happened in the order of time, what became of
 * the ranks, and files that are not reports. */
#include "testing.h"

#include "status/core/report_status.h"
#include "status/core/status_text.h"

static const char failed[] =
    "{\"schema\": 1, \"muster\": \"0.2.0\", \"run_id\": \"job1\", \"outcome\": "
    "\"failed\","
    " \"began_us\": 1000000, \"ended_us\": 9000000, \"restarts\": 1,"
    " \"nodes\": [{\"node\": 1, \"host\": \"a\", \"agent_pid\": 5, \"workers\": 2,"
    " \"state\": \"here\"}, {\"node\": 2, \"host\": \"b\", \"agent_pid\": 6, "
    "\"workers\": 2,"
    " \"state\": \"lost\"}],"
    " \"rounds\": [{\"round\": 0, \"began_us\": 2000000, \"ended_us\": 4000000, "
    "\"nodes\": 2,"
    " \"ranks\": 4, \"cause\": \"exception\", \"placement\": []},"
    " {\"round\": 1, \"began_us\": 5000000, \"ended_us\": 9000000, \"nodes\": 2,"
    " \"ranks\": 4, \"cause\": \"exception\","
    " \"placement\": [{\"node\": 1, \"first_rank\": 0, \"count\": 2},"
    " {\"node\": 2, \"first_rank\": 2, \"count\": 2}],"
    " \"exit_codes\": [{\"first_rank\": 0, \"count\": 1, \"code\": 0},"
    " {\"first_rank\": 1, \"count\": 1, \"code\": 1},"
    " {\"first_rank\": 2, \"count\": 1, \"code\": -15}]}],"
    " \"restart_causes\": [{\"cause\": \"exception\", \"text\": \"ValueError: x\","
    " \"time_us\": 3000000, \"round\": 0, \"rank\": 3, \"restart\": 1, \"allowed\": "
    "2}],"
    " \"failures\": [{\"cause\": \"exception\", \"text\": \"OSError: y\","
    " \"time_us\": 8000000, \"round\": 1, \"rank\": 1, \"host\": \"a\"}],"
    " \"hangs\": [], \"verdict\": {\"cause\": \"exception\", \"text\": \"OSError: y\","
    " \"time_us\": 8000000, \"round\": 1, \"rank\": 1, \"host\": \"a\","
    " \"last_words\": \"bye\"}}";

static json_t *status_of(const char *text, struct muster_error *err)
{
    json_t *report = json_loads(text, 0, NULL);
    json_t *status = report_status(report, err);

    json_decref(report);
    return status;
}

static void test_what_happened(void **state)
{
    static const char *const kinds[] = { "ROUND",  "RESTART", "ENDED", "ROUND",
                                         "FAILED", "VERDICT", "ENDED" };
    struct muster_error err = { 0 };
    json_t *status = status_of(failed, &err);
    const json_t *history = json_object_get(status, "history");

    (void)state;
    assert_non_null(status);
    assert_int_equal(json_array_size(history), ARRAY_LEN(kinds));
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const json_t *e = json_array_get(history, i);

        assert_string_equal(json_string_value(json_object_get(e, "kind")), kinds[i]);
        assert_int_equal(json_count(e, "number"), i + 1);
    }
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(status, "verdict"), "lines")),
        "bye");
    assert_int_equal(json_count(json_object_get(status, "job"), "max_restarts"), 2);
    assert_int_equal(json_count(json_object_get(status, "job"), "nodes_lost"), 1);
    json_decref(status);
}

static void test_what_became_of_the_ranks(void **state)
{
    static const char *const states[] = { "succeeded", "failed", "ended", "none" };
    json_t *status = status_of(failed, NULL);
    const json_t *nodes = json_object_get(status, "nodes");

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        const json_t *node = json_array_get(nodes, i / 2);
        const json_t *w = json_array_get(json_object_get(node, "workers"), i % 2);

        assert_int_equal(json_count(w, "rank"), i);
        assert_string_equal(json_string_value(json_object_get(w, "state")), states[i]);
    }
    json_decref(status);
}

static void test_what_is_no_report(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "[]", "not a report" },
        { "{}", "not a report" },
        { "{\"run_id\": \"x\", \"rounds\": 5, \"schema\": 1}", "not a report" },
        { "{\"run_id\": \"x\", \"rounds\": [], \"schema\": 2}", "schema is 2" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct muster_error err = { 0 };

        assert_null(status_of(rows[i].text, &err));
        assert_int_equal(err.code, MUSTER_EINVAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("%s: %s", rows[i].text, err.text);
    }
}

/* A job that never had a round, and one that succeeded. */
static void test_little_to_tell(void **state)
{
    json_t *status = status_of("{\"run_id\": \"x\", \"rounds\": [], \"schema\": 1,"
                               " \"outcome\": \"succeeded\", \"ended_us\": 5}",
                               NULL);

    (void)state;
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(status, "verdict"), "cause")),
        "succeeded");
    assert_int_equal(json_array_size(json_object_get(status, "nodes")), 0);
    json_decref(status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_happened),
        cmocka_unit_test(test_what_became_of_the_ranks),
        cmocka_unit_test(test_what_is_no_report),
        cmocka_unit_test(test_little_to_tell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
