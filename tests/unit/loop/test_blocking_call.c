/* test_blocking_call.c - blocking calls on threads of their own: in time, too late,
 * given up before and after the thread is through, many at once. Also under the thread
 * sanitizer. */
#include "testing.h"

#include <semaphore.h>

#include "base/mem.h"
#include "loop/blocking_call.h"

#define LONG_MS 60000u

struct job {
    sem_t *hold;   /* the work waits for it, if there is one */
    sem_t *passed; /* and tells here that it is through */
    int number;
};

static void work(void *data)
{
    struct job *j = data;

    if (j->hold)
        while (sem_wait(j->hold) < 0)
            ;
    j->number++;
    if (j->passed)
        (void)sem_post(j->passed);
}

struct seen {
    int calls, late, sum;
};

static void done(void *ctx, void *data)
{
    struct seen *s = ctx;
    const struct job *j = data;

    s->calls++;
    if (j)
        s->sum += j->number;
    else
        s->late++;
}

static int begin(uv_loop_t *loop, struct job like, uint64_t timeout_ms,
                 struct seen *seen, struct blocking_call **out)
{
    struct job *j = mem_memdup(&like, sizeof like);
    const int rc =
        j ? blocking_call_run(loop, work, j, timeout_ms, done, seen, out, NULL)
          : MUSTER_ENOMEM;

    if (rc < 0)
        mem_free(j);
    return rc;
}

static void end(uv_loop_t *loop)
{
    assert_int_equal(uv_run(loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(loop), 0);
}

static void in_time(void **state)
{
    struct seen seen = { 0 };
    struct blocking_call *o;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(begin(&loop, (struct job){ .number = 4 }, LONG_MS, &seen, &o), 0);
    end(&loop);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.late, 0);
    assert_int_equal(seen.sum, 5);
}

/* The thread goes on after the loop is gone, and touches nothing of it. */
static void too_late(void **state)
{
    struct seen seen = { 0 };
    struct blocking_call *o;
    sem_t hold, passed;
    uv_loop_t loop;

    (void)state;
    (void)sem_init(&hold, 0, 0);
    (void)sem_init(&passed, 0, 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(
        begin(&loop, (struct job){ .hold = &hold, .passed = &passed }, 1, &seen, &o),
        0);
    end(&loop);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.late, 1);
    (void)sem_post(&hold);
    (void)sem_wait(&passed);
}

static void given_up(void **state)
{
    struct seen seen = { 0 };
    struct blocking_call *early, *through;
    sem_t hold, passed;
    uv_loop_t loop;

    (void)state;
    (void)sem_init(&hold, 0, 0);
    (void)sem_init(&passed, 0, 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(begin(&loop, (struct job){ .hold = &hold, .passed = &passed },
                           LONG_MS, &seen, &early),
                     0);
    assert_int_equal(
        begin(&loop, (struct job){ .passed = &passed }, LONG_MS, &seen, &through), 0);
    (void)sem_wait(&passed); /* its answer may be on its way, and must not come */
    blocking_call_cancel(early);
    blocking_call_cancel(through);
    blocking_call_cancel(NULL);
    end(&loop);
    assert_int_equal(seen.calls, 0);
    (void)sem_post(&hold);
    (void)sem_wait(&passed);
}

static void many(void **state)
{
    enum { COUNT = 64 };
    struct seen seen = { 0 };
    struct blocking_call *o;
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(begin(&loop, (struct job){ .number = i }, LONG_MS, &seen, &o),
                         0);
    end(&loop);
    assert_int_equal(seen.calls, COUNT);
    assert_int_equal(seen.late, 0);
    assert_int_equal(seen.sum, COUNT * (COUNT + 1) / 2);
}

static void no_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct seen seen = { 0 };
        struct blocking_call *o;
        uv_loop_t loop;
        int rc;

        assert_int_equal(uv_loop_init(&loop), 0);
        rc = begin(&loop, (struct job){ .number = 1 }, LONG_MS, &seen, &o);
        assert_int_equal(rc, failing_rc(&f));
        end(&loop);
        assert_int_equal(seen.calls, rc == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_time),   cmocka_unit_test(too_late),
        cmocka_unit_test(given_up),  cmocka_unit_test(many),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
