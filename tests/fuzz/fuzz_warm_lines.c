/* fuzz_warm_lines.c - lines of the warm interpreter, which runs the user's modules, and
 * what was learned for --warm=auto, which anybody could have written. The first line is
 * the value of --warm. */
#include <stdlib.h>

#include "base/mem.h"
#include "warm/core/warm_core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
    const size_t n = end ? (size_t)(end - data) : size;
    char *value = mem_strndup((const char *)data, n);
    struct warm_core w;
    struct warm_text text;
    struct buf kept;

    if (!value)
        return 0;
    if (warm_core_init(&w, value, NULL) == 0) {
        (void)warm_core_learned(&w, span_of(data, size));
        for (size_t at = 0; at < size;) {
            const uint8_t *next = memchr(data + at, '\n', size - at);
            const size_t len = next ? (size_t)(next - data) - at : size - at;

            (void)warm_core_line(&w, span_of(data + at, len), &text);
            if (text.level != WARM_QUIET && strlen(text.text) >= sizeof text.text)
                abort();
            if (len % 7 == 0)
                (void)warm_core_exited(&w, (int)len, 0, &text);
            at += len + 1;
        }
        buf_init(&kept, SIZE_MAX);
        if (warm_core_keep(&w, &kept) != 0 || warm_core_learned(&w, buf_span(&kept)))
            abort();
        buf_fini(&kept);
        for (size_t i = 0; i < w.had.count; i++)
            if (!warm_is_module(span_str(w.had.items[i])))
                abort();
        warm_core_fini(&w);
    }
    mem_free(value);
    return 0;
}
