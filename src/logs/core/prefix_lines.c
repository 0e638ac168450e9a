/* prefix_lines.c - see prefix_lines.h. The common case, a chunk of ASCII lines, costs
 * one scan and one copy; everything else goes line by line. */
#include "logs/core/prefix_lines.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/py/template.h"
#include "muster/error.h"

static const uint8_t replacement[] = { 0xef, 0xbf, 0xbd };

void tee_init(struct tee *t, struct span prefix, char *const *needles,
              size_t needle_count)
{
    *t = (struct tee){ .prefix = prefix,
                       .needles = needles,
                       .needle_count = needle_count };
    buf_init(&t->held, TEE_LINE_MAX);
}

void tee_fini(struct tee *t)
{
    buf_fini(&t->held);
}

static bool is_ascii(const uint8_t *p, size_t n)
{
    uint64_t high = 0, word;

    for (; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        high |= word;
    }
    for (; n > 0; p++, n--)
        high |= *p;
    return (high & 0x8080808080808080u) == 0;
}

/* How many bytes at p are one character, or (*good false) the longest beginning of one:
 * each such piece becomes one U+FFFD, as Unicode recommends and Python does. */
static size_t char_at(const uint8_t *p, size_t n, bool *good)
{
    const uint8_t lead = p[0];
    size_t want = 1;
    uint8_t low = 0x80, high = 0xbf;

    assert(n > 0);
    *good = lead < 0x80;
    if (lead < 0xc2 || lead > 0xf4)
        return 1;
    if (lead < 0xe0)
        want = 2;
    else if (lead < 0xf0)
        want = 3;
    else
        want = 4;
    if (lead == 0xe0)
        low = 0xa0; /* no overlong forms, */
    if (lead == 0xed)
        high = 0x9f; /* no surrogates, */
    if (lead == 0xf0)
        low = 0x90;
    if (lead == 0xf4)
        high = 0x8f; /* nothing past U+10FFFF */
    for (size_t i = 1; i < want; i++) {
        if (i == n || p[i] < low || p[i] > high)
            return i;
        low = 0x80;
        high = 0xbf;
    }
    *good = true;
    return want;
}

static int put_decoded(struct buf *out, struct span s)
{
    int rc = 0;
    size_t from = 0;

    for (size_t i = 0; rc == 0 && i < s.n;) {
        bool good;
        const size_t used = char_at(s.p + i, s.n - i, &good);
        assert(used > 0 && used <= s.n - i && from <= i);
        if (!good) {
            rc = buf_append(out, s.p + from, i - from);
            if (rc == 0)
                rc = buf_append(out, replacement, sizeof replacement);
            from = i + used;
        }
        i += used;
    }
    return rc ? rc : buf_append(out, s.p + from, s.n - from);
}

static bool has_needle(const struct tee *t, struct span line)
{
    for (size_t i = 0; i < t->needle_count; i++) {
        const size_t n = strlen(t->needles[i]);
        if (n == 0 || memmem(line.p, line.n, t->needles[i], n))
            return true;
    }
    return false;
}

/* One line, its end as \n if it has one. */
static int put_line(struct tee *t, struct span line, bool ended, struct buf *out,
                    struct buf *copy)
{
    const size_t before = buf_len(out);
    int rc = buf_append_span(out, t->prefix);

    if (rc == 0)
        rc = is_ascii(line.p, line.n) ? buf_append_span(out, line)
                                      : put_decoded(out, line);
    if (rc == 0 && ended)
        rc = buf_u8(out, '\n');
    if (rc != 0 || !copy || t->needle_count == 0)
        return rc;
    assert(buf_len(out) >= before + t->prefix.n);
    const struct span whole = span_of(buf_data(out) + before, buf_len(out) - before);
    if (has_needle(t, span_of(whole.p + t->prefix.n, whole.n - t->prefix.n)))
        rc = buf_append_span(copy, whole);
    return rc;
}

/* Where the line at p ends: the end's first byte, or NULL. */
static const uint8_t *line_end(const uint8_t *p, size_t n, bool has_cr)
{
    const uint8_t *lf = memchr(p, '\n', n);
    if (!has_cr)
        return lf;
    const uint8_t *cr = memchr(p, '\r', lf ? (size_t)(lf - p) : n);
    return cr ? cr : lf;
}

/* A line that began in an earlier chunk. */
static int put_held(struct tee *t, struct span rest, struct buf *out, struct buf *copy)
{
    int rc;

    assert(tee_holds(t));
    rc = buf_append_span(&t->held, rest);

    if (rc == MUSTER_EFULL) { /* too long to hold: two pieces, the first without end */
        rc = put_line(t, buf_span(&t->held), false, out, copy);
        buf_clear(&t->held);
        if (rc == 0)
            rc = put_line(t, rest, true, out, copy);
        return rc;
    }
    if (rc == 0)
        rc = put_line(t, buf_span(&t->held), true, out, copy);
    buf_clear(&t->held);
    return rc;
}

int tee_feed(struct tee *t, struct span bytes, struct buf *out, struct buf *copy)
{
    const uint8_t *p = bytes.p;
    size_t n = bytes.n;
    const bool has_cr = n > 0 && memchr(p, '\r', n) != NULL;
    int rc = 0;

    t->fresh = !tee_holds(t);
    while (n > 0 && rc == 0) {
        if (t->after_cr && *p == '\n') {
            p++;
            n--;
        }
        t->after_cr = false;
        const uint8_t *end = n ? line_end(p, n, has_cr) : NULL;
        if (!end)
            break;
        const struct span line = span_of(p, (size_t)(end - p));
        rc = tee_holds(t) ? put_held(t, line, out, copy)
                          : put_line(t, line, true, out, copy);
        t->fresh = true;
        t->after_cr = *end == '\r';
        assert(line.n < n);
        n -= line.n + 1;
        p = end + 1;
    }
    while (n > 0 && rc == 0) { /* What is left has no end yet. */
        const size_t room = TEE_LINE_MAX - buf_len(&t->held);
        const size_t take = MIN_OF(n, room);
        assert(take > 0 && take <= TEE_LINE_MAX);
        rc = buf_append(&t->held, p, take);
        p += take;
        n -= take;
        if (rc == 0 && n > 0) {
            rc = tee_flush(t, out, copy);
            t->fresh = true;
        }
    }
    return rc;
}

int tee_flush(struct tee *t, struct buf *out, struct buf *copy)
{
    if (!tee_holds(t))
        return 0;
    const int rc = put_line(t, buf_span(&t->held), false, out, copy);
    buf_clear(&t->held);
    return rc;
}

int line_prefix(struct buf *out, const char *template, const char *role, int64_t rank,
                int64_t local_rank, const char *hostname)
{
    char r[24], l[24];
    const struct template_value values[] = { { "role_name", role },
                                             { "rank", r },
                                             { "local_rank", l },
                                             { "hostname", hostname } };

    (void)snprintf(r, sizeof r, "%" PRId64, rank);
    (void)snprintf(l, sizeof l, "%" PRId64, local_rank);
    if (!template || !*template)
        return buf_printf(out, "[%s%s]:", role, l);
    return template_expand(out, template, values, ARRAY_LEN(values));
}
