/* acall.h - a call on a store that is not on a wire: a copy of the request, a deadline,
 * and who wants to know. Shared by the file and hash stores. */
#ifndef IO_ACALL_H
#define IO_ACALL_H

#include "io/astore.h"
#include "wire/c10d_keys.h"

struct acall {
    struct acall *next;
    struct astore *owner;      /* borrowed */
    struct c10d_prefixed copy; /* owned */
    unsigned flags;
    uint64_t timeout_ms, deadline_ms;
    astore_cb cb;  /* NULL: nobody */
    void *ctx;     /* borrowed */
    uint32_t peer; /* hash store: its number with the engine */
    bool waiting;  /* hash store: the WAIT in front of its request is pending */
};

struct acall_list {
    struct acall *first, *last;
};

int acall_new(struct astore *owner, const struct c10d_request *req, const char *prefix,
              unsigned flags, uint64_t timeout_ms, astore_cb cb, void *ctx,
              struct acall **out, struct muster_error *err);
void acall_free(struct acall *call); /* NULL is fine */

void acall_add(struct acall_list *list, struct acall *call);
struct acall *acall_take(struct acall_list *list); /* the first, or NULL */

/* Moves those that test is true for to the end of the other list. */
void acall_move(struct acall_list *from, struct acall_list *to,
                bool (*test)(const struct acall *call, const void *arg),
                const void *arg);

/* Tests for acall_move: arg is a const uint64_t now, or an owner. */
bool acall_is_due(const struct acall *call, const void *now_ms);
bool acall_is_of(const struct acall *call, const void *owner);

uint64_t acall_first_due(const struct acall_list *list); /* MONO_NEVER if none is */

/* Each calls back and frees the call. */
void acall_succeed(struct acall *call, const struct c10d_reply *reply);
void acall_fail(struct acall *call, const struct muster_error *why);
void acall_time_out(struct acall *call, const char *why);

uint64_t acall_mono_ms(void);

#endif
