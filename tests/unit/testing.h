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

/* Runs the body once for each n with the n-th allocation failing, until a run asks for
 * fewer than n. The body must not leak or crash, and either succeed or say ENOMEM:
 *
 *     for (struct failing f = failing_first(); failing_next(&f);)
 *         { ... int rc = thing(); assert_true(rc == 0 || rc == MUSTER_ENOMEM); ... }
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

#endif
