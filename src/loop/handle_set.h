/* handle_set.h - handles of one owner that are closed together: libuv lets go of each
 * in its own time, and the owner's memory may go once it has let go of the last.
 *
 *     handle_set_begin(&h->closing, on_all_closed, h);
 *     handle_set_close(&h->closing, &h->timer);
 *     handle_set_close(&h->closing, &h->defer.idle);
 *     handle_set_end(&h->closing);
 */
#ifndef LOOP_HANDLE_SET_H
#define LOOP_HANDLE_SET_H

#include <uv.h>

struct handle_set {
    unsigned open; /* handles yet to close, and one until handle_set_end() */
    void (*done)(void *ctx);
    void *ctx; /* borrowed */
};

void handle_set_begin(struct handle_set *s, void (*done)(void *ctx), void *ctx);

/* Closes any kind of handle. Its data is the set's from now on. */
void handle_set_close(struct handle_set *s, void *handle);

/* One more thing to wait for that is not a handle (a store, a server); its end is told
 * with handle_set_left(), which has the form of our closing callbacks. */
void handle_set_add(struct handle_set *s);
void handle_set_left(void *set);

/* No more will come. done comes when all are closed: from the loop, or from within this
 * call if there was none. */
void handle_set_end(struct handle_set *s);

#endif
