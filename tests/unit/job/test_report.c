/* test_report.c - the report of a job of any size: valid JSON, and under 1 MiB. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>

#include "job/core/report.h"

static char host[256], words[RECORD_BODY_MAX], line[RECORD_TEXT_MAX];

static void add(struct record *r, struct record_entry e)
{
    e.number = r->last + 1;
    e.at_us = 1700000000000000 + (int64_t)e.number;
    record_trim(&e);
    assert_int_equal(record_add(r, &e), 0);
}

static struct record_entry failure(enum record_kind kind, int64_t round)
{
    return (struct record_entry){ .kind = kind,
                                  .cause = CAUSE_EXCEPTION,
                                  .round = round,
                                  .host = span_str(host),
                                  .text = span_of(line, sizeof line),
                                  .place = span_of(line, sizeof line),
                                  .path = span_of(line, sizeof line),
                                  .body = span_of(words, sizeof words) };
}

static struct record_entry hang(int64_t round)
{
    struct record_entry e = failure(RECORD_NOTE, round);

    e.cause = CAUSE_HANG;
    e.rank = 5;
    return e;
}

/* Nodes with the longest names that there are, in entries as the coordinator makes
 * them. */
static void add_nodes(struct record *r, uint32_t nodes)
{
    struct buf b;

    buf_init(&b, RECORD_BODY_MAX);
    for (uint32_t i = 1; i <= nodes; i++) {
        const struct record_node n = { .number = i,
                                       .host = span_str(host),
                                       .addr = span_str(host),
                                       .pid = 4000000,
                                       .nproc = 8,
                                       .offset_us = -3600000000,
                                       .unsure_us = 1000000 };

        if (record_nodes_print(&b, &n) == 0 && i < nodes)
            continue;
        add(r, (struct record_entry){ .kind = RECORD_NODES, .body = buf_span(&b) });
        buf_clear(&b);
        (void)record_nodes_print(&b, &n);
    }
    buf_fini(&b);
}

static void add_round(struct record *r, int64_t round, uint32_t nodes)
{
    struct buf b;

    buf_init(&b, RECORD_BODY_MAX);
    for (uint32_t i = 1; i <= nodes; i++)
        (void)record_ranks_print(&b, &(struct record_ranks){ i, 8 * (int64_t)i, 8 });
    add(r, (struct record_entry){ .kind = RECORD_ROUND,
                                  .round = round,
                                  .count = nodes,
                                  .total = 8 * (int64_t)nodes,
                                  .body = buf_span(&b) });
    buf_clear(&b);
    (void)buf_append_str(&b, "stop 1 2 3 4\nstart 5 6 7 8\n");
    add(r, (struct record_entry){
               .kind = RECORD_PHASES, .round = round, .body = buf_span(&b) });
    buf_clear(&b);
    for (int64_t i = 0; i < 8 * (int64_t)nodes; i++) /* no two neighbours are equal */
        (void)buf_printf(&b, "%d 1 %d\n", (int)i, (int)(i % 2));
    add(r, (struct record_entry){
               .kind = RECORD_ENDED, .round = round, .body = buf_span(&b) });
    buf_fini(&b);
}

static void test_any_size(void **state)
{
    struct record r;
    struct buf b;
    json_t *j;

    (void)state;
    memset(host, 'n', sizeof host - 1);
    memset(words, '\1', sizeof words); /* each is four characters, escaped */
    memset(line, '\1', sizeof line);
    record_init(&r);
    add_nodes(&r, 10000);
    for (int64_t round = 0; round < 300; round++) {
        add_round(&r, round, 10000);
        add(&r, failure(RECORD_FAILED, round));
        add(&r, failure(RECORD_RESTART, round));
        add(&r, failure(RECORD_NOTE, round));
        add(&r, hang(round));
    }
    add(&r, failure(RECORD_VERDICT, 300));
    buf_init(&b, SIZE_MAX);
    assert_int_equal(report_json(&b, &r, "run", "0"), 0);
    assert_true(buf_len(&b) > 10000);
    if (buf_len(&b) > REPORT_MAX)
        fail_msg("the report has %zu bytes", buf_len(&b));
    j = json_loadb((const char *)buf_data(&b), buf_len(&b), 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "outcome")), "failed");
    assert_true(json_integer_value(json_object_get(j, "nodes_omitted")) > 0);
    const json_t *last = json_object_get(j, "hangs");
    assert_in_range(json_array_size(last), 1, 64);
    last = json_array_get(last, json_array_size(last) - 1);
    assert_int_equal(json_integer_value(json_object_get(last, "round")), 299);
    assert_int_equal(json_integer_value(json_object_get(last, "rank")), 5);
    static const char *const lists[] = { "rounds", "restart_causes", "failures",
                                         "hangs" };
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) { /* The first and the last stay. */
        const json_t *list = json_object_get(j, lists[i]);
        const json_t *first = json_array_get(list, 0);

        last = json_array_get(list, json_array_size(list) - 1);
        assert_int_equal(json_integer_value(json_object_get(first, "round")), 0);
        assert_int_equal(json_integer_value(json_object_get(last, "round")), 299);
    }
    json_decref(j);
    buf_fini(&b);
    record_fini(&r);
}

/* A new coordinator announces all nodes again; the report says which one was lost. */
static void test_lost_coordinator(void **state)
{
    struct record r;
    struct buf b;
    json_t *j, *nodes;

    (void)state;
    snprintf(host, sizeof host, "node");
    record_init(&r);
    add_nodes(&r, 3);
    add_nodes(&r, 2);
    add(&r, (struct record_entry){
                .kind = RECORD_VERDICT, .cause = CAUSE_NODE_LOST, .node = 3 });
    buf_init(&b, SIZE_MAX);
    assert_int_equal(report_json(&b, &r, "run", "0"), 0);
    j = json_loadb((const char *)buf_data(&b), buf_len(&b), 0, NULL);
    nodes = json_object_get(j, "nodes");
    assert_int_equal(json_array_size(nodes), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(nodes, i), "state")),
            i == 2 ? "lost" : "here");
    json_decref(j);
    buf_fini(&b);
    record_fini(&r);
}

/* A job that somebody stopped has no verdict; it ended when its last node left. */
static void test_stopped(void **state)
{
    struct record r;
    struct buf b;
    json_t *j;

    (void)state;
    snprintf(host, sizeof host, "node");
    record_init(&r);
    add_nodes(&r, 2);
    add_round(&r, 0, 2);
    add(&r, (struct record_entry){ .kind = RECORD_LEFT, .node = 1 });
    add(&r, (struct record_entry){ .kind = RECORD_LEFT, .node = 2 });
    buf_init(&b, SIZE_MAX);
    assert_int_equal(report_json(&b, &r, "run", "0"), 0);
    j = json_loadb((const char *)buf_data(&b), buf_len(&b), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "outcome")), "stopped");
    assert_int_equal(json_integer_value(json_object_get(j, "ended_us")),
                     1700000000000000 + (int64_t)r.last);
    json_decref(j);
    buf_fini(&b);
    record_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_size),
        cmocka_unit_test(test_lost_coordinator),
        cmocka_unit_test(test_stopped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
