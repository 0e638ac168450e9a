/* buf.h - bytes that grow at the end and are consumed at the front, up to a cap.
 *
 * The readable bytes are buf_data() .. + buf_len(). A failed append leaves the bytes as
 * they were, and the buffer remembers the first failure: a caller that writes a text
 * piece by piece checks buf_error() once at the end. Numbers are little-endian, as on
 * the c10d wire. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/base.h"

struct buf {
    uint8_t *mem; /* owned */
    size_t head;  /* consumed bytes at the front */
    size_t len;   /* readable bytes behind them */
    size_t size;  /* of mem */
    size_t cap;   /* len never exceeds it */
    int err;      /* of the first append that failed since the last buf_clear(), or 0 */
};

void buf_init(struct buf *b, size_t cap); /* SIZE_MAX: no cap; cannot fail */
void buf_fini(struct buf *b);             /* NULL and zeroed are fine */

static inline const uint8_t *buf_data(const struct buf *b)
{
    return b->mem ? b->mem + b->head : NULL;
}

static inline size_t buf_len(const struct buf *b)
{
    return b->len;
}

/* 0 if every append since the last buf_clear() succeeded, else the first one's error.
 */
static inline int buf_error(const struct buf *b)
{
    return b->err;
}

static inline struct span buf_span(const struct buf *b)
{
    return span_of(buf_data(b), b->len);
}

/* Makes room for n more bytes and returns where they go, or NULL. buf_room_err() then
 * tells why: MUSTER_EFULL past the cap, else MUSTER_ENOMEM. */
uint8_t *buf_room(struct buf *b, size_t n);
int buf_room_err(const struct buf *b, size_t n);

/* Makes the n bytes that were written into the room readable. */
void buf_commit(struct buf *b, size_t n);

void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b);  /* keeps the memory, forgets the error */
void buf_shrink(struct buf *b); /* gives memory back if it holds far more than needed */

/* Records a failure that did not come from an append, for buf_error(). 0 is ignored. */
void buf_fail(struct buf *b, int err);

/* All return 0, MUSTER_EFULL or MUSTER_ENOMEM. */
int buf_append(struct buf *b, const void *p, size_t n);
int buf_append_span(struct buf *b, struct span s);
int buf_append_str(struct buf *b, const char *s);
int buf_u8(struct buf *b, uint8_t v);
int buf_u32(struct buf *b, uint32_t v);
int buf_u64(struct buf *b, uint64_t v);
int buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static inline uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

static inline uint64_t get_u64(const uint8_t *p)
{
    return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static inline void put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static inline void put_u64(uint8_t *p, uint64_t v)
{
    put_u32(p, (uint32_t)v);
    put_u32(p + 4, (uint32_t)(v >> 32));
}

#endif
