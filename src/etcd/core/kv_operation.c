/* kv_operation.c - see kv_operation.h: making and ending an operation, its requests and
 * answers by the v2 interface, the same by v3, and what both have in common. */
#include "etcd/core/kv_operation.h"

#include <assert.h>

#include "base/mem.h"

static bool copy(struct span *out, struct span s)
{
    const uint8_t *p = s.n ? s.p : (const uint8_t *)"";

    /* The copy of an empty value must not be NULL, which would stand for no value. */
    *out = span_of(mem_memdup(p, s.n + !s.n), s.n);
    return out->p != NULL;
}

int kv_operation_init(struct kv_operation *a, enum etcd_api api,
                      enum kv_operation_kind kind, struct span path)
{
    assert(path.p || path.n == 0);
    *a = (struct kv_operation){ .api = api, .kind = kind };
    return copy(&a->path, path) ? 0 : MUSTER_ENOMEM;
}

int kv_operation_init_put(struct kv_operation *a, enum etcd_api api,
                          const struct etcd_put *put)
{
    if (kv_operation_init(a, api, KV_OPERATION_PUT, put->path) < 0)
        return MUSTER_ENOMEM;
    a->cond = put->cond;
    a->token = put->token;
    a->ttl_s = put->ttl_s;
    a->lease = put->lease;
    a->unique = put->unique;
    if (copy(&a->value, put->value) &&
        (!put->change_key.n || copy(&a->change_key, put->change_key)))
        return 0;
    kv_operation_fini(a);
    return MUSTER_ENOMEM;
}

void kv_operation_fini(struct kv_operation *a)
{
    if (!a)
        return;
    mem_free((uint8_t *)a->path.p);
    mem_free((uint8_t *)a->value.p);
    mem_free((uint8_t *)a->change_key.p);
    mem_free(a->items);
    *a = (struct kv_operation){ .kind = KV_OPERATION_GET };
}

/* ---- What a listing holds ---- */

static int make_items(struct kv_operation *a, size_t most)
{
    mem_free(a->items);
    a->items = mem_calloc(most, sizeof *a->items);
    return a->items ? 0 : MUSTER_ENOMEM;
}

/* The server sends whole keys; those that are not below our path are skipped. */
static void add_item(const struct kv_operation *a, struct span key, struct span value,
                     uint64_t token, struct etcd_held *held)
{
    if (key.n <= a->path.n || memcmp(key.p, a->path.p, a->path.n) != 0)
        return;
    a->items[held->count++] =
        (struct etcd_item){ span_of(key.p + a->path.n, key.n - a->path.n), value,
                            token };
    held->items = a->items;
}

/* ---- v2 ---- */

static bool is_directory(struct span path)
{
    return path.n && path.p[path.n - 1] == '/';
}

static int kv_operation_v2_encode(const struct kv_operation *a, struct etcd_msg *m)
{
    struct etcd2_request req = { .key = a->path };

    switch (a->kind) {
    case KV_OPERATION_GET:
    case KV_OPERATION_LIST:
        req.quorum = true;
        break;
    case KV_OPERATION_PUT:
        if (a->checking) {
            req.quorum = true;
            break;
        }
        req.verb = ETCD2_PUT;
        req.value = a->value;
        req.ttl_s = a->ttl_s;
        req.prev_exist = a->cond == ETCD_IF_ABSENT ? ETCD2_MUST_NOT_EXIST : ETCD2_ANY;
        req.prev_index = a->cond == ETCD_IF_TOKEN ? a->token : 0;
        break;
    case KV_OPERATION_DELETE:
        req.verb = ETCD2_DELETE;
        req.dir = req.recursive = a->directory;
        break;
    case KV_OPERATION_WAIT:
        req.wait = true;
        req.wait_index = a->revision + 1;
        req.recursive = is_directory(a->path);
        break;
    }
    return etcd2_encode(m, &req);
}

static struct etcd_held v2_held(const struct etcd2_reply *r)
{
    assert(r);
    /* A write's answer may carry an older X-Etcd-Index than the write itself. */
    return (struct etcd_held){ .present = true,
                               .value = r->node.value,
                               .token = r->node.modified_index,
                               .revision = MAX_OF(r->index, r->node.modified_index) };
}

