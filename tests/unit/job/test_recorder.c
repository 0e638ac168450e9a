/* test_recorder.c - the record of a run, message by message. */
#include "testing.h"

#include <stdio.h>

#include "job/core/judge.h"
#include "job/core/run.h"
#include "policy/core/policy.h"

struct play {
    struct run *run;
    struct run_fx fx;
    struct run_now now;
    uint64_t seq[16];
    struct record_entry last; /* the newest entry */
};

static const struct record *record_of(const struct play *p)
{
    return recorder_record(run_recorder(p->run));
}

static size_t peers_of(const struct play *p)
{
    size_t n = 0;
    uint32_t peer;

    for (size_t i = 0; recorder_next_peer(run_recorder(p->run), &i, &peer);)
        n++;
    return n;
}

static void feed(struct play *p, struct run_event ev)
{
    ev.now = p->now;
    assert_int_equal(run_step(p->run, &ev, &p->fx, NULL), 0);
    if (run_recorder(p->run) && record_of(p)->count)
        p->last = record_at(record_of(p), record_of(p)->count - 1);
}

static void say(struct play *p, uint32_t peer, struct run_msg m)
{
    feed(p, (struct run_event){ .kind = RUN_MSG, .peer = peer, .msg = &m });
}

static void wait_us(struct play *p, uint64_t us)
{
    p->now.mono_us += us;
    p->now.wall_us += (int64_t)us;
    feed(p, (struct run_event){ .kind = RUN_TIMER });
}

/* The wall clock of a peer is as many hours ahead as its number. */
static int64_t wall_of(const struct play *p, uint32_t peer)
{
    return p->now.wall_us + peer * 3600000000ll;
}

static const char *policy = ""; /* of the nodes that attach */

static void attach(struct play *p, uint32_t peer, int64_t budget)
{
    static const char *const hosts[] = { "n0", "n1", "n2", "n3", "n4", "n5" };

    say(p, peer,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_RECORD,
                          .nonce = 100 + peer,
                          .host = span_str(hosts[peer]),
                          .pid = 1000 + peer,
                          .nproc = 2,
                          .policy = span_str(policy),
                          .total = budget });
    for (int i = 0; i < 4; i++) { /* each PING takes 100 us there and 100 back */
        const uint64_t sent = p->now.mono_us;

        p->now.mono_us += 200;
        p->now.wall_us += 200;
        say(p, peer,
            (struct run_msg){ .kind = MSG_BEAT,
                              .seq = sent,
                              .mono_us = (int64_t)sent + 100 + peer * 7777,
                              .wall_us = wall_of(p, peer) - 100 });
    }
}

static void ranks(struct play *p, uint32_t peer, int64_t round, int64_t nodes,
                  uint32_t flags)
{
    say(p, peer,
        (struct run_msg){ .kind = MSG_RANKS,
                          .round = round,
                          .rank = 2 * (int64_t)(peer - 1),
                          .count = 2,
                          .total = nodes,
                          .flags = flags,
                          .seat_round = -1 });
}

static void publish(struct play *p, uint32_t peer, struct record_entry e)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    assert_int_equal(record_entry_encode(&b, &e), 0);
    say(p, peer,
        (struct run_msg){ .kind = MSG_PUBLISH,
                          .seq = ++p->seq[peer],
                          .mono_us = (int64_t)p->now.mono_us + peer * 7777,
                          .wall_us = wall_of(p, peer),
                          .bytes = buf_span(&b) });
    buf_fini(&b);
}

static struct record_entry failure(const struct play *p, uint32_t peer, int64_t round,
                                   int64_t rank, int64_t age_us, const char *text)
{
    return (struct record_entry){ .kind = RECORD_FAILED,
                                  .cause = CAUSE_EXCEPTION,
                                  .round = round,
                                  .rank = rank,
                                  .pid = 500 + rank,
                                  .code = 1,
                                  .total = -1,
                                  .at_us = wall_of(p, peer) - age_us,
                                  .text = span_str(text) };
}

static void reported(struct play *p, uint32_t peer, int64_t round, int64_t failed,
                     int64_t stopped, const char *codes)
{
    say(p, peer,
        (struct run_msg){ .kind = MSG_REPORTED,
                          .round = round,
                          .count = failed,
                          .total = stopped,
                          .bytes = span_str(codes) });
}

static void begin(struct play *p, uint32_t nodes, int64_t budget)
{
    *p = (struct play){ .now = { 5000000, 1700000000000000 } };
    p->run = run_new(span_str("job"), NULL);
    assert_non_null(p->run);
    for (uint32_t i = 1; i <= nodes; i++)
        attach(p, i, budget);
    for (uint32_t i = 1; i <= nodes; i++)
        ranks(p, i, 0, nodes, 0);
}

static void end(struct play *p)
{
    run_free(p->run);
    run_fx_fini(&p->fx);
}

static void assert_span(struct span got, const char *want)
{
    char text[512];

    snprintf(text, sizeof text, "%.*s", (int)got.n, (const char *)got.p);
    assert_string_equal(text, want);
}

static bool has(const struct play *p, enum record_kind kind)
{
    struct record_entry e;

    return record_find(record_of(p), kind, -1, &e);
}

static void test_round(void **state)
{
    struct play p;
    struct record_entry e;
    struct record_node n;

    (void)state;
    begin(&p, 3, 0);
    assert_true(record_find(record_of(&p), RECORD_ROUND, 0, &e));
    assert_int_equal(e.count, 3);
    assert_int_equal(e.total, 6);
    assert_true(record_host_of(record_of(&p), 2, &n));
    assert_true(span_eq(n.host, span_str("n2")));
    assert_true(n.offset_us > 2 * 3600000000ll - 300 &&
                n.offset_us < 2 * 3600000000ll + 300);
    end(&p);
}

