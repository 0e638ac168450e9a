/* test_session_core.c - a node's side of its session with a run, message by message. */
#include "testing.h"

#include "job/core/session_core.h"

struct play {
    struct session_core *member;
    struct session_fx fx;
    struct now now;
};

static void play_begin(struct play *p)
{
    struct session_config cfg = {
        .run_id = "job", .seats = true, .self = { span_str("a"), 1, 0 }, .nonce = 7
    };

    *p = (struct play){ .now = { 1000, 0 } };
    rdzv_settings_init(&cfg.settings, 2, 2);
    assert_int_equal(session_core_new(&cfg, &p->member, NULL), 0);
}

static void feed(struct play *p, struct session_event ev)
{
    ev.now = p->now;
    session_core_step(p->member, &ev, &p->fx);
}

static void request(struct play *p, enum rdzv_event_kind kind)
{
    feed(p, (struct session_event){ .kind = SESSION_EV_REQUEST, .request = kind });
}

static void hear(struct play *p, struct run_msg m)
{
    feed(p, (struct session_event){ .kind = SESSION_EV_MSG, .msg = &m });
}

static const struct rdzv_effect *told(const struct play *p, size_t i)
{
    assert_true(i < p->fx.count);
    assert_int_equal(p->fx.at[i].kind, SESSION_FX_NOTIFY);
    return &p->fx.at[i].notice;
}

static void is_sent(const struct play *p, size_t i, enum msg_kind kind)
{
    assert_true(i < p->fx.count);
    assert_int_equal(p->fx.at[i].kind, SESSION_FX_SEND);
    assert_int_equal(p->fx.at[i].msg.kind, kind);
}

static void dials(const struct play *p)
{
    assert_int_equal(p->fx.count, 1);
    assert_int_equal(p->fx.at[0].kind, SESSION_FX_DIAL);
}

static void turn_away(struct play *p)
{
    feed(p, (struct session_event){ .kind = SESSION_EV_UP });
    is_sent(p, 0, MSG_HELLO);
    hear(p, (struct run_msg){ .kind = MSG_REFUSED,
                              .code = MUSTER_EINVAL,
                              .text = span_str("started for others") });
}

/* It used to ask again every second until close_timeout. */
static void a_refused_node_is_told_at_once(void **state)
{
    struct play p;

    (void)state;
    play_begin(&p);
    request(&p, RDZV_EV_JOIN);
    dials(&p);
    turn_away(&p);
    assert_int_equal(p.fx.count, 1);
    assert_int_equal(told(&p, 0)->kind, RDZV_FX_REFUSED);
    assert_int_equal(told(&p, 0)->code, MUSTER_EINVAL);

    request(&p, RDZV_EV_CLOSE);
    dials(&p);
    turn_away(&p);
    assert_int_equal(p.fx.count, 1);
    assert_int_equal(told(&p, 0)->kind, RDZV_FX_DONE);
    assert_int_equal(told(&p, 0)->request, RDZV_EV_CLOSE);
    assert_int_equal(told(&p, 0)->code, MUSTER_EINVAL);
    assert_string_equal(told(&p, 0)->text, "started for others");

    request(&p, RDZV_EV_LEAVE); /* There is nothing to leave. */
    dials(&p);
    turn_away(&p);
    assert_int_equal(told(&p, 0)->request, RDZV_EV_LEAVE);
    assert_int_equal(told(&p, 0)->code, 0);
    session_core_free(p.member);
}

/* A host that cannot be reached is asked again and again, until the request's own
 * deadline. */
static void a_node_without_a_host_waits_for_it(void **state)
{
    struct play p;

    (void)state;
    play_begin(&p);
    request(&p, RDZV_EV_CLOSE);
    dials(&p);
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN, .text = "refused" });
    request(&p, RDZV_EV_LEAVE);
    assert_int_equal(p.fx.count, 0);
    p.now.mono_ms += 30001;
    feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
    assert_int_equal(told(&p, 0)->code, MUSTER_ETIMEDOUT);
    assert_int_equal(told(&p, 1)->code, MUSTER_ETIMEDOUT);
    session_core_free(p.member);
}

