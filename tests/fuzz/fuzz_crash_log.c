/* fuzz_crash_log.c - the kernel's log, in which every user can have a process and a
 * file of any name. A name that is found lies in the log. */
#include <assert.h>

#include "process/core/crash_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct span log = span_of(data, size);
    struct span where;

    if (crash_log_find(log, 7244, 100, &where))
        assert(where.n > 0 && where.p > data && where.p + where.n < data + size &&
               !memchr(where.p, '\n', where.n));
    return 0;
}