/* The node that failed first reports last, and its clock is hours off. */
static void come(struct play *p, uint32_t peer, const char *host, const char *addr)
{
    say(p, peer,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_RECORD,
                          .nonce = 100 + peer,
                          .host = span_str(host),
                          .where = span_str(addr),
                          .nproc = 2 });
    say(p, peer,
        (struct run_msg){ .kind = MSG_RANKS,
                          .round = -1,
                          .count = -1,
                          .seat_round = 0,
                          .seat = peer - 1 });
}

/* Nodes whose host names are equal are told by their addresses, and by their ranks in
 * the group if those are equal, too. */
static void test_equal_host_names(void **state)
{
    static const char *const names[] = { "vm[10.0.0.1]", "vm[node1]", "vm[node2]", "n4",
                                         "vm[10.0.0.5]" };
    struct record_node n;
    struct play p;

    (void)state;
    begin(&p, 0, 3);
    come(&p, 1, "vm", "10.0.0.1");
    come(&p, 2, "vm", "10.0.0.2");
    come(&p, 3, "vm", "10.0.0.2");
    come(&p, 4, "n4", "10.0.0.4");
    for (uint32_t i = 1; i <= 4; i++)
        ranks(&p, i, 0, 4, 0);
    assert_int_equal(p.last.kind, RECORD_ROUND);
    come(&p, 5, "vm", "10.0.0.5"); /* Whoever comes later changes no name. */
    publish(&p, 5, (struct record_entry){ .kind = RECORD_NOTE, .text = span_str("x") });
    for (uint32_t i = 1; i <= 5; i++) {
        assert_true(record_host_of(record_of(&p), i, &n));
        assert_true(span_eq(n.host, span_str(names[i - 1])));
    }
    publish(&p, 3, (struct record_entry){ .kind = RECORD_NOTE, .text = span_str("x") });
    assert_true(span_eq(p.last.host, span_str("vm[node2]")));
    end(&p);
}

static void test_first_by_time(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 3, 0);
    publish(&p, 1, failure(&p, 1, 0, 0, 10000, "ValueError: late"));
    assert_int_equal(p.last.kind, RECORD_ENDING);
    assert_int_equal(p.last.code, 1); /* stop at once: there are no restarts */
    reported(&p, 1, 0, 1, 1, "0 1 1\n1 1 -15\n");
    reported(&p, 2, 0, 0, 2, "2 2 -15\n");
    publish(&p, 3, failure(&p, 3, 0, 5, 40000, "RuntimeError: bad data shard 17"));
    assert_false(has(&p, RECORD_VERDICT));
    reported(&p, 3, 0, 1, 1, "4 1 -15\n5 1 1\n");
    assert_int_equal(p.last.kind, RECORD_VERDICT);
    assert_int_equal(p.last.rank, 5);
    assert_true(span_eq(p.last.host, span_str("n3")));
    assert_int_equal(p.last.code, 1);
    assert_int_equal(p.last.count, 0);

    struct record_entry e;
    assert_true(record_find(record_of(&p), RECORD_ENDED, 0, &e));
    assert_true(span_eq(e.body, span_str("0 1 1\n1 4 -15\n5 1 1\n")));
    assert_int_equal(e.total, 6);
    end(&p);
}

/* A failure that follows from another one may be reported before it. */
static void test_echo(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    publish(
        &p, 1,
        failure(&p, 1, 0, 0, 10000,
                "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]"));
    assert_int_equal(p.last.kind, RECORD_ENDING);
    assert_int_equal(p.last.code, 2); /* stop; whether this counts is not known yet */
    reported(&p, 1, 0, 2, 0, "0 2 1\n");
    struct record_entry killed = failure(&p, 2, 0, 2, 3000, "");
    killed.cause = CAUSE_SIGNAL;
    killed.code = -9;
    publish(&p, 2, killed);
    reported(&p, 2, 0, 1, 1, "2 1 -9\n3 1 -15\n");
    assert_int_equal(p.last.kind, RECORD_VERDICT);
    assert_int_equal(p.last.rank, 2);
    end(&p);
}

static void test_at_most_two_seconds(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    publish(&p, 1, failure(&p, 1, 0, 1, 0, "KeyError: 'x'"));
    assert_true(run_deadline(p.run) <= p.now.mono_us + RECORDER_JUDGE_US);
    wait_us(&p, RECORDER_JUDGE_US);
    assert_true(has(&p, RECORD_VERDICT));
    publish(&p, 2, failure(&p, 2, 0, 2, 0, "too late"));
    reported(&p, 2, 0, 1, 1, "2 1 1\n3 1 -15\n");
    assert_int_equal(p.last.kind, RECORD_VERDICT); /* it does not change */
    assert_int_equal(p.last.rank, 1);
    end(&p);
}

/* The job has gone on without a node that does not know it yet. What fails there
 * neither ends the new round nor counts. */
static void test_failure_of_an_old_round(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 3, 1);
    publish(&p, 1, failure(&p, 1, 0, 1, 0, "KeyError: 'x'"));
    wait_us(&p, RECORDER_JUDGE_US);
    assert_int_equal(p.last.kind, RECORD_RESTART);
    for (uint32_t i = 1; i <= 2; i++)
        ranks(&p, i, 1, 2, 0);
    wait_us(&p, RECORDER_GATHER_US);
    const uint64_t number = p.last.number;
    publish(&p, 3, failure(&p, 3, 0, 4, 0, "late"));
    reported(&p, 3, 0, 1, 1, "");
    wait_us(&p, RECORDER_JUDGE_US);
    assert_int_equal(p.last.number, number);
    assert_false(has(&p, RECORD_VERDICT));
    end(&p);
}

/* A round costs one restart, however many workers fail. The coordinator's limit
 * counts. */
static void test_budget(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 2);
    for (int64_t round = 0; round < 3; round++) {
        if (round)
            for (uint32_t i = 1; i <= 2; i++)
                ranks(&p, i, round, 2, 0);
        publish(&p, 1, failure(&p, 1, round, 0, 0, "E: a"));
        publish(&p, 2, failure(&p, 2, round, 2, 0, "E: b"));
        reported(&p, 1, round, 1, 1, "");
        reported(&p, 2, round, 1, 1, "");
        assert_int_equal(p.last.kind, round < 2 ? RECORD_RESTART : RECORD_VERDICT);
        assert_int_equal(p.last.count, MIN_OF(round + 1, 2));
        assert_int_equal(p.last.total, 2);
    }
    end(&p);
}

