/* test_loop.c - deferred calls, deadlines and sets of handles on a real loop. */
#include "testing.h"

#include "loop/clock.h"
#include "loop/deadline.h"
#include "loop/defer.h"
#include "loop/handle_set.h"

struct counts {
    struct defer defer;
    struct deadline deadline;
    struct handle_set closing;
    int calls, closed;
    bool again;
};

static void on_call(void *ctx)
{
    struct counts *c = ctx;

    c->calls++;
    if (c->again) {
        c->again = false;
        defer_call(&c->defer);
    }
}

static void on_closed(void *ctx)
{
    ((struct counts *)ctx)->closed++;
}

static void close_all(struct counts *c)
{
    handle_set_begin(&c->closing, on_closed, c);
    handle_set_close(&c->closing, &c->defer.idle);
    handle_set_close(&c->closing, &c->deadline.timer);
    handle_set_end(&c->closing);
}

static void open_all(struct counts *c, uv_loop_t *loop)
{
    *c = (struct counts){ 0 };
    assert_int_equal(uv_loop_init(loop), 0);
    defer_init(&c->defer, loop, on_call, c);
    deadline_init(&c->deadline, loop, on_call, c);
}

static void test_deferred_call_comes_once_and_later(void **state)
{
    struct counts c;
    uv_loop_t loop;

    (void)state;
    open_all(&c, &loop);
    defer_call(&c.defer);
    defer_call(&c.defer);
    assert_int_equal(c.calls, 0);
    c.again = true; /* Asked for from within, it comes once more. */
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(c.calls, 2);
    close_all(&c);
    assert_int_equal(c.closed, 0);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(c.closed, 1);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void test_deadline_is_replaced(void **state)
{
    struct counts c;
    uv_loop_t loop;

    (void)state;
    open_all(&c, &loop);
    deadline_set(&c.deadline, clock_mono_ms() + 3600 * 1000);
    deadline_set(&c.deadline, clock_mono_ms() - 1); /* due already */
    assert_int_equal(c.calls, 0);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(c.calls, 1);
    deadline_set(&c.deadline, clock_mono_ms() + 3600 * 1000);
    deadline_set(&c.deadline, MONO_NEVER);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(c.calls, 1);
    close_all(&c);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void test_set_waits_for_the_last(void **state)
{
    struct counts c;
    uv_loop_t loop;

    (void)state;
    open_all(&c, &loop);
    handle_set_begin(&c.closing, on_closed, &c);
    handle_set_close(&c.closing, &c.defer.idle);
    handle_set_close(&c.closing, &c.deadline.timer);
    handle_set_add(&c.closing); /* something that is not a handle */
    handle_set_end(&c.closing);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(c.closed, 0);
    handle_set_left(&c.closing);
    assert_int_equal(c.closed, 1);
    handle_set_begin(&c.closing, on_closed, &c);
    handle_set_end(&c.closing); /* There was nothing to wait for. */
    assert_int_equal(c.closed, 2);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deferred_call_comes_once_and_later),
        cmocka_unit_test(test_deadline_is_replaced),
        cmocka_unit_test(test_set_waits_for_the_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
