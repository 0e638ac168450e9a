/* barrier.c - a barrier for stores that have none of their own.
 *
 * It works as torch's does, and with torch's processes in the same barrier: each
 * process adds 1 to <key>/num_members; the one that finds itself the last sets
 * <key>/last_member, and all wait for that. A key serves for one barrier only. */
#include <inttypes.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/async_store.h"

struct barrier {
    struct async_store *store; /* borrowed; its close ends pending calls first */
    struct buf members, last;
    int64_t world_size;
    uint64_t timeout_ms, deadline_ms;
    async_store_cb cb;
    void *ctx;
};

static void barrier_finish(struct barrier *b, int status,
                           const struct muster_error *why)
{
    const struct c10d_reply reply = { .op = C10D_BARRIER };
    struct muster_error err;

    if (status == 0) {
        b->cb(b->ctx, 0, &reply, NULL);
    } else {
        err = *why;
        if (status == MUSTER_ETIMEDOUT)
            (void)err_wrap(&err, "barrier timeout after %" PRIu64 "ms, key: %.*s",
                           b->timeout_ms, (int)MIN_OF(buf_len(&b->last) - 12, 200u),
                           (const char *)buf_data(&b->last));
        b->cb(b->ctx, status, NULL, &err);
    }
    buf_fini(&b->members);
    buf_fini(&b->last);
    mem_free(b);
}

static void on_released(void *ctx, int status, const struct c10d_reply *reply,
                        const struct muster_error *err)
{
    (void)reply;
    barrier_finish(ctx, status, err);
}

static void wait_for_last(struct barrier *b)
{
    struct muster_error err;

    if (async_store_wait(b->store, buf_span(&b->last),
                         ms_left(b->deadline_ms, uv_hrtime() / 1000000), on_released, b,
                         &err) < 0)
        barrier_finish(b, err.code, &err);
}

static void barrier_on_set(void *ctx, int status, const struct c10d_reply *reply,
                           const struct muster_error *err)
{
    (void)reply;
    if (status < 0)
        barrier_finish(ctx, status, err);
    else
        wait_for_last(ctx);
}

static void barrier_on_counted(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *why)
{
    struct barrier *b = ctx;
    struct muster_error err;

    if (status < 0) {
        barrier_finish(b, status, why);
    } else if (reply->number != b->world_size) {
        wait_for_last(b);
    } else if (async_store_set(b->store, buf_span(&b->last), span_str("1"),
                               ms_left(b->deadline_ms, uv_hrtime() / 1000000),
                               barrier_on_set, b, &err) < 0) {
        barrier_finish(b, err.code, &err);
    }
}

int async_store_generic_barrier(struct async_store *s, struct span key,
                                int64_t world_size, uint64_t timeout_ms,
                                async_store_cb cb, void *ctx, struct muster_error *err)
{
    struct barrier *b = mem_calloc(1, sizeof *b);
    const uint64_t now = uv_hrtime() / 1000000;
    int rc = b ? 0 : err_nomem(err);

    if (!b)
        return rc;
    *b = (struct barrier){ .store = s,
                           .world_size = world_size,
                           .timeout_ms = timeout_ms,
                           .cb = cb,
                           .ctx = ctx };
    b->deadline_ms = timeout_ms < MONO_NEVER - now ? now + timeout_ms : MONO_NEVER;
    buf_init(&b->members, SIZE_MAX);
    buf_init(&b->last, SIZE_MAX);
    if (buf_append_span(&b->members, key) < 0 ||
        buf_append_str(&b->members, "/num_members") < 0 ||
        buf_append_span(&b->last, key) < 0 ||
        buf_append_str(&b->last, "/last_member") < 0)
        rc = err_nomem(err);
    else
        rc = async_store_add(s, buf_span(&b->members), 1, timeout_ms,
                             barrier_on_counted, b, err);
    if (rc < 0) {
        buf_fini(&b->members);
        buf_fini(&b->last);
        mem_free(b);
    }
    return rc;
}
