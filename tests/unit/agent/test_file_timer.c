/* test_file_timer.c - the file timer's table, and event records against torch's own. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/core/file_timer.h"
#include "agent/core/telemetry.h"

static void feed(struct timers *t, int64_t pid, const char *scope, double when, int sig)
{
    char line[200];
    snprintf(line, sizeof line,
             "{\"version\": 1, \"pid\": %d, \"scope_id\": \"%s\", "
             "\"expiration_time\": %f, \"signal\": %d}\n",
             (int)pid, scope, when, sig);
    for (const char *p = line; *p; p++) /* byte by byte, as a pipe may have it */
        assert_int_equal(timers_feed(t, span_of(p, 1), NULL), 0);
}

static void table(void **state)
{
    struct timers t;
    struct timer_entry e;
    (void)state;
    timers_init(&t);
    assert_true(isinf(timers_next(&t)));
    feed(&t, 7, "a", 10, 9);
    feed(&t, 7, "b", 5, 0); /* earlier, but without a signal */
    feed(&t, 7, "c", 8, 15);
    feed(&t, 8, "a", 30, 9);
    assert_true(timers_next(&t) == 5);
    assert_false(timers_expire(&t, 4, &e));
    assert_true(timers_expire(&t, 20, &e));
    assert_int_equal(e.pid, 7);
    assert_int_equal(e.sig, 15);
    assert_string_equal(e.scope, "c");
    mem_free(e.scope);
    assert_false(timers_expire(&t, 20, &e)); /* all of 7 is gone */
    assert_true(timers_next(&t) == 30);
    feed(&t, 8, "a", 60, 9); /* moved */
    assert_true(timers_next(&t) == 60);
    feed(&t, 8, "a", -1, 0); /* released */
    feed(&t, 9, "never there", -1, 0);
    feed(&t, 8, "/c\\udce9/train.py#3", 70, 9); /* a path that is no UTF-8 */
    assert_true(timers_next(&t) == 70);
    feed(&t, 8, "/c\\udce9/train.py#3", -1, 0);
    assert_true(isinf(timers_next(&t)));
    timers_fini(&t);
}

static void nonsense(void **state)
{
    static const char *const bad[] = { "x\n", "{}\n", "[1]\n",
                                       ("{\"pid\": \"1\", \"scope_id\": \"a\", "
                                        "\"expiration_time\": 1, \"signal\": 9}\n") };
    struct timers t;
    struct muster_error err;
    (void)state;
    timers_init(&t);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(timers_feed(&t, span_str(bad[i]), &err), MUSTER_EPROTO);
    /* A good line after a bad one counts. */
    assert_int_equal(timers_feed(&t,
                                 span_str("junk\n{\"pid\":1,\"scope_id\":\"a\","
                                          "\"expiration_time\":2,\"signal\":9}\n"),
                                 &err),
                     MUSTER_EPROTO);
    assert_true(timers_next(&t) == 2);
    char *endless = malloc(200000);
    memset(endless, 'x', 200000);
    assert_int_equal(timers_feed(&t, span_of(endless, 200000), &err), MUSTER_EPROTO);
    free(endless);
    timers_fini(&t);
}

#define REQUEST(pid, when)                                                             \
    "{\"pid\":" pid ",\"scope_id\":\"a\",\"expiration_time\":" when ",\"signal\":9}\n"

/* A request that there is no memory for is lost. The table stays as it was, and the
 * requests after it count. */
