/* template.c - see template.h. */
#include "base/py/template.h"

static bool starts_name(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static size_t name_len(const char *p)
{
    size_t n = 0;

    if (!starts_name(*p))
        return 0;
    while (starts_name(p[n]) || (p[n] >= '0' && p[n] <= '9'))
        n++;
    return n;
}

static const char *find(const struct template_value *values, size_t count,
                        const char *name, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(values[i].name, name, n) == 0 && values[i].name[n] == '\0')
            return values[i].value;
    return NULL;
}

/* What the reference at p (which is a '$') stands for, or NULL if it stays as it is;
 * *used is its length. */
static const char *resolve(const char *p, const struct template_value *values,
                           size_t count, size_t *used)
{
    const bool braced = p[1] == '{';
    const char *name = p + 1 + braced;
    const size_t n = name_len(name);

    *used = 1;
    if (p[1] == '$') {
        *used = 2;
        return "$";
    }
    if (n == 0 || (braced && name[n] != '}'))
        return NULL;
    *used = n + 1 + (braced ? 2 : 0);
    return find(values, count, name, n);
}

int template_expand(struct buf *out, const char *text,
                    const struct template_value *values, size_t count)
{
    int rc = 0;

    for (const char *p = text; rc == 0 && *p;) {
        size_t n = strcspn(p, "$");
        const char *value = NULL;

        if (n == 0)
            value = resolve(p, values, count, &n);
        rc = value ? buf_append_str(out, value) : buf_append(out, p, n);
        p += n;
    }
    return rc;
}
