/* fuzz_c10d_reply.c - what a server may answer: however it is cut, the same comes out,
 * and encoding it again gives the same bytes. The first two bytes say what was asked.
 */
#include <assert.h>
#include <stdlib.h>

#include "store/core/wire.h"

#define MOST 100000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same_bytes_again(const struct c10d_reply *reply, struct span bytes)
{
    struct buf out;

    buf_init(&out, SIZE_MAX);
    assert(c10d_encode_reply(&out, reply) == 0);
    assert(span_eq(buf_span(&out), bytes));
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct c10d_reply_decoder whole, pieces;
    struct c10d_reply a, b;
    struct muster_error err = { 0 };
    bool a_whole, b_whole = false;
    int64_t used, rc = 0;

    if (size < 2)
        return 0;
    c10d_reply_decoder_init(&whole, (enum c10d_op)(data[0] % C10D_OP_COUNT), data[1],
                            MOST);
    pieces = whole;
    data += 2;
    size -= 2;
    used = c10d_decode_reply(&whole, data, size, &a, &a_whole, &err);
    assert(used >= 0 || (used == MUSTER_EPROTO && err.text[0] && !a_whole));
    assert(!a_whole || (size_t)used <= size);
    for (size_t n = 0; n <= size && rc == 0 && !b_whole; n++) {
        uint8_t *copy = malloc(n + !n);
        assert(copy);
        memcpy(copy, data, n);
        rc = c10d_decode_reply(&pieces, copy, n, &b, &b_whole, NULL);
        free(copy);
    }
    assert(rc == used && a_whole == b_whole);
    if (a_whole) {
        assert(a.number == b.number && a.list.count == b.list.count);
        same_bytes_again(&a, span_of(data, (size_t)used));
    }
    return 0;
}
