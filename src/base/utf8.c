/* utf8.c - see utf8.h. */
#include "base/utf8.h"

bool utf8_valid(struct span s)
{
    for (size_t i = 0; i < s.n;) {
        const uint8_t c = s.p[i];
        const size_t more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        uint32_t point = more == 0 ? c : c & (0x3fu >> more);
        static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };

        if ((c >= 0x80 && c < 0xc2) || c > 0xf4 || more > s.n - i - 1)
            return false;
        for (size_t k = 1; k <= more; k++) {
            if ((s.p[i + k] & 0xc0) != 0x80)
                return false;
            point = point << 6 | (s.p[i + k] & 0x3fu);
        }
        if (point < least[more] || point > 0x10ffff || (point >> 11) == 0x1b)
            return false;
        i += more + 1;
    }
    return true;
}
