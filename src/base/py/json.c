/* json.c - see json.h. */
#include "base/py/json.h"

#include "base/err.h"
#include "base/py/repr.h"
#include "base/utf8.h"

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
    int rc = buf_u8(out, '"');

    for (struct span s = span_str(text); rc == 0 && s.n;) {
        uint32_t c;
        size_t n = utf8_decode(s, &c);

        if (n == 0) { /* Python keeps a byte that is not UTF-8 as a lone surrogate. */
            c = 0xdc00u + s.p[0];
            n = 1;
        }
        rc = put_escaped(out, c);
        s = span_of(s.p + n, s.n - n);
    }
    return rc ? rc : buf_u8(out, '"');
}

static void put_members(struct buf *out, const json_t *value)
{
    const char *key;
    json_t *member;
    bool first = true;

    buf_u8(out, '{');
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        if (!first)
            buf_append_str(out, ", ");
        json_text(out, key);
        buf_append_str(out, ": ");
        json_python(out, member);
        first = false;
    }
    buf_u8(out, '}');
}

static void put_items(struct buf *out, const json_t *value)
{
    buf_u8(out, '[');
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i > 0)
            buf_append_str(out, ", ");
        json_python(out, json_array_get(value, i));
    }
    buf_u8(out, ']');
}

int json_python(struct buf *out, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        put_members(out, value);
        return buf_error(out);
    case JSON_ARRAY:
        put_items(out, value);
        return buf_error(out);
    case JSON_STRING:
        return json_text(out, json_string_value(value));
    case JSON_INTEGER:
        return buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL:
        return py_repr_float(out, json_real_value(value));
    case JSON_TRUE:
        return buf_append_str(out, "true");
    case JSON_FALSE:
        return buf_append_str(out, "false");
    case JSON_NULL:
        break;
    }
    return buf_append_str(out, "null");
}

/* --- reading ---------------------------------------------------------------------- */

#define ESCAPE_LEN 6 /* backslash, u, four digits */

static bool is_high(int32_t unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}

static bool is_low(int32_t unit)
{
    return unit >= 0xdc00 && unit < 0xe000;
}

/* The number of the \u escape at the front of text, or -1 if there is none. */
static int32_t escape_at(struct span text)
{
    int32_t unit = 0;

    if (text.n < ESCAPE_LEN || text.p[0] != '\\' || text.p[1] != 'u')
        return -1;
    for (size_t i = 2; i < ESCAPE_LEN; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *at = text.p[i] ? strchr(digits, text.p[i]) : NULL;
        if (!at)
            return -1;
        const int32_t value = (int32_t)(at - digits);
        unit = unit * 16 + (value < 16 ? value : value - 6);
    }
    return unit;
}

/* text begins with a backslash: how many bytes may stay as they are. These are a whole
 * surrogate pair, or the backslash and what it escapes, so that the second of two
 * backslashes is not taken for the first of an escape. 0: an escape that jansson does
 * not take. */
static size_t escape_to_keep(struct span text)
{
    const int32_t unit = escape_at(text);

    if (is_high(unit) &&
        is_low(escape_at(span_of(text.p + ESCAPE_LEN, text.n - ESCAPE_LEN))))
        return 2 * ESCAPE_LEN;
    if (unit == 0 || is_high(unit) || is_low(unit))
        return 0;
    return MIN_OF(text.n, 2);
}

int json_tame(struct buf *out, struct span text)
{
    int rc = 0;

    while (rc == 0 && text.n > 0) {
        const uint8_t *next = memchr(text.p, '\\', text.n);
        size_t n = next ? (size_t)(next - text.p) : text.n;
        if (n == 0) {
            n = escape_to_keep(text);
            if (n == 0) {
                rc = buf_u8(out, '\\');
                n = ESCAPE_LEN;
            }
        }
        if (rc == 0)
            rc = buf_append(out, text.p, n);
        text = span_of(text.p + n, text.n - n);
    }
    return rc;
}

int json_from_python(json_t **out, struct span text, struct muster_error *err)
{
    json_error_t why;
    struct buf tame;

    buf_init(&tame, SIZE_MAX);
    if (json_tame(&tame, text) != 0) {
        buf_fini(&tame);
        return err_nomem(err);
    }
    json_t *root = json_loadb(tame.len ? (const char *)buf_data(&tame) : "",
                              buf_len(&tame), 0, &why);
    buf_fini(&tame);
    if (!root && json_error_code(&why) == json_error_out_of_memory)
        return err_nomem(err);
    if (!root)
        return err_set(err, MUSTER_ESTATE, "%s (line %d column %d)", why.text, why.line,
                       why.column);
    *out = root;
    return 0;
}
