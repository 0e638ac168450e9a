/* etcd_store.c - see etcd_store.h. From top to bottom: the end of a call, the requests
 * to etcd that each operation makes, calls, open and close.
 *
 * All operations but the listings consist of get, put, delete and wait on
 * one key at a time. torch's EtcdStore lists the whole directory for each get, and that
 * holds the keys of all runs there ever were; our cost depends only on the keys that
 * are asked for. */
#include "etcd/etcd_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/defer.h"
#include "store/call.h"

#define REQUEST_MS 60000u

struct etcd_store {
    struct async_store base;
    struct etcd_kv kv;
    char *dir, *name;               /* owned */
    const int64_t *lease;           /* borrowed, may be NULL */
    struct call_list queued, calls; /* not yet begun; under way */
    struct defer next_run;          /* begins those that are queued */
};

/* One call: it goes over its keys and makes a request to etcd for each. */
struct etcd_store_call {
    struct call base; /* first */
    bool block, has_list;
    int64_t sum;
    struct c10d_list list; /* keys still to come; MULTI_SET: with values */
    struct span key;       /* the current key, as the user gave it */
    struct buf path;       /* owned: of that key in etcd */
    struct buf out;        /* owned: the list of the answer, or the value to write */
    size_t total, found;
    struct etcd_op *req; /* under way */
};

static struct etcd_store *etcd_store_of(const struct etcd_store_call *c)
{
    return CONTAINER_OF(c->base.store, struct etcd_store, base);
}

static struct etcd_store *store_of(const struct async_store *s)
{
    return CONTAINER_OF(s, struct etcd_store, base);
}

/* Appends the path of a key: dir, and the key as it is written to this kind of etcd. */
static int etcd_store_path(const struct etcd_store *s, struct span key, struct buf *out)
{
    const int rc = buf_append_str(out, s->dir);

    if (rc < 0)
        return rc;
    return s->kv.api == ETCD_V2 ? base64_encode(out, key) : buf_append_span(out, key);
}

/* Appends to out what etcd holds, as the user wrote it. MUSTER_ESTATE: not base64. */
static int etcd_store_value(const struct etcd_store *s, struct span held,
                            struct buf *out)
{
    uint8_t *room;
    int64_t n;

    if (s->kv.api != ETCD_V2)
        return buf_append_span(out, held);
    room = buf_room(out, BASE64_DECODED(held.n));
    if (!room)
        return MUSTER_ENOMEM;
    n = base64_decode(room, held);
    if (n < 0)
        return MUSTER_ESTATE;
    buf_commit(out, (size_t)n);
    return 0;
}

/* ---- The end of a call ---- */

static uint64_t etcd_store_call_left(const struct etcd_store_call *c)
{
    return ms_left(c->base.deadline_ms, clock_mono_ms());
}

/* Each calls the caller's callback and frees c. */
static void etcd_store_call_end(struct etcd_store_call *c, int status,
                                const struct c10d_reply *reply,
                                const struct muster_error *err)
{
    etcd_op_cancel(c->req);
    call_list_remove(&etcd_store_of(c)->calls, &c->base);
    call_notify(&c->base, status, reply, err);
    buf_fini(&c->path);
    buf_fini(&c->out);
    call_free(&c->base);
}

static void etcd_store_call_done(struct etcd_store_call *c,
                                 const struct c10d_reply *reply)
{
    etcd_store_call_end(c, 0, reply, NULL);
}

static void etcd_store_call_fail(struct etcd_store_call *c, int status,
                                 const struct muster_error *err)
{
    etcd_store_call_end(c, status, NULL, err);
}

static void etcd_store_ask_key(struct etcd_store_call *c);

static uint64_t etcd_store_request_ms(const struct etcd_store_call *c)
{
    return MIN_OF(etcd_store_call_left(c), REQUEST_MS);
}

/* Starts a request; if that fails, so does the call. */
static void etcd_store_request(struct etcd_store_call *c,
                               const struct etcd_kv_request *req, etcd_held_cb cb)
{
    struct muster_error err = { 0 };
    const int rc = etcd_kv_start(&etcd_store_of(c)->kv, req, cb, c, &c->req, &err);

    if (rc < 0)
        etcd_store_call_fail(c, rc, &err);
}

/* ---- Writing ---- */

