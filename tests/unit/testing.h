/* testing.h - what every unit test includes. */
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H

/* cmocka needs these four first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "muster/error.h"

/* For waits for what will come: a crowded machine has time for it, and a test that
 * hangs still ends. */
#define PATIENCE_MS 300000u

/* Runs the body once for each n with the n-th allocation failing, until a run asks for
 * fewer than n. The body must not leak or crash, and either succeed or say ENOMEM:
 *
 *     for (struct failing f = failing_first(); failing_next(&f);)
 *         { ... int rc = thing(); assert_int_equal(rc, failing_rc(&f)); ... }
 */
struct failing {
    unsigned long nth, before;
};

static inline struct failing failing_first(void)
{
    return (struct failing){ 0, 0 };
}

static inline bool failing_next(struct failing *f)
{
    mem_fail_from(0);
    if (f->nth && mem_count() - f->before < f->nth)
        return false;
    f->nth++;
    f->before = mem_count();
    mem_fail_from(f->nth);
    return true;
}

/* What a call must say: ENOMEM if an allocation has failed by now, and only then. One
 * that does without the memory and says 0 has lost something. */
static inline int failing_rc(const struct failing *f)
{
    return mem_count() - f->before >= f->nth ? MUSTER_ENOMEM : 0;
}

/* Takes a step, rc = step, but while step_starves it is tried before with each of its
 * allocations failing in turn. Such a try must say ENOMEM and change nothing: `print`
 * is a number that depends on all of the machine's memory, and the expectations of the
 * test hold for the step that is taken in the end. Tests run once with and once without
 * it. */
static bool step_starves __attribute__((unused));

#define TAKE_STEP(rc, step, print)                                                     \
    do {                                                                               \
        for (unsigned long nth_ = step_starves ? 1 : 0;; nth_++) {                     \
            const unsigned long asked_ = mem_count();                                  \
            const uint64_t print_ = step_starves ? (print) : 0;                        \
                                                                                       \
            mem_fail_from(nth_);                                                       \
            (rc) = (step);                                                             \
            mem_fail_from(0);                                                          \
            if (mem_count() - asked_ < nth_ || !nth_)                                  \
                break;                                                                 \
            if ((rc) != MUSTER_ENOMEM)                                                 \
                fail_msg("allocation %lu failed, and the step says %d", nth_, (rc));   \
            if ((print) != print_)                                                     \
                fail_msg("allocation %lu failed, and something has changed", nth_);    \
        }                                                                              \
    } while (0)

/* For prints: FNV-1a over bytes, from what came before. */
static inline uint64_t print_bytes(uint64_t print, const void *p, size_t n)
{
    const uint8_t *bytes = p;

    for (size_t i = 0; i < n; i++)
        print = (print ^ bytes[i]) * 0x100000001b3u;
    return print;
}

#endif