static void requests_survive_a_reconnect(void **state)
{
    struct play p;

    (void)state;
    play_begin(&p);
    request(&p, RDZV_EV_JOIN);
    feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
    is_sent(&p, 0, MSG_HELLO);
    is_sent(&p, 1, MSG_JOIN); /* It need not wait for WELCOME. */
    request(&p, RDZV_EV_CLOSE);
    is_sent(&p, 0, MSG_CLOSE);
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN });
    feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
    is_sent(&p, 0, MSG_HELLO);
    is_sent(&p, 1, MSG_CLOSE);
    is_sent(&p, 2, MSG_JOIN);
    hear(&p, (struct run_msg){ .kind = MSG_WELCOME });
    hear(&p, (struct run_msg){ .kind = MSG_NEWS, .what = WIRE_CLOSED });
    assert_int_equal(told(&p, 0)->kind, RDZV_FX_DONE);
    assert_int_equal(told(&p, 1)->kind, RDZV_FX_REFUSED);
    assert_int_equal(told(&p, 1)->code, MUSTER_ECLOSED);
    assert_true(session_core_closed(p.member));
    session_core_free(p.member);
}

static void is_welcome(struct play *p)
{
    feed(p, (struct session_event){ .kind = SESSION_EV_UP });
    hear(p, (struct run_msg){ .kind = MSG_WELCOME });
}

static const struct run_msg joined = { .kind = MSG_JOINED, .world = 2 };

/* Time goes by, and the timer comes when it is due. */
static void pass_with(struct play *p, uint64_t ms, bool answers)
{
    const uint64_t end = p->now.mono_ms + ms;

    while (session_core_deadline(p->member) <= end) {
        p->now.mono_ms = MAX_OF(p->now.mono_ms, session_core_deadline(p->member));
        feed(p, (struct session_event){ .kind = SESSION_EV_TIMER });
        for (size_t i = 0; i < p->fx.count; i++) {
            if (p->fx.at[i].kind == SESSION_FX_NOTIFY)
                return;
            if (p->fx.at[i].kind == SESSION_FX_DIAL) {
                feed(p, (struct session_event){ .kind = SESSION_EV_DOWN });
                break;
            }
            if (answers && p->fx.at[i].msg.kind == MSG_BEAT) {
                hear(p, (struct run_msg){ .kind = MSG_PING, .mono_us = 1 });
                break;
            }
        }
    }
    p->now.mono_ms = end;
}

/* All members begin again where they are: the next JOIN is answered at once. If
 * anything happens before it comes, it is an ordinary one. */
static void a_round_that_was_not_asked_for(void **state)
{
    const struct run_msg again = { .kind = MSG_JOINED,
                                   .round = 1,
                                   .world = 2,
                                   .where = span_str("node0"),
                                   .port = 4000 };
    const struct run_msg spoils[] = {
        { .kind = MSG_NEWS, .what = WIRE_LOST },
        { .kind = MSG_NEWS, .what = WIRE_WAITING, .count = 1 },
        { .kind = MSG_NEWS, .what = WIRE_EVICTED }
    };

    (void)state;
    for (size_t i = 0; i <= ARRAY_LEN(spoils); i++) {
        struct play p;

        play_begin(&p);
        request(&p, RDZV_EV_JOIN);
        is_welcome(&p);
        hear(&p, joined);
        hear(&p, again);
        assert_int_equal(p.fx.count, 0);
        if (i < ARRAY_LEN(spoils))
            hear(&p, spoils[i]);
        request(&p, RDZV_EV_JOIN);
        if (i < ARRAY_LEN(spoils)) {
            is_sent(&p, 0, MSG_JOIN);
            assert_int_equal(p.fx.at[0].msg.round, 1);
        } else {
            assert_int_equal(told(&p, 0)->kind, RDZV_FX_JOINED);
            assert_int_equal(told(&p, 0)->round, 1);
            assert_string_equal(session_core_round(p.member)->store_host, "node0");
            assert_int_equal(session_core_round(p.member)->store_port, 4000);
            hear(&p, again); /* It answers a JOIN that crossed the first one. */
            assert_int_equal(p.fx.count, 0);
            request(&p, RDZV_EV_JOIN);
            is_sent(&p, 0, MSG_JOIN);
        }
        session_core_free(p.member);
    }
}

