/* repr.c - see repr.h. */
#include "base/py/repr.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/text.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single '_' between them, copied without. Returns where they end, or NULL
 * if a '_' is out of place. */
static const char *take_digits(const char *p, const char *end, char **to, bool *any)
{
    for (; p < end && (is_digit(*p) || *p == '_'); p++) {
        if (*p == '_') {
            if (!*any || !is_digit(p[-1]) || p + 1 == end || !is_digit(p[1]))
                return NULL;
            continue;
        }
        *any = true;
        *(*to)++ = *p;
    }
    return p;
}

static bool is_word(const char *p, const char *end, const char *word)
{
    for (; *word; word++, p++)
        if (p == end || (*p | 0x20) != *word)
            return false;
    return p == end;
}

/* Rewrites the number without '_' for strtod; false if Python would not take it. */
static bool clean_float(const char *p, const char *end, char *to)
{
    bool whole = false, fraction = false, exponent = false;

    if (p < end && (*p == '-' || *p == '+'))
        *to++ = *p++;
    if (is_word(p, end, "inf") || is_word(p, end, "infinity") ||
        is_word(p, end, "nan")) {
        memcpy(to, p, (size_t)(end - p));
        to[end - p] = '\0';
        return true;
    }
    if (!(p = take_digits(p, end, &to, &whole)))
        return false;
    if (p < end && *p == '.') {
        *to++ = *p++;
        if (!(p = take_digits(p, end, &to, &fraction)))
            return false;
    }
    if (!whole && !fraction)
        return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        *to++ = *p++;
        if (p < end && (*p == '-' || *p == '+'))
            *to++ = *p++;
        if (!(p = take_digits(p, end, &to, &exponent)) || !exponent)
            return false;
    }
    *to = '\0';
    return p == end;
}

bool py_float(const char *text, double *out)
{
    const struct span s = py_strip(span_str(text));
    char clean[400]; /* Longer texts say no more about a double, and nobody types them.
                      */

    if (s.n == 0 || s.n >= sizeof clean)
        return false;
    if (!clean_float((const char *)s.p, (const char *)s.p + s.n, clean))
        return false;
    *out = strtod(clean, NULL);
    return true;
}

/* Length of the well-formed UTF-8 sequence at p, or 0. */
static size_t utf8_len(const uint8_t *p)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const size_t n = p[0] < 0x80             ? 1
                     : (p[0] & 0xe0) == 0xc0 ? 2
                     : (p[0] & 0xf0) == 0xe0 ? 3
                     : (p[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    uint32_t c;

    if (n < 2)
        return n;
    c = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    return n;
}

static int repr_char(struct buf *b, uint8_t c, char quote)
{
    if (c == '\\' || c == (uint8_t)quote)
        return buf_printf(b, "\\%c", c);
    if (c == '\n')
        return buf_append_str(b, "\\n");
    if (c == '\r')
        return buf_append_str(b, "\\r");
    if (c == '\t')
        return buf_append_str(b, "\\t");
    if (c < 0x20 || c == 0x7f)
        return buf_printf(b, "\\x%02x", c);
    return buf_u8(b, c);
}

int py_repr(struct buf *b, const char *text)
{
    const char quote = strchr(text, '\'') && !strchr(text, '"') ? '"' : '\'';
    int rc = buf_u8(b, (uint8_t)quote);

    for (const uint8_t *p = (const uint8_t *)text; rc == 0 && *p;) {
        const size_t n = utf8_len(p);

        if (n == 0) { /* Python carries such a byte as a lone surrogate. */
            rc = buf_printf(b, "\\udc%02x", *p++);
            continue;
        }
        rc = n == 1 ? repr_char(b, *p, quote) : buf_append(b, p, n);
        p += n;
    }
    return rc ? rc : buf_u8(b, (uint8_t)quote);
}

int py_repr_float(struct buf *out, double v)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    const bool plain = !strpbrk(text, ".einf");
    /* Python changes to exponents at 1e16, %g as soon as the digits run out. */
    if (strpbrk(text, "e") && fabs(v) < 1e16 && fabs(v) >= 1e-4)
        snprintf(text, sizeof text, "%.1f", v);
    return buf_printf(out, "%s%s", text, plain ? ".0" : "");
}

int py_bad_int(struct muster_error *err, const char *text, size_t n, const char *remedy)
{
    char *copy = mem_strndup(text, n);
    struct buf b;
    int rc;

    buf_init(&b, SIZE_MAX);
    if (!copy || py_repr(&b, copy) != 0 || buf_u8(&b, 0) != 0)
        rc = err_nomem(err);
    else
        rc = err_set(err, MUSTER_EINVAL,
                     "invalid literal for int() with base 10: %s\n%s",
                     (const char *)buf_data(&b), remedy);
    mem_free(copy);
    buf_fini(&b);
    return rc;
}