static void etcd_store_on_held(void *ctx, int status, const struct etcd_held *held,
                               const struct muster_error *err);

/* Writes value, which is as the user gave it. */
static void etcd_store_put(struct etcd_store_call *c, struct span value,
                           enum etcd_cond cond, uint64_t token, etcd_held_cb cb)
{
    const struct etcd_store *s = etcd_store_of(c);
    struct etcd_put p = { .path = buf_span(&c->path),
                          .value = value,
                          .cond = cond,
                          .token = token,
                          .lease = s->lease ? *s->lease : 0 };
    const struct etcd_kv_request req = { .kind = KV_OPERATION_PUT,
                                         .put = &p,
                                         .timeout_ms = etcd_store_request_ms(c) };
    struct muster_error err = { 0 };
    struct buf text;

    buf_init(&text, SIZE_MAX);
    if (s->kv.api == ETCD_V2) {
        (void)base64_encode(&text, value);
        p.value = buf_len(&text) ? buf_span(&text) : span_of("", 0);
    }
    if (buf_error(&text) < 0)
        etcd_store_call_fail(c, err_nomem(&err), &err);
    else
        etcd_store_request(c, &req, cb);
    buf_fini(&text);
}

static void etcd_store_on_set(void *ctx, int status, const struct etcd_held *held,
                              const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    const struct c10d_reply reply = { .op = c->base.op };

    (void)held;
    c->req = NULL;
    if (status < 0)
        etcd_store_call_fail(c, status, err);
    else if (c->base.op == C10D_MULTI_SET && c10d_list_next(&c->list, &c->key))
        etcd_store_ask_key(c);
    else
        etcd_store_call_done(c, &reply);
}

static void etcd_store_on_deleted(void *ctx, int status, const struct etcd_held *held,
                                  const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct c10d_reply reply = { .op = c->base.op };

    c->req = NULL;
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    reply.number = held->present;
    etcd_store_call_done(c, &reply);
}

/* ---- Read, change, write ---- */

/* c->out has the new value, which was made from the value that was read. If somebody
 * else wrote first, we start again from what they wrote. */
static void etcd_store_on_changed(void *ctx, int status, const struct etcd_held *held,
                                  const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct c10d_reply reply = { .op = c->base.op };

    c->req = NULL;
    if (status == MUSTER_EEXIST) {
        etcd_store_on_held(c, 0, held, err);
        return;
    }
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    reply.value = buf_span(&c->out);
    if (c->base.op == C10D_ADD)
        reply.number = c->sum;
    etcd_store_call_done(c, &reply);
}

static void etcd_store_change(struct etcd_store_call *c, struct span value,
                              const struct etcd_held *held)
{
    etcd_store_put(c, value, held->present ? ETCD_IF_TOKEN : ETCD_IF_ABSENT,
                   held->token, etcd_store_on_changed);
}

/* Reads the decimal number in c->out. */
static int etcd_store_number_of(const struct etcd_store_call *c, int64_t *out,
                                struct muster_error *err)
{
    char text[24];
    char *end = text;
    const size_t n = buf_len(&c->out);

