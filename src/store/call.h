/* call.h - one call on a TCP store: its bytes, its deadline, who wants to know.
 *
 * Used by client.c alone. A call is in one of the client's lists from its birth
 * to its end. */
#ifndef STORE_CALL_H
#define STORE_CALL_H

#include "store/async_store.h"
#include "store/core/wire_keys.h"

enum call_phase {
    CALL_QUEUED,    /* nothing is sent yet */
    CALL_WAITING,   /* WAIT or BARRIER is sent, and nothing may be sent behind it */
    CALL_CANCELING, /* its time is up, CANCEL_WAIT is sent */
    CALL_ASKED,     /* the request is sent */
};

struct call {
    struct call *next;
    enum c10d_op op;
    enum call_phase phase;
    bool waits;        /* the first thing it sends blocks */
    bool orphan;       /* its callback has been called; only the wire still knows it */
    struct buf bytes;  /* not yet sent */
    bool overdue;      /* CANCELING: for the second time */
    size_t wait_bytes; /* of them, the WAIT in front of the request; 0: none */
    size_t expect;     /* MULTI_GET: values */
    uint64_t timeout_ms, deadline_ms;
    uint64_t out_end; /* without an answer: where it ends in the stream we send */
    struct c10d_reply_decoder decoder;
    async_store_cb cb;
    void *ctx;      /* borrowed */
    char keys[104]; /* for messages: "/a, /b", cut if long */
};

/* Encodes req with prefix before each key. MUSTER_EINVAL, MUSTER_ENOMEM. */
int call_new(const struct c10d_request *req, const char *prefix, unsigned flags,
             struct call **out, struct muster_error *err);
void call_free(struct call *call);

/* "GET of /k", "WAIT for /a, /b". */
void call_text(const struct call *call, char out[160]);

/* Its time is up; torch's words for waits. */
void call_timed_out(const struct call *call, const char *store, const char *why,
                    struct muster_error *err);

/* First in, first out. */
struct call_list {
    struct call *first, *last;
};

void call_list_add(struct call_list *list, struct call *call);
struct call *call_list_take(struct call_list *list); /* the first, or NULL */
void call_list_remove(struct call_list *list, struct call *call);

/* A call on a store that is not on a wire: a copy of the request, a deadline, and whom
 * to call back. Shared by the file and memory stores. A call on a TCP store (struct
 * call) keeps encoded bytes instead, and its place in the answers' order. */
struct local_call {
    struct local_call *next;
    struct async_store *owner; /* borrowed */
    struct c10d_prefixed copy; /* owned */
    unsigned flags;
    uint64_t timeout_ms, deadline_ms;
    async_store_cb cb; /* NULL: nobody */
    void *ctx;         /* borrowed */
    uint32_t peer;     /* hash store: its number with the engine */
    bool waiting;      /* hash store: the WAIT in front of its request is pending */
};

struct local_call_list {
    struct local_call *first, *last;
};

int local_call_new(struct async_store *owner, const struct c10d_request *req,
                   const char *prefix, unsigned flags, uint64_t timeout_ms,
                   async_store_cb cb, void *ctx, struct local_call **out,
                   struct muster_error *err);
void local_call_free(struct local_call *call); /* NULL is fine */

void local_call_add(struct local_call_list *list, struct local_call *call);
struct local_call *
local_call_take(struct local_call_list *list); /* the first, or NULL */

/* Moves those that test is true for to the end of the other list. */
void local_call_move(struct local_call_list *from, struct local_call_list *to,
                     bool (*test)(const struct local_call *call, const void *arg),
                     const void *arg);

/* Tests for local_call_move: arg is a const uint64_t now, or an owner. */
bool local_call_is_due(const struct local_call *call, const void *now_ms);
bool local_call_is_of(const struct local_call *call, const void *owner);

uint64_t
local_call_first_due(const struct local_call_list *list); /* MONO_NEVER if none is */

/* Each calls back and frees the call. */
void local_call_succeed(struct local_call *call, const struct c10d_reply *reply);
void local_call_fail(struct local_call *call, const struct muster_error *why);
void local_call_time_out(struct local_call *call, const char *why);

uint64_t local_call_mono_ms(void);

#endif
