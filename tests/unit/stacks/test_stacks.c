/* What is seen of workers, and what it means: stacks/core. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "stacks/core/faulthandler.h"
#include "stacks/core/findings.h"
#include "stacks/core/procfs.h"
#include "stacks/core/pyspy.h"

/* --- texts of others -------------------------------------------------------------- */

static const char spy_text[] =
    "[{\"pid\": 7, \"thread_id\": 1, \"thread_name\": \"Thread-1\", \"os_thread_id\": "
    "9,"
    " \"owns_gil\": true, \"frames\": [{\"name\": \"hold\", \"filename\": \"/a/x.py\","
    " \"short_filename\": \"x.py\", \"line\": 3}]},"
    " {\"pid\": 7, \"thread_name\": \"MainThread\", \"os_thread_id\": 7, \"frames\": ["
    "{\"name\": \"main\", \"filename\": \"/a/x.py\", \"short_filename\": null,"
    " \"line\": -4}]}]";

static void py_spy_is_read_with_the_main_thread_first(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct stack_process p = { .pid = 7 };
        struct arena a = { 0 };
        struct muster_error err;
        const int rc = pyspy_parse(&a, &p, span_str(spy_text), &err);

        if (rc == 0) {
            assert_int_equal(p.thread_count, 2);
            assert_string_equal(p.threads[0].name, "MainThread");
            assert_string_equal(p.threads[0].python[0].file, "/a/x.py");
            assert_int_equal(p.threads[0].python[0].line, 0);
            assert_true(p.threads[1].gil);
            assert_string_equal(p.threads[1].python[0].name, "hold");
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
            assert_int_equal(p.thread_count, 0);
        }
        arena_fini(&a);
    }
}

static void other_texts_than_py_spys_are_refused(void **state)
{
    static const struct {
        const char *text;
        int want;
    } rows[] = {
        { "", MUSTER_EPROTO },         { "[]", MUSTER_EEMPTY },
        { "{}", MUSTER_EPROTO },       { "[1]", 0 },
        { "[{\"frames\": 3}]", 0 },    { "[", MUSTER_EPROTO },
        { "not json", MUSTER_EPROTO },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct stack_process p = { .pid = 7 };
        struct arena a = { 0 };
        const int rc = pyspy_parse(&a, &p, span_str(rows[i].text), NULL);

        if (rc != rows[i].want)
            fail_msg("%s: want %d, got %d", rows[i].text, rows[i].want, rc);
        arena_fini(&a);
    }
}

static void faulthandler_is_read_as_pyspy_would_tell_it(void **state)
{
    static const char one[] =
        "Stack (most recent call first):\n"
        "  File \"/v/lib/python3.11/site-packages/torch/nn/x.py\", line 28 in wait\n"
        "  File \"/usr/lib/python3.11/queue.py\", line 7 in get\n"
        "  File \"/a\", line 9 in b/train.py\", line 88 in <module>\n";
    static const struct stack_frame want[] = { { "wait", "torch/nn/x.py", 28 },
                                               { "get", "queue.py", 7 },
                                               { "<module>", "train.py", 88 } };
    char twice[2 * sizeof one];

    (void)state;
    snprintf(twice, sizeof twice, "%s%s", one, one);
    assert_false(faulthandler_whole(span_str(one)));
    assert_true(faulthandler_whole(span_str(twice)));
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct stack_process p = { .pid = 7 };
        struct arena a = { 0 };
        const int rc = faulthandler_parse(&a, &p, span_str(twice), NULL);

        if (rc == 0) {
            assert_int_equal(p.thread_count, 1);
            assert_int_equal(p.threads[0].id, 7);
            assert_int_equal(p.threads[0].python_count, ARRAY_LEN(want));
            for (size_t i = 0; i < ARRAY_LEN(want); i++) {
                assert_string_equal(p.threads[0].python[i].name, want[i].name);
                assert_string_equal(p.threads[0].python[i].file, want[i].file);
                assert_int_equal(p.threads[0].python[i].line, want[i].line);
            }
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
            assert_int_equal(p.thread_count, 0);
        }
        arena_fini(&a);
    }
}

