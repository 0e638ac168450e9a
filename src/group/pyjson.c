/* pyjson.c - see pyjson.h. */
#include "group/pyjson.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One character of UTF-8 at p, and how many bytes it took; a byte that begins none is
 * returned as Python keeps it, as a lone surrogate. */
static uint32_t next_char(const unsigned char *p, size_t *used)
{
    const unsigned lead = p[0];
    const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc2 ? 1 : 0;
    uint32_t c = lead & (0x3fu >> more);

    *used = 1;
    if (lead < 0x80)
        return lead;
    for (size_t i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0xdc00 + lead;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (more == 0 || lead > 0xf4 || (more == 2 && c < 0x800) ||
        (c >= 0xd800 && c < 0xe000) || (more == 3 && (c < 0x10000 || c > 0x10ffff)))
        return 0xdc00 + lead;
    *used = more + 1;
    return c;
}

static int put_escaped(struct buf *out, uint32_t c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = c && c < 0x80 ? strchr(plain, (int)c) : NULL;

    if (at)
        return buf_printf(out, "\\%c", letters[at - plain]);
    if (c >= ' ' && c <= '~')
        return buf_u8(out, (uint8_t)c);
    if (c < 0x10000)
        return buf_printf(out, "\\u%04x", c);
    c -= 0x10000;
    return buf_printf(out, "\\u%04x\\u%04x", 0xd800 + (c >> 10), 0xdc00 + (c & 0x3ff));
}

int json_text(struct buf *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    int rc = buf_u8(out, '"');

    for (size_t used; rc == 0 && *p; p += used)
        rc = put_escaped(out, next_char(p, &used));
    return rc ? rc : buf_u8(out, '"');
}

/* The shortest text that reads back as the same number, and looks like a float. */
static int put_real(struct buf *out, double v)
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

static int put_members(struct buf *out, const json_t *value)
{
    const char *key;
    json_t *member;
    bool first = true;
    int rc = buf_u8(out, '{');

    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        if (rc == 0 && !first)
            rc = buf_append_str(out, ", ");
        if (rc == 0)
            rc = json_text(out, key);
        if (rc == 0)
            rc = buf_append_str(out, ": ");
        if (rc == 0)
            rc = json_python(out, member);
        first = false;
    }
    return rc ? rc : buf_u8(out, '}');
}

static int put_items(struct buf *out, const json_t *value)
{
    int rc = buf_u8(out, '[');

    for (size_t i = 0; rc == 0 && i < json_array_size(value); i++) {
        if (i > 0)
            rc = buf_append_str(out, ", ");
        if (rc == 0)
            rc = json_python(out, json_array_get(value, i));
    }
    return rc ? rc : buf_u8(out, ']');
}

int json_python(struct buf *out, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return put_members(out, value);
    case JSON_ARRAY:
        return put_items(out, value);
    case JSON_STRING:
        return json_text(out, json_string_value(value));
    case JSON_INTEGER:
        return buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL:
        return put_real(out, json_real_value(value));
    case JSON_TRUE:
        return buf_append_str(out, "true");
    case JSON_FALSE:
        return buf_append_str(out, "false");
    case JSON_NULL:
        break;
    }
    return buf_append_str(out, "null");
}
