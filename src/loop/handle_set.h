/* handle_set.h - closes the handles of one owner together. libuv closes each in its own
 * time, and the owner's memory may be freed once the last of them is closed.
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

/* Closes any kind of handle. The set uses the handle's data pointer from now on. */
void handle_set_close(struct handle_set *s, void *handle);

/* Also waits for something that is not a handle (a store, a server), until
 * handle_set_left() is called for it; that has the form of our closing callbacks. */
void handle_set_add(struct handle_set *s);
void handle_set_left(void *set);

/* Nothing more will be added. done comes when all are closed: from the loop, or from
 * inside this call if nothing is open. */
void handle_set_end(struct handle_set *s);

#endif
