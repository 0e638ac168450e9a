/* utf8.c - see utf8.h. */
#include "base/utf8.h"

size_t utf8_decode(struct span s, uint32_t *out)
{
    static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };
    const uint8_t c = s.n ? s.p[0] : 0;
    const size_t more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    uint32_t point = more == 0 ? c : c & (0x3fu >> more);

    if (s.n <= more || (c >= 0x80 && c < 0xc2) || c > 0xf4)
        return 0;
    for (size_t k = 1; k <= more; k++) {
        if ((s.p[k] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (s.p[k] & 0x3fu);
    }
    if (point < least[more] || point > 0x10ffff || (point >> 11) == 0x1b)
        return 0;
    *out = point;
    return more + 1;
}

bool utf8_valid(struct span s)
{
    uint32_t point;

    for (size_t n; s.n; s = span_of(s.p + n, s.n - n)) {
        n = utf8_decode(s, &point);
        if (n == 0)
            return false;
    }
    return true;
}
