/* escape.c - see escape.h. */
#include "base/escape.h"

#include <assert.h>
#include <stdio.h>

#include "base/utf8.h"

/* Bytes of the character at the front, or 0 if it is none. */
static size_t character(struct span s)
{
    const size_t n = s.p[0] < 0x80 ? 1 : s.p[0] < 0xe0 ? 2 : s.p[0] < 0xf0 ? 3 : 4;

    return n <= s.n && utf8_valid(span_of(s.p, n)) ? n : 0;
}

static uint32_t point_of(const uint8_t *p, size_t n)
{
    if (n == 1)
        return p[0];
    if (n == 2)
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    if (n == 3)
        return (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    return (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 |
           (p[3] & 0x3fu);
}

static bool is_harmful(uint32_t c, unsigned flags)
{
    if (c == '\n')
        return !(flags & ESCAPE_LINES);
    return (c < 0x20 && c != '\t') || (c >= 0x7f && c < 0xa0) || c == 0x061c ||
           (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

int escape_append(struct buf *out, struct span text, unsigned flags)
{
    char code[16];
    int rc = 0;

    while (text.n && rc == 0) {
        size_t n = character(text);
        const uint32_t c = n ? point_of(text.p, n) : 0;

        if (n && !is_harmful(c, flags)) {
            size_t run = n; /* Most of it is plain: not one call a byte. */

            while (run < text.n && text.p[run] >= 0x20 && text.p[run] < 0x7f)
                run++;
            rc = buf_append(out, text.p, run);
            if (rc < 0) { /* as much as fits, in whole characters */
                const size_t fits = out->cap - MIN_OF(buf_len(out), out->cap);

                if (fits >= n)
                    (void)buf_append(out, text.p, MIN_OF(fits, run));
            }
            n = run;
        } else {
            (void)snprintf(code, sizeof code, n && c >= 0xa0 ? "\\u%04x" : "\\x%02x",
                           n && c >= 0xa0 ? c
                           : n == 2       ? c
                                          : text.p[0]);
            rc = buf_append_str(out, code);
            n = n ? n : 1;
        }
        assert(n > 0 && n <= text.n);
        text = span_of(text.p + n, text.n - n);
    }
    return rc;
}

char *escape_text(char *to, size_t size, struct span text)
{
    struct buf b;
    size_t n;

    assert(size > 0);
    buf_init(&b, size - 1);
    (void)escape_append(&b, text, 0);
    n = MIN_OF(buf_len(&b), size - 1);
    while (n && n == size - 1 && !utf8_valid(span_of(buf_data(&b), n)))
        n--;
    if (n)
        memcpy(to, buf_data(&b), n);
    to[n] = '\0';
    buf_fini(&b);
    return to;
}
