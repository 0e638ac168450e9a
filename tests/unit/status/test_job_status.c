/* test_job_status.c - the record and the answers, put together, and all that is printed
 * from it: JSON, metrics, trace, table, text. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "job/core/record.h"
#include "status/core/job_status.h"
#include "status/core/put.h"
#include "status/core/status_text.h"

#define T0 1700000000000000ll /* a wall clock */

/* ---- a job ---- */

struct job {
    struct record record;
    struct job_input in;
    struct node_status own;
    struct worker_status workers[8];
    struct job_answer answers[4];
    uint64_t number;
};

static void add(struct job *j, struct record_entry e)
{
    e.number = ++j->number;
    if (e.rank == 0 && e.kind != RECORD_FAILED)
        e.rank = -1;
    assert_int_equal(record_add(&j->record, &e), 0);
}

static void add_nodes(struct job *j, uint32_t first, uint32_t count, int64_t at_us)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    for (uint32_t i = 0; i < count; i++) {
        char host[32];

        snprintf(host, sizeof host, "node%u", first + i);
        const struct record_node n = { .number = first + i,
                                       .host = span_str(host),
                                       .addr = span_str("10.0.0.1"),
                                       .pid = 100 + first + i,
                                       .nproc = 8 };
        assert_int_equal(record_nodes_print(&b, &n), 0);
    }
    add(j,
        (struct record_entry){
            .kind = RECORD_NODES, .at_us = at_us, .round = -1, .body = buf_span(&b) });
    buf_fini(&b);
}

static void add_round(struct job *j, int64_t round, const uint32_t *nodes, size_t count,
                      int64_t at_us)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct record_ranks r = { nodes[i], (int64_t)i * 8, 8 };

        assert_int_equal(record_ranks_print(&b, &r), 0);
    }
    add(j, (struct record_entry){ .kind = RECORD_ROUND,
                                  .at_us = at_us,
                                  .round = round,
                                  .count = (int64_t)count,
                                  .total = (int64_t)count * 8,
                                  .body = buf_span(&b) });
    buf_fini(&b);
}

static void job_init(struct job *j)
{
    *j = (struct job){ 0 };
    record_init(&j->record);
    for (size_t i = 0; i < 8; i++)
        j->workers[i] = (struct worker_status){
            .state = WORKER_RUNNING, .pid = 1000 + (int)i, .memory = 1 << 30, .cpu = 990
        };
    j->own = (struct node_status){ .state = NODE_RUNNING,
                                   .round = 0,
                                   .group_rank = 0,
                                   .first_rank = 0,
                                   .pid = 101,
                                   .version = span_str("0.2.0"),
                                   .workers = j->workers,
                                   .worker_count = 8 };
    j->in = (struct job_input){ .run_id = "job1",
                                .backend = "c10d",
                                .endpoint = "node1:29400",
                                .max_restarts = 3,
                                .nnodes_min = 2,
                                .nnodes_max = 4,
                                .began_us = T0,
                                .now_us = T0 + 3600000000,
                                .record = &j->record,
                                .self = 1,
                                .host = "node1",
                                .addr = "10.0.0.1",
                                .agent_pid = 101,
                                .own = &j->own,
                                .answers = j->answers };
}

