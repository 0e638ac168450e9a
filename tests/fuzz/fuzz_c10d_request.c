/* fuzz_c10d_request.c - a peer's stream: however it is cut, the same requests come out
 * of it, and encoding them again gives the same bytes. The first byte says how to cut
 * and what to take an old client for. */
#include <assert.h>
#include <stdlib.h>

#include "base/rng.h"
#include "store/core/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same_bytes_again(const struct c10d_request *req, struct span bytes)
{
    struct buf out;

    buf_init(&out, SIZE_MAX);
    assert(c10d_encode_request(&out, req, NULL) == 0);
    assert(span_eq(buf_span(&out), bytes));
    buf_fini(&out);
}

static size_t count_list(struct c10d_list list)
{
    struct span element;
    size_t n = 0;

    while (c10d_list_next(&list, &element))
        n++;
    return n;
}

/* Shows the decoder more and more, in memory of just that size. */
static int64_t decode_in_pieces(struct c10d_decoder *d, struct span in, struct rng *r,
                                struct c10d_request *req)
{
    int64_t rc = 0;

    for (size_t n = 0; rc == 0 && n < in.n;) {
        n += 1 + (size_t)rng_below(r, 9);
        n = MIN_OF(n, in.n);
        uint8_t *copy = malloc(n);
        assert(copy);
        memcpy(copy, in.p, n);
        rc = c10d_decode_request(d, copy, n, req, NULL);
        free(copy);
    }
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct c10d_decoder whole, pieces;
    struct span in = span_of(data + 1, size ? size - 1 : 0);
    struct rng r;
    int64_t used = 1;

    if (size == 0)
        return 0;
    rng_init(&r, data[0]);
    c10d_decoder_init(&whole);
    if (data[0] & 1)
        whole.old = C10D_DIALECT_A;
    pieces = whole;
    while (used > 0) {
        struct c10d_request a, b;
        struct muster_error err = { 0 };

        used = c10d_decode_request(&whole, in.p, in.n, &a, &err);
        assert(decode_in_pieces(&pieces, in, &r, &b) == used);
        assert(used >= 0 || (used == MUSTER_EPROTO && err.text[0]));
        if (used <= 0)
            break;
        assert(a.op == b.op && a.key.n == b.key.n && a.list.count == b.list.count);
        assert(count_list(a.list) == a.list.count * (a.op == C10D_MULTI_SET ? 2 : 1));
        if (whole.dialect == C10D_DIALECT_C)
            same_bytes_again(&a, span_of(in.p, (size_t)used));
        in = span_of(in.p + used, in.n - (size_t)used);
    }
    return 0;
}
