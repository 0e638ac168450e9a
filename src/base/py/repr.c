/* repr.c - see repr.h. */
#include "base/py/repr.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/text.h"
#include "base/utf8.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies digits, which may have single '_' between them, without the '_'. Returns where
 * they end, or NULL if a '_' is out of place. */
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
    char clean[400]; /* Nobody types a longer number. */

    if (s.n == 0 || s.n >= sizeof clean)
        return false;
    if (!clean_float((const char *)s.p, (const char *)s.p + s.n, clean))
        return false;
    *out = strtod(clean, NULL);
    return true;
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
    uint32_t c;

    for (struct span s = span_str(text); rc == 0 && s.n;) {
        size_t n = utf8_decode(s, &c);

        if (n == 0) { /* Python keeps a byte that is not UTF-8 as a lone surrogate. */
            rc = buf_printf(b, "\\udc%02x", s.p[0]);
            n = 1;
        } else {
            rc = n == 1 ? repr_char(b, s.p[0], quote) : buf_append(b, s.p, n);
        }
        s = span_of(s.p + n, s.n - n);
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
    /* Python writes exponents from 1e16 on, %g as soon as it runs out of digits. */
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
