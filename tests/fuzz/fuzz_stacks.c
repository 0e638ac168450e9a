/* fuzz_stacks.c - what a node, py-spy or /proc says of workers. Whatever is accepted
 * can be merged, told, printed and read again. */
#include <assert.h>
#include <stdint.h>

#include "hang/core/progress.h"
#include "stacks/core/faulthandler.h"
#include "stacks/core/findings.h"
#include "stacks/core/procfs.h"
#include "stacks/core/pyspy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void node(struct span in)
{
    struct stack_sample s = { 0 }, again = { 0 };
    struct stack_findings f;
    struct buf b;

    if (stack_sample_parse(&s, in, NULL) != 0)
        return;
    stack_sample_sort(&s);
    buf_init(&b, SIZE_MAX);
    assert(stack_findings_make(&f, &s) == 0);
    assert(stack_findings_print(&b, &f, &s) == 0);
    assert(stack_findings_report(&b, &f, "  ") == 0);
    assert(stack_findings_verdict(&b, &f) == 0);
    assert(stack_findings_json(&b, &f) == 0);
    assert((f.suspects > 0) == (*f.unknown == '\0'));
    stack_findings_fini(&f);
    buf_clear(&b);
    assert(stack_sample_print(&b, &s, "n") == 0);
    if (buf_len(&b) <= STACK_JOB_BYTES) {
        assert(stack_sample_parse(&again, buf_span(&b), NULL) == 0);
        assert(again.count == s.count);
    }
    buf_clear(&b);
    if (stack_sample_print_within(&b, &s, NULL, 2048) == 0) {
        assert(buf_len(&b) <= 2048);
        assert(stack_sample_parse(&again, buf_span(&b), NULL) == 0);
    }
    stack_sample_fini(&again);
    stack_sample_fini(&s);
    buf_fini(&b);
}

static void pulses(struct span in)
{
    struct hang_pulse p, again, sum = { 0 };
    struct hang_question q;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (hang_pulse_parse(&p, in) == 0) {
        assert(hang_pulse_print(&b, &p) == 0);
        assert(hang_pulse_parse(&again, buf_span(&b)) == 0);
        assert(memcmp(&p, &again, sizeof p) == 0);
        hang_pulse_add(&sum, &p);
        hang_pulse_add(&sum, &p);
    }
    buf_clear(&b);
    if (hang_question_parse(&q, in) == 0) {
        assert(hang_question_print(&b, &q) == 0);
        assert(hang_question_parse(&q, buf_span(&b)) == 0);
    }
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct span in = span_of(data, size);
    struct stack_process p = {
        .command = "", .wchan = "", .syscall = "", .missing = ""
    };
    struct arena a = { 0 };

    node(in);
    pulses(in);
    (void)pyspy_parse(&a, &p, in, NULL);
    if (faulthandler_parse(&a, &p, in, NULL) == 0)
        assert(p.thread_count == 1 && p.threads[0].python_count > 0);
    (void)faulthandler_whole(in);
    (void)faulthandler_listens(in, 23);
    (void)procfs_stat(&a, &p, in);
    (void)procfs_cpu(&p, in, 100);
    (void)procfs_switches(&p, in);
    (void)procfs_wchan(&a, &p, in);
    (void)procfs_syscall(&a, &p, in);
    arena_fini(&a);
    return 0;
}
