/* store_int.h - what the files of the engine share: store.c, keys.c, waits.c and
 * effects.c. */
#ifndef STORE_CORE_STORE_INT_H
#define STORE_CORE_STORE_INT_H

#include <assert.h>

#include "base/map.h"
#include "store/core/store.h"

struct wait;

/* One wait's interest in one key. It is part of the wait. */
struct link {
    struct key *key; /* borrowed; NULL once the key no longer holds up the wait */
    struct link *prev, *next;
    struct wait *wait; /* borrowed: the wait that it is part of */
    struct links *in;  /* the list it is in, so that it can leave by itself */
    uint64_t hash;     /* in `watch`: of the value that must change */
};

struct links {
    struct link *first, *last; /* oldest first; borrowed from the waits */
    size_t count;
};

/* A pending WAIT or BARRIER of one peer. Once a push has answered it, it stays to
 * record that this peer has yet to pop the item (see `unclaimed`). */
struct wait {
    uint32_t peer;
    enum c10d_op op;
    size_t pending; /* keys that still hold it up; 0: answered */
    size_t count;   /* links in use */
    struct link links[];
};

struct item {
    struct item *next; /* owned by the queue */
    size_t n;
    uint8_t bytes[];
};

/* The part that only few keys have: those that a peer waits for, and queues. */
struct more {
    struct links ready; /* waits that end when the key appears or is written */
    struct links watch; /* waits that end when the value becomes another one */
    /* Waits of peers that were woken by a push and have not popped the item yet. If
     * such a peer leaves, the next waiter must be woken. */
    struct links unclaimed;
    struct item *first, *last; /* owned; the queue, oldest first */
    size_t items;
    struct key *next; /* during a wipe: another key that stays */
};

/* An entry of the map. It exists while it has a value, a queue or a waiting peer. There
 * may be very many, so an entry is one piece of memory with little beside name and
 * value. Only a value that has outgrown its place has a block of its own, and then the
 * block's address is where the value was. */
struct key {
    struct more *more; /* owned, NULL for most */
    uint32_t name_len;
    uint32_t len, cap; /* of the value */
    bool present;      /* has a value, so users see the key */
    bool outside;      /* the value is in a block, which is owned */
    uint8_t bytes[];   /* the name, and behind it the value */
};

struct peer {
    struct wait *wait;      /* owned; pending, or NULL */
    struct wait *unclaimed; /* owned; see struct wait, or NULL */
};

struct store {
    struct map map;
    size_t max_reply;
    size_t present;     /* keys with a value */
    size_t name_bytes;  /* of their names, which LIST_KEYS answers */
    size_t waits;       /* pending */
    struct peer *peers; /* owned, by number; grows when a peer waits */
    size_t peers_size;
    struct item
        *popped; /* owned: the last step's reply points to it; freed by the next */
    const struct key *hashed; /* the key whose value has `hash`; NULL: none */
    uint64_t hash;
};

/* keys.c */
struct span name_of_link(const struct map_link *link); /* for the map */
struct key *key_find(const struct store *s, struct span name);
/* Makes an entry without a value, but with room for one of n bytes. The caller gives it
 * a value, a queue or a wait, or calls key_drop_if_empty. */
struct key *key_make(struct store *s, struct span name, size_t n);
void key_drop_if_empty(struct store *s, struct key *k); /* frees what is not needed */
void key_free(struct key *k);     /* k is not in the map, and nothing waits for it */
int key_need_more(struct key *k); /* makes k->more if there is none */

static inline struct span key_name(const struct key *k)
{
    return span_of(k->bytes, k->name_len);
}

static inline struct key *key_of_link(const struct map_link *link)
{
    return (struct key *)(uintptr_t)link;
}

static inline struct map_link *key_link(struct key *k)
{
    return (struct map_link *)(void *)k; /* Only an address: see map_key_fn. */
}

uint8_t *value_at(struct key *k); /* cap bytes */

static inline struct span key_value(struct key *k)
{
    return k && k->present ? span_of(value_at(k), k->len) : span_of(NULL, 0);
}

static inline bool key_ready(const struct key *k)
{
    return k && (k->present || (k->more && k->more->items));
}

/* Reserves memory for a value of n bytes: *block is NULL if the entry has the room. */
int value_reserve(struct key *k, size_t n, uint8_t **block);
/* Cannot fail: block comes from value_reserve with at least v.n, and is taken over. */
void value_put(struct store *s, struct key *k, uint8_t *block, struct span v);
int value_grow(struct key *k, size_t n); /* makes room for n bytes, keeps the value */
void value_set_len(struct store *s, struct key *k, size_t len);
void value_drop(struct store *s, struct key *k);
void value_slim(struct key *k, size_t n); /* replaces a block that is far too large */

/* reserved_hash of its value; k may be NULL. The last answer is cached, since many
 * peers may watch the same key. */
uint64_t value_hash(struct store *s, struct key *k);

int queue_push(struct key *k, struct span v);
struct item *queue_pop(struct key *k); /* the caller's from now on */
void queue_clear(struct more *m);

/* waits.c */
int wait_new(struct store *s, uint32_t peer, enum c10d_op op, size_t links,
             struct wait **out);
int wait_for_ready(struct store *s, struct wait *w, struct span name);
int wait_for_change(struct store *s, struct wait *w, struct span name, uint64_t hash);
/* Makes w the peer's only pending wait. Needs room for one effect. */
void wait_begin(struct store *s, struct wait *w, struct store_fx *fx);
void wait_free(struct store *s, struct wait *w); /* leaves all its keys; NULL is fine */
void peer_drop_wait(struct store *s, uint32_t peer);
/* The peer will not pop its item: wakes the next waiter of that queue, if any. */
void peer_pass_on(struct store *s, uint32_t peer, struct store_fx *fx);
void peer_popped(struct store *s, uint32_t peer, struct key *k);

/* The most that a change of k may answer. */
static inline size_t waits_on(const struct key *k)
{
    return k && k->more ? k->more->ready.count + k->more->watch.count : 0;
}

void waits_written(struct store *s, struct key *k, struct store_fx *fx);

/* k has a new value. Frees k->more if nobody needs it any more. */
static inline void key_written(struct store *s, struct key *k, struct store_fx *fx)
{
    assert(k->present);
    if (k->more)
        waits_written(s, k, fx);
}

void waits_changed(struct store *s, struct key *k, struct store_fx *fx);
void waits_pushed(struct store *s, struct key *k, struct store_fx *fx);
void queue_is_empty(struct store *s, struct key *k); /* drops its unclaimed waits */

/* effects.c; room for a reply or a close must have been reserved. */
void fx_tidy(struct store_fx *fx);
int fx_grow(struct store_fx *fx, size_t more);

static inline void fx_begin(struct store_fx *fx)
{
    fx->count = 0;
    if (fx->lists.size || fx->items != fx->few)
        fx_tidy(fx);
}

static inline int fx_reserve(struct store_fx *fx, size_t more)
{
    return fx->size - fx->count >= more ? 0 : fx_grow(fx, more);
}

void fx_reply(struct store_fx *fx, uint32_t peer, const struct c10d_reply *reply);
void fx_close(struct store_fx *fx, uint32_t peer, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