static const char place[] = "File \"/x/train.py\", line 41, in load";

static struct record_entry raised(const struct play *p, int64_t round, const char *text)
{
    struct record_entry e = failure(p, 1, round, 0, 0, text);

    e.place = span_str(place);
    return e;
}

static void round_fails(struct play *p, int64_t round, const char *text, bool progress)
{
    if (round)
        for (uint32_t i = 1; i <= 2; i++)
            ranks(p, i, round, 2, 0);
    publish(p, 1, raised(p, round, text));
    reported(p, 1, round, 1, 1, "");
    say(p, 2,
        (struct run_msg){ .kind = MSG_REPORTED,
                          .round = round,
                          .total = 2,
                          .flags = progress ? MSG_PROGRESS : 0 });
}

/* With a policy the run decides by cause and history, for all nodes. */
static void test_policy_by_cause(void **state)
{
    struct play p;

    (void)state;
    policy = "default\n\n1s..8s";
    begin(&p, 2, 100);
    for (int64_t round = 0; round < 5; round++) { /* the third one has made progress */
        round_fails(&p, round, round % 2 ? "ValueError: 1" : "ValueError: 2",
                    round == 2);
        assert_int_equal(p.last.kind, round < 4 ? RECORD_RESTART : RECORD_VERDICT);
        assert_int_equal(p.last.reason, round < 4 ? POLICY_BY_COUNT : POLICY_BY_REPEAT);
        assert_int_equal(p.last.left, round < 4 ? 99 - round : 96);
    }
    assert_int_equal(p.last.count, 4);
    end(&p);

    begin(&p, 2, 100);
    round_fails(&p, 0, "ModuleNotFoundError: No module named 'x'", false);
    assert_int_equal(p.last.kind, RECORD_VERDICT);
    assert_int_equal(p.last.reason, POLICY_BY_RULE);
    assert_true(span_eq(p.last.rule, span_str("ImportError:stop")));
    end(&p);
    policy = "";
}

/* A lost node is free, unless a rule says otherwise. */
static void test_policy_lost_node(void **state)
{
    static const struct {
        const char *policy;
        enum record_kind last;
        int64_t count;
    } rows[] = { { "default\n\n", RECORD_LOST, 0 },
                 { "node:stop\n\n", RECORD_VERDICT, 0 },
                 { "node:restart\n\n", RECORD_RESTART, 1 } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct play p;

        policy = rows[i].policy;
        begin(&p, 2, 3);
        feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 2 });
        wait_us(&p, SESSION_MOST_US);
        assert_true(has(&p, RECORD_LOST));
        assert_int_equal(p.last.kind, rows[i].last);
        if (rows[i].last != RECORD_LOST)
            assert_int_equal(p.last.count, rows[i].count);
        end(&p);
    }
    policy = "";
}

/* The first node decides; one that was given something else is told, once. */
static void test_policies_differ(void **state)
{
    struct play p;
    int64_t notes = 0;

    (void)state;
    policy = "default\n\n";
    begin(&p, 1, 3);
    policy = "oom:stop,default\n\n";
    attach(&p, 2, 3);
    for (int64_t round = 1; round < 3; round++)
        for (uint32_t i = 1; i <= 2; i++)
            ranks(&p, i, round, 2, 0);
    for (size_t i = 0; i < record_of(&p)->count; i++) {
        const struct record_entry e = record_at(record_of(&p), i);

        notes += e.kind == RECORD_NOTE && e.cause == CAUSE_POLICY && e.node == 2;
    }
    assert_int_equal(notes, 1);
    end(&p);
    policy = "";
}

/* A hang is a failure of the rank that the entry names, and any node may publish it.
 * Code 1 asks for the end, whatever restarts are left. */
static void test_hang(void **state)
{
    for (int64_t stop = 0; stop < 2; stop++) {
        struct play p;

        (void)state;
        begin(&p, 2, 2);
        struct record_entry e = failure(&p, 1, 0, 3, 0, "rank 3 is the likely cause");
        e.cause = CAUSE_HANG;
        e.code = stop;
        publish(&p, 1, e);
        assert_true(has(&p, RECORD_ENDING));
        reported(&p, 1, 0, 0, 2, "");
        reported(&p, 2, 0, 0, 2, "");
        assert_int_equal(p.last.kind, stop ? RECORD_VERDICT : RECORD_RESTART);
        assert_int_equal(p.last.cause, CAUSE_HANG);
        assert_int_equal(p.last.rank, 3);
        end(&p);
    }
}

static void test_lost_node(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 2 });
    publish(&p, 1, failure(&p, 1, 0, 0, 0, "Connection reset by peer"));
    reported(&p, 1, 0, 1, 1, "0 1 1\n1 1 -15\n");
    wait_us(&p, SESSION_MOST_US);
    assert_true(has(&p, RECORD_LOST));
    assert_int_equal(p.last.kind, RECORD_RESTART); /* not counted */
    assert_int_equal(p.last.cause, CAUSE_NODE_LOST);
    assert_int_equal(p.last.count, 0);
    end(&p);
}

