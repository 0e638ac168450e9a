/* fuzz_prefix_lines.c - however bytes arrive, the same lines come out; and they are
 * UTF-8. The first byte chooses how large the pieces are. */
#include <assert.h>
#include <stdint.h>

#include "logs/core/prefix_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void feed(struct buf *out, const uint8_t *p, size_t n, size_t step)
{
    struct tee t;

    tee_init(&t, span_str("[x0]:"), NULL, 0);
    for (size_t i = 0; i < n; i += step)
        assert(tee_feed(&t, span_of(p + i, MIN_OF(step, n - i)), out, NULL) == 0);
    assert(tee_flush(&t, out, NULL) == 0);
    tee_fini(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole, parts;

    if (size < 2)
        return 0;
    buf_init(&whole, SIZE_MAX);
    buf_init(&parts, SIZE_MAX);
    feed(&whole, data + 1, size - 1, size);
    feed(&parts, data + 1, size - 1, 1u + data[0]);
    assert(span_eq(buf_span(&whole), buf_span(&parts)));
    for (size_t i = 0; i < buf_len(&whole); i++)
        assert(buf_data(&whole)[i] != '\r' && buf_data(&whole)[i] != 0xff);
    buf_fini(&whole);
    buf_fini(&parts);
    return 0;
}