/* The answer to a get, or to the read after a put whose condition failed. */
static void v2_on_read(struct kv_operation *a, int *status, const struct etcd2_reply *r,
                       struct etcd_held *held)
{
    if (*status == 0)
        *held = v2_held(r);
    else if (*status == MUSTER_ENOENT && r)
        held->revision = r->index;
    else
        return;
    *status = 0;
    /* A put that was repeated may have failed because its first try succeeded. */
    if (a->checking && !(a->unique && held->present && span_eq(held->value, a->value)))
        *status = MUSTER_EEXIST;
}

static bool v2_on_put(struct kv_operation *a, int *status, const struct etcd2_reply *r,
                      struct etcd_held *held)
{
    if (a->checking) {
        v2_on_read(a, status, r, held);
        return true;
    }
    if (*status == 0) {
        *held = v2_held(r);
        return true;
    }
    if (*status == MUSTER_ENOENT && r && a->cond == ETCD_IF_TOKEN) {
        /* The key was deleted or has expired meanwhile: the condition does not hold. */
        held->revision = r->index;
        *status = MUSTER_EEXIST;
        return true;
    }
    a->checking = *status == MUSTER_EEXIST;
    return !a->checking;
}

static int v2_take_items(struct kv_operation *a, const struct etcd2_reply *r,
                         struct etcd_held *held)
{
    if (make_items(a, r->count) < 0)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const struct etcd2_node *node = &r->nodes[i];

        if (!node->dir)
            add_item(a, node->key, node->value, node->modified_index, held);
    }
    return 0;
}

/* The answer to a delete or a list. A missing key is not a failure. */
static void v2_on_dir(struct kv_operation *a, int *status, const struct etcd2_reply *r,
                      struct etcd_held *held)
{
    if (*status < 0 && (*status != MUSTER_ENOENT || !r))
        return;
    assert(r);
    held->present = *status == 0;
    held->revision = r->index;
    *status = 0;
    if (a->kind == KV_OPERATION_LIST && held->present && r->count)
        *status = v2_take_items(a, r, held);
}

/* A long poll that ends without an event is repeated. If the history that we ask for is
 * gone (MUSTER_ESTATE), the wait ends, so that the caller reads again. */
static bool v2_on_waited(int *status, const struct etcd2_reply *r,
                         struct etcd_held *held)
{
    if (r)
        held->revision = MAX_OF(r->index, r->node.modified_index);
    if (*status == MUSTER_ESTATE)
        *status = 0;
    return *status != MUSTER_ETIMEDOUT && *status != MUSTER_EHANGUP;
}

static bool kv_operation_v2_answer(struct kv_operation *a, int *status,
                                   const struct etcd2_reply *r, struct etcd_held *held)
{
    switch (a->kind) {
    case KV_OPERATION_GET:
        v2_on_read(a, status, r, held);
        return true;
    case KV_OPERATION_PUT:
        return v2_on_put(a, status, r, held);
    case KV_OPERATION_DELETE:
    case KV_OPERATION_LIST:
        v2_on_dir(a, status, r, held);
        return true;
    case KV_OPERATION_WAIT:
        return v2_on_waited(status, r, held);
    }
    return true;
}

/* ---- v3: requests ---- */

static int v3_encode_put(const struct kv_operation *a, struct etcd_msg *m)
{
    const struct etcd3_compare compare = {
        .target = a->cond == ETCD_IF_ABSENT ? ETCD3_CREATE : ETCD3_MOD,
        .key = a->path,
        .revision = a->cond == ETCD_IF_ABSENT ? 0 : (int64_t)a->token,
    };
    const struct etcd3_op yes[] = {
        { .kind = ETCD3_PUT, .key = a->path, .value = a->value, .lease = a->lease },
        { .kind = ETCD3_PUT, .key = a->change_key, .lease = a->lease },
    };
    const struct etcd3_op no = { .kind = ETCD3_RANGE, .key = a->path };
    const struct etcd3_txn txn = { .compare = &compare,
                                   .compare_count = a->cond != ETCD_ALWAYS,
                                   .yes = yes,
                                   .yes_count = a->change_key.n ? 2 : 1,
                                   .no = &no,
                                   .no_count = 1 };

    return etcd3_encode_txn(m, &txn);
}

/* Reads or deletes the key alone, or all keys below it. */
static int v3_encode_range(const struct kv_operation *a, bool below, bool delete,
                           struct etcd_msg *m)
{
    struct etcd3_op op = { .kind = delete ? ETCD3_DELETE : ETCD3_RANGE,
                           .key = a->path };
    const struct etcd3_txn txn = { .yes = &op, .yes_count = 1 };
    struct buf end;