/* No worker fails: the others stop for another round, which never comes. */
static void test_gave_up(void **state)
{
    const struct record_entry gave_up = { .kind = RECORD_VERDICT,
                                          .cause = CAUSE_RENDEZVOUS,
                                          .rank = -1,
                                          .text = span_str("no third node came") };
    struct play p;

    (void)state;
    begin(&p, 3, 0);
    wait_us(&p, 4000000);
    for (uint32_t i = 1; i <= 2; i++)
        say(&p, i, (struct run_msg){ .kind = MSG_BEAT, .seq = p.now.mono_us });
    wait_us(&p, SESSION_SILENT_US - 3900000); /* the third has not said a word since */
    assert_int_equal(p.last.kind, RECORD_LOST);
    assert_span(p.last.text,
                "n3 was lost (no sign of life for 15.1 s); ranks 4 to 5 were there");
    say(&p, 2, (struct run_msg){ .kind = MSG_BEAT });
    publish(&p, 1, gave_up);
    assert_int_equal(p.last.kind, RECORD_VERDICT);
    assert_int_equal(p.last.cause, CAUSE_NODE_LOST);
    assert_span(p.last.text,
                "n3 was lost (no sign of life for 15.1 s); ranks 4 to 5 were there");
    assert_span(p.last.body, "no third node came");
    const uint64_t number = p.last.number;
    publish(&p, 2, gave_up); /* It has seen the same. */
    assert_int_equal(p.last.number, number);
    end(&p);
}

/* The nodes give up before the coordinator does: the one that has not answered the
 * coordinator is to blame. */
static void test_gave_up_early(void **state)
{
    const struct record_entry gave_up = { .kind = RECORD_VERDICT,
                                          .cause = CAUSE_RENDEZVOUS,
                                          .text = span_str("no second node came") };
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    wait_us(&p, 5000000);
    say(&p, 1, (struct run_msg){ .kind = MSG_BEAT, .seq = p.now.mono_us });
    wait_us(&p, 2000000);
    publish(&p, 1, gave_up);
    assert_int_equal(p.last.cause, CAUSE_NODE_LOST);
    assert_span(p.last.text,
                "n2 was lost (no sign of life for 7.0 s); ranks 2 to 3 were there");
    end(&p);
}

/* A node that came too late for the others' round has not failed the job. */
static void test_gave_up_alone(void **state)
{
    const struct record_entry gave_up = { .kind = RECORD_VERDICT,
                                          .cause = CAUSE_RENDEZVOUS,
                                          .text = span_str("no room") };
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    ranks(&p, 1, 1, 1, 0);
    publish(&p, 2, gave_up);
    assert_false(has(&p, RECORD_VERDICT));
    end(&p);
}

/* A node that was told to stop has not failed, and failures of others are echoes. */
static void test_left(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    publish(&p, 2,
            (struct record_entry){ .kind = RECORD_LEFT,
                                   .cause = CAUSE_STOPPED,
                                   .text = span_str("stopped by SIGTERM from pid 7") });
    publish(&p, 1, failure(&p, 1, 0, 0, 0, "Connection reset by peer"));
    reported(&p, 1, 0, 1, 1, "0 1 1\n1 1 -15\n");
    assert_int_equal(p.last.kind, RECORD_RESTART); /* not counted */
    assert_span(p.last.text, "n2 left the job (stopped by SIGTERM from pid 7); ranks 2 "
                             "to 3 were there");
    end(&p);
}

/* The coordinator's own node is lost: its successor learns that from the record. */
static void test_vanished(void **state)
{
    struct play p, q;
    uint64_t number;

    (void)state;
    begin(&p, 2, 0);
    q = (struct play){ .now = p.now };
    q.run = run_new(span_str("job"), NULL);
    assert_non_null(q.run);
    say(&q, 2,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_RECORD,
                          .nonce = 102,
                          .host = span_str("n2"),
                          .node = 2,
                          .value = record_of(&p)->last });
    for (size_t i = 0; i < record_of(&p)->count; i++)
        say(&q, 2,
            (struct run_msg){ .kind = MSG_OFFER,
                              .bytes = record_bytes(record_of(&p), i, &number) });
    assert_false(has(&q, RECORD_LOST));
    ranks(&q, 2, 1, 1, 0);
    struct record_entry lost;
    assert_true(record_find(record_of(&q), RECORD_LOST, -1, &lost));
    assert_int_equal(lost.node, 1);
    assert_span(lost.text,
                "n1 was lost (it did not come back); ranks 0 to 1 were there");
    end(&p);
    end(&q);
}

static void phase(struct play *p, uint32_t peer, int64_t round, const char *name,
                  uint64_t us, int64_t more)
{
    say(p, peer,
        (struct run_msg){ .kind = MSG_PHASE,
                          .round = round,
                          .name = span_str(name),
                          .value = us,
                          .rank = more });
}

/* The phases of three nodes make one entry; what comes late gets its own. */
static void test_phases(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 3, 0);
    phase(&p, 1, 0, "rendezvous", 10, 1);
    phase(&p, 1, 0, "start", 500, 0);
    phase(&p, 3, 0, "rendezvous", 30, 1);
    phase(&p, 3, 0, "start", 300, 0);
    phase(&p, 2, 0, "\033[2J", 1, 1);
    phase(&p, 2, 7, "start", 1, 1); /* not its round */
    assert_false(has(&p, RECORD_PHASES));
    phase(&p, 2, 0, "rendezvous", 20, 1);
    phase(&p, 2, 0, "start", 400, 0);
    assert_int_equal(p.last.kind, RECORD_PHASES);
    assert_span(p.last.body, "rendezvous 10 20 30 3\nstart 300 400 500 1\n");
    phase(&p, 1, 0, "first_request", 2000, 0);
    assert_span(p.last.body, "first_request 2000 2000 2000 1\n");
    ranks(&p, 1, 1, 2, 0);
    ranks(&p, 2, 1, 2, 0);
    phase(&p, 2, 1, "stop", 7, 0); /* The other node sends none. */
    wait_us(&p, RECORDER_GATHER_US);
    assert_int_equal(p.last.round, 1);
    assert_span(p.last.body, "stop 7 7 7 2\n");
    end(&p);
}