static void out_of_memory(void **state)
{
    char request[5000]; /* more than the first piece of it has reserved */

    (void)state;
    (void)snprintf(request, sizeof request,
                   "{\"pid\":2,\"scope_id\":\"%04000d\",\"expiration_time\":5,"
                   "\"signal\":9}\n",
                   0);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct timers t;
        int rc;

        mem_fail_from(0);
        timers_init(&t);
        assert_int_equal(timers_feed(&t, span_str(REQUEST("1", "9")), NULL), 0);
        assert_int_equal(timers_feed(&t, span_of(request, 1), NULL), 0);
        f.before = mem_count();
        mem_fail_from(f.nth);
        rc = timers_feed(&t, span_str(request + 1), NULL);
        mem_fail_from(0);
        const unsigned long asked = mem_count() - f.before;
        assert_int_equal(rc, failing_rc(&f));
        assert_int_equal(t.count, rc == 0 ? 2 : 1);
        assert_true(timers_next(&t) == (rc == 0 ? 5 : 9));
        assert_int_equal(timers_feed(&t, span_str(REQUEST("3", "2")), NULL), 0);
        assert_true(timers_next(&t) == 2);
        timers_fini(&t);
        f.before = mem_count() - asked; /* failing_next looks at this. */
    }
}

/* Printed by torchrun 2.13. */
static void events(void **state)
{
    struct event e = { .state = "RENDEZVOUS",
                       .run_id = "x",
                       .role = "default",
                       .hostname = "localhost",
                       .backend = "c10d",
                       .entry_point = "true",
                       .duration_ms = 146.5 };
    struct buf b;
    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(event_print(&b, &e), 0);
    buf_u8(&b, 0);
    assert_string_equal(
        (const char *)buf_data(&b),
        "{\"name\": \"torchelastic.worker.status.RENDEZVOUS\", \"source\": \"AGENT\", "
        "\"timestamp\": 0, \"metadata\": {\"run_id\": \"x\", \"global_rank\": null, "
        "\"group_rank\": null, \"worker_id\": null, \"role\": \"default\", "
        "\"hostname\": "
        "\"localhost\", \"state\": \"RENDEZVOUS\", \"total_run_time\": 0, "
        "\"rdzv_backend\": \"c10d\", \"raw_error\": null, \"metadata\": "
        "\"{\\\"group_world_size\\\": null, \\\"entry_point\\\": \\\"true\\\"}\", "
        "\"agent_restarts\": 0, \"duration_ms\": 146.5}}");
    buf_clear(&b);
    e.state = "START";
    e.of_worker = true;
    e.worker_id = 26041;
    e.duration_ms = -1;
    e.group_rank = e.group_world_size = (struct event_number){ true, 1 };
    e.role_world_size = 1;
    assert_int_equal(event_print(&b, &e), 0);
    buf_u8(&b, 0);
    assert_string_equal(
        (const char *)buf_data(&b),
        "{\"name\": \"torchelastic.worker.status.START\", \"source\": \"WORKER\", "
        "\"timestamp\": 0, \"metadata\": {\"run_id\": \"x\", \"global_rank\": 0, "
        "\"group_rank\": 1, \"worker_id\": \"26041\", \"role\": \"default\", "
        "\"hostname\": \"localhost\", \"state\": \"START\", \"total_run_time\": 0, "
        "\"rdzv_backend\": \"c10d\", \"raw_error\": null, \"metadata\": "
        "\"{\\\"group_world_size\\\": 1, \\\"entry_point\\\": \\\"true\\\", "
        "\\\"local_rank\\\": [0], \\\"role_rank\\\": [0], \\\"role_world_size\\\": "
        "[1], "
        "\\\"exit_code\\\": [null], \\\"worker_pid\\\": [null]}\", "
        "\"agent_restarts\": 0, \"duration_ms\": null}}");
    buf_clear(&b);
    e.failed_at = (struct event_number){ true, 1763251200 };
    e.error_file = "/logs/0/error.json";
    e.first = true;
    assert_int_equal(event_print(&b, &e), 0);
    buf_u8(&b, 0);
    assert_non_null(strstr((const char *)buf_data(&b),
                           "\"duration_ms\": null, \"failed_at\": 1763251200, "
                           "\"error_file\": \"/logs/0/error.json\", "
                           "\"first\": true}}"));
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(nonsense),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
