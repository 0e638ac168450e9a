/* fuzz_filelog.c - any bytes as the file of a FileStore: however they come, the same
 * keys, and what is written again reads the same. */
#include <assert.h>
#include <stdlib.h>

#include "store/core/filelog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t feed_in_pieces(struct filelog *f, const uint8_t *data, size_t size)
{
    size_t done = 0;

    for (size_t n = 0; n <= size; n += 1 + n / 8) {
        uint8_t *copy = malloc(n - done + 1);
        size_t used;

        assert(copy);
        if (n > done)
            memcpy(copy, data + done, n - done);
        assert(filelog_feed(f, copy, n - done, &used) == 0);
        done += used;
        free(copy);
    }
    return done;
}

static void same(const struct filelog *a, const struct filelog *b)
{
    struct span key, x, y;

    assert(filelog_count(a) == filelog_count(b));
    for (size_t i = 0; filelog_next(a, &i, &key);) {
        assert(filelog_get(a, key, &x) && filelog_get(b, key, &y));
        assert(span_eq(x, y));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct filelog whole, pieces, again;
    struct span key, value;
    struct buf out;
    size_t used, rest;

    filelog_init(&whole, 1);
    filelog_init(&pieces, 2);
    filelog_init(&again, 3);
    buf_init(&out, SIZE_MAX);
    assert(filelog_feed(&whole, data, size, &used) == 0 && used <= size);
    rest = feed_in_pieces(&pieces, data, size);
    assert(filelog_feed(&pieces, data + rest, size - rest, &rest) == 0);
    same(&whole, &pieces);
    for (size_t i = 0; filelog_next(&whole, &i, &key);) {
        assert(filelog_get(&whole, key, &value));
        assert(filelog_record(&out, key, value) == 0);
    }
    if (buf_len(&out))
        assert(filelog_feed(&again, buf_data(&out), buf_len(&out), &used) == 0);
    same(&whole, &again);
    filelog_fini(&whole);
    filelog_fini(&pieces);
    filelog_fini(&again);
    buf_fini(&out);
    return 0;
}
