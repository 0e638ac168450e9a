/* call.c - one call on a store; see call.h. */
#include "store/call.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"

int call_new(size_t size, struct async_store *store, const struct c10d_request *req,
             const char *prefix, struct call **out, struct muster_error *err)
{
    struct call *call = mem_calloc(1, size);
    int rc;

    if (!call)
        return err_nomem(err);
    call->store = store;
    call->op = req->op;
    rc = c10d_request_copy(&call->copy, req, span_str(prefix), err);
    if (rc < 0) {
        call_free(call);
        return rc;
    }
    c10d_keys_text(&call->copy.req, call->keys, sizeof call->keys);
    *out = call;
    return 0;
}

void call_begin(struct call *call, unsigned flags, uint64_t timeout_ms,
                async_store_cb cb, void *ctx)
{
    const uint64_t now = clock_mono_ms();

    call->flags = flags;
    call->timeout_ms = timeout_ms;
    call->deadline_ms = timeout_ms < MONO_NEVER - now ? now + timeout_ms : MONO_NEVER;
    call->cb = cb;
    call->ctx = ctx;
}

void call_free(struct call *call)
{
    if (!call)
        return;
    c10d_prefixed_fini(&call->copy);
    mem_free(call);
}

void call_notify(struct call *call, int status, const struct c10d_reply *reply,
                 const struct muster_error *err)
{
    const async_store_cb cb = call->cb;

    call->cb = NULL;
    if (cb)
        cb(call->ctx, status, reply, err);
}

void call_succeed(struct call *call, const struct c10d_reply *reply)
{
    call_notify(call, 0, reply, NULL);
    call_free(call);
}

/* "GET of /k", "WAIT for /a, /b". */
static void call_text(const struct call *call, char out[160])
{
    const char *how = call->op == C10D_WAIT ? " for " : " of ";

    (void)snprintf(out, 160, "%s%s%s", c10d_op_name(call->op), call->keys[0] ? how : "",
                   call->keys);
}

void call_wrap(const struct call *call, struct muster_error *err)
{
    char what[160];

    call_text(call, what);
    (void)err_wrap(err, "%s", what);
}

void call_fail(struct call *call, const struct muster_error *why)
{
    struct muster_error err = *why;

    call_wrap(call, &err);
    call_notify(call, err.code, NULL, &err);
    call_free(call);
}

void call_timed_out(const struct call *call, const char *wait, const char *why,
                    struct muster_error *err)
{
    const bool barrier = call->op == C10D_BARRIER;
    char what[160];

    if (wait) {
        (void)err_set(err, MUSTER_ETIMEDOUT, "%s timeout after %" PRIu64 "ms, %s: %s",
                      barrier ? "barrier" : wait, call->timeout_ms,
                      barrier ? "key" : "keys", call->keys);
    } else {
        call_text(call, what);
        (void)err_set(err, MUSTER_ETIMEDOUT, "%s timed out after %" PRIu64 " ms", what,
                      call->timeout_ms);
    }
    err_add(err, " (store %s%s%s)", call->store->name, why[0] ? ": " : "", why);
}

void call_time_out(struct call *call, const char *why)
{
    struct muster_error err;

    call_timed_out(call, "Wait", why, &err);
    call_notify(call, err.code, NULL, &err);
    call_free(call);
}

/* ---- lists ---- */

void call_list_add(struct call_list *list, struct call *call)
{
    call->next = NULL;
    if (list->last)
        list->last->next = call;
    else
        list->first = call;
    list->last = call;
}

struct call *call_list_take(struct call_list *list)
{
    struct call *call = list->first;

    if (call)
        call_list_remove(list, call);
    return call;
}

void call_list_remove(struct call_list *list, struct call *call)
{
    struct call *before = NULL;

    for (struct call *c = list->first; c != call; c = c->next)
        before = c;
    if (before)
        before->next = call->next;
    else
        list->first = call->next;
    if (list->last == call)
        list->last = before;
    call->next = NULL;
}

void call_list_move(struct call_list *from, struct call_list *to,
                    bool (*test)(const struct call *call, const void *arg),
                    const void *arg)
{
    struct call_list stay = { NULL, NULL };
    struct call *call;

    while ((call = call_list_take(from)))
        call_list_add(test(call, arg) ? to : &stay, call);
    *from = stay;
}

bool call_is_due(const struct call *call, const void *now_ms)
{
    return call->deadline_ms <= *(const uint64_t *)now_ms;
}

bool call_is_of(const struct call *call, const void *store)
{
    return call->store == store;
}

uint64_t call_list_first_due(const struct call_list *list)
{
    uint64_t due = MONO_NEVER;

    for (const struct call *call = list->first; call; call = call->next)
        due = MIN_OF(due, call->deadline_ms);
    return due;
}
