/* fuzz_local_name.c - lines of /proc/net/unix, where every user can put any name. What
 * is taken for a name must print as the same bytes. */
#include <assert.h>

#include "status/core/local_name.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[LOCAL_NAME_MAX];
    struct local_name n;

    if (local_name_parse(span_of(data, size), &n)) {
        assert(local_name_print(&n, text) == size);
        assert(memcmp(text, data, size) == 0);
    }
    if (local_name_of_line(span_of(data, size), &n)) {
        const size_t len = local_name_print(&n, text);

        assert(len < size && memcmp(text, data + size - len, len) == 0);
    }
    return 0;
}