/* And nobody answers. */
static void pass(struct play *p, uint64_t ms)
{
    pass_with(p, ms, false);
}

/* JOINED crossed our LEAVE on the wire, and is not an answer to the JOIN after it. */
static void messages_that_crossed_a_leave_are_ignored(void **state)
{
    struct play p;

    (void)state;
    for (int timed_out = 0; timed_out < 2; timed_out++) {
        play_begin(&p);
        request(&p, RDZV_EV_JOIN);
        is_welcome(&p);
        if (timed_out) {
            pass_with(&p, 600001, true);
            assert_int_equal(told(&p, 0)->code, MUSTER_ETIMEDOUT);
        } else {
            request(&p, RDZV_EV_LEAVE);
            assert_int_equal(told(&p, 0)->code, MUSTER_ECANCELED);
        }
        is_sent(&p, 1, MSG_LEAVE);
        request(&p, RDZV_EV_JOIN);
        is_sent(&p, 0, MSG_JOIN);
        hear(&p, joined);
        assert_int_equal(p.fx.count, 0);
        hear(&p, (struct run_msg){ .kind = MSG_REFUSED, .code = MUSTER_EFULL });
        assert_int_equal(p.fx.count, 0);
        hear(&p, (struct run_msg){ .kind = MSG_LEFT });
        hear(&p, joined);
        assert_int_equal(told(&p, 0)->kind, RDZV_FX_JOINED);
        session_core_free(p.member);
    }
}

/* A node that gave up while the host was unreachable sends LEAVE when the host is back,
 * which may still hold its place. */
static void an_unheard_leave_is_sent_again(void **state)
{
    struct play p;

    (void)state;
    play_begin(&p);
    request(&p, RDZV_EV_JOIN);
    is_welcome(&p);
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN, .text = "reset" });
    pass(&p, 600001);
    assert_int_equal(told(&p, 0)->code, MUSTER_ETIMEDOUT);
    request(&p, RDZV_EV_JOIN);
    feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
    is_sent(&p, 1, MSG_LEAVE);
    is_sent(&p, 2, MSG_JOIN);
    hear(&p, (struct run_msg){ .kind = MSG_WELCOME });
    /* The connection broke before LEFT came, so LEAVE is sent once more. */
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN, .text = "reset" });
    feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
    is_sent(&p, 1, MSG_LEAVE);
    is_sent(&p, 2, MSG_JOIN);
    hear(&p, (struct run_msg){ .kind = MSG_WELCOME });
    hear(&p, (struct run_msg){ .kind = MSG_LEFT });
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN, .text = "reset" });
    feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
    is_sent(&p, 1, MSG_JOIN);
    session_core_free(p.member);
}

/* A host that hangs up after each HELLO used to be asked fifty times a second. */
static void a_node_hung_up_on_asks_less_and_less_often(void **state)
{
    static const uint64_t pauses[] = { 40, 80, 160, 320, 640, 1000, 1000 };
    struct play p;

    (void)state;
    play_begin(&p);
    request(&p, RDZV_EV_JOIN);
    for (size_t i = 0; i < ARRAY_LEN(pauses); i++) {
        dials(&p);
        feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
        is_sent(&p, 0, MSG_HELLO);
        feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN });
        assert_int_equal(session_core_deadline(p.member), p.now.mono_ms + pauses[i]);
        p.now.mono_ms += pauses[i];
        feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
    }
    feed(&p, (struct session_event){ .kind = SESSION_EV_UP });
    hear(&p, (struct run_msg){ .kind = MSG_WELCOME });
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN });
    assert_int_equal(session_core_deadline(p.member), p.now.mono_ms + 20);
    session_core_free(p.member);
}

/* The network carries messages in one direction only: what we send may arrive, and
 * nothing comes back. The kernel would notice after 15 s and more. The connection is
 * given up while the host still waits for us, and the agent is told after
 * keep_alive_interval * keep_alive_max_attempt. */