    buf_init(&end, SIZE_MAX);
    if (below)
        buf_fail(&m->body, etcd3_prefix_end(&end, a->path));
    op.end = buf_span(&end);
    (void)(delete ? etcd3_encode_txn(m, &txn) : etcd3_encode_range(m, &op));
    buf_fini(&end);
    return etcd_msg_error(m);
}

static int kv_operation_v3_encode(const struct kv_operation *a, struct etcd_msg *m)
{
    switch (a->kind) {
    case KV_OPERATION_GET:
        return v3_encode_range(a, false, false, m);
    case KV_OPERATION_PUT:
        return v3_encode_put(a, m);
    case KV_OPERATION_DELETE:
        return v3_encode_range(a, a->directory, true, m);
    case KV_OPERATION_LIST:
        return v3_encode_range(a, true, false, m);
    case KV_OPERATION_WAIT:
        break; /* A stream does this. */
    }
    return MUSTER_EBUG;
}

/* ---- v3: answers ---- */

static struct etcd_held v3_held(const struct etcd3_reply *r)
{
    const struct etcd3_result *res = r->count ? &r->results[0] : NULL;
    struct etcd_held h = { .revision = (uint64_t)r->revision };

    assert(r->revision >= 0);
    if (res && res->kind == ETCD3_RANGE && res->count) {
        h.present = true;
        h.value = res->kvs[0].value;
        h.token = (uint64_t)res->kvs[0].mod_revision;
    }
    return h;
}

/* If the condition did not hold, the same answer says what is there. */
static int v3_on_put(const struct kv_operation *a, const struct etcd3_reply *r,
                     struct etcd_held *held)
{
    *held = v3_held(r);
    if (r->succeeded) {
        held->present = true;
        held->value = a->value;
        held->token = held->revision;
        return 0;
    }
    /* A put that was repeated may have failed because its first try succeeded. */
    return a->unique && held->present && span_eq(held->value, a->value) ? 0
                                                                        : MUSTER_EEXIST;
}

static int v3_on_list(struct kv_operation *a, const struct etcd3_reply *r,
                      struct etcd_held *held)
{
    const struct etcd3_result *res = r->count ? &r->results[0] : NULL;

    held->revision = (uint64_t)r->revision;
    held->present = res && res->count > 0;
    if (!held->present)
        return 0;
    if (make_items(a, res->count) < 0)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < res->count; i++)
        add_item(a, res->kvs[i].key, res->kvs[i].value,
                 (uint64_t)res->kvs[i].mod_revision, held);
    return 0;
}

static bool kv_operation_v3_answer(struct kv_operation *a, int *status,
                                   const struct etcd3_reply *r, struct etcd_held *held)
{
    if (*status < 0)
        return true;
    assert(r);
    switch (a->kind) {
    case KV_OPERATION_GET:
        *held = v3_held(r);
        return true;
    case KV_OPERATION_PUT:
        *status = v3_on_put(a, r, held);
        return true;
    case KV_OPERATION_DELETE:
        held->revision = (uint64_t)r->revision;
        held->present = r->count && r->results[0].deleted > 0;
        return true;
    case KV_OPERATION_LIST:
        *status = v3_on_list(a, r, held);
        return true;
    case KV_OPERATION_WAIT:
        break;
    }
    return true;
}

/* ---- Either ---- */

int kv_operation_encode(const struct kv_operation *a, struct etcd_msg *m)
{
    return a->api == ETCD_V2 ? kv_operation_v2_encode(a, m)
                             : kv_operation_v3_encode(a, m);
}

enum etcd3_expect kv_operation_expect(const struct kv_operation *a)
{
    return a->kind == KV_OPERATION_GET || a->kind == KV_OPERATION_LIST
               ? ETCD3_EXPECT_RANGE
               : ETCD3_EXPECT_TXN;
}

bool kv_operation_once(const struct kv_operation *a)
{
    return a->kind == KV_OPERATION_WAIT ||
           (a->kind == KV_OPERATION_PUT && a->cond != ETCD_ALWAYS && !a->unique);
}

bool kv_operation_answer(struct kv_operation *a, int *status,
                         const struct etcd_answer *answer, struct etcd_held *held)
{
    assert(*status <= 0);
    *held = (struct etcd_held){ .present = false };
    return a->api == ETCD_V2
               ? kv_operation_v2_answer(a, status, answer ? answer->v2 : NULL, held)
               : kv_operation_v3_answer(a, status, answer ? answer->v3 : NULL, held);
}