/* How long a node with a broken connection is waited for, by its round trip. */
static void test_grace(void **state)
{
    static const struct {
        uint64_t rtt_us, grace_us;
    } table[] = {
        { 0, SESSION_GRACE_US },
        { 200, SESSION_GRACE_US + 1600 },
        { 50000, SESSION_GRACE_US + 400000 },
        { 200000, SESSION_MOST_US },
        { UINT64_MAX, SESSION_MOST_US }, /* not measured */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        struct play p;
        const uint64_t rtt = table[i].rtt_us;

        begin(&p, 1, 0);
        say(&p, 2,
            (struct run_msg){ .kind = MSG_HELLO,
                              .flags = MSG_RECORD,
                              .nonce = 7,
                              .host = span_str("n") });
        if (rtt != UINT64_MAX) {
            const uint64_t sent = p.now.mono_us;

            p.now.mono_us += rtt;
            say(&p, 2, (struct run_msg){ .kind = MSG_BEAT, .seq = sent });
        }
        feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 2 });
        wait_us(&p, table[i].grace_us - 1);
        assert_false(has(&p, RECORD_LOST));
        wait_us(&p, 1);
        assert_true(has(&p, RECORD_LOST));
        end(&p);
    }
}

/* A LOST entry says which seat the node had, for agents that watch the members
 * themselves. */
static void test_lost_seat(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 2 });
    wait_us(&p, SESSION_MOST_US);
    assert_int_equal(p.last.kind, RECORD_LOST);
    assert_int_equal(p.last.total, 0); /* It has sent no SEAT. */
    attach(&p, 3, 0);
    say(&p, 3,
        (struct run_msg){
            .kind = MSG_RANKS, .round = -1, .count = -1, .seat_round = 0, .seat = 4 });
    say(&p, 3,
        (struct run_msg){
            .kind = MSG_RANKS, .round = -1, .count = -1, .seat_round = 6, .seat = 2 });
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 3 });
    wait_us(&p, SESSION_MOST_US);
    assert_int_equal(p.last.kind, RECORD_LOST);
    assert_int_equal(p.last.total, 7);
    assert_int_equal(p.last.code, 2);
    end(&p);
}

static const struct run_msg *sent_to(const struct play *p, uint32_t peer,
                                     enum msg_kind kind)
{
    for (size_t i = 0; i < p->fx.count; i++)
        if (p->fx.items[i].kind == RUN_SEND && p->fx.items[i].peer == peer &&
            p->fx.items[i].msg.kind == kind)
            return &p->fx.items[i].msg;
    return NULL;
}

/* Nodes that came before the host's seat was known learn it, and so do later ones. */
static void test_host_seat(void **state)
{
    const struct run_msg host = { .kind = MSG_HELLO,
                                  .flags = MSG_RECORD | MSG_SERVES,
                                  .nonce = 7,
                                  .host = span_str("n") };
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    say(&p, 3, host);
    assert_null(sent_to(&p, 1, MSG_NEWS));
    say(&p, 3,
        (struct run_msg){
            .kind = MSG_RANKS, .round = -1, .count = -1, .seat_round = 5, .seat = 2 });
    for (uint32_t peer = 1; peer <= 2; peer++) {
        const struct run_msg *m = sent_to(&p, peer, MSG_NEWS);

        assert_non_null(m);
        assert_true(m->round == 5 && m->rank == 2);
    }
    assert_null(sent_to(&p, 3, MSG_NEWS));
    say(&p, 4,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_RECORD,
                          .nonce = 8,
                          .host = span_str("m") });
    assert_non_null(sent_to(&p, 4, MSG_NEWS));
    say(&p, 4,
        (struct run_msg){
            .kind = MSG_RANKS, .round = -1, .count = -1, .seat_round = 5, .seat = 1 });
    assert_null(sent_to(&p, 1, MSG_NEWS)); /* not the host's */
    end(&p);
}

static void test_back_in_time(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 2 });
    wait_us(&p, SESSION_GRACE_US);
    attach(&p, 2, 0);
    wait_us(&p, SESSION_MOST_US);
    assert_false(has(&p, RECORD_LOST));
    assert_int_equal(peers_of(&p), 2);
    end(&p);
}

static void test_success(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    reported(&p, 1, 0, 0, 0, "0 2 0\n");
    assert_false(has(&p, RECORD_VERDICT));
    reported(&p, 2, 0, 0, 0, "2 2 0\n");
    assert_int_equal(p.last.kind, RECORD_VERDICT);
    assert_int_equal(p.last.cause, CAUSE_SUCCEEDED);
    end(&p);
}

/* Static and mixed groups: a node counts its own restarts, and the others run on. */
static void test_own_budget(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 2, 0);
    for (uint32_t i = 1; i <= 2; i++)
        ranks(&p, i, 0, 2, MSG_OWN_BUDGET);
    struct record_entry f = failure(&p, 1, 0, 0, 0, "E: a");
    f.count = 0;
    f.total = 1;
    publish(&p, 1, f);
    assert_false(has(&p, RECORD_ENDING)); /* nobody else is stopped */
    reported(&p, 1, 0, 1, 1, "");
    assert_int_equal(p.last.kind, RECORD_RESTART);
    assert_int_equal(p.last.count, 1);
    ranks(&p, 1, 0, 2, MSG_OWN_BUDGET);
    f.at_us = wall_of(&p, 1);
    f.count = 1;
    publish(&p, 1, f);
    assert_true(has(&p, RECORD_ENDING));
    reported(&p, 1, 0, 1, 1, "");
    reported(&p, 2, 0, 0, 2, "");
    assert_int_equal(p.last.kind, RECORD_VERDICT);
    end(&p);
}

static size_t sent(const struct play *p, enum msg_kind kind)
{
    size_t n = 0;

    for (size_t i = 0; i < p->fx.count; i++)
        n += p->fx.items[i].kind == RUN_SEND && p->fx.items[i].msg.kind == kind;
    return n;
}

static size_t ends_sent(const struct play *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->fx.count; i++)
        n += p->fx.items[i].msg.kind == MSG_ANSWERED &&
             p->fx.items[i].msg.flags & MSG_LAST;
    return n;
}

