/* lanes.c - see lanes.h. */
#include "store/core/lanes.h"

#include <assert.h>

#include "base/err.h"

#define COUNT_BITS 28u

int64_t lanes_decode(struct lanes_decoder *d, struct span bytes, struct lane_frame *out,
                     struct muster_error *err)
{
    size_t took = 0;

    if (d->left == 0) {
        took = MIN_OF(LANES_HEAD - d->got, bytes.n);
        memcpy(d->head + d->got, bytes.p, took);
        d->got += took;
        if (d->got < LANES_HEAD)
            return 0;
        const uint32_t word = get_u32(d->head + 4), kind = word >> COUNT_BITS;
        const uint32_t count = word & ((1u << COUNT_BITS) - 1);

        d->lane = get_u32(d->head);
        if (d->lane >= LANES_MOST || kind > LANE_CLOSE || count > LANES_WINDOW ||
            (count == 0) != (kind == LANE_OPEN || kind == LANE_CLOSE))
            return err_set(err, MUSTER_EPROTO,
                           "not a valid frame: lane %u, kind %u, count %u", d->lane,
                           kind, count);
        d->got = 0;
        *out = (struct lane_frame){ .kind = kind, .lane = d->lane, .count = count };
        if (kind != LANE_DATA)
            return (int64_t)took;
        d->left = count;
        if (took == bytes.n) /* Only the head has come: the piece is empty. */
            return (int64_t)took;
    }
    const size_t n = MIN_OF(d->left, bytes.n - took);
    *out = (struct lane_frame){ .kind = LANE_DATA,
                                .lane = d->lane,
                                .data = span_of(bytes.p + took, n) };
    assert(n <= d->left && took + n <= bytes.n);
    d->left -= (uint32_t)n;
    return (int64_t)(took + n);
}

void lanes_head(uint8_t out[LANES_HEAD], enum lane_kind kind, uint32_t lane,
                size_t count)
{
    assert(count < (size_t)1 << COUNT_BITS);
    put_u32(out, lane);
    put_u32(out + 4, (uint32_t)kind << COUNT_BITS | (uint32_t)count);
}

int lanes_put(struct buf *out, enum lane_kind kind, uint32_t lane, size_t count)
{
    uint8_t head[LANES_HEAD];

    lanes_head(head, kind, lane, count);
    return buf_append(out, head, sizeof head);
}
