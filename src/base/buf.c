/* buf.c - growable bytes; see buf.h. */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "muster/error.h"

void buf_init(struct buf *b, size_t cap)
{
    *b = (struct buf){ .cap = cap };
}

void buf_fini(struct buf *b)
{
    if (!b)
        return;
    mem_free(b->mem);
    buf_init(b, b->cap);
}

int buf_room_err(const struct buf *b, size_t n)
{
    return n > b->cap || b->len > b->cap - n ? MUSTER_EFULL : MUSTER_ENOMEM;
}

/* The consumed front is reused once it is at least as large as what would be moved,
 * so that each byte is moved at most once for each time it is read. */
static uint8_t *find_room(struct buf *b, size_t n)
{
    size_t size;
    uint8_t *mem;

    assert(b->head + b->len <= b->size);
    if (n > b->cap || b->len > b->cap - n)
        return NULL;
    if (b->size - b->head - b->len >= n && b->mem)
        return b->mem + b->head + b->len;
    if (b->head && b->head >= b->len && b->size - b->len >= n) {
        memmove(b->mem, b->mem + b->head, b->len);
        b->head = 0;
        return b->mem + b->len;
    }
    size = b->size < 64 ? 64 : b->size;
    while (size - b->len < n || size < b->len) {
        if (size > SIZE_MAX / 2)
            return NULL;
        size *= 2;
    }
    mem = mem_alloc(size);
    if (!mem)
        return NULL;
    if (b->len)
        memcpy(mem, b->mem + b->head, b->len);
    mem_free(b->mem);
    b->mem = mem;
    b->head = 0;
    b->size = size;
    return mem + b->len;
}

uint8_t *buf_room(struct buf *b, size_t n)
{
    uint8_t *room = find_room(b, n);

    if (!room)
        buf_fail(b, buf_room_err(b, n));
    return room;
}

void buf_commit(struct buf *b, size_t n)
{
    assert(b->size - b->head - b->len >= n);
    b->len += n;
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= b->len);
    b->head += n;
    b->len -= n;
    if (b->len == 0)
        b->head = 0;
}

void buf_clear(struct buf *b)
{
    b->head = 0;
    b->len = 0;
    b->err = 0;
}

void buf_fail(struct buf *b, int err)
{
    assert(err <= 0);
    if (b->err == 0)
        b->err = err;
}

void buf_shrink(struct buf *b)
{
    uint8_t *mem;

    if (b->len == 0) {
        buf_fini(b);
        return;
    }
    if (b->size / 4 < b->len)
        return;
    mem = mem_alloc(b->len);
    if (!mem)
        return; /* Shrinking is optional: the larger buffer still works. */
    memcpy(mem, b->mem + b->head, b->len);
    mem_free(b->mem);
    b->mem = mem;
    b->head = 0;
    b->size = b->len;
}

int buf_append(struct buf *b, const void *p, size_t n)
{
    uint8_t *to = buf_room(b, n);

    if (!to)
        return buf_room_err(b, n);
    if (n)
        memcpy(to, p, n);
    b->len += n;
    return 0;
}

int buf_append_span(struct buf *b, struct span s)
{
    return buf_append(b, s.p, s.n);
}

int buf_append_str(struct buf *b, const char *s)
{
    return buf_append(b, s, strlen(s));
}

int buf_u8(struct buf *b, uint8_t v)
{
    return buf_append(b, &v, 1);
}

int buf_u32(struct buf *b, uint32_t v)
{
    uint8_t le[4];

    put_u32(le, v);
    return buf_append(b, le, sizeof le);
}

int buf_u64(struct buf *b, uint64_t v)
{
    uint8_t le[8];

    put_u64(le, v);
    return buf_append(b, le, sizeof le);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    uint8_t *to;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (len < 0) {
        buf_fail(b, MUSTER_EINVAL);
        return MUSTER_EINVAL;
    }
    to = buf_room(b, (size_t)len + 1); /* The terminator is not counted in len. */
    if (!to)
        return buf_room_err(b, (size_t)len + 1);
    va_start(ap, fmt);
    (void)vsnprintf((char *)to, (size_t)len + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)len;
    return 0;
}
