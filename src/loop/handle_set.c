/* handle_set.c - see handle_set.h. */
#include "loop/handle_set.h"

#include <assert.h>

void handle_set_begin(struct handle_set *s, void (*done)(void *ctx), void *ctx)
{
    *s = (struct handle_set){ .open = 1, .done = done, .ctx = ctx };
}

void handle_set_left(void *set)
{
    struct handle_set *s = set;

    assert(s->open > 0);
    if (--s->open == 0)
        s->done(s->ctx);
}

static void handle_set_on_closed(uv_handle_t *handle)
{
    handle_set_left(handle->data);
}

void handle_set_add(struct handle_set *s)
{
    assert(s->open > 0);
    s->open++;
}

void handle_set_close(struct handle_set *s, void *handle)
{
    uv_handle_t *h = handle;

    handle_set_add(s);
    h->data = s;
    uv_close(h, handle_set_on_closed);
}

void handle_set_end(struct handle_set *s)
{
    handle_set_left(s);
}
