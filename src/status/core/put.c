/* put.c - see put.h. */
#include "status/core/put.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/utf8.h"

#define REPLACEMENT 0xfffdu

enum style { JSON, HTML, PLAIN, LABEL };

/* The character at the front; REPLACEMENT for a byte that belongs to none. */
static uint32_t char_at(struct span s, size_t *used)
{
    uint32_t c = REPLACEMENT;

    *used = MAX_OF(utf8_decode(s, &c), (size_t)1);
    return c;
}

static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff;
}

/* The text that replaces a character in this style; NULL if it stays as it is. */
static const char *replacement(enum style style, uint32_t c, char room[16])
{
    if (c == REPLACEMENT)
        return "\xef\xbf\xbd";
    switch (style) {
    case JSON:
        if (c == '"' || c == '\\')
            return c == '"' ? "\\\"" : "\\\\";
        if (c == '\n')
            return "\\n";
        if (!is_control(c) && c != '<' && c != '>' && c != '&')
            return NULL;
        (void)snprintf(room, 16, "\\u%04x", (unsigned)c);
        return room;
    case HTML:
        if (c == '&')
            return "&amp;";
        if (c == '<' || c == '>')
            return c == '<' ? "&lt;" : "&gt;";
        if (c == '"' || c == '\'')
            return c == '"' ? "&quot;" : "&#39;";
        return is_control(c) ? (c == '\n' ? "\n" : "\xef\xbf\xbd") : NULL;
    case LABEL:
        if (c == '"' || c == '\\')
            return c == '"' ? "\\\"" : "\\\\";
        return is_control(c) ? (c == '\n' ? "\\n" : "?") : NULL;
    case PLAIN:
        break;
    }
    return is_control(c) ? "?" : NULL;
}

/* Writes at most `most` characters; returns how many bytes of the text are left. */
static size_t put_styled(struct buf *out, struct span text, enum style style,
                         size_t most)
{
    size_t kept = 0; /* bytes at the front that stay as they are */
    char room[16];

    for (; kept < text.n && most > 0; most--) {
        size_t used;
        const uint32_t c = char_at(span_skip(text, kept), &used);
        const char *other = replacement(style, c, room);

        if (!other) {
            kept += used;
            continue;
        }
        (void)buf_append(out, text.p, kept);
        (void)buf_append_str(out, other);
        text = span_skip(text, kept + used);
        kept = 0;
    }
    (void)buf_append(out, text.p, kept);
    assert(kept <= text.n);
    return text.n - kept;
}

void put_json(struct buf *out, struct span text)
{
    (void)buf_u8(out, '"');
    (void)put_styled(out, text, JSON, SIZE_MAX);
    (void)buf_u8(out, '"');
}

void put_html(struct buf *out, struct span text)
{
    (void)put_styled(out, text, HTML, SIZE_MAX);
}

void put_plain(struct buf *out, struct span text)
{
    (void)put_styled(out, text, PLAIN, SIZE_MAX);
}

void put_label(struct buf *out, struct span text)
{
    (void)put_styled(out, text, LABEL, SIZE_MAX);
}

size_t plain_width(struct span text)
{
    size_t n = 0;

    while (text.n) {
        size_t used;

        (void)char_at(text, &used);
        text = span_skip(text, used);
        n++;
    }
    return n;
}

void put_plain_cut(struct buf *out, struct span text, size_t columns)
{
    const bool cut = plain_width(text) > columns;

    (void)put_styled(out, text, PLAIN, cut && columns > 3 ? columns - 3 : columns);
    if (cut && columns > 3)
        put_str(out, "...");
}

void put_str(struct buf *out, const char *text)
{
    (void)buf_append_str(out, text);
}

void put_int(struct buf *out, int64_t n)
{
    char room[24];
    char *p = room + sizeof room;
    uint64_t v = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;

    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    if (n < 0)
        *--p = '-';
    assert(p >= room);
    (void)buf_append(out, p, (size_t)(room + sizeof room - p));
}

void put_seconds(struct buf *out, int64_t us)
{
    (void)buf_printf(out, "%s%" PRId64 ".%06" PRId64, us < 0 ? "-" : "",
                     us < 0 ? -(us / 1000000) : us / 1000000,
                     us < 0 ? -(us % 1000000) : us % 1000000);
}

void put_duration(struct buf *out, int64_t us)
{
    const int64_t s = us / 1000000;

    if (us < 0)
        put_str(out, "0 s");
    else if (us < 10000000)
        (void)buf_printf(out, "%.1f s", (double)us / 1e6);
    else if (s < 120)
        (void)buf_printf(out, "%" PRId64 " s", s);
    else if (s < 7200)
        (void)buf_printf(out, "%" PRId64 " min", s / 60);
    else if (s < 172800)
        (void)buf_printf(out, "%" PRId64 " h %" PRId64 " min", s / 3600, s / 60 % 60);
    else
        (void)buf_printf(out, "%" PRId64 " d %" PRId64 " h", s / 86400, s / 3600 % 24);
}

void put_bytes(struct buf *out, uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    double v = (double)bytes;
    size_t unit = 0;

    for (; v >= 1024 && unit + 1 < ARRAY_LEN(units); unit++)
        v /= 1024;
    (void)buf_printf(out, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
}

void put_grouped(struct buf *out, uint64_t n)
{
    if (n >= 1000) {
        put_grouped(out, n / 1000);
        (void)buf_printf(out, ",%03u", (unsigned)(n % 1000));
    } else {
        put_int(out, (int64_t)n);
    }
}
