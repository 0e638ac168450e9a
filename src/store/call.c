/* call.c - one call on a store; see call.h. */
#include "store/call.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/core/wire_keys.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define CALL_MAX ((size_t)1 << 30) /* bytes of one request */

/* The wire of the call: a WAIT in front if it blocks, then the request itself. */
static int encode(struct call *call, const struct c10d_request *req,
                  struct muster_error *err)
{
    struct c10d_request wait = { .op = C10D_WAIT };
    struct buf one;
    int rc = 0;

    buf_init(&one, SIZE_MAX);
    if (call->waits && req->op != C10D_WAIT && req->op != C10D_BARRIER) {
        wait.list = req->list; /* MULTI_GET */
        if (req->op != C10D_MULTI_GET) {
            rc = c10d_list_add(&one, req->key);
            wait.list = (struct c10d_list){ buf_span(&one), 1 };
        }
        if (rc == 0)
            rc = c10d_encode_request(&call->bytes, &wait, err);
        else
            (void)err_nomem(err);
        call->wait_bytes = buf_len(&call->bytes);
    }
    if (rc == 0)
        rc = c10d_encode_request(&call->bytes, req, err);
    buf_fini(&one);
    return rc;
}

int call_new(const struct c10d_request *req, const char *prefix, unsigned flags,
             struct call **out, struct muster_error *err)
{
    struct call *call = mem_calloc(1, sizeof *call);
    struct c10d_prefixed full;
    int rc;

    if (!call)
        return err_nomem(err);
    buf_init(&call->bytes, CALL_MAX);
    call->op = req->op;
    call->waits = req->op == C10D_WAIT || req->op == C10D_BARRIER ||
                  ((flags & ASTORE_BLOCK) && c10d_may_block(req->op));
    if (req->op == C10D_MULTI_GET)
        call->expect = req->list.count;
    rc = c10d_prefix_keys(&full, req, span_str(prefix), err);
    if (rc == 0) {
        /* torch shows the keys of waits as on the wire, that of a barrier as given. */
        c10d_keys_text(req->op == C10D_BARRIER ? req : &full.req, call->keys,
                       sizeof call->keys);
        /* Empty lists are answered here: some servers of torch crash on them. */
        if (!c10d_has_list(req->op) || req->list.count)
            rc = encode(call, &full.req, err);
    }
    c10d_prefixed_fini(&full);
    if (rc < 0) {
        call_free(call);
        return rc;
    }
    *out = call;
    return 0;
}

void call_free(struct call *call)
{
    if (!call)
        return;
    buf_fini(&call->bytes);
    mem_free(call);
}

void call_text(const struct call *call, char out[160])
{
    const char *how = call->op == C10D_WAIT ? " for " : " of ";

    (void)snprintf(out, 160, "%s%s%s", c10d_op_name(call->op), call->keys[0] ? how : "",
                   call->keys);
}

void call_timed_out(const struct call *call, const char *store, const char *why,
                    struct muster_error *err)
{
    char what[160];

    if (call->op == C10D_BARRIER && call->phase == CALL_WAITING)
        (void)err_set(err, MUSTER_ETIMEDOUT,
                      "barrier timeout after %" PRIu64 "ms, key: %s", call->timeout_ms,
                      call->keys);
    else if (call->phase == CALL_WAITING)
        (void)err_set(err, MUSTER_ETIMEDOUT,
                      "wait timeout after %" PRIu64 "ms, keys: %s", call->timeout_ms,
                      call->keys);
    else {
        call_text(call, what);
        (void)err_set(err, MUSTER_ETIMEDOUT, "%s timed out after %" PRIu64 " ms", what,
                      call->timeout_ms);
    }
    err_add(err, " (store %s%s%s)", store, why[0] ? ": " : "", why);
}

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

/* ---- calls on a file or memory store ---- */

uint64_t local_call_mono_ms(void)
{
    return uv_hrtime() / 1000000;
}

int local_call_new(struct async_store *owner, const struct c10d_request *req,
                   const char *prefix, unsigned flags, uint64_t timeout_ms,
                   async_store_cb cb, void *ctx, struct local_call **out,
                   struct muster_error *err)
{
    struct local_call *call = mem_calloc(1, sizeof *call);
    const uint64_t now = local_call_mono_ms();
    int rc;

    if (!call)
        return err_nomem(err);
    rc = c10d_request_copy(&call->copy, req, span_str(prefix), err);
    if (rc < 0) {
        local_call_free(call);
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

void local_call_free(struct local_call *call)
{
    if (!call)
        return;
    c10d_prefixed_fini(&call->copy);
    mem_free(call);
}

void local_call_add(struct local_call_list *list, struct local_call *call)
{
    call->next = NULL;
    if (list->last)
        list->last->next = call;
    else
        list->first = call;
    list->last = call;
}

struct local_call *local_call_take(struct local_call_list *list)
{
    struct local_call *call = list->first;

    if (!call)
        return NULL;
    list->first = call->next;
    if (!list->first)
        list->last = NULL;
    call->next = NULL;
    return call;
}

void local_call_move(struct local_call_list *from, struct local_call_list *to,
                     bool (*test)(const struct local_call *call, const void *arg),
                     const void *arg)
{
    struct local_call_list stay = { NULL, NULL };
    struct local_call *call;

    while ((call = local_call_take(from)))
        local_call_add(test(call, arg) ? to : &stay, call);
    *from = stay;
}

bool local_call_is_due(const struct local_call *call, const void *now_ms)
{
    return call->deadline_ms <= *(const uint64_t *)now_ms;
}

bool local_call_is_of(const struct local_call *call, const void *owner)
{
    return call->owner == owner;
}

uint64_t local_call_first_due(const struct local_call_list *list)
{
    uint64_t due = MONO_NEVER;

    for (const struct local_call *call = list->first; call; call = call->next)
        due = MIN_OF(due, call->deadline_ms);
    return due;
}

void local_call_succeed(struct local_call *call, const struct c10d_reply *reply)
{
    if (call->cb)
        call->cb(call->ctx, 0, reply, NULL);
    local_call_free(call);
}

void local_call_fail(struct local_call *call, const struct muster_error *why)
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
    local_call_free(call);
}

void local_call_time_out(struct local_call *call, const char *why)
{
    const enum c10d_op op = call->copy.req.op;
    struct muster_error err;
    char keys[104];

    c10d_keys_text(&call->copy.req, keys, sizeof keys);
    (void)err_set(&err, MUSTER_ETIMEDOUT, "%s timeout after %" PRIu64 "ms, %s: %s (",
                  op == C10D_BARRIER ? "barrier" : "Wait", call->timeout_ms,
                  op == C10D_BARRIER ? "key" : "keys", keys);
    err_add(&err, "%s of %s%s%s)", c10d_op_name(op),
            call->owner->ops->name(call->owner), why[0] ? ": " : "", why);
    if (call->cb)
        call->cb(call->ctx, err.code, NULL, &err);
    local_call_free(call);
}
