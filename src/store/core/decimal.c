/* decimal.c - see decimal.h. */
#include "store/core/decimal.h"

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool decimal_parse(struct span text, int64_t *out)
{
    size_t i = 0;
    bool minus = false;
    uint64_t v = 0;

    while (i < text.n && is_space(text.p[i]))
        i++;
    if (i < text.n && (text.p[i] == '-' || text.p[i] == '+'))
        minus = text.p[i++] == '-';

    const size_t digits = i;
    const uint64_t limit = minus ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;

    for (; i < text.n && text.p[i] >= '0' && text.p[i] <= '9'; i++) {
        const uint64_t d = (uint64_t)(text.p[i] - '0');

        if (v > (limit - d) / 10)
            return false;
        v = v * 10 + d;
    }
    if (i == digits)
        return false;
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

size_t decimal_format(int64_t v, uint8_t out[DECIMAL_MAX])
{
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    uint8_t back[DECIMAL_MAX];
    size_t n = 0, at = 0;

    do {
        back[n++] = (uint8_t)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0)
        out[at++] = '-';
    while (n)
        out[at++] = back[--n];
    return at;
}
