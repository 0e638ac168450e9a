/* acall.c - a call on a file or hash store; see acall.h. */
#include "io/acall.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"

uint64_t acall_mono_ms(void)
{
    return uv_hrtime() / 1000000;
}

int acall_new(struct astore *owner, const struct c10d_request *req, const char *prefix,
              unsigned flags, uint64_t timeout_ms, astore_cb cb, void *ctx,
              struct acall **out, struct muster_error *err)
{
    struct acall *call = mem_calloc(1, sizeof *call);
    const uint64_t now = acall_mono_ms();
    int rc;

    if (!call)
        return err_nomem(err);
    rc = c10d_request_copy(&call->copy, req, span_str(prefix), err);
    if (rc < 0) {
        acall_free(call);
        return rc;
    }
    call->owner = owner;
    call->flags = flags;
    call->timeout_ms = timeout_ms;
    call->deadline_ms = timeout_ms < MONO_NEVER - now ? now + timeout_ms : MONO_NEVER;
    call->cb = cb;
    call->ctx = ctx;
    *out = call;
    return 0;
}

void acall_free(struct acall *call)
{
    if (!call)
        return;
    c10d_prefixed_fini(&call->copy);
    mem_free(call);
}

void acall_add(struct acall_list *list, struct acall *call)
{
    call->next = NULL;
    if (list->last)
        list->last->next = call;
    else
        list->first = call;
    list->last = call;
}

struct acall *acall_take(struct acall_list *list)
{
    struct acall *call = list->first;

    if (!call)
        return NULL;
    list->first = call->next;
    if (!list->first)
        list->last = NULL;
    call->next = NULL;
    return call;
}

void acall_move(struct acall_list *from, struct acall_list *to,
                bool (*test)(const struct acall *call, const void *arg),
                const void *arg)
{
    struct acall_list stay = { NULL, NULL };
    struct acall *call;

    while ((call = acall_take(from)))
        acall_add(test(call, arg) ? to : &stay, call);
    *from = stay;
}

bool acall_is_due(const struct acall *call, const void *now_ms)
{
    return call->deadline_ms <= *(const uint64_t *)now_ms;
}

bool acall_is_of(const struct acall *call, const void *owner)
{
    return call->owner == owner;
}

uint64_t acall_first_due(const struct acall_list *list)
{
    uint64_t due = MONO_NEVER;

    for (const struct acall *call = list->first; call; call = call->next)
        due = MIN_OF(due, call->deadline_ms);
    return due;
}

void acall_succeed(struct acall *call, const struct c10d_reply *reply)
{
    if (call->cb)
        call->cb(call->ctx, 0, reply, NULL);
    acall_free(call);
}

void acall_fail(struct acall *call, const struct muster_error *why)
{
    const enum c10d_op op = call->copy.req.op;
    struct muster_error err = *why;
    char keys[104];

    c10d_keys_text(&call->copy.req, keys, sizeof keys);
    (void)err_wrap(&err, "%s%s%s", c10d_op_name(op),
                   !keys[0]          ? ""
                   : op == C10D_WAIT ? " for "
                                     : " of ",
                   keys);
    if (call->cb)
        call->cb(call->ctx, err.code, NULL, &err);
    acall_free(call);
}

void acall_time_out(struct acall *call, const char *why)
{
    const enum c10d_op op = call->copy.req.op;
    struct muster_error err;
    char keys[104];

    c10d_keys_text(&call->copy.req, keys, sizeof keys);
    (void)err_set(&err, MUSTER_ETIMEDOUT, "%s timeout after %" PRIu64 "ms, %s: %s (",
                  op == C10D_BARRIER ? "barrier" : "wait", call->timeout_ms,
                  op == C10D_BARRIER ? "key" : "keys", keys);
    err_add(&err, "%s of %s%s%s)", c10d_op_name(op),
            call->owner->ops->name(call->owner), why[0] ? ": " : "", why);
    if (call->cb)
        call->cb(call->ctx, err.code, NULL, &err);
    acall_free(call);
}