/* Two rounds: rank 9 on node2 fails, all begin again, node3 is lost. */
static void job_lives(struct job *j)
{
    job_init(j);
    add_nodes(j, 1, 3, T0);
    add_round(j, 0, (uint32_t[]){ 1, 2, 3 }, 3, T0 + 1000000);
    const struct record_entry failed = {
        .kind = RECORD_FAILED,
        .cause = CAUSE_EXCEPTION,
        .at_us = T0 + 60000000,
        .node = 2,
        .rank = 9,
        .local_rank = 1,
        .pid = 4711,
        .code = 1,
        .host = span_str("node2"),
        .text = span_str("RuntimeError: bad <shard>"),
        .place = span_str("File \"/x/train.py\", line 41, in load")
    };
    struct record_entry e = failed;
    add(j, e);
    e.kind = RECORD_RESTART;
    e.count = 1;
    e.total = 3;
    add(j, e);
    add(j, (struct record_entry){ .kind = RECORD_ENDED,
                                  .cause = CAUSE_EXCEPTION,
                                  .at_us = T0 + 60000000 });
    add_round(j, 1, (uint32_t[]){ 1, 2, 3 }, 3, T0 + 70000000);
    add(j, (struct record_entry){ .kind = RECORD_LOST,
                                  .cause = CAUSE_NODE_LOST,
                                  .at_us = T0 + 3000000000,
                                  .round = 1,
                                  .node = 3,
                                  .host = span_str("node3"),
                                  .text = span_str("no sign of life for 5.0 s") });
    j->answers[0] =
        (struct job_answer){ .node = 2, .at_us = j->in.now_us, .status = j->own };
    j->answers[0].status.first_rank = 8;
    j->in.answer_count = 1;
}

static void job_fini(struct job *j)
{
    record_fini(&j->record);
}

static const struct job_node *node_of(const struct job_status *s, uint32_t number)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->nodes[i].number == number)
            return &s->nodes[i];
    fail_msg("no node %u", number);
    return NULL;
}

/* ---- tests ---- */

static void puts_it_together(void **state)
{
    struct job_status s;
    struct job j;

    (void)state;
    job_lives(&j);
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.state, JOB_RUNNING);
    assert_int_equal(s.round, 1);
    assert_int_equal(s.ranks, 24);
    assert_int_equal(s.count, 3);
    assert_true(node_of(&s, 1)->self && node_of(&s, 1)->workers == j.own.workers);
    assert_int_equal(node_of(&s, 2)->state, NODE_RUNNING);
    assert_int_equal(node_of(&s, 2)->first_rank, 8);
    assert_int_equal(node_of(&s, 3)->state, NODE_LOST);
    assert_int_equal(job_worker_state(node_of(&s, 3), 0), WORKER_LOST);
    job_status_fini(&s);

    add(&j, (struct record_entry){ .kind = RECORD_VERDICT,
                                   .cause = CAUSE_SUCCEEDED,
                                   .at_us = T0 + 3100000000,
                                   .round = 1 });
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.state, JOB_SUCCEEDED);
    assert_int_equal(node_of(&s, 2)->state, NODE_ENDED);
    job_status_fini(&s);
    job_fini(&j);
}

/* It was a member once: its ranks are another's now. */
static void a_spare_has_no_ranks(void **state)
{
    struct job_status s;
    struct job j;

    (void)state;
    job_init(&j);
    add_nodes(&j, 1, 3, T0);
    add_round(&j, 0, (const uint32_t[]){ 1, 2 }, 2, T0 + 1000000);
    add_round(&j, 1, (const uint32_t[]){ 1, 3 }, 2, T0 + 2000000);
    j.answers[0] = (struct job_answer){ 2, j.own, T0 + 3000000 };
    j.answers[0].status.state = NODE_SPARE;
    j.answers[0].status.first_rank = 8;
    j.in.answer_count = 1;
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.nodes_in, 2);
    assert_int_equal(node_of(&s, 2)->state, NODE_SPARE);
    assert_int_equal(node_of(&s, 2)->first_rank, -1);
    assert_int_equal(node_of(&s, 3)->first_rank, 8);
    assert_int_equal(s.torch_nodes, 0);
    job_status_fini(&s);
    job_fini(&j);
}

static json_t *json_of(struct job *j, uint32_t node, bool history)
{
    struct job_status s;
    json_error_t err;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    assert_int_equal(job_status_build(&s, &j->in), 0);
    job_status_json(&b, &s, node, history);
    assert_int_equal(buf_error(&b), 0);
    assert_null(memchr(buf_data(&b), '\n', buf_len(&b)));
    json_t *v = json_loadb((const char *)buf_data(&b), buf_len(&b),
                           JSON_REJECT_DUPLICATES, &err);
    if (!v)
        fail_msg("%s: %.*s", err.text, (int)buf_len(&b), buf_data(&b));
    job_status_fini(&s);
    buf_fini(&b);
    return v;
}

