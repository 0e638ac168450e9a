/* test_recorder_cost.c - a thousand nodes in one job: how many messages the run
 * sends for a failure and its verdict. They are the same for each node, however many
 * nodes there are. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "job/core/run.h"

struct crowd {
    struct run *run;
    struct run_fx fx;
    struct run_now now;
    uint32_t nodes;
    size_t messages; /* that the run has sent */
    struct buf out;
};

/* Encodes what is to be sent, as the driver would, once for each receiver. */
static void deliver(struct crowd *c)
{
    const struct record *r = recorder_record(run_recorder(c->run));
    uint64_t number;

    for (size_t i = 0; i < c->fx.count; i++) {
        const struct run_effect *e = &c->fx.items[i];
        struct run_msg m = e->msg;
        size_t copies = 1;

        if (e->kind == RUN_DROP)
            continue;
        if (e->kind != RUN_SEND) {
            for (size_t k = r->count; k-- > 0;) {
                m = (struct run_msg){ .kind = MSG_ENTRY,
                                      .bytes = record_bytes(r, k, &number) };
                if (number == e->number)
                    break;
            }
            copies = e->kind == RUN_ENTRY ? c->nodes : 1;
        }
        for (size_t k = 0; k < copies; k++) {
            buf_clear(&c->out);
            assert_int_equal(msg_encode(&c->out, &m), 0);
            c->messages++;
        }
    }
}

static void say(struct crowd *c, uint32_t peer, const struct run_msg *m)
{
    const struct run_event ev = {
        .kind = RUN_MSG, .now = c->now, .peer = peer, .msg = m
    };

    assert_int_equal(run_step(c->run, &ev, &c->fx, NULL), 0);
    deliver(c);
}

static void begin(struct crowd *c, uint32_t nodes)
{
    *c = (struct crowd){ .now = { 5000000, 1700000000000000 }, .nodes = nodes };
    buf_init(&c->out, SIZE_MAX);
    c->run = run_new(span_str("job"), NULL);
    assert_non_null(c->run);
    for (uint32_t i = 1; i <= nodes; i++)
        say(c, i,
            &(struct run_msg){ .kind = MSG_HELLO,
                               .flags = MSG_RECORD,
                               .nonce = i,
                               .host = span_str("n"),
                               .nproc = 8 });
    for (uint32_t i = 1; i <= nodes; i++)
        say(c, i,
            &(struct run_msg){ .kind = MSG_RANKS,
                               .rank = 8 * (int64_t)(i - 1),
                               .count = 8,
                               .total = nodes });
}

/* From the first failure to the verdict: every node reports, and every other one has a
 * worker that failed because of the first. */
static size_t judge(struct crowd *c, double *ms)
{
    const clock_t before = clock();
    struct record_entry v;
    struct buf b;

    c->messages = 0;
    buf_init(&b, SIZE_MAX);
    for (uint32_t i = 1; i <= c->nodes; i++) {
        const struct record_entry e = { .kind = RECORD_FAILED,
                                        .cause = CAUSE_EXCEPTION,
                                        .rank = 8 * (int64_t)(i - 1),
                                        .pid = 100 + i,
                                        .code = 1,
                                        .total = -1,
                                        .text = span_str(i == 1 ? "E: first"
                                                                : "connection reset") };
        buf_clear(&b);
        assert_int_equal(record_entry_encode(&b, &e), 0);
        if (i % 2)
            say(c, i,
                &(struct run_msg){
                    .kind = MSG_PUBLISH, .seq = 1, .bytes = buf_span(&b) });
    }
    for (uint32_t i = 1; i <= c->nodes; i++)
        say(c, i, &(struct run_msg){ .kind = MSG_REPORTED, .count = 1, .total = 7 });
    buf_fini(&b);
    *ms = (double)(clock() - before) * 1e3 / CLOCKS_PER_SEC;
    assert_true(
        record_find(recorder_record(run_recorder(c->run)), RECORD_VERDICT, -1, &v));
    assert_int_equal(v.rank, 0);
    return c->messages;
}

static void end(struct crowd *c)
{
    run_free(c->run);
    run_fx_fini(&c->fx);
    buf_fini(&c->out);
}

static void test_messages_of_a_verdict(void **state)
{
    static const uint32_t sizes[] = { 100, 1000 };
    double each[2], ms;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct crowd c;

        begin(&c, sizes[i]);
        each[i] = (double)judge(&c, &ms) / sizes[i];
        printf("%u nodes: a verdict took %.2f ms of CPU and %.1f messages a node\n",
               sizes[i], ms, each[i]);
        end(&c);
    }
    assert_true(each[1] < 20);
    assert_true(each[1] < each[0] + 2); /* It does not grow with the job. */
}

static size_t count_sent(const struct crowd *c, enum msg_kind kind, uint8_t *to)
{
    size_t n = 0;

    for (size_t i = 0; i < c->fx.count; i++) {
        const struct run_effect *e = &c->fx.items[i];

        if (e->kind != RUN_SEND || e->msg.kind != kind)
            continue;
        to[e->peer]++;
        n++;
        assert_true(kind != MSG_QUESTION || (span_eq(e->msg.name, span_str("lines")) &&
                                             span_eq(e->msg.bytes, span_str("17"))));
    }
    return n;
}

/* Every node gets a question once, but only a few in each step, so that the store has
 * time for its other clients. */
static void test_a_step_asks_a_few(void **state)
{
    uint8_t to[1001] = { 0 };
    struct crowd c;

    (void)state;
    begin(&c, 1000);
    const uint64_t by = c.now.mono_us + 100000;
    say(&c, 1,
        &(struct run_msg){ .kind = MSG_ASK,
                           .seq = 1,
                           .value = 60000,
                           .name = span_str("lines"),
                           .bytes = span_str("17") });
    size_t n = count_sent(&c, MSG_QUESTION, to);

    assert_int_equal(n, RECORDER_SLICE);
    while (n < 1000) {
        c.now.mono_us = run_deadline(c.run);
        assert_true(c.now.mono_us < by);
        const struct run_event ev = { .kind = RUN_TIMER, .now = c.now };

        assert_int_equal(run_step(c.run, &ev, &c.fx, NULL), 0);
        const size_t sent = count_sent(&c, MSG_QUESTION, to);

        assert_true(sent <= RECORDER_SLICE);
        n += sent;
    }
    for (size_t i = 1; i <= 1000; i++)
        assert_int_equal(to[i], 1);
    end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_of_a_verdict),
        cmocka_unit_test(test_a_step_asks_a_few),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
