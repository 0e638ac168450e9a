/* test_sessions.c - the nodes of a run: who is here, away and lost, and that both parts
 * of a run hear of a loss at the same moment. */
#include "testing.h"

#include "job/core/coordinator.h"
#include "job/core/hub.h"
#include "rendezvous/core/settings.h"

#define MS 1000u

/* One node with two lines; what happens to it, and when it is lost after that. */
static void a_node_is_lost_when_its_last_line_is(void **state)
{
    static const struct {
        const char *says;
        const char *lines; /* what happens, one letter every 10 ms; see below */
        uint64_t grace_us; /* as the node named it */
        uint64_t lost_us;  /* after the last letter; 0: not by then */
    } rows[] = {
        { "only its line for the record breaks", "sR.", 50 * MS, 0 },
        { "only its line for seats breaks", "rS.", 50 * MS, 0 },
        { "both break at once", "srRS", 50 * MS, 50 * MS },
        { "the second breaks later", "srR..S", 50 * MS, 50 * MS },
        { "it comes back over one line", "srRS.r", 50 * MS, 0 },
        { "it never had a second line", "sS", 50 * MS, 50 * MS },
        { "it named no time", "rR", MONO_NEVER, SESSION_GRACE_US },
        { "it named no time, and is far away", "r+R", MONO_NEVER, SESSION_MOST_US },
        { "it named a time, and is far away", "s+S", 50 * MS, 50 * MS },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint64_t now = 1000 * MS, lost = 0;
        struct sessions t;
        struct session *s;
        int part;

        sessions_init(&t);
        s = sessions_meet(&t, 7, 9);
        assert_non_null(s);
        s->part[LINE_SEATS] = s->part[LINE_RECORD] = &part;
        s->grace_us = rows[i].grace_us;
        for (const char *p = rows[i].lines; *p; p++) {
            now += p == rows[i].lines ? 0 : 10 * MS;
            if (*p == 's' || *p == 'r')
                session_open(&t, s, *p == 's' ? LINE_SEATS : LINE_RECORD,
                             *p == 's' ? 3 : 9, now);
            else if (*p == 'S' || *p == 'R')
                session_close(&t, s, *p == 'S' ? LINE_SEATS : LINE_RECORD, now, 0);
            else if (*p == '+')
                s->slow_us = 200 * MS;
            sessions_judge(&t, now);
            assert_null(sessions_owed(&t, LINE_SEATS));
        }
        for (uint64_t us = 1; us <= 2000 * MS && !lost; us += us < MS ? 999 : MS) {
            sessions_judge(&t, now + us);
            if (sessions_owed(&t, LINE_SEATS))
                lost = us;
        }
        if (lost != rows[i].lost_us || (lost && !sessions_owed(&t, LINE_RECORD)))
            fail_msg("%s: lost after %llu us, expected %llu", rows[i].says,
                     (unsigned long long)lost, (unsigned long long)rows[i].lost_us);
        sessions_fini(&t);
    }
}

static void silence_is_broken_by_either_line(void **state)
{
    struct sessions t;
    struct session *s;
    int part;

    (void)state;
    sessions_init(&t);
    s = sessions_meet(&t, 7, 9);
    assert_non_null(s);
    s->part[LINE_RECORD] = &part;
    session_open(&t, s, LINE_SEATS, 3, 0);
    session_open(&t, s, LINE_RECORD, 9, 0);
    session_heard(&t, s, 10000 * MS);
    sessions_judge(&t, SESSION_SILENT_US);
    assert_null(sessions_owed(&t, LINE_RECORD));
    assert_int_equal(sessions_deadline(&t, LINE_RECORD),
                     10000 * MS + SESSION_SILENT_US);
    session_set_serves(&t, s, true); /* The node that serves the store is not silent. */
    assert_int_equal(sessions_deadline(&t, LINE_RECORD), MONO_NEVER);
    session_set_serves(&t, s, false);
    sessions_judge(&t, 10000 * MS + SESSION_SILENT_US);
    assert_ptr_equal(sessions_owed(&t, LINE_RECORD), s);
    assert_false(s->broke);
    assert_null(sessions_owed(&t, LINE_SEATS)); /* It has no such part. */
    sessions_fini(&t);
}

/* A run with both parts, and agents that have both lines: 10 + n for seats, 20 + n for
 * the record. */
struct run {
    struct sessions sessions;
    struct coordinator *seats;
    struct hub *record;
    struct coordinator_fx seats_fx;
    struct hub_fx record_fx;
    uint64_t now_ms;
    unsigned told; /* members that were told that a node is lost */
};

static void seats(struct run *r, struct coordinator_event ev)
{
    ev.now = (struct now){ r->now_ms, (int64_t)r->now_ms * 1000 };
    assert_int_equal(coordinator_step(r->seats, &ev, &r->seats_fx, NULL), 0);
    for (size_t i = 0; i < r->seats_fx.count; i++)
        r->told += r->seats_fx.items[i].kind == COORDINATOR_SEND &&
                   r->seats_fx.items[i].msg.kind == COORD_LOST;
}

static void record(struct run *r, struct hub_event ev)
{
    ev.now = (struct run_now){ r->now_ms * 1000, (int64_t)r->now_ms * 1000 };
    assert_int_equal(hub_step(r->record, &ev, &r->record_fx), 0);
}