/* As `muster status` prints it: after a way through an agent's socket. */
static void text_of(struct buf *out, struct job *j, const struct status_style *style)
{
    struct job_known known;
    struct job_status s;
    struct buf bytes;

    buf_init(&bytes, SIZE_MAX);
    job_input_encode(&bytes, &j->in);
    assert_int_equal(buf_error(&bytes), 0);
    assert_int_equal(job_input_decode(buf_span(&bytes), &known, NULL), 0);
    buf_fini(&bytes);
    assert_int_equal(job_status_build(&s, &known.in), 0);
    status_text(out, &s, style);
    job_status_fini(&s);
    job_known_fini(&known);
}

/* On etcd a spare has not told of itself: the shared state lists it. */
static void spares_of_the_shared_state_are_told(void **state)
{
    const struct status_style plain = { 0 };
    struct job j;
    struct buf b;

    (void)state;
    job_init(&j);
    add_nodes(&j, 1, 2, T0);
    add_round(&j, 0, (const uint32_t[]){ 1 }, 1, T0 + 1000000);
    j.answers[0] = (struct job_answer){ 2, j.own, T0 + 3000000 };
    j.answers[0].status.state = NODE_SPARE;
    j.in.answer_count = 1;
    j.in.spares = "node2, node8, node9"; /* The first is among the nodes. */
    json_t *v = json_of(&j, 0, false);
    const json_t *spares = json_object_get(json_object_get(v, "job"), "spares");
    assert_int_equal(json_array_size(spares), 2);
    assert_string_equal(json_string_value(json_array_get(spares, 0)), "node8");
    buf_init(&b, SIZE_MAX);
    text_of(&b, &j, &plain);
    assert_int_equal(buf_u8(&b, 0), 0);
    assert_non_null(
        strstr((const char *)buf_data(&b), "  waiting as spares: node8, node9\n"));
    buf_fini(&b);
    json_decref(v);
    job_fini(&j);
}

static void one_node_without_a_record_is_a_job_too(void **state)
{
    struct job_status s;
    struct job j;

    (void)state;
    job_init(&j);
    j.in.record = NULL;
    j.in.self = 0;
    j.own.state = NODE_JOINING;
    j.own.first_rank = j.own.round = -1;
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.state, JOB_JOINING);
    assert_int_equal(s.count, 1);
    job_status_fini(&s);
    j.in.own = NULL; /* a store */
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.state, JOB_SERVING);
    assert_int_equal(s.count, 0);
    job_status_fini(&s);
    job_fini(&j);
}

static void counts_nodes_of_torchrun(void **state)
{
    struct job_status s;
    struct job j;
    struct buf b;

    (void)state;
    job_init(&j);
    add_nodes(&j, 1, 1, T0);
    buf_init(&b, SIZE_MAX);
    const struct record_ranks r = { 1, 0, 8 };
    assert_int_equal(record_ranks_print(&b, &r), 0);
    add(&j, (struct record_entry){ .kind = RECORD_ROUND,
                                   .at_us = T0,
                                   .count = 3,
                                   .total = 24,
                                   .body = buf_span(&b) });
    buf_fini(&b);
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.torch_nodes, 2);
    job_status_fini(&s);
    job_fini(&j);
}

static void needs_memory_or_changes_nothing(void **state)
{
    struct job j;

    (void)state;
    job_lives(&j);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct job_status s;
        struct buf b;
        const int rc = job_status_build(&s, &j.in);

        assert_int_equal(rc, failing_rc(&f));
        if (rc != 0)
            continue;
        buf_init(&b, SIZE_MAX);
        job_status_json(&b, &s, 0, true);
        job_status_metrics(&b, &s, true);
        job_status_trace(&b, &s);
        job_status_table(&b, &s);
        assert_true(buf_error(&b) == 0 || buf_error(&b) == MUSTER_ENOMEM);
        buf_fini(&b);
        job_status_fini(&s);
    }
    job_fini(&j);
}

