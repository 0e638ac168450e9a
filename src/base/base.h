/* base.h - the few types and macros that every file of the project uses. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member)                                                \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))
#define MAX_OF(a, b) ((a) > (b) ? (a) : (b))

/* Bytes that somebody else owns. */
struct span {
    const uint8_t *p; /* borrowed; may be NULL when n is 0 */
    size_t n;
};

static inline struct span span_of(const void *p, size_t n)
{
    return (struct span){ p, n };
}

static inline struct span span_str(const char *s)
{
    return (struct span){ (const uint8_t *)s, strlen(s) };
}

static inline bool span_eq(struct span a, struct span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool span_starts(struct span s, const char *with)
{
    const size_t n = strlen(with);

    return s.n >= n && memcmp(s.p, with, n) == 0;
}

/* Without its first n bytes, of which there are as many at least. */
static inline struct span span_skip(struct span s, size_t n)
{
    return (struct span){ s.p + n, s.n - n };
}

/* Takes the first line off a text, and returns it without its newline. */
static inline struct span span_take_line(struct span *rest)
{
    const uint8_t *end =
        rest->n ? (const uint8_t *)memchr(rest->p, '\n', rest->n) : NULL;
    const struct span line = span_of(rest->p, end ? (size_t)(end - rest->p) : rest->n);

    *rest = end ? span_of(end + 1, rest->n - line.n - 1) : span_of(NULL, 0);
    return line;
}

/* Takes a word off the front of rest: it ends before the next of the characters in
 * `between`, and those in front of it are dropped. False: there is none. */
bool span_take_word(struct span *rest, const char *between, struct span *word);

/* Takes a decimal number off the front of rest. False, with nothing taken: there is
 * none, or it has more than 64 bits. */
bool span_take_number(struct span *rest, uint64_t *out);

/* What is behind the first `mark` in s; a NULL pointer if there is none. */
struct span span_after(struct span s, const char *mark);

/* Byte order, then length: the order of strcmp for text. */
static inline int span_cmp(struct span a, struct span b)
{
    const size_t n = MIN_OF(a.n, b.n);
    const int c = n ? memcmp(a.p, b.p, n) : 0;

    if (c != 0)
        return c;
    return (a.n > b.n) - (a.n < b.n);
}

/* Time as data. The two clocks are never compared with each other: mono_ms is for
 * our own deadlines, wall_us (since 1970, UTC) for what torchrun nodes share. */
struct now {
    uint64_t mono_ms;
    int64_t wall_us;
};

#define MONO_NEVER UINT64_MAX
#define WALL_NEVER INT64_MAX

/* How long it is until by_ms, by the same clock; 0 if that has passed, and MONO_NEVER
 * stays what it is. */
static inline uint64_t ms_left(uint64_t by_ms, uint64_t now_ms)
{
    if (by_ms == MONO_NEVER)
        return MONO_NEVER;
    return by_ms > now_ms ? by_ms - now_ms : 0;
}

/* Seconds as users give them, in milliseconds. Some users write sys.maxsize for
 * "never"; the cap of ten years keeps products and sums from overflowing. */
static inline uint64_t ms_of_seconds(int64_t s)
{
    const int64_t most = 10ll * 366 * 86400;

    return s <= 0 ? 0 : (uint64_t)MIN_OF(s, most) * 1000u;
}

#endif