static void begin(struct run *r, uint32_t nodes)
{
    struct rdzv_settings s;
    struct buf text;

    *r = (struct run){ .now_ms = 1000 };
    sessions_init(&r->sessions);
    r->seats = coordinator_new(span_str("job"), &r->sessions, NULL);
    r->record = hub_new(span_str("job"), &r->sessions, NULL);
    assert_true(r->seats && r->record);
    coordinator_fx_init(&r->seats_fx);
    rdzv_settings_init(&s, nodes, nodes);
    buf_init(&text, COORD_MAX);
    assert_int_equal(rdzv_settings_print(&s, &text), 0);
    for (uint32_t n = 0; n < nodes; n++) {
        const struct coord_msg hello = { .kind = COORD_HELLO,
                                         .run_id = span_str("job"),
                                         .addr = span_str("n"),
                                         .pid = n,
                                         .nonce = 100 + n,
                                         .settings = buf_span(&text),
                                         .round = -1,
                                         .grace_ms = 50 };
        const struct coord_msg join = { .kind = COORD_JOIN, .count = 1 };
        const struct job_msg attach = {
            .kind = JOB_ATTACH, .nonce = 100 + n, .host = span_str("n"), .nproc = 1
        };
        const struct job_msg ranks = {
            .kind = JOB_RANKS, .rank = n, .count = 1, .total = nodes
        };

        seats(r, (struct coordinator_event){ COORDINATOR_MSG, .peer = 10 + n,
                                             .msg = &hello });
        seats(r, (struct coordinator_event){ COORDINATOR_MSG, .peer = 10 + n,
                                             .msg = &join });
        record(r, (struct hub_event){ HUB_MSG, .peer = 20 + n, .msg = &attach });
        record(r, (struct hub_event){ HUB_MSG, .peer = 20 + n, .msg = &ranks });
    }
    buf_fini(&text);
}

static void end(struct run *r)
{
    coordinator_free(r->seats);
    hub_free(r->record);
    assert_int_equal(r->sessions.nodes.count, 0);
    sessions_fini(&r->sessions);
    coordinator_fx_fini(&r->seats_fx);
    hub_fx_fini(&r->record_fx);
}

/* Time passes, and each part is called when it asked for it. */
static void pass(struct run *r, uint64_t ms)
{
    for (const uint64_t until = r->now_ms + ms; r->now_ms < until;) {
        r->now_ms++;
        while (hub_deadline(r->record) <= r->now_ms * 1000)
            record(r, (struct hub_event){ HUB_TIMER });
        while (coordinator_deadline(r->seats) <= r->now_ms)
            seats(r, (struct coordinator_event){ COORDINATOR_TIMER });
    }
}

static bool recorded_lost(const struct run *r)
{
    struct record_entry e;

    return record_find(hub_record(r->record), RECORD_LOST, -1, &e);
}

/* Agents reconnect at different times and for different reasons. As long as one of the
 * two connections is there, no part may take the node for lost. */
static void both_parts_agree_on_a_broken_line(void **state)
{
    struct run r;

    (void)state;
    begin(&r, 3);
    record(&r, (struct hub_event){ HUB_GONE, .peer = 22 });
    pass(&r, 4000);
    assert_false(recorded_lost(&r));
    assert_int_equal(r.told, 0);
    record(&r, (struct hub_event){ HUB_MSG, .peer = 30,
                                   .msg = &(struct job_msg){ .kind = JOB_ATTACH,
                                                             .nonce = 102,
                                                             .host = span_str("n") } });
    seats(&r, (struct coordinator_event){ COORDINATOR_GONE, .peer = 12 });
    pass(&r, 4000);
    assert_false(recorded_lost(&r));
    assert_int_equal(r.told, 0);
    assert_int_equal(coordinator_nodes(r.seats), 3);
    end(&r);
}

/* The agent is killed: both lines break, and one grace later all are told. */
static void both_parts_hear_of_a_loss_at_once(void **state)
{
    struct run r;

    (void)state;
    begin(&r, 3);
    record(&r, (struct hub_event){ HUB_GONE, .peer = 22 });
    r.now_ms += 3;
    seats(&r, (struct coordinator_event){ COORDINATOR_GONE, .peer = 12 });
    pass(&r, 49);
    assert_false(recorded_lost(&r));
    assert_int_equal(r.told, 0);
    pass(&r, 1);
    assert_true(recorded_lost(&r));
    assert_int_equal(r.told, 2);
    assert_int_equal(coordinator_nodes(r.seats), 2);
    end(&r);
}

/* A node whose host has vanished from the network keeps both lines open. */
static void both_parts_hear_of_a_silent_node(void **state)
{
    struct run r;

    (void)state;
    begin(&r, 3);
    for (int i = 0; i < 20 && !recorded_lost(&r); i++) {
        pass(&r, 1000);
        for (uint32_t n = 0; n < 2; n++)
            seats(&r, (struct coordinator_event){
                          COORDINATOR_MSG, .peer = 10 + n,
                          .msg = &(struct coord_msg){ .kind = COORD_ALIVE } });
        assert_int_equal(r.told, recorded_lost(&r) ? 2 : 0);
    }
    assert_true(recorded_lost(&r));
    assert_int_equal(r.now_ms, 16000);
    assert_null(sessions_of(&r.sessions, LINE_SEATS, 12));
    assert_null(sessions_of(&r.sessions, LINE_RECORD, 22));
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_lost_when_its_last_line_is),
        cmocka_unit_test(silence_is_broken_by_either_line),
        cmocka_unit_test(both_parts_agree_on_a_broken_line),
        cmocka_unit_test(both_parts_hear_of_a_loss_at_once),
        cmocka_unit_test(both_parts_hear_of_a_silent_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
