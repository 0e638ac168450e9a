/* defer.h - a call that the loop makes soon, never from inside the caller. It is for
 * contracts like "the callback never comes from inside the call". If it is asked for
 * again before it was made, it is made once. */
#ifndef LOOP_DEFER_H
#define LOOP_DEFER_H

#include <uv.h>

struct defer {
    uv_idle_t idle; /* close it as any handle, (uv_handle_t *)&defer->idle */
    void (*fn)(void *ctx);
    void *ctx; /* borrowed */
};

void defer_init(struct defer *d, uv_loop_t *loop, void (*fn)(void *ctx), void *ctx);
void defer_call(struct defer *d); /* in the loop's next turn, before it waits */

#endif
