/* effects.c - the effects of a step, in an array that grows and is reused. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "store/core/store_int.h"

#define KEEP 1024u /* larger arrays are freed, and lists of over 64 * KEEP bytes */

void store_fx_init(struct store_fx *fx)
{
    fx->items = fx->few;
    fx->count = 0;
    fx->size = ARRAY_LEN(fx->few);
    buf_init(&fx->lists, SIZE_MAX);
    fx->reason[0] = '\0';
}

static void free_items(struct store_fx *fx)
{
    if (fx->items != fx->few)
        mem_free(fx->items);
    fx->items = fx->few;
    fx->size = ARRAY_LEN(fx->few);
}

void store_fx_fini(struct store_fx *fx)
{
    if (!fx)
        return;
    free_items(fx);
    buf_fini(&fx->lists);
    fx->count = 0;
}

/* Frees what one large step needed and others do not. */
void fx_tidy(struct store_fx *fx)
{
    if (fx->size > KEEP)
        free_items(fx);
    if (fx->lists.size > KEEP * 64)
        buf_fini(&fx->lists);
    buf_clear(&fx->lists);
}

int fx_grow(struct store_fx *fx, size_t more)
{
    struct store_effect *items;
    size_t size = fx->size;

    assert(fx->count <= fx->size);
    if (more > SIZE_MAX / sizeof *items / 4)
        return MUSTER_ENOMEM;
    while (size - fx->count < more)
        size *= 2;
    items = mem_alloc(size * sizeof *items);
    if (!items)
        return MUSTER_ENOMEM;
    memcpy(items, fx->items, fx->count * sizeof *items);
    if (fx->items != fx->few)
        mem_free(fx->items);
    fx->items = items;
    fx->size = size;
    return 0;
}

void fx_reply(struct store_fx *fx, uint32_t peer, const struct c10d_reply *reply)
{
    struct store_effect *e = &fx->items[fx->count++];

    assert(fx->count <= fx->size);
    e->kind = STORE_REPLY;
    e->peer = peer;
    e->reply = *reply;
    e->reason = NULL;
}

void fx_close(struct store_fx *fx, uint32_t peer, const char *fmt, ...)
{
    struct store_effect *e = &fx->items[fx->count++];
    va_list ap;

    assert(fx->count <= fx->size);
    va_start(ap, fmt);
    (void)vsnprintf(fx->reason, sizeof fx->reason, fmt, ap);
    va_end(ap);
    *e = (struct store_effect){ .kind = STORE_CLOSE,
                                .peer = peer,
                                .reason = fx->reason };
}
