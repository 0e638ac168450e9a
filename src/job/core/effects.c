/* effects.c - see effects.h. */
#include "job/core/effects.h"

#include "base/mem.h"

void run_fx_fini(struct run_fx *fx)
{
    mem_free(fx->items);
    *fx = (struct run_fx){ 0 };
}

void run_effect(struct run_fx *fx, struct run_effect e)
{
    struct run_effect *items =
        mem_grow_to(fx->items, &fx->size, fx->count, sizeof *items);

    if (!items) {
        fx->no_memory = true;
        return;
    }
    fx->items = items;
    fx->items[fx->count++] = e;
}

void run_effect_first(struct run_fx *fx, struct run_effect e)
{
    run_effect(fx, e);
    if (fx->no_memory)
        return;
    memmove(&fx->items[1], fx->items, (fx->count - 1) * sizeof *fx->items);
    fx->items[0] = e;
}

void run_send(struct run_fx *fx, uint32_t peer, struct run_msg msg)
{
    run_effect(fx, (struct run_effect){ .kind = RUN_SEND, .peer = peer, .msg = msg });
}

void run_drop(struct run_fx *fx, uint32_t peer, const char *why)
{
    run_effect(fx, (struct run_effect){ .kind = RUN_DROP,
                                        .peer = peer,
                                        .msg = { .text = span_str(why) } });
}
