/* The reader of stacks on real processes: stacks/reader.c, collect.c, native.c. */
#include "testing.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/proc.h"
#include "stacks/core/findings.h"
#include "stacks/native.h"
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

/* A crowded machine may take its time to let a process go back to sleep. */
static void until_state(pid_t pid, char state)
{
    for (unsigned ms = 0; proc_state(pid, NULL) != state; ms++) {
        assert_true(ms < PATIENCE_MS);
        usleep(1000);
    }
}

static pid_t sleeper(void)
{
    const pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    until_state(pid, 'S');
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void look_at(struct seen *s, const struct stacks_target *targets, size_t count,
                    char *const *envp, enum stacks_depth depth, uint64_t timeout_ms,
                    struct span known, bool cancel)
{
    struct stacks_reading *r;
    uv_loop_t loop;
    const struct stacks_read_opts opts = {
        .loop = &loop,
        .targets = targets,
        .count = count,
        .node = "here",
        .envp = envp,
        .depth = depth,
        .timeout_ms = timeout_ms,
        .known = known,
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

static void look(struct seen *s, const struct stacks_target *targets, size_t count,
                 char *const *envp, uint64_t timeout_ms, bool cancel)
{
    look_at(s, targets, count, envp, STACKS_FULL, timeout_ms, span_of(NULL, 0), cancel);
}

static void a_process_is_seen_with_its_frames_and_left_as_it_was(void **state)
{
    char *envp[] = { NULL };
    const pid_t pid = sleeper(), stopped = sleeper();
    const struct stacks_target targets[] = { { 4, 0, pid }, { 5, 1, stopped } };
    struct seen s = { 0 };

    (void)state;
    kill(stopped, SIGSTOP);
    until_state(stopped, 'T');
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
    until_state(pid, 'S');
    until_state(stopped, 'T');
    end(pid);
    end(stopped);
    stack_sample_fini(&s.sample);
}

#ifdef HAVE_LIBDW
/* The parent of a vfork is uninterruptible until its child ends. */
static pid_t uninterruptible(int until, int out)
{
    const pid_t pid = fork();

    if (pid == 0) {
        char byte;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (vfork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(read(until, &byte, 1) == 1 ? 0 : 1);
        }
        _exit(write(out, "!", 1) == 1 ? 0 : 1);
    }
    until_state(pid, 'D');
    return pid;
}

/* It does not stop when it is told to, and must not do so later, while we still run. */
static void a_thread_that_does_not_stop_is_let_go(void **state)
{
    struct arena arena = { 0 };
    int until[2], out[2], status;
    char byte;

    (void)state;
    assert_int_equal(pipe(until), 0);
    assert_int_equal(pipe(out), 0);
    struct stack_process p = { .pid = uninterruptible(until[0], out[1]) };
    assert_int_equal(native_read(&arena, &p, 0, NULL), MUSTER_EIO);
    assert_int_equal(write(until[1], "!", 1), 1);
    assert_int_equal(poll(&(struct pollfd){ out[0], POLLIN, 0 }, 1, (int)PATIENCE_MS),
                     1);
    assert_int_equal(read(out[0], &byte, 1), 1);
    assert_int_equal(waitpid((pid_t)p.pid, &status, 0), p.pid);
    assert_int_equal(status, 0);
    arena_fini(&arena);
    for (size_t i = 0; i < 2; i++) {
        close(until[i]);
        close(out[i]);
    }
}
#endif

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

/* A program that is called python, and one in place of py-spy that says what is wanted.
 */
struct python {
    char folder[32], program[64], spy[64], env[96];
    char *envp[2];
    pid_t pid;
    int in[2], out[2];
};

static void write_program(const char *path, const char *text, const char *copy_of)
{
    char chunk[65536];
    const int from = copy_of ? open(copy_of, O_RDONLY | O_CLOEXEC) : -1;
    const int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ssize_t n = text ? (ssize_t)strlen(text) : 0;

    assert_true(to >= 0 && (!copy_of || from >= 0));
    assert_true(write(to, text ? text : "", (size_t)n) == n);
    while (from >= 0 && (n = read(from, chunk, sizeof chunk)) > 0)
        assert_true(write(to, chunk, (size_t)n) == n);
    if (from >= 0)
        close(from);
    close(to);
}

static void python_says(struct python *p, const char *script)
{
    write_program(p->spy, script, NULL);
}

static void python_start(struct python *p)
{
    strcpy(p->folder, "/tmp/test_reader_XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->program, sizeof p->program, "%s/python", p->folder);
    snprintf(p->spy, sizeof p->spy, "%s/py-spy", p->folder);
    snprintf(p->env, sizeof p->env, "MUSTER_PY_SPY=%s", p->spy);
    p->envp[0] = p->env;
    p->envp[1] = NULL;
    write_program(p->program, NULL, "/bin/cat");
    assert_int_equal(pipe(p->in), 0);
    assert_int_equal(pipe(p->out), 0);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(p->in[0], 0);
        dup2(p->out[1], 1);
        execl(p->program, "cat", (char *)NULL);
        _exit(127);
    }
    char byte; /* Once it has answered it sleeps for good. */
    assert_int_equal(write(p->in[1], "!", 1), 1);
    assert_int_equal(read(p->out[0], &byte, 1), 1);
    until_state(p->pid, 'S');
}

static void python_end(struct python *p)
{
    end(p->pid);
    for (size_t i = 0; i < 2; i++) {
        close(p->in[i]);
        close(p->out[i]);
    }
    unlink(p->program);
    unlink(p->spy);
    rmdir(p->folder);
}

#define SAYS                                                                           \
    "#!/bin/sh\n"                                                                      \
    "echo '[{\"pid\": 1, \"thread_id\": 1, \"thread_name\": \"MainThread\", "          \
    "\"os_thread_id\": 1, \"active\": false, \"owns_gil\": false, \"frames\": "        \
    "[{\"name\": \"load\", \"short_filename\": \"data.py\", \"filename\": "            \
    "\"data.py\", \"line\": 31}]}]'\n"

static size_t python_frames(const struct seen *s)
{
    assert_int_equal(s->calls, 1);
    assert_int_equal(s->status, 0);
    assert_int_equal(s->sample.count, 1);
    const struct stack_thread *t = stack_main_thread(&s->sample.ranks[0].processes[0]);

    return t ? t->python_count : 0;
}

/* A py-spy that never answers: what /proc knows comes in time. */
static void a_reader_that_hangs_is_cut_short(void **state)
{
    struct python p;
    struct seen s = { 0 };

    (void)state;
    python_start(&p);
    python_says(&p, "#!/bin/sh\nsleep 3600\n");
    look(&s, &(struct stacks_target){ 0, 0, p.pid }, 1, p.envp, 700, false);
    assert_int_equal(python_frames(&s), 0);
    assert_int_equal(s.sample.ranks[0].processes[0].state, 'S');
    stack_sample_fini(&s.sample);
    python_end(&p);
}

/* What was read before is still true of a process that has not run since: a look leaves
 * it out, and a full reading falls back on it. */
static void one_that_has_not_run_needs_no_second_reading(void **state)
{
    struct python p;
    struct seen first = { 0 }, again = { 0 }, full = { 0 }, later = { 0 };
    struct buf known;

    (void)state;
    python_start(&p);
    const struct stacks_target target = { 0, 0, p.pid };
    python_says(&p, SAYS);
    look_at(&first, &target, 1, p.envp, STACKS_QUICK, PATIENCE_MS, span_of(NULL, 0),
            false);
    assert_int_equal(python_frames(&first), 1);
    buf_init(&known, SIZE_MAX);
    assert_int_equal(stack_sample_print(&known, &first.sample, "here"), 0);

    python_says(&p, "#!/bin/sh\nexit 1\n");
    look_at(&again, &target, 1, p.envp, STACKS_QUICK, PATIENCE_MS, buf_span(&known),
            false);
    assert_int_equal(python_frames(&again), 1);
    look_at(&full, &target, 1, p.envp, STACKS_FULL, PATIENCE_MS, buf_span(&known),
            false);
    assert_int_equal(python_frames(&full), 1);
    assert_string_equal(full.sample.ranks[0].processes[0].missing, "");

    kill(p.pid, SIGSTOP);
    until_state(p.pid, 'T');
    kill(p.pid, SIGCONT);
    until_state(p.pid, 'S');
    look_at(&later, &target, 1, p.envp, STACKS_QUICK, PATIENCE_MS, buf_span(&known),
            false);
    assert_int_equal(python_frames(&later), 0);
    buf_fini(&known);
    stack_sample_fini(&first.sample);
    stack_sample_fini(&again.sample);
    stack_sample_fini(&full.sample);
    stack_sample_fini(&later.sample);
    python_end(&p);
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
#ifdef HAVE_LIBDW
        cmocka_unit_test(a_thread_that_does_not_stop_is_let_go),
#endif
        cmocka_unit_test(one_that_is_gone_is_told_as_such),
        cmocka_unit_test(a_reader_that_hangs_is_cut_short),
        cmocka_unit_test(one_that_has_not_run_needs_no_second_reading),
        cmocka_unit_test(a_reading_can_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
