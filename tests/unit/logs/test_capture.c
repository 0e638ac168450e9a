/* test_capture.c - a worker's stderr on its way to a console that is a pipe. */
#include "logs/capture.h"

#include <fcntl.h>
#include <unistd.h>

#include "testing.h"

struct rig {
    uv_loop_t loop;
    struct captures *captures;
    int console; /* the end that a reader has */
    int stderr_before;
};

static void open_rig(struct rig *r)
{
    struct muster_error err;
    int ends[2];

    assert_int_equal(uv_loop_init(&r->loop), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    r->console = ends[0];
    r->stderr_before = fcntl(2, F_DUPFD_CLOEXEC, 3);
    assert_true(r->stderr_before >= 3);
    assert_int_equal(dup2(ends[1], 2), 2);
    close(ends[1]);
    assert_int_equal(captures_open(&r->loop, 1, &r->captures, &err), 0);
}

static void close_rig(struct rig *r)
{
    captures_close(r->captures);
    (void)uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
    assert_int_equal(dup2(r->stderr_before, 2), 2);
    close(r->stderr_before);
    close(r->console);
}

static void note_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    *(bool *)poll->data = true;
    uv_poll_stop(poll);
}

/* A worker ends, something else of the loop's is opened, and the next attempt begins. A
 * store that was opened then never heard of its clients: its descriptor had got the
 * number of the worker's pipe, and was forgotten in the place of that. */
static void what_is_opened_after_a_workers_end_is_watched(void **state)
{
    int out = 1, err = -1, ends[2][2];
    int64_t traceback_us;
    uv_poll_t polls[2];
    bool readable[2] = { false, false };
    char text[8];
    struct rig r;

    (void)state;
    open_rig(&r);
    captures_worker(r.captures, 0, &out, &err);
    assert_true(err >= 0);
    assert_int_equal(write(err, "oh", 2), 2);
    close(err);
    while (captures_tail(r.captures, 0, &traceback_us).n < 2)
        (void)uv_run(&r.loop, UV_RUN_ONCE);
    (void)uv_run(&r.loop, UV_RUN_DEFAULT); /* until its end is known, too */
    assert_int_equal(read(r.console, text, sizeof text), 2);

    for (size_t i = 0; i < ARRAY_LEN(polls); i++) { /* Two, as it may be the second. */
        assert_int_equal(pipe2(ends[i], O_CLOEXEC), 0);
        assert_int_equal(uv_poll_init(&r.loop, &polls[i], ends[i][0]), 0);
        polls[i].data = &readable[i];
        assert_int_equal(uv_poll_start(&polls[i], UV_READABLE, note_readable), 0);
    }
    (void)uv_run(&r.loop, UV_RUN_NOWAIT); /* now the kernel knows them */
    captures_reset(r.captures);
    for (size_t i = 0; i < ARRAY_LEN(polls); i++)
        assert_int_equal(write(ends[i][1], "x", 1), 1);
    for (int turns = 0; turns < 3; turns++)
        (void)uv_run(&r.loop, UV_RUN_NOWAIT);
    assert_true(readable[0]);
    assert_true(readable[1]);

    for (size_t i = 0; i < ARRAY_LEN(polls); i++) {
        uv_close((uv_handle_t *)&polls[i], NULL);
        close(ends[i][0]);
        close(ends[i][1]);
    }
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_opened_after_a_workers_end_is_watched),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
