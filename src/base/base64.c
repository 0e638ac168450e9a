/* base64.c - see base64.h. Decoding is strict: only one text stands for a string of
 * bytes, so that comparing texts is comparing bytes. */
#include "base/base64.h"

#include <assert.h>

#include "muster/error.h"

static const char alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int base64_encode(struct buf *out, struct span s)
{
    const size_t len = BASE64_LEN(s.n);
    uint8_t *o = buf_room(out, len);

    if (!o)
        return buf_room_err(out, len);
    for (size_t i = 0; i < s.n; i += 3) {
        const size_t left = s.n - i;
        const uint32_t w = (uint32_t)s.p[i] << 16 |
                           (left > 1 ? (uint32_t)s.p[i + 1] << 8 : 0) |
                           (left > 2 ? (uint32_t)s.p[i + 2] : 0);

        *o++ = (uint8_t)alphabet[w >> 18];
        *o++ = (uint8_t)alphabet[w >> 12 & 63];
        *o++ = left > 1 ? (uint8_t)alphabet[w >> 6 & 63] : '=';
        *o++ = left > 2 ? (uint8_t)alphabet[w & 63] : '=';
    }
    buf_commit(out, len);
    return 0;
}

/* What each character stands for; -1 for those outside the alphabet. It is a table for
 * speed: states of thousands of nodes pass through here with every heartbeat. */
#define R4(x)  x, x, x, x
#define R16(x) R4(x), R4(x), R4(x), R4(x)
#define NO     -1
static const int8_t digits[256] = {
    R16(NO), R16(NO), R4(NO),  R4(NO),  NO,      NO,      NO,      62,
    NO,      NO,      NO,      63, /* + and / */
    52,      53,      54,      55,      56,      57,      58,      59,
    60,      61,      NO,      NO,      R4(NO), /* 0 to 9 */
    NO,      0,       1,       2,       3,       4,       5,       6,
    7,       8,       9,       10,      11,      12,      13,      14, /* A to O */
    15,      16,      17,      18,      19,      20,      21,      22,
    23,      24,      25,      NO,      R4(NO), /* P to Z */
    NO,      26,      27,      28,      29,      30,      31,      32,
    33,      34,      35,      36,      37,      38,      39,      40, /* a to o */
    41,      42,      43,      44,      45,      46,      47,      48,
    49,      50,      51,      NO,      R4(NO), /* p to z */
    R16(NO), R16(NO), R16(NO), R16(NO), R16(NO), R16(NO), R16(NO), R16(NO),
};
#undef NO
#undef R16
#undef R4

static int digit(uint8_t c)
{
    return digits[c];
}

/* The last group may stand for one or two bytes; its unused bits must be zero. */
static int64_t decode_last(uint8_t *out, const uint8_t *p)
{
    const int a = digit(p[0]), b = digit(p[1]), c = digit(p[2]);

    if (a < 0 || b < 0 || p[3] != '=')
        return MUSTER_EPROTO;
    out[0] = (uint8_t)(a << 2 | b >> 4);
    if (p[2] == '=')
        return (b & 15) == 0 ? 1 : MUSTER_EPROTO;
    if (c < 0 || (c & 3) != 0)
        return MUSTER_EPROTO;
    out[1] = (uint8_t)((b & 15) << 4 | c >> 2);
    return 2;
}

int64_t base64_decode(uint8_t *out, struct span text)
{
    uint8_t *o = out;

    if (text.n % 4 != 0)
        return MUSTER_EPROTO;
    for (size_t i = 0; i < text.n; i += 4) {
        const uint8_t *p = text.p + i;

        if (p[3] == '=' && i + 4 == text.n) {
            const int64_t last = decode_last(o, p);

            return last < 0 ? last : (o - out) + last;
        }
        const int a = digit(p[0]), b = digit(p[1]), c = digit(p[2]), d = digit(p[3]);

        if ((a | b | c | d) < 0)
            return MUSTER_EPROTO;
        *o++ = (uint8_t)(a << 2 | b >> 4);
        *o++ = (uint8_t)((b & 15) << 4 | c >> 2);
        *o++ = (uint8_t)((c & 3) << 6 | d);
    }
    assert((size_t)(o - out) == text.n / 4 * 3);
    return o - out;
}