static void a_host_that_falls_silent_is_known_in_time(void **state)
{
    static const int64_t intervals_s[] = { 1, 5, 60 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(intervals_s); i++) {
        struct session_config cfg = { .run_id = "job",
                                      .self = { span_str("a"), 1, 0 },
                                      .nonce = 7 };
        struct play p = { .now = { 1000, 0 } };
        uint64_t heard_ms, dead_ms, margin_ms, hung_up_ms = 0, told_ms = 0;

        rdzv_settings_init(&cfg.settings, 2, 2);
        cfg.settings.keep_alive_interval_s = intervals_s[i];
        cfg.settings.keep_alive_max_attempt = 3;
        const int64_t beat_s = MIN_OF(intervals_s[i], 5); /* however rare others' are */
        dead_ms = rdzv_session_dead_after_ms(&cfg.settings);
        assert_int_equal(dead_ms, beat_s * 3000);
        assert_int_equal(session_core_new(&cfg, &p.member, NULL), 0);
        request(&p, RDZV_EV_JOIN);
        is_welcome(&p);
        hear(&p, joined);
        heard_ms = p.now.mono_ms;
        for (int turn = 0; turn < 1000 && !told_ms; turn++) {
            p.now.mono_ms = MAX_OF(p.now.mono_ms, session_core_deadline(p.member));
            feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
            bool dials = false;
            for (size_t k = 0; k < p.fx.count; k++) {
                const struct session_effect *e = &p.fx.at[k];

                if (e->kind == SESSION_FX_HANG_UP && !hung_up_ms)
                    hung_up_ms = p.now.mono_ms;
                dials |= e->kind == SESSION_FX_DIAL;
                if (e->kind == SESSION_FX_NOTIFY && e->notice.kind == RDZV_FX_NEWS &&
                    e->notice.news == RDZV_NEWS_BACKEND)
                    told_ms = p.now.mono_ms;
            }
            if (dials)
                feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN });
        }
        assert_true(hung_up_ms > heard_ms && hung_up_ms < heard_ms + dead_ms);
        margin_ms = MIN_OF((uint64_t)beat_s * 500, 2000u);
        assert_int_equal(told_ms, heard_ms + dead_ms - margin_ms);
        session_core_free(p.member);
    }
}

/* What the host says by itself shows that it can reach us, and not that we can reach
 * it: a cable that carries one direction alone. */
static void only_an_answer_is_a_sign_that_we_are_heard(void **state)
{
    struct session_config cfg = { .run_id = "job",
                                  .self = { span_str("a"), 1, 0 },
                                  .nonce = 7 };
    struct play p = { .now = { 1000, 0 } };
    uint64_t told_ms = 0;

    (void)state;
    rdzv_settings_init(&cfg.settings, 2, 3);
    assert_int_equal(session_core_new(&cfg, &p.member, NULL), 0);
    request(&p, RDZV_EV_JOIN);
    is_welcome(&p);
    hear(&p, joined);
    p.now.mono_ms = 6000;
    feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
    is_sent(&p, 0, MSG_BEAT);
    p.now.mono_ms = 6300;
    hear(&p, (struct run_msg){ .kind = MSG_PING, .mono_us = 1 });
    assert_int_equal(session_core_fence_due(p.member), 6000 + 15000 - 2000);
    while (!told_ms) {
        const uint64_t chatter_ms = p.now.mono_ms + 700;

        if (session_core_deadline(p.member) <= chatter_ms) {
            p.now.mono_ms = MAX_OF(p.now.mono_ms, session_core_deadline(p.member));
            feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
            for (size_t i = 0; i < p.fx.count; i++)
                if (p.fx.at[i].kind == SESSION_FX_NOTIFY) {
                    assert_int_equal(p.fx.at[i].notice.news, RDZV_NEWS_BACKEND);
                    told_ms = p.now.mono_ms;
                }
        } else {
            p.now.mono_ms = chatter_ms;
            hear(&p, (struct run_msg){ .kind = MSG_GATHERED, .count = 1 });
        }
    }
    assert_int_equal(told_ms, 19000);
    session_core_free(p.member);
}

/* SIGSTOP and SIGCONT, a debugger, a suspended machine. The timer comes far too late,
 * and what the host said meanwhile is read only after it. */
