/* escape.c - see escape.h. */
#include "base/escape.h"

#include <assert.h>
#include <stdio.h>

#include "base/utf8.h"

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
        uint32_t c = 0;
        size_t n = utf8_decode(text, &c);

        if (n && !is_harmful(c, flags)) {
            size_t run = n; /* Most text is plain: append it in one call. */

            while (run < text.n && text.p[run] >= 0x20 && text.p[run] < 0x7f)
                run++;
            rc = buf_append(out, text.p, run);
            if (rc < 0) { /* Append as much as fits, in whole characters. */
                const size_t fits = out->cap - MIN_OF(buf_len(out), out->cap);

                if (fits >= n)
                    (void)buf_append(out, text.p, MIN_OF(fits, run));
            }
            n = run;
        } else {
            (void)snprintf(code, sizeof code, n && c >= 0xa0 ? "\\u%04x" : "\\x%02x",
                           n ? c : text.p[0]);
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
