/* reserved.c - see reserved.h. */
#include "store/core/reserved.h"

uint64_t reserved_hash(struct span value)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < value.n; i++)
        h = (h ^ value.p[i]) * 0x100000001b3u;
    return h;
}

bool reserved_caps_have(struct span words, const char *word)
{
    const size_t n = strlen(word);
    size_t at = 0;

    while (at < words.n) {
        const uint8_t *space = memchr(words.p + at, ' ', words.n - at);
        const size_t end = space ? (size_t)(space - words.p) : words.n;

        if (end - at == n && memcmp(words.p + at, word, n) == 0)
            return true;
        at = end + 1;
    }
    return false;
}

/* Takes lower case only, so that each number has one spelling. */
static bool parse_hex(const uint8_t *p, uint64_t *out)
{
    uint64_t v = 0;

    for (int i = 0; i < 16; i++) {
        if (p[i] >= '0' && p[i] <= '9')
            v = v << 4 | (uint64_t)(p[i] - '0');
        else if (p[i] >= 'a' && p[i] <= 'f')
            v = v << 4 | (uint64_t)(p[i] - 'a' + 10);
        else
            return false;
    }
    *out = v;
    return true;
}

struct reserved reserved_parse_slow(struct span name)
{
    const size_t fixed = sizeof RESERVED_CHANGED - 1;
    struct reserved r = { .kind = RESERVED_UNKNOWN };

    if (span_starts(name, RESERVED_STATE))
        return (struct reserved){ .kind = RESERVED_IS_STATE };
    if (!span_starts(name, RESERVED_PREFIX))
        return (struct reserved){ .kind = RESERVED_NONE };
    if (span_eq(name, span_str(RESERVED_CAPS))) {
        r.kind = RESERVED_IS_CAPS;
        return r;
    }
    if (span_eq(name, span_str(RESERVED_RUN)) ||
        span_eq(name, span_str(RESERVED_RUNS)) ||
        span_eq(name, span_str(RESERVED_GATHERED)) ||
        span_eq(name, span_str(RESERVED_STATS))) {
        r.kind = RESERVED_IS_ANSWERED;
        return r;
    }
    if (!span_starts(name, RESERVED_CHANGED) || name.n < fixed + 17 ||
        name.p[fixed + 16] != '/' || !parse_hex(name.p + fixed, &r.hash))
        return r;
    r.key = span_of(name.p + fixed + 17, name.n - fixed - 17);
    /* Reserved keys have no value that could change. */
    if (!span_starts(r.key, RESERVED_PREFIX))
        r.kind = RESERVED_IS_CHANGED;
    return r;
}
