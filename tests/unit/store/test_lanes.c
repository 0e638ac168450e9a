/* test_lanes.c - the frames of store/core/lanes.c: whatever the pieces they come in,
 * and those that are none. */
#include "testing.h"

#include <stdio.h>

#include "store/core/lanes.h"

/* All that comes out of the bytes if they come in pieces of so many, as text. */
static void hear(struct span bytes, size_t piece, char *out, size_t size)
{
    struct lanes_decoder d = { 0 };
    size_t at = 0;
    int data = -1; /* the lane whose DATA is being told */

    out[0] = '\0';
    while (bytes.n) {
        struct span now = span_of(bytes.p, MIN_OF(piece, bytes.n));

        bytes = span_of(bytes.p + now.n, bytes.n - now.n);
        while (now.n) {
            struct lane_frame f;
            struct muster_error err;
            const int64_t took = lanes_decode(&d, now, &f, &err);

            assert_true(took >= 0 && (size_t)took <= now.n);
            if (took == 0)
                break;
            now = span_of(now.p + took, now.n - (size_t)took);
            if (f.kind == LANE_DATA && f.data.n == 0)
                continue;
            if (f.kind != LANE_DATA || data != (int)f.lane)
                at += (size_t)snprintf(
                    out + at, size - at, "%s%u ",
                    (const char *[]){ "open", "data", "room", "close" }[f.kind],
                    f.lane);
            data = f.kind == LANE_DATA ? (int)f.lane : -1;
            if (f.kind == LANE_ROOM)
                at += (size_t)snprintf(out + at, size - at, "%u ", f.count);
            if (f.data.n)
                at += (size_t)snprintf(out + at, size - at, "%.*s", (int)f.data.n,
                                       (const char *)f.data.p);
            assert_true(at < size);
        }
    }
}

static void any_pieces(void **state)
{
    struct buf b;
    char said[200];

    (void)state;
    buf_init(&b, SIZE_MAX);
    assert_int_equal(lanes_put(&b, LANE_OPEN, 0, 0), 0);
    assert_int_equal(lanes_put(&b, LANE_OPEN, LANES_MOST - 1, 0), 0);
    assert_int_equal(lanes_put(&b, LANE_DATA, 0, 5), 0);
    assert_int_equal(buf_append_str(&b, "hello"), 0);
    assert_int_equal(lanes_put(&b, LANE_DATA, LANES_MOST - 1, 1), 0);
    assert_int_equal(buf_append_str(&b, "x"), 0);
    assert_int_equal(lanes_put(&b, LANE_ROOM, 0, LANES_WINDOW), 0);
    assert_int_equal(lanes_put(&b, LANE_CLOSE, 0, 0), 0);
    for (size_t piece = 1; piece <= buf_len(&b); piece++) {
        hear(buf_span(&b), piece, said, sizeof said);
        assert_string_equal(said, "open0 open16383 data0 hellodata16383 xroom0 131072 "
                                  "close0 ");
    }
    buf_fini(&b);
}

static void no_frames(void **state)
{
    static const struct {
        uint32_t lane, kind, count;
    } none[] = {
        { LANES_MOST, LANE_OPEN, 0 },
        { 0, LANE_CLOSE + 1, 0 },
        { 0, 15, 1 },
        { 0, LANE_OPEN, 1 },
        { 0, LANE_CLOSE, 1 },
        { 0, LANE_DATA, 0 },
        { 0, LANE_DATA, LANES_WINDOW + 1 },
        { 0, LANE_ROOM, 0 },
        { 0, LANE_ROOM, LANES_WINDOW + 1 },
        { UINT32_MAX, LANE_DATA, 1 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(none); i++) {
        struct lanes_decoder d = { 0 };
        struct muster_error err;
        struct lane_frame f;
        uint8_t head[LANES_HEAD];

        put_u32(head, none[i].lane);
        put_u32(head + 4, none[i].kind << 28 | none[i].count);
        assert_int_equal(lanes_decode(&d, span_of(head, sizeof head), &f, &err),
                         MUSTER_EPROTO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_pieces),
        cmocka_unit_test(no_frames),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
