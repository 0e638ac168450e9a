/* defer.c - see defer.h. It uses an idle handle, since that keeps the loop from
 * sleeping; the handle is active only while a call is pending. */
#include "loop/defer.h"

#include <assert.h>

static void defer_on_idle(uv_idle_t *idle)
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
    (void)uv_idle_start(&d->idle, defer_on_idle);
}
