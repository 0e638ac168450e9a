/* The reader of stacks on real processes: stacks/reader.c, collect.c, native.c. */
#include "testing.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/proc.h"
#include "stacks/core/findings.h"
#include "stacks/reader.h"

struct seen {
    int calls, status;
    struct stack_sample sample;
};

static void on_read(void *ctx, int status, struct span json,
                    const struct muster_error *err)
{
    struct seen *s = ctx;

    (void)err;
    s->calls++;
    s->status = status;
    if (status == 0)
        assert_int_equal(stack_sample_parse(&s->sample, json, NULL), 0);
}

static pid_t sleeper(void)
{
    const pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    while (proc_state(pid, NULL) != 'S')
        usleep(1000);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void look(struct seen *s, const struct stacks_target *targets, size_t count,
                 char *const *envp, uint64_t timeout_ms, bool cancel)
{
    struct stacks_reading *r;
    uv_loop_t loop;
    const struct stacks_read_opts opts = {
        .loop = &loop,
        .targets = targets,
        .count = count,
        .node = "here",
        .envp = envp,
        .depth = STACKS_FULL,
        .timeout_ms = timeout_ms,
        .done = on_read,
        .ctx = s,
    };

    uv_loop_init(&loop);
    assert_int_equal(stacks_read(&opts, &r, NULL), 0);
    assert_int_equal(s->calls, 0);
    if (cancel)
        stacks_read_cancel(r);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG) > 0, 0); /* nothing to be reaped */
}

static void a_process_is_seen_with_its_frames_and_left_as_it_was(void **state)
{
    char *envp[] = { NULL };
    const pid_t pid = sleeper(), stopped = sleeper();
    const struct stacks_target targets[] = { { 4, 0, pid }, { 5, 1, stopped } };
    struct seen s = { 0 };

    (void)state;
    kill(stopped, SIGSTOP);
    while (proc_state(stopped, NULL) != 'T')
        usleep(1000);
    look(&s, targets, 2, envp, PATIENCE_MS, false);
    assert_int_equal(s.calls, 1);
    assert_int_equal(s.status, 0);
    assert_int_equal(s.sample.count, 2);
    assert_string_equal(s.sample.ranks[0].node, "here");
    const struct stack_process *p = &s.sample.ranks[0].processes[0];
    assert_int_equal(s.sample.ranks[0].rank, 4);
    assert_int_equal(p->pid, pid);
    assert_int_equal(p->state, 'S');
    assert_int_equal(p->parent, getpid());
    assert_int_equal(stack_kind_of(&s.sample.ranks[1]), STACK_STOPPED);
#ifdef HAVE_LIBDW
    assert_true(p->thread_count == 1 && p->threads[0].native_count > 2);
    bool found = false;
    for (size_t i = 0; i < p->threads[0].native_count; i++)
        found = found || strcmp(p->threads[0].native[i].name, "main") == 0;
    assert_true(found);
#endif
    assert_int_equal(proc_state(pid, NULL), 'S');
    assert_int_equal(proc_state(stopped, NULL), 'T');
    end(pid);
    end(stopped);
    stack_sample_fini(&s.sample);
}

static void one_that_is_gone_is_told_as_such(void **state)
{
    char *envp[] = { NULL };
    const pid_t pid = sleeper();
    const struct stacks_target target = { 0, 0, pid };
    struct seen s = { 0 };

    (void)state;
    end(pid);
    look(&s, &target, 1, envp, PATIENCE_MS, false);
    assert_int_equal(s.status, 0);
    assert_int_equal(stack_kind_of(&s.sample.ranks[0]), STACK_GONE);
    stack_sample_fini(&s.sample);
}

/* A py-spy that never answers: what /proc knows comes in time. */
static void a_reader_that_hangs_is_cut_short(void **state)
{
    char spy[] = "MUSTER_PY_SPY=/tmp/test_reader_spy_XXXXXX";
    char *path = strchr(spy, '=') + 1;
    char *envp[] = { spy, NULL };
    const struct stacks_target target = { 0, 0, getpid() };
    struct seen s = { 0 };
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_true(write(fd, "#!/bin/sh\nsleep 60\n", 19) == 19);
    assert_int_equal(fchmod(fd, 0755), 0);
    close(fd);
    look(&s, &target, 1, envp, 700, false);
    assert_int_equal(s.calls, 1);
    assert_int_equal(s.status, 0);
    assert_int_equal(s.sample.count, 1);
    unlink(path);
    stack_sample_fini(&s.sample);
}

static void a_reading_can_be_given_up(void **state)
{
    char *envp[] = { NULL };
    const struct stacks_target target = { 0, 0, getpid() };
    struct seen s = { 0 };

    (void)state;
    look(&s, &target, 1, envp, PATIENCE_MS, true);
    assert_int_equal(s.calls, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_is_seen_with_its_frames_and_left_as_it_was),
        cmocka_unit_test(one_that_is_gone_is_told_as_such),
        cmocka_unit_test(a_reader_that_hangs_is_cut_short),
        cmocka_unit_test(a_reading_can_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
