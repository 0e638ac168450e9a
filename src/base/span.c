/* span.c - taking texts of any origin apart; see base.h. */
#include "base/base.h"

bool span_take_word(struct span *rest, const char *between, struct span *word)
{
    const size_t n = rest->n;
    size_t from = 0, to;

    while (from < n && rest->p[from] && strchr(between, rest->p[from]))
        from++;
    for (to = from; to < n && !(rest->p[to] && strchr(between, rest->p[to]));)
        to++;
    *word = span_of(rest->p + from, to - from);
    *rest = span_skip(*rest, to);
    return to > from;
}

bool span_take_number(struct span *rest, uint64_t *out)
{
    uint64_t v = 0;
    size_t n = 0;

    for (; n < rest->n && rest->p[n] >= '0' && rest->p[n] <= '9'; n++)
        if (__builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(rest->p[n] - '0'), &v))
            return false;
    if (n == 0)
        return false;
    *rest = span_skip(*rest, n);
    *out = v;
    return true;
}

struct span span_after(struct span s, const char *mark)
{
    const size_t n = strlen(mark);
    const uint8_t *at = s.n ? memmem(s.p, s.n, mark, n) : NULL;

    return at ? span_skip(s, (size_t)(at - s.p) + n) : span_of(NULL, 0);
}
