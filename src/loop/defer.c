/* defer.c - see defer.h. An idle handle, since that keeps the loop from sleeping; it is
 * active only while a call is asked for. */
#include "loop/defer.h"

#include <assert.h>

static void on_idle(uv_idle_t *idle)
{
    struct defer *d = idle->data;

    (void)uv_idle_stop(idle);
    d->fn(d->ctx);
}

void defer_init(struct defer *d, uv_loop_t *loop, void (*fn)(void *ctx), void *ctx)
{
    (void)uv_idle_init(loop, &d->idle);
    d->idle.data = d;
    d->fn = fn;
    d->ctx = ctx;
}

void defer_call(struct defer *d)
{
    assert(!uv_is_closing((uv_handle_t *)&d->idle));
    (void)uv_idle_start(&d->idle, on_idle);
}