static void test_questions(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 3, 0);
    say(&p, 2,
        (struct run_msg){ .kind = MSG_ASK,
                          .seq = 9,
                          .value = 1000,
                          .name = span_str("stacks"),
                          .bytes = span_str("all") });
    assert_int_equal(sent(&p, MSG_QUESTION), 3);
    const uint64_t id = p.fx.items[0].msg.seq;
    say(&p, 1,
        (struct run_msg){ .kind = MSG_ANSWER, .seq = id, .bytes = span_str("mine") });
    assert_int_equal(sent(&p, MSG_ANSWERED), 1);
    assert_int_equal(p.fx.items[0].peer, 2);
    assert_int_equal(p.fx.items[0].msg.seq, 9);
    assert_true(span_eq(p.fx.items[0].msg.bytes, span_str("mine")));
    say(&p, 1, (struct run_msg){ .kind = MSG_ANSWER, .seq = id }); /* twice: ignored */
    assert_int_equal(p.fx.count, 0);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 3 });
    assert_int_equal(sent(&p, MSG_ANSWERED), 1); /* missing, reported at once */
    assert_int_equal(p.fx.items[0].msg.flags, MSG_MISSING);
    wait_us(&p, 1000000); /* and the asker itself never answers */
    assert_int_equal(sent(&p, MSG_ANSWERED), 2);
    assert_int_equal(ends_sent(&p), 1);
    end(&p);
}

/* On etcd another agent may serve the next round's store. It takes over the record that
 * the nodes offer, so that counts never go back. */
static void test_takes_over(void **state)
{
    struct play p;
    struct record_entry e = { .number = 7, .kind = RECORD_RESTART, .count = 2 };
    struct buf b;

    (void)state;
    begin(&p, 0, 0);
    say(&p, 1,
        (struct run_msg){ .kind = MSG_HELLO,
                          .flags = MSG_RECORD,
                          .nonce = 1,
                          .value = 7,
                          .node = 4 });
    assert_int_equal(p.fx.items[0].msg.kind, MSG_WELCOME);
    assert_int_equal(p.fx.items[0].msg.node, 4); /* it keeps its number */
    assert_int_equal(sent(&p, MSG_WANT), 1);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(record_entry_encode(&b, &e), 0);
    say(&p, 1, (struct run_msg){ .kind = MSG_OFFER, .bytes = buf_span(&b) });
    assert_int_equal(record_of(&p)->last, 7);
    assert_int_equal(record_of(&p)->restarts, 2);
    buf_fini(&b);
    end(&p);
}

/* Numbers continue above the highest one that a node claims to know, however high. */
static void test_a_number_beyond_all(void **state)
{
    struct play p;
    struct record_entry e = { .kind = RECORD_NOTE, .text = span_str("hello") };

    (void)state;
    begin(&p, 1, 0);
    say(&p, 2,
        (struct run_msg){
            .kind = MSG_HELLO, .flags = MSG_RECORD, .nonce = 9, .value = UINT64_MAX });
    const size_t count = record_of(&p)->count;
    publish(&p, 1, e);
    assert_true(record_of(&p)->count > count);
    assert_int_equal(p.last.kind, RECORD_NOTE);
    end(&p);
}

static size_t count_of(const struct play *p, enum record_kind kind)
{
    size_t n = 0;

    for (size_t i = 0; i < record_of(p)->count; i++)
        n += record_at(record_of(p), i).kind == kind;
    return n;
}

/* Plays a failure, a question and a loss until a step has no memory; that is the run's
 * last one. True: it never came to that. */
static bool play_until_starved(void)
{
    struct run_now now = { 5000000, 1700000000000000 };
    struct run *run = run_new(span_str("job"), NULL);
    struct run_fx fx = { 0 };
    struct buf entry;
    int rc = run ? 0 : MUSTER_ENOMEM;

    buf_init(&entry, SIZE_MAX);
    if (rc == 0)
        rc = record_entry_encode(&entry,
                                 &(struct record_entry){ .kind = RECORD_FAILED });

    const struct run_msg said[] = {
        { .kind = MSG_HELLO, .flags = MSG_RECORD, .nonce = 1, .host = span_str("n") },
        { .kind = MSG_HELLO, .flags = MSG_RECORD, .nonce = 2, .host = span_str("n") },
        { .kind = MSG_RANKS, .count = 2, .total = 2, .seat_round = 0 },
        { .kind = MSG_RANKS, .rank = 2, .count = 2, .total = 2, .seat = 1 },
        { .kind = MSG_PHASE, .name = span_str("stop"), .value = 7 },
        { .kind = MSG_PHASE, .name = span_str("stop"), .value = 7 },
        { .kind = MSG_ASK, .seq = 7, .value = 60000, .name = span_str("q") },
        { .kind = MSG_PUBLISH, .seq = 1, .bytes = buf_span(&entry) },
        { .kind = MSG_REPORTED, .count = 1, .bytes = span_str("0 2 1\n") },
        { .kind = MSG_REPORTED, .count = 1, .bytes = span_str("2 2 1\n") },
    };
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(said); i++) {
        const struct run_event ev = {
            .kind = RUN_MSG, .now = now, .peer = 1 + i % 2, .msg = &said[i]
        };

        rc = run_step(run, &ev, &fx, NULL);
    }
    const struct run_event gone = { .kind = RUN_GONE, .now = now, .peer = 2 };

    if (rc == 0)
        rc = run_step(run, &gone, &fx, NULL);
    now.mono_us += SESSION_MOST_US;
    const struct run_event timer = { .kind = RUN_TIMER, .now = now };

    if (rc == 0)
        rc = run_step(run, &timer, &fx, NULL);
    assert_true(rc == 0 || rc == MUSTER_ENOMEM);
    buf_fini(&entry);
    run_fx_fini(&fx);
    run_free(run);
    return rc == 0;
}

static void test_without_memory(void **state)
{
    unsigned long nth = 0;
    bool whole;

    (void)state;
    do {
        mem_fail_from(++nth);
        whole = play_until_starved();
        mem_fail_from(0);
    } while (!whole);
    assert_true(nth > 30);
}