static void prints_json(void **state)
{
    struct job j;

    (void)state;
    job_lives(&j);
    json_t *v = json_of(&j, 0, true);
    const json_t *nodes = json_object_get(v, "nodes");
    assert_string_equal(json_string_value(json_object_get(v, "schema")),
                        "muster-status/1");
    assert_int_equal(json_array_size(nodes), 3);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(v, "job"), "restarts")), 1);
    assert_int_equal(
        json_array_size(json_object_get(json_array_get(nodes, 1), "workers")), 8);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(nodes, 2), "why")),
        "no sign of life for 5.0 s");
    assert_int_equal(json_array_size(json_object_get(v, "history")), 6);
    json_decref(v);
    v = json_of(&j, 2, false);
    assert_int_equal(json_array_size(json_object_get(v, "nodes")), 1);
    assert_null(json_object_get(v, "history"));
    json_decref(v);
    job_fini(&j);
}

static bool has_line(const struct buf *b, const char *line)
{
    const size_t n = strlen(line);
    const struct span s = buf_span(b);

    for (size_t i = 0; i + n <= s.n; i++)
        if (memcmp(s.p + i, line, n) == 0 && (i == 0 || s.p[i - 1] == '\n') &&
            (i + n == s.n || s.p[i + n] == '\n'))
            return true;
    return false;
}

static void prints_metrics(void **state)
{
    struct job_status s;
    struct job j;
    struct buf b;

    (void)state;
    job_lives(&j);
    j.in.run_id = "a\"b\\c\nd";
    assert_int_equal(job_status_build(&s, &j.in), 0);
    buf_init(&b, SIZE_MAX);
    job_status_metrics(&b, &s, true);
    assert_true(
        has_line(&b, "muster_job_info{run_id=\"a\\\"b\\\\c\\nd\",backend=\"c10d\"} 1"));
    assert_true(has_line(&b, "muster_job_state{muster_job_state=\"running\"} 1"));
    assert_true(has_line(&b, "muster_job_nodes{state=\"lost\"} 1"));
    assert_true(has_line(&b, "muster_job_restarts_total 1"));
    assert_true(has_line(&b, "# TYPE muster_job_restarts counter"));
    assert_true(has_line(&b, "muster_node_up{node=\"3\",name=\"node3\"} 0"));
    assert_true(has_line(&b, "muster_node_cpu_ratio{node=\"2\",name=\"node2\"} 7.920"));
    assert_true(has_line(&b, "muster_worker_up{local_rank=\"7\",rank=\"7\"} 1"));
    assert_true(has_line(&b, "# EOF"));
    buf_clear(&b);
    job_status_metrics(&b, &s, false);
    assert_true(has_line(&b, "# TYPE muster_job_restarts_total counter"));
    assert_true(has_line(&b, "# TYPE muster_job_state gauge"));
    assert_false(has_line(&b, "# EOF"));
    buf_fini(&b);
    job_status_fini(&s);
    job_fini(&j);
}

static void prints_a_trace(void **state)
{
    struct job_status s;
    struct job j;
    struct buf b;
    size_t slices = 0, marks = 0, i;
    json_t *e;

    (void)state;
    job_lives(&j);
    assert_int_equal(job_status_build(&s, &j.in), 0);
    buf_init(&b, SIZE_MAX);
    job_status_trace(&b, &s);
    json_t *v = json_loadb((const char *)buf_data(&b), buf_len(&b), 0, NULL);
    assert_non_null(v);
    json_array_foreach(json_object_get(v, "traceEvents"), i, e)
    {
        const char *ph = json_string_value(json_object_get(e, "ph"));

        assert_true(json_number_value(json_object_get(e, "ts")) >= 0);
        if (*ph == 'X')
            assert_true(json_number_value(json_object_get(e, "dur")) >= 0);
        slices += *ph == 'X';
        marks += *ph == 'i';
    }
    assert_int_equal(slices,
                     2 * 4 + 2); /* two rounds of three nodes and the job; waits */
    assert_int_equal(marks, 3);  /* failed, restart, lost */
    json_decref(v);
    buf_fini(&b);
    job_status_fini(&s);
    job_fini(&j);
}

