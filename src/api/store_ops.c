/* store_ops.c - the operations of a struct muster_store; see muster/store.h.
 *
 * Each sends a request from the loop and copies the reply there, as the reply is only
 * valid in its callback. */
#include <inttypes.h>

#include "api/need.h"
#include "api/store_int.h"
#include "base/err.h"
#include "base/mem.h"

struct op {
    struct blocking_loop_job job; /* first */
    struct muster_store *store;
    struct c10d_request req;
    unsigned flags;
    uint64_t timeout_ms;
    struct muster_bytes value; /* of the reply, for the caller */
    struct muster_bytes_list list;
    int64_t number;
    struct muster_error wrong; /* code 0, or which argument is missing */
};

static int copy_bytes(struct span from, struct muster_bytes *to)
{
    char *copy = mem_alloc(from.n + 1);

    if (!copy)
        return MUSTER_ENOMEM;
    if (from.n)
        memcpy(copy, from.p, from.n);
    copy[from.n] = '\0';
    to->data = copy;
    to->size = from.n;
    return 0;
}

static int copy_list(struct c10d_list from, struct muster_bytes_list *to)
{
    struct span element;

    if (from.count == 0)
        return 0;
    to->items = mem_calloc(from.count, sizeof *to->items);
    if (!to->items)
        return MUSTER_ENOMEM;
    while (c10d_list_next(&from, &element))
        if (copy_bytes(element, &to->items[to->count++]) < 0)
            return MUSTER_ENOMEM;
    return 0;
}

static int copy_reply(struct op *op, const struct c10d_reply *reply)
{
    op->number = reply->number;
    switch ((int)reply->op) {
    case C10D_GET:
    case C10D_COMPARE_SET:
    case C10D_QUEUE_POP:
        return copy_bytes(reply->value, &op->value);
    case C10D_MULTI_GET:
    case C10D_LIST_KEYS:
        return copy_list(reply->list, &op->list);
    default:
        return 0;
    }
}

static void store_ops_on_reply(void *ctx, int status, const struct c10d_reply *reply,
                               const struct muster_error *err)
{
    struct op *op = ctx;
    struct muster_error nomem;

    if (status == 0 && copy_reply(op, reply) < 0) {
        muster_bytes_list_free(&op->list);
        status = err_nomem(&nomem);
        err = &nomem;
    }
    blocking_loop_done(&op->job, status, err);
}

static void op_begin(struct blocking_loop_job *job)
{
    struct op *op = (struct op *)job;
    struct muster_error err;
    const int rc = async_store_call(op->store->shared->async_store, &op->req, op->flags,
                                    op->timeout_ms, store_ops_on_reply, op, &err);

    if (rc < 0)
        blocking_loop_done(job, rc, &err);
}

static struct op op_without_key(struct muster_store *s, enum c10d_op what)
{
    struct op op = { .job = { .begin = op_begin }, .store = s, .req = { .op = what } };

    (void)need(s, "store", &op.wrong);
    op.timeout_ms = muster_store_timeout(s);
    return op;
}

static struct op op_on(struct muster_store *s, enum c10d_op what, const char *key)
{
    struct op op = op_without_key(s, what);

    if (need(key, "key", &op.wrong) == 0)
        op.req.key = span_str(key);
    return op;
}

static struct span bytes_of(struct op *op, const void *bytes, size_t size,
                            const char *name)
{
    (void)need_bytes(bytes, size, name, &op->wrong);
    return span_of(bytes, size);
}

static int store_ops_perform(struct op *op, struct muster_error *err)
{
    if (op->wrong.code)
        return err_copy(err, &op->wrong);
    return blocking_loop_call(op->store->home->calls, &op->job, err);
}

/* Sends a list of keys, or of keys and values in turn. */
static int perform_list(struct op *op, const char *const *keys,
                        const struct muster_bytes *values, size_t count,
                        struct muster_error *err)
{
    struct buf list;
    int rc = 0;

    (void)need_bytes(keys, count, "keys", &op->wrong);
    for (size_t i = 0; i < count && !op->wrong.code; i++) {
        (void)need(keys[i], "a key", &op->wrong);
        if (values)
            (void)need_bytes(values[i].data, values[i].size, "a value", &op->wrong);
    }
    if (op->wrong.code)
        return err_copy(err, &op->wrong);
    buf_init(&list, SIZE_MAX);
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = c10d_list_add(&list, span_str(keys[i]));
        if (rc == 0 && values)
            rc = c10d_list_add(&list, span_of(values[i].data, values[i].size));
    }
    if (rc < 0) {
        rc = err_nomem(err);
    } else {
        op->req.list = (struct c10d_list){ buf_span(&list), count };
        rc = store_ops_perform(op, err);
    }
    buf_fini(&list);
    return rc;
}

static int perform_for_value(struct op *op, struct muster_bytes *value,
                             struct muster_error *err)
{
    const int rc = store_ops_perform(op, err);

    if (rc == 0 && value)
        *value = op->value;
    else if (rc == 0)
        muster_bytes_free(&op->value);
    return rc;
}

static void hand_over(struct op *op, struct muster_bytes_list *list)
{
    if (list)
        *list = op->list;
    else
        muster_bytes_list_free(&op->list);
}

static int perform_for_number(struct op *op, int64_t *number, struct muster_error *err)
{
    const int rc = store_ops_perform(op, err);

    if (rc == 0 && number)
        *number = op->number;
    return rc;
}

int muster_store_set(struct muster_store *s, const char *key, const void *value,
                     size_t size, struct muster_error *err)
{
    struct op op = op_on(s, C10D_SET, key);

    op.req.value = bytes_of(&op, value, size, "value");
    return store_ops_perform(&op, err);
}

