/* deadline.c - see deadline.h. */
#include "loop/deadline.h"

#include "loop/clock.h"

static void deadline_on_timer(uv_timer_t *timer)
{
    struct deadline *d = timer->data;

    d->fn(d->ctx);
}

void deadline_init(struct deadline *d, uv_loop_t *loop, void (*fn)(void *ctx),
                   void *ctx)
{
    (void)uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    d->fn = fn;
    d->ctx = ctx;
}

void deadline_set(struct deadline *d, uint64_t due_ms)
{
    clock_arm(&d->timer, deadline_on_timer, due_ms);
}
