/* arena.c - see arena.h. Blocks are chained; a large item gets a block of its own. */
#include "base/arena.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"

#define BLOCK_SIZE 4096u

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    max_align_t bytes[];
};

static struct arena_block *add_block(struct arena *a, size_t least)
{
    const size_t size = MAX_OF(least, BLOCK_SIZE);
    struct arena_block *b = mem_alloc(sizeof *b + size);

    if (!b)
        return NULL;
    b->used = 0;
    b->size = size;
    b->next = a->blocks;
    a->blocks = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    const size_t step = _Alignof(max_align_t);
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + step - 1) / step * step;
    struct arena_block *b = a->blocks;
    if (!b || b->size - b->used < bytes)
        b = add_block(a, bytes);
    if (!b)
        return NULL;
    assert(b->used <= b->size && bytes <= b->size - b->used);
    void *p = (char *)b->bytes + b->used;
    b->used += bytes;
    memset(p, 0, bytes);
    return p;
}

char *arena_text(struct arena *a, struct span text)
{
    char *copy = arena_alloc(a, text.n + 1, 1);

    if (copy && text.n > 0)
        memcpy(copy, text.p, text.n);
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1, 1);
    if (!text)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}

void arena_fini(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *next = a->blocks->next;

        mem_free(a->blocks);
        a->blocks = next;
    }
}