static void a_node_that_was_away_asks_before_it_judges(void **state)
{
    enum after { ANSWERS, EVICTS, HUNG_UP, SILENT };

    (void)state;
    for (enum after after = ANSWERS; after <= SILENT; after++) {
        struct session_config cfg = { .run_id = "job",
                                      .self = { span_str("a"), 1, 0 },
                                      .nonce = 7 };
        struct play p = { .now = { 1000, 0 } };

        rdzv_settings_init(&cfg.settings, 2, 3);
        assert_int_equal(session_core_new(&cfg, &p.member, NULL), 0);
        request(&p, RDZV_EV_JOIN);
        is_welcome(&p);
        hear(&p, joined);
        p.now.mono_ms += 30000;
        feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
        assert_int_equal(p.fx.count, 1); /* Neither news nor a hang-up. */
        is_sent(&p, 0, MSG_BEAT);
        p.now.mono_ms += 3;
        if (after == ANSWERS) {
            hear(&p, (struct run_msg){ .kind = MSG_PING, .mono_us = 1 });
            assert_int_equal(session_core_fence_due(p.member), 31000 + 13000);
        } else if (after == EVICTS || after == HUNG_UP) {
            feed(&p,
                 (struct session_event){ .kind = SESSION_EV_DOWN, .text = "reset" });
            p.now.mono_ms += 20;
            feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
            dials(&p);
        }
        if (after == EVICTS) {
            is_welcome(&p);
            hear(&p, (struct run_msg){ .kind = MSG_NEWS, .what = WIRE_EVICTED });
            assert_int_equal(told(&p, 0)->news, RDZV_NEWS_EVICTED);
        } else if (after == HUNG_UP || after == SILENT) {
            if (after == HUNG_UP)
                feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN });
            pass(&p, 15000); /* Then it was dropped: it joins again once it can. */
            assert_int_equal(told(&p, 0)->news, RDZV_NEWS_EVICTED);
            assert_int_equal(p.now.mono_ms, 33000);
            request(&p, RDZV_EV_JOIN);
        }
        session_core_free(p.member);
    }
}

/* It was stopped while it joined. When it goes on it reads that it has joined, and that
 * the connection is gone, and only then comes the timer. */
static void a_node_that_was_away_reads_first(void **state)
{
    struct session_config cfg = { .run_id = "job",
                                  .self = { span_str("a"), 1, 0 },
                                  .nonce = 7 };
    struct play p = { .now = { 1000, 0 } };

    (void)state;
    rdzv_settings_init(&cfg.settings, 2, 3);
    assert_int_equal(session_core_new(&cfg, &p.member, NULL), 0);
    request(&p, RDZV_EV_JOIN);
    is_welcome(&p);
    p.now.mono_ms += 30000;
    hear(&p, joined);
    feed(&p, (struct session_event){ .kind = SESSION_EV_DOWN, .text = "closed" });
    feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
    assert_int_equal(p.fx.count, 0);
    p.now.mono_ms += 20;
    feed(&p, (struct session_event){ .kind = SESSION_EV_TIMER });
    dials(&p);
    is_welcome(&p);
    hear(&p, (struct run_msg){ .kind = MSG_NEWS, .what = WIRE_EVICTED });
    assert_int_equal(told(&p, 0)->news, RDZV_NEWS_EVICTED);
    session_core_free(p.member);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_node_is_told_at_once),
        cmocka_unit_test(a_node_without_a_host_waits_for_it),
        cmocka_unit_test(requests_survive_a_reconnect),
        cmocka_unit_test(a_round_that_was_not_asked_for),
        cmocka_unit_test(messages_that_crossed_a_leave_are_ignored),
        cmocka_unit_test(an_unheard_leave_is_sent_again),
        cmocka_unit_test(a_node_hung_up_on_asks_less_and_less_often),
        cmocka_unit_test(a_host_that_falls_silent_is_known_in_time),
        cmocka_unit_test(only_an_answer_is_a_sign_that_we_are_heard),
        cmocka_unit_test(a_node_that_was_away_asks_before_it_judges),
        cmocka_unit_test(a_node_that_was_away_reads_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