static bool contains(const struct buf *b, const char *text)
{
    return memmem(buf_data(b), buf_len(b), text, strlen(text)) != NULL;
}

static void hostile_names_stay_names(void **state)
{
    static const char evil[] = "<script>alert(1)</script>\"'\x1b[2J\xe2\x80\xae\xff";
    const struct status_style style = { 80, false, true };
    struct record_node n = { .number = 9,
                             .host = { (const uint8_t *)evil, sizeof evil - 1 },
                             .addr = { (const uint8_t *)evil, sizeof evil - 1 } };
    struct job_status s;
    struct job j;
    struct buf b;

    (void)state;
    job_lives(&j);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(record_nodes_print(&b, &n), 0);
    add(&j, (struct record_entry){
                .kind = RECORD_NODES, .at_us = T0, .body = buf_span(&b) });
    buf_clear(&b);
    j.in.run_id = evil;
    assert_int_equal(job_status_build(&s, &j.in), 0);
    assert_int_equal(s.count, 4);
    job_status_table(&b, &s);
    assert_false(contains(&b, "<script"));
    assert_false(contains(&b, "\x1b"));
    buf_clear(&b);
    job_status_json(&b, &s, 0, true);
    assert_false(contains(&b, "<"));
    assert_false(contains(&b, "\x1b"));
    job_status_fini(&s);
    buf_clear(&b);
    text_of(&b, &j, &style);
    assert_true(contains(&b, "<script>alert(1)</script>"));
    assert_false(contains(&b, "\x1b"));
    assert_false(contains(&b, "\xe2\x80\xae"));
    buf_fini(&b);
    job_fini(&j);
}

static void prints_text(void **state)
{
    const struct status_style wide = { 120, false, false },
                              narrow = { 60, false, false };
    struct job j;
    struct buf b;

    (void)state;
    job_lives(&j);
    buf_init(&b, SIZE_MAX);
    text_of(&b, &j, &wide);
    (void)buf_u8(&b, 0);
    assert_string_equal(
        (const char *)buf_data(&b),
        "job1   running 60 min, round 1, 3 nodes, 24 ranks, 1 restart (last: 59 min "
        "ago, "
        "rank 9 on node2: RuntimeError: bad <shard> (train.py:41))\n"
        "  node   ranks  state    workers  CPU    memory\n"
        "  node1  0-7    running  8        792 %  8.0 GiB\n"
        "  node2  8-15   running  8        792 %  8.0 GiB\n"
        "  node3  16-23  lost                              since 10 min, no sign of "
        "life "
        "for 5.0 s\n"
        "  round 0 ended 59 min ago: rank 9 on node2: RuntimeError: bad <shard> "
        "(train.py:41)\n");
    buf_clear(&b);
    text_of(&b, &j, &narrow);
    assert_true(contains(&b, "lost\n") || contains(&b, "\n      since 10 min"));
    buf_fini(&b);
    job_fini(&j);
}

