/* test_session.c - the session over real sockets, and inside one process. */
#include "testing.h"

#include <stdio.h>

#include "job/session.h"
#include "store/extension.h"
#include "store/server.h"

struct side {
    struct session *c;
    size_t entries, answers;
    char text[64], answer[2][64];
    bool complete, synced, gone, asked;
};

static uv_loop_t loop;

static void on_entry(void *ctx, const struct record_entry *e)
{
    struct side *s = ctx;

    s->entries++;
    if (e->kind == RECORD_NOTE)
        snprintf(s->text, sizeof s->text, "%u:%.*s", e->node, (int)e->text.n,
                 (const char *)e->text.p);
}

static void open_side(struct side *s, const char *host)
{
    const struct session_opts opts = { .loop = &loop,
                                       .run_id = "job",
                                       .host = host,
                                       .pid = 1,
                                       .nproc = 2,
                                       .on_entry = on_entry,
                                       .ctx = s };

    assert_int_equal(session_open(&opts, &s->c, NULL), 0);
}

static void on_tick(uv_timer_t *t)
{
    (void)t; /* The timer only keeps uv_run() from waiting for ever. */
}

static void on_tick_closed(uv_handle_t *h)
{
    mem_free(h);
}

static void spin(bool (*done)(struct side *a, struct side *b), struct side *a,
                 struct side *b)
{
    const uint64_t by = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    uv_timer_t *tick = mem_calloc(1, sizeof *tick);

    uv_timer_init(&loop, tick);
    uv_timer_start(tick, on_tick, 5, 5);
    while (!done(a, b) && uv_hrtime() < by)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)tick, on_tick_closed);
    assert_true(done(a, b));
}

static void on_gone(void *ctx)
{
    ((struct side *)ctx)->gone = true;
}

static bool both_up(struct side *a, struct side *b)
{
    return session_shared(a->c) && session_shared(b->c);
}

static bool both_have_note(struct side *a, struct side *b)
{
    return a->text[0] && b->text[0];
}

static bool has_note(struct side *a, struct side *b)
{
    (void)b;
    return a->text[0] != '\0';
}

static bool both_gone(struct side *a, struct side *b)
{
    return a->gone && (!b || b->gone);
}

static bool synced(struct side *a, struct side *b)
{
    (void)b;
    return a->synced;
}

static void on_synced(void *ctx)
{
    ((struct side *)ctx)->synced = true;
}

static bool up(struct side *a, struct side *b)
{
    (void)b;
    return session_state(a->c) == SESSION_UP;
}

static bool answered(struct side *a, struct side *b)
{
    (void)b;
    return a->answers > 0;
}

static void on_answers(void *ctx, const struct session_answer *answers, size_t count,
                       bool complete)
{
    struct side *s = ctx;

    s->answers = count;
    s->complete = complete;
    for (size_t i = 0; i < count && i < 2; i++)
        snprintf(s->answer[i], sizeof s->answer[i], "%.*s=%.*s", (int)answers[i].host.n,
                 (const char *)answers[i].host.p, (int)answers[i].bytes.n,
                 (const char *)answers[i].bytes.p);
}

static void answer(void *ctx, struct session_question *q, struct span payload)
{
    struct side *s = ctx;

    s->asked = true;
    session_answer(q, payload);
}

static void publish(struct side *s, const char *text)
{
    const struct record_entry e = { .kind = RECORD_NOTE, .text = span_str(text) };

    assert_int_equal(session_publish(s->c, &e), 0);
}

static struct store_server *serve(void)
{
    struct store_server_opts opts;
    struct store_server *server;

    store_server_opts_init(&opts);
    opts.extension = &run_extension;
    opts.bind = "127.0.0.1";
    assert_int_equal(store_server_open(&loop, &opts, &server, NULL), 0);
    return server;
}

