/* A report in the shape of a status: what happened in the order of time, what became of
 * the ranks, and files that are not reports. */
#include "testing.h"

#include "status/core/report_status.h"

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

struct told {
    json_t *report;
    struct job_status status;
};

static int told_init(struct told *t, const char *text, struct muster_error *err)
{
    t->report = json_loads(text, 0, NULL);
    t->status = (struct job_status){ 0 };
    return report_status(t->report, &t->status, err);
}

static void told_fini(struct told *t)
{
    job_status_fini(&t->status);
    json_decref(t->report);
}

static void test_what_happened(void **state)
{
    static const enum record_kind kinds[] = { RECORD_ROUND,  RECORD_RESTART,
                                              RECORD_ENDED,  RECORD_ROUND,
                                              RECORD_FAILED, RECORD_VERDICT,
                                              RECORD_ENDED };
    struct told t;

    (void)state;
    assert_int_equal(told_init(&t, failed, NULL), 0);
    assert_int_equal(t.status.entry_count, ARRAY_LEN(kinds));
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const struct record_entry e = job_entry(&t.status, i);

        assert_int_equal(e.kind, kinds[i]);
        assert_int_equal(e.number, i + 1);
    }
    assert_true(t.status.have_verdict);
    assert_true(span_eq(t.status.verdict.body, span_str("bye")));
    assert_int_equal(t.status.max_restarts, 2);
    assert_int_equal(t.status.lost, 1);
    told_fini(&t);
}

static void test_what_became_of_the_ranks(void **state)
{
    static const enum worker_state states[] = { WORKER_SUCCEEDED, WORKER_FAILED,
                                                WORKER_ENDED, WORKER_NONE };
    struct told t;

    (void)state;
    assert_int_equal(told_init(&t, failed, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        const struct job_node *n = &t.status.nodes[i / 2];

        assert_int_equal(n->first_rank + (int64_t)(i % 2), i);
        assert_int_equal(n->workers[i % 2].state, states[i]);
    }
    told_fini(&t);
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
        struct told t;

        assert_int_equal(told_init(&t, rows[i].text, &err), MUSTER_EINVAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("%s: %s", rows[i].text, err.text);
        told_fini(&t);
    }
}

/* A job that never had a round, and one that succeeded. */
static void test_little_to_tell(void **state)
{
    struct told t;

    (void)state;
    assert_int_equal(told_init(&t,
                               "{\"run_id\": \"x\", \"rounds\": [], \"schema\": 1,"
                               " \"outcome\": \"succeeded\", \"ended_us\": 5}",
                               NULL),
                     0);
    assert_int_equal(t.status.verdict.cause, CAUSE_SUCCEEDED);
    assert_int_equal(t.status.count, 0);
    told_fini(&t);
}

/* A report cannot be too large for the memory that there is. */
static void test_without_memory(void **state)
{
    json_t *report = json_loads(failed, 0, NULL);

    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct job_status s;
        const int rc = report_status(report, &s, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            job_status_fini(&s);
    }
    json_decref(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_happened),
        cmocka_unit_test(test_what_became_of_the_ranks),
        cmocka_unit_test(test_what_is_no_report),
        cmocka_unit_test(test_little_to_tell),
        cmocka_unit_test(test_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