/* The status that a command builds from the bytes prints as the agent's own. */
static void a_job_travels(void **state)
{
    struct job_known known;
    struct job_status s;
    struct buf bytes, here, there;
    struct job j;

    (void)state;
    job_lives(&j);
    j.record.restarts = 2000; /* more than the entries that are kept */
    j.in.alone = "no other node can be asked";
    buf_init(&bytes, SIZE_MAX);
    buf_init(&here, SIZE_MAX);
    buf_init(&there, SIZE_MAX);
    assert_int_equal(job_status_build(&s, &j.in), 0);
    job_status_json(&here, &s, 0, true);
    job_status_fini(&s);
    job_input_encode(&bytes, &j.in);
    assert_int_equal(job_input_decode(buf_span(&bytes), &known, NULL), 0);
    assert_int_equal(job_status_build(&s, &known.in), 0);
    job_status_json(&there, &s, 0, true);
    assert_true(span_eq(buf_span(&here), buf_span(&there)));
    job_status_fini(&s);
    job_known_fini(&known);
    for (size_t cut = 0; cut < buf_len(&bytes); cut++)
        assert_int_equal(job_input_decode(span_of(buf_data(&bytes), cut), &known, NULL),
                         MUSTER_EPROTO);
    for (struct failing f = failing_first(); failing_next(&f);) {
        const int rc = job_input_decode(buf_span(&bytes), &known, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            job_known_fini(&known);
    }
    buf_fini(&there);
    buf_fini(&here);
    buf_fini(&bytes);
    job_fini(&j);
}

/* A store without a job has counters, and no node. */
static void a_store_travels(void **state)
{
    static const struct store_status counts = { true, 1, 2, 3, 4, 5, 6, 7 };
    const struct job_input in = {
        .backend = "store", .endpoint = "h:1", .now_us = T0, .store = &counts
    };
    struct job_known known;
    struct job_status s;
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    job_input_encode(&b, &in);
    assert_int_equal(job_input_decode(buf_span(&b), &known, NULL), 0);
    assert_int_equal(job_status_build(&s, &known.in), 0);
    assert_true(job_is_store(&s));
    assert_int_equal(s.store.connections, 5);
    job_status_fini(&s);
    job_known_fini(&known);
    buf_fini(&b);
}

/* The first look is told the average since the beginning, later ones what came since
 * the one before. */
static void rate_of_a_store(void **state)
{
    struct store_rate r = { .at_ms = 1000 };

    (void)state;
    assert_int_equal(store_rate(&r, 600, 3000), 300);
    assert_int_equal(store_rate(&r, 700, 3100), 300); /* too soon to tell */
    assert_int_equal(store_rate(&r, 1600, 4000), 1000);
    assert_int_equal(store_rate(&r, 10, 5000), 0); /* another store */
    assert_int_equal(store_rate(&r, 20, 4000), 0); /* a clock that goes back */
}

static void facts_travel(void **state)
{
    struct worker_status w[] = {
        { WORKER_FAILED, 77, -9, 1ull << 40, 123456, 99 },
        { WORKER_RUNNING, 78, 0, 5, 6, 7 },
    };
    struct gpu_status g[] = { { span_str("H100"), 93, 61, 1ull << 33, 1ull << 36 },
                              { span_str("H100"), 95, 62, 1ull << 34, 1ull << 36 } };
    const struct node_status n = { .state = NODE_STOPPING,
                                   .round = -1,
                                   .group_rank = 3,
                                   .first_rank = 24,
                                   .attempt = 2,
                                   .pid = 12,
                                   .memory = 13,
                                   .version = span_str("9.9"),
                                   .wait = span_str("3 of 4"),
                                   .store = { true, 1, 2, 3, 4, 5, 6, 7 },
                                   .workers = w,
                                   .worker_count = 2,
                                   .gpus = g,
                                   .gpu_count = 2 };
    struct node_status back;
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    node_status_encode(&b, &n);
    assert_int_equal(node_status_decode(buf_span(&b), &back, NULL), 0);
    assert_int_equal(back.state, n.state);
    assert_int_equal(back.round, -1);
    assert_int_equal(back.first_rank, 24);
    assert_true(span_eq(back.wait, n.wait) && span_eq(back.version, n.version));
    assert_true(back.store.present && back.store.requests == 1);
    assert_true(back.store.bytes_out == 4 && back.store.rate == 7);
    assert_int_equal(back.worker_count, 2);
    assert_int_equal(back.workers[0].code, -9);
    assert_int_equal(back.workers[0].memory, 1ull << 40);
    assert_int_equal(back.gpu_count, 2);
    assert_int_equal(back.gpus[1].busy, 95);
    assert_int_equal(back.gpus[1].memory, 1ull << 34);
    assert_true(span_eq(back.gpus[0].name, span_str("H100")));
    node_status_fini(&back);
    for (size_t cut = 0; cut < buf_len(&b); cut++)
        assert_int_equal(node_status_decode(span_of(buf_data(&b), cut), &back, NULL),
                         MUSTER_EPROTO);
    for (struct failing f = failing_first(); failing_next(&f);) {
        const int rc = node_status_decode(buf_span(&b), &back, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            node_status_fini(&back);
    }
    buf_fini(&b);
}

/* Ten thousand nodes: each answer takes 50 ms of CPU time at the most (issued with
 * room: cores differ, so the best of three counts). */
static double ms_since(const struct timespec *from)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)(now.tv_sec - from->tv_sec) * 1e3 +
           (double)(now.tv_nsec - from->tv_nsec) / 1e6;
}

