/* store.h - the keys, counters, queues, waits and barriers of a c10d store.
 *
 * Pure memory: the driver (store/server.c) feeds requests and departures, and
 * performs the effects. Peers are small numbers that the driver hands out and reuses
 * once a peer has left. A PyTorch client sees what torch's own server would show it,
 * but without that server's lost, stale and early wake-ups. */
#ifndef STORE_CORE_STORE_H
#define STORE_CORE_STORE_H

#include "base/base.h"
#include "base/buf.h"
#include "store/core/wire.h"

/* A value may grow to this size by APPEND. No other request can make one larger than
 * C10D_MAX_VALUE. */
#define STORE_MAX_VALUE (1u << 30)

struct store;

/* The seed is for the hash map. A request whose answer would have more than max_reply
 * bytes closes its connection instead. NULL if out of memory. */
struct store *store_new(uint64_t seed, size_t max_reply);
void store_free(struct store *s); /* NULL is fine */
size_t store_key_count(const struct store *s);

enum store_event_kind {
    STORE_REQUEST, /* a peer sent a request */
    STORE_LEFT, /* a peer is gone; never fails, harmless if it never asked anything */
    STORE_WIPE, /* forget every key and queue; pending waits stay */
};

struct store_event {
    enum store_event_kind kind;
    uint32_t peer;
    const struct c10d_request *request; /* borrowed for the step */
    /* With this request the peer has given up its pending wait. True for PyTorch before
     * 2.2, whose clients may not be able to cancel one. */
    bool gives_up;
};

enum store_effect_kind {
    STORE_REPLY, /* send `reply` to the peer */
    STORE_CLOSE, /* close the peer's connection because of `reason` */
};

struct store_effect {
    enum store_effect_kind kind;
    uint32_t peer;
    struct c10d_reply reply; /* spans: borrowed until the next step */
    const char *reason;      /* borrowed until the next step */
};

/* The effects of one step, in order. The driver makes one and uses it for every step.
 */
struct store_fx {
    struct store_effect *items; /* owned, unless it is `few` */
    size_t count, size;
    struct store_effect few[4]; /* so that small steps cannot fail */
    struct buf lists;           /* encoded keys and values that a reply points to */
    char reason[256];
};

void store_fx_init(struct store_fx *fx); /* cannot fail; do not move fx afterwards */
void store_fx_fini(struct store_fx *fx); /* NULL and already finished are fine */

/* Takes one event. Returns 0 with its effects in fx (those of the step before are
 * gone), or MUSTER_ENOMEM with the store as it was: keys, values and lists have their
 * size from outside, so a request fails alone, and only its peer is dropped. A peer
 * that got CLOSE has left the store; to say so again with STORE_LEFT is harmless. */
int store_step(struct store *s, const struct store_event *ev, struct store_fx *fx);

#endif
