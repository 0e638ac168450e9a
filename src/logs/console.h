/* console.h - writing to an inherited stdout or stderr without ever blocking the loop.
 *
 * A pipe or terminal is opened anew for that, since making the inherited descriptor
 * non-blocking would do so for every process that shares it. */
#ifndef LOGS_CONSOLE_H
#define LOGS_CONSOLE_H

#include <uv.h>

#include "base/buf.h"
#include "loop/handle_set.h"

#define CONSOLE_ENOUGH (256u << 10) /* more than this waits: writers should pause */

struct console {
    int fd;
    bool own, socket, polled;
    bool wanted; /* by somebody who writes to fd without us */
    int broken;  /* errno of what made it useless, or 0 */
    struct buf out;
    uv_poll_t poll;
    uv_loop_t *loop;
    void (*on_ready)(void *ctx); /* what waited is written, or the console broke */
    void *ctx;
};

/* fd is 1 or 2, borrowed. */
void console_open(struct console *c, uv_loop_t *loop, int fd,
                  void (*on_ready)(void *ctx), void *ctx);
void console_flush(struct console *c); /* as much as goes now; the rest by itself */
void console_want(struct console *c);  /* on_ready comes when it takes more */

static inline bool console_full(const struct console *c)
{
    return buf_len(&c->out) >= CONSOLE_ENOUGH;
}

static inline bool console_empty(const struct console *c)
{
    return buf_len(&c->out) == 0;
}

/* c's memory may go when the set is closed. */
void console_close(struct console *c, struct handle_set *closing);

#endif
