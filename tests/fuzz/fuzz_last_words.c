/* fuzz_last_words.c - any bytes as a worker's stderr: what comes out is clean, valid
 * UTF-8 and bounded. The first byte is the rank. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"
#include "logs/core/last_words.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct buf *b, bool lines)
{
    assert(utf8_valid(buf_span(b)));
    for (size_t i = 0; i < buf_len(b); i++)
        assert(buf_data(b)[i] >= 0x20 || buf_data(b)[i] == '\t' ||
               (lines && buf_data(b)[i] == '\n'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct last_words w;

    if (size < 1)
        return 0;
    last_words_read(&w, span_of(data + 1, size - 1), (int8_t)data[0]);
    check(&w.text, false);
    check(&w.place, false);
    check(&w.file, false);
    check(&w.source, false);
    check(&w.lines, true);
    last_words_fini(&w);
    return 0;
}