/* A full record loses its oldest entries only for a step that succeeds. */
static void test_full_record(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 1, 0);
    for (unsigned i = 0; i < RECORD_ENTRIES + 3; i++) {
        publish(
            &p, 1,
            (struct record_entry){ .kind = RECORD_NOTE, .text = span_str("hello") });
    }
    assert_int_equal(record_of(&p)->count, RECORD_ENTRIES);
    assert_int_equal(count_of(&p, RECORD_NODES), 1);
    end(&p);
}

/* A node that knows of a newcomer stops its workers, and a worker of another node,
 * which does not know yet, fails because of it. The round ends, and that costs no
 * restart. A failure before that which is not an echo counts as ever. */
static void test_moved(void **state)
{
    static const struct {
        const char *text;
        int64_t age_us; /* of the failure, when MOVED is said */
        bool before;    /* MOVED comes before the failure is published */
        bool ends;      /* the job ends */
    } table[] = {
        { "Connection closed by peer", 90000, true, false },
        { "Connection closed by peer", 90000, false, false },
        { "exited with code 1", 0, true, false },
        { "exited with code 1", 0, false, false },
        { "ValueError: x", 90000, true, true },
        { "ValueError: x", 90000, false, true },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        struct play p;

        begin(&p, 3, 0);
        const struct run_msg moved = { .kind = MSG_MOVED,
                                       .mono_us = (int64_t)p.now.mono_us + 7777,
                                       .wall_us = wall_of(&p, 1) };
        if (table[i].before)
            say(&p, 1, moved);
        publish(&p, 2, failure(&p, 2, 0, 2, table[i].age_us, table[i].text));
        reported(&p, 2, 0, 1, 1, "2 1 1\n3 1 -15\n");
        reported(&p, 3, 0, 0, 2, "4 2 -15\n");
        if (!table[i].before) {
            assert_int_equal(p.last.kind, RECORD_ENDING);
            say(&p, 1, moved);
        }
        assert_int_equal(p.last.kind, table[i].ends ? RECORD_VERDICT : RECORD_RESTART);
        assert_true(table[i].ends == (p.last.cause != CAUSE_MEMBERSHIP));
        assert_int_equal(p.last.count, 0);
        end(&p);
    }
}

/* The others are in the next round before the node whose worker failed has ended its
 * workers. That they left because nodes came or went is not forgotten. */
static void test_moved_to_the_next_round(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 3, 0);
    for (uint32_t peer = 1; peer <= 3; peer += 2)
        say(&p, peer,
            (struct run_msg){ .kind = MSG_MOVED,
                              .mono_us = (int64_t)p.now.mono_us + peer * 7777,
                              .wall_us = wall_of(&p, peer) });
    publish(&p, 2, failure(&p, 2, 0, 2, 0, "exited with code 1"));
    assert_int_equal(p.last.kind, RECORD_ENDING);
    ranks(&p, 1, 1, 2, 0);
    ranks(&p, 3, 1, 2, 0);
    reported(&p, 2, 0, 1, 1, "2 1 1\n3 1 -15\n");
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_VERDICT), 0);
    assert_int_equal(count_of(&p, RECORD_RESTART), 1);
    end(&p);
}

/* With a budget of its own: the failure is judged after two seconds, since another
 * worker takes longer to end, and is published again after that. That is one restart,
 * not two. */
static void test_own_budget_published_again(void **state)
{
    struct play p;
    struct record_entry f;

    (void)state;
    begin(&p, 1, 1);
    ranks(&p, 1, 0, 1, MSG_OWN_BUDGET);
    f = failure(&p, 1, 0, 0, 1000, "ValueError: x");
    f.total = 1;
    publish(&p, 1, f);
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_RESTART), 1);
    f.count = 1;
    publish(&p, 1, f);
    reported(&p, 1, 0, 1, 1, "0 1 1\n1 1 -15\n");
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_VERDICT), 0);
    assert_int_equal(count_of(&p, RECORD_RESTART), 1);
    ranks(&p, 1, 0, 1, MSG_OWN_BUDGET); /* the next attempt */
    f = failure(&p, 1, 0, 0, 1000, "ValueError: x");
    f.count = f.total = 1;
    publish(&p, 1, f);
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_VERDICT), 1);
    end(&p);
}

/* Likewise, but the connection breaks meanwhile, and the ranks are sent again. */
static void test_own_budget_after_a_reset(void **state)
{
    struct play p;
    struct record_entry f;

    (void)state;
    begin(&p, 1, 1);
    ranks(&p, 1, 0, 1, MSG_OWN_BUDGET);
    f = failure(&p, 1, 0, 0, 1000, "ValueError: x");
    f.total = 1;
    publish(&p, 1, f);
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_RESTART), 1);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 1 });
    attach(&p, 1, 1);
    ranks(&p, 1, 0, 1, MSG_OWN_BUDGET);
    f.count = 1;
    publish(&p, 1, f);
    reported(&p, 1, 0, 1, 1, "0 1 1\n1 1 -15\n");
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_RESTART), 1);
    assert_int_equal(count_of(&p, RECORD_VERDICT), 0);
    f = failure(&p, 1, 0, 0, 1000, "ValueError: x"); /* of the next attempt */
    f.count = f.total = 1;
    publish(&p, 1, f);
    wait_us(&p, RECORDER_JUDGE_US + 1);
    assert_int_equal(count_of(&p, RECORD_VERDICT), 1);
    end(&p);
}

static void test_published_twice(void **state)
{
    struct play p;
    struct record_entry e = { .kind = RECORD_NOTE, .text = span_str("hello") };

    (void)state;
    begin(&p, 1, 0);
    publish(&p, 1, e);
    const uint64_t last = record_of(&p)->last;
    p.seq[1]--;
    publish(&p, 1, e);
    assert_int_equal(record_of(&p)->last, last);
    assert_int_equal(sent(&p, MSG_ENTRY), 1); /* acknowledged all the same */
    end(&p);
}

