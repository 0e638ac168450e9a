/* backend_c10d_watch.c - waiting for the rendezvous state in a c10d store to change, on
 * a connection of its own, if the server is ours (store/reserved.h). */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "io/backend_c10d_int.h"
#include "store/reserved.h"

static void on_change(void *ctx, int status, const struct c10d_reply *reply,
                      const struct muster_error *err);

/* Waits on the watcher's connection for the wanted value to be replaced. */
static bool watch_go(struct c10d *c)
{
    char key[8192 + 64];
    struct span keys;
    /* The client puts the first slash; one ends the hash, and one begins every key. */
    const int n = snprintf(key, sizeof key, "%s%016" PRIx64 "//%s",
                           &RESERVED_CHANGED[1], c->watch.wanted, c->key);

    if (n < 0 || (size_t)n >= sizeof key)
        return false;
    if (!c->watcher && c10d_open_store(c, true, NULL, c, &c->watcher, NULL) < 0)
        return false;
    keys = span_of(key, (size_t)n);
    if (astore_wait(c->watcher, &keys, 1, UINT64_MAX, on_change, c, NULL) < 0) {
        c10d_drop(c, &c->watcher);
        return false;
    }
    c->watch.waited = c->watch.wanted;
    c->watch.waiting = true;
    return true;
}

static void on_change(void *ctx, int status, const struct c10d_reply *reply,
                      const struct muster_error *err)
{
    struct c10d *c = ctx;
    const rdzv_changed_cb cb = c->watch.cb;

    (void)reply;
    (void)err;
    c->watch.waiting = false;
    if (c->closing)
        return;
    if (status < 0) {
        /* Say so as a change: whoever looks will meet the broken connection, too. */
        c->can_watch = false;
        c10d_drop(c, &c->watcher);
    } else if (cb && c->watch.waited != c->watch.wanted && watch_go(c)) {
        return; /* It was the watch before; this one is on its way. */
    }
    c->watch.cb = NULL;
    if (cb)
        cb(c->watch.ctx);
}

bool c10d_watch(struct rdzv_backend *b, bool present, struct span value,
                rdzv_changed_cb cb, void *ctx)
{
    struct c10d *c = CONTAINER_OF(b, struct c10d, base);

    if (c->memory)
        return true; /* Only we ourselves change it. */
    if (!c->up || !c->can_watch)
        return false;
    c->watch.wanted = reserved_hash(present ? value : span_str(RDZV_C10D_SENTINEL));
    c->watch.cb = cb;
    c->watch.ctx = ctx;
    /* A wait for an older value ends by itself, as that value is no longer there. */
    if (c->watch.waiting || watch_go(c))
        return true;
    c->watch.cb = NULL;
    return false;
}