static void ten_thousand_nodes_take_no_time(void **state)
{
    enum { NODES = 10000, PART = 250 };
    struct job_answer *answers = mem_calloc(NODES, sizeof *answers);
    double best_json = 1e9, best_metrics = 1e9;
    struct job j;

    (void)state;
    job_init(&j);
    for (uint32_t i = 0; i < NODES; i += PART)
        add_nodes(&j, i + 1, PART, T0);
    for (uint32_t i = 0; i < NODES; i += PART) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        for (uint32_t k = i; k < i + PART; k++) {
            const struct record_ranks r = { k + 1, k * 8, 8 };

            assert_int_equal(record_ranks_print(&b, &r), 0);
        }
        add(&j, (struct record_entry){ .kind = RECORD_ROUND,
                                       .at_us = T0 + 1000000,
                                       .round = 0,
                                       .count = NODES,
                                       .total = NODES * 8,
                                       .body = buf_span(&b) });
        buf_fini(&b);
    }
    for (uint32_t i = 0; i < NODES; i++)
        answers[i] = (struct job_answer){ i + 1, j.own, j.in.now_us };
    j.in.answers = answers;
    j.in.answer_count = NODES;
    for (int turn = 0; turn < 3; turn++) {
        struct timespec from;
        struct job_status s;
        struct buf b;

        buf_init(&b, SIZE_MAX);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        assert_int_equal(job_status_build(&s, &j.in), 0);
        job_status_metrics(&b, &s, true);
        best_metrics = MIN_OF(best_metrics, ms_since(&from));
        buf_clear(&b);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        job_status_json(&b, &s, 0, true);
        best_json = MIN_OF(best_json, ms_since(&from));
        assert_int_equal(s.count, NODES);
        assert_int_equal(s.ranks, NODES * 8);
        job_status_fini(&s);
        if (turn == 2)
            print_message("10,000 nodes: build and metrics %.1f ms, JSON %.1f ms (%zu "
                          "bytes)\n",
                          best_metrics, best_json, buf_len(&b));
        buf_fini(&b);
    }
    mem_free(answers);
    job_fini(&j);
    if (!getenv("MUSTER_SLOW")) /* set under sanitizers and emulators */
        assert_true(best_metrics < 500 && best_json < 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_it_together),
        cmocka_unit_test(a_spare_has_no_ranks),
        cmocka_unit_test(spares_of_the_shared_state_are_told),
        cmocka_unit_test(one_node_without_a_record_is_a_job_too),
        cmocka_unit_test(counts_nodes_of_torchrun),
        cmocka_unit_test(needs_memory_or_changes_nothing),
        cmocka_unit_test(prints_json),
        cmocka_unit_test(prints_metrics),
        cmocka_unit_test(prints_a_trace),
        cmocka_unit_test(hostile_names_stay_names),
        cmocka_unit_test(prints_text),
        cmocka_unit_test(a_job_travels),
        cmocka_unit_test(a_store_travels),
        cmocka_unit_test(rate_of_a_store),
        cmocka_unit_test(facts_travel),
        cmocka_unit_test(ten_thousand_nodes_take_no_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