    if (n > 0 && n < sizeof text) {
        memcpy(text, buf_data(&c->out), n);
        text[n] = '\0';
        errno = 0;
        *out = strtoll(text, &end, 10);
    }
    if (end == text || *end != '\0' || errno != 0)
        return err_set(err, MUSTER_EINVAL, "ADD to %.*s: its value is not a number",
                       (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p);
    return 0;
}

static void etcd_store_add(struct etcd_store_call *c, const struct etcd_held *held)
{
    struct muster_error err = { 0 };
    int64_t old = 0;
    int rc = held->present ? etcd_store_number_of(c, &old, &err) : 0;

    if (rc == 0 && __builtin_add_overflow(old, c->base.copy.req.number, &c->sum))
        rc = err_set(&err, MUSTER_EINVAL, "ADD to %.*s: the sum is too large",
                     (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p);
    buf_clear(&c->out);
    if (rc == 0 && buf_printf(&c->out, "%" PRId64, c->sum) < 0)
        rc = err_nomem(&err);
    if (rc < 0)
        etcd_store_call_fail(c, rc, &err);
    else
        etcd_store_change(c, buf_span(&c->out), held);
}

static void etcd_store_append(struct etcd_store_call *c, const struct etcd_held *held)
{
    struct muster_error err = { 0 };

    if (buf_append_span(&c->out, c->base.copy.req.value) < 0)
        etcd_store_call_fail(c, err_nomem(&err), &err);
    else
        etcd_store_change(c, buf_span(&c->out), held);
}

/* The rules of c10d's compareSet, which the rendezvous relies on. */
static void etcd_store_compare_set(struct etcd_store_call *c,
                                   const struct etcd_held *held)
{
    const struct span current = buf_span(&c->out);
    const struct c10d_reply reply = {
        .op = c->base.op, .value = held->present ? current : c->base.copy.req.expected
    };
    struct muster_error err = { 0 };

    if (held->present ? !span_eq(current, c->base.copy.req.expected)
                      : c->base.copy.req.expected.n != 0) {
        etcd_store_call_done(c, &reply);
        return;
    }
    buf_clear(&c->out);
    if (buf_append_span(&c->out, c->base.copy.req.value) < 0)
        etcd_store_call_fail(c, err_nomem(&err), &err);
    else
        etcd_store_change(c, c->base.copy.req.value, held);
}

/* ---- Reading ---- */

static void etcd_store_on_waited(void *ctx, int status, const struct etcd_held *held,
                                 const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct muster_error late = { 0 };

    (void)status; /* In any case read again; that fails if etcd cannot be reached. */
    (void)held;
    (void)err;
    c->req = NULL;
    if (etcd_store_call_left(c) > 0) {
        etcd_store_ask_key(c);
        return;
    }
    err_set(&late, MUSTER_ETIMEDOUT,
            c->base.op == C10D_GET
                ? "Key %.*s not found in EtcdStore (%s)"
                : "Timeout while waiting for keys in EtcdStore: %.*s (%s)",
            (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p,
            etcd_store_of(c)->name);
    etcd_store_call_fail(c, MUSTER_ETIMEDOUT, &late);
}

static void etcd_store_missing(struct etcd_store_call *c, const struct etcd_held *held)
{
    const struct etcd_kv_request wait = { .kind = KV_OPERATION_WAIT,
                                          .path = buf_span(&c->path),
                                          .revision = held->revision,
                                          .timeout_ms = etcd_store_call_left(c) };
    const struct c10d_reply no = { .op = c->base.op, .number = 1 };
    struct muster_error err = { 0 };

    if (c->base.op == C10D_CHECK) {
        etcd_store_call_done(c, &no);
        return;
    }
    if (!c->block) {
        err_set(&err, MUSTER_ENOENT, "Key %.*s not found in EtcdStore (%s)",
                (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p,
                etcd_store_of(c)->name);
        etcd_store_call_fail(c, MUSTER_ENOENT, &err);
        return;
    }
    etcd_store_request(c, &wait, etcd_store_on_waited);
}

/* The key exists: goes on to the next one, or answers. */
static void etcd_store_found(struct etcd_store_call *c)
{
    struct c10d_reply reply = { .op = c->base.op };

    c->found++;
    if (c->found < c->total && c10d_list_next(&c->list, &c->key)) {
        etcd_store_ask_key(c);
        return;
    }
    if (c->base.op == C10D_MULTI_GET)
        reply.list = (struct c10d_list){ buf_span(&c->out), c->found };
    else if (c->base.op == C10D_GET)
        reply.value = buf_span(&c->out);
    etcd_store_call_done(c, &reply);
}

/* Puts what etcd holds into c->out, as the user wrote it. If that fails the call has
 * failed, and c must not be used any more. */
static bool etcd_store_take_value(struct etcd_store_call *c,
                                  const struct etcd_held *held)
{
    struct muster_error err = { 0 };
    struct buf value;
    int rc;

    buf_init(&value, SIZE_MAX);
    rc = etcd_store_value(etcd_store_of(c), held->value, &value);
    if (rc == 0)
        rc = c->base.op == C10D_MULTI_GET ? c10d_list_add(&c->out, buf_span(&value))
                                          : buf_append_span(&c->out, buf_span(&value));
    buf_fini(&value);
    if (rc == 0)
        return true;
    err_set(&err, rc, "%s of %.*s: %s", c10d_op_name(c->base.op),
            (int)MIN_OF(c->key.n, 200u), (const char *)c->key.p,
            rc == MUSTER_ESTATE ? "its value is not base64, so it is not a store's"
                                : muster_code_text(rc));
    etcd_store_call_fail(c, rc, &err);
    return false;
}

static void etcd_store_on_held(void *ctx, int status, const struct etcd_held *held,
                               const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;

    c->req = NULL;
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    if (c->base.op != C10D_MULTI_GET)
        buf_clear(&c->out);
    if (held->present && !etcd_store_take_value(c, held))
        return;
    switch ((int)c->base.op) {
    case C10D_ADD:
        etcd_store_add(c, held);
        return;
    case C10D_APPEND:
        etcd_store_append(c, held);
        return;
    case C10D_COMPARE_SET:
        etcd_store_compare_set(c, held);
        return;
    }
    if (held->present)
        etcd_store_found(c);
    else
        etcd_store_missing(c, held);
}

static void etcd_store_on_listed(void *ctx, int status, const struct etcd_held *held,
                                 const struct muster_error *err)
{
    struct etcd_store_call *c = ctx;
    struct c10d_reply reply = { .op = c->base.op };
    struct muster_error why = { 0 };
    int rc = 0;

    c->req = NULL;
    if (status < 0) {
        etcd_store_call_fail(c, status, err);
        return;
    }
    reply.number = (int64_t)held->count;
    for (size_t i = 0; rc == 0 && c->base.op == C10D_LIST_KEYS && i < held->count;
         i++) {
        struct buf key;

        buf_init(&key, SIZE_MAX);
        rc = etcd_store_value(etcd_store_of(c), held->items[i].key, &key);
        if (rc == 0)
            rc = c10d_list_add(&c->out, buf_span(&key));
        if (rc == MUSTER_ESTATE)
            rc = 0; /* It is not a key of the store. */
        else
            reply.list.count++;
        buf_fini(&key);
    }
    if (rc < 0) {
        etcd_store_call_fail(c, err_nomem(&why), &why);
        return;
    }
    reply.list.bytes = buf_span(&c->out);
    etcd_store_call_done(c, &reply);
}

/* ---- The request that each operation begins with ---- */

static void etcd_store_ask_key(struct etcd_store_call *c)
{
    struct etcd_kv_request req = { .timeout_ms = etcd_store_request_ms(c) };
    struct muster_error err = { 0 };
    struct span value;

    buf_clear(&c->path);
    if (etcd_store_path(etcd_store_of(c), c->key, &c->path) < 0) {
        etcd_store_call_fail(c, err_nomem(&err), &err);
        return;
    }
    req.path = buf_span(&c->path);
    switch ((int)c->base.op) {
    case C10D_SET:
        etcd_store_put(c, c->base.copy.req.value, ETCD_ALWAYS, 0, etcd_store_on_set);
        return;
    case C10D_MULTI_SET:
        if (!c10d_list_next(&c->list, &value))
            value = span_of("", 0);
        etcd_store_put(c, value, ETCD_ALWAYS, 0, etcd_store_on_set);
        return;
    case C10D_DELETE_KEY:
        req.kind = KV_OPERATION_DELETE;
        etcd_store_request(c, &req, etcd_store_on_deleted);
        return;
    case C10D_GETNUMKEYS:
    case C10D_LIST_KEYS:
        req.kind = KV_OPERATION_LIST;
        req.path = span_str(etcd_store_of(c)->dir);
        etcd_store_request(c, &req, etcd_store_on_listed);
        return;
    default:
        req.kind = KV_OPERATION_GET;
        etcd_store_request(c, &req, etcd_store_on_held);
    }
}

/* Sends the first request of each call that is queued. */
static void etcd_store_run(void *store)
{
    struct etcd_store *s = store;
    struct etcd_store_call *c;

    while ((c = (struct etcd_store_call *)call_list_take(&s->queued))) {
        struct c10d_reply none = { .op = c->base.op, .list.bytes = span_of("", 0) };

        call_list_add(&s->calls, &c->base);
        if (c->has_list && !c10d_list_next(&c->list, &c->key))
            etcd_store_call_done(c, &none);
        else
            etcd_store_ask_key(c);
    }
}

/* ---- Calls ---- */

static bool etcd_store_supported(enum c10d_op op)
{
    switch ((int)op) {
    case C10D_SET:
    case C10D_COMPARE_SET:
    case C10D_GET:
    case C10D_ADD:
    case C10D_CHECK:
    case C10D_WAIT:
    case C10D_GETNUMKEYS:
    case C10D_DELETE_KEY:
    case C10D_APPEND:
    case C10D_MULTI_GET:
    case C10D_MULTI_SET:
    case C10D_LIST_KEYS:
        return true;
    }
    return false;
}

static int etcd_store_call_new(struct etcd_store *s, const struct c10d_request *req,
                               struct etcd_store_call **out, struct muster_error *err)
{
    struct call *call;
    const int rc = call_new(sizeof **out, &s->base, req, "", &call, err);

    if (rc < 0)
        return rc;
    struct etcd_store_call *c = (struct etcd_store_call *)call;

    buf_init(&c->path, SIZE_MAX);
    buf_init(&c->out, SIZE_MAX);
    c->key = call->copy.req.key;
    c->list = call->copy.req.list;
    c->has_list = c10d_has_list(req->op);
    c->total = c->has_list ? req->list.count : 1;
    *out = c;
    return 0;
}

static int etcd_store_call(struct async_store *base, const struct c10d_request *req,
                           unsigned flags, uint64_t timeout_ms, async_store_cb cb,
                           void *ctx, struct muster_error *err)
{
    struct etcd_store *s = store_of(base);
    struct etcd_store_call *c;

    if (!etcd_store_supported(req->op))
        return err_set(err, MUSTER_ENOTSUP,
                       "%s is not supported by a store in etcd (%s)",
                       c10d_op_name(req->op), s->name);
    const int rc = etcd_store_call_new(s, req, &c, err);
    if (rc < 0)
        return rc;
    c->block = flags & ASYNC_STORE_BLOCK || req->op == C10D_WAIT;
    call_begin(&c->base, flags, timeout_ms, cb, ctx);
    call_list_add(&s->queued, &c->base);
    defer_call(&s->next_run);
    return 0;
}

/* ---- Open and close ---- */

static void etcd_store_free(struct etcd_store *s)
{
    mem_free(s->dir);
    mem_free(s->name);
    mem_free(s);
}

static void etcd_store_on_closed(uv_handle_t *handle)
{
    struct etcd_store *s = CONTAINER_OF(handle, struct etcd_store, next_run.idle);

    async_store_closed(&s->base);
    etcd_store_free(s);
}

static void etcd_store_close(struct async_store *base)
{
    struct etcd_store *s = store_of(base);
    struct muster_error err = { 0 };
    struct call *call;

    while ((call = call_list_take(&s->queued)))
        call_list_add(&s->calls, call);
    err_set(&err, MUSTER_ECANCELED, "the store %s was closed", s->name);
    while (s->calls.first)
        etcd_store_call_fail((struct etcd_store_call *)s->calls.first, MUSTER_ECANCELED,
                             &err);
    uv_close((uv_handle_t *)&s->next_run.idle, etcd_store_on_closed);
}

/* Requests of one client run side by side, so a clone needs no connection of its own.
 */
static int etcd_store_clone(struct async_store *base, struct async_store **out,
                            struct muster_error *err)
{
    const struct etcd_store *s = store_of(base);

    return store_etcd_open(&s->kv, s->dir, s->lease, out, err);
}

static const struct async_store_ops etcd_store_ops = {
    .kind = "etcd",
    .call = etcd_store_call,
    .clone = etcd_store_clone,
    .close = etcd_store_close,
};

int store_etcd_open(const struct etcd_kv *kv, const char *dir, const int64_t *lease,
                    struct async_store **out, struct muster_error *err)
{
    struct etcd_store *s = mem_calloc(1, sizeof *s);

    if (!s)
        return err_nomem(err);
    s->kv = *kv;
    s->lease = lease;
    s->dir = mem_strdup(dir);
    s->name = mem_printf("etcd %s%s", etcd_client_where(kv->client), dir);
    if (!s->dir || !s->name) {
        etcd_store_free(s);
        return err_nomem(err);
    }
    s->base =
        (struct async_store){ &etcd_store_ops, etcd_client_loop(kv->client), s->name };
    defer_init(&s->next_run, s->base.loop, etcd_store_run, s);
    *out = &s->base;
    return 0;
}