static void test_observer(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 1, 0);
    const uint64_t last = record_of(&p)->last;
    say(&p, 5,
        (struct run_msg){
            .kind = MSG_HELLO, .flags = MSG_RECORD | MSG_OBSERVER, .nonce = 77 });
    assert_int_equal(p.fx.items[0].msg.node, 0);
    publish(&p, 5, (struct record_entry){ .kind = RECORD_NOTE });
    assert_int_equal(record_of(&p)->last, last);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 5 });
    wait_us(&p, 2 * SESSION_MOST_US);
    assert_false(has(&p, RECORD_LOST));
    end(&p);
}

/* A place that an observer has left is taken by the next one, and by a node. */
static void test_observers_leave_their_place(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 1, 0);
    for (uint32_t i = 0; i < RECORDER_NODES + 10; i++) {
        say(&p, 5,
            (struct run_msg){ .kind = MSG_HELLO,
                              .flags = MSG_RECORD | MSG_OBSERVER,
                              .nonce = 1000 + i,
                              .host = span_str("me") });
        assert_int_equal(sent(&p, MSG_WELCOME), 1);
        say(&p, 5, (struct run_msg){ .kind = MSG_BYE });
        feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 5 });
    }
    attach(&p, 2, 0);
    assert_int_equal(peers_of(&p), 2);
    end(&p);
}

static void test_a_connection_attaches_once(void **state)
{
    struct play p;

    (void)state;
    begin(&p, 1, 0);
    say(&p, 1, (struct run_msg){ .kind = MSG_HELLO, .flags = MSG_RECORD, .nonce = 77 });
    assert_int_equal(p.fx.items[0].kind, RUN_DROP);
    assert_int_equal(p.fx.items[0].peer, 1);
    feed(&p, (struct run_event){ .kind = RUN_GONE, .peer = 1 });
    assert_int_equal(peers_of(&p), 0); /* Nobody is left who has that number. */
    end(&p);
}

/* Each number at the end of its range, and one beyond it. */
static void test_ranges(void **state)
{
    const struct {
        const char *says;
        struct run_msg m;
        bool good;
    } rows[] = {
        { "a round", { MSG_RANKS, .round = WIRE_ROUND_MAX }, true },
        { "a round", { MSG_RANKS, .round = WIRE_ROUND_MAX + 1 }, false },
        { "no round yet", { MSG_RANKS, .round = -1 }, true },
        { "a round", { MSG_RANKS, .round = -2 }, false },
        { "a rank", { MSG_RANKS, .rank = WIRE_RANKS_MAX }, true },
        { "a rank", { MSG_RANKS, .rank = INT64_MIN }, false },
        { "a count", { MSG_REPORTED, .count = WIRE_RANKS_MAX + INT64_C(1) }, false },
        { "restarts", { MSG_HELLO, .flags = MSG_RECORD, .total = INT64_MAX }, true },
        { "restarts", { MSG_HELLO, .flags = MSG_RECORD, .total = -2 }, false },
        { "a clock", { MSG_BEAT, .mono_us = WIRE_CLOCK_MAX }, true },
        { "a clock", { MSG_BEAT, .mono_us = INT64_MAX }, false },
        { "a wall clock", { MSG_MOVED, .wall_us = INT64_MIN }, false },
        { "a node", { MSG_HELLO, .flags = MSG_RECORD, .node = WIRE_NODE_MAX }, true },
        { "a node", { MSG_HELLO, .flags = MSG_RECORD, .node = UINT32_MAX - 1 }, false },
        { "workers", { MSG_HELLO, .flags = MSG_RECORD, .nproc = INT64_MAX }, false },
    };
    struct run_msg got;
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        buf_init(&b, SIZE_MAX);
        assert_int_equal(msg_encode(&b, &rows[i].m), 0);
        if ((msg_decode(buf_span(&b), &got, NULL) == 0) != rows[i].good)
            fail_msg("row %zu, %s: want %s", i, rows[i].says,
                     rows[i].good ? "taken" : "refused");
        buf_fini(&b);
    }
}

static void test_messages(void **state)
{
    struct run_msg m = { .kind = MSG_RANKS, .round = 3, .rank = 8, .count = 2 }, got;
    struct muster_error err;
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(msg_encode(&b, &m), 0);
    for (size_t n = 0; n < buf_len(&b); n++)
        assert_int_equal(msg_decode(span_of(buf_data(&b), n), &got, &err),
                         MUSTER_EPROTO);
    assert_int_equal(buf_append_str(&b, "more"), 0); /* of a later version */
    assert_int_equal(msg_decode(buf_span(&b), &got, &err), 0);
    assert_int_equal(got.rank, 8);
    b.mem[1] = 200; /* a kind of a later version */
    assert_int_equal(msg_decode(buf_span(&b), &got, &err), 0);
    assert_int_equal(got.kind, MSG_NONE);
    b.mem[0] = 1;
    assert_int_equal(msg_decode(buf_span(&b), &got, &err), MUSTER_EPROTO);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_equal_host_names),
        cmocka_unit_test(test_first_by_time),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_at_most_two_seconds),
        cmocka_unit_test(test_failure_of_an_old_round),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_policy_by_cause),
        cmocka_unit_test(test_policy_lost_node),
        cmocka_unit_test(test_policies_differ),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_lost_node),
        cmocka_unit_test(test_grace),
        cmocka_unit_test(test_lost_seat),
        cmocka_unit_test(test_host_seat),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_gave_up),
        cmocka_unit_test(test_gave_up_early),
        cmocka_unit_test(test_gave_up_alone),
        cmocka_unit_test(test_left),
        cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_back_in_time),
        cmocka_unit_test(test_success),
        cmocka_unit_test(test_own_budget),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_takes_over),
        cmocka_unit_test(test_a_number_beyond_all),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_full_record),
        cmocka_unit_test(test_own_budget_published_again),
        cmocka_unit_test(test_own_budget_after_a_reset),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_moved_to_the_next_round),
        cmocka_unit_test(test_published_twice),
        cmocka_unit_test(test_observer),
        cmocka_unit_test(test_observers_leave_their_place),
        cmocka_unit_test(test_a_connection_attaches_once),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
