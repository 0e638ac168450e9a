/* text.c - see text.h. */
#include "base/py/text.h"

#include "base/utf8.h"

static bool is_space(uint32_t u)
{
    return (u >= 9 && u <= 13) || (u >= 28 && u <= 32) || u == 0x85 || u == 0xa0 ||
           u == 0x1680 || (u >= 0x2000 && u <= 0x200a) || u == 0x2028 || u == 0x2029 ||
           u == 0x202f || u == 0x205f || u == 0x3000;
}

struct span py_strip(struct span s)
{
    uint32_t u;

    for (size_t n; s.n && (n = utf8_decode(s, &u)) && is_space(u);) {
        s.p += n;
        s.n -= n;
    }
    while (s.n) {
        size_t n = 1;

        while (n < 4 && n < s.n && (s.p[s.n - n] & 0xc0) == 0x80)
            n++;
        if (utf8_decode(span_of(s.p + s.n - n, n), &u) != n || !is_space(u))
            break;
        s.n -= n;
    }
    return s;
}

static bool is_letter(uint32_t u)
{
    if (u < 0x80)
        return (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') ||
               (u >= '0' && u <= '9') || u == '_';
    if (u < 0xc0) /* Of Latin-1's signs, ordinals, micro, digits and fractions count. */
        return u == 0xaa || u == 0xb5 || u == 0xba || u == 0xb2 || u == 0xb3 ||
               u == 0xb9 || (u >= 0xbc && u <= 0xbe);
    return !(u == 0xd7 || u == 0xf7 || is_space(u) || (u >= 0x2000 && u <= 0x206f) ||
             (u >= 0x20a0 && u <= 0x20ff) || (u >= 0x2190 && u <= 0x245f) ||
             (u >= 0x2500 && u <= 0x2775) || (u >= 0x2794 && u <= 0x2bff) ||
             (u >= 0x3001 && u <= 0x3004) || (u >= 0x3008 && u <= 0x3020) ||
             (u >= 0xe000 && u <= 0xf8ff) || (u >= 0xfe00 && u <= 0xfe6f) ||
             (u >= 0xff01 && u <= 0xff0f) || (u >= 0xfff0 && u <= 0xffff) ||
             (u >= 0x1f000 && u <= 0x1f0ff) || (u >= 0x1f300 && u <= 0x1faff));
}

bool py_words(struct span s, const char *more)
{
    uint32_t u = 0;

    for (size_t n; s.n; s.p += n, s.n -= n) {
        n = utf8_decode(s, &u);
        if (n == 0 || u == 0)
            return false;
        if (!is_letter(u) && !(u < 0x80 && strchr(more, (int)u)))
            return false;
    }
    return true;
}

bool py_int(struct span s, int64_t *out)
{
    bool negative = false, digit = false;
    uint64_t value = 0;

    s = py_strip(s);
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) {
        negative = s.p[0] == '-';
        s.p++;
        s.n--;
    }
    for (size_t i = 0; i < s.n; i++) {
        const uint8_t c = s.p[i];

        if (c == '_' && digit) {
            digit = false; /* The next character must be a digit. */
            continue;
        }
        if (c < '0' || c > '9')
            return false;
        digit = true;
        if (value > ((uint64_t)INT64_MAX - (c - '0')) / 10)
            return false;
        value = value * 10 + (c - '0');
    }
    if (!digit)
        return false;
    *out = negative ? -(int64_t)value : (int64_t)value;
    return true;
}