static void test_two_nodes(void **state)
{
    struct side a = { 0 }, b = { 0 };
    struct store_server *server;

    (void)state;
    uv_loop_init(&loop);
    server = serve();
    open_side(&a, "n1");
    open_side(&b, "n2");
    publish(&a, "before there is anybody"); /* kept until it can be sent */
    session_attach(a.c, "127.0.0.1", store_server_port(server), true, false);
    session_attach(b.c, "127.0.0.1", store_server_port(server), false, false);
    spin(both_up, &a, &b);
    spin(both_have_note, &a, &b);
    assert_true(session_node(a.c) != session_node(b.c));

    session_sync(b.c, 5000, on_synced, &b);
    spin(synced, &b, &a);
    assert_int_equal(session_on_question(a.c, "echo", answer, &a), 0);
    assert_int_equal(session_on_question(b.c, "echo", answer, &b), 0);
    assert_int_equal(
        session_ask(b.c, "echo", span_str("hi"), 5000, on_answers, &b, NULL), 0);
    spin(answered, &b, &a);
    assert_int_equal(b.answers, 2);
    assert_true(b.complete && a.asked && b.asked);
    b.answers = 0;
    assert_int_equal(
        session_ask(b.c, "unknown", span_str(""), 5000, on_answers, &b, NULL), 0);
    spin(answered, &b, &a);
    assert_false(b.complete); /* known at once, not after five seconds */

    session_close(a.c, on_gone, &a);
    session_close(b.c, on_gone, &b);
    spin(both_gone, &a, &b);
    store_server_close(server, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void test_alone(void **state)
{
    struct side a = { 0 };

    (void)state;
    uv_loop_init(&loop);
    open_side(&a, "n1");
    session_attach_alone(a.c, false);
    publish(&a, "x");
    assert_int_equal(a.entries, 0); /* never from inside the call */
    spin(has_note, &a, NULL);
    assert_string_equal(a.text, "1:x");
    assert_int_equal(session_state(a.c), SESSION_ALONE);
    assert_int_equal(session_on_question(a.c, "echo", answer, &a), 0);
    assert_int_equal(
        session_ask(a.c, "echo", span_str("hi"), 5000, on_answers, &a, NULL), 0);
    spin(answered, &a, NULL);
    assert_string_equal(a.answer[0], "n1=hi");
    session_close(a.c, on_gone, &a);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(a.gone);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* On a store of torchrun's a node keeps a record of its own, and knows that it does not
 * cover the others. */
static void test_others_out_of_reach(void **state)
{
    struct side a = { 0 };

    (void)state;
    uv_loop_init(&loop);
    open_side(&a, "n1");
    session_attach_alone(a.c, true);
    publish(&a, "x");
    spin(has_note, &a, NULL);
    assert_int_equal(session_state(a.c), SESSION_UNSHARED);
    session_close(a.c, on_gone, &a);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* A node that has joined by way of a store knows what the store can do, and asks
 * neither again nor over another connection. */
static void test_known(void **state)
{
    uint64_t requests[2];

    (void)state;
    for (int known = 0; known < 2; known++) {
        struct store_server_stats stats;
        struct store_server *server;
        struct side a = { 0 };

        uv_loop_init(&loop);
        server = serve();
        open_side(&a, "n1");
        session_attach(a.c, "127.0.0.1", store_server_port(server), false, known);
        spin(up, &a, NULL);
        store_server_stats(server, &stats);
        requests[known] = stats.requests;
        session_close(a.c, on_gone, &a);
        store_server_close(server, NULL, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&loop), 0);
    }
    /* There is no CHECK and no GET; a PONG may have come meanwhile. */
    assert_true(requests[1] + 1 <= requests[0]);
}

/* The coordinator's process ends, and another one takes over: the record goes on. */
static void test_moves(void **state)
{
    struct side a = { 0 }, b = { 0 };
    struct store_server *first, *second;

    (void)state;
    uv_loop_init(&loop);
    first = serve();
    second = serve();
    open_side(&a, "n1");
    open_side(&b, "n2");
    session_attach(a.c, "127.0.0.1", store_server_port(first), false, false);
    publish(&a, "one");
    spin(has_note, &a, &b);
    const uint64_t last = session_record(a.c)->last;
    store_server_close(first, NULL, NULL);
    session_attach(a.c, "127.0.0.1", store_server_port(second), false, false);
    session_attach(b.c, "127.0.0.1", store_server_port(second), false, false);
    a.text[0] = '\0';
    publish(&a, "two");
    spin(both_have_note, &a, &b);
    assert_true(session_record(b.c)->last > last);

    /* Whoever waits to be the last goes on waiting for that at a third one. */
    session_wait_last(a.c, PATIENCE_MS, on_synced, &a);
    store_server_close(second, NULL, NULL);
    struct store_server *third = serve();
    session_attach(b.c, "127.0.0.1", store_server_port(third), false, false);
    a.text[0] = b.text[0] = '\0';
    publish(&b, "three");
    spin(has_note, &b, &a);
    session_attach(a.c, "127.0.0.1", store_server_port(third), false, false);
    spin(both_have_note, &a, &b);
    a.text[0] = '\0';
    publish(&a,
            "four"); /* Its answer comes after the one to the wait, if there is one. */
    spin(has_note, &a, &b);
    assert_false(a.synced);
    session_close(b.c, on_gone, &b);
    spin(synced, &a, &b);

    session_close(a.c, on_gone, &a);
    store_server_close(third, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(a.gone && b.gone);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_others_out_of_reach),
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_moves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