static void other_texts_than_faulthandlers_are_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "Stack (most recent call first):\n",
        "Stack (most recent call first):\n  <no Python frame>\n",
        "Stack (most recent call first):\n  File \"x",
        "Stack (most recent call first):\n  File \"x\", line 3 of y\n",
        "  File \"x\", line 3 in y\n",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct stack_process p = { .pid = 7 };
        struct arena a = { 0 };

        if (faulthandler_parse(&a, &p, span_str(bad[i]), NULL) != MUSTER_EEMPTY)
            fail_msg("%s: taken for frames", bad[i]);
        arena_fini(&a);
    }
}

static void a_signal_is_sent_to_whoever_listens(void **state)
{
    static const struct {
        const char *says, *status;
        bool want;
    } rows[] = {
        { "listens", "x\nSigBlk:\t0000000000000000\nSigCgt:\t0000000180400002\n",
          true },
        { "blocks it", "x\nSigBlk:\t0000000000400000\nSigCgt:\t0000000180400002\n",
          false },
        { "does not", "x\nSigBlk:\t0000000000000000\nSigCgt:\t0000000180000002\n",
          false },
        { "tells nothing", "", false },
        { "is cut off", "x\nSigCgt:\t00000001804", false },
        { "tells nonsense", "x\nSigCgt:\tzzzzzzzzzzzzzzzzzz\n", false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (faulthandler_listens(span_str(rows[i].status), 23) != rows[i].want)
            fail_msg("a thread that %s", rows[i].says);
}

static void proc_is_read_whatever_a_command_is_called(void **state)
{
    struct stack_process p = { 0 };
    struct arena a = { 0 };

    (void)state;
    assert_true(procfs_stat(&a, &p, span_str("12 (a) b) (c) D 34 1 1 0 -1 4 5")));
    assert_int_equal(p.state, 'D');
    assert_int_equal(p.parent, 34);
    assert_string_equal(p.command, "a) b) (c");
    assert_true(
        procfs_cpu(&p, span_str("1 (x) S 2 3 4 5 -1 6 7 8 9 10 250 50 0"), 100));
    assert_int_equal(p.cpu_ms, 3000);
    assert_true(procfs_switches(&p, span_str("Name:\tx\nvoluntary_ctxt_switches:\t12\n"
                                             "nonvoluntary_ctxt_switches:\t3\n")));
    assert_int_equal(p.switches, 12);
    assert_true(procfs_wchan(&a, &p, span_str("futex_do_wait")));
    assert_string_equal(p.wchan, "futex_do_wait");
    assert_true(procfs_syscall(&a, &p, span_str("0 0x1 0x2")));
    assert_true(*p.syscall != '\0');
    assert_true(procfs_syscall(&a, &p, span_str("99999 0x1")));
    assert_string_equal(p.syscall, "system call 99999");
    assert_true(procfs_syscall(&a, &p, span_str("running")));

    static const char *const bad[] = {
        "",           "12",         "12 (",
        "12 (a)",     "12 (a) ",    "12 )a( S 1",
        "12 (a) Q 3", "12 (a) S x", "12 (a) S 99999999999"
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(procfs_stat(&a, &p, span_str(bad[i])));
    assert_false(procfs_cpu(&p, span_str("1 (x) S 2 3"), 100));
    assert_false(procfs_switches(&p, span_str("\nvoluntary_ctxt_switches:\t")));
    arena_fini(&a);
}

/* --- ranks in short --------------------------------------------------------------- */

#define TORCH "torch/distributed/distributed_c10d.py"

/* "S all_reduce@FILE:10 step@train.py:88 | c10d::Work::wait@libtorch.so": the state,
 * Python's frames, then native ones. "C" stands for torch's file of collectives. A "!"
 * behind the state: what is not there could not be read. */
static void add_frames(struct arena *a, struct stack_thread *t, char *text, bool native)
{
    struct stack_frame *f = arena_alloc(a, 16, sizeof *f);
    size_t n = 0;

    for (char *save, *word = strtok_r(text, " ", &save); word;
         word = strtok_r(NULL, " ", &save)) {
        char *at = strrchr(word, '@');
        char *colon = native ? NULL : strrchr(at, ':');

        *at = '\0';
        if (colon)
            *colon = '\0';
        f[n].name = arena_text(a, span_str(word));
        f[n].file = strcmp(at + 1, "C") == 0 ? TORCH : arena_text(a, span_str(at + 1));
        f[n].line = colon ? atol(colon + 1) : 0;
        n++;
    }
    if (native) {
        t->native = f;
        t->native_count = n;
    } else {
        t->python = f;
        t->python_count = n;
    }
}

static void add_rank(struct stack_sample *s, const char *node, const char *text)
{
    const int64_t number = (int64_t)s->count;
    struct stack_rank *r = stack_sample_add(s, 1);
    struct stack_process *p = &r->processes[0];
    char copy[512];

    snprintf(copy, sizeof copy, "%s", text);
    char *bar = strchr(copy, '|');
    if (bar)
        *bar++ = '\0';
    r->rank = r->local_rank = number;
    r->node = node;
    p->pid = 100 + number;
    p->state = copy[0];
    if (copy[1] == '!')
        p->missing = "no time";
    if (!copy[1])
        return;
    p->threads = arena_alloc(&s->arena, 2, sizeof *p->threads);
    p->thread_count = 1;
    p->threads[0].name = "MainThread";
    add_frames(&s->arena, &p->threads[0], copy + 1 + (copy[1] == '!'), false);
    if (bar && strncmp(bar, " GIL ", 5) == 0) { /* another thread has it */
        bar += 5;
        p->thread_count = 2;
        p->threads[1].name = "Thread-1";
        p->threads[1].gil = true;
        char holder[] = "hold@x.py:3", below[] = "sleep@libc.so.6 f@libpython3.11.so";
        add_frames(&s->arena, &p->threads[1], holder, false);
        add_frames(&s->arena, &p->threads[1], below, true);
    }
    if (bar)
        add_frames(&s->arena, &p->threads[0], bar, true);
}

#define WAITS                                                                          \
    "S all_reduce@C:10 wrapper@torch/distributed/c10d_logger.py:83 step@train.py:88"
#define BARRIER "S barrier@C:99 main@train.py:95"
#define LOADS   "S load_batch@data.py:31 main@train.py:117"
#define FORWARD                                                                        \
    "R forward@model.py:9 _call_impl@torch/nn/modules/module.py:1 "                    \
    "forward@torch/nn/parallel/distributed.py:1500 main@train.py:80"
#define BACKWARD                                                                       \
    "S _engine_run_backward@torch/autograd/graph.py:8 main@train.py:90 | "             \
    "pthread_cond_wait@libc.so.6 c10d::Work::wait@libtorch_cpu.so "                    \
    "_PyEval_EvalFrameDefault@libpython3.11.so"

#define BACKWARD_CUT                                                                   \
    "S! _engine_run_backward@torch/autograd/graph.py:8 main@train.py:90"

static const struct row {
    const char *says;
    const char *ranks[8];
    const char *want; /* the verdict, or how it begins */
} rows[] = {
    { "nobody is seen", { NULL }, "the likely cause is unknown: no rank" },
    { "one loads, the others wait", { WAITS, WAITS, LOADS, WAITS }, "rank 2 is the" },
    { "one of two loads", { WAITS, LOADS }, "rank 1 is the likely cause" },
    { "two load", { WAITS, LOADS, WAITS, LOADS }, "ranks 1, 3 are the likely cause" },
    { "two are elsewhere, each for itself",
      { WAITS, LOADS, WAITS, "R spin@x.py:1", WAITS },
      "ranks 1, 3 are the likely cause" },
    { "most load",
      { WAITS, LOADS, LOADS, LOADS },
      "the likely cause is unknown: most" },
    { "all wait",
      { WAITS, WAITS, WAITS },
      "the likely cause is unknown: all ranks wait" },
    { "all wait, one in another collective",
      { WAITS, BARRIER, WAITS },
      "rank 1 is the likely cause: the ranks have called different collectives: ranks "
      "0, 2 wait in all_reduce (train.py:88), rank 1 in barrier (train.py:95)" },
    { "half of them wait in another collective",
      { WAITS, BARRIER, BARRIER, WAITS },
      "the likely cause is unknown: the ranks have called different collectives: ranks "
      "0, 3 wait in all_reduce (train.py:88), ranks 1, 2 in barrier (train.py:95)" },
    { "all wait in one collective, from different lines",
      { WAITS, "S all_reduce@C:10 main@train.py:7", WAITS },
      "the likely cause is unknown: ranks wait in different places: ranks 0, 2 wait in "
      "all_reduce (train.py:88), rank 1 in all_reduce (train.py:7)" },
    { "one waits in another collective; not all native frames could be read",
      { WAITS " | c10d::Work::wait@libtorch_cpu.so", WAITS,
        "S! barrier@C:99 main@train.py:95" },
      "rank 2 is the likely cause: the ranks have called different collectives" },
    { "one receives, and others wait for it",
      { WAITS, "S recv@C:10 main@train.py:7", WAITS },
      "the likely cause is unknown: ranks wait in different places" },
    { "one waits natively, for who knows what",
      { WAITS, BACKWARD, WAITS },
      "the likely cause is unknown: ranks wait in different places" },
    { "one is stopped", { WAITS, "T step@train.py:88", LOADS }, "rank 1 is the" },
    { "one is stopped inside of the collective",
      { WAITS, "T all_reduce@C:10 step@train.py:88" },
      "rank 1 is the likely cause" },
    { "all are stopped",
      { "T", "T" },
      "the likely cause is unknown: every rank is st" },
    { "one is held by a debugger", { WAITS, "t" }, "rank 1 is the likely cause" },
    { "one is in the kernel",
      { "D read@x.py:2", WAITS },
      "rank 0 is the likely cause" },
    { "all are in the kernel",
      { "D", "D" },
      "the likely cause is unknown: every rank" },
    { "most are in the kernel, the rest waits",
      { "D", "D", WAITS },
      "the likely cause is unknown: most ranks" },
    { "one has exited", { WAITS, "Z", WAITS }, "rank 1 is the likely cause" },
    { "one has exited, others work",
      { FORWARD, "Z", LOADS },
      "the likely cause is unk" },
    { "a model below DDP does not wait", { FORWARD, WAITS, WAITS }, "rank 0 is the" },
    { "backward waits natively",
      { BACKWARD, LOADS, BACKWARD },
      "rank 1 is the likely" },
    { "one cannot be read",
      { WAITS, "S", WAITS },
      "the likely cause is unknown: the st" },
    { "of one only the Python frames could be read, which another one has, too",
      { BACKWARD, BACKWARD_CUT, LOADS },
      "rank 2 is the likely cause" },
    { "of one only the Python frames could be read, and it may wait",
      { BACKWARD, "S! step@train.py:91 main@train.py:120", BACKWARD },
      "the likely cause is unknown: the stacks of some ranks could not be read" },
    { "only one could be read in full",
      { BACKWARD_CUT, "S! step@train.py:91", "S load@data.py:3 | read@libc.so.6" },
      "the likely cause is unknown: the stacks of some ranks could not be read" },
    { "none can be read", { "S", "S" }, "the likely cause is unknown: no stack" },
    { "one cannot be read, another loads",
      { WAITS, "S", LOADS, WAITS },
      "rank 2 is the" },
    { "all load",
      { LOADS, LOADS, LOADS },
      "the likely cause is unknown: all ranks are" },
    { "one of two is elsewhere, nobody waits",
      { LOADS, FORWARD },
      "the likely cause is unknown: no rank is seen" },
    { "one of four is odd, nobody is seen to wait",
      { LOADS, LOADS, FORWARD, LOADS },
      "rank 2 is the likely cause" },
    { "two of four are odd, nobody is seen to wait",
      { LOADS, BARRIER, LOADS, BARRIER },
      "ranks 0, 2 are the likely cause" },
    { "each does something else",
      { LOADS, "R a@x.py:1", "R b@x.py:1", "R c@x.py:1" },
      "the likely cause is unknown: no rank is seen" },
    { "a thread holds the lock that its main thread wants",
      { "S all_reduce@C:10 step@train.py:88 | GIL pthread_cond_timedwait@libc.so.6 "
        "take_gil@libpython3.11.so",
        WAITS, WAITS },
      "rank 0 is the likely cause" },
};

static void verdicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct stack_sample s = { 0 };
        struct stack_findings f;
        struct buf b;

        for (size_t k = 0; k < 8 && rows[i].ranks[k]; k++)
            add_rank(&s, "node1", rows[i].ranks[k]);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(stack_findings_make(&f, &s), 0);
        assert_int_equal(stack_findings_verdict(&b, &f), 0);
        buf_u8(&b, 0);
        const char *got = (const char *)buf_data(&b);
        if (strncmp(got, rows[i].want, strlen(rows[i].want)) != 0)
            fail_msg("a job in which %s: want %s, got %s", rows[i].says, rows[i].want,
                     got);
        buf_fini(&b);
        stack_findings_fini(&f);
        stack_sample_fini(&s);
    }
}

/* Only who was read in full is compared with others, and with such alone. */
static void what_was_not_read_does_not_differ(void **state)
{
    static const struct {
        const char *says, *ranks[6];
        const char *differs; /* one letter a rank: d differs */
    } cases[] = {
        { "one that could not be read", { WAITS, WAITS, "S" }, "---" },
        { "most could not be read", { "S", "S", "S", LOADS }, "----" },
        { "two that could not be read, and one odd",
          { "S", "S", WAITS, WAITS, LOADS },
          "----d" },
        { "py-spy was cut off",
          { WAITS, WAITS, "S! | read@libc.so.6 f@libpython3.11.so" },
          "---" },
        { "py-spy was cut off, and it waits natively",
          { BACKWARD, BACKWARD, "S! | c10d::Work::wait@libtorch_cpu.so" },
          "---" },
        { "native frames were cut off", { BACKWARD, BACKWARD, BACKWARD_CUT }, "---" },
        { "native frames were cut off, elsewhere",
          { BACKWARD, BACKWARD, "S! step@train.py:91" },
          "---" },
        { "native frames were cut off, but it waits",
          { BACKWARD, BACKWARD, "S! barrier@C:99 main@train.py:95" },
          "--d" },
        { "py-spy was cut off everywhere, and all wait natively",
          { "S! | c10d::Work::wait@libtorch_cpu.so f@x.so",
            "S! | c10d::Work::wait@libtorch_cpu.so" },
          "--" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char got[8] = "------";
        struct stack_sample s = { 0 };
        struct stack_findings f;

        for (size_t k = 0; k < 6 && cases[i].ranks[k]; k++)
            add_rank(&s, "node1", cases[i].ranks[k]);
        assert_int_equal(stack_findings_make(&f, &s), 0);
        for (size_t k = 0; k < f.count; k++)
            for (size_t n = 0; f.groups[k].differs && n < f.groups[k].count; n++)
                got[f.groups[k].ranks[n]->rank] = 'd';
        got[s.count] = '\0';
        if (strcmp(got, cases[i].differs) != 0)
            fail_msg("%s: want %s, got %s", cases[i].says, cases[i].differs, got);
        stack_findings_fini(&f);
        stack_sample_fini(&s);
    }
}

/* --- as people see it ------------------------------------------------------------- */

/* What both outputs say of such ranks, each followed by one that waits. */
static void what_is_below_python_is_told(void **state)
{
    static const struct {
        const char *rank;
        bool holds;
        const char *print, *report;
    } cases[] = {
        { "S load@data.py:3 | +0x9ab2@libc.so.6 +0x9bb1@libc.so.6 read@libc.so.6 "
          "f@libpython3.11.so",
          false, "        below Python: read (libc.so.6)\n",
          "    below Python: read (libc.so.6)\n" },
        { "S load@data.py:3 | +0x9ab2@libc.so.6 +0x9bb1@libc.so.6", false,
          "        below Python: +0x9bb1 (libc.so.6)\n",
          "    below Python: +0x9bb1 (libc.so.6)\n" },
        { "S load@data.py:3 | +0x12@libx.so read@libc.so.6", false,
          "        below Python: +0x12 (libx.so) <- read (libc.so.6)\n",
          "    below Python: +0x12 (libx.so) <- read (libc.so.6)\n" },
        { "S load@data.py:3 | sleep@libc.so.6 f@libpython3.11.so", true,
          "        below Python, with the GIL held: sleep (libc.so.6)\n",
          "    below Python, with the GIL held: sleep (libc.so.6)\n" },
        { "S step@train.py:88 | GIL pthread_cond_timedwait@libc.so.6 "
          "take_gil@libpython3.11.so",
          false,
          "wants the GIL, which thread Thread-1 holds in hold (x.py:3), below Python: "
          "sleep (libc.so.6)   <-- differs\n",
          "rank 0 on node1: wants the GIL, which thread Thread-1 holds in hold "
          "(x.py:3), below Python: sleep (libc.so.6)   <-- differs\n" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct stack_sample s = { 0 };
        struct stack_findings f;
        struct buf b[2];

        add_rank(&s, "node1", cases[i].rank);
        add_rank(&s, "node1", WAITS " | c10d::Work::wait@libtorch_cpu.so");
        s.ranks[0].processes[0].threads[0].gil = cases[i].holds;
        assert_int_equal(stack_findings_make(&f, &s), 0);
        for (int k = 0; k < 2; k++)
            buf_init(&b[k], SIZE_MAX);
        assert_int_equal(stack_findings_print(&b[0], &f, &s), 0);
        assert_int_equal(stack_findings_report(&b[1], &f, "  "), 0);
        for (int k = 0; k < 2; k++) {
            const char *want = k ? cases[i].report : cases[i].print;

            buf_u8(&b[k], 0);
            if (!strstr((const char *)buf_data(&b[k]), want))
                fail_msg("want %s in %s", want, (const char *)buf_data(&b[k]));
            buf_fini(&b[k]);
        }
        stack_findings_fini(&f);
        stack_sample_fini(&s);
    }
}

#define LOOP "_worker_loop@torch/utils/data/_utils/worker.py:307"
#define IDLE                                                                           \
    "wait@multiprocessing/connection.py:931 poll@multiprocessing/connection.py:257 "   \
    "get@multiprocessing/queues.py:113 " LOOP

/* Of the processes that a rank has started, those are shown that do not wait for work:
 * a DataLoader has many, and the one that is stuck may be the last. */
static void a_stuck_loader_is_in_its_ranks_report(void **state)
{
    static const char *const frames[] = {
        IDLE, IDLE, IDLE, IDLE, "acquire@lock.py:3 __getitem__@data.py:9 " LOOP, IDLE
    };
    static const char want[] =
        "  rank 1 on node1 waits in all_reduce (train.py:88)\n"
        "  rank 0 on node1 is in load_batch (data.py:31) <- main (train.py:117)   <-- "
        "differs\n"
        "    its process 204 (python): acquire (lock.py:3) <- __getitem__ (data.py:9) "
        "<- _worker_loop (torch/utils/data/_utils/worker.py:307); 5 DataLoader "
        "processes wait for work\n";
    struct stack_sample s = { 0 };
    struct stack_findings f;
    struct buf b;

    (void)state;
    struct stack_rank *r = stack_sample_add(&s, 1 + ARRAY_LEN(frames));
    struct stack_thread *t =
        arena_alloc(&s.arena, r->process_count, sizeof(struct stack_thread));
    r->node = "node1";
    for (size_t i = 0; i < r->process_count; i++) {
        struct stack_process *p = &r->processes[i];
        char copy[256];

        snprintf(copy, sizeof copy, "%s", i ? frames[i - 1] : &LOADS[2]);
        add_frames(&s.arena, &t[i], copy, false);
        p->pid = 199 + (int64_t)i;
        p->state = 'S';
        p->command = "python";
        p->threads = &t[i];
        p->thread_count = 1;
        t[i].name = "";
        if (i)
            stack_shorten_idle(p);
        assert_int_equal(t[i].python_count, i == 0 ? 2 : i == 5 ? 3 : 1);
    }
    add_rank(&s, "node1", WAITS);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(stack_findings_make(&f, &s), 0);
    assert_int_equal(stack_findings_report(&b, &f, "  "), 0);
    buf_u8(&b, 0);
    assert_string_equal((const char *)buf_data(&b), want);
    buf_fini(&b);
    stack_findings_fini(&f);
    stack_sample_fini(&s);
}

static void fill(struct stack_sample *s)
{
    for (int i = 0; i < 8; i++)
        add_rank(s, i < 5 ? "node1" : "node2",
                 i == 5   ? LOADS
                 : i == 6 ? "T step@train.py:88"
                          : WAITS);
}

static void equal_stacks_are_told_once_the_odd_ones_first(void **state)
{
    static const char want[] =
        "1 rank  (6, node2): stopped (SIGSTOP or the like); last frame step "
        "(train.py:88)   <-- differs\n"
        "1 rank  (5, node2): load_batch (data.py:31) <- main (train.py:117)   <-- "
        "differs\n"
        "6 ranks (0-4, 7): all_reduce (" TORCH ":10) <- step (train.py:88)\n"
        "note: no native frames\n";

    (void)state;
    for (struct failing x = failing_first(); failing_next(&x);) {
        mem_fail_from(0);
        struct stack_sample s = { 0 };
        struct stack_findings f;
        struct buf b;

        fill(&s);
        assert_int_equal(stack_sample_note(&s, "no native frames"), 0);
        assert_int_equal(stack_sample_note(&s, "no native frames"), 0);
        buf_init(&b, SIZE_MAX);
        x.before = mem_count();
        mem_fail_from(x.nth);
        int rc = stack_findings_make(&f, &s);
        if (rc == 0) {
            rc = stack_findings_print(&b, &f, &s);
            buf_u8(&b, 0);
            if (rc == 0 && buf_error(&b) == 0)
                assert_string_equal((const char *)buf_data(&b), want);
            stack_findings_fini(&f);
        }
        assert_int_equal(rc, failing_rc(&x));
        const unsigned long used = mem_count() - x.before;
        mem_fail_from(0);
        buf_fini(&b);
        stack_sample_fini(&s);
        if (used < x.nth)
            break;
    }
}

static void a_hang_is_told_with_those_who_wait_first(void **state)
{
    static const char want[] =
        "  6 ranks (0-4, 7) wait in all_reduce (train.py:88)\n"
        "  rank 5 on node2 is in load_batch (data.py:31) <- main (train.py:117)   <-- "
        "differs\n"
        "  rank 6 on node2 is stopped (SIGSTOP or the like); last frame step "
        "(train.py:88)   <-- differs\n";
    struct stack_sample s = { 0 };
    struct stack_findings f;
    struct buf b;

    (void)state;
    fill(&s);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(stack_findings_make(&f, &s), 0);
    assert_int_equal(stack_findings_report(&b, &f, "  "), 0);
    buf_u8(&b, 0);
    assert_string_equal((const char *)buf_data(&b), want);
    buf_fini(&b);
    stack_findings_fini(&f);
    stack_sample_fini(&s);
}

static void a_node_is_printed_and_read_again(void **state)
{
    struct stack_sample s = { 0 };
    struct buf b, again;

    (void)state;
    fill(&s);
    s.ranks[3].processes[0].missing = "py-spy: \"no\"";
    s.ranks[3].processes[0].wchan = "x";
    buf_init(&b, SIZE_MAX);
    buf_init(&again, SIZE_MAX);
    assert_int_equal(stack_sample_print(&b, &s, "node1"), 0);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct stack_sample t = { 0 };
        const int rc = stack_sample_parse(&t, buf_span(&b), NULL);

        assert_true(rc == 0 || (rc == MUSTER_ENOMEM && t.count == 0));
        if (rc == 0) {
            buf_clear(&again);
            if (stack_sample_print(&again, &t, "node1") == 0)
                assert_true(span_eq(buf_span(&again), buf_span(&b)));
        }
        stack_sample_fini(&t);
    }
    assert_true(buf_len(&again) > 0);
    buf_fini(&again);
    buf_fini(&b);
    stack_sample_fini(&s);
}

/* Every text of another machine is shown on a terminal sooner or later. */
static void what_another_node_sends_is_escaped(void **state)
{
#define EVIL "a\\u001b]0;x\\u0007\\nb"
    static const char text[] =
        "{\"node\": \"" EVIL "\", \"notes\": [\"" EVIL "\"], \"ranks\": [{\"rank\": "
        "0, \"processes\": [{\"pid\": 3, \"state\": \"S\", \"command\": \"" EVIL
        "\", \"missing\": \"" EVIL "\", \"threads\": [{\"name\": \"" EVIL
        "\", \"python\": [[\"" EVIL "\", \"" EVIL "\", 1]]}]}]}]}";
    struct stack_sample s = { 0 };
    struct stack_findings f;
    struct buf b;

    (void)state;
    assert_int_equal(stack_sample_parse(&s, span_str(text), NULL), 0);
    assert_string_equal(s.ranks[0].node, "a\\x1b]0;x\\x07\\x0ab");
    assert_int_equal(stack_findings_make(&f, &s), 0);
    buf_init(&b, SIZE_MAX);
    assert_int_equal(stack_findings_print(&b, &f, &s), 0);
    assert_int_equal(stack_findings_report(&b, &f, ""), 0);
    assert_int_equal(stack_rank_print(&b, &s.ranks[0]), 0);
    assert_true(buf_len(&b) > 0);
    for (size_t i = 0; i < buf_len(&b); i++)
        assert_true(buf_data(&b)[i] >= ' ' || buf_data(&b)[i] == '\n');
    assert_null(memmem(buf_data(&b), buf_len(&b), "\nb", 2));
    buf_fini(&b);
    stack_findings_fini(&f);
    stack_sample_fini(&s);
}

static void what_is_not_a_node_adds_nothing(void **state)
{
    static const char *const texts[] = { "", "[]", "3", "{\"ranks\": ", "\"x\"" };
    static const char *const empty[] = {
        "{}", "{\"ranks\": 7}", "{\"ranks\": [1, {}, {\"rank\": -1}]}",
        "{\"ranks\": [{\"rank\": 1, \"processes\": []}], \"notes\": [3, {}]}"
    };
    struct stack_sample s = { 0 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        assert_int_equal(stack_sample_parse(&s, span_str(texts[i]), NULL),
                         MUSTER_EPROTO);
    for (size_t i = 0; i < ARRAY_LEN(empty); i++)
        assert_int_equal(stack_sample_parse(&s, span_str(empty[i]), NULL), 0);
    assert_int_equal(s.count, 0);
    stack_sample_fini(&s);
}

static void ranges(void **state)
{
    static const struct {
        int64_t ranks[8];
        size_t count;
        const char *want;
    } lists[] = {
        { { 3 }, 1, "3" },
        { { 3, 4 }, 2, "3, 4" },
        { { 3, 4, 5 }, 3, "3-5" },
        { { 0, 1, 2, 3, 4, 7, 9, 10 }, 8, "0-4, 7, 9, 10" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct stack_rank r[8] = { 0 };
        const struct stack_rank *list[8];
        struct buf b;

        for (size_t k = 0; k < lists[i].count; k++) {
            r[k].rank = lists[i].ranks[k];
            list[k] = &r[k];
        }
        const struct stack_group g = { .ranks = list, .count = lists[i].count };
        buf_init(&b, SIZE_MAX);
        assert_int_equal(stack_ranges(&b, &g), 0);
        buf_u8(&b, 0);
        assert_string_equal((const char *)buf_data(&b), lists[i].want);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(py_spy_is_read_with_the_main_thread_first),
        cmocka_unit_test(other_texts_than_py_spys_are_refused),
        cmocka_unit_test(faulthandler_is_read_as_pyspy_would_tell_it),
        cmocka_unit_test(other_texts_than_faulthandlers_are_refused),
        cmocka_unit_test(a_signal_is_sent_to_whoever_listens),
        cmocka_unit_test(proc_is_read_whatever_a_command_is_called),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(what_was_not_read_does_not_differ),
        cmocka_unit_test(what_is_below_python_is_told),
        cmocka_unit_test(a_stuck_loader_is_in_its_ranks_report),
        cmocka_unit_test(what_another_node_sends_is_escaped),
        cmocka_unit_test(equal_stacks_are_told_once_the_odd_ones_first),
        cmocka_unit_test(a_hang_is_told_with_those_who_wait_first),
        cmocka_unit_test(a_node_is_printed_and_read_again),
        cmocka_unit_test(what_is_not_a_node_adds_nothing),
        cmocka_unit_test(ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
