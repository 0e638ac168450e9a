/* call.h - one call on a store, from the request to the callback, and lists of them.
 *
 * Every kind of store uses these. A kind that must know more about a call puts this
 * struct first in one of its own, for the bytes still to be sent (client.c), the
 * engine's number for it (memory_store.c), or the request to etcd (etcd_store.c).
 * Until its end a call is in one of its store's lists, or its store works on it. */
#ifndef STORE_CALL_H
#define STORE_CALL_H

#include "store/async_store.h"
#include "store/core/wire_keys.h"

struct call {
    struct call *next;         /* in its list */
    struct async_store *store; /* borrowed */
    enum c10d_op op;
    unsigned flags;            /* enum async_store_flags */
    struct c10d_prefixed copy; /* owned: the request, keys as the store has them; empty
                                  in client.c, which encodes requests at once */
    uint64_t timeout_ms, deadline_ms; /* deadline_ms by clock_mono_ms */
    async_store_cb cb;                /* NULL: none, or it has been called */
    void *ctx;                        /* borrowed */
    char keys[104];                   /* for messages: "/a, /b", cut if long */
};

/* Allocates a struct of size bytes that begins with a call on store; the rest is
 * zeroed. The call keeps a copy of req with prefix before each key. Fails with
 * MUSTER_ENOMEM. */
int call_new(size_t size, struct async_store *store, const struct c10d_request *req,
             const char *prefix, struct call **out, struct muster_error *err);

/* Sets the rest of the call. Its timeout counts from now on. */
void call_begin(struct call *call, unsigned flags, uint64_t timeout_ms,
                async_store_cb cb, void *ctx);

void call_free(struct call *call); /* NULL is fine */

/* Calls back, unless that has happened before. */
void call_notify(struct call *call, int status, const struct c10d_reply *reply,
                 const struct muster_error *err);

/* Each calls back and frees the call. call_fail puts the call before the reason. */
void call_succeed(struct call *call, const struct c10d_reply *reply);
void call_fail(struct call *call, const struct muster_error *why);
void call_time_out(struct call *call, const char *why);

/* Puts "GET of /k", "WAIT for /a, /b" before the reason. */
void call_wrap(const struct call *call, struct muster_error *err);

/* Sets err to say that the call timed out. wait is torch's word for a wait on such a
 * store, "wait" or "Wait", or NULL if it was not waiting for keys. why says what held
 * it up, or is "". */
void call_timed_out(const struct call *call, const char *wait, const char *why,
                    struct muster_error *err);

/* First in, first out. */
struct call_list {
    struct call *first, *last;
};

void call_list_add(struct call_list *list, struct call *call);
struct call *call_list_take(struct call_list *list); /* the first, or NULL */
void call_list_remove(struct call_list *list, struct call *call);

/* Moves the calls for which test is true to the end of the other list. */
void call_list_move(struct call_list *from, struct call_list *to,
                    bool (*test)(const struct call *call, const void *arg),
                    const void *arg);

/* Tests for call_list_move: arg points to the time (uint64_t), or to a store. */
bool call_is_due(const struct call *call, const void *now_ms);
bool call_is_of(const struct call *call, const void *store);

uint64_t call_list_first_due(const struct call_list *list); /* MONO_NEVER if none is */

#endif
