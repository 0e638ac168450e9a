/* local_name.c - see local_name.h. */
#include "status/core/local_name.h"

#include <inttypes.h>
#include <stdio.h>

#define PREFIX "muster/"

size_t local_name_print(const struct local_name *n, char out[LOCAL_NAME_MAX])
{
    int len =
        snprintf(out, LOCAL_NAME_MAX, PREFIX "%" PRIu32 "/%" PRId32, n->uid, n->pid);

    if (n->number)
        len +=
            snprintf(out + len, LOCAL_NAME_MAX - (size_t)len, "/%" PRIu32, n->number);
    return (size_t)len;
}

static bool name_number(struct span *s, uint64_t most, uint64_t *out)
{
    uint64_t v = 0;
    size_t n = 0;

    while (n < s->n && n < 11 && s->p[n] >= '0' && s->p[n] <= '9')
        v = v * 10 + (uint64_t)(s->p[n++] - '0');
    if (n == 0 || v > most || (n > 1 && s->p[0] == '0'))
        return false;
    *s = span_of(s->p + n, s->n - n);
    *out = v;
    return true;
}

static bool take_byte(struct span *s, char c)
{
    if (s->n == 0 || s->p[0] != (uint8_t)c)
        return false;
    *s = span_of(s->p + 1, s->n - 1);
    return true;
}

bool local_name_parse(struct span text, struct local_name *out)
{
    const struct span prefix = span_str(PREFIX);
    uint64_t uid, pid, number = 0;

    if (text.n < prefix.n || !span_eq(span_of(text.p, prefix.n), prefix))
        return false;
    text = span_of(text.p + prefix.n, text.n - prefix.n);
    if (!name_number(&text, UINT32_MAX, &uid) || !take_byte(&text, '/') ||
        !name_number(&text, INT32_MAX, &pid) || pid == 0)
        return false;
    if (text.n && (!take_byte(&text, '/') ||
                   !name_number(&text, LOCAL_NAME_TRIES - 1, &number) || number == 0))
        return false;
    if (text.n)
        return false;
    *out = (struct local_name){ (uint32_t)uid, (int32_t)pid, (uint32_t)number };
    return true;
}

/* Cuts the next field off the front of a line. */
static struct span take_field(struct span *line)
{
    size_t from = 0, to;

    while (from < line->n && line->p[from] == ' ')
        from++;
    for (to = from; to < line->n && line->p[to] != ' ';)
        to++;
    const struct span field = span_of(line->p + from, to - from);
    *line = span_of(line->p + to, line->n - to);
    return field;
}

/* Num RefCount Protocol Flags Type St Inode Path: the flag 00010000 is a socket that
 * listens, type 0001 a stream, and an '@' stands for each NUL byte of the name. */
bool local_name_of_line(struct span line, struct local_name *out)
{
    struct span flags = { NULL, 0 }, type = { NULL, 0 };

    for (int i = 0; i < 7; i++) {
        const struct span field = take_field(&line);

        if (i == 3)
            flags = field;
        if (i == 4)
            type = field;
    }
    if (!span_eq(flags, span_str("00010000")) || !span_eq(type, span_str("0001")))
        return false;
    return take_byte(&line, ' ') && take_byte(&line, '@') &&
           local_name_parse(line, out);
}
