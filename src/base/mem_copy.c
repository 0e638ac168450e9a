/* mem_copy.c - copies and texts on top of mem_alloc and mem_realloc; see mem.h. It is a
 * file of its own because the simulator brings its own mem_alloc and mem_realloc. */
#include "base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *mem_realloc_array(void *p, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return mem_realloc(p, count * size);
}

void *mem_grow_to(void *p, size_t *count, size_t index, size_t size)
{
    size_t more = *count ? *count : 16;
    uint8_t *grown;

    if (index < *count)
        return p;
    while (more <= index)
        more *= 2;
    grown = mem_realloc_array(p, more, size);
    if (!grown)
        return NULL;
    assert(more > index && more > *count);
    memset(grown + *count * size, 0, (more - *count) * size);
    *count = more;
    return grown;
}

void *mem_memdup(const void *p, size_t n)
{
    void *copy = mem_alloc(n);

    if (copy && n)
        memcpy(copy, p, n);
    return copy;
}

char *mem_strndup(const char *s, size_t n)
{
    const size_t len = n ? strnlen(s, n) : 0; /* s may be NULL when n is 0. */
    char *copy = mem_alloc(len + 1);

    if (!copy)
        return NULL;
    if (len)
        memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

char *mem_printf(const char *fmt, ...)
{
    va_list ap;
    char *text;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (len < 0)
        return NULL;
    text = mem_alloc((size_t)len + 1);
    if (!text)
        return NULL;
    va_start(ap, fmt);
    (void)vsnprintf(text, (size_t)len + 1, fmt, ap);
    va_end(ap);
    return text;
}