int muster_store_get(struct muster_store *s, const char *key,
                     struct muster_bytes *value, struct muster_error *err)
{
    struct op op = op_on(s, C10D_GET, key);

    op.flags = ASYNC_STORE_BLOCK;
    return perform_for_value(&op, value, err);
}

int muster_store_add(struct muster_store *s, const char *key, int64_t delta,
                     int64_t *result, struct muster_error *err)
{
    struct op op = op_on(s, C10D_ADD, key);

    op.req.number = delta;
    return perform_for_number(&op, result, err);
}

int muster_store_compare_set(struct muster_store *s, const char *key,
                             const void *expected, size_t expected_size,
                             const void *desired, size_t desired_size,
                             struct muster_bytes *value, struct muster_error *err)
{
    struct op op = op_on(s, C10D_COMPARE_SET, key);

    op.req.expected = bytes_of(&op, expected, expected_size, "expected");
    op.req.value = bytes_of(&op, desired, desired_size, "desired");
    return perform_for_value(&op, value, err);
}

int muster_store_append(struct muster_store *s, const char *key, const void *value,
                        size_t size, struct muster_error *err)
{
    struct op op = op_on(s, C10D_APPEND, key);

    op.req.value = bytes_of(&op, value, size, "value");
    return store_ops_perform(&op, err);
}

int muster_store_delete(struct muster_store *s, const char *key, bool *deleted,
                        struct muster_error *err)
{
    struct op op = op_on(s, C10D_DELETE_KEY, key);
    const int rc = store_ops_perform(&op, err);

    if (rc == 0 && deleted)
        *deleted = op.number == 1;
    return rc;
}

int muster_store_check(struct muster_store *s, const char *const *keys, size_t count,
                       bool *ready, struct muster_error *err)
{
    struct op op = op_without_key(s, C10D_CHECK);
    const int rc = perform_list(&op, keys, NULL, count, err);

    if (rc == 0 && ready)
        *ready = op.number == 0;
    return rc;
}

int muster_store_wait(struct muster_store *s, const char *const *keys, size_t count,
                      uint64_t timeout_ms, struct muster_error *err)
{
    struct op op = op_without_key(s, C10D_WAIT);

    op.timeout_ms = timeout_ms;
    return perform_list(&op, keys, NULL, count, err);
}

int muster_store_multi_get(struct muster_store *s, const char *const *keys,
                           size_t count, struct muster_bytes_list *values,
                           struct muster_error *err)
{
    struct op op = op_without_key(s, C10D_MULTI_GET);

    op.flags = ASYNC_STORE_BLOCK;
    const int rc = perform_list(&op, keys, NULL, count, err);
    if (rc == 0)
        hand_over(&op, values);
    return rc;
}

int muster_store_multi_set(struct muster_store *s, const char *const *keys,
                           const struct muster_bytes *values, size_t count,
                           struct muster_error *err)
{
    struct op op = op_without_key(s, C10D_MULTI_SET);

    (void)need_bytes(values, count, "values", &op.wrong);
    return perform_list(&op, keys, values, count, err);
}

int muster_store_num_keys(struct muster_store *s, int64_t *count,
                          struct muster_error *err)
{
    struct op op = op_without_key(s, C10D_GETNUMKEYS);

    return perform_for_number(&op, count, err);
}

int muster_store_list_keys(struct muster_store *s, struct muster_bytes_list *keys,
                           struct muster_error *err)
{
    struct op op = op_without_key(s, C10D_LIST_KEYS);
    const int rc = store_ops_perform(&op, err);

    if (rc == 0)
        hand_over(&op, keys);
    return rc;
}

int muster_store_barrier(struct muster_store *s, const char *key, int64_t world_size,
                         uint64_t timeout_ms, struct muster_error *err)
{
    struct op op = op_on(s, C10D_BARRIER, key);

    if (world_size < 1)
        return err_set(err, MUSTER_EINVAL,
                       "a barrier needs a world size of at least 1, not %" PRId64,
                       world_size);
    op.req.number = world_size;
    op.timeout_ms = timeout_ms;
    return store_ops_perform(&op, err);
}

int muster_store_queue_push(struct muster_store *s, const char *key, const void *value,
                            size_t size, struct muster_error *err)
{
    struct op op = op_on(s, C10D_QUEUE_PUSH, key);

    op.req.value = bytes_of(&op, value, size, "value");
    return store_ops_perform(&op, err);
}

int muster_store_queue_pop(struct muster_store *s, const char *key, bool block,
                           struct muster_bytes *value, struct muster_error *err)
{
    struct op op = op_on(s, C10D_QUEUE_POP, key);

    op.flags = block ? ASYNC_STORE_BLOCK : 0;
    return perform_for_value(&op, value, err);
}

int muster_store_queue_len(struct muster_store *s, const char *key, int64_t *count,
                           struct muster_error *err)
{
    struct op op = op_on(s, C10D_QUEUE_LEN, key);

    return perform_for_number(&op, count, err);
}

void muster_bytes_free(struct muster_bytes *bytes)
{
    if (!bytes)
        return;
    mem_free(bytes->data);
    *bytes = (struct muster_bytes){ 0 };
}

void muster_bytes_list_free(struct muster_bytes_list *list)
{
    if (!list)
        return;
    for (size_t i = 0; i < list->count; i++)
        muster_bytes_free(&list->items[i]);
    mem_free(list->items);
    *list = (struct muster_bytes_list){ 0 };
}
