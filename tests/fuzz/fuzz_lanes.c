/* fuzz_lanes.c - frames of connections inside a connection: whatever the bytes, nothing
 * is read beyond them, and what they mean does not depend on the pieces that they come
 * in.
 *
 * Input: a byte for the size of the pieces, and the frames. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "store/core/lanes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A digest of the frames. */
static uint64_t hear(struct span bytes, size_t piece, bool *broken)
{
    struct lanes_decoder d = { 0 };
    uint64_t h = 0xcbf29ce484222325u;

    *broken = false;
    while (bytes.n) {
        struct span now = span_of(bytes.p, MIN_OF(piece, bytes.n));

        bytes = span_of(bytes.p + now.n, bytes.n - now.n);
        while (now.n) {
            struct lane_frame f;
            const int64_t took = lanes_decode(&d, now, &f, NULL);

            assert(took <= (int64_t)now.n);
            if (took < 0) {
                *broken = true;
                return h;
            }
            if (took == 0)
                break;
            assert(f.lane < LANES_MOST && f.kind <= LANE_CLOSE &&
                   (f.kind == LANE_DATA || f.data.n == 0));
            for (size_t i = 0; i < f.data.n; i++)
                h = (h ^ f.data.p[i] ^ f.lane << 8) * 0x100000001b3u;
            if (f.kind != LANE_DATA)
                h = (h ^ f.count ^ (uint64_t)f.kind << 32 ^ (uint64_t)f.lane << 40) *
                    0x100000001b3u;
            now = span_of(now.p + took, now.n - (size_t)took);
        }
    }
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool broken, broken_too;

    if (size == 0)
        return 0;
    const struct span bytes = span_of(data + 1, size - 1);
    const uint64_t whole = hear(bytes, SIZE_MAX, &broken);
    assert(hear(bytes, (size_t)data[0] + 1, &broken_too) == whole);
    assert(broken == broken_too);
    return 0;
}
